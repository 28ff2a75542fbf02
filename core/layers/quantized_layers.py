"""Convolutions that simulate 8-bit arithmetic (arXiv:1712.05877), in the place of those of core/layers/layers.py.

A converter to integers merges batch norm into the weights, so these layers do it in training already. The layers keep the names
of TF-Slim's; ranges are added to them as `weights_quant`, `act_quant` and `conv_quant` (fake_quantize.py).
"""

import functools

from deeplab.core.base.tf_compat import slim, tf
from deeplab.core.layers import fake_quantize, layers

# Functions of one operation, which converters merge into the convolution: only their result is quantised. Others, such as
# x * gate(x), quantise what is inside of them, and the result of the convolution is quantised before.
_MERGED_ACTIVATIONS = (None, tf.identity, tf.nn.relu, tf.nn.relu6, tf.nn.sigmoid)


def arg_scope(training):
  """Arg scope in which the convolutions of core/layers/layers.py and the functions of fake_quantize.py quantise, if they shall.

  Args:
    training: layers.TrainingState.
  """
  functions = [fake_quantize.activation, fake_quantize.gate, fake_quantize.weights]
  with slim.arg_scope(functions, is_training=training.is_training, delay_step=training.quantize_delay_step) as scope:
    if training.quantize_delay_step < 0:
      return scope
    with slim.arg_scope([layers.conv2d], layer=_conv2d), \
        slim.arg_scope([layers.depthwise_conv2d], layer=_depthwise_conv2d) as quantized_scope:
      return quantized_scope


def _conv2d(inputs, num_outputs, kernel_size, stride=1, rate=1, padding='SAME', **kwargs):
  """As slim.conv2d; **kwargs to _layer."""
  convolve = functools.partial(tf.nn.conv2d, strides=stride, padding=padding, dilations=rate)
  shape = [*_pair(kernel_size), inputs.shape[-1].value, num_outputs]
  return _layer(inputs, 'weights', shape, 3, convolve, **kwargs)


def _depthwise_conv2d(inputs, kernel_size, stride=1, rate=1, padding='SAME', **kwargs):
  """As layers.depthwise_conv2d; **kwargs to _layer."""
  convolve = functools.partial(tf.nn.depthwise_conv2d, strides=[1, stride, stride, 1], padding=padding, rate=_pair(rate))
  shape = [*_pair(kernel_size), inputs.shape[-1].value, 1]
  return _layer(inputs, 'depthwise_weights', shape, 2, convolve, **kwargs)


def _pair(sides):
  return [sides, sides] if isinstance(sides, int) else list(sides)


def _layer(inputs, weights_name, shape, channel_axis, convolve, activation_fn=tf.nn.relu, normalizer_fn=None,
           normalizer_params=None, weights_initializer=None, weights_regularizer=None, scope=None):
  """Convolution, batch norm or bias, activation.

  Args:
    inputs: [batch, height, width, channels].
    weights_name: name of the weights.
    shape: shape of the weights.
    channel_axis: which axis of it is that of the channels of the result.
    convolve: function of the inputs and the weights.
    activation_fn, normalizer_fn, normalizer_params, weights_initializer, weights_regularizer, scope: as for slim.conv2d;
      normalizer_fn is layers.batch_norm or None.
  """
  gate_scope = None
  if activation_fn not in _MERGED_ACTIVATIONS:
    # Beside the layer, not in it: act_quant, for the next such layer act_quant_1.
    with tf.variable_scope(None, 'act_quant') as gate_scope:
      pass
  with tf.variable_scope(scope, 'Conv', [inputs]):
    weights = slim.model_variable(weights_name, shape, initializer=weights_initializer or slim.xavier_initializer(),
                                  regularizer=weights_regularizer)
    if normalizer_fn:
      net = _convolve_folded(inputs, weights, channel_axis, convolve, normalizer_params)
    else:
      biases = slim.model_variable('biases', [shape[channel_axis]], initializer=tf.zeros_initializer())
      net = tf.nn.bias_add(convolve(inputs, fake_quantize.weights(weights)), biases)
    if gate_scope:
      with slim.arg_scope([fake_quantize.gate], scope=gate_scope):
        return activation_fn(fake_quantize.activation(net, 'conv_quant'))
    return fake_quantize.activation(activation_fn(net) if activation_fn else net, 'act_quant')


def _convolve_folded(inputs, weights, channel_axis, convolve, params):
  """Convolution with batch norm in its weights and its bias.

  The weights are folded with the moving variance, which changes slowly; what the batch's own variance makes of the result is
  multiplied in behind the convolution. The statistics of the batch take part in the gradient.

  Args:
    inputs: [batch, height, width, channels].
    weights: weights variable.
    channel_axis, convolve: as for _layer.
    params: dict as layers.batch_norm_params returns it.
  """
  channels = weights.shape[channel_axis].value
  with tf.variable_scope('BatchNorm') as scope:
    beta = slim.model_variable('beta', [channels], initializer=tf.zeros_initializer())
    gamma = slim.model_variable('gamma', [channels], initializer=tf.ones_initializer())
    mean = fake_quantize.state_variable('moving_mean', [channels], 0.0)
    variance = fake_quantize.state_variable('moving_variance', [channels], 1.0)
  scale = gamma * tf.rsqrt(variance + params['epsilon'])
  folded = tf.multiply(weights, tf.reshape(scale, weights.shape[channel_axis:]), name='mul_fold')
  net = convolve(inputs, fake_quantize.weights(folded))
  if params['is_training'] and not layers.is_in_scopes(scope.name, params['frozen_scopes']):
    mean, batch_variance = _batch_statistics(convolve(inputs, weights), mean, variance, params['decay'])
    ratio = tf.sqrt(variance + params['epsilon']) * tf.rsqrt(batch_variance + params['epsilon'])
    net, scale = net * ratio, scale * ratio
  return tf.add(net, beta - mean * scale, name='add_fold')


def _batch_statistics(net, moving_mean, moving_variance, decay):
  """Mean and variance of each channel; the moving averages are updated."""
  mean, variance = tf.nn.moments(net, [0, 1, 2])
  count = tf.cast(tf.size(net) // tf.size(mean), tf.float32)
  for moving, value in ((moving_mean, mean), (moving_variance, variance * count / (count - 1.0))):
    fake_quantize.add_update(moving, moving - (moving - value) * (1.0 - decay))
  return mean, variance
