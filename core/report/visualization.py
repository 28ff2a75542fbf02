"""Pictures of predictions: colours laid over the photograph, errors against a label, a legend of the classes.

Pictures are uint8 [height, width, 3], RGB; only Pillow draws, so that no display is needed.
"""

import io
import os

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from deeplab.core.base.tf_compat import tf
from deeplab.core.images import colormap

# Share of the class colour in an overlay.
_OPACITY = 0.55
# Share of white in the photograph under an error map.
_FADING = 0.55
_WRONG = (214, 39, 40)
_IGNORED = (90, 90, 90)

_WHITE = (255, 255, 255)
_INK = (30, 30, 30)
# Narrower pictures get a legend that is wider than they are.
_MIN_LEGEND_WIDTH = 240
_FONT_SIZES = (12, 28)
_PICTURE_WIDTH_PER_FONT_SIZE = 42
# Width of a legend without picture.
_LEGEND_WIDTH = 800


def overlay(image, label, colors):
  """The photograph with its classes in colour and white lines between them.

  Classes whose colour is black (background, by the custom of data sets) leave the photograph as it is.

  Args:
    image: uint8 [height, width, 3].
    label: int [height, width], classes.
    colors: uint8 [classes, 3].

  Returns:
    Picture.

  Raises:
    ValueError: a class without colour.
  """
  drawn = colormap.label_to_color_image(label, colors)
  mixed = np.rint(_OPACITY * drawn + (1 - _OPACITY) * image).astype(np.uint8)
  picture = np.where(drawn.any(axis=2, keepdims=True), mixed, image)
  picture[_borders(label)] = _WHITE
  return picture


def _borders(label):
  """bool [height, width]: the pixels whose right or lower neighbour has another class."""
  borders = np.zeros(label.shape, bool)
  borders[:, :-1] = label[:, :-1] != label[:, 1:]
  borders[:-1] |= label[:-1] != label[1:]
  return borders


def error_map(image, prediction, label, ignore_label):
  """The photograph in faint gray, wrong pixels in red and those that do not count in dark gray.

  Args:
    image: uint8 [height, width, 3].
    prediction: int [height, width], classes.
    label: int [height, width], classes or `ignore_label`.
    ignore_label: value of pixels that do not count.

  Returns:
    (picture, share of the pixels that count which are wrong; 0.0 where none counts).
  """
  gray = np.asarray(Image.fromarray(image).convert('L').convert('RGB'), np.float32)
  picture = np.rint(_FADING * 255 + (1 - _FADING) * gray).astype(np.uint8)
  counts = label != ignore_label
  wrong = counts & (prediction != label)
  picture[wrong] = _WRONG
  picture[~counts] = _IGNORED
  return picture, float(wrong.sum() / max(counts.sum(), 1))


def with_legend(picture, entries):
  """The picture above a white band that explains its colours.

  Args:
    picture: picture; without rows, the legend alone is drawn.
    entries: sequence of (RGB triple, text).

  Returns:
    Picture, at least as wide as the legend.
  """
  height, width, _ = picture.shape
  font_size = int(np.clip(width // _PICTURE_WIDTH_PER_FONT_SIZE, *_FONT_SIZES))
  font = ImageFont.load_default(font_size)
  line = round(1.6 * font_size)
  cell = 2 * line + max(int(font.getlength(text)) for _, text in entries)
  canvas_width = max(width, _MIN_LEGEND_WIDTH, cell)
  columns = canvas_width // cell
  canvas = Image.new('RGB', (canvas_width, height + line * (-(-len(entries) // columns) + 1)), _WHITE)
  canvas.paste(Image.fromarray(picture), (0, 0))
  draw = ImageDraw.Draw(canvas)
  for index, (color, text) in enumerate(entries):
    row, column = divmod(index, columns)
    x, y = column * cell + line // 2, height + row * line + line // 2
    draw.rectangle((x, y + 0.15 * line, x + 0.9 * line, y + 0.85 * line), tuple(color), _INK)
    draw.text((x + 1.2 * line, y + line / 2), text, _INK, font, anchor='lm')
  return np.asarray(canvas)


def _entries_of(prediction, descriptor):
  """Legend entries of the classes that were predicted, the largest first, each with its share of the pixels."""
  counts = np.bincount(prediction.ravel(), minlength=descriptor.num_classes)
  present = sorted(np.flatnonzero(counts), key=lambda index: -counts[index])
  return [(descriptor.colors[index], f'{descriptor.class_names[index]} {counts[index] / prediction.size:.1%}')
          for index in present]


def save_png(picture, path):
  """Writes a picture, or unsigned integers [height, width] as a gray one."""
  encoded = io.BytesIO()
  Image.fromarray(picture).save(encoded, 'png')
  with tf.io.gfile.GFile(path, 'wb') as png_file:
    png_file.write(encoded.getvalue())


def save_pictures(folder, name, image, prediction, label, descriptor):
  """Writes <name>_image.png, _prediction.png and _overlay.png, and _error.png where there is a label.

  Args:
    folder: where to.
    name: of the image.
    image: uint8 [height, width, 3].
    prediction: int [height, width], classes.
    label: int [height, width], classes or the ignored value; or None.
    descriptor: dataset_info.DatasetDescriptor, whose names and colours are used.
  """
  colors = np.array(descriptor.colors, np.uint8)
  pictures = {
      'image': image,
      'prediction': colormap.label_to_color_image(prediction, colors),
      'overlay': with_legend(overlay(image, prediction, colors), _entries_of(prediction, descriptor)),
  }
  if label is not None:
    errors, share = error_map(image, prediction, label, descriptor.ignore_label)
    pictures['error'] = with_legend(errors, [(_WRONG, f'wrong {share:.1%}'), (_IGNORED, 'not counted')])
  for kind, picture in pictures.items():
    save_png(picture, os.path.join(folder, f'{name}_{kind}.png'))


def save_legend(path, descriptor):
  """Writes a picture of all classes and their colours."""
  nothing = np.zeros([0, _LEGEND_WIDTH, 3], np.uint8)
  save_png(with_legend(nothing, list(zip(descriptor.colors, descriptor.class_names, strict=True))), path)


def resize_label(label, size):
  """Resizes a label to the nearest pixel with aligned corners, halves rounded up, as TensorFlow does.

  Args:
    label: [height, width], any dtype.
    size: (height, width) in pixels.
  """
  rows, columns = (_nearest_pixels(*lengths) for lengths in zip(label.shape, size, strict=True))
  return label[rows[:, np.newaxis], columns]


def _nearest_pixels(length, new_length):
  """For each pixel of an axis after resizing, the one it shows."""
  step = np.float32(length - 1) / np.float32(max(new_length - 1, 1))
  positions = np.arange(new_length, dtype=np.float32) * step
  lower = np.floor(positions)
  return np.minimum(lower + (positions - lower >= 0.5), length - 1).astype(np.int64)
