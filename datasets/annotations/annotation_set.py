"""The form that every tool's export is read as.

A reader names classes; which number a class gets is decided by who asks (datasets/annotated_pairs.py). What is wrong with one
image becomes its label, so that all problems of an export are told at once.
"""

import collections
import json
import os
from collections.abc import Callable
from typing import NamedTuple

from PIL import Image

from deeplab.core.base.errors import InputError

# Class of pixels that count neither in the loss nor in a metric, as labelme calls it.
IGNORED = '__ignore__'
# Names that tools give to pixels of no object.
BACKGROUND_NAMES = ('background', '_background_', '__background__')
# Split of images that the tool put into none.
UNSPLIT = ''
# Names listed in one line.
_MAX_LISTED = 8
# Coordinates may lie this far outside of an image, pixels; tools round.
_TOLERANCE = 1


class Region(NamedTuple):
  """An area of one class.

  Attributes:
    class_name: name.
    bounds: (left, top, right, bottom), pixels.
    paint: function of (picture of mode 'L', value) that draws the area; what lies outside of the picture is cut.
  """
  class_name: str
  bounds: tuple[float, float, float, float]
  paint: Callable[[Image.Image, int], None]


class Drawing(NamedTuple):
  """A label as areas on background.

  Attributes:
    source: what messages call it.
    size: (height, width) in pixels, or None where the tool does not say it: that of the upright image.
    regions: list of Region; later ones lie over earlier ones.
  """
  source: str
  size: tuple[int, int] | None
  regions: list[Region]


class Broken(NamedTuple):
  """A label that cannot be had.

  Attributes:
    problem: text that names the file, what is wrong and what would be right.
  """
  problem: str


class Entry(NamedTuple):
  """An image and its label.

  Attributes:
    name: for the record and for messages.
    image: path of a file, or an object with `read_bytes()` that str() names.
    label: path of a label picture, Drawing, Broken, or None for an image without annotation, which is all background.
  """
  name: str
  image: object
  label: str | Drawing | Broken | None


class PictureValues(NamedTuple):
  """What the pixels of label pictures stand for.

  Attributes:
    source: file that says it, for messages.
    values: dict, value of a gray or palette picture -> name of a class.
    colors: dict, (red, green, blue) -> name of a class, for pictures in colour and palettes; None: there are none.
  """
  source: str
  values: dict[int, str]
  colors: dict[tuple[int, int, int], str] | None = None


class AnnotationSet(NamedTuple):
  """An export.

  Attributes:
    tool: name of the tool or format.
    splits: dict, split (or UNSPLIT) -> list of Entry.
    class_names: names in the tool's order, the background first; None: only the values of the label pictures tell classes.
    has_background: whether the first class stands for pixels of no object.
    pictures: PictureValues of labels that are pictures, or None where they hold the numbers of `class_names`.
    remarks: lines on what the user should know and need not change.
    problems: lines on what is wrong and belongs to no image of `splits`.
  """
  tool: str
  splits: dict[str, list[Entry]]
  class_names: list[str] | None
  has_background: bool = True
  pictures: PictureValues | None = None
  remarks: list[str] = []
  problems: list[str] = []


def is_background(class_name):
  return class_name.lower() in BACKGROUND_NAMES


def listed(names):
  """The first names of a list, and how many more there are."""
  names = list(names)
  more = f' and {len(names) - _MAX_LISTED} more' if len(names) > _MAX_LISTED else ''
  return ', '.join(map(str, names[:_MAX_LISTED])) + more


def read_text(path):
  """Content of a text file without a mark of its byte order; raises InputError that names it."""
  try:
    with open(path, encoding='utf-8-sig') as text_file:
      return text_file.read()
  except OSError as error:
    raise InputError(f'{path} cannot be read: {error.strerror}.') from error
  except UnicodeDecodeError as error:
    raise InputError(f'{path} is no text in UTF-8 (byte {error.start}); save it as UTF-8.') from error


def read_json(path):
  """Content of a JSON file; raises InputError that names it."""
  text = read_text(path)
  try:
    return json.loads(text)
  except (ValueError, RecursionError) as error:
    raise InputError(f'{path} is not JSON ({error}); export it again.') from error


def read_names(path):
  """Names of classes, one per line, in the order of the file.

  The name `__ignore__`, which stands for no class, is left out.

  Args:
    path: text file.

  Returns:
    List of names.

  Raises:
    InputError: the file cannot be read, holds no name, or repeats one.
  """
  lines = [line.strip() for line in read_text(path).splitlines()]
  names = [line for line in lines if line and line != IGNORED]
  if not names:
    raise InputError(f'{path} holds no name; it holds the names of the classes, one per line.')
  refuse_repeated(names, path)
  return names


def refuse_repeated(names, source):
  """Raises InputError where a class is named twice."""
  repeated = [name for name, count in collections.Counter(names).items() if count > 1]
  if repeated:
    raise InputError(f'{source} names {listed(repeated)} more than once; each class needs a name of its own.')


def record_name(path):
  """Name for the record of an image: its path without extension, folders joined by `_`, which pictures can be called, too."""
  stem = os.path.splitext(path.replace('\\', '/'))[0]
  return '_'.join(part for part in stem.split('/') if part not in ('', '.', '..'))


def describe_outside(regions, size):
  """What is said of areas that reach outside of their image.

  Args:
    regions: list of Region.
    size: (height, width) of the image.

  Returns:
    Text that follows the name of the image, or ''.
  """
  height, width = size
  beyond = [region for region in regions if region.bounds[0] < -_TOLERANCE or region.bounds[1] < -_TOLERANCE
            or region.bounds[2] > width + _TOLERANCE or region.bounds[3] > height + _TOLERANCE]
  away = [region for region in beyond if region.bounds[2] <= 0 or region.bounds[3] <= 0 or region.bounds[0] >= width
          or region.bounds[1] >= height]
  names = listed(sorted({region.class_name for region in beyond}))
  lost = f', {len(away)} of them wholly' if away else ''
  return f'{len(beyond)} outside of its {height}x{width} pixels (height x width){lost}: {names}' if beyond else ''


def common_remarks(splits):
  """Remarks on an export that do not depend on the tool.

  Args:
    splits: dict, split -> list of Entry.

  Returns:
    List of lines: annotations outside of their image, images without annotation.
  """
  entries = [entry for split in splits.values() for entry in split]
  drawn = [(entry.name, entry.label) for entry in entries if isinstance(entry.label, Drawing)]
  outside = [f'{name}: {text}' for name, label in drawn
             if label.size and (text := describe_outside(label.regions, label.size))]
  empty = [entry.name for entry in entries if entry.label is None] + [name for name, label in drawn if not label.regions]
  remarks = []
  if outside:
    remarks.append(f'{len(outside)} images have annotations that reach outside; they are cut at the border: {listed(outside)}.')
  if empty:
    remarks.append(f'{len(empty)} of {len(entries)} images have no annotation; they are kept, all background: {listed(empty)}.')
  return remarks


def mark_repeated(splits):
  """Entries with those of a name or an image that occurs twice in a split made Broken.

  Args:
    splits: dict, split -> list of Entry.

  Returns:
    Dict like `splits`.
  """
  return {split: _mark_repeated(entries) for split, entries in splits.items()}


def _mark_repeated(entries):
  names, images = collections.defaultdict(list), collections.defaultdict(list)
  for entry in entries:
    images[str(entry.image)].append(entry.name)
    names[entry.name].append(str(entry.image))
  marked = []
  for entry in entries:
    if len(alike := names[entry.name]) > 1:
      entry = entry._replace(label=Broken(f'{entry.name} names {len(alike)} images: {listed(alike)}; rename all but one, or take '
                                          'out what is there twice.'))
    elif len(alike := images[str(entry.image)]) > 1:
      entry = entry._replace(label=Broken(f'{entry.image} belongs to {len(alike)} annotations: {listed(alike)}; take out all but '
                                          'one.'))
    marked.append(entry)
  return marked
