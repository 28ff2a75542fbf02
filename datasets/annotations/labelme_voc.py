"""labelme's `labelme2voc`: JPEGImages, label pictures of indices, and the names of the classes in a text file."""

import os

from deeplab.core.base.errors import InputError
from deeplab.datasets.annotations import annotation_set
from deeplab.datasets.annotations.annotation_set import UNSPLIT, AnnotationSet, Entry
from deeplab.datasets.annotations.image_folder import ImageFolder

TOOL = 'labelme2voc'
LAYOUT = 'a folder with class_names.txt or labels.txt, JPEGImages, and SegmentationClassPNG or SegmentationClass'

_NAME_FILES = ('class_names.txt', 'labels.txt')
# Older releases keep arrays in SegmentationClass and pictures beside it.
_LABEL_FOLDERS = ('SegmentationClassPNG', 'SegmentationClass')


def _first_existing(folder, names):
  return next((path for name in names if os.path.exists(path := os.path.join(folder, name))), None)


def recognise(path):
  """Whether `path` is such a folder."""
  return bool(_first_existing(path, _NAME_FILES) and _first_existing(path, _LABEL_FOLDERS))


def read(path, image_folder, image_extensions):
  """Reads the export; see readers.read."""
  name_file = _first_existing(path, _NAME_FILES)
  names = annotation_set.read_names(name_file)
  folder = ImageFolder(image_folder or os.path.join(path, 'JPEGImages'), image_extensions)
  label_folder = _first_existing(path, _LABEL_FOLDERS)
  labels = {os.path.splitext(name)[0] for name in os.listdir(label_folder) if name.lower().endswith('.png')}
  if not labels:
    raise InputError(f'{label_folder} holds no PNG file; "labelme2voc.py" writes one per image.')
  stems = sorted({os.path.splitext(file_name)[0] for file_name in folder.files} | labels)
  entries = [Entry(annotation_set.record_name(stem), image, os.path.join(label_folder, f'{stem}.png'))
             for stem in stems for image in folder.find_stem(stem)]
  has_background = annotation_set.is_background(names[0])
  values = annotation_set.PictureValues(name_file, dict(enumerate(names)))
  return AnnotationSet(TOOL, {UNSPLIT: entries}, names, has_background, values)
