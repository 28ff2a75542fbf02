"""From a decoded image and its label to network input: the operations of preprocess_utils in their order."""

from deeplab.core.base.tf_compat import tf
from deeplab.core.images import preprocess_utils

_PROB_OF_FLIP = 0.5
# A crop is best a multiple of this number, plus 1: features then align at every output stride.
_LARGEST_COMMON_STRIDE = 16


def preprocess_image_and_label(image, label, crop_height, crop_width, min_resize_value=None, max_resize_value=None,
                               resize_factor=None, min_scale_factor=1., max_scale_factor=1., scale_factor_step_size=0,
                               ignore_label=255, is_training=True, pad_pixel=(127.5, 127.5, 127.5), keep_aspect_ratio=True,
                               image_name='', seed=None):
  """Resizes, augments and pads.

  Training: random scale, pad to the crop, random crop, random mirroring. Evaluation: pad to the crop. Padding lies below and on
  the right (before mirroring), so a smaller image always sits in the upper left corner.

  Args:
    image: [height, width, 3], 0..255, uint8 or another number type.
    label: integers [height, width, 1], or None outside of training.
    crop_height: height of the result in pixels.
    crop_width: width of the result in pixels.
    min_resize_value: length of the shorter side after resizing, or None for no resizing.
    max_resize_value: bound of the longer side, or None.
    resize_factor: resized sides become a multiple of it, plus 1; or None.
    min_scale_factor: smallest random scale.
    max_scale_factor: largest random scale.
    scale_factor_step_size: step between the scales, 0 for any in between.
    ignore_label: label of the padding.
    is_training: whether to augment.
    pad_pixel: RGB of the padding, the pixel that the network maps to 0.
    keep_aspect_ratio: whether a resized image keeps its shape.
    image_name: string or string scalar, for messages.
    seed: int tensor [2] that decides all draws, or None.

  Returns:
    (original_image, processed_image, label): the image before scaling and padding (float32 if resized, else as given), float32
    [crop_height, crop_width, 3], and int32 [crop_height, crop_width, 1] or None.

  Raises:
    ValueError: training without a label, or max_resize_value without min_resize_value.
    InvalidArgumentError: when run, if an image is larger than the crop outside of training.
  """
  if label is None and is_training:
    raise ValueError('Training needs a label for each image.')
  if max_resize_value or min_resize_value:
    image, label = preprocess_utils.resize_to_range(image, label, min_resize_value, max_resize_value, resize_factor,
                                                    keep_aspect_ratio)
  original_image = image
  scale_seed, window_seed, flip_seed = preprocess_utils.split_seed(seed, 3)
  if is_training:
    scale = preprocess_utils.get_random_scale(min_scale_factor, max_scale_factor, scale_factor_step_size, scale_seed)
    # The window is drawn first, so that pixels beside it are not computed; padding comes later, so that it is not scaled.
    window = preprocess_utils.random_window(image, scale, crop_height, crop_width, window_seed)
    image = preprocess_utils.crop_scaled_image(image, window)
    label = preprocess_utils.crop_scaled_label(label, window)
  else:
    image = _refuse_larger_image(image, crop_height, crop_width, image_name)
  image = _pad(tf.cast(image, tf.float32), crop_height, crop_width, pad_pixel)
  if label is not None:
    label = _pad(tf.cast(label, tf.int32), crop_height, crop_width, ignore_label)
  if is_training:
    image, label, _ = preprocess_utils.flip_dim([image, label], _PROB_OF_FLIP, dim=1, seed=flip_seed)
  return original_image, image, label


def _pad(image, crop_height, crop_width, pad_value):
  return preprocess_utils.pad_to_bounding_box(image, 0, 0, crop_height, crop_width, pad_value)


def _refuse_larger_image(image, crop_height, crop_width, image_name):
  """The image, after a check when run that it fits into the crop."""
  height, width = tf.unstack(tf.shape(image)[:2])
  aligned = [side + (1 - side) % _LARGEST_COMMON_STRIDE for side in (height, width)]
  check = preprocess_utils.require(
      tf.logical_and(height <= crop_height, width <= crop_width),
      'Image {} is {}x{} (height x width) but the crop is {}x{}; a crop of at least {},{} is needed, best {},{}.',
      image_name, height, width, crop_height, crop_width, height, width, *aligned)
  with tf.control_dependencies([check]):
    return tf.identity(image)
