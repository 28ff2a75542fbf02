"""Converts PASCAL VOC 2012, or a data set in its layout, to records.

    python -m deeplab.datasets.build_voc2012_data --output_dir=tfrecord --image_folder=VOC2012/JPEGImages \
        --semantic_segmentation_folder=VOC2012/SegmentationClass --list_folder=VOC2012/ImageSets/Segmentation

The labels may be the published ones with colour map, or those that remove_gt_colormap.py writes.
"""

from absl import flags

from deeplab import common
from deeplab.core.base.errors import InputError
from deeplab.datasets import build_data, dataset_info, file_pairs, image_files

FLAGS = flags.FLAGS

_NUM_SHARDS = 4


def _define_flags():
  root = './VOCdevkit/VOC2012'
  build_data.define_flags(output_dir='./tfrecord')
  flags.DEFINE_string('image_folder', f'{root}/JPEGImages', 'Folder of the images.')
  flags.DEFINE_string('semantic_segmentation_folder', f'{root}/SegmentationClassRaw', 'Folder of the labels.')
  flags.DEFINE_string('list_folder', f'{root}/ImageSets/Segmentation', 'Folder of <split>.txt, one name per line.')
  flags.DEFINE_string('description', None, 'JSON file (dataset.json) that says name, classes and ignored value of a data set in '
                      'this layout; unset: PASCAL VOC, 21 classes.')


def main(unused_argv):
  if FLAGS.description:
    descriptor = dataset_info.read_description(FLAGS.description)
    if descriptor is None:
      raise InputError(f'--description={FLAGS.description}: there is no such file.')
  else:
    descriptor = dataset_info.get_descriptor('pascal_voc_seg')
  splits = file_pairs.pairs_of_lists(FLAGS.list_folder, FLAGS.image_folder, FLAGS.semantic_segmentation_folder,
                                     FLAGS.image_format)
  build_data.build(splits, descriptor, FLAGS.output_dir, _NUM_SHARDS, FLAGS.skip_broken,
                   image_files.read_color_table(FLAGS.color_table), FLAGS.exif_orientation)


if __name__ == '__main__':
  _define_flags()
  common.run_program(main)
