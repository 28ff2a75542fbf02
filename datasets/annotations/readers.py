"""The table of tools: which one wrote an export is told from its content."""

import os

from deeplab.core.base.errors import InputError
from deeplab.datasets.annotations import annotation_set, coco, cvat_masks, labelme_json, labelme_voc, roboflow_masks

# Each module has TOOL, LAYOUT, recognise(path) and read(path, image_folder, image_extensions). The first that recognises counts:
# labelme comes last, because others hold JSON, too.
_FOLDER_READERS = (labelme_voc, cvat_masks, roboflow_masks, coco, labelme_json)
_FILE_READERS = (coco,)


def read(path, image_folder, image_extensions):
  """Reads what a labelling tool exported.

  Args:
    path: the folder or file.
    image_folder: folder of the images, or None where the tool says it.
    image_extensions: extensions of image files, small letters without dot.

  Returns:
    AnnotationSet; problems that concern a single image are its label.

  Raises:
    InputError: the export is of no known tool, or a file of it that all images need is wrong.
  """
  if not os.path.exists(path):
    raise InputError(f'--annotations={path}: there is no such file or folder.')
  readers = _FOLDER_READERS if os.path.isdir(path) else _FILE_READERS
  reader = None if _is_archive(path) else next((reader for reader in readers if reader.recognise(path)), None)
  if reader is None:
    raise InputError(_describe_unknown(path))
  annotations = reader.read(path, image_folder, image_extensions)
  splits = annotation_set.mark_repeated(annotations.splits)
  if not any(splits.values()):
    raise InputError('\n  '.join([f'--annotations={path} ({annotations.tool}) holds no image.', *annotations.problems]))
  remarks = [*annotations.remarks, *annotation_set.common_remarks(splits)]
  return annotations._replace(splits={split: entries for split, entries in splits.items() if entries}, remarks=remarks)


def _is_archive(path):
  return os.path.isfile(path) and os.path.splitext(path)[1].lower() in ('.zip', '.tar', '.gz', '.7z')


def _describe_unknown(path):
  if _is_archive(path):
    return f'--annotations={path} is an archive; unpack it and give the folder.'
  known = '\n  '.join(f'{reader.TOOL}: {reader.LAYOUT}' for reader in _FOLDER_READERS)
  return (f'--annotations={path} is no export that is known. These are:\n  {known}\nOther formats: docs/own_data.md says how to '
          'convert them.')
