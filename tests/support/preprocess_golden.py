"""Cases of testdata/preprocess.json: what the earlier code made of given images."""

import golden
import numpy as np


def golden_cases(function):
  """(case, image, label) for the cases of a function; the images of all cases are drawn in order from one generator."""
  random = np.random.RandomState(0)
  cases = []
  for case in golden.load('preprocess.json'):
    height, width = case['image_size']
    image = random.randint(0, 256, [height, width, 3]).astype(np.uint8)
    label = random.randint(0, 21, [height, width, 1]).astype(np.uint8)
    if case['function'] == function:
      cases.append((case, image, label))
  assert cases
  return cases


def assert_golden(actual, expected, is_label):
  """Compares shape, mean and every fourth of 128 samples."""
  assert list(actual.shape) == expected['shape']
  tolerance = 0 if is_label else 1e-3
  samples = np.linspace(0, actual.size - 1, 128).astype(np.int64)[::4]
  np.testing.assert_allclose(actual.reshape(-1)[samples], expected['values'], rtol=0, atol=tolerance)
  np.testing.assert_allclose(actual.mean(dtype=np.float64), expected['mean'], rtol=0, atol=1e-3)
