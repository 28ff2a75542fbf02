"""Checkpoints on disk: which one a path means, whether it is whole, and what it holds."""

import os
import re

from absl import logging

from deeplab.core.base import files
from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf

_ARCHIVE_SUFFIXES = ('.tar.gz', '.tgz', '.tar', '.gz', '.zip')
# The files of one checkpoint: <prefix>.index, <prefix>.data-00000-of-00002, ... and <prefix>.meta.
_SUFFIX = re.compile(r'\.(index|meta|data-\d{5}-of-\d{5})$')
_SHARD = re.compile(r'\.data-(\d{5})-of-(\d{5})$')
_MAX_LISTED = 8


def variable_shapes(prefix):
  """Shapes of all variables of a checkpoint: name -> list of ints."""
  return tf.train.NewCheckpointReader(prefix).get_variable_to_shape_map()


def global_step(prefix):
  """Training step at which a checkpoint was written, an int; None where it holds no `global_step`."""
  reader = tf.train.NewCheckpointReader(prefix)
  return int(reader.get_tensor('global_step')) if reader.has_tensor('global_step') else None


def is_folder(path):
  """Whether a path is that of a folder; some file systems take the prefix of a checkpoint for one, too."""
  return tf.io.gfile.isdir(path) and not tf.io.gfile.exists(path + '.index')


def resolve_checkpoint(path, flag_name):
  """Prefix of the checkpoint that a user means.

  Args:
    path: prefix of a checkpoint, one of its files, or a folder. A folder means the newest whole checkpoint that its `checkpoint`
      file names, looked up by base name first so that a moved folder works; without that file, its only checkpoint.
    flag_name: flag that holds the path, for messages.

  Returns:
    Prefix of a checkpoint whose files are all there.

  Raises:
    InputError: an archive, nothing there, no or several checkpoints in the folder, or files that are missing or cut short.
  """
  given = f'--{flag_name}={path}'
  if path.endswith(_ARCHIVE_SUFFIXES):
    raise InputError(f'{given} is an archive: unpack it first, then give the folder or the prefix of the checkpoint inside.')
  if is_folder(path):
    return _choose_in_folder(path, given)
  prefix = _SUFFIX.sub('', path)
  if not tf.io.gfile.exists(path) and not tf.io.gfile.exists(prefix + '.index'):
    raise InputError(f'{given}: there is no such checkpoint. {_describe_folder(os.path.dirname(prefix) or ".")}')
  fault = _find_fault(prefix)
  if fault:
    raise InputError(f'{given} is not a usable checkpoint: {fault}.')
  return prefix


def prepare_resume(folder):
  """Makes the `checkpoint` file of a training folder name checkpoints that are there and whole, by their names alone.

  A folder that was moved, or in which a crash left files half written, then resumes like any other.

  Args:
    folder: value of --train_logdir.

  Returns:
    Prefix of the newest whole checkpoint, or None where the folder holds none at all.

  Raises:
    InputError: there are checkpoints, but none is whole.
  """
  if not tf.io.gfile.isdir(folder):
    return None
  named = [os.path.join(folder, os.path.basename(prefix)) for prefix in _named_prefixes(folder)]
  newest_first = list(dict.fromkeys([*named, *reversed(_prefixes_in(folder))]))
  if not newest_first:
    return None
  whole = [prefix for prefix in newest_first if not _find_fault(prefix)]
  if not whole:
    raise InputError(f'--train_logdir={folder} holds no usable checkpoint; {newest_first[0]}: {_find_fault(newest_first[0])}. '
                     'Remove its checkpoints and the file `checkpoint`, or name another folder.')
  if whole[0] != newest_first[0]:
    logging.warning('The newest checkpoint in %s is not usable (%s); training goes on from %s.', folder,
                    _find_fault(newest_first[0]), whole[0])
  kept = [os.path.basename(prefix) for prefix in reversed(whole) if prefix in named or prefix == whole[0]]
  state = tf.train.generate_checkpoint_state_proto('', kept[-1], kept)
  files.replace_file(os.path.join(folder, 'checkpoint'), str(state))
  return whole[0]


def _choose_in_folder(folder, given):
  named = _named_prefixes(folder)
  for prefix in named:
    if not _find_fault(prefix):
      if os.path.basename(prefix) != os.path.basename(named[0]):
        logging.warning('%s: the newest checkpoint is not usable (%s); taking %s.', given, _find_fault(named[0]), prefix)
      return prefix
  faults = {prefix: _find_fault(prefix) for prefix in _prefixes_in(folder)}
  usable = [prefix for prefix, fault in faults.items() if not fault]
  if len(usable) == 1:
    return usable[0]
  if usable:
    raise InputError(f'{given} holds {len(usable)} checkpoints, but no usable `checkpoint` file that says which is the newest: '
                     f'give one of {_join(usable)}.')
  if faults:
    prefix, fault = list(faults.items())[-1]
    raise InputError(f'{given} holds no usable checkpoint; {prefix}: {fault}.')
  raise InputError(f'{given} holds no checkpoint. {_describe_folder(folder)}')


def _named_prefixes(folder):
  """What the `checkpoint` file of a folder names, newest first: beside that file, then where it says."""
  try:
    state = tf.train.get_checkpoint_state(folder)
  except ValueError:  # An empty file, as a crash can leave it.
    state = None
  if not state:
    return []
  paths = [state.model_checkpoint_path, *reversed(state.all_model_checkpoint_paths)]
  return list(dict.fromkeys(
      prefix for path in paths for prefix in (os.path.join(folder, os.path.basename(path)), path)))


def _prefixes_in(folder):
  """Prefixes of all checkpoints in a folder, by step."""
  names = [_SUFFIX.sub('', name) for name in tf.io.gfile.listdir(folder) if name.endswith('.index')]
  by_step = sorted(names, key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r'(\d+)', name)])
  return [os.path.join(folder, name) for name in by_step]


def _find_fault(prefix):
  """What is wrong with a checkpoint, in words, or None."""
  has_index = tf.io.gfile.exists(prefix + '.index')
  if not has_index and not tf.io.gfile.exists(prefix):
    return f'{prefix}.index is missing'
  try:
    reader = tf.train.NewCheckpointReader(prefix)
  except tf.errors.OpError as error:
    return f'{prefix}{".index" if has_index else ""} is not a file of a TensorFlow checkpoint ({error.message})'
  # The first checkpoint format has neither index nor shards.
  return _find_shard_fault(prefix, reader) if has_index else None


def _find_shard_fault(prefix, reader):
  folder, base = os.path.split(prefix)
  shards = {}
  for name in tf.io.gfile.listdir(folder or '.'):
    match = _SHARD.search(name)
    if match and name[:match.start()] == base:
      shards.setdefault(int(match.group(2)), []).append(os.path.join(folder, name))
  whole = [files for count, files in shards.items() if len(files) == count]
  if not whole:
    found = _join(sorted(name for files in shards.values() for name in files)) or 'none'
    return f'data files are missing; found {found}'
  dtypes = reader.get_variable_to_dtype_map()
  needed = sum(dtypes[name].size * _num_elements(shape) for name, shape in reader.get_variable_to_shape_map().items()
               if dtypes[name] != tf.string)
  held = max(sum(tf.io.gfile.stat(name).length for name in files) for files in whole)
  return f'its data files are cut short, {held} of {needed} bytes' if held < needed else None


def _num_elements(shape):
  return tf.TensorShape(shape).num_elements()


def _describe_folder(folder):
  """A sentence about what there is in place of a missing checkpoint."""
  if not tf.io.gfile.isdir(folder):
    return f'The folder {folder} does not exist either.'
  prefixes = _prefixes_in(folder)
  if prefixes:
    return f'Checkpoints in that folder: {_join(prefixes)}.'
  return f'The folder {folder} holds: {_join(sorted(tf.io.gfile.listdir(folder))) or "nothing"}.'


def _join(names):
  further = f' and {len(names) - _MAX_LISTED} more' if len(names) > _MAX_LISTED else ''
  return ', '.join(names[:_MAX_LISTED]) + further
