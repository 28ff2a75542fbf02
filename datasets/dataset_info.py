"""What the programs know about a data set: one descriptor, from the table below or from `dataset.json` beside the records."""

import difflib
import json
import os
import re

import numpy as np
from absl import logging

from deeplab.core.base import files, stored_format
from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf
from deeplab.core.images import colormap, dataset_descriptor
from deeplab.core.run import run_options
from deeplab.datasets import tfexample

# File that describes the records of its folder.
DESCRIPTION_FILE = 'dataset.json'
# Default of --dataset. It stands for "not chosen" where a folder describes itself.
DEFAULT_DATASET = 'pascal_voc_seg'
# Splits whose images need no labels.
TEST_SPLITS = ('test', 'test_fine')
# Labels are stored with 8 bits.
MAX_CLASSES = 256

_SHARD = re.compile(r'(?P<split>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})(\.tfrecord)?')
# Names that the splits of a data set had in its older records.
_SPLIT_ALIASES = {
    'cityscapes': {'train': 'train_fine', 'train_fine': 'train', 'val': 'val_fine', 'val_fine': 'val', 'test': 'test_fine',
                   'test_fine': 'test'},
}
# Names listed in one message.
_MAX_LISTED = 20


DatasetDescriptor = dataset_descriptor.DatasetDescriptor
describe = dataset_descriptor.describe

_PASCAL_VOC_SEG = describe(
    'pascal_voc_seg', num_classes=21,
    # train_aug: train with the masks of the Semantic Boundaries Dataset.
    splits_to_sizes={'train': 1464, 'train_aug': 10582, 'trainval': 2913, 'val': 1449},
    class_names=['background', 'aeroplane', 'bicycle', 'bird', 'boat', 'bottle', 'bus', 'car', 'cat', 'chair', 'cow',
                 'diningtable', 'dog', 'horse', 'motorbike', 'person', 'pottedplant', 'sheep', 'sofa', 'train', 'tvmonitor'])

_CITYSCAPES = describe(
    'cityscapes', num_classes=19,
    splits_to_sizes={'train_fine': 2975, 'train_coarse': 22973, 'trainval_fine': 3475, 'trainval_coarse': 23473, 'val_fine': 500,
                     'test_fine': 1525},
    class_names=['road', 'sidewalk', 'building', 'wall', 'fence', 'pole', 'traffic light', 'traffic sign', 'vegetation',
                 'terrain', 'sky', 'person', 'rider', 'car', 'truck', 'bus', 'train', 'motorcycle', 'bicycle'],
    colors=colormap.create_label_colormap('cityscapes')[:19].tolist(),
    train_id_to_eval_id=[7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33])

_ADE20K_NAMES = '''other,wall,building,sky,floor,tree,ceiling,road,bed,windowpane,grass,cabinet,sidewalk,person,earth,door,
    table,mountain,plant,curtain,chair,car,water,painting,sofa,shelf,house,sea,mirror,rug,field,armchair,seat,fence,desk,rock,
    wardrobe,lamp,bathtub,railing,cushion,base,box,column,signboard,chest of drawers,counter,sand,sink,skyscraper,fireplace,
    refrigerator,grandstand,path,stairs,runway,case,pool table,pillow,screen door,stairway,river,bridge,bookcase,blind,
    coffee table,toilet,flower,book,hill,bench,countertop,stove,palm,kitchen island,computer,swivel chair,boat,bar,
    arcade machine,hovel,bus,towel,light,truck,tower,chandelier,awning,streetlight,booth,television receiver,airplane,
    dirt track,apparel,pole,land,bannister,escalator,ottoman,bottle,buffet,poster,stage,van,ship,fountain,conveyer belt,
    canopy,washer,plaything,swimming pool,stool,barrel,basket,waterfall,tent,bag,minibike,cradle,oven,ball,food,step,tank,
    trade name,microwave,pot,animal,bicycle,lake,dishwasher,screen,blanket,sculpture,hood,sconce,vase,traffic light,tray,
    ashcan,fan,pier,crt screen,plate,monitor,bulletin board,shower,radiator,glass,clock,flag'''

# Class 0 is "none of the 150" and ignored.
_ADE20K = describe(
    'ade20k', num_classes=151, ignore_label=0, splits_to_sizes={'train': 20210, 'val': 2000},
    class_names=[name.strip() for name in _ADE20K_NAMES.split(',')],
    colors=colormap.create_label_colormap('ade20k').tolist())

_DATASETS_INFORMATION = {descriptor.name: descriptor for descriptor in (_PASCAL_VOC_SEG, _CITYSCAPES, _ADE20K)}


def get_descriptor(dataset_name, dataset_dir=None):
  """The descriptor of a data set.

  Where `dataset_dir` holds a dataset.json, that describes the records, whether or not the name is a known one.

  Args:
    dataset_name: as in --dataset.
    dataset_dir: folder of the records, or None.

  Returns:
    DatasetDescriptor.

  Raises:
    ValueError: the name is neither known nor that of the folder's dataset.json, that file is wrong, or there is no such folder.
  """
  described = read_description(os.path.join(dataset_dir, DESCRIPTION_FILE)) if dataset_dir else None
  if described and dataset_name not in (described.name, DEFAULT_DATASET):
    raise InputError(f'--dataset={dataset_name}: the records in {dataset_dir} belong to data set {described.name!r} (as its '
                     f'{DESCRIPTION_FILE} says); use --dataset={described.name} or another --dataset_dir.')
  if described:
    if described.name != dataset_name:
      logging.info('Data set %r with %d classes, as %s in %s says.', described.name, described.num_classes, DESCRIPTION_FILE,
                   dataset_dir)
    return described
  if dataset_name not in _DATASETS_INFORMATION:
    if dataset_dir:
      _list_folder(dataset_dir)
    raise InputError(f'--dataset={dataset_name}: unknown data set; choose one of {", ".join(sorted(_DATASETS_INFORMATION))}, or '
                     f'put a {DESCRIPTION_FILE} that describes it into --dataset_dir (build_own_data.py writes one).')
  return _DATASETS_INFORMATION[dataset_name]


def name_for_checkpoint(prefix, name, is_given, dataset_dir):
  """Name of the data set whose records a checkpoint is used on: that of its training run where none is chosen otherwise.

  Args:
    prefix: prefix of the checkpoint.
    name: value of --dataset.
    is_given: whether the user gave it.
    dataset_dir: folder of the records; one that describes itself needs no choice.
  """
  run = run_options.read(prefix)
  is_chosen = is_given or tf.io.gfile.exists(os.path.join(dataset_dir, DESCRIPTION_FILE))
  return name if run is None or is_chosen else run.dataset.name


def read_description(path):
  """Reads a dataset.json.

  Args:
    path: the file.

  Returns:
    DatasetDescriptor, or None where there is no such file.

  Raises:
    ValueError: the file is no JSON object, or a field is missing, unknown or wrong.
  """
  try:
    fields = files.read_json(path)
  except ValueError as error:
    raise InputError(f'{path} is not JSON: {error}') from error
  if fields is None:
    return None
  problem = None if isinstance(fields, dict) else 'must hold one JSON object.'
  try:
    if not problem:
      head, fields = stored_format.take_head(fields)
      # In a file of a format that is known here, such a field is a slip of the pen.
      if head.format > stored_format.FORMAT:
        fields = stored_format.known_values(fields, DatasetDescriptor._fields, head)
      problem = _problem_of_fields(fields)
  except ValueError as error:
    problem = f'{error}.'
  if problem:
    raise InputError(f'{path}: {problem}')
  return describe(**fields)


def _is_number(value, low, high):
  return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_color(value):
  return isinstance(value, list) and len(value) == 3 and all(_is_number(part, 0, 255) for part in value)


def _problem_of_fields(fields):
  """What is wrong with the content of a dataset.json, or None."""
  for name in fields:
    if name not in DatasetDescriptor._fields:
      return f'unknown field {name!r}; the fields are: {", ".join(DatasetDescriptor._fields)}.'
  for name in ('name', 'num_classes'):
    if name not in fields:
      return f'field {name!r} is missing.'

  def is_per_class(value, is_right):
    return isinstance(value, list) and len(value) == fields['num_classes'] and all(is_right(item) for item in value)

  rules = (
      ('name', 'a text', lambda value: isinstance(value, str) and value),
      ('num_classes', f'a number 1 to {MAX_CLASSES}', lambda value: _is_number(value, 1, MAX_CLASSES)),
      ('ignore_label', 'a number 0 to 255', lambda value: _is_number(value, 0, 255)),
      ('splits_to_sizes', 'an object {split: number of images}', lambda value: isinstance(value, dict) and all(
          _is_number(size, 0, 1 << 62) for size in value.values())),
      ('class_names', 'one text per class', lambda value: is_per_class(value, lambda item: isinstance(item, str))),
      ('colors', 'one [red, green, blue] of 0 to 255 per class', lambda value: is_per_class(value, _is_color)),
      ('train_id_to_eval_id', 'one number 0 to 255 per class', lambda value: is_per_class(
          value, lambda item: _is_number(item, 0, 255))),
  )
  for name, wanted, is_right in rules:
    if fields.get(name) is not None and not is_right(fields[name]):
      length = f' ({len(fields[name])} given for {fields["num_classes"]} classes)' if isinstance(fields[name], list) else ''
      return f'{name!r} is {json.dumps(fields[name])[:100]}{length}; it must be {wanted}.'
  return None


def write_description(descriptor, path):
  """Writes a dataset.json; a file that is there is replaced in one step."""
  fields = {name: value for name, value in descriptor._asdict().items() if value is not None}
  fields.update(stored_format.head(dataset_descriptor.ADDED_FIELDS))
  lines = ',\n'.join(f'  {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}' for name, value in fields.items())
  files.replace_file(path, '{\n' + lines + '\n}\n')


def find_split_files(dataset_dir, split, dataset_name=None):
  """The files of a split, `<dataset_dir>/<split>-*`, in the order of their names.

  Files without a byte, which older converters wrote where images ran out, are left out.

  Args:
    dataset_dir: folder of the records.
    split: name of the split; with `dataset_name` 'cityscapes' the older and the newer names stand for each other.
    dataset_name: name of the data set.

  Returns:
    List of paths, at least one.

  Raises:
    ValueError: the folder or the files are missing, hold nothing, or are no records.
  """
  names = _list_folder(dataset_dir)
  alias = _SPLIT_ALIASES.get(dataset_name, {}).get(split)
  matches = _matches(names, split)
  if not matches and alias and _matches(names, alias):
    logging.info('Split %r is read from the files %s-*.', split, alias)
    matches = _matches(names, alias)
  if not matches:
    raise InputError(_describe_missing(dataset_dir, split, names))
  _warn_of_shards(dataset_dir, matches)
  paths = [os.path.join(dataset_dir, name) for name in matches]
  filled = [path for path in paths if tf.io.gfile.stat(path).length]
  if not filled:
    raise InputError(f'Split {split!r} has 0 examples: all {len(paths)} files of {os.path.join(dataset_dir, split)}-* are empty. '
                     'Convert the data set again.')
  for path in filled:
    if not tfexample.is_record_file(path):
      raise InputError(f'{path} is no TFRecord file, or a compressed or damaged one; remove it, or convert the data set again.')
  return filled


def list_splits(dataset_dir):
  """Splits of which a folder holds files `<split>-00000-of-00001.tfrecord`.

  Args:
    dataset_dir: folder of the records.

  Returns:
    List of names, at least one.

  Raises:
    ValueError: there are none.
  """
  names = _list_folder(dataset_dir)
  splits = _splits_of(names)
  if not splits:
    raise InputError(_describe_missing(dataset_dir, '*', names))
  return splits


def _splits_of(names):
  return sorted({match['split'] for match in map(_SHARD.fullmatch, names) if match})


def _list_folder(folder):
  """Names of the files in a folder, sorted, hidden ones left out; folders end with a slash."""
  if not tf.io.gfile.exists(folder):
    raise InputError(f'--dataset_dir={folder}: there is no such folder.')
  if not tf.io.gfile.isdir(folder):
    raise InputError(f'--dataset_dir={folder} is a file; give the folder that holds it.')
  names = sorted(name.rstrip('/') for name in tf.io.gfile.listdir(folder))
  return [name + '/' if tf.io.gfile.isdir(os.path.join(folder, name)) else name for name in names if not name.startswith('.')]


def _matches(names, split):
  return [name for name in names if name.startswith(split + '-') and not name.endswith('/')]


def _describe_missing(dataset_dir, split, names):
  """The message for a split without files: the pattern, what is there, and what was probably meant."""
  message = f'No file matches {os.path.join(dataset_dir, split)}-* (split {split!r}). '
  splits = _splits_of(names)
  if splits:
    close = difflib.get_close_matches(split, splits, n=1, cutoff=0.5)
    return message + f'The folder holds the splits: {", ".join(splits)}.' + (f' Did you mean {close[0]!r}?' if close else '')
  nearby = _folders_with_split(dataset_dir, split, names)
  if nearby:
    return message + f'Did you mean --dataset_dir={nearby[0]}?'
  if not names:
    return message + 'The folder is empty.'
  more = f' and {len(names) - _MAX_LISTED} more' if len(names) > _MAX_LISTED else ''
  return message + f'The folder holds: {", ".join(names[:_MAX_LISTED])}{more}.'


def _folders_with_split(dataset_dir, split, names):
  """Folders one level below or above that hold files of the split."""
  folders = [os.path.join(dataset_dir, name.rstrip('/')) for name in names if name.endswith('/')]
  folders.append(os.path.dirname(os.path.abspath(dataset_dir)) if '://' not in dataset_dir else dataset_dir)
  return [folder for folder in folders if _matches(_list_folder(folder), split)]


def _warn_of_shards(dataset_dir, names):
  """Warns of numbered files of which some are missing, or of two conversions that lie beside each other."""
  shards = [match for match in map(_SHARD.fullmatch, names) if match]
  counts = sorted({int(match['count']) for match in shards})
  if len(counts) > 1:
    logging.warning('%s: the files %s-* come from several conversions (of %s files); images may be read twice.', dataset_dir,
                    shards[0]['split'], ' and of '.join(map(str, counts)))
  elif counts and len(shards) < counts[0]:
    logging.warning('%s: %d of %d files %s-* are there; the images of the others are missing.', dataset_dir, len(shards),
                    counts[0], shards[0]['split'])


def describe_wrong_values(counts, descriptor):
  """What is wrong with the values of a label, as the rest of a sentence that begins with its name.

  Args:
    counts: number of pixels of each value, [256].
    descriptor: DatasetDescriptor.

  Returns:
    Text, or '' where every value is a class or the ignored one.
  """
  wrong = [value for value in np.flatnonzero(counts).tolist()
           if value >= descriptor.num_classes and value != descriptor.ignore_label]
  if not wrong:
    return ''
  listed = ', '.join(map(str, wrong[:_MAX_LISTED])) + (', ...' if len(wrong) > _MAX_LISTED else '')
  share = 100 * sum(counts[value] for value in wrong) / sum(counts)
  return (f'has label values {listed} ({share:.2g} % of its pixels), which are neither classes (0 to '
          f'{descriptor.num_classes - 1}, num_classes={descriptor.num_classes}) nor ignored '
          f'(ignore_label={descriptor.ignore_label}).')


def warnings_of_counts(counts, descriptor):
  """What is suspicious about the classes of a whole data set or split.

  Args:
    counts: number of pixels of each value, [256].
    descriptor: DatasetDescriptor.

  Returns:
    List of texts.
  """
  classes = [index for index in range(descriptor.num_classes) if index != descriptor.ignore_label]
  named = {index: f'{index} ({descriptor.class_names[index]})' for index in classes}
  present = [index for index in classes if counts[index]]
  missing = [named[index] for index in classes if not counts[index]]
  warnings = []
  if len(present) <= 1:
    left = f'only class {named[present[0]]} is left' if present else 'no pixel is left'
    warnings.append(f'After ignoring the value {descriptor.ignore_label}, {left}: there is nothing to learn. ignore_label is for '
                    'pixels that count neither in the loss nor in a metric; the background is a class.')
  if missing and present:
    warnings.append(f'Classes present: {", ".join(named[index] for index in present)}; never present: {", ".join(missing)}. '
                    'num_classes counts the background, but not the ignored value.')
  return warnings
