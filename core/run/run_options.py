"""The description of a training run, stored beside its checkpoints, and the flags that a checkpoint is then used with.

train.py writes it; eval.py, vis.py and export_model.py take from it every flag that their command line leaves out, and refuse a
given flag that describes another network. A checkpoint without a description is used with the flags alone.
"""

import json
import os
from typing import NamedTuple

from absl import logging

from deeplab.core.base import files, stored_format
from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf
from deeplab.core.images import dataset_descriptor
from deeplab.core.run import checkpoint

FILE_NAME = 'model_options.json'
RESIZE_FLAGS = ('min_resize_value', 'max_resize_value', 'resize_factor', 'keep_aspect_ratio')
# Flags that are stored beside those of the network itself.
INPUT_FLAGS = ('image_pyramid', 'quantize_delay_step', *RESIZE_FLAGS)

# What a file holds; format 1 had no head (core/base/stored_format.py) and these flags.
_FLAGS_OF_FORMAT_1 = (
    'atrous_rates', 'output_stride', 'merge_method', 'add_image_level_feature', 'image_pooling_crop_size',
    'image_pooling_stride', 'aspp_with_batch_norm', 'aspp_with_separable_conv', 'multi_grid', 'decoder_output_stride',
    'decoder_use_separable_conv', 'logits_kernel_size', 'model_variant', 'depth_multiplier', 'divisible_by',
    'prediction_with_upsampled_logits', 'use_bounded_activation', 'aspp_with_concat_projection',
    'aspp_with_squeeze_and_excitation', 'aspp_convs_filters', 'decoder_use_sum_merge', 'decoder_filters',
    'decoder_output_is_logits', 'image_se_uses_qsigmoid', 'nas_stem_output_num_conv_filters', 'nas_use_classification_head',
    'nas_remove_os32_stride', 'dense_prediction_cell_json', 'image_pyramid', 'quantize_delay_step', 'min_resize_value',
    'max_resize_value', 'resize_factor', 'keep_aspect_ratio')
# An option that the file of an older run lacks has the value with which that run was trained.
ADDED_FLAGS: tuple[stored_format.Added, ...] = ()

# Flags that leave the variables of the network as they are, so that a checkpoint may be used with other values.
_MAY_DIFFER = ('output_stride', 'atrous_rates', 'image_pyramid', 'merge_method', 'prediction_with_upsampled_logits',
               'image_pooling_crop_size', 'image_pooling_stride', *RESIZE_FLAGS)
# Flags that a training run may change when it is resumed.
_FREE_IN_TRAINING = ('prediction_with_upsampled_logits', *RESIZE_FLAGS)


class RunOptions(NamedTuple):
  """Description of a training run.

  Attributes:
    flags: dict, name of a flag that decides the network, or one of INPUT_FLAGS -> value; `dense_prediction_cell_json` has the
      content of the file.
    dataset: DatasetDescriptor without its splits; None where no run is stored.
  """
  flags: dict
  dataset: dataset_descriptor.DatasetDescriptor | None


def stored_flags():
  """Names of the flags that the description of a run holds, set."""
  return {*_FLAGS_OF_FORMAT_1, *(row.name for row in ADDED_FLAGS)}


def write(folder, flags, descriptor):
  """Stores the description of a run as `<folder>/model_options.json`; a file that is there is replaced in one step.

  Args:
    folder: the training folder, which exists.
    flags: dict, as RunOptions.flags.
    descriptor: DatasetDescriptor.
  """
  dataset = {name: value for name, value in descriptor._asdict().items() if value is not None and name != 'splits_to_sizes'}
  content = {**stored_format.head([*ADDED_FLAGS, *dataset_descriptor.ADDED_FIELDS]), 'flags': flags, 'dataset': dataset}
  files.replace_file(os.path.join(folder, FILE_NAME), json.dumps(content, indent=1) + '\n')


def read(path):
  """Description of the run that a checkpoint belongs to, of whichever version of this program.

  Args:
    path: prefix of a checkpoint, or its folder.

  Returns:
    RunOptions, or None where none is stored.

  Raises:
    InputError: the file is damaged, or a later version wrote it and uses what this one does not know.
  """
  folder = path if checkpoint.is_folder(path) else os.path.dirname(path)
  path = os.path.join(folder, FILE_NAME)
  try:
    content = files.read_json(path)
    return None if content is None else _parse(content)
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise InputError(f'{path} is not the description of a training run that this version can use ({error}). Use the version that '
                     'wrote it, or remove it and give every flag of the network.') from error


def _parse(content):
  if not isinstance(content, dict):
    raise ValueError('it holds no JSON object')
  head, parts = stored_format.take_head(content)
  flags = stored_format.filled(stored_format.known_values(parts['flags'], stored_flags(), head), ADDED_FLAGS, head)
  missing = sorted(stored_flags().difference(flags))
  if missing:
    raise ValueError(f'it lacks the option {missing[0]}')
  dataset = stored_format.known_values(parts['dataset'], dataset_descriptor.DatasetDescriptor._fields, head)
  return RunOptions(flags, dataset_descriptor.describe(**dataset))


def is_of_a_run(path):
  """Whether a file lies in the folder of a run."""
  return tf.io.gfile.exists(os.path.join(os.path.dirname(path), FILE_NAME))


def differences(stored, flags, descriptor):
  """What keeps a run from being resumed with other options.

  Args:
    stored: RunOptions of the run.
    flags: dict as RunOptions.flags, now.
    descriptor: DatasetDescriptor now.

  Returns:
    List of lines, each with the flag, the value of the run and the value now.
  """
  lines = [f'--{name}: {_text(value)} in the run, {_text(flags[name])} now' for name, value in stored.flags.items()
           if name not in _FREE_IN_TRAINING and not _is_same(name, value, flags[name])]
  names = [name for name in ('num_classes', 'ignore_label') if getattr(stored.dataset, name) != getattr(descriptor, name)]
  if len(stored.dataset.class_names) == len(descriptor.class_names) and _are_moved(stored.dataset.class_names,
                                                                                   descriptor.class_names):
    names.append('class_names')
  return lines + [f'{name} of the data set: {_text(getattr(stored.dataset, name))} in the run ({stored.dataset.name}), '
                  f'{_text(getattr(descriptor, name))} now ({descriptor.name})' for name in names]


def _are_moved(before, after):
  """Whether a class that has another name now had that of another one: the order is not that of the checkpoint."""
  changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
  return bool({old for old, _ in changed} & {new for _, new in changed})


def renamed_classes(stored, descriptor):
  """Classes that have another name than in the run.

  Args:
    stored: RunOptions of the run.
    descriptor: DatasetDescriptor now, with as many classes.

  Returns:
    List of texts, `old -> new`.
  """
  return [f'{old} -> {new}' for old, new in zip(stored.dataset.class_names, descriptor.class_names, strict=True) if old != new]


def _is_same(name, one, other):
  if name == 'image_pyramid':
    one, other = one or [1.0], other or [1.0]
  if name == 'quantize_delay_step':
    # The network is the same whenever it begins.
    one, other = one >= 0, other >= 0
  return one == other


def _text(value):
  if value is None:
    return 'not set'
  return ','.join(map(str, value)) if isinstance(value, list) else str(value)


def use(prefix, flags, given):
  """Flags that a checkpoint is used with: as its training run stored them, else as they are.

  A flag that is given takes precedence where the variables stay the same (output stride, pyramid, resizing ...), and is refused
  where it contradicts the run. Call `checkpoint_fit.check_variables` once the network is built.

  Args:
    prefix: prefix of the checkpoint, from checkpoint.resolve_checkpoint.
    flags: dict as RunOptions.flags, in force on this command line.
    given: names of the flags that the user gave.

  Returns:
    RunOptions; its data set is None where no run is stored.

  Raises:
    InputError: flags contradict the run or each other.
  """
  stored = read(prefix)
  if stored:
    flags = _merge(stored.flags, flags, given, prefix)
    logging.info('Options of the network as stored in %s.', os.path.join(os.path.dirname(prefix), FILE_NAME))
  check_resizing(flags['min_resize_value'], flags['max_resize_value'])
  return RunOptions(flags, stored.dataset if stored else None)


def _merge(stored, flags, given, prefix):
  """The stored value of each flag, or the given one where that may differ."""
  differing = [name for name in given if name in stored and not _is_same(name, stored[name], flags[name])]
  refused = [name for name in differing if name not in _MAY_DIFFER]
  if len(stored['atrous_rates'] or []) != len(flags['atrous_rates'] or []) and 'atrous_rates' in differing:
    refused.append('atrous_rates')
  if refused:
    contradictions = '; '.join(f'--{name} is {_text(flags[name])}, the run has {_text(stored[name])}' for name in refused)
    raise InputError(f'{prefix} was trained as another network: {contradictions}. Leave such flags out: they are taken from the '
                     f'{FILE_NAME} beside the checkpoint.')
  for name in differing:
    logging.warning('--%s=%s is used as given; the checkpoint was trained %s.', name, _text(flags[name]),
                    'without' if stored[name] is None else f'with {_text(stored[name])}')
  if 'output_stride' in differing and 'atrous_rates' not in given and stored['atrous_rates']:
    ratio = stored['output_stride'] / flags['output_stride']
    fitting = ','.join(str(round(rate * ratio)) for rate in stored['atrous_rates'])
    logging.warning('--output_stride=%d keeps the --atrous_rates %s of the run; the same field of view has %s.',
                    flags['output_stride'], _text(stored['atrous_rates']), fitting)
  return {**stored, **{name: flags[name] for name in differing}}


def check_resizing(min_resize_value, max_resize_value):
  """Refuses values of the two flags, pixels or None, that do not go together."""
  if max_resize_value is not None and (min_resize_value is None or min_resize_value > max_resize_value):
    raise InputError(f'--max_resize_value={max_resize_value} with --min_resize_value={_text(min_resize_value)}: give both, the '
                     'second not above the first.')
