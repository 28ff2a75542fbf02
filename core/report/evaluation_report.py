"""What an evaluation found, as a table, files and TensorBoard scalars."""

import csv
import io
import json
import math
import os

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from deeplab.core.base import files
from deeplab.core.base.tf_compat import tf

_METRICS_FILE = 'metrics.json'
_COLUMNS = ('class', 'name', 'iou', 'precision', 'recall', 'labelled', 'predicted')
_TABLE_WIDTHS = (5, None, 8, 10, 8, 13, 13)

_CELL = 26
# More classes than this get smaller cells without numbers.
_MAX_NUMBERED = 40
_SMALL_CELL = 12
_MARGIN = 8
_INK, _PAPER = (30, 30, 30), (255, 255, 255)
# Colour of a cell that holds all pixels of its row; an empty one is paper.
_FULL = np.array([8, 48, 107])


def class_rows(metrics, class_names):
  """One dict per class, in order: class, name, iou, precision, recall (0..1, None where no pixel decides), labelled and predicted
  (pixels)."""
  def known(value):
    return None if math.isnan(value) else float(value)

  return [dict(zip(_COLUMNS, (index, name, known(metrics.class_iou[index]), known(metrics.precision[index]),
                              known(metrics.recall[index]), int(metrics.labelled[index]), int(metrics.predicted[index])),
                   strict=True))
          for index, name in enumerate(class_names)]


def table(metrics, class_names):
  """The classes in order, then the figures over all, as lines of text."""
  widths = [width or max(len('name'), *map(len, class_names)) for width in _TABLE_WIDTHS]

  def line(cells):
    texts = ['-' if cell is None else f'{cell:.4f}' if isinstance(cell, float) else str(cell) for cell in cells]
    return ' '.join(text.ljust(width) if column == 'name' else text.rjust(width)
                    for text, width, column in zip(texts, widths, _COLUMNS, strict=True))

  num_labelled = int((metrics.labelled > 0).sum())
  num_occurring = int(((metrics.labelled > 0) | (metrics.predicted > 0)).sum())
  lines = [line(_COLUMNS), *(line(row.values()) for row in class_rows(metrics, class_names)), '',
           f'mIoU {metrics.mean_iou:.4f} over the {num_occurring} classes in labels or predictions, '
           f'{metrics.mean_iou_of_labelled:.4f} over the {num_labelled} in labels',
           f'pixel accuracy {metrics.pixel_accuracy:.4f}, frequency-weighted IoU {metrics.frequency_weighted_iou:.4f}']
  return '\n'.join(lines)


def write_files(folder, metrics, confusion, class_names, facts):
  """Writes metrics.json, metrics.csv and confusion_matrix.png; each replaces that of an earlier checkpoint in one step.

  Args:
    folder: where to.
    metrics: metrics.Metrics.
    confusion: int64 [n, n], pixels of label i predicted as j.
    class_names: n texts.
    facts: dict of JSON values that say what was evaluated; they come first in metrics.json.
  """
  rows = class_rows(metrics, class_names)
  overall = {'miou': metrics.mean_iou, 'miou_of_labelled_classes': metrics.mean_iou_of_labelled,
             'pixel_accuracy': metrics.pixel_accuracy, 'frequency_weighted_iou': metrics.frequency_weighted_iou}
  content = {**facts, **overall, 'classes': rows, 'confusion_matrix': confusion.tolist()}
  lines = ',\n'.join(f'  {json.dumps(name)}: {json.dumps(value)}' for name, value in content.items())
  files.replace_file(os.path.join(folder, _METRICS_FILE), '{\n' + lines + '\n}\n')
  csv_file = io.StringIO()
  writer = csv.DictWriter(csv_file, _COLUMNS, lineterminator='\n')
  writer.writeheader()
  writer.writerows(rows)
  files.replace_file(os.path.join(folder, 'metrics.csv'), csv_file.getvalue())
  png_file = io.BytesIO()
  draw_confusion_matrix(confusion, class_names).save(png_file, 'png')
  files.replace_file(os.path.join(folder, 'confusion_matrix.png'), png_file.getvalue())


def read_metrics(folder):
  """What metrics.json of a folder holds, dict; None where there is none that can be read."""
  try:
    return files.read_json(os.path.join(folder, _METRICS_FILE))
  except ValueError:
    return None


def draw_confusion_matrix(confusion, class_names):
  """Picture of the matrix: a row per label, a column per prediction, each cell with its share of the row in percent.

  Args:
    confusion: int64 [n, n].
    class_names: n texts.

  Returns:
    RGB PIL.Image.
  """
  num_classes = len(class_names)
  numbered = num_classes <= _MAX_NUMBERED
  cell = _CELL if numbered else _SMALL_CELL
  font = ImageFont.load_default(cell // 2 if numbered else cell - 2)
  shares = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
  labels = [f'{index} {name}' for index, name in enumerate(class_names)]
  longest = math.ceil(max(font.getlength(label) for label in labels))
  left = top = longest + 2 * _MARGIN
  picture = Image.new('RGB', (left + num_classes * cell + _MARGIN, top + num_classes * cell + _MARGIN), _PAPER)
  colors = np.rint(_PAPER + shares[:, :, None] * (_FULL - _PAPER)).astype(np.uint8)
  picture.paste(Image.fromarray(colors.repeat(cell, axis=0).repeat(cell, axis=1)), (left, top))
  draw = ImageDraw.Draw(picture)
  for index, label in enumerate(labels):
    middle = index * cell + cell / 2
    draw.text((left - _MARGIN, top + middle), label, _INK, font, anchor='rm')
    picture.paste(_vertical_text(label, font, longest, cell), (left + index * cell, _MARGIN))
  if numbered:
    for row, column in np.argwhere(confusion):
      color = _PAPER if shares[row, column] > 0.5 else _INK
      draw.text((left + (column + 0.5) * cell, top + (row + 0.5) * cell), f'{100 * shares[row, column]:.0f}', color, font, 'mm')
  return picture


def _vertical_text(text, font, length, width):
  """Picture of a text that runs upwards and begins at the lower edge."""
  picture = Image.new('RGB', (length, width), _PAPER)
  ImageDraw.Draw(picture).text((0, width / 2), text, _INK, font, anchor='lm')
  return picture.transpose(Image.Transpose.ROTATE_90)


def add_scalars(writer, metrics, name, step, further=None):
  """Adds TensorBoard scalars: eval/<name>_overall, eval/<name>_class_<i> for each class in the labels, and the other figures.

  Args:
    writer: tf.summary.FileWriter.
    metrics: metrics.Metrics.
    name: for example 'miou_1.0'.
    step: training step of the checkpoint.
    further: dict, tag -> value, of more scalars; or None.
  """
  values = {f'eval/{name}_overall': metrics.mean_iou}
  values.update((f'eval/{name}_class_{index}', iou) for index, iou in enumerate(metrics.class_iou) if not math.isnan(iou))
  values['eval/pixel_accuracy'] = metrics.pixel_accuracy
  values['eval/frequency_weighted_iou'] = metrics.frequency_weighted_iou
  values.update(further or {})
  writer.add_summary(
      tf.Summary(value=[tf.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]), step)
  writer.flush()
