"""CVAT's "Segmentation mask 1.1", and PASCAL VOC segmentation: label pictures, and a table of their colours."""

import collections
import os
import re

from deeplab.core.base.errors import InputError
from deeplab.datasets.annotations import annotation_set
from deeplab.datasets.annotations.annotation_set import IGNORED, UNSPLIT, AnnotationSet, Broken, Entry, PictureValues
from deeplab.datasets.annotations.image_folder import ImageFolder

TOOL = 'CVAT "Segmentation mask 1.1" or PASCAL VOC'
LAYOUT = 'a folder with labelmap.txt, SegmentationClass and ImageSets/Segmentation'

_LABEL_MAP = 'labelmap.txt'
_LABELS = 'SegmentationClass'
_LISTS = os.path.join('ImageSets', 'Segmentation')
# CVAT's subset for images that were put into none.
_NO_SUBSET = 'default'
# PASCAL VOC paints the rim of objects, which does not count, with this entry of its palette.
_RIM = (224, 224, 192)
_ROW = re.compile(r'(?P<name>.+?):\s*(?P<color>\d+\s*,\s*\d+\s*,\s*\d+)\s*(:.*)?')


def recognise(path):
  """Whether `path` is such a folder; PASCAL VOC itself has no labelmap.txt."""
  return os.path.isdir(os.path.join(path, _LABELS)) and (
      os.path.isfile(os.path.join(path, _LABEL_MAP)) or os.path.isdir(os.path.join(path, _LISTS)))


def read(path, image_folder, image_extensions):
  """Reads the export; see readers.read."""
  default_folder = os.path.join(path, 'JPEGImages')
  if not image_folder and not os.path.isdir(default_folder):
    raise InputError(f'{path} has no JPEGImages; CVAT writes it with "Save images". Else give the images as --image_folder.')
  folder = ImageFolder(image_folder or default_folder, image_extensions)
  labels = ImageFolder(os.path.join(path, _LABELS), ('png',))
  lists = _read_lists(os.path.join(path, _LISTS)) or {UNSPLIT: [os.path.splitext(name)[0] for name in labels.files]}
  splits = {split: [_entry(line, folder, labels) for line in lines] for split, lines in lists.items()}
  label_map = os.path.join(path, _LABEL_MAP)
  names, has_background, pictures = _read_label_map(label_map) if os.path.isfile(label_map) else (None, True, None)
  return AnnotationSet(TOOL, splits, names, has_background, pictures, _remarks_on_unlisted(splits, folder, labels))


def _read_lists(folder):
  """Dict, split -> lines of its list."""
  names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
  lists = {}
  for name in names:
    split, extension = os.path.splitext(name)
    if extension == '.txt':
      lines = [line.strip().strip('"') for line in annotation_set.read_text(os.path.join(folder, name)).splitlines()]
      lists[UNSPLIT if split == _NO_SUBSET else split] = [line for line in lines if line]
  return {split: lines for split, lines in lists.items() if lines}


def _entry(line, folder, labels):
  """Entry of a line of a list: a name, with or without the extension of the image."""
  stem, extension = os.path.splitext(line)
  name = stem if extension and folder.is_image(line) else line
  images, pictures = folder.find_stem(name), labels.find_stem(name)
  # CVAT lists images without annotation, and writes no label for them.
  label = pictures[0] if os.path.isfile(pictures[0]) else None
  if len(images) > 1:
    label = Broken(f'{name} stands for several images: {annotation_set.listed(images)}; remove all but one.')
  return Entry(annotation_set.record_name(f'{name}.png'), images[0], label)


def _remarks_on_unlisted(splits, folder, labels):
  taken = {os.path.normpath(path) for entries in splits.values() for entry in entries for path in (entry.image, entry.label)
           if isinstance(path, str)}
  remarks = []
  for kind, files in (('images', folder), ('labels', labels)):
    left = [name for name in files.files if os.path.normpath(os.path.join(files.path, name)) not in taken]
    if left:
      remarks.append(f'{len(left)} {kind} of {files.path} are in no list of {_LISTS} and left out: '
                     f'{annotation_set.listed(left)}.')
  return remarks


def _read_label_map(path):
  """(names of classes, whether the first is background, PictureValues) of a labelmap.txt.

  A line is `name:red,green,blue:parts:actions`; the name may hold colons itself.
  """
  rows = []
  for number, line in enumerate(annotation_set.read_text(path).splitlines(), 1):
    if line.strip() and not line.lstrip().startswith('#'):
      rows.append(_read_row(line, f'{path}, line {number}'))
  if not rows:
    raise InputError(f'{path} holds no class; each line is name:red,green,blue::')
  annotation_set.refuse_repeated([name for name, _ in rows], path)
  colors = collections.defaultdict(list)
  for name, color in rows:
    colors[color].append(name)
  for color, names in colors.items():
    if len(names) > 1:
      raise InputError(f'{path}: colour {color} stands for {annotation_set.listed(names)}; each class needs a colour of its own.')
  background = next((name for name, _ in rows if annotation_set.is_background(name)), colors.get((0, 0, 0), [None])[0])
  others = [name for name, _ in rows if name != background]
  values = PictureValues(path, {row: name for row, (name, _) in enumerate(rows)},
                         {_RIM: IGNORED, **{color: name for name, color in rows}})
  return [background, *others] if background else others, background is not None, values


def _read_row(line, where):
  """(name, (red, green, blue)) of a line."""
  found = _ROW.fullmatch(line.strip())
  color = tuple(int(part) for part in found['color'].split(',')) if found else ()
  if not found or max(color) > 255:
    raise InputError(f'{where}: {line.strip()!r} gives no colour of a class; write name:red,green,blue:: with numbers 0 to 255.')
  return found['name'].strip(), color
