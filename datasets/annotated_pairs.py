"""The export of a labelling tool as pairs for build_data: classes get their numbers, labels are drawn or translated.

    annotated = annotated_pairs.read(path, image_folder, class_names, ignore_label)
"""

import functools
import io
from typing import NamedTuple

import numpy as np
from PIL import Image

from deeplab.core.base.errors import InputError
from deeplab.datasets import build_data, dataset_info, image_files
from deeplab.datasets.annotations import annotation_set, readers


class Annotated(NamedTuple):
  """An export, ready to be converted.

  Attributes:
    splits: dict, split (or annotation_set.UNSPLIT) -> list of build_data.Pair; those with a problem stand for what is wrong.
    class_names: names in the order of their values, or None: the labels' values tell.
  """
  splits: dict[str, list[build_data.Pair]]
  class_names: list[str] | None


def read(path, image_folder=None, class_names=None, ignore_label=255):
  """Reads an export and tells what it is.

  Args:
    path: what the tool exported.
    image_folder: folder of the images, or None where the tool says it.
    class_names: names in the wanted order, or None for the tool's.
    ignore_label: value of pixels that do not count.

  Returns:
    Annotated.

  Raises:
    InputError: the export, or `class_names` for it, is wrong.
  """
  annotations = readers.read(path, image_folder, image_files.IMAGE_EXTENSIONS)
  names, value_of = number_classes(annotations, class_names, ignore_label)
  print(f'{annotations.tool}: {path}, ' + (f'{len(names)} classes: {", ".join(names)}.' if names else
                                           'classes are numbered by the labels; --class_names names them.'))
  for remark in [*_remarks_on_names(annotations, value_of), *annotations.remarks]:
    print(remark)
  make_label = _label_maker(annotations, value_of, ignore_label)
  splits = {split: [_pair(entry, make_label) for entry in entries] for split, entries in annotations.splits.items()}
  first = next(iter(splits.values()))
  first += [build_data.Pair('', None, None, problem) for problem in annotations.problems]
  return Annotated(splits, names)


def _pair(entry, make_label):
  if isinstance(entry.label, annotation_set.Broken):
    return build_data.Pair(entry.name, entry.image, None, entry.label.problem)
  return build_data.Pair(entry.name, entry.image, make_label(entry))


def number_classes(annotations, class_names, ignore_label):
  """Gives classes their values.

  Args:
    annotations: AnnotationSet.
    class_names: names in the wanted order, or None for the tool's. The background may have another name there.
    ignore_label: value of annotation_set.IGNORED.

  Returns:
    (names in the order of their values or None where nothing tells them, dict name of the tool -> value); a class that is not
    among `class_names` has no value.

  Raises:
    InputError: there are too few or too many classes, or the first of `class_names` is not the background.
  """
  own = annotations.class_names
  names = list(class_names or own or []) or None
  if names is None or own is None:
    return names, {}
  if not 2 <= len(names) <= dataset_info.MAX_CLASSES:
    raise InputError(f'{annotations.tool}: {len(names)} classes ({annotation_set.listed(names)}); there must be 2 to '
                     f'{dataset_info.MAX_CLASSES}, the background among them.')
  value_of = {name: value for value, name in enumerate(names)}
  if annotations.has_background:
    if names[0] in own[1:]:
      raise InputError(f'--class_names begins with {names[0]!r}, which is a class of objects; the first name stands for the '
                       f'background ({own[0]}).')
    value_of.setdefault(own[0], 0)
  return names, {**value_of, annotation_set.IGNORED: ignore_label}


def _remarks_on_names(annotations, value_of):
  unnamed = [name for name in annotations.class_names or [] if value_of and name not in value_of]
  return [f'--class_names does not name {annotation_set.listed(unnamed)}: labels that hold it are problems.'] if unnamed else []


def _label_maker(annotations, value_of, ignore_label):
  """Function of an Entry that gives the label of its Pair."""
  pictures = annotations.pictures
  if pictures:
    paths = [entry.label for entries in annotations.splits.values() for entry in entries if isinstance(entry.label, str)]
    pictures = pictures._replace(values=_values_of_gray(pictures, paths))
  # Values stay as they are where they are the numbers of the classes already.
  is_plain = pictures is None or not pictures.colors and all(
      value_of.get(name) == value for value, name in pictures.values.items())

  def make(entry):
    label = entry.label
    if label is None:
      return DrawnLabel(annotation_set.Drawing(f'{entry.name} (no annotation)', None, []), value_of)
    if isinstance(label, annotation_set.Drawing):
      return DrawnLabel(label, value_of)
    return label if is_plain else TranslatedLabel(label, pictures, value_of, ignore_label)

  return make


def _values_of_gray(pictures, paths):
  """What gray levels stand for: colours of the table where all of them are among it, else rows of the table."""
  grays = {color[0]: name for color, name in (pictures.colors or {}).items() if len(set(color)) == 1}
  if not grays:
    return pictures.values
  levels = functools.reduce(np.logical_or, build_data.parallel_map(_gray_levels, paths), np.zeros(256, bool))
  return grays if set(np.flatnonzero(levels).tolist()) <= grays.keys() else pictures.values


def _gray_levels(path):
  """bool [256], the levels of a gray label; of others, and of those that cannot be read, none."""
  try:
    with Image.open(path) as picture:
      is_gray = picture.mode in ('1', 'L')
    return image_files.read_label(path).counts > 0 if is_gray else np.zeros(256, bool)
  except (OSError, SyntaxError, InputError):
    return np.zeros(256, bool)


class DrawnLabel(NamedTuple):
  """A label that is drawn from the areas of an annotation.

  Attributes:
    drawing: annotation_set.Drawing.
    value_of: dict, name of a class -> value.
  """
  drawing: annotation_set.Drawing
  value_of: dict[str, int]

  def __str__(self):
    return self.drawing.source

  @property
  def has_size(self):
    return self.drawing.size is not None

  def read(self, size):
    """Draws it.

    Args:
      size: (height, width) of the image that it belongs to, or None where that cannot be read.

    Returns:
      image_files.LabelFile of the size that the tool says, or else of the image's.

    Raises:
      InputError: an area is of an unknown class or broken.
    """
    height, width = self.drawing.size or size or (0, 0)
    for region in self.drawing.regions:
      if region.class_name not in self.value_of:
        raise InputError(f'{self} is of class {region.class_name!r}, which --class_names does not name.')
    if not height or size and sorted((height, width)) != sorted(size):
      # Sizes are compared by who asks; nothing is drawn of what a wrong number may have made huge.
      return image_files.LabelFile(b'', height, width, np.zeros(256, np.int64), [])
    label = Image.new('L', (width, height))
    for region in self.drawing.regions:
      region.paint(label, self.value_of[region.class_name])
    outside = '' if self.drawing.size else annotation_set.describe_outside(self.drawing.regions, (height, width))
    values = np.asarray(label)
    return image_files.LabelFile(image_files.encode_label(values), height, width, np.bincount(values.ravel(), minlength=256),
                                 [f'{self}: {outside}'] if outside else [])


class TranslatedLabel(NamedTuple):
  """A label picture whose colours or values stand for classes by a table.

  Attributes:
    path: of the PNG file.
    pictures: annotation_set.PictureValues.
    value_of: dict, name of a class -> value.
    ignore_label: value of pixels that do not count.
  """
  path: str
  pictures: annotation_set.PictureValues
  value_of: dict[str, int]
  ignore_label: int

  def __str__(self):
    return self.path

  def read(self, unused_size):
    """Reads and translates it.

    Returns:
      image_files.LabelFile.

    Raises:
      InputError: the file is broken, or a colour or value stands for no class.
    """
    colors = {color: self.value_of[name] for color, name in (self.pictures.colors or {}).items() if name in self.value_of}
    label = image_files.read_label(self.path, colors)
    with Image.open(self.path) as picture:
      # In colour, read_label has translated already.
      mode, palette = picture.mode, picture.getpalette() or []
    if mode in ('RGB', 'RGBA'):
      return label
    table = np.full(256, -1)
    if self.pictures.colors and mode == 'P':
      for index, color in enumerate(zip(palette[::3], palette[1::3], palette[2::3], strict=False)):
        table[index] = colors.get(color, -1)
    else:
      for value, name in self.pictures.values.items():
        table[value] = self.value_of.get(name, -1)
    if table[self.ignore_label] < 0:
      table[self.ignore_label] = self.ignore_label
    return self._translate(label, table)

  def _translate(self, label, table):
    present = np.flatnonzero(label.counts)
    unknown = present[table[present] < 0].tolist()
    if unknown:
      share = label.counts[unknown].sum() / label.counts.sum()
      raise InputError(f'{self} has the values {annotation_set.listed(unknown)} ({100 * share:.2g} % of its pixels), which '
                       f'stand for no class of {self.pictures.source}.')
    if (table[present] == present).all():
      return label
    with Image.open(io.BytesIO(label.data)) as picture:
      values = table[np.asarray(picture)].astype(np.uint8)
    return label._replace(data=image_files.encode_label(values), counts=np.bincount(values.ravel(), minlength=256))
