"""MobileNetV3 for segmentation, large and small (arXiv:1905.02244), and MobileNet-EdgeTPU.

The segmentation networks have half the published channels from the last strided block on.
Channel counts are always rounded to multiples of 8.
"""

import functools

from deeplab.core.base.tf_compat import tf
from deeplab.core.layers import fake_quantize
from deeplab.core.networks.mobilenet import mobilenet
from deeplab.core.networks.mobilenet.mobilenet import Block, Conv

_relu = tf.nn.relu


def hard_swish(x):
  """x * relu6(x + 3) / 6 (arXiv:1905.02244)."""
  with tf.variable_scope('hard_swish'):
    product = fake_quantize.product(x * fake_quantize.gate(tf.nn.relu6(x + 3.0)), 'mul')
    return fake_quantize.product(product * (1.0 / 6.0), 'mul_1')


# Kernel, stride, expansion, outputs, activation. Expansions that are no round factor stand as inner / input channels.
LARGE_SEG_ROWS = (
    Conv(3, 2, 16, hard_swish),
    Block(3, 1, 1, 16, _relu),
    Block(3, 2, 4, 24, _relu),
    Block(3, 1, 3, 24, _relu),
    Block(5, 2, 3, 40, _relu, squeeze_excite=True),
    *[Block(5, 1, 3, 40, _relu, squeeze_excite=True)] * 2,
    Block(3, 2, 6, 80, hard_swish),
    Block(3, 1, 2.5, 80, hard_swish),
    *[Block(3, 1, 184 / 80, 80, hard_swish)] * 2,
    *[Block(3, 1, 6, 112, hard_swish, squeeze_excite=True)] * 2,
    Block(5, 2, 3, 80, hard_swish, squeeze_excite=True),
    *[Block(5, 1, 6, 80, hard_swish, squeeze_excite=True)] * 2,
    Conv(1, 1, 480, hard_swish),
)

SMALL_SEG_ROWS = (
    Conv(3, 2, 16, hard_swish),
    Block(3, 2, 1, 16, _relu, squeeze_excite=True),
    Block(3, 2, 72 / 16, 24, _relu),
    Block(3, 1, 88 / 24, 24, _relu),
    Block(5, 2, 4, 40, hard_swish, squeeze_excite=True),
    *[Block(5, 1, 6, 40, hard_swish, squeeze_excite=True)] * 2,
    *[Block(5, 1, 3, 48, hard_swish, squeeze_excite=True)] * 2,
    Block(5, 2, 3, 48, hard_swish, squeeze_excite=True),
    *[Block(5, 1, 6, 48, hard_swish, squeeze_excite=True)] * 2,
    Conv(1, 1, 288, hard_swish),
)

# Stride, expansion, outputs.
_fused = functools.partial(Block, 3, fused=True)
_block_3x3 = functools.partial(Block, 3)
_block_5x5 = functools.partial(Block, 5)

EDGETPU_ROWS = (
    Conv(3, 2, 32),
    _fused(1, 1, 16),
    _fused(2, 8, 32),
    *[_fused(1, 4, 32)] * 3,
    _fused(2, 8, 48),
    *[_fused(1, 4, 48)] * 3,
    _block_3x3(2, 8, 96),
    *[_block_3x3(1, 4, 96)] * 3,
    _block_3x3(1, 8, 96, residual=False),
    *[_block_3x3(1, 4, 96)] * 3,
    _block_5x5(2, 8, 160),
    *[_block_5x5(1, 4, 160)] * 3,
    _block_3x3(1, 8, 192),
    Conv(1, 1, 1280),
)


def large_seg(images, options, training):
  """Builds MobileNetV3 large for segmentation in the scope `MobilenetV3`; see mobilenet.mobilenet."""
  return mobilenet.mobilenet(images, 'MobilenetV3', LARGE_SEG_ROWS, options, training)


def small_seg(images, options, training):
  """Builds MobileNetV3 small for segmentation in the scope `MobilenetV3`; see mobilenet.mobilenet."""
  return mobilenet.mobilenet(images, 'MobilenetV3', SMALL_SEG_ROWS, options, training)


def edgetpu(images, options, training):
  """Builds MobileNet-EdgeTPU in the scope `MobilenetEdgeTPU`; see mobilenet.mobilenet. Output stride 8 is its least."""
  return mobilenet.mobilenet(images, 'MobilenetEdgeTPU', EDGETPU_ROWS, options, training)
