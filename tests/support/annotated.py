"""Exports of labelling tools, small, and what build_own_data makes of them."""

import io
import pathlib

import numpy as np
import program_flags
from PIL import Image

from deeplab.core.base.tf_compat import tf
from deeplab.datasets import build_own_data

HEIGHT, WIDTH = 12, 16


def save_image(path, seed=0, height=HEIGHT, width=WIDTH, **options):
  """Writes noise; the bytes of the file."""
  path.parent.mkdir(parents=True, exist_ok=True)
  pixels = np.random.default_rng(seed).integers(0, 256, [height, width, 3], np.uint8)
  Image.fromarray(pixels).save(path, **options)
  return path.read_bytes()


def rectangle(top, bottom, left, right, value=1, height=HEIGHT, width=WIDTH):
  """Label with `value` in rows top..bottom-1 and columns left..right-1."""
  label = np.zeros([height, width], np.uint8)
  label[top:bottom, left:right] = value
  return label


def save_png(path, pixels, palette=None):
  path.parent.mkdir(parents=True, exist_ok=True)
  picture = Image.fromarray(pixels)
  if palette is not None:
    picture.putpalette(np.uint8(palette).ravel().tolist())
  picture.save(path)


def convert(annotations, output_dir, *flags):
  """Runs build_own_data in this process.

  Args:
    annotations: path.
    output_dir: folder for the records.
    *flags: of the command line.

  Returns:
    Dict, split -> dict, name -> (bytes of the image, label uint8 [height, width] or None).
  """
  with program_flags.defined(build_own_data._define_flags) as values:
    values(['program', f'--annotations={annotations}', f'--output_dir={output_dir}', *flags])
    build_own_data.main([])
  return read_records(output_dir)


def read_records(folder):
  """Like convert, of records that are there."""
  splits = {}
  for path in sorted(pathlib.Path(folder).glob('*-?????-of-?????.tfrecord')):
    for record in tf.io.tf_record_iterator(str(path)):
      features = tf.train.Example.FromString(record).features.feature
      values = {key: (feature.bytes_list.value or feature.int64_list.value)[0] for key, feature in features.items()}
      label = values.get('image/segmentation/class/encoded')
      splits.setdefault(path.name[:-len('-00000-of-00000.tfrecord')], {})[values['image/filename'].decode()] = (
          values['image/encoded'], label and np.asarray(Image.open(io.BytesIO(label))))
  return splits


def merged(splits):
  """Records of all splits by name."""
  return {name: record for records in splits.values() for name, record in records.items()}


def wrote_nothing(folder):
  return not folder.exists() or not any(folder.iterdir())
