"""The folder of a training run: the record of its flags, and what training needs of a checkpoint in it to go on."""

import os

from absl import logging

from deeplab.core.base import files
from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf
from deeplab.core.run import checkpoint

FLAGS_FILE = 'flags.txt'
_TEXT_PLUGIN = 'text'
# Flags of where and how a run writes, which may change without any effect on what is trained.
_WITHOUT_EFFECT_ON_TRAINING = frozenset([
    'train_logdir', 'log_steps', 'save_interval_secs', 'save_summaries_secs', 'save_summaries_images',
    'save_summaries_histograms', 'profile_logdir', 'max_checkpoints_to_keep', 'keep_checkpoint_every_n_hours',
    'gpu_memory_growth', 'job_name', 'task', 'ps_hosts', 'master', 'peer_timeout_secs',
    'termination_grace_secs', 'validation_split', 'validation_interval_steps', 'validation_max_images',
    'early_stopping_validations', 'validation_job'])


def changed_flags(folder, lines):
  """Flags that differ from the last run in a folder.

  Args:
    folder: the training folder.
    lines: flags now, each `--name=value`.

  Returns:
    Dict, name -> (lines of the last run, lines now); empty where the folder has no record.
  """
  path = os.path.join(folder, FLAGS_FILE)
  if not tf.io.gfile.exists(path):
    return {}
  with tf.io.gfile.GFile(path) as flags_file:
    before, now = _by_name(flags_file.read().splitlines()), _by_name(lines)
  return {name: (before.get(name, []), now.get(name, [])) for name in sorted({*before, *now} - _WITHOUT_EFFECT_ON_TRAINING)
          if before.get(name) != now.get(name)}


def _by_name(lines):
  by_name = {}
  for line in lines:
    name = line.lstrip('-').partition('=')[0]
    # A switch that is off is written --noname; no flag of this project begins with these two letters.
    by_name.setdefault(name.removeprefix('no'), []).append(line)
  return by_name


def record_flags(folder, lines, step):
  """Writes the flags in force to `<folder>/flags.txt`, which --flagfile takes, and to the TensorBoard texts.

  Args:
    folder: the training folder.
    lines: each `--name=value`.
    step: global step at which training begins.
  """
  files.replace_file(os.path.join(folder, FLAGS_FILE), '\n'.join(lines) + '\n')
  summary = tf.Summary()
  metadata = tf.SummaryMetadata(plugin_data=tf.SummaryMetadata.PluginData(plugin_name=_TEXT_PLUGIN))
  # Indented lines stay lines.
  text = '\n'.join(f'    {line}' for line in lines)
  summary.value.add(tag='flags', tensor=tf.make_tensor_proto(text, tf.string), metadata=metadata)
  writer = tf.summary.FileWriterCache.get(folder)
  writer.add_summary(summary, step)
  writer.flush()


def warn_of_changes(changes):
  """Warns of flags that differ from those of the run that goes on.

  Args:
    changes: dict of `changed_flags`.
  """
  for before, now in changes.values():
    logging.warning('Other than in the run so far: %s (it was %s).', ' '.join(now) or 'not set', ' '.join(before) or 'not set')
  if 'training_number_of_steps' in changes:
    logging.warning('With another --training_number_of_steps the poly and cosine policies give another learning rate from here '
                    'on. To go on as before, give --decay_steps of the run so far (poly), or train a new run from this '
                    'checkpoint.')


def check_optimizer_variables(prefix, variables):
  """Refuses a checkpoint that lacks variables which training needs beside those of the network.

  Args:
    prefix: prefix of the checkpoint.
    variables: all variables that the session restores.

  Raises:
    InputError: some are missing; says what to do.
  """
  shapes = checkpoint.variable_shapes(prefix)
  missing = [variable.op.name for variable in variables if variable.op.name not in shapes]
  if missing:
    raise InputError(f'{prefix} lacks {len(missing)} variables of the optimizer, such as {missing[0]}: it holds weights alone, '
                     'or its run had another --optimizer, --freeze_backbone or --frozen_scopes. Go on with the flags of that run,'
                     f' or start a new --train_logdir with --tf_initial_checkpoint={prefix}.')
