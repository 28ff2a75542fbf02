"""Which label belongs to which image: pairs of files by their names, or by lists.

Nothing is lost in silence: a label without image, an image without label, and a file that looks like a picture but is neither
become pairs with a problem, which stop the conversion or are left out and told.
"""

import collections
import os
import re

from absl import logging

from deeplab.core.base.errors import InputError, listed
from deeplab.datasets import dataset_info, image_files
from deeplab.datasets.build_data import Pair

# Between the image and the label of a line.
_SEPARATOR = re.compile(r'\s*[\t,;]\s*|\s+')


class _Folder:
  """The files of a folder that have certain extensions, and of the folders in it that a list names."""

  def __init__(self, path, extensions):
    self.path = path
    self._extensions = extensions
    self.files = image_files.list_folder(path, extensions)
    self._listed = {'': self.files}

  def find(self, reference):
    """Looks a file up by its name, with or without extension, behind folders of which this one knows the last ones or none.

    Args:
      reference: for example `a`, `a.jpg`, `JPEGImages/a.jpg`, `day1/a`.

    Returns:
      (path below this folder without extension, list of paths), or None.
    """
    parts = [part for part in reference.replace('\\', '/').split('/') if part not in ('', '.')]
    for first in range(len(parts)):
      *folders, name = parts[first:]
      files = self._files_of('/'.join(folders))
      stem, extension = os.path.splitext(name)
      if name in files:
        return '/'.join([*folders, name]), files[name]
      if extension[1:].lower() in self._extensions and stem in files:
        exact = [path for path in files[stem] if os.path.basename(path) == name]
        return '/'.join([*folders, stem]), exact or files[stem]
    return None

  def _files_of(self, below):
    if below not in self._listed:
      path = os.path.join(self.path, below)
      known = '..' not in below.split('/') and os.path.isdir(path)
      self._listed[below] = image_files.list_folder(path, self._extensions) if known else {}
    return self._listed[below]

def _choose(name, paths, preferred):
  """(path, problem), one of them None, of an image with these files."""
  readable = [path for path in paths if _extension(path) in image_files.IMAGE_EXTENSIONS] or paths
  chosen = [path for path in readable if preferred and _extension(path) == preferred] or readable
  if len(chosen) > 1:
    return None, f'{name} stands for several files: {", ".join(chosen)}; remove all but one, or choose by --image_format.'
  return chosen[0], None


def _extension(path):
  return os.path.splitext(path)[1][1:].lower()


def read_split_lists(list_folder):
  """Splits as text files with one name per line.

  Args:
    list_folder: folder; each `<split>.txt` in it is a split.

  Returns:
    Dict, split -> list of lines without blanks around them, in the order of the file.

  Raises:
    ValueError: there is no list, or one is empty or repeats a line.
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
      raise InputError(f'{path} is empty; it holds one name per line.')
    repeated = _repeated(names)
    if repeated:
      raise InputError(f'{path} names {listed(repeated)} more than once.')
    splits[split] = names
  return splits


def _repeated(names):
  return [name for name, count in collections.Counter(names).items() if count > 1]


def pairs_of_lists(list_folder, image_folder, label_folder, image_format=None):
  """Pairs of a data set in the layout of PASCAL VOC.

  A line of a list is the name of an image, with or without extension and folders, or an image and its label.

  Args:
    list_folder: folder of `<split>.txt`.
    image_folder: folder of `<name>.jpg`, or another of image_files.IMAGE_EXTENSIONS.
    label_folder: folder of `<name>.png`; a split of tests needs none.
    image_format: extension to take where a name has several, or None.

  Returns:
    Dict, split -> list of Pair.

  Raises:
    ValueError: a folder is missing or a list is wrong.
  """
  splits = read_split_lists(list_folder)
  images = _Folder(image_folder, image_files.PICTURE_EXTENSIONS)
  labels = _Folder(label_folder, image_files.LABEL_EXTENSIONS)
  pairs = {}
  for split, lines in splits.items():
    where = os.path.join(list_folder, f'{split}.txt')
    pairs[split] = [_pair_of_line(line, where, images, labels, image_format, split not in dataset_info.TEST_SPLITS)
                    for line in lines]
    repeated = _repeated([pair.image for pair in pairs[split] if pair.image])
    if repeated:
      raise InputError(f'{where} names {listed(repeated)} more than once.')
  _tell_unlisted(pairs, images, labels, list_folder)
  return pairs


def _pair_of_line(line, where, images, labels, image_format, needs_label):
  image, label = _parts_of_line(line, images, labels)
  found = images.find(image)
  if found is None:
    return Pair(line, None, None, f'{where} names {image!r}, but {images.path} holds no such image.')
  below, paths = found
  name = below.replace('/', '_')
  path, problem = _choose(name, paths, image_format)
  found = labels.find(label or below) or (None if label else labels.find(os.path.basename(below)))
  if found is None and (needs_label or label):
    problem = problem or f'{path} has no label: {labels.path} holds no {label or os.path.basename(below) + ".png"}.'
  return Pair(name, path, found[1][0] if found else None, problem)


def _parts_of_line(line, images, labels):
  """(image, label or None) of a line; names may hold blanks themselves."""
  if images.find(line):
    return line, None
  cuts = [(line[:cut.start()], line[cut.end():]) for cut in _SEPARATOR.finditer(line)]
  cuts = [(image, label) for image, label in cuts if images.find(image)]
  whole = [(image, label) for image, label in cuts if labels.find(label)]
  return (whole or cuts or [(line, None)])[0]


def _tell_unlisted(splits, images, labels, list_folder):
  """Says how many files no list names; a data set may well hold more than its lists."""
  used = {path for pairs in splits.values() for pair in pairs for path in (pair.image, pair.label)}
  unlisted = [sum(path not in used for paths in folder.files.values() for path in paths) for folder in (images, labels)]
  if any(unlisted):
    logging.info('The lists in %s name neither %d of the images in %s nor %d of the labels in %s; these are not converted.',
                 list_folder, unlisted[0], images.path, unlisted[1], labels.path)


def pairs_of_folders(image_folder, label_folder, image_format=None):
  """Every image of a folder with the label of the same name.

  Args:
    image_folder: folder of `<name>.jpg`, or another of image_files.IMAGE_EXTENSIONS.
    label_folder: folder of `<name>.png`; may be the same one.
    image_format: extension to take where a name has several, or None.

  Returns:
    List of Pair in the order of the names; those with a problem stand for files that find no partner or cannot be read.

  Raises:
    ValueError: a folder is missing, or has no image.
  """
  images = _Folder(image_folder, image_files.PICTURE_EXTENSIONS).files
  labels = _Folder(label_folder, image_files.LABEL_EXTENSIONS).files
  if os.path.samefile(image_folder, label_folder):
    images = {name: [path for path in paths if path not in labels.get(name, [])] for name, paths in images.items()}
    images = {name: paths for name, paths in images.items() if paths}
  if not images:
    raise InputError(f'There is no image ({", ".join(image_files.IMAGE_EXTENSIONS)}) in {image_folder}.')
  pairs = []
  for name, paths in images.items():
    path, problem = _choose(name, paths, image_format)
    label = labels.get(name, [None])[0]
    if label is None:
      problem = problem or f'{path} has no label: {label_folder} holds no {name}.png.'
    pairs.append(Pair(name, path, label, problem))
  pairs += [Pair(name, None, path, f'{path} has no image: {image_folder} holds no picture of that name.')
            for name, (path, *_) in labels.items() if name not in images]
  return pairs + _left_over(pairs, images, image_folder, label_folder, image_format)


def _left_over(pairs, images, image_folder, label_folder, image_format):
  """Pairs with a problem for what looks like a picture and is taken neither as image nor as label, nor named by `pairs`."""
  told = {path for pair in pairs for path in (pair.image, pair.label)}
  told.update(path for pair in pairs if image_format or pair.problem for path in images.get(pair.name, []))
  files = [path for folder in (image_folder, label_folder)
           for paths in _Folder(folder, image_files.PICTURE_EXTENSIONS).files.values() for path in paths]
  problems = {path: f'{path} is neither taken as an image nor as a label, which must be PNG; convert it or move it away.'
              for path in files if path not in told}
  problems |= {path: f'{path} holds {count} pictures; folders in a folder are not looked into. Move them up, or name them as '
                     f'{os.path.basename(path)}/<name> in lists (--list_folder).'
               for path, count in _folders_of_pictures(image_folder, label_folder)}
  return [Pair(os.path.basename(path), None, None, problem) for path, problem in problems.items()]


def _folders_of_pictures(image_folder, label_folder):
  """(path, number of pictures) of the folders right below the image folder; that of the labels and hidden ones do not count."""
  labels = os.path.realpath(label_folder)
  for entry in sorted(os.scandir(image_folder), key=lambda entry: entry.name):
    is_labels = os.path.commonpath([labels, os.path.realpath(entry.path)]) == os.path.realpath(entry.path)
    if not entry.is_dir() or entry.name.startswith(('.', '@')) or is_labels:
      continue
    count = sum(_extension(name) in image_files.PICTURE_EXTENSIONS for _, _, names in os.walk(entry.path) for name in names)
    if count:
      yield entry.path, count
