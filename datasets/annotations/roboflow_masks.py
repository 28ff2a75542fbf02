"""Roboflow's "Semantic Segmentation Masks": a folder per split with images, NAME_mask.png and a table of the values."""

import csv
import os

from deeplab.core.base.errors import InputError
from deeplab.datasets.annotations import annotation_set
from deeplab.datasets.annotations.annotation_set import UNSPLIT, AnnotationSet, Broken, Entry, PictureValues
from deeplab.datasets.annotations.image_folder import ImageFolder

TOOL = 'Roboflow "Semantic Segmentation Masks"'
LAYOUT = 'a folder with train, valid and test, in each _classes.csv and NAME_mask.png beside the images'

_TABLE = '_classes.csv'
_MASK = '_mask'
# Roboflow's folder -> split.
_SPLITS = {'train': 'train', 'valid': 'val', 'test': 'test'}


def recognise(path):
  """Whether `path` is such a folder, or that of one split."""
  return bool(_folders(path))


def _folders(path):
  """Dict, split -> its folder."""
  folders = {split: os.path.join(path, name) for name, split in _SPLITS.items()}
  found = {split: folder for split, folder in folders.items() if os.path.isfile(os.path.join(folder, _TABLE))}
  return found or ({UNSPLIT: path} if os.path.isfile(os.path.join(path, _TABLE)) else {})


def read(path, image_folder, image_extensions):
  """Reads the export; see readers.read."""
  if image_folder:
    raise InputError(f'--image_folder={image_folder}: {TOOL} has the images beside the masks; leave the flag out.')
  folders = _folders(path)
  tables = {folder: _read_table(os.path.join(folder, _TABLE)) for folder in folders.values()}
  first, values = next(iter(tables.items()))
  for folder, table in tables.items():
    if table != values:
      raise InputError(f'{os.path.join(folder, _TABLE)} gives other classes than {os.path.join(first, _TABLE)}: '
                       f'{table} and {values}.')
  splits, problems = {}, []
  for split, folder in folders.items():
    splits[split], alone = _pair(ImageFolder(folder, image_extensions))
    problems += [f'{mask} has no image beside it.' for mask in alone]
  names = [name for _, name in sorted(values.items())]
  # Values are numbers of classes; a name of background further behind comes to the front as with the other tools.
  background = next((name for name in names if annotation_set.is_background(name)), None)
  names = [name for name in names if name != background]
  return AnnotationSet(TOOL, splits, [background, *names] if background else names, background is not None,
                       PictureValues(os.path.join(first, _TABLE), values), problems=problems)


def _read_table(path):
  """Dict, value -> name of the class."""
  rows = [row for row in csv.reader(annotation_set.read_text(path).splitlines(), skipinitialspace=True) if any(row)]
  values = {}
  for number, row in enumerate(rows[1:], 2):
    value, name = [part.strip() for part in row] if len(row) == 2 else ('', '')
    if not value.isdecimal() or int(value) > 255 or not name or int(value) in values:
      raise InputError(f'{path}, line {number}: {", ".join(row)!r}; each line is "value, class" with a value of its own, 0 to '
                       '255.')
    values[int(value)] = name
  if not values:
    raise InputError(f'{path} holds no class; below its first line each line is "value, class".')
  annotation_set.refuse_repeated(values.values(), path)
  return values


def _pair(folder):
  """(entries, masks without image) of a folder."""
  masks = {path.removesuffix(f'{_MASK}.png') for path in folder.files if path.endswith(f'{_MASK}.png')}
  images = [path for path in folder.files if not path.endswith(f'{_MASK}.png')]
  entries = []
  for path in images:
    stem = os.path.splitext(path)[0]
    mask = os.path.join(folder.path, f'{stem}{_MASK}.png')
    label = mask if stem in masks else Broken(f'{os.path.join(folder.path, path)} has no mask {mask}.')
    entries.append(Entry(annotation_set.record_name(path), os.path.join(folder.path, path), label))
  alone = sorted(masks - {os.path.splitext(path)[0] for path in images})
  return entries, [os.path.join(folder.path, f'{stem}{_MASK}.png') for stem in alone]
