"""Writes (image, label) pairs as numbered files of records; every builder ends here.

    splits = {'train': [Pair('a', 'images/a.jpg', 'labels/a.png'), ...], 'val': [...]}
    build_data.build(splits, descriptor, output_dir, num_shards=4)

Either everything is written, or nothing: the records go into hidden files first, which get their names when all is in order.
"""

import collections
import concurrent.futures
import functools
import itertools
import os
import random
import re
from typing import NamedTuple

import numpy as np
from absl import flags, logging

from deeplab.core.base.errors import InputError, listed
from deeplab.core.base.tf_compat import tf
from deeplab.datasets import dataset_info, exif_orientation, image_files, preview, tfexample

# Of the order of the records: neighbours in a file are no neighbours in the data set, and the same input gives the same files.
_SHUFFLE_SEED = 0
# Items that parallel_map hands out at a time, per worker; bounds the memory.
_ITEMS_PER_WORKER = 8
# Images between two signs of progress.
_PROGRESS_STEP = 50


class Pair(NamedTuple):
  """An image and its label.

  Attributes:
    name: under which reports speak of it, and which the record keeps.
    image: path, or an object with `read_bytes()` that str() names.
    label: path; None for an image without label; or a label to be made, an object that str() names. Its `read` gives a LabelFile
      for the (height, width) that the image will have in the record, or None; `has_size`: False where it takes that one.
    problem: why there is nothing to convert, a text that names the file; or None.
  """
  name: str
  image: object
  label: object
  problem: str | None = None


def define_flags(output_dir):
  """Flags of every builder.

  Args:
    output_dir: default of --output_dir.
  """
  flags.DEFINE_string('output_dir', output_dir, 'Folder for the records; made if it is not there.')
  flags.DEFINE_enum('image_format', None, image_files.IMAGE_EXTENSIONS, 'Extension of the images, where a name has several; '
                    'unset: whichever is there. The format that a record keeps is told from the bytes.')
  flags.DEFINE_enum('label_format', 'png', image_files.LABEL_EXTENSIONS, 'Extension of the labels.')
  flags.DEFINE_boolean('skip_broken', False, 'Leave out pairs that have a problem, and list them; else one problem stops the '
                       'conversion.')
  flags.DEFINE_enum('exif_orientation', exif_orientation.AUTO, exif_orientation.CHOICES, 'Whether images are turned upright as '
                    'their EXIF orientation says, because the labels are upright (apply), or not (ignore); auto: as the sizes of '
                    'all labels tell, and turned where they do not.')
  flags.DEFINE_string('color_table', None, 'Text file for labels in colour; each line is "value red green blue".')


def parallel_map(function, items):
  """Results of function(item) in order, computed by one thread per core; Pillow and TensorFlow run outside of Python's lock.

  Args:
    function: callable of one item.
    items: iterable.

  Yields:
    The results, of which few are held at a time.
  """
  workers = os.cpu_count() or 1
  items = iter(items)
  with concurrent.futures.ThreadPoolExecutor(workers) as pool:
    while window := list(itertools.islice(items, workers * _ITEMS_PER_WORKER)):
      yield from pool.map(function, window)


def build(splits, descriptor, output_dir, num_shards, skip_broken=False, color_table=None, orientation=exif_orientation.AUTO):
  """Writes the records of all splits, dataset.json and preview.png beside them.

  Args:
    splits: dict, split -> list of Pair.
    descriptor: DatasetDescriptor that the labels must agree with.
    output_dir: folder; made if it is not there.
    num_shards: files per split; fewer where there are fewer images.
    skip_broken: whether pairs with a problem are left out; else they stop everything.
    color_table: dict (red, green, blue) -> value, for labels in colour.

  Returns:
    The DatasetDescriptor that was written.

  Raises:
    ValueError: pairs have problems (all are listed), a split has no pair, or the folder holds another data set.
  """
  os.makedirs(output_dir, exist_ok=True)
  kept = _splits_to_keep(splits, descriptor, output_dir)
  writers = {split: _ShardWriter(output_dir, split, num_shards) for split in splits}
  conversion = _Conversion(descriptor, color_table)
  try:
    for split, pairs in splits.items():
      conversion.write(writers[split], _shuffled(pairs), orientation)
    conversion.write_postponed(writers)
    # Sorted by file; an image of several splits has told its problem several times.
    problems = sorted(set(conversion.problems))
    if problems and not skip_broken:
      raise InputError(f'{len(problems)} problems, so that nothing is written (--skip_broken leaves such files out):\n  '
                       + '\n  '.join(problems))
    for split, writer in writers.items():
      if not writer.num_records:
        raise InputError('\n  '.join([f'Split {split!r} has no image that could be written.', *problems]))
    sizes = {split: writer.num_records for split, writer in writers.items()}
    descriptor = descriptor._replace(splits_to_sizes={**kept, **sizes})
    for writer in writers.values():
      writer.publish()
    dataset_info.write_description(descriptor, os.path.join(output_dir, dataset_info.DESCRIPTION_FILE))
  finally:
    for writer in writers.values():
      writer.discard()
  _report(descriptor, sizes, conversion.counts, problems)
  preview.write(output_dir, descriptor, list(sizes), conversion.counts)
  return descriptor


def _splits_to_keep(splits, descriptor, output_dir):
  """Sizes of the other splits that lie in the folder from before; they must be of the same data set."""
  earlier = dataset_info.read_description(os.path.join(output_dir, dataset_info.DESCRIPTION_FILE))
  kept = {split: size for split, size in earlier.splits_to_sizes.items() if split not in splits} if earlier else {}
  if kept and (earlier.name, earlier.num_classes, earlier.ignore_label) != (
      descriptor.name, descriptor.num_classes, descriptor.ignore_label):
    raise InputError(f'{output_dir} holds the splits {listed(list(kept))} of data set {earlier.name!r} ({earlier.num_classes} '
                     f'classes, ignored value {earlier.ignore_label}); {descriptor.name!r} ({descriptor.num_classes} classes, '
                     f'ignored value {descriptor.ignore_label}) needs another --output_dir.')
  return kept


class _ShardWriter:
  """Writes the records of a split in turn into hidden files, which get their names at the end."""

  def __init__(self, output_dir, split, num_shards):
    self._output_dir = output_dir
    self.split = split
    self._num_shards = num_shards
    self._files = []
    self.num_records = 0

  def _hidden_path(self, index):
    return os.path.join(self._output_dir, f'.{self.split}-{index:05d}.tmp')

  def write(self, record):
    if len(self._files) < self._num_shards:
      self._files.append(tf.io.TFRecordWriter(self._hidden_path(len(self._files))))
    self._files[self.num_records % self._num_shards].write(record)
    self.num_records += 1

  def publish(self):
    """Puts the files in place of those of an earlier conversion."""
    for record_file in self._files:
      record_file.close()
    earlier = re.compile(re.escape(self.split) + r'-\d{5}-of-\d{5}\.tfrecord')
    for name in filter(earlier.fullmatch, os.listdir(self._output_dir)):
      os.remove(os.path.join(self._output_dir, name))
    for index in range(len(self._files)):
      name = f'{self.split}-{index:05d}-of-{len(self._files):05d}.tfrecord'
      os.rename(self._hidden_path(index), os.path.join(self._output_dir, name))
    self._files = []

  def discard(self):
    """Removes what was not published."""
    for index, record_file in enumerate(self._files):
      record_file.close()
      os.remove(self._hidden_path(index))
    self._files = []


def _shuffled(pairs):
  pairs = list(pairs)
  random.Random(_SHUFFLE_SEED).shuffle(pairs)
  return pairs


class _Conversion:
  """Converts pairs and collects what is found on the way.

  Attributes:
    counts: int64 [256], number of pixels of each value in the labels that were written.
    problems: list of texts.
  """

  def __init__(self, descriptor, color_table):
    self._descriptor = descriptor
    self._color_table = color_table
    self.counts = np.zeros(256, np.int64)
    self.problems = []
    # What the sizes of labels tell of the orientation -> images; and split -> pairs whose sizes tell nothing.
    self._told = {exif_orientation.APPLY: set(), exif_orientation.IGNORE: set()}
    self._postponed = collections.defaultdict(list)

  def write(self, writer, pairs, orientation, kind='images'):
    """Writes the pairs that are in order, but for those that wait for what the sizes of all labels tell.

    Args:
      writer: _ShardWriter.
      pairs: list of Pair.
      orientation: one of exif_orientation.CHOICES.
      kind: what the signs of progress call the pairs.
    """
    convert = functools.partial(_convert, descriptor=self._descriptor, color_table=self._color_table, orientation=orientation)
    for done, (pair, converted) in enumerate(zip(pairs, parallel_map(convert, pairs), strict=True), 1):
      self.problems.extend(converted.problems)
      if converted.told:
        self._told[converted.told].add(str(pair.image))
      if converted.is_postponed:
        self._postponed[writer.split].append(pair)
      elif converted.record is not None:
        writer.write(converted.record)
        self.counts += converted.counts
      if done % _PROGRESS_STEP == 0 or done == len(pairs):
        print(f'\r{writer.split}: {done} of {len(pairs)} {kind}', end='\n' if done == len(pairs) else '', flush=True)

  def write_postponed(self, writers):
    """Writes the turned images whose labels do not tell whether they are upright: as the others tell, else upright.

    Args:
      writers: dict, split -> _ShardWriter.

    Raises:
      InputError: some labels are upright, and some as the stored pixels.
    """
    orientation = exif_orientation.of_data_set(self._told)
    if orientation:
      logging.info('Labels are %s, as the sizes of %d images with EXIF orientation tell.',
                   'upright' if orientation == exif_orientation.APPLY else 'as the stored pixels', len(self._told[orientation]))
    elif self._postponed:
      images = [str(pair.image) for pairs in self._postponed.values() for pair in pairs]
      logging.warning('%d images are turned upright by their EXIF orientation, though no size tells whether their labels are '
                      '(%s). Look at some; --exif_orientation=ignore takes them as stored.', len(images), listed(images))
    for split, pairs in self._postponed.items():
      self.write(writers[split], pairs, orientation or exif_orientation.APPLY, 'images with EXIF orientation')


class _Converted(NamedTuple):
  """What became of a pair.

  Attributes:
    record: serialized record, or None.
    counts: int64 [256] or 0, number of pixels of each value of the label.
    problems: list of texts, why there is no record.
    told: APPLY or IGNORE of exif_orientation, as the size of the label tells, or None.
    is_postponed: whether other labels must tell whether the image is to be turned.
  """
  record: bytes | None = None
  counts: np.ndarray | int = 0
  problems: list[str] = []
  told: str | None = None
  is_postponed: bool = False


def _convert(pair, descriptor, color_table, orientation=exif_orientation.AUTO):
  """_Converted of a pair; `orientation`: one of exif_orientation.CHOICES."""
  if pair.problem:
    return _Converted(problems=[pair.problem])
  problems = []
  image = _read_or_note(image_files.open_image, (pair.image,), problems)
  upright = orientation != exif_orientation.IGNORE
  is_asked = image is not None and image.header.orientation != 1 and orientation == exif_orientation.AUTO
  if is_asked and not getattr(pair.label, 'has_size', pair.label is not None):
    return _Converted(is_postponed=True)
  label = told = None
  if pair.label is not None:
    label = _read_or_note(_read_label, (pair.label, image and image.header.size(upright), color_table), problems)
  if image is not None and label is not None:
    label_size = label.height, label.width
    if is_asked:
      told = exif_orientation.of_label(image.header, label_size)
      if told is None and label_size == image.header.stored_size:
        return _Converted(is_postponed=True)
      upright = told != exif_orientation.IGNORE
    problems += _describe_sizes(pair, image.header, upright, label_size)
  if image is not None:
    image = _read_or_note(image.read, (upright,), problems)
  wrong = label and dataset_info.describe_wrong_values(label.counts, descriptor)
  if wrong:
    problems.append(f'{pair.label} {wrong}')
  for warning in (image.warnings if image else []) + (label.warnings if label else []):
    logging.warning('%s', warning)
  if problems:
    return _Converted(problems=problems, told=told)
  example = tfexample.image_seg_to_tfexample(image.data, pair.name, image.height, image.width, label and label.data, image.format)
  return _Converted(example.SerializeToString(), label.counts if label else 0, told=told)


def _describe_sizes(pair, header, upright, label_size):
  """List of what is wrong with the sizes of an image and its label."""
  size = header.size(upright)
  if size == label_size:
    return []
  turned = ''
  if header.upright_size != header.stored_size:
    turned = ' turned upright by its EXIF orientation' if upright else ' as it is stored, against its EXIF orientation'
  return [f'{pair.image} is {size[0]}x{size[1]} (height x width){turned}, but its label {pair.label} is '
          f'{label_size[0]}x{label_size[1]}.']


def _read_label(label, size, color_table):
  return label.read(size) if hasattr(label, 'read') else image_files.read_label(label, color_table)


def _read_or_note(read, arguments, problems):
  try:
    return read(*arguments)
  except InputError as error:
    problems.append(str(error))
    return None


def _report(descriptor, sizes, counts, problems):
  if problems:
    print(f'{len(problems)} problems; these pairs were left out:\n  ' + '\n  '.join(problems))
  for warning in dataset_info.warnings_of_counts(counts, descriptor):
    logging.warning('%s', warning)
  written = ', '.join(f'{size} images in split {split!r}' for split, size in sizes.items())
  print(f'{descriptor.name}: {written}, {descriptor.num_classes} classes, ignored value {descriptor.ignore_label}.')
