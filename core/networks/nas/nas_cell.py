"""One cell of the searched networks: hidden states that are joined in pairs (arXiv:1712.00559, arXiv:1901.02985).

A cell starts with two hidden states, the running feature map (0) and the one before it (1). Each row of its genotype runs one
operation on each of two states and appends the sum as a new state; the output is all appended states side by side.

An operation is a function (net, num_filters, stride) -> [batch, ceil(height / stride), ceil(width / stride), num_filters].
"""

from collections.abc import Callable
from typing import NamedTuple

from deeplab.core.base.tf_compat import slim, tf
from deeplab.core.layers import layers, utils

_NUM_START_STATES = 2
_NUM_SEPARABLE_LAYERS = 2
_ATROUS_RATE = 2


class Combination(NamedTuple):
  """A row of a genotype: two operations whose results are added.

  Attributes:
    left: operation, in the scope `left`.
    left_state: index of the hidden state that it reads.
    right: operation, in the scope `right`.
    right_state: index of the hidden state that it reads.
  """
  left: Callable
  left_state: int
  right: Callable
  right_state: int


def spatial_size(net):
  """[height, width] of a feature map: Python ints where the graph knows both, else int32 scalar tensors."""
  static = net.shape.as_list()[1:3]
  return tf.unstack(tf.shape(net)[1:3]) if None in static else static


def scale(net, factor):
  """Resizes a feature map so that its corner pixels stay corners: side n becomes trunc((n - 1) * factor + 1)."""
  return utils.resize_to(net, [utils.scale_dimension(side, factor) for side in spatial_size(net)])


def separable(net, num_filters, stride, kernel_size):
  """Twice ReLU, separable convolution and batch norm; the stride is in the first one."""
  for layer in range(1, _NUM_SEPARABLE_LAYERS + 1):
    name = f'{kernel_size}x{kernel_size}_{layer}'
    net, padding = tf.nn.relu(net), 'SAME'
    if stride > 1:
      # Samples from index 0 for odd and even sizes alike, as layers.conv2d_same does.
      net, padding = layers.fixed_padding(net, kernel_size), 'VALID'
    net = slim.separable_conv2d(net, num_filters, kernel_size, depth_multiplier=1, stride=stride, padding=padding,
                                scope=f'separable_{name}')
    net = layers.batch_norm(net, scope=f'bn_sep_{name}')
    stride = 1
  return net


def atrous(net, num_filters, stride, kernel_size):
  """ReLU, convolution of rate 2 and batch norm; a stride of 2 is an interpolation to half the size in place of the rate."""
  name = f'{kernel_size}x{kernel_size}'
  net, rate = tf.nn.relu(net), _ATROUS_RATE
  if stride > 1:
    net, rate = scale(net, 1.0 / stride), 1
  net = slim.conv2d(net, num_filters, kernel_size, rate=rate, scope=f'atrous_{name}')
  return layers.batch_norm(net, scope=f'bn_atr_{name}')


def max_pool(net, num_filters, stride, kernel_size):
  """Max pooling; every hidden state has num_filters channels already."""
  del num_filters
  return slim.max_pool2d(net, kernel_size, stride=stride, padding='SAME')


def identity(net, num_filters, stride):
  """The hidden state itself, or a strided 1x1 convolution of it."""
  if stride == 1:
    return net
  net = slim.conv2d(tf.nn.relu(net), num_filters, 1, stride=stride, scope='1x1')
  return layers.batch_norm(net, scope='bn_1')


def drop_path(net, keep_prob):
  """Zeroes whole examples at random and scales up the others, so that the mean stays (arXiv:1605.07648).

  Args:
    net: float32 [batch, height, width, channels].
    keep_prob: probability that an example is kept, (0, 1], number or float32 scalar tensor; None keeps all.
  """
  if keep_prob is None:
    return net
  kept = tf.floor(keep_prob + tf.random_uniform([tf.shape(net)[0], 1, 1, 1]))
  return net * (kept / keep_prob)


def _start_state(net, num_filters, conv_scope, batch_norm_scope):
  """ReLU, 1x1 convolution to the width of the cell, batch norm."""
  net = slim.conv2d(tf.nn.relu(net), num_filters, 1, scope=conv_scope)
  return layers.batch_norm(net, scope=batch_norm_scope)


def _previous_state(previous, net, num_filters):
  """The feature map before the running one, brought to the size of `net` and the width of the cell."""
  previous = utils.resize_to(previous, spatial_size(net))
  if previous.shape.as_list()[-1] == num_filters:
    return previous
  return _start_state(previous, num_filters, 'prev_1x1', 'prev_bn')


def build(net, previous, genotype, num_filters, stride, keep_prob):
  """Builds one cell in the current variable scope.

  Args:
    net: the running feature map, float32 [batch, height, width, channels].
    previous: the feature map before it, of any size and width.
    genotype: sequence of Combination.
    num_filters: width of every hidden state.
    stride: 1 or 2; applied by the operations that read one of the two start states.
    keep_prob: of drop_path, after every operation but `identity`.

  Returns:
    float32 [batch, ceil(height / stride), ceil(width / stride), len(genotype) * num_filters].
  """
  states = [_start_state(net, num_filters, '1x1', 'beginning_bn'), _previous_state(previous, net, num_filters)]

  def run(side, operation, state):
    with tf.variable_scope(side):
      result = operation(states[state], num_filters, stride if state < _NUM_START_STATES else 1)
      return result if operation is identity else drop_path(result, keep_prob)

  for index, row in enumerate(genotype):
    with tf.variable_scope(f'comb_iter_{index}'):
      states.append(run('left', row.left, row.left_state) + run('right', row.right, row.right_state))
  return tf.concat(states[_NUM_START_STATES:], axis=-1)
