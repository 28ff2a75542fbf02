"""Small tensor helpers that several parts of the network share."""

from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf
from deeplab.core.layers import fake_quantize


def scale_dimension(dim, scale):
  """Scales one image side so that the corner pixels stay on the corners.

  Args:
    dim: side in pixels, Python int or int tensor.
    scale: factor, for example 1 / output_stride.

  Returns:
    trunc((dim - 1) * scale + 1), a Python int for a Python int and an int32 scalar tensor for a tensor.
  """
  if not isinstance(dim, tf.Tensor):
    return int(1.0 + scale * (dim - 1))
  return tf.cast(1.0 + scale * (tf.cast(dim, tf.float32) - 1.0), tf.int32)


def resize_bilinear(images, size, output_dtype=tf.float32):
  """Resizes with aligned corners.

  Args:
    images: [batch, height, width, channels], any numeric dtype.
    size: (height, width) in pixels, Python ints or int tensors.
    output_dtype: dtype of the result.

  Returns:
    Tensor [batch, size[0], size[1], channels] of `output_dtype`.
  """
  return tf.cast(tf.image.resize_bilinear(images, size, align_corners=True), output_dtype)


def resize_to(images, size):
  """resize_bilinear that leaves `images` alone where they have the size already, and sets the static shape.

  Args:
    images: float [batch, height, width, channels].
    size: (height, width), Python ints or int tensors.
  """
  static_size = [None if isinstance(side, tf.Tensor) else side for side in size]
  if None not in static_size and images.shape[1:3].as_list() == static_size:
    return images
  resized = resize_bilinear(images, size, images.dtype)
  resized.set_shape([images.shape[0], *static_size, images.shape[3]])
  return resized


def q_sigmoid(x):
  """Piecewise linear sigmoid relu6(x + 3) / 6 of MobileNetV3 (arXiv:1905.02244).

  The factor is 0.16667, as published checkpoints were trained with, so that the gate saturates at 1.00002.
  """
  return fake_quantize.product(fake_quantize.gate(tf.nn.relu6(x + 3.0)) * 0.16667, 'mul')


def get_label_weight_mask(labels, ignore_label, num_classes, label_weights=1.0):
  """Weight of each label: 0 where ignored, else the weight of its class.

  Args:
    labels: int tensor of any shape, values 0..num_classes-1 or `ignore_label`.
    ignore_label: value that carries no weight.
    num_classes: number of classes.
    label_weights: one number for all classes, or a sequence of `num_classes` numbers.

  Returns:
    float32 tensor of the shape of `labels`.

  Raises:
    ValueError: `label_weights` is not a number or does not hold one number per class.
  """
  keep = tf.cast(tf.not_equal(labels, ignore_label), tf.float32)
  if isinstance(label_weights, (int, float)):
    return keep * float(label_weights)
  if not isinstance(label_weights, (list, tuple)):
    raise InputError(f'label_weights is {label_weights!r}; give one number, or one number for each class.')
  if len(label_weights) != num_classes:
    raise InputError(f'label_weights holds {len(label_weights)} numbers for {num_classes} classes; give one for each class.')
  # A label outside the classes, such as the ignored one, may not index the table.
  in_range = tf.where(tf.logical_and(labels >= 0, labels < num_classes), labels, tf.zeros_like(labels))
  return keep * tf.gather(tf.constant(label_weights, tf.float32), in_range)
