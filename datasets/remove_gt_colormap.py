"""Writes labels with a colour map as gray PNG files of the class numbers.

    python -m deeplab.datasets.remove_gt_colormap --original_gt_folder=SegmentationClass --output_dir=SegmentationClassRaw

The converters read both kinds, so that this is for other programs that need the numbers.
"""

import os

from absl import flags

from deeplab import common
from deeplab.core.base.errors import InputError
from deeplab.datasets import image_files

FLAGS = flags.FLAGS


def _define_flags():
  root = './VOCdevkit/VOC2012'
  flags.DEFINE_string('original_gt_folder', f'{root}/SegmentationClass', 'Folder of the labels.')
  flags.DEFINE_string('segmentation_format', 'png', 'Their extension.')
  flags.DEFINE_string('output_dir', f'{root}/SegmentationClassRaw', 'Folder for the gray labels; made if it is not there.')
  flags.DEFINE_string('color_table', None, 'Text file for labels in colour; each line is "value red green blue".')


def remove_colormap(original_gt_folder, segmentation_format, output_dir, color_table=None):
  """Writes the values of all labels of a folder; nothing, if one of them has none.

  Args:
    original_gt_folder: folder of PNG files: palette, gray, or colour.
    segmentation_format: their extension.
    output_dir: folder for gray PNG files of 8 bits under the same names.
    color_table: dict (red, green, blue) -> value, for labels in colour.

  Raises:
    ValueError: there is no label, or some cannot be read as values; all of these are named.
  """
  paths = image_files.list_folder(original_gt_folder, (segmentation_format.lower(),))
  if not paths:
    raise InputError(f'There is no *.{segmentation_format} in {original_gt_folder}.')
  problems = []
  labels = {}
  for stem, (path, *_) in paths.items():
    try:
      labels[stem] = image_files.read_label(path, color_table).data
    except InputError as error:
      problems.append(str(error))
  if problems:
    raise InputError(f'{len(problems)} problems, so that nothing is written:\n  ' + '\n  '.join(problems))
  os.makedirs(output_dir, exist_ok=True)
  for stem, data in labels.items():
    with open(os.path.join(output_dir, f'{stem}.png'), 'wb') as label_file:
      label_file.write(data)
  print(f'{len(labels)} labels written to {output_dir}.')


def main(unused_argv):
  remove_colormap(FLAGS.original_gt_folder, FLAGS.segmentation_format, FLAGS.output_dir,
                  image_files.read_color_table(FLAGS.color_table))


if __name__ == '__main__':
  _define_flags()
  common.run_program(main)
