"""What keeps images from being predicted, size and memory: told by the flags that mend it, and memory before it runs out."""

import contextlib
import math
import os

import numpy as np
from absl import logging

from deeplab.core.base import errors
from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf

# Ops whose output is their first input under another name or shape; a variable is counted by itself, its handle as nothing.
_ALIASES = frozenset(['ExpandDims', 'Identity', 'ReadVariableOp', 'Reshape', 'Squeeze'])
# Ops that write over their input where nobody else needs it.
_IN_PLACE = frozenset(['Add', 'AddV2', 'BiasAdd', 'FusedBatchNormV3', 'Maximum', 'Minimum', 'Mul', 'Relu', 'Relu6', 'Softmax',
                       'Sub'])


def peak_bytes(output, batch_size):
  """Bytes that the tensors of a graph take at most at one time, when its ops run one after the other.

  Args:
    output: the tensor that is computed.
    batch_size: images per batch, for dimensions that are not known.

  Returns:
    Bytes, an int. What kernels take for themselves comes on top.
  """
  ops = _ops_behind(output)
  sizes, roots, first, last = {}, {}, {}, {}
  for index, op in enumerate(ops):
    for tensor in op.inputs:
      last[roots[tensor.name]] = index - (op.type in _IN_PLACE)
    for tensor in op.outputs:
      name = roots[tensor.name] = roots[op.inputs[0].name] if op.type in _ALIASES else tensor.name
      if name == tensor.name:
        sizes[name], first[name], last[name] = _num_bytes(tensor, batch_size), index, index
  changes = np.zeros(len(ops) + 1, np.int64)
  for name, size in sizes.items():
    changes[first[name]] += size
    changes[last[name] + 1] -= size
  variables = output.graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES)
  return sum(_num_bytes(variable, batch_size) for variable in variables) + int(changes.cumsum().max())


def _ops_behind(output):
  """Ops that a tensor depends on, each after those that it depends on itself."""
  needed, pending = set(), [output.op]
  while pending:
    op = pending.pop()
    if op not in needed:
      needed.add(op)
      pending.extend(tensor.op for tensor in op.inputs)
  return [op for op in output.graph.get_operations() if op in needed]


def _num_bytes(tensor, batch_size):
  if tensor.shape.rank is None or tensor.dtype == tf.resource:
    return 0
  return math.prod(batch_size if side is None else side for side in tensor.shape.as_list()) * tensor.dtype.size


def _memory_bytes(session):
  """Memory that a session has: that of its first GPU, else of the machine."""
  gpus = [device.memory_limit_bytes for device in session.list_devices() if device.device_type == 'GPU']
  return gpus[0] if gpus else os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')


def _advice(program):
  return (f'Give --{program}_tile_size=513,513, which predicts in tiles, or a smaller --{program}_batch_size; or run on the CPU, '
          'where memory is larger: CUDA_VISIBLE_DEVICES= in front of the command.')


def _batch_text(batch_size, tile_size):
  return f'{batch_size} image{"s" * (batch_size > 1)} of {tile_size[0]}x{tile_size[1]} pixels'


def report_memory(session, output, program, batch_size, tile_size):
  """Logs how much memory a batch takes, with a warning where there is less.

  Args:
    session: session on the graph of `output`.
    output: the tensor that is computed.
    program: 'eval' or 'vis', with which the flags begin.
    batch_size: images per batch.
    tile_size: (height, width) of the network input in pixels.
  """
  needed, available = peak_bytes(output, batch_size), _memory_bytes(session)
  logging.info('%s take%s about %d MB of memory.', _batch_text(batch_size, tile_size), 's' * (batch_size == 1), needed // 2**20)
  if needed > available:
    logging.warning('That is more than the %d MB there are. %s', available // 2**20, _advice(program))


@contextlib.contextmanager
def explained(program, source, batch_size, crop_size, tile_size):
  """Context in which images are predicted; what TensorFlow refuses is told by the flags to change.

  Args:
    program: 'eval' or 'vis', with which the flags begin.
    source: text, the flags that name the images.
    batch_size: images per batch.
    crop_size: [height, width] into which images are padded.
    tile_size: [height, width] of the network input.

  Raises:
    InputError: an image or its label cannot be used, or memory ran out.
  """
  try:
    yield
  except tf.errors.InvalidArgumentError as error:
    if 'assertion failed' not in error.message:
      raise
    raise InputError(f'{errors.explain(error)} ({source} with --{program}_crop_size={",".join(map(str, crop_size))}; '
                     f'auto takes the size of the largest image)') from error
  except tf.errors.ResourceExhaustedError as error:
    raise InputError(f'Not enough memory for {_batch_text(batch_size, tile_size)}. {_advice(program)}') from error
