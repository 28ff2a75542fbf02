"""A sheet of small pictures: images of a data set with labels over them, what the colours mean, how often each class occurs.

A wrong orientation, colour table or order of classes shows at a glance.
"""

from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from deeplab.core.report import visualization

MAX_PAIRS = 16

_COLUMNS = 4
# Pixels of the sheet.
_TILE_WIDTH, _TILE_HEIGHT = 360, 270
_MARGIN = 12
_FONT_SIZE = 14
_LINE = 22
_LEGEND_COLUMN = 372
_NAME_WIDTH, _BAR_WIDTH = 150, 100

_WHITE = (255, 255, 255)
_PAPER = (236, 236, 236)
_INK = (30, 30, 30)
_BAR = (120, 120, 120)
# Ignored pixels, and values that are no class.
_IGNORED = (90, 90, 90)
_NO_CLASS = (255, 0, 255)


class LabelledImage(NamedTuple):
  """A tile of the sheet.

  Attributes:
    caption: text below it.
    image: uint8 [height, width, 3], RGB.
    label: uint8 [height, width], classes or the ignored value; or None.
  """
  caption: str
  image: np.ndarray
  label: np.ndarray | None


def draw(title, pairs, descriptor, counts):
  """Draws the sheet.

  Args:
    title: text above it.
    pairs: list of LabelledImage, MAX_PAIRS at most; a label that does not fit its image is stretched over it.
    descriptor: dataset_info.DatasetDescriptor, whose names and colours are used.
    counts: int [256], number of pixels of each label value.

  Returns:
    Picture, uint8 [height, width, 3].
  """
  font = ImageFont.load_default(_FONT_SIZE)
  entries = _legend_entries(descriptor, counts)
  columns = min(_COLUMNS, max(len(pairs), 2))
  width = columns * (_TILE_WIDTH + _MARGIN) + _MARGIN
  legend_columns = width // _LEGEND_COLUMN
  top = _MARGIN + _LINE
  legend_top = top + -(-len(pairs) // columns) * (_TILE_HEIGHT + _LINE + _MARGIN)
  legend_rows = -(-len(entries) // legend_columns)
  canvas = Image.new('RGB', (width, legend_top + legend_rows * _LINE + _MARGIN), _WHITE)
  pen = ImageDraw.Draw(canvas)
  pen.text((_MARGIN, _MARGIN), _shortened(title, font, width - 2 * _MARGIN), _INK, font)
  colors = colors_of_values(descriptor)
  for index, pair in enumerate(pairs):
    row, column = divmod(index, columns)
    place = _MARGIN + column * (_TILE_WIDTH + _MARGIN), top + row * (_TILE_HEIGHT + _LINE + _MARGIN)
    _draw_tile(canvas, pen, place, pair, colors, font)
  largest = max(share for _, _, share in entries)
  for index, entry in enumerate(entries):
    column, row = divmod(index, legend_rows)
    _draw_entry(pen, (_MARGIN + column * _LEGEND_COLUMN, legend_top + row * _LINE), entry, largest, font)
  return np.asarray(canvas)


def colors_of_values(descriptor):
  """uint8 [256, 3], the colour of each label value: the class's, gray where it is ignored, magenta where it is no class."""
  colors = np.full([256, 3], _NO_CLASS, np.uint8)
  colors[:descriptor.num_classes] = descriptor.colors
  colors[descriptor.ignore_label] = _IGNORED
  return colors


def _legend_entries(descriptor, counts):
  """List of (color, name, share of all pixels): the classes in order, then the ignored value and those that are no class."""
  shares = counts / max(counts.sum(), 1)
  colors = colors_of_values(descriptor)
  is_class = np.arange(256) < descriptor.num_classes
  is_class[descriptor.ignore_label] = False
  entries = [(colors[value], f'{value} {descriptor.class_names[value]}', shares[value]) for value in np.flatnonzero(is_class)]
  ignored = shares[descriptor.ignore_label]
  no_class = shares[~is_class].sum() - ignored
  entries.append((_IGNORED, f'{descriptor.ignore_label} ignored', ignored))
  return entries + ([(_NO_CLASS, 'no class', no_class)] if no_class else [])


def _draw_tile(canvas, pen, place, pair, colors, font):
  left, top = place
  height, width, _ = pair.image.shape
  scale = min(_TILE_WIDTH / width, _TILE_HEIGHT / height)
  size = max(round(width * scale), 1), max(round(height * scale), 1)
  # Pixels of a small image are shown as they are.
  picture = np.asarray(Image.fromarray(pair.image).resize(size, Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BOX))
  if pair.label is not None:
    label = np.asarray(Image.fromarray(pair.label).resize(size, Image.Resampling.NEAREST))
    picture = visualization.overlay(picture, label, colors)
  pen.rectangle((left, top, left + _TILE_WIDTH - 1, top + _TILE_HEIGHT - 1), _PAPER)
  canvas.paste(Image.fromarray(picture), (left + (_TILE_WIDTH - size[0]) // 2, top + (_TILE_HEIGHT - size[1]) // 2))
  pen.text((left, top + _TILE_HEIGHT + 3), _shortened(pair.caption, font, _TILE_WIDTH), _INK, font)


def _draw_entry(pen, place, entry, largest, font):
  """A line of the legend: colour, name, bar as long as the share against the largest one, the share in numbers."""
  left, top = place
  color, name, share = entry
  pen.rectangle((left, top + 3, left + 22, top + _LINE - 5), tuple(map(int, color)), _INK)
  pen.text((left + 30, top + 2), _shortened(name, font, _NAME_WIDTH), _INK, font)
  bar = left + 34 + _NAME_WIDTH
  if share:
    pen.rectangle((bar, top + 4, bar + round(_BAR_WIDTH * share / largest), top + _LINE - 6), _BAR)
  pen.text((bar + _BAR_WIDTH + 8, top + 2), f'{100 * share:.3g} %' if share else 'never', _INK, font)


def _shortened(text, font, width):
  """The text, its middle left out where it is longer than `width` pixels."""
  if font.getlength(text) <= width:
    return text
  keep = len(text)
  while keep > 2 and font.getlength(f'{text[:keep // 2]}...{text[-(keep // 2):]}') > width:
    keep -= 2
  return f'{text[:keep // 2]}...{text[-(keep // 2):]}'
