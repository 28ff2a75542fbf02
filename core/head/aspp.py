"""Atrous spatial pyramid pooling (arXiv:1706.05587, figure 5)."""

from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import slim, tf
from deeplab.core.layers import fake_quantize, layers, utils

IMAGE_POOLING_SCOPE = 'image_pooling'
ASPP_SCOPE = 'aspp'
_DROPOUT_KEEP_PROB = 0.9


def _image_level_layer(options):
  """Activation and normaliser of the image-level branch: a feature to join, or a gate that scales the others."""
  if not options.aspp_with_squeeze_and_excitation:
    # Stays relu with bounded activation too, as the published checkpoints were trained.
    return {'activation_fn': tf.nn.relu}
  return {'activation_fn': utils.q_sigmoid if options.image_se_uses_qsigmoid else tf.nn.sigmoid, 'normalizer_fn': None}


def _check_window(window, features, options):
  if any(side > length for side, length in zip(window, features.shape.as_list()[1:3], strict=True)):
    raise InputError(
        f'--image_pooling_crop_size={",".join(map(str, options.image_pooling_crop_size))} is larger than the network input, '
        f'{",".join(map(str, options.crop_size))}: give a crop (or tile) no smaller than it.')


def _image_level_branch(features, options):
  if options.crop_size is None:
    pooled = tf.reduce_mean(features, axis=[1, 2], keepdims=True)
  else:
    window = layers.pooling_window(options, 1.0 / options.output_stride)
    _check_window(window, features, options)
    pooled = slim.avg_pool2d(features, window, stride=options.image_pooling_stride, padding='VALID')
  pooled = layers.conv2d(pooled, options.aspp_convs_filters, 1, scope=IMAGE_POOLING_SCOPE, **_image_level_layer(options))
  return utils.resize_to(pooled, layers.feature_size(features, options))


def _atrous_branch(features, rate, scope, options, training):
  if options.aspp_with_separable_conv:
    return layers.split_separable_conv2d(features, options.aspp_convs_filters, rate=rate, weight_decay=training.weight_decay,
                                         scope=scope)
  return layers.conv2d(features, options.aspp_convs_filters, 3, rate=rate, scope=scope)


def _project(branches, options, training):
  joined = tf.concat(branches, axis=3)
  if not options.aspp_with_concat_projection:
    return joined
  projected = layers.conv2d(joined, options.aspp_convs_filters, 1, scope=layers.CONCAT_PROJECTION_SCOPE)
  return slim.dropout(projected, keep_prob=_DROPOUT_KEEP_PROB, is_training=training.is_training,
                      scope=layers.CONCAT_PROJECTION_SCOPE + '_dropout')


def atrous_spatial_pyramid_pooling(features, options, training):
  """Image-level branch, 1x1 branch and one 3x3 branch per atrous rate, joined and projected.

  Args:
    features: float32 [batch, height, width, channels] of the backbone.
    options: ModelOptions.
    training: layers.TrainingState.

  Returns:
    float32 [batch, height, width, options.aspp_convs_filters]; without the projection, that many channels per branch.
  """
  activation_fn = tf.nn.relu6 if options.use_bounded_activation else tf.nn.relu
  with slim.arg_scope(layers.head_arg_scope(training, activation_fn)):
    image_feature = _image_level_branch(features, options) if options.add_image_level_feature else None
    branches = [layers.conv2d(features, options.aspp_convs_filters, 1, scope=ASPP_SCOPE + '0')]
    for i, rate in enumerate(options.atrous_rates or [], 1):
      branches.append(_atrous_branch(features, rate, f'{ASPP_SCOPE}{i}', options, training))
    if image_feature is None:
      return _project(branches, options, training)
    if options.aspp_with_squeeze_and_excitation:
      return fake_quantize.product(_project(branches, options, training) * image_feature, 'mul')
    return _project([image_feature] + branches, options, training)
