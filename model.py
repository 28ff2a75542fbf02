"""DeepLabv3+: images -> features -> logits -> predictions (arXiv:1706.05587, arXiv:1802.02611).

images [b, h, w, 3] -> backbone [b, h/os, w/os, c] -> ASPP [b, h/os, w/os, 256] -> decoder [b, h/4, w/4, 256] -> logits
[b, h/4, w/4, classes]. os is the output stride; without a decoder the logits have the size of the features.
"""

from absl import logging

from deeplab import common
from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import slim, tf
from deeplab.core.head import aspp, decoder, dense_prediction_cell
from deeplab.core.layers import layers, mixed_precision, quantized_layers, utils
from deeplab.core.networks import feature_extractor

# Variable scopes of the head.
LOGITS_SCOPE_NAME = 'logits'
IMAGE_POOLING_SCOPE = aspp.IMAGE_POOLING_SCOPE
ASPP_SCOPE = aspp.ASPP_SCOPE
CONCAT_PROJECTION_SCOPE = layers.CONCAT_PROJECTION_SCOPE
DECODER_SCOPE = decoder.DECODER_SCOPE
META_ARCHITECTURE_SCOPE = dense_prediction_cell.META_ARCHITECTURE_SCOPE
# Key of the logits of all scales together.
MERGED_LOGITS_SCOPE = 'merged_logits'
# An output has its probabilities under its name with this added.
PROB_SUFFIX = '_prob'

# Forks call these through the model.
scale_dimension = utils.scale_dimension
split_separable_conv2d = layers.split_separable_conv2d


def get_extra_layer_scopes(last_layers_contain_logits_only=False):
  """Scopes of the layers that an ImageNet checkpoint does not hold.

  Args:
    last_layers_contain_logits_only: whether only the logits count as such.

  Returns:
    List of scope names.
  """
  scopes = [LOGITS_SCOPE_NAME, IMAGE_POOLING_SCOPE, ASPP_SCOPE, CONCAT_PROJECTION_SCOPE, DECODER_SCOPE, META_ARCHITECTURE_SCOPE]
  return scopes[:1] if last_layers_contain_logits_only else scopes


def _check_logits(options):
  if options.logits_kernel_size != 1 and (options.aspp_with_batch_norm or not options.atrous_rates):
    raise InputError(f'--logits_kernel_size={options.logits_kernel_size}: kernels above 1 need --aspp_with_batch_norm=false and '
                     '--atrous_rates.')
  if not options.decoder_output_is_logits:
    return
  if not options.decoder_output_stride:
    raise InputError('--decoder_output_is_logits needs --decoder_output_stride, for example 8.')
  for output, num_classes in options.outputs_to_num_classes.items():
    if options.decoder_filters != num_classes:
      raise InputError(f'--decoder_filters={options.decoder_filters}: with --decoder_output_is_logits it must be the number of '
                       f'classes of {output}, {num_classes}.')


def _check_aspp(options):
  if not options.aspp_with_batch_norm:
    return
  gated = options.aspp_with_squeeze_and_excitation and options.add_image_level_feature
  if gated and options.atrous_rates and not options.aspp_with_concat_projection:
    raise InputError(f'--atrous_rates={options.atrous_rates}: --aspp_with_squeeze_and_excitation without '
                     '--aspp_with_concat_projection allows no atrous branches; leave the rates out or keep the projection.')
  native_stride = feature_extractor.feature_stride(options)
  # With an unknown crop size the image-level feature takes the size of the features.
  if options.add_image_level_feature and options.crop_size and native_stride != options.output_stride:
    raise InputError(f'--output_stride={options.output_stride}: --model_variant={options.model_variant} makes features of stride '
                     f'{native_stride}; use that stride, or --add_image_level_feature=false.')


def check_options(options, quantize_delay_step=-1):
  """Refuses options that contradict each other or that the backbone cannot honour, before any tensor is made.

  Args:
    options: ModelOptions.
    quantize_delay_step: as for multi_scale_logits.

  Raises:
    ValueError: names the flag, its value and what would be right.
  """
  feature_extractor.check_options(options, quantize_delay_step)
  _check_logits(options)
  if options.dense_prediction_cell_config is not None and options.aspp_with_batch_norm:
    dense_prediction_cell.check_config(options.dense_prediction_cell_config, options.crop_size)
  else:
    _check_aspp(options)


def _training_state(options, weight_decay, is_training, fine_tune_batch_norm, nas_training_hyper_parameters=None,
                    frozen_scopes=(), quantize_delay_step=-1, recompute_grad=False):
  return layers.TrainingState(
      weight_decay=weight_decay, is_training=is_training, fine_tune_batch_norm=fine_tune_batch_norm,
      batch_norm_decay=options.batch_norm_decay, frozen_scopes=tuple(frozen_scopes), quantize_delay_step=quantize_delay_step,
      recompute_grad=recompute_grad, **(nas_training_hyper_parameters or {}))


def _softmax_at(logits, size):
  return tf.nn.softmax(utils.resize_to(logits, size))


def _image_size(images):
  """(height, width), Python ints where they are known."""
  dynamic = tf.unstack(tf.shape(images)[1:3])
  return [side if side is not None else dynamic[i] for i, side in enumerate(images.shape[1:3].as_list())]


def predict_labels_multi_scale(images, model_options, eval_scales=(1.0,), add_flipped_images=False):
  """Predicts from the mean of the probabilities over scales and mirrored images.

  Args:
    images: [batch, height, width, 3] RGB, 0..255.
    model_options: ModelOptions.
    eval_scales: scales of the image.
    add_flipped_images: whether each scale is seen mirrored, too.

  Returns:
    Dict: output -> int64 labels [batch, height, width]; output + '_prob' -> float32 mean probabilities
    [batch, height, width, classes], which sum to 1.
  """
  size = _image_size(images)
  probabilities = {output: [] for output in model_options.outputs_to_num_classes}
  for scale in eval_scales:
    for flipped in (False, True) if add_flipped_images else (False,):
      logits = multi_scale_logits(tf.reverse(images, [2]) if flipped else images, model_options, image_pyramid=[scale])
      for output, collected in probabilities.items():
        merged = logits[output][MERGED_LOGITS_SCOPE]
        collected.append(_softmax_at(tf.reverse(merged, [2]) if flipped else merged, size))
  predictions = {}
  for output, collected in probabilities.items():
    mean = tf.add_n(collected) / len(collected)
    predictions[output] = tf.argmax(mean, 3)
    predictions[output + PROB_SUFFIX] = mean
  return predictions


def predict_labels(images, model_options, image_pyramid=None, quantize_delay_step=-1):
  """Predicts from the merged logits of the image pyramid.

  Args:
    images: [batch, height, width, 3] RGB, 0..255.
    model_options: ModelOptions.
    image_pyramid: scales whose logits are merged, or None for [1.0].
    quantize_delay_step: 0 or more: the network was trained with simulated 8-bit arithmetic and predicts with it.

  Returns:
    Dict: output -> int64 labels [batch, height, width]; output + '_prob' -> float32 probabilities
    [batch, height, width, classes].
  """
  size = _image_size(images)
  predictions = {}
  classify = _resize_then_classify if model_options.prediction_with_upsampled_logits else _classify_then_resize
  logits_of_outputs = multi_scale_logits(images, model_options, image_pyramid, quantize_delay_step=quantize_delay_step)
  for output, logits in logits_of_outputs.items():
    predictions[output], predictions[output + PROB_SUFFIX] = classify(logits[MERGED_LOGITS_SCOPE], size)
  return predictions


def _resize_then_classify(logits, size):
  logits = utils.resize_to(logits, size)
  return tf.argmax(logits, 3), tf.nn.softmax(logits)


def _classify_then_resize(logits, size):
  # Resized as float32, which TFLite can, too.
  labels = tf.cast(tf.expand_dims(tf.argmax(logits, 3), 3), tf.float32)
  labels = tf.image.resize_nearest_neighbor(labels, size, align_corners=True, name='resize_prediction')
  probabilities = tf.image.resize_bilinear(tf.nn.softmax(logits), size, align_corners=True, name='resize_prob')
  return tf.cast(tf.squeeze(labels, 3), tf.int64), probabilities


def predict(images, model_options, scales=(1.0,), add_flipped_images=False, image_pyramid=None, quantize_delay_step=-1):
  """Predicts by `predict_labels` where one scale is seen once, else by `predict_labels_multi_scale`, without image pyramid.

  Args:
    images: [batch, height, width, 3] RGB, 0..255.
    model_options: ModelOptions.
    scales: scales at which each image is seen.
    add_flipped_images: whether each scale is seen mirrored, too.
    image_pyramid: scales whose logits are merged, or None.
    quantize_delay_step: as for predict_labels.

  Returns:
    (labels, probabilities): int64 [batch, height, width] and float32 [batch, height, width, classes].

  Raises:
    ValueError: a quantised network shall see several scales or mirrored images.
  """
  if list(scales) == [1.0] and not add_flipped_images:
    predictions = predict_labels(images, model_options, image_pyramid, quantize_delay_step)
  else:
    if quantize_delay_step >= 0:
      raise InputError(f'Scales {",".join(map(str, scales))}{", mirrored" if add_flipped_images else ""}: a network of '
                       '--quantize_delay_step keeps the ranges of one scale; leave the flags of scales and mirroring out.')
    if image_pyramid:
      logging.warning('The image pyramid %s is not used with several scales or flipped images.', image_pyramid)
    predictions = predict_labels_multi_scale(images, model_options, scales, add_flipped_images)
  return predictions[common.OUTPUT_TYPE], predictions[common.OUTPUT_TYPE + PROB_SUFFIX]


def _scaled(images, base_size, model_options, scale):
  """Images and options of one step of the pyramid."""
  if scale == 1.0:
    return images, model_options
  size = [scale_dimension(side, scale) for side in base_size]
  images = utils.resize_bilinear(images, size, images.dtype)
  if model_options.crop_size is None:
    return images, model_options
  pooling_size = model_options.image_pooling_crop_size
  return images, model_options._replace(
      crop_size=size, image_pooling_crop_size=pooling_size and [scale_dimension(side, scale) for side in pooling_size])


def _logits_stride(options):
  return min(options.decoder_output_stride) if options.decoder_output_stride else options.output_stride


def _merge(logits_of_scales, merge_method):
  merge = tf.reduce_max if merge_method == 'max' else tf.reduce_mean
  return merge(tf.stack(logits_of_scales), axis=0)


def multi_scale_logits(images, model_options, image_pyramid, weight_decay=0.0001, is_training=False,
                       fine_tune_batch_norm=False, nas_training_hyper_parameters=None, frozen_scopes=(),
                       quantize_delay_step=-1, recompute_grad=False):
  """Logits of each scale of the image pyramid, and of all merged.

  Args:
    images: [batch, height, width, 3] RGB, 0..255.
    model_options: ModelOptions.
    image_pyramid: scales of the image, or None for [1.0].
    weight_decay: factor of the L2 penalty.
    is_training: whether dropout and drop path act.
    fine_tune_batch_norm: whether batch norm follows the batch when training.
    nas_training_hyper_parameters: None, or a dict of drop_path_keep_prob and total_training_steps for the NAS networks.
    frozen_scopes: variable scopes whose batch norm does not follow the batch whatever the flag says.
    quantize_delay_step: global step from which training simulates 8-bit arithmetic; outside of training it is simulated from 0
      on; negative: never.
    recompute_grad: whether the gradient computes the activations inside the backbone's blocks anew instead of keeping them.

  Returns:
    Dict: output -> dict: 'merged_logits' and, with several scales, 'logits_0.50' and so on -> float32
    [batch, h, w, classes], all of the size that the largest scale has at the output stride of its logits.

  Raises:
    ValueError: options contradict each other or do not go with the backbone.
  """
  scales = image_pyramid or [1.0]
  check_options(model_options, quantize_delay_step)
  if quantize_delay_step >= 0 and list(scales) != [1.0]:
    raise InputError(f'--image_pyramid={",".join(map(str, scales))} does not go with --quantize_delay_step: the ranges of 8-bit '
                     'arithmetic are those of one scale. Leave it out.')
  training = _training_state(model_options, weight_decay, is_training, fine_tune_batch_norm, nas_training_hyper_parameters,
                             frozen_scopes, quantize_delay_step, recompute_grad)
  base_size = model_options.crop_size or _image_size(images)
  logits_size = [scale_dimension(side, max(1.0, max(scales)) / _logits_stride(model_options)) for side in base_size]
  outputs_to_logits = {output: {} for output in sorted(model_options.outputs_to_num_classes)}
  with tf.variable_scope(tf.get_variable_scope(), reuse=tf.AUTO_REUSE):
    for scale in scales:
      scaled_images, scaled_options = _scaled(images, base_size, model_options, scale)
      for output, logits in _logits(scaled_images, scaled_options, training).items():
        outputs_to_logits[output][f'logits_{scale:.2f}'] = utils.resize_to(logits, logits_size)
  for output, scales_to_logits in outputs_to_logits.items():
    collected = list(scales_to_logits.values())
    if len(scales) == 1:
      outputs_to_logits[output] = {MERGED_LOGITS_SCOPE: collected[0]}
    else:
      scales_to_logits[MERGED_LOGITS_SCOPE] = _merge(collected, model_options.merge_method)
  return outputs_to_logits


def _features(images, options, training):
  features, end_points = feature_extractor.extract_features(images, options, training)
  if not options.aspp_with_batch_norm:
    return features, end_points
  if options.dense_prediction_cell_config is not None:
    return dense_prediction_cell.build_cell(features, options.dense_prediction_cell_config, options, training), end_points
  return aspp.atrous_spatial_pyramid_pooling(features, options, training), end_points


def extract_features(images, model_options, weight_decay=0.0001, reuse=None, is_training=False, fine_tune_batch_norm=False,
                     nas_training_hyper_parameters=None):
  """Backbone and ASPP (or dense prediction cell).

  Args:
    images: [batch, height, width, 3] RGB, 0..255.
    model_options: ModelOptions.
    weight_decay: factor of the L2 penalty.
    reuse: as for tf.variable_scope.
    is_training: whether dropout and drop path act.
    fine_tune_batch_norm: whether batch norm follows the batch when training.
    nas_training_hyper_parameters: as for multi_scale_logits.

  Returns:
    features: float32 [batch, height / output_stride, width / output_stride, channels].
    end_points: name -> tensor of the backbone.
  """
  training = _training_state(model_options, weight_decay, is_training, fine_tune_batch_norm, nas_training_hyper_parameters)
  with tf.variable_scope(tf.get_variable_scope(), reuse=reuse):
    return _features(images, model_options, training)


def _decoder_options(options):
  return decoder.DecoderOptions(options.decoder_use_separable_conv, options.decoder_use_sum_merge, options.decoder_filters,
                                options.decoder_output_is_logits, options.use_bounded_activation)


def _logits(images, options, training):
  """Logits of one scale: dict output -> float32 [batch, h, w, classes]."""
  dtype = options.preprocessed_images_dtype
  getter = mixed_precision.float32_getter if mixed_precision.is_mixed(dtype) else None
  with tf.variable_scope(tf.get_variable_scope(), custom_getter=getter), \
      slim.arg_scope(quantized_layers.arg_scope(training)), slim.arg_scope(mixed_precision.arg_scope(dtype)):
    logits = _unscoped_logits(images, options, training)
  return {output: tf.cast(value, tf.float32) for output, value in logits.items()}


def _unscoped_logits(images, options, training):
  features, end_points = _features(images, options, training)
  if options.decoder_output_stride:
    low_level = feature_extractor.low_level_features(end_points, options.model_variant, options.decoder_output_stride)
    features = decoder.refine(features, low_level, options.crop_size or _image_size(images), _decoder_options(options), training)
  if options.decoder_output_is_logits:
    return {output: tf.identity(features, name=output) for output in sorted(options.outputs_to_num_classes)}
  return {output: get_branch_logits(features, options.outputs_to_num_classes[output], options.atrous_rates,
                                    options.aspp_with_batch_norm, options.logits_kernel_size, training.weight_decay,
                                    scope_suffix=output)
          for output in sorted(options.outputs_to_num_classes)}


def _get_logits(images, model_options, weight_decay=0.0001, reuse=None, is_training=False, fine_tune_batch_norm=False,
                nas_training_hyper_parameters=None):
  """Logits of one scale: dict output -> float32 [batch, h, w, classes]. Arguments as extract_features."""
  check_options(model_options)
  training = _training_state(model_options, weight_decay, is_training, fine_tune_batch_norm, nas_training_hyper_parameters)
  with tf.variable_scope(tf.get_variable_scope(), reuse=reuse):
    return _logits(images, model_options, training)


def refine_by_decoder(features, end_points, crop_size=None, decoder_output_stride=None, decoder_use_separable_conv=False,
                      decoder_use_sum_merge=False, decoder_filters=256, decoder_output_is_logits=False, model_variant=None,
                      weight_decay=0.0001, reuse=None, is_training=False, fine_tune_batch_norm=False,
                      use_bounded_activation=False, sync_batch_norm_method='None'):
  """Merges the features with low-level ones of the backbone (core/head/decoder.py).

  Args:
    features: float32 [batch, height / output_stride, width / output_stride, channels].
    end_points: name -> tensor, as extract_features returns it.
    crop_size: (height, width) of the image in pixels.
    decoder_output_stride: strides of the low-level features, in descending order.
    decoder_use_separable_conv, decoder_use_sum_merge, decoder_filters, decoder_output_is_logits, use_bounded_activation: as the
      flags of the same name.
    model_variant: name of the backbone.
    weight_decay: factor of the L2 penalty.
    reuse: as for tf.variable_scope.
    is_training, fine_tune_batch_norm: batch norm follows the batch when both are true.
    sync_batch_norm_method: only 'None'.

  Returns:
    float32 [batch, height / s, width / s, decoder_filters], s the last stride.

  Raises:
    ValueError: crop_size is None, or the backbone or the batch norm method is unknown.
  """
  if crop_size is None:
    raise InputError('refine_by_decoder: crop_size is None; give (height, width) of the image.')
  if sync_batch_norm_method != 'None':
    raise InputError(f"refine_by_decoder: sync_batch_norm_method is {sync_batch_norm_method!r}; only 'None' is supported.")
  training = layers.TrainingState(weight_decay, is_training, fine_tune_batch_norm, common.flag_value('batch_norm_decay'))
  low_level = feature_extractor.low_level_features(end_points, model_variant, decoder_output_stride)
  options = decoder.DecoderOptions(decoder_use_separable_conv, decoder_use_sum_merge, decoder_filters, decoder_output_is_logits,
                                   use_bounded_activation)
  with tf.variable_scope(tf.get_variable_scope(), reuse=reuse):
    return decoder.refine(features, low_level, crop_size, options, training)


def get_branch_logits(features, num_classes, atrous_rates=None, aspp_with_batch_norm=False, kernel_size=1,
                      weight_decay=0.0001, reuse=None, scope_suffix=''):
  """One convolution to the classes, or the sum of one per atrous rate (DeepLabv2, arXiv:1606.00915).

  Args:
    features: float32 [batch, height, width, channels].
    num_classes: number of classes.
    atrous_rates: rates of the convolutions when there is no ASPP with batch norm.
    aspp_with_batch_norm: whether the features come from ASPP; then a single convolution is made.
    kernel_size: side of the kernel; above 1 only for several rates.
    weight_decay: factor of the L2 penalty.
    reuse: as for tf.variable_scope.
    scope_suffix: scope of the layer inside `logits`; further ones get _1, _2 and so on.

  Returns:
    float32 [batch, height, width, num_classes].

  Raises:
    ValueError: kernel_size does not go with the other arguments.
  """
  if aspp_with_batch_norm or not atrous_rates:
    if kernel_size != 1:
      raise InputError(f'kernel_size is {kernel_size}: without atrous rates, or after ASPP with batch norm, it must be 1.')
    atrous_rates = [1]
  with tf.variable_scope(LOGITS_SCOPE_NAME, values=[features], reuse=reuse), slim.arg_scope(
      [layers.conv2d], weights_regularizer=layers.l2_regularizer(weight_decay),
      weights_initializer=tf.truncated_normal_initializer(stddev=0.01), activation_fn=None, normalizer_fn=None):
    return tf.add_n([
        layers.conv2d(features, num_classes, kernel_size, rate=rate, scope=f'{scope_suffix}_{i}' if i else scope_suffix)
        for i, rate in enumerate(atrous_rates)])
