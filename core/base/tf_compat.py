"""The one place that imports TensorFlow and TF-Slim.

`tf` is `tensorflow.compat.v1` in graph mode, `slim` is TF-Slim on the same TensorFlow. Every other module imports both names
from here, so that no module can build a graph before graph mode is set.
"""

import importlib
import os
import sys
import warnings

from deeplab.core.base import quiet_start

# Read once, when TensorFlow is imported: tf.layers, on which TF-Slim builds, exists only in the Keras 2 of the tf-keras package.
os.environ.setdefault('TF_USE_LEGACY_KERAS', '1')
quiet_start.set_level()
# TensorFlow itself uses the oneDNN kernels only on CPUs of the last years; they are faster on all that have AVX2, too.
os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '1')


def _import_tensorflow():
  try:
    import tensorflow.compat.v1 as tensorflow_v1  # pylint: disable=g-import-not-at-top
  except ImportError as error:
    raise ImportError(f'DeepLab needs TensorFlow 2.16 to 2.21, which could not be imported ({error}). '
                      'Install it with: pip install deeplab-slim') from error
  version = tuple(int(part) for part in tensorflow_v1.__version__.split('.')[:2])
  if version < (2, 16):
    raise ImportError(f'DeepLab needs TensorFlow 2.16 to 2.21, found {tensorflow_v1.__version__}.')
  # TF1 interfaces are what this project is about; TensorFlow would warn of each at every start.
  tensorflow_v1.logging.set_verbosity(tensorflow_v1.logging.ERROR)
  warnings.filterwarnings('ignore', message='.*layer.apply. is deprecated')
  tensorflow_v1.disable_v2_behavior()
  # Reads of resource variables are ordered by the graph, which XLA and parameter servers rely on; checkpoints are the same.
  tensorflow_v1.enable_resource_variables()
  return tensorflow_v1


def _import_slim():
  """Imports TF-Slim after making tf.layers loadable.

  TensorFlow looks for tf.layers in `tf_keras.legacy_tf_layers`, but tf-keras keeps it under `tf_keras.src`.
  """
  for name in ('', '.base', '.convolutional', '.core', '.normalization', '.pooling', '.variable_scope_shim'):
    sys.modules.setdefault('tf_keras.legacy_tf_layers' + name,
                           importlib.import_module('tf_keras.src.legacy_tf_layers' + name))
  return importlib.import_module('tf_slim')


with quiet_start.filtered():
  tf = _import_tensorflow()
  slim = _import_slim()
