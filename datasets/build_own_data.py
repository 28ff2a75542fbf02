"""Converts own images and labels to records; the data set then describes itself, and no code is edited.

    python -m deeplab.datasets.build_own_data --image_folder=images --label_folder=labels --output_dir=tfrecord

An image `x.jpg` (or .png, .tif, .webp, .bmp and more) belongs to the label `x.png`. Without --list_folder, a part of the images
becomes the split `val` and the others `train`. What a labelling tool exported (CVAT, labelme, COCO, Roboflow) is converted by

    python -m deeplab.datasets.build_own_data --annotations=PATH --output_dir=tfrecord
"""

import os
import random

import numpy as np
from absl import flags

from deeplab import common
from deeplab.core.base.errors import InputError
from deeplab.datasets import annotated_pairs, build_data, dataset_info, file_pairs, image_files
from deeplab.datasets.annotations import annotation_set

FLAGS = flags.FLAGS

_NUM_SHARDS = 4
# Of the draw of the split `val`: the same images give the same splits.
_SPLIT_SEED = 0


def _define_flags():
  build_data.define_flags(output_dir='./tfrecord')
  flags.DEFINE_string('annotations', None, 'What a labelling tool exported: folder of CVAT or PASCAL VOC masks, labelme2voc, '
                      'labelme JSON, Roboflow masks, or a JSON of COCO instances; docs/own_data.md.')
  flags.DEFINE_string('image_folder', None, 'Folder of the images; with --annotations where the export does not hold them.')
  flags.DEFINE_string('label_folder', None, 'Folder of the labels.')
  flags.DEFINE_string('list_folder', None, 'Folder of <split>.txt, one name per line, or an image and its label; '
                      'unset: --val_fraction decides.')
  flags.DEFINE_float('val_fraction', 0.1, 'Part of the images that becomes the split val.', lower_bound=0.0, upper_bound=0.9)
  flags.DEFINE_string('dataset_name', 'own_data', 'Name of the data set.')
  flags.DEFINE_integer('num_classes', None, 'Number of classes; unset: the number of --class_names, or the largest label value '
                       'plus 1.', lower_bound=2, upper_bound=dataset_info.MAX_CLASSES)
  flags.DEFINE_integer('ignore_label', 255, 'Label value of pixels that do not count; the background is a class and does.',
                       lower_bound=0, upper_bound=255)
  flags.DEFINE_list('class_names', None, 'Names of the classes in the order of their values, comma separated, or a text file '
                    'with one name per line.')


def split_pairs(pairs, val_fraction):
  """Draws the split `val`.

  Args:
    pairs: list of Pair; those with a problem come into `train`, where they are reported.
    val_fraction: its share; of more than 0, at least one pair comes into it.

  Returns:
    Dict, 'train' and, unless it is empty, 'val' -> list of Pair.
  """
  broken = [pair for pair in pairs if pair.problem]
  pairs = [pair for pair in pairs if not pair.problem]
  random.Random(_SPLIT_SEED).shuffle(pairs)
  num_val = max(1, round(len(pairs) * val_fraction)) if val_fraction and len(pairs) > 1 else 0
  splits = {'train': pairs[num_val:] + broken, 'val': pairs[:num_val]}
  return splits if num_val else {'train': pairs + broken}


def count_classes(pairs, ignore_label, color_table=None):
  """Number of classes by the labels: the largest value plus 1.

  Args:
    pairs: list of Pair; a label that cannot be read is left to the conversion to report, one that is made is all background.
    ignore_label: value that is no class.
    color_table: dict (red, green, blue) -> value, or None.

  Returns:
    Number of classes.

  Raises:
    ValueError: the labels hold fewer than two classes.
  """

  def values(pair):
    try:
      return image_files.read_label(pair.label, color_table).counts > 0
    except InputError:
      return np.zeros(256, bool)

  labelled = [pair for pair in pairs if isinstance(pair.label, str) and not pair.problem]
  present = np.any([np.zeros(256, bool), *build_data.parallel_map(values, labelled)], axis=0)
  classes = [value for value in np.flatnonzero(present).tolist() if value != ignore_label]
  if max(classes, default=0) < 1:
    raise InputError(f'The labels hold {np.flatnonzero(present).tolist() or "nothing that can be read"}, and {ignore_label} is '
                     'the ignored value: fewer than two classes are left. Number the classes 0, 1, ..., or set --ignore_label '
                     'or --num_classes.')
  return max(classes) + 1


def read_class_names(values):
  """Names as --class_names gives them.

  Args:
    values: list of the comma separated parts; a single one that is a file holds one name per line. Or None.

  Returns:
    List of names; None without values.

  Raises:
    InputError: the file is wrong, or a name occurs twice.
  """
  if not values:
    return None
  if len(values) == 1 and os.path.isfile(values[0]):
    return annotation_set.read_names(values[0])
  names = [value.strip() for value in values]
  annotation_set.refuse_repeated(names, '--class_names')
  return names


def _num_classes(splits, color_table, class_names, source='--class_names'):
  named = len(class_names) if class_names else None
  if FLAGS.num_classes and named and named != FLAGS.num_classes:
    raise InputError(f'--num_classes={FLAGS.num_classes}, but {source} holds {named} names.')
  return FLAGS.num_classes or named or count_classes(sum(splits.values(), []), FLAGS.ignore_label, color_table)


def _check_flags():
  if FLAGS.annotations:
    for name in ('label_folder', 'list_folder'):
      if FLAGS[name].value:
        raise InputError(f'--{name}={FLAGS[name].value}: --annotations={FLAGS.annotations} says this itself; give one '
                         'of the two.')
  else:
    missing = [f'--{name}' for name in ('image_folder', 'label_folder') if not FLAGS[name].value]
    if missing:
      raise InputError(f'{" and ".join(missing)} must be given, or --annotations. --help lists the flags.')


def _convert_annotations(color_table, class_names):
  annotated = annotated_pairs.read(FLAGS.annotations, FLAGS.image_folder, class_names, FLAGS.ignore_label)
  splits = dict(annotated.splits)
  unsplit = splits.pop(annotation_set.UNSPLIT, [])
  for split, pairs in split_pairs(unsplit, FLAGS.val_fraction).items() if unsplit else []:
    splits.setdefault(split, []).extend(pairs)
  source = '--class_names' if class_names else FLAGS.annotations
  return splits, annotated.class_names, _num_classes(splits, color_table, annotated.class_names, source)


def main(unused_argv):
  _check_flags()
  color_table = image_files.read_color_table(FLAGS.color_table)
  class_names = read_class_names(FLAGS.class_names)
  if FLAGS.annotations:
    splits, class_names, num_classes = _convert_annotations(color_table, class_names)
  else:
    if FLAGS.list_folder:
      splits = file_pairs.pairs_of_lists(FLAGS.list_folder, FLAGS.image_folder, FLAGS.label_folder, FLAGS.image_format)
    else:
      splits = split_pairs(file_pairs.pairs_of_folders(FLAGS.image_folder, FLAGS.label_folder, FLAGS.image_format),
                           FLAGS.val_fraction)
    num_classes = _num_classes(splits, color_table, class_names)
  descriptor = dataset_info.describe(FLAGS.dataset_name, num_classes, FLAGS.ignore_label, class_names=class_names)
  build_data.build(splits, descriptor, FLAGS.output_dir, _NUM_SHARDS, FLAGS.skip_broken, color_table,
                   FLAGS.exif_orientation)


if __name__ == '__main__':
  _define_flags()
  common.run_program(main)
