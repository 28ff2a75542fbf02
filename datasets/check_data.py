"""Checks the records of a data set before anything is trained on them.

    python -m deeplab.datasets.check_data --dataset_dir=tfrecord

Reads every record with the reader of training and reports, split by split: damaged files, pictures that do not decode, sizes that
disagree, label values that are no classes, images that do not fit an evaluation crop, and in which share each class occurs.
Some of the images with their labels are drawn into preview.png beside the records.
"""

import collections
import functools
import itertools
from typing import NamedTuple

import numpy as np
from absl import flags, logging

from deeplab import common
from deeplab.core.base import errors
from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf
from deeplab.datasets import build_data, dataset_info, preview, tfexample

FLAGS = flags.FLAGS

# Problems of one split that are listed.
_MAX_LISTED = 50
# Names listed in a warning.
_MAX_NAMES = 8
# Crops of a multiple of this number, plus 1, keep corners on corners at output stride 16.
_ALIGNMENT = 16


class Report(NamedTuple):
  """What a check found.

  Attributes:
    split: name of the split.
    num_images: records read.
    max_size: (height, width), the largest of each over all images, pixels.
    counts: int64 [256], number of pixels of each label value.
    problems: list of texts; training would fail, or learn what is wrong.
    warnings: list of texts.
  """
  split: str
  num_images: int
  max_size: tuple[int, int]
  counts: np.ndarray
  problems: list[str]
  warnings: list[str]


class _Inspected(NamedTuple):
  """What one record holds."""
  name: str
  size: tuple[int, int]
  counts: np.ndarray
  problems: list[str]


def check(descriptor, dataset_dir, split, crop_size=None, max_images=None):
  """Reads a split and tells what is wrong with it.

  Args:
    descriptor: DatasetDescriptor.
    dataset_dir: folder of the records.
    split: name of the split.
    crop_size: (height, width) of an evaluation crop into which every image must fit, or None.
    max_images: images to read at most, or None for all.

  Returns:
    Report.

  Raises:
    ValueError: the split has no records.
  """
  paths = dataset_info.find_split_files(dataset_dir, split, descriptor.name)
  problems, sizes, counts = [], [], np.zeros(256, np.int64)
  with tf.Graph().as_default(), tfexample.cpu_session() as session:
    inspect = functools.partial(_inspect, decoders=_decoders(session), descriptor=descriptor,
                                needs_label=split not in dataset_info.TEST_SPLITS)
    for inspected in build_data.parallel_map(inspect, itertools.islice(_read_files(paths, problems), max_images)):
      problems += inspected.problems
      sizes.append((inspected.name, inspected.size))
      counts += inspected.counts
  max_size = tuple(max(size[side] for _, size in sizes) for side in (0, 1)) if sizes else (0, 0)
  if crop_size:
    problems += _describe_too_large(sizes, max_size, crop_size)
  is_whole = max_images is None or len(sizes) < max_images
  return Report(split, len(sizes), max_size, counts, problems, _warnings(sizes, counts, descriptor, split, is_whole))


def _read_files(paths, problems):
  """Serialized records of all files; where a file is damaged, its problem is appended and the next one begun."""
  for path in paths:
    try:
      yield from tfexample.read_records(path)
    except InputError as error:
      problems.append(str(error))


def _decoders(session):
  """Functions of bytes: record -> EncodedRecord, image -> its shape, label -> (its shape, number of pixels of each value)."""
  encoded = tf.placeholder(tf.string, [])
  label = tfexample.decode_label(encoded)
  counts = tf.math.bincount(tf.cast(label, tf.int32), minlength=256, maxlength=256)
  fetches = (tfexample.parse_features(encoded), tf.shape(tfexample.decode_image(encoded)), (tf.shape(label), counts))
  return [session.make_callable(fetch, [encoded]) for fetch in fetches]


def _inspect(serialized, decoders, descriptor, needs_label):
  """_Inspected of a serialized record."""
  parse, decode_image, decode_label = decoders
  nothing = np.zeros(256, np.int64)
  try:
    record = parse(serialized)
  except tf.errors.InvalidArgumentError as error:
    return _Inspected('', (0, 0), nothing, [f'A record of {len(serialized)} bytes cannot be parsed: {_first_line(error)}'])
  name = record.name.decode(errors='replace')
  try:
    height, width, _ = decode_image(record.image).tolist()
  except tf.errors.InvalidArgumentError as error:
    return _Inspected(name, (0, 0), nothing, [f'{name}: the image does not decode: {_first_line(error)}'])
  problems = []
  if record.height and record.width and (record.height, record.width) != (height, width):
    problems.append(f'{name}: the record says {record.height}x{record.width} (height x width), the image is {height}x{width}.')
  if not record.label:
    problems += [f'{name} has no label.'] if needs_label else []
    return _Inspected(name, (height, width), nothing, problems)
  try:
    label_shape, counts = decode_label(record.label)
  except tf.errors.InvalidArgumentError as error:
    return _Inspected(name, (height, width), nothing, [*problems, f'{name}: the label does not decode: {_first_line(error)}'])
  if label_shape.tolist() != [height, width, 1]:
    problems.append(f'{name}: the image is {height}x{width} (height x width), the label {label_shape[0]}x{label_shape[1]}.')
  wrong = dataset_info.describe_wrong_values(counts, descriptor)
  return _Inspected(name, (height, width), counts, [*problems, f'{name} {wrong}'] if wrong else problems)


def _first_line(error):
  return errors.explain(error)


def _describe_too_large(sizes, max_size, crop_size):
  """A problem, if images are larger than the crop."""
  large = [f'{name} ({size[0]}x{size[1]})' for name, size in sizes if size[0] > crop_size[0] or size[1] > crop_size[1]]
  if not large:
    return []
  height, width = (-(-(side - 1) // _ALIGNMENT) * _ALIGNMENT + 1 for side in max_size)
  listed = ', '.join(large[:_MAX_NAMES]) + (', ...' if len(large) > _MAX_NAMES else '')
  return [f'{len(large)} images are larger than the crop of {crop_size[0]}x{crop_size[1]}: {listed}. '
          f'--eval_crop_size={height},{width} takes all.']


def _warnings(sizes, counts, descriptor, split, is_whole):
  """What is suspicious in a split; a part of it says nothing about its size or the classes that it lacks."""
  warnings = [f'The name {name} stands for {count} records.'
              for name, count in collections.Counter(name for name, _ in sizes).items() if count > 1]
  declared = descriptor.splits_to_sizes.get(split, len(sizes))
  if is_whole and declared != len(sizes):
    warnings.append(f'Split {split!r} of data set {descriptor.name!r} should have {declared} images; its files hold '
                    f'{len(sizes)}.')
  if is_whole and counts.any():
    warnings += dataset_info.warnings_of_counts(counts, descriptor)
  return warnings


def require(report):
  """Logs the warnings of a check and stops at its problems.

  Args:
    report: Report.

  Raises:
    ValueError: there are problems; the first of them are listed.
  """
  for warning in report.warnings:
    logging.warning('%s', warning)
  if report.problems:
    more = len(report.problems) - _MAX_LISTED
    raise InputError('\n  '.join([f'Split {report.split!r}: {len(report.problems)} problems:', *report.problems[:_MAX_LISTED]])
                     + (f'\n  and {more} more.' if more > 0 else ''))


def format_report(report, descriptor):
  """The report as text: a table of the classes, then warnings and problems."""
  lines = [f'Split {report.split!r}: {report.num_images} images, the largest {report.max_size[0]}x{report.max_size[1]} (height x '
           'width).']
  total = max(report.counts.sum(), 1)
  for value in range(256):
    is_class = value < descriptor.num_classes
    name = 'ignored' if value == descriptor.ignore_label else descriptor.class_names[value] if is_class else 'NO CLASS'
    if is_class or report.counts[value]:
      lines.append(f'  {value:3d}  {name:<24} {100 * report.counts[value] / total:8.3f} %')
  lines += [f'Warning: {warning}' for warning in report.warnings] + [f'Problem: {problem}' for problem in report.problems]
  return '\n'.join(lines)


def main(unused_argv):
  descriptor = dataset_info.get_descriptor(FLAGS.dataset, FLAGS.dataset_dir)
  splits = FLAGS.splits or dataset_info.list_splits(FLAGS.dataset_dir)
  crop_size = common.parse_size(FLAGS.eval_crop_size, 'eval_crop_size') if FLAGS.eval_crop_size else None
  num_problems, counts = 0, np.zeros(256, np.int64)
  for split in splits:
    report = check(descriptor, FLAGS.dataset_dir, split, crop_size)
    print(format_report(report, descriptor))
    num_problems += len(report.problems)
    counts += report.counts
  preview.write(FLAGS.dataset_dir, descriptor, splits, counts)
  if num_problems:
    raise InputError(f'{FLAGS.dataset_dir}: {num_problems} problems, listed above.')
  print(f'{FLAGS.dataset_dir}: {descriptor.name} with {descriptor.num_classes} classes is in order.')


def _define_flags():
  flags.DEFINE_string('dataset', dataset_info.DEFAULT_DATASET, 'Name of the data set.')
  flags.DEFINE_string('dataset_dir', None, 'Folder of the records.')
  flags.DEFINE_list('splits', None, 'Splits to check, comma separated; unset: all that the folder holds.')
  common.define_numbers('eval_crop_size', None, 'height,width into which every image must fit; unset: not looked at.')


if __name__ == '__main__':
  _define_flags()
  common.run_program(main, required_flags=['dataset_dir'])
