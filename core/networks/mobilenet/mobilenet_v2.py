"""MobileNetV2 (arXiv:1801.04381) up to its last block of 320 channels."""

import functools

from deeplab.core.base.tf_compat import tf
from deeplab.core.networks.mobilenet import mobilenet

# Stride, expansion, outputs.
_block = functools.partial(mobilenet.Block, 3, activation=tf.nn.relu6)

ROWS = (
    mobilenet.Conv(3, 2, 32, tf.nn.relu6),
    _block(1, 1, 16),
    _block(2, 6, 24),
    _block(1, 6, 24),
    _block(2, 6, 32),
    _block(1, 6, 32),
    _block(1, 6, 32),
    _block(2, 6, 64),
    _block(1, 6, 64),
    _block(1, 6, 64),
    _block(1, 6, 64),
    _block(1, 6, 96),
    _block(1, 6, 96),
    _block(1, 6, 96),
    _block(2, 6, 160),
    _block(1, 6, 160),
    _block(1, 6, 160),
    _block(1, 6, 320),
)


def mobilenet_v2(images, options, training):
  """Builds MobileNetV2 in the scope `MobilenetV2`; see mobilenet.mobilenet.

  Outputs are rounded to multiples of options.divisible_by. Unset, that is 8 at depth multiplier 1; other multipliers keep widths
  such as 11, as the published checkpoints have them.
  """
  divisor = 8 if options.depth_multiplier == 1.0 else 1
  round_outputs = functools.partial(mobilenet.make_divisible, divisor=options.divisible_by or divisor, minimum=divisor)
  return mobilenet.mobilenet(images, 'MobilenetV2', ROWS, options, training, round_outputs)
