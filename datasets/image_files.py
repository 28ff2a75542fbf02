"""Picture files of a data set: what they hold, and whether that is fit for training.

Images may be JPEG or PNG, gray or colour, of 8 bits. Labels are PNG: a palette file holds the indices, a gray one the values, and
colours need a table that says which class they stand for.
"""

import io
import os
import pathlib
import struct
import zlib
from typing import NamedTuple

import numpy as np
from PIL import Image

from deeplab.core.base.errors import InputError

IMAGE_EXTENSIONS = ('jpg', 'jpeg', 'png')
LABEL_EXTENSIONS = ('png',)

# MPO is what phones write: a JPEG file with more pictures behind the first.
_IMAGE_FORMATS = {'JPEG': 'jpeg', 'MPO': 'jpeg', 'PNG': 'png'}
_DECODE_ERRORS = (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error, Image.DecompressionBombError)
_EXIF_ORIENTATION = 0x0112
# Position of the bit depth in a PNG file: signature, length and name of the first chunk, width, height.
_PNG_BIT_DEPTH = 24
_PNG_END = b'IEND\xaeB`\x82'
_MAX_LISTED = 8


class ImageFile(NamedTuple):
  """An image as it goes into a record.

  Attributes:
    data: bytes of the file.
    format: 'jpeg' or 'png'.
    height: pixels.
    width: pixels.
    warnings: list of texts, what a reader of the records will not see in the image.
  """
  data: bytes
  format: str
  height: int
  width: int
  warnings: list[str]


class LabelFile(NamedTuple):
  """A label as it goes into a record.

  Attributes:
    data: bytes of a gray PNG file of 8 bits.
    height: pixels.
    width: pixels.
    counts: int64 [256], number of pixels of each value.
    warnings: list of texts.
  """
  data: bytes
  height: int
  width: int
  counts: np.ndarray
  warnings: list[str]


def list_folder(folder, extensions):
  """Files of a folder by their name without extension.

  Args:
    folder: path.
    extensions: those to list, small letters without dot; files may write them in capitals.

  Returns:
    Dict, name without extension -> list of paths.

  Raises:
    ValueError: there is no such folder, or it is a file.
  """
  if not os.path.isdir(folder):
    raise InputError(f'{folder} is a file; give the folder that holds it.' if os.path.exists(folder) else
                     f'{folder}: there is no such folder.')
  found = {}
  for file_name in sorted(os.listdir(folder)):
    stem, extension = os.path.splitext(file_name)
    if extension[1:].lower() in extensions and not file_name.startswith('.'):
      found.setdefault(stem, []).append(os.path.join(folder, file_name))
  return found


def read_image(path):
  """Reads and fully decodes an image.

  Args:
    path: JPEG or PNG file, or an object with `read_bytes()` that gives one and that str() names.

  Returns:
    ImageFile.

  Raises:
    ValueError: the file is missing, broken, of another format, or of 16 bits. The message names it.
  """
  data, image = _read(path)
  if image.format not in _IMAGE_FORMATS:
    raise InputError(f'{path} is a {image.format} file; images must be JPEG or PNG.')
  if _bit_depth(data, image) > 8:
    raise InputError(f'{path} has {_bit_depth(data, image)} bits per channel; the model takes 8. Scale its values to 0..255.')
  warnings = []
  if image.mode in ('RGBA', 'LA', 'PA') or 'transparency' in image.info:
    warnings.append(f'{path} has {max(len(image.getbands()), 2)} channels, the model takes 3: transparency is dropped.')
  if image.mode in ('CMYK', 'YCCK'):
    warnings.append(f'{path} is a {image.mode} image; its colours may be off. Save it as RGB.')
  orientation = image.getexif().get(_EXIF_ORIENTATION, 1)
  if orientation != 1:
    warnings.append(f'{path} asks to be turned (EXIF orientation {orientation}); it is taken as stored.')
  return ImageFile(data, _IMAGE_FORMATS[image.format], image.height, image.width, warnings)


def read_label(path, color_table=None):
  """Reads a label.

  Args:
    path: PNG file: palette, gray of 1 to 16 bits, or colour.
    color_table: dict (red, green, blue) -> value, for labels in colour.

  Returns:
    LabelFile. An 8-bit gray file is taken as it is; of others the values are written anew.

  Raises:
    ValueError: the file is missing, broken, no PNG, has values above 255 or colours that stand for nothing.
  """
  data, image = _read(path)
  if image.format != 'PNG':
    raise InputError(f'{path} is a {image.format} file; labels must be PNG, which keeps every value.')
  bit_depth = _bit_depth(data, image)
  warnings = []
  if image.mode in ('LA', 'RGBA'):
    warnings.append(f'{path} has transparency, which a label cannot have; it is dropped.')
    image = image.convert(image.mode[:-1])
  if bit_depth > 8 and not image.mode.startswith('I'):
    raise InputError(f'{path} has {bit_depth} bits in each of several channels; a label has one channel.')
  values = _label_values(path, image, bit_depth, color_table)
  if values.max() > 255:
    raise InputError(f'{path} holds values up to {values.max()} ({bit_depth} bits); a label has values 0 to 255.')
  values = values.astype(np.uint8)
  if image.mode != 'L' or bit_depth != 8 or warnings:
    data = encode_label(values)
  return LabelFile(data, image.height, image.width, np.bincount(values.ravel(), minlength=256), warnings)


def encode_label(values):
  """Bytes of a gray PNG file; `values`: uint8 [height, width]."""
  encoded = io.BytesIO()
  Image.fromarray(values).save(encoded, 'PNG')
  return encoded.getvalue()


def read_color_table(path):
  """Reads which value a colour of a label stands for.

  Args:
    path: text file, or None; each line is `value red green blue`, numbers 0..255 with blanks or commas between;
      # begins a remark.

  Returns:
    Dict (red, green, blue) -> value; None without a path.

  Raises:
    ValueError: the file cannot be read, or a line is no such line or repeats a colour.
  """
  if not path:
    return None
  try:
    with open(path, encoding='utf-8') as table_file:
      lines = table_file.read().splitlines()
  except (OSError, UnicodeDecodeError) as error:
    raise InputError(f'Colour table {path} cannot be read: {error}') from error
  table = {}
  for number, line in enumerate(lines, 1):
    parts = line.split('#')[0].replace(',', ' ').split()
    if not parts:
      continue
    if len(parts) != 4 or not all(part.isdecimal() and int(part) < 256 for part in parts):
      raise InputError(f'{path}, line {number}: {line!r}; write "value red green blue", numbers 0 to 255.')
    value, *color = map(int, parts)
    if table.setdefault(tuple(color), value) != value:
      raise InputError(f'{path}, line {number}: colour {tuple(color)} stands for {table[tuple(color)]} already.')
  return table


def _read(path):
  """Bytes of a file and the decoded Pillow image."""
  try:
    data = path.read_bytes() if hasattr(path, 'read_bytes') else pathlib.Path(path).read_bytes()
  except OSError as error:
    raise InputError(f'{path} cannot be read: {error.strerror}.') from error
  try:
    image = Image.open(io.BytesIO(data))
    image.load()
    # Pillow does without the end of a PNG file, TensorFlow does not.
    if image.format == 'PNG' and _PNG_END not in data:
      raise EOFError('the end of the file is missing')
  except _DECODE_ERRORS as error:
    reason = 'no picture of a known format' if isinstance(error, Image.UnidentifiedImageError) else error
    raise InputError(f'{path} is broken ({len(data)} bytes): {reason}.') from error
  return data, image


def _bit_depth(data, image):
  return data[_PNG_BIT_DEPTH] if image.format == 'PNG' else 8


def _label_values(path, image, bit_depth, color_table):
  """Values of a label as an int array [height, width]."""
  if image.mode == 'RGB':
    return _values_of_colors(path, np.asarray(image), color_table)
  if bit_depth < 8 and image.mode != 'P':
    # Pillow stretches gray of 1, 2 and 4 bits to 0..255.
    return np.asarray(image.convert('L')) // (255 // ((1 << bit_depth) - 1))
  return np.asarray(image).astype(np.int64) if bit_depth > 8 else np.asarray(image)


def _values_of_colors(path, pixels, color_table):
  red, green, blue = np.moveaxis(pixels.astype(np.int64), -1, 0)
  codes, inverse = np.unique((red << 16 | green << 8 | blue).ravel(), return_inverse=True)
  colors = [(code >> 16, code >> 8 & 255, code & 255) for code in codes.tolist()]
  unknown = [color for color in colors if color not in (color_table or {})]
  if unknown:
    listed = ', '.join(map(str, unknown[:_MAX_LISTED]))
    more = f' and {len(unknown) - _MAX_LISTED} more' if len(unknown) > _MAX_LISTED else ''
    advice = ', which the colour table lacks' if color_table else '; give a --color_table that says their values, or save indices'
    raise InputError(f'{path} is a label in colour with {listed}{more}{advice}.')
  return np.array([color_table[color] for color in colors])[inverse].reshape(pixels.shape[:2])
