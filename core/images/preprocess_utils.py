"""Image operations of the input pipeline, one per function.

Resizing aligns corners: pixel i of n shows source position i * (size - 1) / (n - 1), computed in float32. Random operations take
an optional `seed`, an integer tensor [2] that decides the draw; without it each run of the graph draws anew.
"""

from typing import NamedTuple

import numpy as np

from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf

_BILINEAR = tf.image.ResizeMethod.BILINEAR
_NEAREST = tf.image.ResizeMethod.NEAREST_NEIGHBOR
# Part of a step by which a range may miss its last one through rounding: (1.2 - 0.8) / 0.1 is 3.9999999999999996.
_STEP_TOLERANCE = 1e-6


class Window(NamedTuple):
  """The part of a scaled image that a training crop shows.

  Attributes:
    scaled_size: (height, width) of the whole image after scaling, int32 scalars.
    offset: (row, column) of the first pixel that is shown, int32 scalars.
    size: (height, width) of the part in pixels: of the crop, or of the scaled image where that is smaller; int32 scalars.
  """
  scaled_size: tuple
  offset: tuple
  size: tuple


def split_seed(seed, num):
  """`num` independent seeds from one; from None, as many None."""
  return [None] * num if seed is None else tf.unstack(tf.random.experimental.stateless_split(seed, num))


def require(condition, message, *values):
  """Op that fails with `message`, each {} in it replaced by a value or tensor, unless the bool scalar `condition` holds."""
  texts = [value if isinstance(value, str) or getattr(value, 'dtype', None) == tf.string else tf.strings.format('{}', [value])
           for value in values]
  parts = message.split('{}')
  joined = [parts[0]] + [piece for pair in zip(texts, parts[1:], strict=True) for piece in pair]
  return tf.Assert(condition, [tf.strings.join(joined)])


def _draw(minval, maxval, dtype, seed):
  """Scalar, uniform in [minval, maxval)."""
  if seed is None:
    return tf.random_uniform([], minval, maxval, dtype)
  return tf.random.stateless_uniform([], seed, minval, maxval, dtype)


def resolve_shape(tensor, rank=None, scope=None):
  """Sizes of a tensor: Python ints where the graph knows them, int32 scalars elsewhere.

  Raises:
    ValueError: the rank is known and is not `rank`.
  """
  with tf.name_scope(scope, 'resolve_shape', [tensor]):
    sizes = (tensor.shape if rank is None else tensor.shape.with_rank(rank)).as_list()
    dynamic = tf.shape(tensor)
    return [dynamic[axis] if size is None else size for axis, size in enumerate(sizes)]


def flip_dim(tensor_list, prob=0.5, dim=1, seed=None):
  """Mirrors all tensors together, with probability `prob`.

  Args:
    tensor_list: tensors.
    prob: 0..1.
    dim: axis that is reversed.
    seed: int tensor [2] or None.

  Returns:
    List of the tensors, followed by a bool scalar: whether they were mirrored.

  Raises:
    ValueError: a tensor has no axis `dim`.
  """
  for tensor in tensor_list:
    if dim < 0 or (tensor.shape.rank is not None and dim >= tensor.shape.rank):
      raise ValueError(f'Axis {dim} cannot be reversed in a tensor of shape {tensor.shape}.')
  flipped = tf.less_equal(_draw(0.0, 1.0, tf.float32, seed), prob)
  outputs = tf.cond(flipped, lambda: [tf.reverse(tensor, [dim]) for tensor in tensor_list],
                    lambda: [tf.identity(tensor) for tensor in tensor_list], strict=True)
  for output, tensor in zip(outputs, tensor_list, strict=True):
    output.set_shape(tensor.shape)
  return [*outputs, flipped]


def pad_to_bounding_box(image, offset_height, offset_width, target_height, target_width, pad_value):
  """Lays an image on a canvas of one colour. No pixel is computed with: all arrive as they are.

  Args:
    image: [height, width, channels] or [batch, height, width, channels], any dtype; an unknown rank counts as 3.
    offset_height: row of the canvas for the first image row.
    offset_width: column of the canvas for the first image column.
    target_height: height of the canvas in pixels.
    target_width: width of the canvas in pixels.
    pad_value: colour of the canvas, one number or one per channel, which the dtype of the image can hold.

  Returns:
    Tensor of the size of the canvas and the dtype of `image`.

  Raises:
    ValueError: the rank is known and is not 3 or 4.
    InvalidArgumentError: when run, if the image has another rank or does not fit on the canvas at this offset.
  """
  rank = 3 if image.shape.rank is None else image.shape.rank
  if rank not in (3, 4):
    raise ValueError(f'Only an image of rank 3 or 4 can be padded, not one of shape {image.shape}.')
  pad_value = tf.convert_to_tensor(pad_value, dtype=image.dtype)
  image = tf.ensure_shape(image, [None] * rank)
  *batch, height, width, channels = resolve_shape(image, rank)
  below, right = target_height - offset_height - height, target_width - offset_width - width
  fits = tf.reduce_all(tf.stack([offset_height, offset_width, below, right]) >= 0)
  check = require(fits, 'An image of {}x{} at offset {},{} does not fit on a canvas of {}x{}.',
                  height, width, offset_height, offset_width, target_height, target_width)

  def canvas(rows, columns):
    # Repeating a row copies long runs of memory, six times as fast as a broadcast over rows and columns.
    line = tf.broadcast_to(pad_value, [*batch, 1, columns, channels])
    return tf.gather(line, tf.zeros([rows], tf.int32), axis=rank - 3)

  with tf.control_dependencies([check]):
    padded = tf.concat([canvas(height, offset_width), image, canvas(height, right)], rank - 2)
    padded = tf.concat([canvas(offset_height, target_width), padded, canvas(below, target_width)], rank - 3)
  padded.set_shape([*image.shape[:-3], *_static(target_height, target_width), image.shape[-1]])
  return padded


def _static(*sizes):
  """The sizes, None for those that only the run knows."""
  return [None if isinstance(size, tf.Tensor) else size for size in sizes]


def _crop(image, offset_height, offset_width, crop_height, crop_width):
  """Part of an image [height, width, channels].

  Raises:
    ValueError: the rank is known and is not 3.
    InvalidArgumentError: when run, if the part does not lie in the image.
  """
  image = tf.ensure_shape(image, [None] * 3)
  height, width, _ = resolve_shape(image, 3)
  inside = tf.reduce_all(tf.stack([offset_height, offset_width, height - offset_height - crop_height,
                                   width - offset_width - crop_width]) >= 0)
  with tf.control_dependencies([require(inside, 'A crop of {}x{} at offset {},{} exceeds an image of {}x{}.',
                                        crop_height, crop_width, offset_height, offset_width, height, width)]):
    cropped = tf.slice(image, tf.stack([offset_height, offset_width, 0]), tf.stack([crop_height, crop_width, -1]))
  cropped.set_shape([*_static(crop_height, crop_width), image.shape[2]])
  return cropped


def random_crop(image_list, crop_height, crop_width, seed=None):
  """Cuts the same window from all images, uniform over its places.

  Args:
    image_list: images [height, width, channels] of one height and width.
    crop_height: height of the window in pixels.
    crop_width: width of the window in pixels.
    seed: int tensor [2] or None.

  Returns:
    List of tensors [crop_height, crop_width, channels].

  Raises:
    ValueError: no image is given, or the rank of one is known and is not 3.
    InvalidArgumentError: when run, if a rank is not 3, the sizes differ, or the window is larger than the images.
  """
  if not image_list:
    raise ValueError('random_crop needs at least one image.')
  images = [tf.ensure_shape(image, [None] * 3) for image in image_list]
  height, width, _ = resolve_shape(images[0], 3)
  checks = [require(tf.logical_and(height >= crop_height, width >= crop_width),
                    'A crop of {}x{} is larger than an image of {}x{}.', crop_height, crop_width, height, width)]
  for image, original in zip(images[1:], image_list[1:], strict=True):
    other_height, other_width, _ = resolve_shape(image, 3)
    same = tf.logical_and(tf.equal(other_height, height), tf.equal(other_width, width))
    checks.append(require(same, '{} is {}x{} but {} is {}x{}.', original.op.name, other_height, other_width,
                          image_list[0].op.name, height, width))
  row_seed, column_seed = split_seed(seed, 2)
  with tf.control_dependencies(checks):
    top = _draw(0, height - crop_height + 1, tf.int32, row_seed)
    left = _draw(0, width - crop_width + 1, tf.int32, column_seed)
  return [_crop(image, top, left, crop_height, crop_width) for image in images]


def get_random_scale(min_scale_factor, max_scale_factor, step_size, seed=None):
  """Draws a scale.

  Args:
    min_scale_factor: smallest scale.
    max_scale_factor: largest scale.
    step_size: distance of the scales to choose from, 0 for any number. Both ends belong to them; where the range is no whole
      number of steps the distance is stretched until it is.
    seed: int tensor [2] or None.

  Returns:
    float32 scalar.

  Raises:
    ValueError: the smallest scale is below 0 or above the largest, or the step is negative.
  """
  if not 0 <= min_scale_factor <= max_scale_factor or step_size < 0:
    raise InputError(f'min_scale_factor={min_scale_factor}, max_scale_factor={max_scale_factor}, '
                     f'scale_factor_step_size={step_size}: the scales go from a smaller to a larger number by a step, none '
                     'of them negative.')
  if min_scale_factor == max_scale_factor:
    return tf.constant(min_scale_factor, tf.float32)
  if step_size == 0:
    return _draw(min_scale_factor, max_scale_factor, tf.float32, seed)
  num_scales = int((max_scale_factor - min_scale_factor) / step_size + 1 + _STEP_TOLERANCE)
  scales = tf.constant(np.linspace(min_scale_factor, max_scale_factor, num_scales), tf.float32)
  return scales[_draw(0, num_scales, tf.int32, seed)]


def get_label_resize_method(label):
  """Resize method for a label: bilinear for real numbers, nearest for integers.

  Raises:
    ValueError: the dtype is neither.
  """
  if label.dtype.is_floating:
    return _BILINEAR
  if label.dtype.is_integer:
    return _NEAREST
  raise ValueError(f'A label of dtype {label.dtype.name} cannot be resized; give integers or real numbers.')


def _scaled_size(image, scale):
  """(height, width) of an image [height, width, channels] after scaling; no side vanishes."""
  size = tf.cast(tf.shape(image)[:2], tf.float32)
  return tf.unstack(tf.maximum(tf.cast(size * scale, tf.int32), 1), num=2)


def randomly_scale_image_and_label(image, label=None, scale=1.0):
  """Scales an image and its label.

  Args:
    image: [height, width, channels].
    label: [height, width, 1], or None.
    scale: positive number or float32 scalar.

  Returns:
    (image, label) of trunc(height * scale) x trunc(width * scale) pixels, the image as float32; as they came for a Python 1.0.
  """
  if isinstance(scale, (int, float)) and scale == 1.0:
    return image, label
  size = _scaled_size(image, scale)
  image = _resize(image, size, _BILINEAR)
  return image, None if label is None else _resize(label, size, get_label_resize_method(label))


def _resize(image, size, method, align_corners=True):
  """Resizes an image [height, width, channels]; all methods but nearest give float32."""
  if method == _NEAREST and align_corners:
    height, width, _ = resolve_shape(image, 3)
    return _gather_pixels(image, _nearest_pixels(height, size[0], 0, size[0]), _nearest_pixels(width, size[1], 0, size[1]))
  # An image that has the right size already would come back as it is, in its own dtype.
  image = image if method == _NEAREST else tf.cast(image, tf.float32)
  return tf.image.resize_images(image, tf.stack(size), method=method, align_corners=align_corners)


def _source_positions(size, scaled_size, start, count):
  """Positions on an axis of `size` pixels that pixels start..start+count-1 of the axis show when scaled to `scaled_size`."""
  step = tf.math.divide_no_nan(tf.cast(size - 1, tf.float32), tf.cast(scaled_size - 1, tf.float32))
  return tf.cast(tf.range(start, start + count), tf.float32) * step


def _nearest_pixels(size, scaled_size, start, count):
  """Like _source_positions, rounded half up to whole pixels."""
  positions = _source_positions(size, scaled_size, start, count)
  # Not floor(x + 0.5), whose sum is rounded; the difference is exact.
  lower = tf.floor(positions)
  return tf.minimum(tf.cast(lower, tf.int32) + tf.cast(positions - lower >= 0.5, tf.int32), size - 1)


def _gather_pixels(image, rows, columns):
  """image[rows][:, columns]; columns are gathered as rows of the transposed image, since rows are copied in one run."""
  by_column = tf.transpose(tf.gather(image, rows), [1, 0, 2])
  return tf.transpose(tf.gather(by_column, columns), [1, 0, 2])


def random_window(image, scale, crop_height, crop_width, seed=None):
  """Draws the window that scaling, padding to the crop and random cropping would show.

  Args:
    image: [height, width, channels].
    scale: positive number or float32 scalar.
    crop_height: height of the crop in pixels.
    crop_width: width of the crop in pixels.
    seed: int tensor [2] or None.

  Returns:
    Window.
  """
  scaled_size = _scaled_size(image, scale)
  size = [tf.minimum(scaled, crop) for scaled, crop in zip(scaled_size, (crop_height, crop_width), strict=True)]
  offset = [_draw(0, scaled - shown + 1, tf.int32, axis_seed)
            for scaled, shown, axis_seed in zip(scaled_size, size, split_seed(seed, 2), strict=True)]
  return Window(tuple(scaled_size), tuple(offset), tuple(size))


def crop_scaled_image(image, window):
  """The window of an image scaled bilinearly; a small one without the pixels around it.

  Args:
    image: [height, width, channels].
    window: Window.

  Returns:
    float32 tensor of the size of the window.
  """
  channels = image.shape[2]
  shown = tf.cond(2 * window.size[0] * window.size[1] < window.scaled_size[0] * window.scaled_size[1],
                  lambda: _crop_then_scale(image, window), lambda: _scale_then_crop(image, window))
  shown.set_shape([None, None, channels])
  return shown


def _scale_then_crop(image, window):
  scaled = _resize(image, window.scaled_size, _BILINEAR)
  return tf.slice(scaled, [*window.offset, 0], [*window.size, -1])


def _crop_then_scale(image, window):
  """Takes the rows it needs, scales their width as a whole (fast in one kernel), cuts, and interpolates between rows."""
  height, _, _ = resolve_shape(image, 3)
  positions = _source_positions(height, window.scaled_size[0], window.offset[0], window.size[0])
  upper = tf.cast(positions, tf.int32)
  lower = tf.minimum(tf.cast(tf.ceil(positions), tf.int32), height - 1)
  first, count = upper[0], lower[-1] - upper[0] + 1
  rows = _resize(tf.slice(image, [first, 0, 0], [count, -1, -1]), [count, window.scaled_size[1]], _BILINEAR)
  rows = tf.slice(rows, [0, window.offset[1], 0], [-1, window.size[1], -1])
  above, below = tf.gather(rows, upper - first), tf.gather(rows, lower - first)
  return above + (below - above) * tf.reshape(positions - tf.floor(positions), [-1, 1, 1])


def crop_scaled_label(label, window):
  """The window of a label scaled to the nearest pixel.

  Args:
    label: [height, width, 1], any dtype.
    window: Window.

  Returns:
    Tensor of the size of the window and the dtype of `label`.
  """
  rows, columns = (_nearest_pixels(*axis) for axis in zip(resolve_shape(label, 3)[:2], *window, strict=True))
  return _gather_pixels(label, rows, columns)


def resized_size(height, width, min_size, max_size=None, factor=None, keep_aspect_ratio=True):
  """Size that resize_to_range gives an image.

  Args:
    height: height in pixels, Python int or int32 scalar; width likewise.
    width: see `height`.
    min_size: length of the shorter side.
    max_size: bound of the longer side, or None; it wins over `min_size`.
    factor: both sides become a multiple of this number, plus 1; None: any length.
    keep_aspect_ratio: else both sides get the length of the longer one.

  Returns:
    (height, width), int32 scalars.

  Raises:
    ValueError: `min_size` is None.
  """
  if min_size is None:
    raise InputError('min_resize_value is not set; resizing needs it, max_resize_value only adds a bound.')
  size = tf.stack([height, width])
  # In whole numbers, so that the shorter side gets exactly min_size.
  new_size = size * min_size // tf.reduce_min(size)
  if max_size is not None:
    if factor is not None:
      max_size -= (max_size - 1) % factor
    new_size = tf.where(tf.reduce_max(new_size) > max_size, size * max_size // tf.reduce_max(size), new_size)
  if factor is not None:
    new_size += (1 - new_size) % factor
  if not keep_aspect_ratio:
    new_size = tf.fill([2], tf.reduce_max(new_size))
  return tf.unstack(tf.maximum(new_size, 1), num=2)


def resize_to_range(image, label=None, min_size=None, max_size=None, factor=None, keep_aspect_ratio=True, align_corners=True,
                    label_layout_is_chw=False, scope=None, method=_BILINEAR):
  """Resizes an image and its label so that the sides lie in a range.

  Args:
    image: [height, width, channels].
    label: [height, width, channels], or [channels, height, width] with `label_layout_is_chw`; or None.
    min_size, max_size, factor, keep_aspect_ratio: as for resized_size.
    align_corners: whether the corner pixels stay on the corners.
    label_layout_is_chw: layout of the label.
    scope: name scope.
    method: tf.image.ResizeMethod of the image; the label's follows its dtype.

  Returns:
    [image, label]; the image as float32 unless `method` is nearest, the label None where none is given.

  Raises:
    ValueError: `min_size` is None, or the rank of the image or the label is not 3.
  """
  with tf.name_scope(scope, 'resize_to_range', [image]):
    height, width, _ = resolve_shape(image, 3)
    size = resized_size(height, width, min_size, max_size, factor, keep_aspect_ratio)
    image = _resize(image, size, method, align_corners)
    if label is None:
      return [image, None]
    if label_layout_is_chw:
      label = tf.transpose(label, [1, 2, 0])
    label = _resize(label, size, get_label_resize_method(label), align_corners)
    return [image, tf.transpose(label, [2, 0, 1]) if label_layout_is_chw else label]
