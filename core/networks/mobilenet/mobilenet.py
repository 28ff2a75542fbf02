"""Runs a MobileNet that is written as rows: one Conv or Block per layer.

Rows hold nominal strides and full-width channel counts; `mobilenet` fits them to the output stride and the depth multiplier.
Sources: MobileNetV2 arXiv:1801.04381, MobileNetV3 arXiv:1905.02244.
"""

import collections
from collections.abc import Callable
from typing import NamedTuple

from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import slim, tf
from deeplab.core.layers import fake_quantize, layers, utils

_BATCH_NORM_DECAY = 0.997
_BATCH_NORM_EPSILON = 1e-3
_WEIGHTS_STDDEV = 0.09


class Conv(NamedTuple):
  """A convolution with batch norm and activation, scope `Conv`.

  Attributes:
    kernel: side of the kernel.
    stride: nominal step.
    outputs: channels at depth multiplier 1.
    activation: function of a tensor.
  """
  kernel: int
  stride: int
  outputs: int
  activation: Callable = tf.nn.relu

  # Every row answers these two questions.
  @property
  def fused(self):
    return False

  @property
  def scope(self):
    return 'Conv'

  def build(self, inputs, outputs, stride, rate, scope):
    """Returns (result, {}): a plain convolution has no inner end points."""
    return layers.conv2d(inputs, outputs, self.kernel, stride=stride, rate=rate, activation_fn=self.activation, scope=scope), {}


class Block(NamedTuple):
  """An inverted residual: 1x1 expansion, depthwise convolution, linear 1x1 projection, skip; scope `expanded_conv`.

  Attributes:
    kernel: side of the depthwise kernel.
    stride: nominal step.
    expansion: factor from input to inner channels; 1 leaves the expansion out.
    outputs: channels at depth multiplier 1.
    activation: of expansion and depthwise convolution.
    squeeze_excite: whether a gate per channel follows the depthwise convolution.
    residual: whether the input is added where stride and channels allow it.
    fused: whether the expansion is a kernel x kernel convolution that takes the place of the depthwise one. It keeps its stride
      at every output stride.
  """
  kernel: int
  stride: int
  expansion: float
  outputs: int
  activation: Callable = tf.nn.relu
  squeeze_excite: bool = False
  residual: bool = True
  fused: bool = False

  @property
  def scope(self):
    return 'expanded_conv'

  def build(self, inputs, outputs, stride, rate, scope):
    """Returns (result, end points by their name inside the layer)."""
    net, end_points = inputs, {}
    channels = inputs.shape[-1].value
    with tf.variable_scope(scope):
      if self.expansion != 1:
        kernel, expand_stride = (self.kernel, stride) if self.fused else (1, 1)
        net = layers.conv2d(net, make_divisible(channels * self.expansion), kernel, stride=expand_stride,
                          activation_fn=self.activation, scope='expand')
        end_points['expansion_output'] = net
      if not self.fused:
        net = layers.depthwise_conv2d(net, self.kernel, stride=stride, rate=rate, activation_fn=self.activation,
                                      scope='depthwise')
        end_points['depthwise_output'] = net
      if self.squeeze_excite:
        net = squeeze_excite(net)
      # An identity op, not None: converters and tools know it by its name.
      net = layers.conv2d(net, outputs, 1, activation_fn=tf.identity, scope='project')
      # A block whose stride was removed has a skip as well (MobileNetV3 small, layer 10); checkpoints were trained so.
      if self.residual and stride == 1 and channels == outputs:
        net = fake_quantize.activation(tf.add(net, inputs, name='add'), 'post_activation_bypass_quant')
      end_points['output'] = net
    return net, end_points


def make_divisible(channels, divisor=8, minimum=None):
  """Rounds a channel count to a multiple of `divisor`, losing at most a tenth of it.

  Args:
    channels: wanted count, may be fractional.
    divisor: what the result is a multiple of.
    minimum: least result; unset: `divisor`.
  """
  rounded = max(divisor if minimum is None else minimum, int(channels + divisor / 2) // divisor * divisor)
  return rounded + divisor if rounded < 0.9 * channels else rounded


def squeeze_excite(inputs):
  """Scales each channel by a gate computed from the spatial means (arXiv:1709.01507), in MobileNetV3's form.

  Args:
    inputs: [batch, height, width, channels].

  Returns:
    Tensor of the same shape.
  """
  channels = inputs.shape[-1].value
  with tf.variable_scope('squeeze_excite'), slim.arg_scope([layers.conv2d], normalizer_fn=None):
    means = tf.reduce_mean(inputs, [1, 2], keepdims=True)
    squeezed = layers.conv2d(means, make_divisible(channels / 4), 1, activation_fn=tf.nn.relu)
    gate = layers.conv2d(squeezed, channels, 1, activation_fn=utils.q_sigmoid)
    return fake_quantize.product(inputs * gate, 'mul')


def reachable_output_strides(rows):
  """The output strides, ascending, that remain when strides are removed from the last row backwards."""
  strides = [1]
  for row in rows:
    if row.stride > 1:
      reached = strides[-1] * row.stride
      strides = [reached] if row.fused else [*strides, reached]
  return strides


def strides_and_rates(rows, output_stride):
  """How each row runs so that the network ends at `output_stride`: nominal strides until there, then dilation.

  The row whose stride is removed still has the rate from before; the rows behind it see the raised one. 1x1 kernels have rate 1.

  Args:
    rows: sequence of Conv and Block.
    output_stride: ratio of input to feature resolution, or None for the nominal one.

  Returns:
    List with one (stride, rate) per row.

  Raises:
    InputError: the network cannot have this output stride.
  """
  reachable = reachable_output_strides(rows)
  if output_stride not in (None, *reachable):
    raise InputError(f'--output_stride={output_stride}: this MobileNet can be built with {", ".join(map(str, reachable))}.')
  steps = []
  current_stride, rate = 1, 1
  for row in rows:
    if current_stride == output_stride:
      steps.append((1, rate if row.kernel > 1 else 1))
      rate *= row.stride
    else:
      steps.append((row.stride, 1))
      current_stride *= row.stride
  return steps


def _scopes(rows):
  """Scope of each row: Conv, expanded_conv, expanded_conv_1 and so on."""
  counts = collections.Counter()
  for row in rows:
    yield f'{row.scope}_{counts[row.scope]}' if counts[row.scope] else row.scope
    counts[row.scope] += 1


def _run(row, inputs, training, **arguments):
  """What row.build gives, recomputed in the gradient if `training` says so."""
  inner_end_points = {}

  def build(net):
    net, end_points = row.build(net, **arguments)
    inner_end_points.update(end_points)
    return net

  return layers.recomputed(build, training)(inputs), inner_end_points


def _arg_scope(training):
  """Batch norm, initialiser and weight decay of every convolution."""
  batch_norm = layers.batch_norm_params(training, _BATCH_NORM_DECAY, _BATCH_NORM_EPSILON)
  return slim.arg_scope([layers.conv2d, layers.depthwise_conv2d], normalizer_fn=layers.batch_norm,
                        normalizer_params=batch_norm, weights_initializer=tf.truncated_normal_initializer(stddev=_WEIGHTS_STDDEV),
                        weights_regularizer=layers.l2_regularizer(training.weight_decay))


def mobilenet(images, scope, rows, options, training, round_outputs=make_divisible):
  """Builds a MobileNet.

  Args:
    images: float32 [batch, height, width, channels], normalised to [-1, 1].
    scope: root scope of the variables.
    rows: sequence of Conv and Block.
    options: ModelOptions; output_stride and depth_multiplier are read.
    training: layers.TrainingState.
    round_outputs: function from the scaled channel count of a row to the one used.

  Returns:
    features: [batch, height / output_stride, width / output_stride, depth].
    end_points: `layer_N` (N from 1) -> tensor for every row, and for a Block also `layer_N/output` (the same),
      `layer_N/depthwise_output` (before squeeze-excite) and `layer_N/expansion_output`, where the block has them.

  Raises:
    InputError: the network cannot have the output stride.
  """
  steps = strides_and_rates(rows, options.output_stride)
  end_points = {}
  with tf.variable_scope(scope), _arg_scope(training):
    # Converters to TFLite are told to start at this op, `MobilenetV2/MobilenetV2/input`.
    net = tf.identity(images, f'{scope}/input')
    for number, (row, (stride, rate), row_scope) in enumerate(zip(rows, steps, _scopes(rows), strict=True), 1):
      net, inner_end_points = _run(row, net, training, outputs=round_outputs(row.outputs * options.depth_multiplier),
                                   stride=stride, rate=rate, scope=row_scope)
      end_points[f'layer_{number}'] = net
      end_points.update({f'layer_{number}/{name}': tensor for name, tensor in inner_end_points.items()})
  return net, end_points
