"""The shape of a row of the backbone table (core/networks/feature_extractor.py)."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from deeplab.core.base.tf_compat import tf

# RGB means of ImageNet, 0..255, that the plain ResNets subtract.
_IMAGENET_MEAN_RGB = (123.15, 115.90, 103.06)


class InputNorm(NamedTuple):
  """What a network does to raw pixels.

  Attributes:
    normalize: maps images [batch, height, width, channels], any numeric dtype, 0..255, to float32.
    zero_pixel: the RGB pixel, 0..255, that becomes 0; images are padded with it.
  """
  normalize: Callable
  zero_pixel: Sequence[float]


def _to_unit_range(images):
  return tf.cast(images, tf.float32) * (2.0 / 255.0) - 1.0


def _subtract_imagenet_mean(images):
  num_further_channels = images.shape[-1] - len(_IMAGENET_MEAN_RGB)
  mean = tf.constant(_IMAGENET_MEAN_RGB + (0.0,) * num_further_channels, tf.float32)
  return tf.cast(images, tf.float32) - mean


# x * 2/255 - 1, range [-1, 1].
UNIT_RANGE = InputNorm(_to_unit_range, (127.5, 127.5, 127.5))
# Mean pixel of ImageNet subtracted, no scaling.
IMAGENET_MEAN = InputNorm(_subtract_imagenet_mean, _IMAGENET_MEAN_RGB)


class Backbone(NamedTuple):
  """All that the rest of the code may know about a network.

  Attributes:
    build: function (images, options, training) -> (features, end_points). images: float32, already normalised,
      [batch, height, width, channels]; options: ModelOptions; training: layers.TrainingState. features:
      [batch, height / output_stride, width / output_stride, depth]; end_points: name -> tensor, where names of variable scopes
      begin with `scope`, whatever scope the caller is in.
    scope: root scope of the variables, in ours and in ImageNet checkpoints.
    input_norm: InputNorm.
    low_level: nominal output stride (4, 8, 16) -> name of the end point that the decoder takes there.
    output_strides: the values of options.output_stride that it can be built with.
    multi_grid_length: how many rates options.multi_grid must hold, or None where the network has no multi-grid.
    honours: names of those options (fields of ModelOptions, and quantize_delay_step) that only some families have, and this one
      does.
    fixed_divisor: number that channel counts are always rounded to a multiple of, or None where options.divisible_by rules.
    fixed_stride: stride of the features whatever options.output_stride says, or None.
  """
  build: Callable
  scope: str
  input_norm: InputNorm
  low_level: Mapping[int, str]
  output_strides: Sequence[int] = (4, 8, 16, 32)
  multi_grid_length: int | None = None
  honours: frozenset = frozenset()
  fixed_divisor: int | None = None
  fixed_stride: int | None = None
