"""Simulated 8-bit arithmetic (arXiv:1712.05877): tensors rounded to the levels of a range that variables hold.

Every function is the identity until an arg scope sets its `delay_step` to 0 or more; see quantized_layers.py. In training
the rounding begins at that global step, while the ranges follow the tensors from the first step on; outside of training it
always acts. Names of the variables: `<scope>/{min,max}` and, for a moving average, `<scope>/<full name of min or max>/{biased,
local_step}`, as checkpoints of tf.contrib.quantize have them.
"""

import re

from deeplab.core.base.tf_compat import slim, tf

_NUM_BITS = 8
_RANGE_DECAY = 0.999
_INITIAL_RANGE = 6.0
_RANGE_VARIABLE = re.compile(r'quant(_\d+)?/(.+/)?(min|max)(/biased|/local_step)?$')


def is_of_range(name):
  """Whether a variable of this name is an end of a range, or belongs to the moving average of one."""
  return bool(_RANGE_VARIABLE.search(name))


def count_ranges(names):
  """Number of ranges among variables of these names."""
  return sum(is_of_range(name) and name.endswith('/min') for name in names)


def state_variable(name, shape, value):
  """A model variable that training updates by other means than gradients.

  Whatever reads it in a step reads it once, before it is updated, so that all clones see the same value.
  """
  return slim.model_variable(name, shape, initializer=tf.constant_initializer(value), trainable=False,
                             caching_device='/device:CPU:0')


def add_update(variable, value):
  """Has the training step store a value that was computed from the present ones."""
  tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, variable.assign(value, read_value=False))


def _range_of(inputs):
  """Least and greatest value; 0 lies between them, so that padding is exact."""
  return (tf.stop_gradient(tf.minimum(tf.reduce_min(inputs), 0.0)), tf.stop_gradient(tf.maximum(tf.reduce_max(inputs), 0.0)))


def _range_variables():
  return state_variable('min', [], -_INITIAL_RANGE), state_variable('max', [], _INITIAL_RANGE)


def _moving_average(variable, value):
  """Average of the values so far, weighted as if there had been none before the first."""
  with tf.variable_scope(variable.op.name):
    biased, local_step = state_variable('biased', [], 0.0), state_variable('local_step', [], 0.0)
  new_biased = biased - (biased - value) * (1.0 - _RANGE_DECAY)
  new_step = local_step + 1.0
  average = new_biased / (1.0 - tf.pow(_RANGE_DECAY, new_step))
  for state, new_value in ((biased, new_biased), (local_step, new_step), (variable, average)):
    add_update(state, new_value)
  return average


def _round(inputs, low, high, narrow_range, is_training, delay_step):
  def rounded():
    return tf.quantization.fake_quant_with_min_max_vars(inputs, low, high, _NUM_BITS, narrow_range)
  if not is_training or delay_step == 0:
    return rounded()
  return tf.cond(tf.train.get_or_create_global_step() >= delay_step, rounded, lambda: inputs)


def _round_activation(inputs, is_training, delay_step):
  """Quantises with variables of the scope that is open."""
  low, high = _range_variables()
  if is_training:
    least, greatest = _range_of(inputs)
    low, high = _moving_average(low, least), _moving_average(high, greatest)
  return _round(inputs, low, high, False, is_training, delay_step)


@slim.add_arg_scope
def activation(inputs, scope, is_training=False, delay_step=-1):
  """Quantises a tensor with the moving average of its range.

  Args:
    inputs: float32 of any shape.
    scope: name of the variable scope of the range.
    is_training: whether the range follows the inputs.
    delay_step: global step of training at which rounding begins; negative: never.

  Returns:
    Tensor of the same shape.
  """
  if delay_step < 0:
    return inputs
  with tf.variable_scope(scope):
    return _round_activation(inputs, is_training, delay_step)


@slim.add_arg_scope
def gate(inputs, scope=None, is_training=False, delay_step=-1):
  """Quantises the gate inside an activation function such as x * gate(x).

  Arguments and result as for activation, but `scope` is a VariableScope, which does not lie in that of the activation function.
  """
  if delay_step < 0:
    return inputs
  with tf.variable_scope(scope, auxiliary_name_scope=False), tf.name_scope(scope.original_name_scope):
    return _round_activation(inputs, is_training, delay_step)


def product(inputs, name):
  """Quantises a product; the range lies in `<name>/activation_Mul_quant`. See activation."""
  return activation(inputs, f'{name}/activation_Mul_quant')


@slim.add_arg_scope
def weights(inputs, is_training=False, delay_step=-1):
  """Quantises the weights of a layer to 255 levels that lie evenly about 0; the range, in `weights_quant`, is the present one.

  `inputs` are the weights of a convolution; else as for activation.
  """
  if delay_step < 0:
    return inputs
  with tf.variable_scope('weights_quant'):
    low, high = _range_variables()
    if is_training:
      least, greatest = _range_of(inputs)
      add_update(low, least)
      add_update(high, greatest)
      low, high = least, greatest
    return _round(inputs, low, high, True, is_training, delay_step)
