"""Weights, inputs and comparisons for figures that the TensorFlow 1.15 code gave.

Every variable is filled from its own name, so that both programs hold the same weights without a checkpoint.
"""

import json
import pathlib
import zlib

import numpy as np

from deeplab.core.base.tf_compat import tf

TESTDATA = pathlib.Path(__file__).parents[1] / 'testdata'


def load(name):
  return json.loads((TESTDATA / name).read_text(encoding='utf-8'))


def weights(name, shape):
  """Value of the variable `name`, float32 of `shape`."""
  random = np.random.RandomState(zlib.crc32(name.encode()) & 0x7FFFFFFF)
  kind = name.rsplit('/', 1)[-1]
  if kind == 'gamma':
    value = 1 + 0.1 * random.standard_normal(shape)
  elif kind in ('beta', 'moving_mean', 'biases'):
    value = 0.1 * random.standard_normal(shape)
  elif kind == 'moving_variance':
    value = 1 + 0.2 * random.random_sample(shape)
  elif kind == 'depthwise_weights':
    value = random.standard_normal(shape) * np.sqrt(2 / (shape[0] * shape[1]))
  else:
    value = random.standard_normal(shape) * np.sqrt(2 / np.prod(shape[:-1]))
  return value.astype(np.float32)


def assign_weights(session, variables):
  """Fills `variables` with their recipe values."""
  session.run([variable.initializer for variable in variables],
              {variable.initializer.inputs[1]: weights(variable.op.name, variable.shape.as_list()) for variable in variables})


def inputs(size, num_classes, batch=4, seed=0):
  """Noise images float32 [batch, height, width, 3] and labels int32 [batch, height, width, 1], 5 % of them 255."""
  random = np.random.RandomState(seed)
  image = random.uniform(0, 255, [batch, *size, 3]).astype(np.float32)
  label = random.randint(0, num_classes, [batch, *size, 1]).astype(np.int32)
  label[random.random_sample(label.shape) < 0.05] = 255
  return image, label


def assert_sample(actual, expected, tolerance):
  """Compares a tensor with a sampled one; `tolerance` is in units of the expected standard deviation."""
  assert list(actual.shape) == expected['shape']
  index = np.linspace(0, actual.size - 1, len(expected['values'])).astype(np.int64)
  bound = tolerance * max(expected['std'], 1e-12)
  np.testing.assert_allclose(actual.reshape(-1)[index], expected['values'], rtol=0, atol=bound)
  np.testing.assert_allclose([actual.mean(), actual.std()], [expected['mean'], expected['std']], rtol=0, atol=bound)


def letters(variable):
  """t = trainable, m = a model variable, r = carries weight decay; r is added by the caller."""
  trainable = 't' if any(variable is v for v in tf.trainable_variables()) else ''
  return trainable + ('m' if any(variable is v for v in tf.get_collection(tf.GraphKeys.MODEL_VARIABLES)) else '')
