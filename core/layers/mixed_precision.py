"""Networks computed in a 16-bit type, with float32 weights (arXiv:1710.03740).

What TF-Slim's layers ask for in the type of their inputs is stored as float32 and cast where it is used. Batch norm asks for
float32 by itself: its scale, offset and statistics stay so.
"""

import functools
import os

from deeplab.core.base.tf_compat import slim, tf
from deeplab.core.layers import layers

# Lists what the CPU can do, on Linux.
_CPU_INFO = '/proc/cpuinfo'
_TYPES = (tf.bfloat16, tf.float16)


def is_mixed(dtype):
  """Whether a network computed in this dtype needs what is here."""
  return dtype in _TYPES


def cpu_has_bfloat16():
  """Whether this CPU multiplies bfloat16 matrices in hardware; True where that cannot be told."""
  if not os.path.exists(_CPU_INFO):
    return True
  with open(_CPU_INFO, encoding='utf-8') as info:
    return bool({'amx_bf16', 'avx512_bf16', 'bf16'} & set(info.read().split()))


def float32_getter(getter, name, *args, dtype=None, **kwargs):
  """Custom getter of a variable scope: float32 variables, of which 16-bit copies are given."""
  if not is_mixed(dtype):
    return getter(name, *args, dtype=dtype, **kwargs)
  return tf.cast(getter(name, *args, dtype=tf.float32, **kwargs), dtype)


def _normalize_as(inputs, dtype, normalizer_fn, **kwargs):
  return normalizer_fn(tf.cast(inputs, dtype), **kwargs)


def _float32_depthwise_conv2d(inputs, kernel_size, **kwargs):
  """As layers.depthwise_conv2d; what comes after the convolution has the dtype of the inputs."""
  # Some networks give the normaliser to layers.depthwise_conv2d, others to slim.separable_conv2d under it.
  with slim.arg_scope([]) as scope:
    kwargs = {**scope.get(slim.arg_scope_func_key(slim.separable_conv2d), {}), **kwargs}
  normalizer_fn = kwargs.pop('normalizer_fn', None) or tf.identity
  normalizer_fn = functools.partial(_normalize_as, dtype=inputs.dtype, normalizer_fn=normalizer_fn)
  return slim.separable_conv2d(tf.cast(inputs, tf.float32), None, kernel_size, depth_multiplier=1, normalizer_fn=normalizer_fn,
                               **kwargs)


def arg_scope(dtype):
  """Arg scope of a network computed in `dtype`.

  Outside of GPUs the gradients of depthwise convolutions are slower in 16 bits than in 32, so that those stay float32.
  """
  with slim.arg_scope([]) as scope:
    if not is_mixed(dtype) or tf.config.list_physical_devices('GPU'):
      return scope
    with slim.arg_scope([layers.depthwise_conv2d], layer=_float32_depthwise_conv2d) as float32_scope:
      return float32_scope
