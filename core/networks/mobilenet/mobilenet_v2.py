"""MobileNetV2 (arXiv:1801.04381) up to its last block of 320 channels."""

import functools

from deeplab.core.base.tf_compat import tf
from deeplab.core.networks.mobilenet import mobilenet

# Expansion, outputs, repetitions, stride of the first: t, c, n, s of table 2 of the paper.
_BLOCKS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)

ROWS = (
    mobilenet.Conv(3, 2, 32, tf.nn.relu6),
    *(mobilenet.Block(3, 1 if repetition else stride, expansion, outputs, tf.nn.relu6)
      for expansion, outputs, repetitions, stride in _BLOCKS for repetition in range(repetitions)),
)


def mobilenet_v2(images, options, training):
  """Builds MobileNetV2 in the scope `MobilenetV2`; see mobilenet.mobilenet.

  Outputs are rounded to multiples of options.divisible_by. Unset, that is 8 at depth multiplier 1; other multipliers keep widths
  such as 11, as the published checkpoints have them.
  """
  divisor = 8 if options.depth_multiplier == 1.0 else 1
  round_outputs = functools.partial(mobilenet.make_divisible, divisor=options.divisible_by or divisor, minimum=divisor)
  return mobilenet.mobilenet(images, 'MobilenetV2', ROWS, options, training, round_outputs)
