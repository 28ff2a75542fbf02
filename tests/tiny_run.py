"""A data set of a few small pictures, and programs run on it inside the process of the tests."""

import io
import logging
import os
import subprocess
import sys

import numpy as np
from absl.testing import flagsaver
from PIL import Image

from deeplab.core.tf_compat import tf
from deeplab.datasets import dataset_info, tfexample

CLASS_NAMES = ['none', 'disc', 'star']
# The smallest network and crop that train like the large ones.
FLAGS = ('--model_variant=mobilenet_v2', '--depth_multiplier=0.35', '--output_stride=16', '--train_crop_size=33,33',
         '--train_batch_size=2', '--fine_tune_batch_norm=false', '--log_steps=1', '--seed=1')
# What makes two runs see the same numbers: no augmentation but the mirror, which the seed decides.
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def _encoded(array, kind):
  encoded = io.BytesIO()
  Image.fromarray(array).save(encoded, kind)
  return encoded.getvalue()


def write_records(folder, num_images=4, num_classes=3, split='train', label=None):
  """Writes `split` and dataset.json to `folder`; returns the folder as text.

  Args:
    folder: pathlib.Path, made if it is not there.
    num_images: images of 40x36 pixels (height x width).
    num_classes: classes that dataset.json declares.
    split: name of the split.
    label: uint8 [40, 36] of every image; unset: noise of the first two classes and 255.
  """
  folder.mkdir(exist_ok=True)
  random = np.random.RandomState(0)
  with tf.io.TFRecordWriter(str(folder / f'{split}-00000-of-00001.tfrecord')) as writer:
    for index in range(num_images):
      image = random.randint(0, 256, [40, 36, 3]).astype(np.uint8)
      values = random.choice([0, 1, 255], [40, 36], p=[0.6, 0.3, 0.1]).astype(np.uint8) if label is None else label
      example = tfexample.image_seg_to_tfexample(_encoded(image, 'jpeg'), f'picture{index}', 40, 36, _encoded(values, 'png'), 'png')
      writer.write(example.SerializeToString())
  names = (CLASS_NAMES + [f'class_{index}' for index in range(3, num_classes)])[:num_classes]
  dataset_info.write_description(dataset_info.describe('shapes', num_classes, class_names=names), str(folder / 'dataset.json'))
  return str(folder)


class _Collector(logging.Handler):

  def __init__(self):
    super().__init__()
    self.lines = []

  def emit(self, record):
    self.lines.append(f'{record.levelname} {record.getMessage()}')


def run(program, *arguments):
  """Runs `program.run()` with a command line; (exit code, text of the log)."""
  collector, argv = _Collector(), sys.argv
  logger = logging.getLogger('absl')
  logger.addHandler(collector)
  sys.argv = [program.__name__, *arguments]
  try:
    with flagsaver.flagsaver():
      program.run()
  except SystemExit as end:
    return end.code, '\n'.join(collector.lines)
  finally:
    sys.argv = argv
    logger.removeHandler(collector)
  raise AssertionError('The program did not exit.')


def start_process(*arguments):
  """A real process of train.py; its output is one text."""
  environment = {**os.environ, 'CUDA_VISIBLE_DEVICES': '', 'PYTHONUNBUFFERED': '1'}
  return subprocess.Popen([sys.executable, os.path.join(_ROOT, 'train.py'), *arguments], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, env=environment)
