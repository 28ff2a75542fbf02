"""Whether a checkpoint and a network go together: its number of classes, its variables; and a session that has both."""

import collections
import contextlib
import re

from absl import logging

from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf
from deeplab.core.layers import fake_quantize
from deeplab.core.run import checkpoint

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


def num_classes(prefix, wanted=None):
  """Number of classes of a checkpoint.

  Args:
    prefix: prefix of the checkpoint, from checkpoint.resolve_checkpoint.
    wanted: classes of the data, or None.

  Returns:
    `wanted`, or that of the checkpoint.

  Raises:
    InputError: the two differ, or neither is known.
  """
  head = _num_classes_of_head(checkpoint.variable_shapes(prefix))
  if wanted is not None and head is not None and wanted != head:
    raise InputError(f'{prefix} was trained for {head} classes, the data set has {wanted}: give the --dataset and '
                     '--dataset_dir (or --num_classes) that it was trained for, or another checkpoint.')
  if wanted is None and head is None:
    raise InputError(f'{prefix} has no layer that tells its number of classes; is it the checkpoint of a segmentation network?')
  return wanted or head


def _num_classes_of_head(shapes):
  """Number of classes of a checkpoint, or None where no layer tells it."""
  # A decoder has biases only where its output is the logits.
  for pattern in (r'logits/semantic/biases', r'decoder/decoder_conv0.*/biases'):
    for name, shape in shapes.items():
      if re.fullmatch(pattern, name):
        return shape[-1]
  return None


@contextlib.contextmanager
def restored_session(prefix, config, master=''):
  """Session on the default graph whose variables have the values of a checkpoint.

  Args:
    prefix: prefix of the checkpoint.
    config: settings of the session, tf.ConfigProto.
    master: address of the TensorFlow server to use; empty: this process.

  Raises:
    InputError: as check_variables.
  """
  variables = tf.global_variables()
  check_variables(prefix, variables)
  saver = tf.train.Saver(variables)
  with tf.Session(master, config=config) as session:
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
