"""A data set of a few small pictures, a network of five layers, and programs run on them inside the process of the tests.

`python tests/tiny_run.py FLAGS` is train.py with that network.
"""

import io
import logging
import os
import re
import subprocess
import sys
from unittest import mock

import numpy as np
from absl.testing import flagsaver
from PIL import Image

from deeplab import train
from deeplab.core.base.tf_compat import tf
from deeplab.core.networks import feature_extractor
from deeplab.core.networks.backbone import UNIT_RANGE, Backbone
from deeplab.core.networks.mobilenet import mobilenet, mobilenet_v2
from deeplab.datasets import dataset_info, tfexample

CLASS_NAMES = ['none', 'disc', 'star']
# (height, width) of the pictures.
SIZE = (40, 36)
FLAGS = ('--model_variant=tiny', '--output_stride=16', '--train_crop_size=33,33', '--train_batch_size=2',
         '--aspp_convs_filters=8', '--fine_tune_batch_norm=false', '--log_steps=1', '--seed=1', '--training_number_of_steps=2')


def _tiny(images, options, training):
  """The first blocks of MobileNetV2 that halve the resolution."""
  rows = [row for row in mobilenet_v2.ROWS if row.stride == 2][:4]
  return mobilenet.mobilenet(images, 'Tiny', rows, options._replace(depth_multiplier=0.25), training)


def with_tiny_network():
  """Context in which --model_variant=tiny is known."""
  row = Backbone(_tiny, 'Tiny', UNIT_RANGE, {4: 'layer_2/output'})
  return mock.patch.dict(feature_extractor.BACKBONES, tiny=row)


def encode(array, kind='png'):
  encoded = io.BytesIO()
  Image.fromarray(array).save(encoded, kind)
  return encoded.getvalue()


def noise_image(random):
  return random.randint(0, 256, [*SIZE, 3]).astype(np.uint8)


def noise_label(random):
  return random.choice([0, 1, 255], SIZE, p=[0.6, 0.3, 0.1]).astype(np.uint8)


def symmetric_samples(count):
  """Pictures as large as the crop that the random mirror leaves alone, of two classes, without ignored pixels."""
  random = np.random.RandomState(1)
  halves = [random.randint(0, 256, [33, 17, 3], np.uint8) for _ in range(count)]
  images = [np.concatenate([half, half[:, -2::-1]], axis=1) for half in halves]
  return [(image, np.full([33, 33], index % 3 // 2, np.uint8)) for index, image in enumerate(images)]


def write_records(folder, samples=4, num_classes=3, split='train'):
  """Writes `<split>-00000-of-00001.tfrecord` and dataset.json.

  Args:
    folder: pathlib.Path, made if it is not there.
    samples: list of (image uint8 [h, w, 3], label uint8 [h, w]), or the number of noise pictures.
    num_classes: classes that dataset.json declares.
    split: name of the split.

  Returns:
    The folder as text.
  """
  folder.mkdir(exist_ok=True)
  random = np.random.RandomState(0)
  if isinstance(samples, int):
    samples = [(noise_image(random), noise_label(random)) for _ in range(samples)]
  with tf.io.TFRecordWriter(str(folder / f'{split}-00000-of-00001.tfrecord')) as writer:
    for index, (image, label) in enumerate(samples):
      example = tfexample.image_seg_to_tfexample(encode(image), f'picture{index}', *label.shape, encode(label), 'png')
      writer.write(example.SerializeToString())
  names = (CLASS_NAMES + [f'class_{index}' for index in range(3, num_classes)])[:num_classes]
  dataset_info.write_description(dataset_info.describe('shapes', num_classes, class_names=names), str(folder / 'dataset.json'))
  return str(folder)


def losses(log):
  """The losses in the lines of progress of a training run."""
  return [float(loss) for loss in re.findall(r'loss (\d+\.\d+)', log)]


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
  sys.argv = [program.__name__, *map(str, arguments)]
  try:
    with flagsaver.flagsaver(), with_tiny_network():
      program.run()
  except SystemExit as end:
    return end.code, '\n'.join(collector.lines)
  finally:
    sys.argv = argv
    logger.removeHandler(collector)
  raise AssertionError('The program did not exit.')


def start_process(*arguments):
  """A process of train.py with the tiny network; its output is one text."""
  return subprocess.Popen([sys.executable, __file__, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, env={**os.environ, 'CUDA_VISIBLE_DEVICES': ''})


if __name__ == '__main__':
  with with_tiny_network():
    train.run()
