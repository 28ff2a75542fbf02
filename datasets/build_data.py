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

from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf
from deeplab.datasets import dataset_info, image_files, tfexample

# Of the order of the records: neighbours in a file are no neighbours in the data set, and the same input gives the same files.
_SHUFFLE_SEED = 0
# Items that parallel_map hands out at a time, per worker; bounds the memory.
_ITEMS_PER_WORKER = 8
# Images between two signs of progress.
_PROGRESS_STEP = 50
# Names listed in one message.
_MAX_LISTED = 8


class Pair(NamedTuple):
  """An image and its label.

  Attributes:
    name: under which reports speak of it, and which the record keeps.
    image: path, or an object with `read_bytes()` that str() names.
    label: path; None for an image without label; or a label to be made, an object whose `read(ImageFile or None)` gives a
      LabelFile and that str() names.
  """
  name: str
  image: object
  label: object


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
  flags.DEFINE_string('color_table', None, 'Text file for labels in colour; each line is "value red green blue".')


def find_file(folder_files, folder, name, extensions, preferred=None):
  """Path of the file `name` in a folder.

  Args:
    folder_files: what image_files.list_folder gave for `folder`.
    folder: path.
    name: without extension.
    extensions: those that count.
    preferred: extension to take where there are several, or None.

  Returns:
    Path; where there is no file, one with all extensions, which the error of reading it shows.

  Raises:
    ValueError: there are several files and `preferred` is none of theirs.
  """
  paths = folder_files.get(name, [])
  chosen = [path for path in paths if preferred and path.lower().endswith('.' + preferred)] or paths
  if len(chosen) > 1:
    raise InputError(f'{name} stands for several files: {", ".join(chosen)}; remove all but one, or choose by --image_format.')
  return chosen[0] if chosen else os.path.join(folder, f'{name}.{{{",".join(extensions)}}}')


def read_split_lists(list_folder):
  """Splits as text files with one name per line.

  Args:
    list_folder: folder; each `<split>.txt` in it is a split.

  Returns:
    Dict, split -> list of names in the order of the file.

  Raises:
    ValueError: there is no list, or one is empty or repeats a name.
  """
  paths = image_files.list_folder(list_folder, ('txt',))
  if not paths:
    raise InputError(f'There is no *.txt in {list_folder}; each <split>.txt there holds the names of the images of a split.')
  splits = {}
  for split, (path, *_) in paths.items():
    with open(path, 'rb') as list_file:
      lines = [os.fsdecode(line.strip()) for line in list_file.read().removeprefix(b'\xef\xbb\xbf').splitlines()]
    names = [line for line in lines if line]
    if not names:
      raise InputError(f'{path} is empty; it holds one name per line, without extension.')
    repeated = [name for name, count in collections.Counter(names).items() if count > 1]
    if repeated:
      raise InputError(f'{path} names {_listed(repeated)} more than once.')
    splits[split] = names
  return splits


def pairs_of_lists(list_folder, image_folder, label_folder, image_format=None):
  """Pairs of a data set in the layout of PASCAL VOC.

  Args:
    list_folder: folder of `<split>.txt`.
    image_folder: folder of `<name>.jpg`, `.jpeg` or `.png`.
    label_folder: folder of `<name>.png`; a split of tests needs none.
    image_format: extension to take where a name has several, or None.

  Returns:
    Dict, split -> list of Pair.

  Raises:
    ValueError: a folder is missing or a list is wrong.
  """
  splits = read_split_lists(list_folder)
  images = image_files.list_folder(image_folder, image_files.IMAGE_EXTENSIONS)
  labels = image_files.list_folder(label_folder, image_files.LABEL_EXTENSIONS)
  pairs = {}
  for split, names in splits.items():
    pairs[split] = [
        Pair(name, find_file(images, image_folder, name, image_files.IMAGE_EXTENSIONS, image_format),
             find_file(labels, label_folder, name, image_files.LABEL_EXTENSIONS)
             if name in labels or split not in dataset_info.TEST_SPLITS else None)
        for name in names]
  return pairs


def pairs_of_folders(image_folder, label_folder, image_format=None):
  """Every image of a folder with the label of the same name.

  Args:
    image_folder: folder of `<name>.jpg`, `.jpeg` or `.png`.
    label_folder: folder of `<name>.png`.
    image_format: extension to take where a name has several, or None.

  Returns:
    List of Pair in the order of the names.

  Raises:
    ValueError: a folder is missing, or has no image.
  """
  images = image_files.list_folder(image_folder, image_files.IMAGE_EXTENSIONS)
  if not images:
    raise InputError(f'There is no image ({", ".join(image_files.IMAGE_EXTENSIONS)}) in {image_folder}.')
  labels = image_files.list_folder(label_folder, image_files.LABEL_EXTENSIONS)
  return [Pair(name, find_file(images, image_folder, name, image_files.IMAGE_EXTENSIONS, image_format),
               find_file(labels, label_folder, name, image_files.LABEL_EXTENSIONS))
          for name in images]


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


def build(splits, descriptor, output_dir, num_shards, skip_broken=False, color_table=None):
  """Writes the records of all splits, and dataset.json beside them.

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
  counts = np.zeros(256, np.int64)
  problems = []
  try:
    for split, pairs in splits.items():
      counts += _write_split(writers[split], pairs, descriptor, color_table, problems)
    # Sorted by file; an image of several splits has told its problem several times.
    problems = sorted(set(problems))
    if problems and not skip_broken:
      raise InputError(f'{len(problems)} problems, so that nothing is written (--skip_broken leaves such pairs out):\n  '
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
  _report(descriptor, sizes, counts, problems)
  return descriptor


def _splits_to_keep(splits, descriptor, output_dir):
  """Sizes of the other splits that lie in the folder from before; they must be of the same data set."""
  earlier = dataset_info.read_description(os.path.join(output_dir, dataset_info.DESCRIPTION_FILE))
  kept = {split: size for split, size in earlier.splits_to_sizes.items() if split not in splits} if earlier else {}
  if kept and (earlier.name, earlier.num_classes, earlier.ignore_label) != (
      descriptor.name, descriptor.num_classes, descriptor.ignore_label):
    raise InputError(f'{output_dir} holds the splits {_listed(list(kept))} of data set {earlier.name!r} ({earlier.num_classes} '
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


def _write_split(writer, pairs, descriptor, color_table, problems):
  """Writes the pairs that are in order and appends the problems of the others; number of pixels of each value."""
  pairs = list(pairs)
  random.Random(_SHUFFLE_SEED).shuffle(pairs)
  counts = np.zeros(256, np.int64)
  for done, (record, label_counts, pair_problems) in enumerate(
      parallel_map(functools.partial(_convert, descriptor=descriptor, color_table=color_table), pairs), 1):
    problems.extend(pair_problems)
    if record is not None:
      writer.write(record)
      counts += label_counts
    if done % _PROGRESS_STEP == 0 or done == len(pairs):
      print(f'\r{writer.split}: {done} of {len(pairs)} images', end='\n' if done == len(pairs) else '', flush=True)
  return counts


def _convert(pair, descriptor, color_table):
  """(serialized record or None, pixels of each value, problems) of a pair."""
  problems = []
  image = _read_or_note(image_files.read_image, (pair.image,), problems)
  label = None
  if pair.label is not None:
    label = _read_or_note(_read_label, (pair.label, image, color_table), problems)
  if label is not None:
    if image is not None and (image.height, image.width) != (label.height, label.width):
      problems.append(f'{pair.image} is {image.height}x{image.width} (height x width), but its label {pair.label} is '
                      f'{label.height}x{label.width}.')
    wrong = dataset_info.describe_wrong_values(label.counts, descriptor)
    if wrong:
      problems.append(f'{pair.label} {wrong}')
  for warning in (image.warnings if image else []) + (label.warnings if label else []):
    logging.warning('%s', warning)
  if problems:
    return None, None, problems
  example = tfexample.image_seg_to_tfexample(image.data, pair.name, image.height, image.width, label and label.data, image.format)
  return example.SerializeToString(), label.counts if label else 0, []


def _read_label(label, image, color_table):
  return label.read(image) if hasattr(label, 'read') else image_files.read_label(label, color_table)


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


def _listed(names):
  more = f' and {len(names) - _MAX_LISTED} more' if len(names) > _MAX_LISTED else ''
  return ', '.join(map(repr, names[:_MAX_LISTED])) + more
