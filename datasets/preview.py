"""preview.png beside dataset.json: some images of a data set with their labels, to be looked at before training."""

import contextlib
import io
import itertools
import os
from typing import NamedTuple

import numpy as np
from absl import logging
from google.protobuf.message import DecodeError
from PIL import Image

from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf
from deeplab.core.report import contact_sheet, visualization
from deeplab.datasets import dataset_info, tfexample

PREVIEW_FILE = 'preview.png'

# Records of all splits among which those are chosen that show the most classes.
_CANDIDATES = 64
# Images are decoded for tiles; of a JPEG file this many pixels a side are enough.
_ENOUGH = 720
# What Pillow and the parser of records raise for damaged data.
_DECODE_ERRORS = (OSError, SyntaxError, ValueError, KeyError, DecodeError, Image.DecompressionBombError)


def write(dataset_dir, descriptor, splits, counts):
  """Draws preview.png; where that cannot be done, a warning says why.

  Args:
    dataset_dir: folder of the records.
    descriptor: DatasetDescriptor.
    splits: names of the splits to show.
    counts: int [256], number of pixels of each label value in these splits.
  """
  path = os.path.join(dataset_dir, PREVIEW_FILE)
  try:
    samples = choose(_candidates(dataset_dir, descriptor, splits))
    sizes = ', '.join(f'{descriptor.splits_to_sizes.get(split, "?")} images in {split!r}' for split in splits)
    sheet = contact_sheet.draw(f'{descriptor.name}: {sizes}', list(map(_labelled_image, samples)), descriptor, counts)
    visualization.save_png(sheet, path)
  except (InputError, *_DECODE_ERRORS, tf.errors.OpError) as error:
    logging.warning('%s is not drawn: %s', path, error)
  else:
    print(f'Look at {path}: do the labels fit the images, and the names the colours?')


class _Sample(NamedTuple):
  """A record that may be shown."""
  split: str
  record: tfexample.EncodedRecord
  values: frozenset[int]


def _candidates(dataset_dir, descriptor, splits):
  """The first records of each split that can be decoded, list of _Sample."""
  samples = []
  for split in splits:
    with contextlib.closing(_read_split(dataset_dir, descriptor, split)) as reader:
      samples += itertools.islice(reader, max(_CANDIDATES // len(splits), 1))
  return samples


def _read_split(dataset_dir, descriptor, split):
  for path in dataset_info.find_split_files(dataset_dir, split, descriptor.name):
    # What is damaged is for check_data to tell.
    with contextlib.suppress(InputError):
      for serialized in tfexample.read_records(path):
        with contextlib.suppress(*_DECODE_ERRORS):
          record = tfexample.unpack(serialized)
          with Image.open(io.BytesIO(record.image)):
            yield _Sample(split, record, frozenset(np.unique(_decode_label(record)).tolist() if record.label else ()))


def choose(samples, number=contact_sheet.MAX_PAIRS):
  """The samples that show the most: in turn the one with the most values that none before it has, the first of equals.

  Args:
    samples: list of objects with a set `values`.
    number: of those to choose.

  Returns:
    List of samples in the order of `samples`.
  """
  left, chosen, shown = list(range(len(samples))), [], set()
  while left and len(chosen) < number:
    best = max(left, key=lambda index: (len(samples[index].values - shown), -index))
    left.remove(best)
    chosen.append(best)
    shown |= samples[best].values
  return [samples[index] for index in sorted(chosen)]


def _labelled_image(sample):
  with Image.open(io.BytesIO(sample.record.image)) as picture:
    # A JPEG file may be decoded at a part of its size, which is much faster.
    picture.draft('RGB', (_ENOUGH, _ENOUGH))
    image = np.asarray(picture.convert('RGB'))
  caption = f'{sample.split}: {os.fsdecode(sample.record.name)}'
  return contact_sheet.LabelledImage(caption, image, _decode_label(sample.record) if sample.record.label else None)


def _decode_label(record):
  with Image.open(io.BytesIO(record.label)) as picture:
    return np.asarray(picture.convert('L'))
