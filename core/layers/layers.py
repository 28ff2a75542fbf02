"""Convolutions and batch norm as the backbones and the head share them.

Every layer is a TF-Slim layer, so that arg scopes reach it and variables carry TF-Slim's names: `<scope>/weights`,
`<scope>/depthwise_weights`, `<scope>/biases` and `<scope>/BatchNorm/{beta,gamma,moving_mean,moving_variance}`.
"""

from typing import NamedTuple

from deeplab.core.base.tf_compat import slim, tf
from deeplab.core.layers import utils

# TensorFlow's fused batch norm raises a smaller epsilon to this one, in training and in inference.
# Checkpoints were trained so; it stands here so that an unfused computation gives the same numbers.
_MIN_FUSED_EPSILON = 1.001e-5
# ASPP, dense prediction cell and decoder, whatever the backbone.
HEAD_BATCH_NORM_DECAY = 0.9997
_HEAD_BATCH_NORM_EPSILON = 1e-5
# The 1x1 convolution that ends ASPP and the dense prediction cell.
CONCAT_PROJECTION_SCOPE = 'concat_projection'


class TrainingState(NamedTuple):
  """How the network is run, in one value.

  Attributes:
    weight_decay: factor of the L2 penalty weight_decay * sum(w^2) / 2.
    is_training: dropout and drop path act only when True.
    fine_tune_batch_norm: whether batch norm follows the batch when training.
    batch_norm_decay: decay of every moving average, or None for the value of each family.
    drop_path_keep_prob: keep probability of a path of the NAS networks at the end of training.
    total_training_steps: step at which drop path reaches that probability, or None.
    frozen_scopes: variable scopes whose batch norm does not follow the batch whatever the rest does.
    quantize_delay_step: global step of training from which 8-bit arithmetic is simulated (without training: always); negative:
      never.
    recompute_grad: whether the gradient computes the inner activations of the backbone's blocks anew instead of keeping them.
  """
  weight_decay: float = 0.0001
  is_training: bool = False
  fine_tune_batch_norm: bool = False
  batch_norm_decay: float | None = None
  drop_path_keep_prob: float = 1.0
  total_training_steps: int | None = None
  frozen_scopes: tuple = ()
  quantize_delay_step: int = -1
  recompute_grad: bool = False

  @property
  def updates_batch_norm(self):
    return self.is_training and self.fine_tune_batch_norm


def is_in_scopes(name, scopes):
  """Whether a variable or scope name is one of the scopes or lies in one."""
  return any((name + '/').startswith(scope + '/') for scope in scopes)


@slim.add_arg_scope
def batch_norm(inputs, frozen_scopes=(), scope=None, **kwargs):
  """slim.batch_norm that in frozen scopes normalises with the moving averages and leaves them alone.

  Args:
    inputs: [batch, height, width, channels].
    frozen_scopes: variable scopes, see TrainingState.
    scope: variable scope of the layer; unset: BatchNorm.
    **kwargs: to slim.batch_norm.
  """
  name = '/'.join(filter(None, [tf.get_variable_scope().name, scope]))
  if is_in_scopes(name, frozen_scopes):
    kwargs['is_training'] = False
  return slim.batch_norm(inputs, scope=scope, **kwargs)


def batch_norm_params(training, decay, epsilon):
  """Keyword arguments of batch_norm.

  Args:
    training: TrainingState; its batch_norm_decay replaces `decay` where it is set.
    decay: the family's own decay of the moving averages.
    epsilon: added to the variance.
  """
  return {
      'is_training': training.updates_batch_norm,
      'frozen_scopes': training.frozen_scopes,
      'decay': decay if training.batch_norm_decay is None else training.batch_norm_decay,
      'epsilon': max(epsilon, _MIN_FUSED_EPSILON),
      'scale': True,
      'center': True,
  }


def l2_regularizer(weight_decay):
  """slim.l2_regularizer, float32 also of weights in a 16-bit type: it takes the float32 variables behind them."""
  penalty = slim.l2_regularizer(weight_decay)
  return lambda weights: penalty(weights if weights.dtype.base_dtype == tf.float32 else weights.op.inputs[0])


@slim.add_arg_scope
def conv2d(inputs, num_outputs, kernel_size, layer=slim.conv2d, **kwargs):
  """slim.conv2d, or the layer that the arg scope of core/layers/quantized_layers.py puts in its place.

  Args:
    inputs: [batch, height, width, channels].
    num_outputs: channels of the result.
    kernel_size: side of the square kernel, or (height, width).
    layer: function with the arguments of slim.conv2d.
    **kwargs: to `layer`.

  Returns:
    [batch, height', width', num_outputs].
  """
  return layer(inputs, num_outputs, kernel_size, **kwargs)


def recomputed(function, training):
  """`function`, whose inner activations the gradient computes anew if `training` says so (arXiv:1604.06174).

  Args:
    function: of one tensor, gives one tensor; deterministic, its variable scopes named. It runs in the scopes of this call.
    training: TrainingState.
  """
  if not (training.recompute_grad and training.is_training):
    return function
  variable_scope = tf.get_variable_scope()
  with slim.arg_scope([]) as arg_scope:
    pass

  def run(inputs):
    with tf.variable_scope(variable_scope, reuse=tf.AUTO_REUSE), slim.arg_scope(arg_scope):
      return function(inputs)

  # tf.recompute_grad orders its work by comparing tensors, which does not work under TF1 behaviour: it keeps all activations.
  @tf.custom_gradient
  def run_twice(inputs):

    def gradient(upstream, variables):
      with tf.control_dependencies([upstream]):
        late_inputs = tf.identity(inputs)
      sources = [late_inputs, *variables]
      gradients = tf.gradients(run(late_inputs), sources, upstream, unconnected_gradients='zero')
      return gradients[0], gradients[1:]

    return run(inputs), gradient

  return run_twice


def effective_kernel_size(kernel_size, rate):
  """Side of the window that a k x k kernel of dilation `rate` covers, in pixels."""
  return kernel_size + (kernel_size - 1) * (rate - 1)


def fixed_padding(inputs, kernel_size, rate=1):
  """Zero-pads height and width by what a SAME convolution of stride 1 would, whatever their size.

  Args:
    inputs: [batch, height, width, channels].
    kernel_size: side of the square kernel.
    rate: dilation.
  """
  total = effective_kernel_size(kernel_size, rate) - 1
  before = total // 2
  return tf.pad(inputs, [[0, 0], [before, total - before], [before, total - before], [0, 0]])


def _with_fixed_padding(layer, inputs, kernel_size, stride, rate, scope, **kwargs):
  """Runs `layer`, sampling from index 0 when strided, for odd and even sizes alike."""
  if stride == 1:
    return layer(inputs, kernel_size=kernel_size, stride=1, rate=rate, padding='SAME', scope=scope, **kwargs)
  return layer(fixed_padding(inputs, kernel_size, rate), kernel_size=kernel_size, stride=stride, rate=rate, padding='VALID',
               scope=scope, **kwargs)


def conv2d_same(inputs, num_outputs, kernel_size, stride=1, rate=1, scope=None, **kwargs):
  """slim.conv2d whose strided form equals the dense one, subsampled from index 0.

  Args:
    inputs: [batch, height, width, channels].
    num_outputs: channels of the result.
    kernel_size: side of the square kernel.
    stride: 1, or the step of the output in pixels (then `rate` is 1).
    rate: dilation.
    scope: variable scope of the layer.
    **kwargs: to slim.conv2d.

  Returns:
    [batch, ceil(height / stride), ceil(width / stride), num_outputs].
  """
  return _with_fixed_padding(slim.conv2d, inputs, kernel_size, stride, rate, scope, num_outputs=num_outputs, **kwargs)


def _depthwise_conv2d(inputs, kernel_size, **kwargs):
  return slim.separable_conv2d(inputs, None, kernel_size, depth_multiplier=1, **kwargs)


@slim.add_arg_scope
def depthwise_conv2d(inputs, kernel_size, stride=1, rate=1, padding='SAME', layer=_depthwise_conv2d, **kwargs):
  """One kernel per channel: the depthwise half of a separable convolution, with normaliser and activation of its own.

  Its weights `<scope>/depthwise_weights` [kernel, kernel, channels, 1] carry no weight decay. Other arguments as conv2d_same.
  """
  kwargs['weights_regularizer'] = None
  return layer(inputs, kernel_size, stride=stride, rate=rate, padding=padding, **kwargs)


def depthwise_conv2d_same(inputs, kernel_size, stride=1, rate=1, scope=None, **kwargs):
  """depthwise_conv2d whose strided form equals the dense one, subsampled from index 0."""
  return _with_fixed_padding(depthwise_conv2d, inputs, kernel_size, stride, rate, scope, **kwargs)


def split_separable_conv2d(inputs, filters, kernel_size=3, rate=1, weight_decay=0.00004,
                           depthwise_weights_initializer_stddev=0.33, pointwise_weights_initializer_stddev=0.06, scope=None):
  """Depthwise then 1x1 convolution, each with the normaliser and activation of the surrounding arg scope.

  Args:
    inputs: [batch, height, width, channels].
    filters: channels of the result.
    kernel_size: side of the square kernel, or (height, width).
    rate: dilation, one number or (height, width).
    weight_decay: L2 factor of the 1x1 weights; the depthwise weights carry none.
    depthwise_weights_initializer_stddev: of a truncated normal.
    pointwise_weights_initializer_stddev: of a truncated normal.
    scope: prefix of the scopes `<scope>_depthwise` and `<scope>_pointwise`.

  Returns:
    [batch, height, width, filters].
  """
  net = depthwise_conv2d(inputs, kernel_size, rate=rate,
                         weights_initializer=tf.truncated_normal_initializer(stddev=depthwise_weights_initializer_stddev),
                         scope=scope + '_depthwise')
  return conv2d(net, filters, 1,
                weights_initializer=tf.truncated_normal_initializer(stddev=pointwise_weights_initializer_stddev),
                weights_regularizer=l2_regularizer(weight_decay), scope=scope + '_pointwise')


def head_arg_scope(training, activation_fn=tf.nn.relu):
  """Arg scope of ASPP, dense prediction cell and decoder: SAME convolutions with L2 decay, batch norm and `activation_fn`."""
  with slim.arg_scope(
      [conv2d, depthwise_conv2d],
      weights_regularizer=l2_regularizer(training.weight_decay),
      activation_fn=activation_fn, normalizer_fn=batch_norm,
      normalizer_params=batch_norm_params(training, HEAD_BATCH_NORM_DECAY, _HEAD_BATCH_NORM_EPSILON),
      padding='SAME',
      stride=1) as arg_scope:
    return arg_scope


def pooling_window(options, scale):
  """(height, width) of the pooling window on features `scale` times as large as the crop."""
  crop_size = options.image_pooling_crop_size or options.crop_size
  return [utils.scale_dimension(side, scale) for side in crop_size]


def feature_size(features, options):
  """(height, width) that all branches must have: that of the crop at the output stride."""
  if options.crop_size is None:
    return tf.unstack(tf.shape(features)[1:3])
  return [utils.scale_dimension(side, 1.0 / options.output_stride) for side in options.crop_size]
