"""Draws a small data set in the layout of PASCAL VOC, on which a network learns within minutes.

    python -m deeplab.datasets.build_shapes_data --output_dir=shapes

Each image shows one to three shapes on a textured background. The classes differ by shape and by a typical colour, which varies;
the border of a shape, two pixels wide, is labelled 255, as in PASCAL VOC. The folder's dataset.json names the classes.
"""

import colorsys
import math
import os

import numpy as np
from absl import flags
from PIL import Image, ImageChops, ImageDraw, ImageFilter

from deeplab import common
from deeplab.core.images import colormap
from deeplab.datasets import dataset_info

FLAGS = flags.FLAGS

_VOID = 255
_WIDTH = 165
_HEIGHT = 130
# Images differ from the size above by up to this many pixels.
_SIZE_JITTER = 12
_RADIUS = (18, 38)
_MAX_SHAPES = 3
# The outlines are polygons; each is a list of (angle in turns, radius relative to the shape's).
_SHAPES = {
    'disc': [(index / 36, 1.0) for index in range(36)],
    'square': [(index / 4, 1.0) for index in range(4)],
    'triangle': [(index / 3, 1.0) for index in range(3)],
    'star': [(index / 10, 1.0 if index % 2 == 0 else 0.45) for index in range(10)],
    'cross': [(arm / 4 + turn, radius) for arm in range(4) for turn, radius in ((-0.05, 1.0), (0.05, 1.0), (0.125, 0.44))],
}
# Hue of a class in turns, and how far that of a shape may be from it.
_HUES = dict(zip(_SHAPES, (0.0, 0.13, 0.33, 0.58, 0.82), strict=True))
_HUE_JITTER = 0.04


def _define_flags():
  flags.DEFINE_string('output_dir', './shapes', 'Folder for JPEGImages, SegmentationClass and ImageSets/Segmentation.')
  flags.DEFINE_integer('num_train', 400, 'Images of the split train.', lower_bound=1)
  flags.DEFINE_integer('num_val', 40, 'Images of the split val.', lower_bound=1)
  flags.DEFINE_integer('seed', 0, 'Of the drawing; the same seed gives the same files.')


def _texture(rng, size, color, contrast):
  """Image of `size` around an RGB color (0..255): smooth patches and grain of the given contrast."""
  width, height = size
  patches = rng.normal(0, contrast, [height // 16 + 2, width // 16 + 2]).astype(np.float32)
  smooth = np.asarray(Image.fromarray(patches).resize(size, Image.Resampling.BICUBIC))
  grain = rng.normal(0, contrast / 2, [height, width])
  pixels = np.asarray(color) + (smooth + grain)[:, :, np.newaxis]
  return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def _color(rng, hue, saturation, value):
  return [255 * part for part in colorsys.hsv_to_rgb(hue % 1.0, rng.uniform(*saturation), rng.uniform(*value))]


def _mask(rng, size, outline):
  """Image of mode L, 255 within a shape of random place, size and angle."""
  radius = rng.uniform(*_RADIUS)
  center = [rng.uniform(radius * 0.6, side - radius * 0.6) for side in size]
  turned = rng.uniform()
  points = [(center[0] + radius * part * math.cos(math.tau * (angle + turned)),
             center[1] + radius * part * math.sin(math.tau * (angle + turned))) for angle, part in outline]
  mask = Image.new('L', size, 0)
  ImageDraw.Draw(mask).polygon(points, fill=255)
  return mask


def draw(rng):
  """One image and its label.

  Args:
    rng: numpy Generator.

  Returns:
    (RGB image, palette image of the same size with the values 0 to 5 and 255).
  """
  width, height = (int(side + rng.integers(-_SIZE_JITTER, _SIZE_JITTER + 1)) for side in (_WIDTH, _HEIGHT))
  size = (width, height)
  image = _texture(rng, size, _color(rng, rng.uniform(), saturation=(0.0, 0.3), value=(0.3, 0.9)), contrast=18)
  label = Image.new('L', size, 0)
  for _ in range(rng.integers(1, _MAX_SHAPES + 1)):
    index = int(rng.integers(len(_SHAPES)))
    name = list(_SHAPES)[index]
    mask = _mask(rng, size, _SHAPES[name])
    hue = _HUES[name] + rng.uniform(-_HUE_JITTER, _HUE_JITTER)
    image.paste(_texture(rng, size, _color(rng, hue, saturation=(0.6, 0.9), value=(0.6, 0.95)), contrast=12), mask=mask)
    label.paste(index + 1, mask=mask)
    border = ImageChops.subtract(mask.filter(ImageFilter.MaxFilter(3)), mask.filter(ImageFilter.MinFilter(3)))
    label.paste(_VOID, mask=border)
  return image.filter(ImageFilter.GaussianBlur(0.6)), label


def build_shapes(output_dir, num_train, num_val, seed=0):
  """Draws and writes the data set.

  Args:
    output_dir: folder; made if it is not there.
    num_train: images of the split train.
    num_val: images of the split val.
    seed: of the drawing.
  """
  folders = {name: os.path.join(output_dir, name) for name in ('JPEGImages', 'SegmentationClass', 'ImageSets/Segmentation')}
  for folder in folders.values():
    os.makedirs(folder, exist_ok=True)
  rng = np.random.default_rng(seed)
  palette = colormap.create_label_colormap('pascal')[:256].tobytes()
  for split, count in (('train', num_train), ('val', num_val)):
    names = [f'{split}_{index:04d}' for index in range(count)]
    for name in names:
      image, label = draw(rng)
      image.save(os.path.join(folders['JPEGImages'], f'{name}.jpg'), quality=92)
      label.putpalette(palette)
      label.save(os.path.join(folders['SegmentationClass'], f'{name}.png'))
    with open(os.path.join(folders['ImageSets/Segmentation'], f'{split}.txt'), 'w', encoding='utf-8') as list_file:
      list_file.write('\n'.join(names) + '\n')
  descriptor = dataset_info.describe('shapes', 1 + len(_SHAPES), splits_to_sizes={'train': num_train, 'val': num_val},
                                     class_names=['background', *_SHAPES])
  dataset_info.write_description(descriptor, os.path.join(output_dir, dataset_info.DESCRIPTION_FILE))
  print(f'{num_train} + {num_val} images of shapes drawn in {output_dir}.')


def main(unused_argv):
  build_shapes(FLAGS.output_dir, FLAGS.num_train, FLAGS.num_val, FLAGS.seed)


if __name__ == '__main__':
  _define_flags()
  common.run_program(main)
