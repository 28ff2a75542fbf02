"""Converts ADE20K (the 150 classes of the scene parsing benchmark) to records.

    python -m deeplab.datasets.build_ade20k_data --train_image_folder=ADEChallengeData2016/images/training ...

A label has the values 0 to 150; 0 is none of the classes and ignored.
"""

from absl import flags

from deeplab import common
from deeplab.datasets import build_data, dataset_info, file_pairs, image_files

FLAGS = flags.FLAGS

_NUM_SHARDS = 4


def _define_flags():
  root = './ADE20K/ADEChallengeData2016'
  build_data.define_flags(output_dir='./ADE20K/tfrecord')
  flags.DEFINE_string('train_image_folder', f'{root}/images/training', 'Folder of the images to train on.')
  flags.DEFINE_string('train_image_label_folder', f'{root}/annotations/training', 'Folder of their labels.')
  flags.DEFINE_string('val_image_folder', f'{root}/images/validation', 'Folder of the images to evaluate on.')
  flags.DEFINE_string('val_image_label_folder', f'{root}/annotations/validation', 'Folder of their labels.')


def main(unused_argv):
  splits = {
      'train': file_pairs.pairs_of_folders(FLAGS.train_image_folder, FLAGS.train_image_label_folder, FLAGS.image_format),
      'val': file_pairs.pairs_of_folders(FLAGS.val_image_folder, FLAGS.val_image_label_folder, FLAGS.image_format),
  }
  build_data.build(splits, dataset_info.get_descriptor('ade20k'), FLAGS.output_dir, _NUM_SHARDS, FLAGS.skip_broken,
                   image_files.read_color_table(FLAGS.color_table), FLAGS.exif_orientation)


if __name__ == '__main__':
  _define_flags()
  common.run_program(main)
