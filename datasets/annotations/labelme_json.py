"""labelme: a JSON beside each image, with the shapes of its objects.

A shape covers the pixels that labelme's own export gives it, and later shapes lie over earlier ones.
"""

import base64
import binascii
import io
import os

import numpy as np
from PIL import Image

from deeplab.core.base.errors import InputError
from deeplab.datasets.annotations import annotation_set, drawing
from deeplab.datasets.annotations.annotation_set import IGNORED, UNSPLIT, AnnotationSet, Broken, Drawing, Entry
from deeplab.datasets.annotations.image_folder import ImageFolder

TOOL = 'labelme JSON'
LAYOUT = 'a folder of NAME.json with "shapes", beside the images'

_BACKGROUND = '_background_'
# Shape types without area.
_WITHOUT_AREA = ('point', 'points', 'line', 'linestrip')
# Shape type -> (number of points, or the least number where it is negative, function of class name and points).
_SHAPES = {
    'polygon': (-3, drawing.polygon_of_pixels),
    'oriented_rectangle': (4, drawing.polygon_of_pixels),
    'rectangle': (2, drawing.rectangle),
    'circle': (2, drawing.circle),
}


class EmbeddedImage:
  """The image that a JSON of labelme holds itself; read when it is needed, so that few are held."""

  def __init__(self, json_path):
    self._json_path = json_path

  def __str__(self):
    return f'{self._json_path} (imageData)'

  def read_bytes(self):
    """bytes of the image file; raises InputError where the text is no base64."""
    return _decode_base64(annotation_set.read_json(self._json_path)['imageData'], str(self))


def _decode_base64(text, source):
  try:
    return base64.b64decode(text, validate=True)
  except (TypeError, ValueError, binascii.Error) as error:
    raise InputError(f'{source} is no base64 ({error}); save it again in labelme.') from error


def _json_files(folder):
  return sorted(name for name in os.listdir(folder) if name.lower().endswith('.json') and not name.startswith('.'))


def recognise(path):
  """Whether `path` is a folder in which a JSON has shapes, or all are broken."""
  names = _json_files(path)
  num_broken = 0
  for name in names:
    try:
      content = annotation_set.read_json(os.path.join(path, name))
    except InputError:
      num_broken += 1
      continue
    if isinstance(content, dict) and 'shapes' in content:
      return True
  return 0 < len(names) == num_broken


def read(path, image_folder, image_extensions):
  """Reads the export; see readers.read."""
  folder = ImageFolder(image_folder or path, image_extensions)
  entries, without_area, taken = [], [], set()
  for name in _json_files(path):
    entry, flat_shapes = _read_file(os.path.join(path, name), folder)
    taken.add(os.path.normpath(str(entry.image)))
    taken.add(os.path.splitext(name)[0])
    entries.append(entry)
    without_area += [f'{entry.name}: {kind}' for kind in flat_shapes]
  used = {region.class_name for entry in entries if isinstance(entry.label, Drawing) for region in entry.label.regions}
  background = next((name for name in sorted(used) if annotation_set.is_background(name)), _BACKGROUND)
  names = sorted(name for name in used if name != IGNORED and not annotation_set.is_background(name))
  remarks = [f'{len(without_area)} shapes have no area and are left out: {annotation_set.listed(without_area)}.'
             ] if without_area else []
  alone = [file_name for file_name in folder.files
           if os.path.normpath(os.path.join(folder.path, file_name)) not in taken and os.path.splitext(file_name)[0] not in taken]
  problems = [f'{len(alone)} images of {folder.path} have no JSON: {annotation_set.listed(alone)}. Annotate them, or save them '
              'without shapes where all is background.'] if alone else []
  return AnnotationSet(TOOL, {UNSPLIT: entries}, [background, *names], remarks=remarks, problems=problems)


def _read_file(path, folder):
  """(Entry, types of shapes without area) of a JSON."""
  name = os.path.splitext(os.path.basename(path))[0]
  try:
    content = annotation_set.read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get('shapes'), list):
      raise InputError(f'{path} has no list "shapes"; it is no JSON of labelme. Take it out of the folder.')
    drawn, flat_shapes = _drawing(path, content)
  except InputError as error:
    return Entry(name, folder.find_stem(name)[0], Broken(str(error))), []
  return Entry(name, _image_of(path, name, content, folder), drawn), flat_shapes


def _image_of(path, name, content, folder):
  """Image of a JSON as labelme takes it: the embedded one first, then imagePath, then the one of the same name."""
  if content.get('imageData'):
    return EmbeddedImage(path)
  named = content.get('imagePath')
  found = folder.find_file(named) if isinstance(named, str) and named else None
  alike = folder.find_stem(name)[0]
  return found if found and (os.path.isfile(found) or not os.path.isfile(alike)) else alike


def _drawing(path, content):
  """(Drawing, types of shapes without area) of the content of a JSON."""
  size = content.get('imageHeight'), content.get('imageWidth')
  if None not in size and not all(type(side) is int and side > 0 for side in size):
    raise InputError(f'{path}: its image has the size {size[0]}x{size[1]} (height x width); it must be whole numbers of pixels.')
  regions, flat_shapes = [], []
  for number, shape in enumerate(content['shapes'], 1):
    where = f'{path}, shape {number}'
    if not isinstance(shape, dict) or not isinstance(shape.get('label'), str) or not shape['label']:
      raise InputError(f'{where}: {str(shape)[:60]} has no "label".')
    # labelme's first releases knew polygons only.
    kind = shape.get('shape_type') or 'polygon'
    if kind in _WITHOUT_AREA:
      flat_shapes.append(kind)
    else:
      regions.append(_region(shape, kind, where))
  return Drawing(path, None if None in size else size, regions), flat_shapes


def _region(shape, kind, where):
  if kind == 'mask':
    return _region_of_mask(shape, where)
  if kind not in _SHAPES:
    raise InputError(f'{where} is of type {kind!r}; known are {annotation_set.listed([*_SHAPES, "mask"])}.')
  number, make = _SHAPES[kind]
  points = _points(shape, where)
  if len(points) < -number if number < 0 else len(points) != number:
    raise InputError(f'{where}: a {kind} has {f"{-number} points or more" if number < 0 else f"{number} points"}, this one has '
                     f'{len(points)}.')
  return make(shape['label'], points)


def _points(shape, where):
  try:
    points = np.array(shape.get('points'), np.float64)
  except (TypeError, ValueError):
    points = np.zeros([0])
  if points.ndim != 2 or points.shape[1] != 2 or not np.isfinite(points).all():
    raise InputError(f'{where}: its points are {str(shape.get("points"))[:60]}; they must be a list of [x, y].')
  return points


def _region_of_mask(shape, where):
  """Region of a picture of base64 PNG whose first pixel lies at the first point."""
  points = _points(shape, where)
  data = _decode_base64(shape.get('mask'), f'{where}: its mask')
  try:
    height, width = _mask_pixels(data).shape
  except (OSError, SyntaxError, ValueError) as error:
    raise InputError(f'{where}: its mask is no picture ({error}); save it again in labelme.') from error
  left, top = (int(side) for side in points.min(axis=0))
  return drawing.bitmap(shape['label'], (left, top, left + width, top + height), lambda: _mask_pixels(data))


def _mask_pixels(data):
  with Image.open(io.BytesIO(data)) as picture:
    return np.asarray(picture.convert('L')) > 0
