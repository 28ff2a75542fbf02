"""COCO instances: one JSON with the polygons and run lengths of all images, as many tools write it.

    instances.json                            --image_folder, or the images beside it or in `images`
    <split>/_annotations.coco.json            Roboflow: the images beside it
    annotations/instances_<split>.json        CVAT and datumaro: the images in `images` or `images/<split>`
"""

import collections
import glob
import importlib
import os

import numpy as np

from deeplab.core.base.errors import InputError
from deeplab.datasets.annotations import annotation_set, drawing
from deeplab.datasets.annotations.annotation_set import UNSPLIT, AnnotationSet, Broken, Drawing, Entry
from deeplab.datasets.annotations.image_folder import ImageFolder

TOOL = 'COCO instances'
LAYOUT = 'a JSON file with "images", "annotations" and "categories"'

_LISTS = ('images', 'annotations', 'categories')
_ROBOFLOW_FILE = '_annotations.coco.json'
# Subsets that mean the splits of this project; `default` is CVAT's for images that were put into none.
_SPLITS = {'valid': 'val', 'default': UNSPLIT, 'train2017': 'train', 'val2017': 'val', 'train2014': 'train', 'val2014': 'val'}


def recognise(path):
  """Whether `path` is a JSON file (its content is looked at when it is read), or a folder that holds such files."""
  return bool(_files_of_splits(path)) if os.path.isdir(path) else path.lower().endswith('.json')


def _files_of_splits(folder):
  """Dict, split -> path, of a folder as Roboflow or CVAT write it, or one with a single JSON."""
  found = {}
  for path in _glob(folder, '*', _ROBOFLOW_FILE):
    found[os.path.basename(os.path.dirname(path))] = path
  for path in _glob(folder, 'annotations', 'instances_*.json'):
    found[os.path.basename(path)[len('instances_'):-len('.json')]] = path
  alone = _glob(folder, '*.json')
  if not found and len(alone) == 1 and _holds_lists(alone[0]):
    found[UNSPLIT] = alone[0]
  splits = {_SPLITS.get(name, name): path for name, path in found.items()}
  if len(splits) == 1 and not splits.keys() & {'train', 'val', 'test'}:
    # One file whose name says nothing is no split: a part of it becomes `val`.
    return {UNSPLIT: next(iter(splits.values()))}
  return splits


def _glob(folder, *pattern):
  return sorted(glob.glob(os.path.join(glob.escape(folder), *pattern)))


def _holds_lists(path):
  try:
    content = annotation_set.read_json(path)
  except InputError:
    return False
  return isinstance(content, dict) and 'categories' in content and 'images' in content


def read(path, image_folder, image_extensions):
  """Reads the export; see readers.read."""
  files = _files_of_splits(path) if os.path.isdir(path) else {UNSPLIT: path}
  contents = {split: _read_file(json_path) for split, json_path in files.items()}
  categories = _categories(contents, files)
  splits, remarks, problems = {}, [], []
  for split, content in contents.items():
    reading = _Reading(files[split], content, categories)
    folder = _find_images(files[split], image_folder, image_extensions, content)
    splits[split] = reading.entries(folder)
    problems += reading.problems
    unlisted = _unlisted(folder, splits[split])
    if unlisted:
      remarks.append(f'{len(unlisted)} images of {folder.path} are not listed in {files[split]} and left out: '
                     f'{annotation_set.listed(unlisted)}.')
  names = [name for _, name in sorted(categories.items()) if not annotation_set.is_background(name)]
  background = next((name for name in categories.values() if annotation_set.is_background(name)), 'background')
  return AnnotationSet(TOOL, splits, [background, *names], remarks=remarks, problems=problems)


def _read_file(path):
  content = annotation_set.read_json(path)
  if isinstance(content, dict) and 'shapes' in content:
    raise InputError(f'{path} is a JSON of labelme; give the folder that holds it.')
  for name in _LISTS:
    if not isinstance(content, dict) or not isinstance(content.get(name), list):
      raise InputError(f'{path} has no list {name!r}; COCO instances have {annotation_set.listed(_LISTS)}.')
    wrong = next((item for item in content[name] if not isinstance(item, dict)), None)
    if wrong is not None:
      raise InputError(f'{path}: {name!r} holds {str(wrong)[:60]!r}; each entry must be an object.')
  if any(_is_compressed(annotation.get('segmentation')) for annotation in content['annotations']):
    _require_pycocotools(path)
  return content


def _is_compressed(segmentation):
  return isinstance(segmentation, dict) and isinstance(segmentation.get('counts'), str)


def _require_pycocotools(path):
  try:
    importlib.import_module('pycocotools.mask')
  except ImportError as error:
    raise InputError(f'{path} holds compressed run lengths, which need the package pycocotools: "pip install pycocotools", or '
                     '"pip install .[coco]" in the folder of this project.') from error


def _categories(contents, files):
  """Dict, id of a category -> name; all files must agree."""
  categories = {}
  for split, content in contents.items():
    for category in content['categories']:
      number, name = category.get('id'), category.get('name')
      if type(number) is not int or not isinstance(name, str) or not name:
        raise InputError(f'{files[split]}: category {str(category)[:80]} needs an "id" (whole number) and a "name".')
      if categories.setdefault(number, name) != name:
        raise InputError(f'{files[split]}: category {number} is {name!r} here and {categories[number]!r} before.')
  if not categories:
    raise InputError(f'{annotation_set.listed(files.values())} lists no category.')
  annotation_set.refuse_repeated(categories.values(), annotation_set.listed(files.values()))
  return categories


def _find_images(json_path, image_folder, image_extensions, content):
  """ImageFolder: the one that is given, or where the first image is found near the JSON."""
  beside = os.path.dirname(json_path) or '.'
  subset = os.path.splitext(os.path.basename(json_path))[0].removeprefix('instances_')
  above = os.path.join(beside, os.pardir, 'images')
  near = [beside, os.path.join(beside, 'images'), os.path.join(above, subset), above]
  if not content['images']:
    raise InputError(f'{json_path} lists no image.')
  first = str(content['images'][0].get('file_name'))
  for candidate in [] if image_folder else filter(os.path.isdir, near):
    folder = ImageFolder(candidate, image_extensions)
    if os.path.isfile(folder.find_file(first)):
      return folder
  if not image_folder:
    raise InputError(f'{json_path}: its first image, {first!r}, lies neither beside it nor in {near[1]} or {above}. Give the '
                     'folder as --image_folder.')
  return ImageFolder(image_folder, image_extensions)


def _unlisted(folder, entries):
  """Images that lie where those of the entries lie, but are none of them."""
  taken = {os.path.normpath(entry.image) for entry in entries}
  folders = {os.path.dirname(path) for path in taken}
  full = {path: os.path.normpath(os.path.join(folder.path, path)) for path in folder.files}
  return [path for path in folder.files if full[path] not in taken and os.path.dirname(full[path]) in folders]


class _Reading:
  """One file while it is read.

  Attributes:
    problems: lines on annotations of no image.
  """

  def __init__(self, path, content, categories):
    self._path = path
    self._images = content['images']
    self._categories = categories
    self._annotations = collections.defaultdict(list)
    for annotation in content['annotations']:
      self._annotations[_key(annotation.get('image_id'))].append(annotation)
    self.problems = self._describe_lost()

  def _describe_lost(self):
    """A problem for annotations whose image is not listed."""
    ids = {_key(image.get('id')) for image in self._images}
    lost = {number: annotations for number, annotations in self._annotations.items() if number not in ids}
    count = sum(map(len, lost.values()))
    return [f'{self._path}: {count} annotations belong to images that it does not list: image_id '
            f'{annotation_set.listed(lost)}.'] if lost else []

  def entries(self, folder):
    """List of Entry, one per image of the file."""
    return [self._entry(image, folder) for image in self._images]

  def _entry(self, image, folder):
    file_name = image.get('file_name')
    if not isinstance(file_name, str) or not file_name:
      raise InputError(f'{self._path}: image {str(image)[:80]} needs a "file_name".')
    try:
      label = self._drawing(image, file_name)
    except InputError as error:
      label = Broken(str(error))
    return Entry(annotation_set.record_name(file_name), folder.find_file(file_name), label)

  def _drawing(self, image, file_name):
    source = f'{self._path} (image {file_name})'
    size = image.get('height'), image.get('width')
    if size != (None, None) and not all(type(side) is int and side > 0 for side in size):
      raise InputError(f'{source}: its size is {size[0]}x{size[1]} (height x width); it must be whole numbers of pixels.')
    sized = []
    for annotation in self._annotations[_key(image.get('id'))]:
      where = f'{source}: annotation {annotation.get("id")}'
      if annotation.get('category_id') not in self._categories:
        raise InputError(f'{where} is of category {annotation.get("category_id")}, which is not listed; the categories are '
                         f'{annotation_set.listed(f"{number} ({name})" for number, name in sorted(self._categories.items()))}.')
      sized.append(_region(self._categories[annotation['category_id']], annotation.get('segmentation'), size, where))
    # Larger ones first: what lies on them stays visible.
    regions = [region for _, region in sorted(sized, key=lambda item: -item[0])]
    return Drawing(source, None if size == (None, None) else size, regions)


def _key(number):
  """An image id as a key: ids are numbers, in some exports texts."""
  return number if isinstance(number, (int, str)) else str(number)


def _region(class_name, segmentation, size, where):
  """(area in pixels, Region) of a segmentation."""
  if isinstance(segmentation, dict):
    return _region_of_runs(class_name, segmentation, size, where)
  if not segmentation:
    raise InputError(f'{where} has no segmentation; a box alone marks no pixels. Annotate with polygons or masks.')
  flat = isinstance(segmentation, list) and not isinstance(segmentation[0], list)
  polygons = [_points(polygon, where) for polygon in ([segmentation] if flat else segmentation)]
  return sum(map(_area, polygons)), drawing.polygons_of_corners(class_name, polygons)


def _points(polygon, where):
  """float [points, 2] of a list of x and y in turn."""
  try:
    numbers = np.array(polygon, np.float64)
  except (TypeError, ValueError):
    numbers = np.zeros([0])
  if numbers.ndim != 1 or numbers.size < 6 or numbers.size % 2 or not np.isfinite(numbers).all():
    raise InputError(f'{where}: {str(polygon)[:60]} is no polygon; it must be a list of x and y in turn, three points or more.')
  return numbers.reshape(-1, 2)


def _area(points):
  (x, y), (next_x, next_y) = points.T, np.roll(points, -1, axis=0).T
  return abs(float(np.sum(x * next_y - next_x * y))) / 2


def _region_of_runs(class_name, segmentation, size, where):
  counts, rle_size = segmentation.get('counts'), segmentation.get('size')
  if not isinstance(rle_size, list) or len(rle_size) != 2 or not all(type(side) is int and side > 0 for side in rle_size):
    raise InputError(f'{where}: its run lengths have the size {rle_size}; it must be [height, width].')
  if size not in (tuple(rle_size), (None, None)):
    raise InputError(f'{where}: its run lengths are of {rle_size[0]}x{rle_size[1]} pixels, its image of {size[0]}x{size[1]} '
                     '(height x width).')
  height, width = rle_size
  if _is_compressed(segmentation):
    area, pixels = _compressed(segmentation, where)
  else:
    area, pixels = _uncompressed(counts, height, width, where)
  return area, drawing.bitmap(class_name, (0, 0, width, height), pixels)


def _uncompressed(counts, height, width, where):
  """(area, function that gives bool [height, width]) of run lengths, column by column, beginning with pixels outside."""
  is_list = isinstance(counts, list) and all(type(count) is int and count >= 0 for count in counts)
  if not is_list or sum(counts) != height * width:
    total = f'; these add up to {sum(counts)}' if is_list else ''
    raise InputError(f'{where}: its run lengths must be whole numbers that add up to {height} x {width} = {height * width}'
                     f'{total}.')

  def pixels():
    inside = np.arange(len(counts)) % 2 == 1
    return np.repeat(inside, counts).reshape(width, height).T

  return sum(counts[1::2]), pixels


def _compressed(segmentation, where):
  """Like _uncompressed, of run lengths in COCO's compressed text."""
  from pycocotools import mask
  height, width = segmentation['size']
  counts = segmentation['counts'].encode()
  compressed = {'size': [height, width], 'counts': counts}

  def pixels():
    try:
      decoded = mask.decode(compressed)
    except ValueError:
      decoded = np.zeros([0, 0], np.uint8, order='F')
    # pycocotools does not notice that a text ends too early; written again, such a text is another.
    if decoded.size == 0 or mask.encode(decoded)['counts'] != counts:
      raise InputError(f'{where}: its compressed run lengths are not those of {height}x{width} pixels (height x width).')
    return decoded.astype(bool)

  return int(mask.area(compressed)), pixels
