"""ResNet v1 (arXiv:1512.03385), plain and with the stem of three 3x3 convolutions ("beta").

The stride of a block is in its last unit. `resnet_v1_18`, `resnet_v1_50`, `resnet_v1_101` and their `_beta` forms are functions
(images, options, training) -> (features, end_points), as backbone.Backbone.build; features have 512 channels (18) or 2048. A
beta form shares the variable scope of its plain form.
"""

import functools

from deeplab.core.base.tf_compat import slim, tf
from deeplab.core.layers import layers
from deeplab.core.networks import stack

_BATCH_NORM_DECAY = 0.95
_BATCH_NORM_EPSILON = 1e-5

_BLOCK_STRIDES = (2, 2, 2, 1)


def _shortcut(net, depth, stride):
  """The input at the size of the output: subsampled, through a 1x1 convolution where the depth changes."""
  if net.shape[-1] != depth:
    return slim.conv2d(net, depth, 1, stride=stride, activation_fn=None, scope='shortcut')
  return net if stride == 1 else slim.max_pool2d(net, 1, stride=stride)


def _bottleneck(net, stride, rate, depth, unit_rate):
  """1x1, 3x3 and 1x1 convolutions."""
  shortcut = _shortcut(net, depth, stride)
  net = slim.conv2d(net, depth // 4, 1, scope='conv1')
  net = layers.conv2d_same(net, depth // 4, 3, stride, rate * unit_rate, scope='conv2')
  net = slim.conv2d(net, depth, 1, activation_fn=None, scope='conv3')
  return tf.nn.relu(shortcut + net)


def _lite_bottleneck(net, stride, rate, depth, unit_rate):
  """Two 3x3 convolutions."""
  shortcut = _shortcut(net, depth, stride)
  net = layers.conv2d_same(net, depth, 3, rate=rate * unit_rate, scope='conv1')
  net = layers.conv2d_same(net, depth, 3, stride, rate * unit_rate, activation_fn=None, scope='conv2')
  return tf.nn.relu(shortcut + net)


def _pool(net):
  return slim.max_pool2d(net, 3, stride=2, padding='SAME', scope='pool1')


def _plain_stem(images):
  return _pool(layers.conv2d_same(images, 64, 7, stride=2, scope='conv1'))


def _beta_stem(images, depths=(64, 64, 128)):
  net = images
  for index, (depth, stride) in enumerate(zip(depths, (2, 1, 1), strict=True), start=1):
    net = layers.conv2d_same(net, depth, 3, stride=stride, scope=f'conv1_{index}')
  return _pool(net)


def _blocks(unit, unit_scope, first_depth, num_units, multi_grid):
  """Four blocks, each twice as deep as the one before; the last one takes the multi-grid."""
  for index, (number, stride) in enumerate(zip(num_units, _BLOCK_STRIDES, strict=True)):
    unit_rates = multi_grid if index == len(num_units) - 1 else (1,) * number
    units = [functools.partial(unit, depth=first_depth * 2 ** index, unit_rate=unit_rate) for unit_rate in unit_rates]
    yield stack.Block(f'block{index + 1}', unit_scope, units, stride)


def _resnet(images, options, training, scope, stem, unit, num_units):
  """Opens the arg scopes and the root scope, then runs stem and blocks."""
  unit_fn, unit_scope, first_depth = unit
  multi_grid = stack.grid_or_ones(options.multi_grid, num_units[-1], scope)
  blocks = list(_blocks(unit_fn, unit_scope, first_depth, num_units, multi_grid))
  batch_norm_params = layers.batch_norm_params(training, _BATCH_NORM_DECAY, _BATCH_NORM_EPSILON)
  with slim.arg_scope([slim.conv2d], activation_fn=tf.nn.relu, normalizer_fn=layers.batch_norm,
                      weights_initializer=slim.variance_scaling_initializer(),
                      weights_regularizer=layers.l2_regularizer(training.weight_decay)), \
      slim.arg_scope([layers.batch_norm], **batch_norm_params):
    return stack.extract(images, scope, stack.Stem(stem, stride=4), blocks, options.output_stride, training)


_LITE = (_lite_bottleneck, 'lite_bottleneck_v1', 64)
_BOTTLENECK = (_bottleneck, 'bottleneck_v1', 256)

_resnet_18 = functools.partial(_resnet, scope='resnet_v1_18', unit=_LITE, num_units=(2, 2, 2, 2))
_resnet_50 = functools.partial(_resnet, scope='resnet_v1_50', unit=_BOTTLENECK, num_units=(3, 4, 6, 3))
_resnet_101 = functools.partial(_resnet, scope='resnet_v1_101', unit=_BOTTLENECK, num_units=(3, 4, 23, 3))

resnet_v1_18 = functools.partial(_resnet_18, stem=_plain_stem)
resnet_v1_50 = functools.partial(_resnet_50, stem=_plain_stem)
resnet_v1_101 = functools.partial(_resnet_101, stem=_plain_stem)
# A quarter of the stem of the larger ones.
resnet_v1_18_beta = functools.partial(_resnet_18, stem=functools.partial(_beta_stem, depths=(16, 16, 32)))
resnet_v1_50_beta = functools.partial(_resnet_50, stem=_beta_stem)
resnet_v1_101_beta = functools.partial(_resnet_101, stem=_beta_stem)
