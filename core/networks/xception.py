"""Xception (arXiv:1610.02357) as changed for segmentation (arXiv:1802.02611).

Every pooling is a strided separable convolution, and batch norm follows both halves of each separable convolution.
`xception_41`, `xception_65` and `xception_71` are functions (images, options, training) -> (features, end_points), as
backbone.Backbone.build; features have 2048 channels.
"""

import functools

from deeplab.core.base.tf_compat import slim, tf
from deeplab.core.layers import layers
from deeplab.core.networks import stack

_BATCH_NORM_DECAY = 0.9997
_BATCH_NORM_EPSILON = 0.001
_WEIGHTS_STDDEV = 0.09

# The bound of the linear outputs where activations are bounded.
_LIMIT = 6.0

# What is added to the output of a module.
_CONV = 'conv'  # its input through a 1x1 convolution
_SUM = 'sum'  # its input
_NONE = 'none'

# Rows: scope, depths of the three convolutions, what is added, number of modules, stride.
_ENTRY_FLOW = (
    ('entry_flow/block1', (128, 128, 128), _CONV, 1, 2),
    ('entry_flow/block2', (256, 256, 256), _CONV, 1, 2),
    ('entry_flow/block3', (728, 728, 728), _CONV, 1, 2),
)
_ENTRY_FLOW_71 = (
    ('entry_flow/block1', (128, 128, 128), _CONV, 1, 2),
    ('entry_flow/block2', (256, 256, 256), _CONV, 1, 1),
    ('entry_flow/block3', (256, 256, 256), _CONV, 1, 2),
    ('entry_flow/block4', (728, 728, 728), _CONV, 1, 1),
    ('entry_flow/block5', (728, 728, 728), _CONV, 1, 2),
)
_EXIT_FLOW = ('exit_flow/block1', (728, 1024, 1024), _CONV, 1, 2)
# Its convolutions have activations of their own and take the multi-grid.
_LAST = ('exit_flow/block2', (1536, 1536, 2048), _NONE, 1, 1)
_NUM_CONVS = 3


def _middle_flow(num_modules):
  return 'middle_flow/block1', (728, 728, 728), _SUM, num_modules, 1


def _bound(x):
  return tf.clip_by_value(x, -_LIMIT, _LIMIT)


def _relu(bounded):
  return tf.nn.relu6 if bounded else tf.nn.relu


def _add(x, y, bounded):
  return tf.nn.relu6(_bound(x) + _bound(y)) if bounded else x + y


def _separable_conv(net, depth, stride, rate, scope, bounded):
  """3x3 depthwise, then 1x1 convolution, both with the activation of the arg scope."""
  # Bounded networks were trained with the padding of TensorFlow: at even sizes a strided map lies one pixel off its shortcut.
  depthwise = layers.depthwise_conv2d if bounded else layers.depthwise_conv2d_same
  net = depthwise(net, 3, stride=stride, rate=rate, scope=scope + '_depthwise')
  return slim.conv2d(net, depth, 1, scope=scope + '_pointwise')


def _module(inputs, stride, rate, depths, skip, grid, activate_inside, bounded):
  """Three separable convolutions, the last one strided, and what is added to them."""
  relu = _relu(bounded)
  inner_activation = relu if activate_inside else _bound if bounded else None
  net = inputs
  with slim.arg_scope([slim.conv2d, slim.separable_conv2d], activation_fn=inner_activation):
    for index, (depth, conv_stride, unit_rate) in enumerate(zip(depths, (1, 1, stride), grid, strict=True), start=1):
      if not activate_inside:
        net = relu(net)
      net = _separable_conv(net, depth, conv_stride, rate * unit_rate, f'separable_conv{index}', bounded)
  if skip == _CONV:
    shortcut = slim.conv2d(inputs, depths[-1], 1, stride=stride, activation_fn=None, scope='shortcut')
    return _add(net, shortcut, bounded)
  return _add(net, inputs, bounded) if skip == _SUM else net


def _block(row, bounded, grid=(1,) * _NUM_CONVS, activate_inside=False):
  scope, depths, skip, num_modules, stride = row
  module = functools.partial(_module, depths=depths, skip=skip, grid=grid, activate_inside=activate_inside, bounded=bounded)
  return stack.Block(scope, 'xception_module', [module] * num_modules, stride)


def _stem(images):
  with tf.variable_scope('entry_flow'):
    net = layers.conv2d_same(images, 32, 3, stride=2, scope='conv1_1')
    return layers.conv2d_same(net, 64, 3, scope='conv1_2')


def _xception(images, options, training, scope, rows):
  """Opens the arg scopes and the root scope, then runs stem and blocks."""
  bounded = options.use_bounded_activation
  grid = stack.grid_or_ones(options.multi_grid, _NUM_CONVS, scope)
  blocks = [_block(row, bounded) for row in rows] + [_block(_LAST, bounded, grid, activate_inside=True)]
  batch_norm_params = layers.batch_norm_params(training, _BATCH_NORM_DECAY, _BATCH_NORM_EPSILON)
  with slim.arg_scope([slim.conv2d, slim.separable_conv2d], activation_fn=_relu(bounded), normalizer_fn=layers.batch_norm,
                      weights_initializer=tf.truncated_normal_initializer(stddev=_WEIGHTS_STDDEV)), \
      slim.arg_scope([slim.conv2d], weights_regularizer=layers.l2_regularizer(training.weight_decay)), \
      slim.arg_scope([layers.batch_norm], **batch_norm_params):
    return stack.extract(images, scope, stack.Stem(_stem, stride=2), blocks, options.output_stride, training)


xception_41 = functools.partial(_xception, scope='xception_41', rows=(*_ENTRY_FLOW, _middle_flow(8), _EXIT_FLOW))
xception_65 = functools.partial(_xception, scope='xception_65', rows=(*_ENTRY_FLOW, _middle_flow(16), _EXIT_FLOW))
xception_71 = functools.partial(_xception, scope='xception_71', rows=(*_ENTRY_FLOW_71, _middle_flow(16), _EXIT_FLOW))
