"""The DeepLabv3+ decoder (arXiv:1802.02611, figure 2): sharpens the features with low-level ones of the backbone."""

from typing import NamedTuple

from deeplab.core.base.tf_compat import slim, tf
from deeplab.core.layers import fake_quantize, layers, utils

DECODER_SCOPE = 'decoder'
# Channels to which low-level features are projected before they are joined.
_LOW_LEVEL_FILTERS = 48


class DecoderOptions(NamedTuple):
  """The fields decoder_* of ModelOptions, without the prefix, and use_bounded_activation."""
  use_separable_conv: bool = False
  use_sum_merge: bool = False
  filters: int = 256
  output_is_logits: bool = False
  use_bounded_activation: bool = False


def _concat_merge(features, low_level, options, weight_decay, suffix):
  net = tf.concat([features, low_level], axis=3)
  if options.use_separable_conv:
    for i in range(2):
      net = layers.split_separable_conv2d(net, options.filters, weight_decay=weight_decay, scope=f'decoder_conv{i}{suffix}')
    return net
  return slim.repeat(net, 2, layers.conv2d, options.filters, 3, scope='decoder_conv0' + suffix)


def _sum_merge(features, low_level, options, weight_decay, suffix):
  if options.use_separable_conv:
    features = layers.split_separable_conv2d(features, options.filters, weight_decay=weight_decay,
                                             scope='decoder_split_sep_conv0' + suffix)
  else:
    kernel_size = 1 if options.output_is_logits else 3
    features = layers.conv2d(features, options.filters, kernel_size, scope='decoder_conv0' + suffix)
  return fake_quantize.activation(features + low_level, f'post_activation_bypass_quant{suffix}')


def _arg_scope(options, training):
  activation_fn = tf.nn.relu6 if options.use_bounded_activation else tf.nn.relu
  if not options.output_is_logits:
    return layers.head_arg_scope(training, activation_fn)
  with slim.arg_scope(layers.head_arg_scope(training)), \
      slim.arg_scope([layers.conv2d], activation_fn=None, normalizer_fn=None) as arg_scope:
    return arg_scope


def refine(features, low_level_features, crop_size, options, training):
  """Merges the features with those of each low-level stride in turn.

  Args:
    features: float32 [batch, height / output_stride, width / output_stride, channels].
    low_level_features: list of (stride, float32 [batch, h, w, c]), strides in descending order.
    crop_size: (height, width) of the image in pixels, Python ints or int tensors.
    options: DecoderOptions.
    training: layers.TrainingState.

  Returns:
    float32 [batch, height / s, width / s, options.filters], s the last stride.
  """
  if options.output_is_logits:
    options = options._replace(use_separable_conv=False)
  merge = _sum_merge if options.use_sum_merge else _concat_merge
  low_level_filters = options.filters if options.use_sum_merge else _LOW_LEVEL_FILTERS
  with tf.variable_scope(DECODER_SCOPE), slim.arg_scope(_arg_scope(options, training)):
    for stage, (stride, low_level) in enumerate(low_level_features):
      suffix = f'_{stage}' if stage else ''
      size = [utils.scale_dimension(side, 1.0 / stride) for side in crop_size]
      projected = layers.conv2d(low_level, low_level_filters, 1, scope='feature_projection0' + suffix)
      features = merge(utils.resize_to(features, size), utils.resize_to(projected, size), options, training.weight_decay, suffix)
  return features
