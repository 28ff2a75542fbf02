"""A residual network as rows: a stem, then blocks of units, run at any output stride with dilated convolutions.

Xception and ResNet v1 share it.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import slim, tf
from deeplab.core.layers import layers


class Stem(NamedTuple):
  """What comes before the blocks.

  Attributes:
    build: function (images) -> net.
    stride: its stride, which no output stride can undo.
  """
  build: Callable
  stride: int


class Block(NamedTuple):
  """Units in a row.

  Attributes:
    scope: variable scope of the block; unit i is in `<scope>/unit_<i>/<unit_scope>`.
    unit_scope: the last part of that name.
    units: functions (net, stride, rate) -> net, of which at most one of stride and rate is above 1.
    stride: nominal stride of the last unit; the others have stride 1.
  """
  scope: str
  unit_scope: str
  units: Sequence[Callable]
  stride: int


def grid_or_ones(multi_grid, length, scope):
  """The rate multipliers of the last block.

  Args:
    multi_grid: `length` whole numbers, or None for ones.
    length: how many the block takes.
    scope: name of the network, for the message.

  Raises:
    ValueError: another length.
  """
  if multi_grid is None:
    return (1,) * length
  if len(multi_grid) != length:
    raise InputError(f'--multi_grid={",".join(map(str, multi_grid))}: {scope} takes {length} rates, for example '
                     f'{",".join(str(2 ** i) for i in range(length))}')
  return tuple(multi_grid)


def extract(images, scope, stem, blocks, output_stride, training):
  """Builds the network under the layers' arg scopes of the caller.

  Once the output stride is reached, every further stride is dropped and the units after it are dilated by it instead, so that
  their features, subsampled, are those of the nominal stride (arXiv:1706.05587).

  Args:
    images: float32 [batch, height, width, channels], normalised.
    scope: root variable scope.
    stem: Stem.
    blocks: Blocks in order.
    output_stride: ratio of image to feature resolution, or None for the nominal one.
    training: layers.TrainingState.

  Returns:
    features: [batch, ceil(height / output_stride), ceil(width / output_stride), depth].
    end_points: name -> tensor of every convolution, unit and block. Names are variable scopes from `scope` on; what the caller
      has opened around it is left out.

  Raises:
    ValueError: the strides of the stem and the blocks never multiply to output_stride.
  """
  reachable = sorted(set(itertools.accumulate((block.stride for block in blocks), int.__mul__, initial=stem.stride)))
  if output_stride is None:
    output_stride = reachable[-1]
  if output_stride not in reachable:
    raise InputError(f'--output_stride={output_stride}: {scope} can have {", ".join(map(str, reachable))}')
  with tf.variable_scope(scope) as root:
    collection = root.original_name_scope + 'end_points'
    with slim.arg_scope([slim.conv2d, slim.separable_conv2d], outputs_collections=collection):
      features = _run_blocks(stem.build(images), stem.stride, blocks, output_stride, collection, training)
  named = slim.utils.convert_collection_to_dict(collection, clear_collection=True)
  outer_scope = root.name[:-len(scope)]
  return features, {name[len(outer_scope):]: tensor for name, tensor in named.items()}


def _run_blocks(net, stride, blocks, output_stride, collection, training):
  """Runs all units; `stride` is the one that `net` has, and outputs of units and blocks go to the collection."""
  rate = 1
  for block in blocks:
    with tf.variable_scope(block.scope) as block_scope:
      for index, unit in enumerate(block.units, start=1):
        unit_stride = block.stride if index == len(block.units) else 1
        with tf.variable_scope(f'unit_{index}/{block.unit_scope}') as unit_scope:
          if stride == output_stride:
            # The unit that loses its stride still has the old rate: what it sees is not yet denser than it should be.
            run_unit = functools.partial(unit, stride=1, rate=rate)
            rate *= unit_stride
          else:
            run_unit = functools.partial(unit, stride=unit_stride, rate=1)
            stride *= unit_stride
          net = layers.recomputed(run_unit, training)(net)
        slim.utils.collect_named_outputs(collection, unit_scope.name, net)
      slim.utils.collect_named_outputs(collection, block_scope.name, net)
  return net
