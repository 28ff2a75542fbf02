"""The description of a training run, stored beside its checkpoints, and the options that a checkpoint is then used with.

train.py writes it; eval.py, vis.py and export_model.py take from it every flag that their command line leaves out, and refuse a
given flag that describes another network. A checkpoint without a description is used with the flags alone.
"""

import collections
import contextlib
import json
import os
import re
from typing import NamedTuple

from absl import logging

from deeplab import common
from deeplab.core.base import files
from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf
from deeplab.core.layers import fake_quantize
from deeplab.core.networks.nas import nas_network
from deeplab.core.run import checkpoint
from deeplab.datasets import dataset_info

FILE_NAME = 'model_options.json'
RESIZE_FLAGS = ('min_resize_value', 'max_resize_value', 'resize_factor', 'keep_aspect_ratio')
# Flags of a run beside those of ModelOptions.
_EXTRA_FLAGS = ('image_pyramid', 'quantize_delay_step', *RESIZE_FLAGS)

# Fields of ModelOptions that differ from use to use, or act in training alone.
_NOT_STORED = ('outputs_to_num_classes', 'crop_size', 'preprocessed_images_dtype', 'label_weights', 'batch_norm_decay')
_STORED_FLAGS = frozenset([
    *common.ModelOptions._fields, *nas_network.DEFAULT_OPTIONS, 'dense_prediction_cell_json', *_EXTRA_FLAGS,
]).difference(_NOT_STORED, ['nas_architecture_options', 'dense_prediction_cell_config'])
# Flags that leave the variables of the network as they are, so that a checkpoint may be used with other values.
_MAY_DIFFER = ('output_stride', 'atrous_rates', 'image_pyramid', 'merge_method', 'prediction_with_upsampled_logits',
               'image_pooling_crop_size', 'image_pooling_stride', *RESIZE_FLAGS)
# Flags that a training run may change when it is resumed.
_FREE_IN_TRAINING = ('prediction_with_upsampled_logits', *RESIZE_FLAGS)

# Scope of the head -> flags that decide whether it is there and how wide it is.
_HEAD_FLAGS = (
    (r'aspp\d', '--atrous_rates, --aspp_with_separable_conv, --aspp_with_batch_norm and --aspp_convs_filters'),
    (r'decoder/', '--decoder_output_stride, --decoder_use_separable_conv, --decoder_use_sum_merge and --decoder_filters'),
    (r'image_pooling/', '--add_image_level_feature and --aspp_with_squeeze_and_excitation'),
    (r'concat_projection/', '--aspp_with_concat_projection, --aspp_with_batch_norm and --aspp_convs_filters'),
    (r'meta_architecture/', '--dense_prediction_cell_json'),
    (r'logits/', '--aspp_with_batch_norm, --atrous_rates and --decoder_output_is_logits'),
)
_BACKBONE_FLAGS = '--model_variant, --depth_multiplier, --divisible_by and --nas_stem_output_num_conv_filters'
# Variables of optimizers and of simulated 8-bit arithmetic, which a network may do without.
_EXTRA_VARIABLE = re.compile(r'/(Momentum|Adam(_\d+)?|ExponentialMovingAverage)$|quant')
_MAX_LISTED = 3


class RunOptions(NamedTuple):
  """Description of a training run.

  Attributes:
    flags: dict, name of a flag that decides the network, image_pyramid, quantize_delay_step or a resize flag -> value;
      `dense_prediction_cell_json` has the content of the file.
    dataset: DatasetDescriptor without its splits.
  """
  flags: dict
  dataset: dataset_info.DatasetDescriptor


class CheckpointOptions(NamedTuple):
  """How to use a checkpoint.

  Attributes:
    model_options: common.ModelOptions.
    image_pyramid: scales whose logits are merged, or None.
    resize: dict, RESIZE_FLAGS -> value; keyword arguments of data_generator.Dataset.
    dataset: DatasetDescriptor of the training run without its splits, or None where that is not stored.
    quantize_delay_step: as for model.predict_labels.
  """
  model_options: common.ModelOptions
  image_pyramid: list | None
  resize: dict
  dataset: dataset_info.DatasetDescriptor | None
  quantize_delay_step: int = -1


def _describe(model_options, descriptor, extra):
  flags = {name: value for name, value in model_options._asdict().items() if name not in _NOT_STORED}
  flags.update(flags.pop('nas_architecture_options'))
  flags['dense_prediction_cell_json'] = flags.pop('dense_prediction_cell_config')
  return RunOptions({**flags, **extra}, descriptor._replace(splits_to_sizes={}))


def _model_options(flags, num_classes, crop_size):
  fields = {name: value for name, value in flags.items() if name in common.ModelOptions._fields}
  return common.ModelOptions(
      outputs_to_num_classes={common.OUTPUT_TYPE: num_classes}, crop_size=crop_size,
      nas_architecture_options={name: flags[name] for name in nas_network.DEFAULT_OPTIONS},
      dense_prediction_cell_config=flags['dense_prediction_cell_json'], **fields)


def extra_from_flags():
  """The flags of a run beside those of ModelOptions: dict, image_pyramid, quantize_delay_step and RESIZE_FLAGS -> value."""
  return {name: common.flag_value(name) for name in _EXTRA_FLAGS}


def write(folder, model_options, descriptor, extra):
  """Stores the description of a run as `<folder>/model_options.json`; a file that is there is replaced in one step.

  Args:
    folder: the training folder, which exists.
    model_options: common.ModelOptions.
    descriptor: dataset_info.DatasetDescriptor.
    extra: dict as `extra_from_flags` returns it.
  """
  run = _describe(model_options, descriptor, extra)
  dataset = {name: value for name, value in run.dataset._asdict().items() if value is not None and name != 'splits_to_sizes'}
  files.replace_file(os.path.join(folder, FILE_NAME), json.dumps({'flags': run.flags, 'dataset': dataset}, indent=1) + '\n')


def read(path):
  """Description of the run that a checkpoint belongs to.

  Args:
    path: prefix of a checkpoint, or its folder.

  Returns:
    RunOptions, or None where none is stored.

  Raises:
    InputError: the file is damaged, or of another version of this program.
  """
  folder = path if tf.io.gfile.isdir(path) else os.path.dirname(path)
  path = os.path.join(folder, FILE_NAME)
  if not tf.io.gfile.exists(path):
    return None
  try:
    with tf.io.gfile.GFile(path) as json_file:
      content = json.loads(json_file.read())
    stored = RunOptions(content['flags'], dataset_info.describe(**content['dataset']))
  except (ValueError, KeyError, TypeError) as error:
    raise InputError(f'{path} is not the description of a training run ({error}). Remove it, and give every flag of the '
                     'network.') from error
  wrong = sorted(_STORED_FLAGS.symmetric_difference(stored.flags))
  if wrong:
    raise InputError(f'{path} is of another version of this program: it {"lacks" if wrong[0] in _STORED_FLAGS else "has"} the '
                     f'option {wrong[0]}. Remove it, and give every flag of the network.')
  return stored


def differences(stored, model_options, descriptor, extra):
  """What keeps a run from being resumed with other options.

  Args:
    stored: RunOptions of the run.
    model_options: common.ModelOptions now.
    descriptor: dataset_info.DatasetDescriptor now.
    extra: dict as `extra_from_flags` returns it, now.

  Returns:
    List of lines, each with the flag, the value of the run and the value now.
  """
  now = _describe(model_options, descriptor, extra)
  lines = [f'--{name}: {_text(value)} in the run, {_text(now.flags[name])} now' for name, value in stored.flags.items()
           if name not in _FREE_IN_TRAINING and not _is_same(name, value, now.flags[name])]
  for name in ('num_classes', 'ignore_label', 'class_names'):
    before, after = getattr(stored.dataset, name), getattr(now.dataset, name)
    if before != after:
      lines.append(f'{name} of the data set: {_text(before)} in the run ({stored.dataset.name}), {_text(after)} now '
                   f'({now.dataset.name})')
  return lines


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


def _flags_in_force(num_classes, crop_size):
  """Value of each flag of RunOptions.flags on this command line, given or by default."""
  options = common.ModelOptions(
      {common.OUTPUT_TYPE: num_classes}, crop_size, common.flag_value('atrous_rates'), common.flag_value('output_stride'))
  return _describe(options, dataset_info.describe('', num_classes), extra_from_flags()).flags


def _given_flags():
  """Names of the flags that the user set."""
  return [name for name in common.FLAGS if not common.FLAGS[name].using_default_value]


def model_options_for_checkpoint(prefix, num_classes, crop_size):
  """Options of the network of a checkpoint: as its training run stored them, else from the flags.

  A flag that is given takes precedence where the variables stay the same (output stride, pyramid, resizing ...), and is refused
  where it contradicts the run. Call `check_variables` once the network is built.

  Args:
    prefix: prefix of the checkpoint, from checkpoint.resolve_checkpoint.
    num_classes: classes of the data, or None for those of the checkpoint.
    crop_size: [height, width] of the input in pixels, or None.

  Returns:
    CheckpointOptions.

  Raises:
    InputError: flags contradict the run, or the number of classes is not that of the checkpoint.
  """
  head = _num_classes_of_head(checkpoint.variable_shapes(prefix))
  if num_classes is not None and head is not None and num_classes != head:
    raise InputError(f'{prefix} was trained for {head} classes, the data set has {num_classes}: give the --dataset and '
                     '--dataset_dir (or --num_classes) that it was trained for, or another checkpoint.')
  num_classes = num_classes or head
  if num_classes is None:
    raise InputError(f'{prefix} has no layer that tells its number of classes; is it the checkpoint of a segmentation network?')
  flags, stored = _flags_in_force(num_classes, crop_size), read(prefix)
  if stored:
    flags = _merge(stored.flags, flags, _given_flags(), prefix)
    logging.info('Options of the network as stored in %s.', os.path.join(os.path.dirname(prefix), FILE_NAME))
  check_resizing(flags['min_resize_value'], flags['max_resize_value'])
  return CheckpointOptions(
      model_options=_model_options(flags, num_classes, crop_size), image_pyramid=flags['image_pyramid'],
      resize={name: flags[name] for name in RESIZE_FLAGS}, dataset=stored.dataset if stored else None,
      quantize_delay_step=flags['quantize_delay_step'])


def dataset_name_for_checkpoint(prefix, dataset_dir):
  """Name of the data set: --dataset; where that is left out and no dataset.json is in the folder, that of the training run.

  Args:
    prefix: prefix of the checkpoint.
    dataset_dir: folder of the records.
  """
  stored = read(prefix)
  described = tf.io.gfile.exists(os.path.join(dataset_dir, dataset_info.DESCRIPTION_FILE))
  if stored is None or described or 'dataset' in _given_flags():
    return common.FLAGS.dataset
  return stored.dataset.name


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


def _num_classes_of_head(shapes):
  """Number of classes of a checkpoint, or None where no layer tells it."""
  # A decoder has biases only where its output is the logits.
  for pattern in (r'logits/semantic/biases', r'decoder/decoder_conv0.*/biases'):
    for name, shape in shapes.items():
      if re.fullmatch(pattern, name):
        return shape[-1]
  return None


@contextlib.contextmanager
def restored_session(prefix, master=''):
  """Session on the default graph whose variables have the values of a checkpoint.

  Args:
    prefix: prefix of the checkpoint.
    master: address of the TensorFlow server to use; empty: this process.

  Raises:
    InputError: as check_variables.
  """
  variables = tf.global_variables()
  check_variables(prefix, variables)
  saver = tf.train.Saver(variables)
  with tf.Session(master, config=common.session_config()) as session:
    saver.restore(session, prefix)
    yield session


def check_variables(prefix, variables):
  """Refuses a checkpoint that is not one of the network built, before it is restored; warns of one of 8 bits used without.

  Args:
    prefix: prefix of the checkpoint.
    variables: the variables to restore, tf.Variable.

  Raises:
    InputError: variables are missing, have other shapes, or the checkpoint has a head that the network lacks; the message names
      the flags that decide on them.
  """
  shapes = checkpoint.variable_shapes(prefix)
  network = {variable.op.name: variable.shape.as_list() for variable in variables}
  missing = sorted(set(network) - set(shapes))
  unused = sorted(name for name in set(shapes) - set(network) if _head_flags(name) and not _EXTRA_VARIABLE.search(name))
  reshaped = sorted(name for name in set(shapes) & set(network) if shapes[name] != network[name])
  faults = [f'it lacks {_scopes(missing)}'] if missing else []
  faults += [f'it holds {_scopes(unused)}, which this network lacks'] if unused else []
  faults += [f'{name} is {shapes[name]} in it and {network[name]} in this network' for name in reshaped[:_MAX_LISTED]]
  if faults:
    flags = dict.fromkeys(_head_flags(name) or _BACKBONE_FLAGS for name in [*missing, *unused, *reshaped])
    # The head follows the backbone in its shapes.
    likely = _BACKBONE_FLAGS if _BACKBONE_FLAGS in flags else '; '.join(flags)
    raise InputError(f'{prefix} is of another network: {"; ".join(faults)}. Compare with the flags of the training: {likely}.')
  if fake_quantize.count_ranges(shapes) and not fake_quantize.count_ranges(network):
    logging.warning('%s was trained for 8-bit arithmetic, but is used in floating point: give --quantize_delay_step=0.', prefix)


def _head_flags(name):
  return next((flags for pattern, flags in _HEAD_FLAGS if re.match(pattern, name)), None)


def _scopes(names):
  counts = collections.Counter(name.split('/')[0] for name in names)
  return ', '.join(f'{scope} ({count} variables)' for scope, count in counts.items())
