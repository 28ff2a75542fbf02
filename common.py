"""Flags that several programs share, ModelOptions and the keys of a sample.

List flags take both forms that users know: `--atrous_rates=6,12,18` and `--atrous_rates=6 --atrous_rates=12 --atrous_rates=18`.
One given on the command line replaces that of a flags file (core/base/command_line.py).
"""

import collections
import difflib
import json
import math
import pathlib
import re
import signal
import sys
from typing import NamedTuple

from absl import app, flags, logging

from deeplab.core.base import command_line, errors, host_memory, quiet_start
from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf
from deeplab.core.images import dataset_descriptor
from deeplab.core.networks.nas import nas_network
from deeplab.core.run import checkpoint_fit, run_options

FLAGS = flags.FLAGS

# The one output of the network, semantic segmentation.
OUTPUT_TYPE = 'semantic'

# Keys of a sample (data_generator.Dataset).
IMAGE, IMAGE_NAME, ORIGINAL_IMAGE = 'image', 'image_name', 'original_image'
HEIGHT, WIDTH = 'height', 'width'
LABEL, LABELS_CLASS = 'label', 'labels_class'

# Files that define flags of the programs.
_SOURCES_OF_FLAGS = ('common.py', 'train_flags.py', 'eval.py', 'vis.py', 'export_model.py')

# The word that stands in a flag for what the program works out by itself.
AUTO = 'auto'

# Name of the split without labels.
TEST_SET = 'test'


class _ListParser(flags.ArgumentParser):
  """Parses '6,12,18' into [6, 12, 18]; whole numbers are above 0, others 0 or more."""

  def __init__(self, item_type, words=()):
    self._item_type = item_type
    self._words = words
    self.syntactic_help = 'comma separated, or the flag repeated'

  def parse(self, argument):
    if not isinstance(argument, str):
      return argument if isinstance(argument, (list, tuple)) else [argument]
    return [self._parse_item(item.strip(), argument) for item in argument.split(',') if item.strip()]

  def _parse_item(self, item, argument):
    if self._item_type is str or item in self._words:
      return item
    try:
      number = self._item_type(item)
    except ValueError:
      number = math.nan
    if self._item_type is int and number >= 1 or self._item_type is float and 0 <= number < math.inf:
      return number
    wanted = 'whole numbers above 0, such as 6,12,18' if self._item_type is int else 'numbers not below 0, such as 0.5,1.0'
    raise ValueError(f'{argument!r} is not a list of {wanted}' + ''.join(f', nor the word {word}' for word in self._words))

  def flag_type(self):
    return f'list of {self._item_type.__name__}'


class _ListFlag(flags.MultiFlag):
  """A list flag whose occurrences are joined."""

  def _parse(self, arguments):
    return [item for items in super()._parse(arguments) for item in items]


def define_numbers(name, default, help_text, number_type=int, words=()):
  """Defines a flag that holds a list, given comma separated or repeated.

  Args:
    name: name of the flag.
    default: list, or None.
    help_text: what it is for.
    number_type: int (above 0), float (not below 0), or str for texts.
    words: texts that may stand in place of a number.
  """
  flags.DEFINE_flag(_ListFlag(_ListParser(number_type, words), flags.ArgumentSerializer(), name, default, help_text))


class _SwitchParser(flags.ArgumentParser):
  """Parses the forms of a boolean flag, and one word beside them."""

  def __init__(self, word):
    self._word = word
    self._boolean = flags.BooleanParser()
    self.syntactic_help = f'true, false or {word}'

  def parse(self, argument):
    if argument == self._word:
      return argument
    try:
      return self._boolean.parse(argument)
    except ValueError as error:
      raise ValueError(f'choose one of: true, false, {self._word}') from error

  def flag_type(self):
    return f'bool or {self._word}'


class _SwitchFlag(flags.Flag):
  """A flag that is also set by --name and --noname."""

  def serialize(self):
    return f'--{self.name}={str(self.value).lower()}'


def define_switch(name, default, word, help_text):
  """Defines a flag that is True, False or `word`: --name, --noname, --name=true, --name=false, --name=word."""
  flags.DEFINE_flag(_SwitchFlag(_SwitchParser(word), flags.ArgumentSerializer(), name, default, help_text, boolean=True))


def parse_size(numbers, flag_name):
  """(height, width) from the numbers of a size flag; one number means a square.

  Raises:
    ValueError: not one or two positive numbers.
  """
  size = [int(number) for number in numbers]
  if len(size) not in (1, 2) or min(size) < 1:
    raise InputError(f'--{flag_name}={",".join(map(str, size))}: give height,width or one number for a square, in pixels above '
                     '0.')
  return [size[0], size[-1]]


def fitting_crop_size(image_size, output_stride):
  """[height, width] of the least network input that holds an image of (height, width): a multiple of the stride, plus 1."""
  return [side + (1 - side) % output_stride for side in image_size]


def evaluation_crop_size(numbers, flag_name, largest_image_size, output_stride):
  """[height, width] of the network input that a crop flag of an evaluating program means.

  Args:
    numbers: value of the flag: one or two numbers, or the word AUTO for the size of the largest image.
    flag_name: name of the flag, for messages.
    largest_image_size: function that returns (height, width) of the largest image.
    output_stride: ratio of input to feature resolution; the automatic size is a multiple of it, plus 1.
  """
  if list(numbers) != [AUTO]:
    return parse_size(numbers, flag_name)
  largest = largest_image_size()
  crop_size = fitting_crop_size(largest, output_stride)
  logging.info('The largest image is %dx%d (height x width); --%s=%d,%d.', *largest, flag_name, *crop_size)
  return crop_size


# Resizing of images before everything else.
flags.DEFINE_integer('min_resize_value', None, 'Length in pixels to which the shorter image side is resized.', lower_bound=1)
flags.DEFINE_integer('max_resize_value', None, 'Bound in pixels for the longer side of a resized image; with --min_resize_value.',
                     lower_bound=1)
flags.DEFINE_integer('resize_factor', None, 'Resized sides become a multiple of this number, plus 1.', lower_bound=1)
flags.DEFINE_boolean('keep_aspect_ratio', True, 'Whether a resized image keeps its shape; else both sides get the longer one.')

# The network.
flags.DEFINE_string('model_variant', 'mobilenet_v2', 'Backbone; README.md has the table of names.')
define_numbers('image_pyramid', None, 'Input scales whose logits are merged, for example 0.5,1.0,1.5.', float)
flags.DEFINE_enum('merge_method', 'max', ['max', 'avg'], 'How the logits of the image pyramid are merged.')
flags.DEFINE_integer('logits_kernel_size', 1, 'Kernel of the logits convolution; above 1 only without ASPP batch norm.',
                     lower_bound=1)
define_numbers('multi_grid', None, 'Rate multipliers of the last block of ResNet and Xception, for example 1,2,4.')
flags.DEFINE_float('depth_multiplier', 1.0, 'Width of a MobileNet, relative to its published one.', lower_bound=0.0)
flags.DEFINE_integer('divisible_by', None, 'Channel counts of mobilenet_v2 are rounded to a multiple of this number.',
                     lower_bound=1)
flags.DEFINE_boolean('use_bounded_activation', False, 'relu6 in place of relu in Xception, ASPP and decoder.')
flags.DEFINE_float('batch_norm_decay', None, 'Decay of all batch norm moving averages; unset: the own value of each part of the '
                   'network, 0.95 to 0.9997.', lower_bound=0.0, upper_bound=1.0)
flags.DEFINE_integer('nas_stem_output_num_conv_filters', nas_network.DEFAULT_OPTIONS['nas_stem_output_num_conv_filters'],
                     'Width of the first cell of a NAS network.', lower_bound=1)
flags.DEFINE_boolean('nas_use_classification_head', nas_network.DEFAULT_OPTIONS['nas_use_classification_head'],
                     'Adds the ImageNet head convolutions to a NAS network.')
flags.DEFINE_boolean('nas_remove_os32_stride', nas_network.DEFAULT_OPTIONS['nas_remove_os32_stride'],
                     'Keeps a NAS network at output stride 16 where it would go to 32.')

# Its head: ASPP, or a dense prediction cell, then a decoder.
flags.DEFINE_boolean('add_image_level_feature', True, 'Image-level (pooled) branch of ASPP.')
define_numbers('image_pooling_crop_size', None, 'height,width that fixes the pooling window in place of the crop size.')
define_numbers('image_pooling_stride', [1, 1], 'height,width of the step of that pooling.')
flags.DEFINE_boolean('aspp_with_batch_norm', True, 'Whether there is an ASPP; without, the logits come from the backbone.')
flags.DEFINE_boolean('aspp_with_separable_conv', True, 'Separable convolutions in ASPP.')
flags.DEFINE_boolean('aspp_with_concat_projection', True, '1x1 convolution after the ASPP branches are joined.')
flags.DEFINE_boolean('aspp_with_squeeze_and_excitation', False, 'The image-level branch scales the others (MobileNetV3 head).')
flags.DEFINE_boolean('image_se_uses_qsigmoid', False, 'Piecewise linear sigmoid for that scaling.')
flags.DEFINE_integer('aspp_convs_filters', 256, 'Channels of each ASPP branch.', lower_bound=1)
flags.DEFINE_string('dense_prediction_cell_json', '', 'JSON file of a dense prediction cell that takes the place of ASPP.')
define_numbers('decoder_output_stride', None, 'Strides of the low-level features of the decoder, descending; unset: no decoder.')
flags.DEFINE_boolean('decoder_use_separable_conv', True, 'Separable convolutions in the decoder.')
flags.DEFINE_boolean('decoder_use_sum_merge', False, 'The decoder adds the features in place of joining them.')
flags.DEFINE_integer('decoder_filters', 256, 'Channels of the decoder.', lower_bound=1)
flags.DEFINE_boolean('decoder_output_is_logits', False, 'The decoder output is the logits; then --decoder_filters is the number '
                     'of classes.')
flags.DEFINE_boolean('prediction_with_upsampled_logits', True, 'Predict from logits at image size; else resize the prediction.')

# Of the loss, but a field of ModelOptions.
define_numbers('label_weights', None, 'Loss weight of each class, for example 1,10; auto: inverse to its share of the labelled '
               'pixels; unset: 1 for all.', float, words=(AUTO,))


def define_network_flags():
  """Flags of every program beside those of the model: more of the network, and how its session is run."""
  if 'atrous_rates' in FLAGS:
    return
  define_numbers('atrous_rates', None, 'Rates of the ASPP branches: 6,12,18 for output stride 16, 12,24,36 for 8, 3,6,9 for 32; '
                 'unset: none.')
  flags.DEFINE_integer('output_stride', 16, 'Ratio of input to feature resolution.', lower_bound=1)
  flags.DEFINE_integer('quantize_delay_step', -1, 'Step from which training simulates 8-bit arithmetic; negative: never.')
  flags.DEFINE_boolean('gpu_memory_growth', False, 'Take GPU memory as it is needed, so that several programs can share a GPU; '
                       'else all at once.')


def define_data_flags():
  """Flags that name the records; for programs that read them."""
  if 'dataset' in FLAGS:
    return
  flags.DEFINE_string('dataset', 'pascal_voc_seg', 'Name of the data set.')
  flags.DEFINE_string('dataset_dir', None, 'Folder of the TFRecord files.')
  flags.DEFINE_string('master', '', 'Address of the TensorFlow server to use; empty: this process.')


def define_flip_flag():
  """The flag of all programs that predict."""
  if 'add_flipped_images' not in FLAGS:
    flags.DEFINE_boolean('add_flipped_images', False, 'Average the probabilities with those of the mirrored image.')


def define_evaluation_flags():
  """Flags of the programs that follow the checkpoints of a training run."""
  if 'checkpoint_dir' in FLAGS:
    return
  flags.DEFINE_string('checkpoint_dir', None, 'Folder of the checkpoints, or the prefix of one.')
  flags.DEFINE_integer('eval_interval_secs', 300, 'Least number of seconds between two rounds.', lower_bound=0)
  define_numbers('eval_scales', [1.0], 'Scales at which each image is evaluated; their probabilities are averaged.', float)
  define_flip_flag()


_FIELDS = (
    # Arguments of the constructor.
    'outputs_to_num_classes', 'crop_size', 'atrous_rates', 'output_stride', 'preprocessed_images_dtype',
    # From the flag of the same name.
    'merge_method', 'add_image_level_feature', 'image_pooling_crop_size', 'image_pooling_stride', 'aspp_with_batch_norm',
    'aspp_with_separable_conv', 'multi_grid', 'decoder_output_stride', 'decoder_use_separable_conv', 'logits_kernel_size',
    'model_variant', 'depth_multiplier', 'divisible_by', 'prediction_with_upsampled_logits', 'dense_prediction_cell_config',
    'nas_architecture_options', 'use_bounded_activation', 'aspp_with_concat_projection', 'aspp_with_squeeze_and_excitation',
    'aspp_convs_filters', 'decoder_use_sum_merge', 'decoder_filters', 'decoder_output_is_logits', 'image_se_uses_qsigmoid',
    'label_weights', 'batch_norm_decay')
# Fields that are no plain copy of a flag.
_DERIVED_FIELDS = ('dense_prediction_cell_config', 'nas_architecture_options')
# Fields that differ from use to use, or act in training alone: a run does not store them.
_FIELDS_OF_ONE_USE = ('outputs_to_num_classes', 'crop_size', 'preprocessed_images_dtype', 'label_weights', 'batch_norm_decay')
_INTEGER_LISTS = ('image_pooling_crop_size', 'image_pooling_stride', 'multi_grid', 'decoder_output_stride', 'atrous_rates')


def flag_value(name):
  """Value of a flag, or its default where the command line has not been parsed (a library that builds the network)."""
  return FLAGS[name].value if FLAGS.is_parsed() else FLAGS[name].default


def _read_dense_prediction_cell(path):
  if not path:
    return None
  try:
    with tf.io.gfile.GFile(path) as json_file:
      return json.loads(json_file.read())
  except (tf.errors.OpError, ValueError) as error:
    raise InputError(f'--dense_prediction_cell_json={path}: not a JSON file that can be read ({error}).') from error


def _fields_from_flags():
  values = {name: flag_value(name) for name in _FIELDS[5:] if name not in _DERIVED_FIELDS}
  values['dense_prediction_cell_config'] = _read_dense_prediction_cell(flag_value('dense_prediction_cell_json'))
  values['nas_architecture_options'] = {name: flag_value(name) for name in nas_network.DEFAULT_OPTIONS}
  return values


class ModelOptions(collections.namedtuple('ModelOptions', _FIELDS)):  # type: ignore[misc]  # The fields are no literal.
  """Everything that decides which network is built; an immutable value.

  Attributes:
    outputs_to_num_classes: output name -> number of classes.
    crop_size: [height, width] of the input in pixels, or None where it is known only when the graph runs.
    atrous_rates: rates of the ASPP branches, or None.
    output_stride: ratio of input to feature resolution.
    preprocessed_images_dtype: dtype in which the network runs.
    dense_prediction_cell_config: list of branch dicts that takes the place of ASPP, or None.
    nas_architecture_options: dict of the three NAS flags.
    label_weights: number, or one number per class.
    batch_norm_decay: decay of every batch norm, or None for the own value of each part.
    Others: as the flag of the same name.
  """
  __slots__ = ()

  def __new__(cls, outputs_to_num_classes, crop_size=None, atrous_rates=None, output_stride=8,
              preprocessed_images_dtype=tf.float32, **fields):
    """Fills the fields that are not given from the flags, or from their defaults when no command line was parsed.

    Raises:
      ValueError: a field is unknown, or decoder_output_stride is not in descending order.
    """
    unknown = sorted(set(fields) - set(_FIELDS))
    if unknown:
      raise InputError(f'ModelOptions has no field {", ".join(unknown)}; choose from: {", ".join(_FIELDS)}')
    values = {**_fields_from_flags(), **fields, 'outputs_to_num_classes': dict(outputs_to_num_classes), 'crop_size': crop_size,
              'atrous_rates': atrous_rates, 'output_stride': output_stride,
              'preprocessed_images_dtype': preprocessed_images_dtype}
    for name in _INTEGER_LISTS:
      values[name] = [int(number) for number in values[name]] if values[name] else None
    values['image_pooling_stride'] = values['image_pooling_stride'] or [1, 1]
    if values['label_weights'] is None:
      values['label_weights'] = 1.0
    strides = values['decoder_output_stride']
    if strides and sorted(strides, reverse=True) != strides:
      raise InputError(f'--decoder_output_stride={",".join(map(str, strides))}: write the strides in descending order.')
    return super().__new__(cls, **values)

  def __getnewargs_ex__(self):
    # copy and pickle then rebuild the value from itself; the default would read the flags anew.
    return (), self._asdict()


class CheckpointOptions(NamedTuple):
  """How to use a checkpoint.

  Attributes:
    model_options: ModelOptions.
    image_pyramid: scales whose logits are merged, or None.
    resize: dict, run_options.RESIZE_FLAGS -> value; keyword arguments of data_generator.Dataset.
    dataset: DatasetDescriptor of the training run without its splits, or None where that is not stored.
    quantize_delay_step: as for model.predict_labels.
  """
  model_options: ModelOptions
  image_pyramid: list | None
  resize: dict
  dataset: dataset_descriptor.DatasetDescriptor | None
  quantize_delay_step: int = -1


def run_flags(model_options):
  """The flags that a run stores: those of its network, and of what it sees.

  Args:
    model_options: ModelOptions.

  Returns:
    Dict, as run_options.RunOptions.flags.
  """
  values = {name: value for name, value in model_options._asdict().items() if name not in _FIELDS_OF_ONE_USE}
  values.update(values.pop('nas_architecture_options'))
  values['dense_prediction_cell_json'] = values.pop('dense_prediction_cell_config')
  return {**values, **{name: flag_value(name) for name in run_options.INPUT_FLAGS}}


def _model_options_of_run(values, num_classes, crop_size):
  fields = {name: value for name, value in values.items() if name in _FIELDS}
  return ModelOptions({OUTPUT_TYPE: num_classes}, crop_size,
                      nas_architecture_options={name: values[name] for name in nas_network.DEFAULT_OPTIONS},
                      dense_prediction_cell_config=values['dense_prediction_cell_json'], **fields)


def given_flags():
  """Names of the flags that the user gave."""
  return [name for name in FLAGS if not FLAGS[name].using_default_value]


def checkpoint_options(prefix, num_classes, crop_size):
  """Options of the network of a checkpoint: as its training run stored them, else from the flags (run_options.use).

  Args:
    prefix: prefix of the checkpoint, from checkpoint.resolve_checkpoint.
    num_classes: classes of the data, or None for those of the checkpoint.
    crop_size: [height, width] of the input in pixels, or None.

  Returns:
    CheckpointOptions.

  Raises:
    InputError: flags contradict the run, or the number of classes is not that of the checkpoint.
  """
  num_classes = checkpoint_fit.num_classes(prefix, num_classes)
  now = ModelOptions({OUTPUT_TYPE: num_classes}, crop_size, flag_value('atrous_rates'), flag_value('output_stride'))
  used = run_options.use(prefix, run_flags(now), given_flags())
  return CheckpointOptions(
      _model_options_of_run(used.flags, num_classes, crop_size), used.flags['image_pyramid'],
      {name: used.flags[name] for name in run_options.RESIZE_FLAGS}, used.dataset, used.flags['quantize_delay_step'])


def session_config():
  """Settings of a session: ops that a GPU lacks run on the CPU, and GPU memory is taken as --gpu_memory_growth says."""
  return tf.ConfigProto(allow_soft_placement=True, gpu_options=tf.GPUOptions(allow_growth=FLAGS.gpu_memory_growth))


def flags_in_force():
  """All flags of the program that have a value, given or by default: lines for a file that --flagfile takes."""
  # Those of a program that was started by its file are listed under the name of that file.
  ours = [flag for module, module_flags in FLAGS.flags_by_module_dict().items() if module.startswith(('deeplab.', sys.argv[0]))
          for flag in module_flags if flag.value is not None]
  return [line for flag in sorted(ours, key=lambda flag: flag.name) for line in flag.serialize().splitlines()]


def _flags_of_all_programs():
  """Names of the flags of every program, read from their source: none has to import the others."""
  sources = [(pathlib.Path(__file__).parent / name).read_text(encoding='utf-8') for name in _SOURCES_OF_FLAGS]
  return set(re.findall(r"(?:DEFINE_|\bdefine_)\w+\(\s*'(\w+)'", ''.join(sources)))


def _describe_unknown(name, known):
  close = difflib.get_close_matches(name.lower(), known, n=1)
  return f'Unknown flag --{name}' + (f'; did you mean --{close[0]}?' if close else '. --help lists the flags.')


def _refuse_left_over(arguments):
  """Refuses what is no flag of this program, except flags of the other ones, which users keep in one list."""
  known = _flags_of_all_programs()
  without_effect, may_be_value = [], False
  for argument in arguments:
    if argument.startswith('-'):
      name, equals, _ = argument.lstrip('-').partition('=')
      if name not in known and name.removeprefix('no') not in known:
        raise InputError(_describe_unknown(name, known.union(FLAGS)))
      without_effect.append(f'--{name}')
      may_be_value = not equals
    elif may_be_value:
      may_be_value = False
    else:
      raise InputError(f'Not a flag: {argument}. Write --name=value.')
  if without_effect:
    logging.warning('%s: of another program, no effect here.', ', '.join(without_effect))


def _parse_command_line(argv, required_flags, flags_of_one_run):
  """Parses all of it or raises an error whose text says what is wrong."""
  left_out = {}

  def is_left_out(name, path):
    is_of_run = name in flags_of_one_run and run_options.is_of_a_run(path)
    if is_of_run:
      left_out[name] = path
    return is_of_run

  list_flags = {name for name in FLAGS if isinstance(FLAGS[name], _ListFlag)}
  # Flags behind a word that is none are parsed, too.
  FLAGS.set_gnu_getopt()
  left_over = FLAGS([argv[0], *command_line.resolve(argv[1:], list_flags, is_left_out)], known_only=True)[1:]
  if left_over:
    _refuse_left_over(left_over)
  missing = [f'--{name}' for name in required_flags if FLAGS[name].value is None]
  for name in left_out:
    if f'--{name}' in missing:
      raise InputError(f'--{name} must be given: the one in --flagfile={left_out[name]} is that of the run which wrote the file. '
                       'Name a new folder to repeat that run, or the same one to go on with it.')
  if missing:
    raise InputError(f'{" and ".join(missing)} must be given. --help lists the flags.')
  for name in FLAGS:
    value = FLAGS[name].value
    if isinstance(value, float) and not math.isfinite(value):
      raise InputError(f'--{name}={value} is no finite number.')
  return argv[:1]


def _report(message):
  logging.error('%s', message)
  logging.debug('Where it happened:', exc_info=True)
  return 1


def _show_in_help(program):
  """Makes --help of a console script show the module that it starts, as --help of the module itself does."""
  if program.__name__ != '__main__':
    sys.modules['__main__'].__doc__ = program.__doc__
    for flag in FLAGS.get_key_flags_for_module(program.__name__):
      FLAGS.register_key_flag_for_module(sys.argv[0], flag)


def _start_tensorflow():
  """Makes TensorFlow look for GPUs and fit a graph to the CPU, of which it speaks once each, where that can be sorted."""
  with quiet_start.filtered() as texts:
    num_gpus = len(tf.config.list_physical_devices('GPU'))
    # A session that could use GPUs would take their memory.
    with tf.Graph().as_default(), tf.Session(config=tf.ConfigProto(device_count={'GPU': 0})) as session:
      session.run(tf.transpose(tf.placeholder_with_default(tf.zeros([2, 2], tf.int32), [None, None])))
  fault = quiet_start.gpu_fault(''.join(texts), num_gpus, tf.test.is_built_with_cuda())
  if fault:
    logging.warning('%s', fault)


def run_program(main, required_flags=(), flags_of_one_run=()):
  """Parses the command line strictly and runs `main`; the process ends with its exit code.

  What the user can put right is told in one message without a traceback (--verbosity=1 shows it), with exit code 1; Ctrl-C gives
  exit code 130. Flags of the other programs are no error: a warning says that they have no effect.

  Args:
    main: function that takes the command line left over, a list with the program's name alone.
    required_flags: names of flags that must have a value.
    flags_of_one_run: names of flags that do not count where they stand in the flags.txt of a run.
  """
  def parse(argv):
    try:
      program = _parse_command_line(argv, required_flags, flags_of_one_run)
    except (flags.Error, ValueError) as error:
      sys.exit(_report(error))
    # Here, since absl looks for GPUs between parsing and the program.
    _start_tensorflow()
    return program

  def guarded_main(argv):
    try:
      return main(argv)
    except InputError as error:
      return _report(error)
    except tf.errors.OpError as error:
      return _report(errors.explain(error))
    except KeyboardInterrupt:
      logging.error('Interrupted.')
      return 128 + signal.SIGINT

  logging.set_verbosity(logging.INFO)
  host_memory.keep_freed_memory()
  _show_in_help(sys.modules[main.__module__])
  app.run(guarded_main, flags_parser=parse)


# Helpers above that define a flag do so for the module that calls them, whose --help then lists it.
flags.disclaim_key_flags()
