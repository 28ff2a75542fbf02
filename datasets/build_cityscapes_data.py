"""Converts Cityscapes (fine annotations, 19 classes) to records.

    python -m deeplab.datasets.build_cityscapes_data --cityscapes_root=cityscapes --output_dir=cityscapes/tfrecord

The labels are `*_gtFine_labelTrainIds.png`, which createTrainIdLabelImgs.py of cityscapesscripts writes.
"""

import os

from absl import flags

from deeplab import common
from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf
from deeplab.datasets import build_data, dataset_info, image_files

FLAGS = flags.FLAGS

_NUM_SHARDS = 10
_SPLITS_TO_FOLDERS = {'train_fine': 'train', 'val_fine': 'val', 'test_fine': 'test'}
_IMAGE_SUFFIX = '_leftImg8bit.png'
_LABEL_SUFFIX = '_gtFine_labelTrainIds.png'


def _define_flags():
  build_data.define_flags(output_dir='./tfrecord')
  flags.DEFINE_string('cityscapes_root', './cityscapes', 'Folder that holds leftImg8bit and gtFine.')


def pairs_of_root(root):
  """Pairs of an image and the label of the same city, sequence and frame.

  Args:
    root: folder that holds leftImg8bit and gtFine.

  Returns:
    Dict, split -> list of Pair, for the folders train, val and test that have images; those of test need no labels.

  Raises:
    ValueError: there is no image.
  """
  splits = {}
  for split, folder in _SPLITS_TO_FOLDERS.items():
    pairs = []
    lonely = set(tf.io.gfile.glob(os.path.join(root, 'gtFine', folder, '*', '*' + _LABEL_SUFFIX)))
    for image in sorted(tf.io.gfile.glob(os.path.join(root, 'leftImg8bit', folder, '*', '*' + _IMAGE_SUFFIX))):
      city = os.path.basename(os.path.dirname(image))
      name = os.path.basename(image).removesuffix(_IMAGE_SUFFIX)
      label = os.path.join(root, 'gtFine', folder, city, name + _LABEL_SUFFIX)
      needs_label = split not in dataset_info.TEST_SPLITS or os.path.exists(label)
      pairs.append(build_data.Pair(name, image, label if needs_label else None))
      lonely.discard(label)
    if pairs:
      pairs += [build_data.Pair(os.path.basename(label), None, label, f'{label} has no image in leftImg8bit/{folder}.')
                for label in sorted(lonely)]
      splits[split] = pairs
  if not splits:
    raise InputError(f'No file matches {os.path.join(root, "leftImg8bit", "{train,val,test}", "*", "*" + _IMAGE_SUFFIX)}; give '
                     'the folder that holds leftImg8bit and gtFine as --cityscapes_root.')
  return splits


def main(unused_argv):
  build_data.build(pairs_of_root(FLAGS.cityscapes_root), dataset_info.get_descriptor('cityscapes'), FLAGS.output_dir, _NUM_SHARDS,
                   FLAGS.skip_broken, image_files.read_color_table(FLAGS.color_table), FLAGS.exif_orientation)


if __name__ == '__main__':
  _define_flags()
  common.run_program(main)
