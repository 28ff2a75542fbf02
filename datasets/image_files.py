"""Picture files of a data set: what they hold, and whether that is fit for training.

Images may have any format of IMAGE_EXTENSIONS with 8 bits per channel; they become JPEG or PNG. Labels are PNG: a palette file
holds the indices, a gray one the values, and colours need a table that says which class they stand for.

    image = image_files.open_image(path)    # size and EXIF orientation are known; the pixels are not decoded yet
    encoded = image.read(upright=True)      # as viewers and labelling tools show it

Where a path is asked for, an object with `read_bytes()` that `str()` names does as well.
"""

import functools
import io
import os
import struct
import zlib
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageCms

from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf

IMAGE_EXTENSIONS = ('jpg', 'jpeg', 'png', 'tif', 'tiff', 'webp', 'bmp', 'gif', 'jpe', 'jfif', 'mpo', 'jp2', 'j2k', 'avif', 'ppm',
                    'pgm', 'pbm', 'pnm', 'tga', 'pcx', 'dib')
LABEL_EXTENSIONS = ('png',)
# Names of pictures that cannot be read: of phones, of raw cameras, of drawing programs.
_OTHER_EXTENSIONS = ('heic', 'heif', 'jxl', 'dng', 'cr2', 'cr3', 'nef', 'arw', 'orf', 'rw2', 'raf', 'psd', 'xcf', 'svg', 'exr',
                     'hdr', 'eps', 'ico', 'sgi', 'pfm', 'npy')
# What looks like a picture by its name.
PICTURE_EXTENSIONS = IMAGE_EXTENSIONS + _OTHER_EXTENSIONS

# What the bytes of an image may be. Of the others Pillow runs programs for some (EPS) and hides the depth of others.
_FORMATS = ('JPEG', 'PNG', 'TIFF', 'WEBP', 'BMP', 'DIB', 'GIF', 'JPEG2000', 'AVIF', 'PPM', 'TGA', 'PCX')
# MPO is what phones write: a JPEG file with more pictures behind the first. It is opened as JPEG.
_JPEG_FORMATS = ('JPEG', 'MPO')
_DECODE_ERRORS = (OSError, SyntaxError, ValueError, TypeError, KeyError, EOFError, struct.error, zlib.error, OverflowError,
                  Image.DecompressionBombError)
_EXIF_ORIENTATION = 0x0112
# What a viewer does with the stored pixels, by EXIF orientation.
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE, 8: Image.Transpose.ROTATE_90}
# From this orientation on, height and width change places.
_FIRST_LYING = 5
_TIFF_WIDTH, _TIFF_HEIGHT, _TIFF_BITS = 256, 257, 258
# Of images that are encoded anew after JPEG; with full colour resolution.
_JPEG_QUALITY = 95
# Position of the bit depth in a PNG file: signature, length and name of the first chunk, width, height.
_PNG_BIT_DEPTH = 24
_PNG_END = b'IEND\xaeB`\x82'
# Where the components of a JPEG 2000 image tell their depth, seen from these markers; a component takes three bytes.
_JPEG2000_MARKERS = b'\xff\x4f\xff\x51'
_JPEG2000_NUM_COMPONENTS, _JPEG2000_DEPTHS = 40, 42
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


class ImageHeader(NamedTuple):
  """What the head of an image file tells.

  Attributes:
    stored_size: (height, width) of the pixels as they are stored.
    orientation: 1 to 8, how they lie (EXIF): 1 is upright, 3 upside down, 6 and 8 on a side, the even ones but these mirrored.
  """
  stored_size: tuple[int, int]
  orientation: int

  @property
  def upright_size(self):
    """(height, width) as viewers show the image."""
    return self.stored_size[::-1] if self.orientation >= _FIRST_LYING else self.stored_size

  def size(self, upright):
    """(height, width) of the image turned upright, or else as it is stored."""
    return self.upright_size if upright else self.stored_size


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
  if not tf.io.gfile.isdir(folder):
    raise InputError(f'{folder} is a file; give the folder that holds it.' if tf.io.gfile.exists(folder) else
                     f'{folder}: there is no such folder.')
  found = {}
  # On a disk names may be of any bytes, which os gives back as they are.
  for file_name in sorted((os if os.path.isdir(folder) else tf.io.gfile).listdir(folder)):
    stem, extension = os.path.splitext(file_name)
    if extension[1:].lower() in extensions and not file_name.startswith('.'):
      found.setdefault(stem, []).append(os.path.join(folder, file_name))
  return found


def read_header(path):
  """Size and orientation of an image file, without decoding it.

  Args:
    path: file of one of IMAGE_EXTENSIONS.

  Returns:
    ImageHeader.

  Raises:
    InputError: the file is missing or no image of a known format.
  """
  try:
    with _open_bytes(path) as image_file:
      return _header(_open(path, image_file))
  except (OSError, tf.errors.OpError) as error:
    raise _unreadable(path, error) from error


class OpenImage(NamedTuple):
  """An image file whose head has been read.

  Attributes:
    path: of the file.
    data: bytes of the file.
    image: Pillow image of them; its pixels are not decoded.
    header: ImageHeader.
  """
  path: object
  data: bytes
  image: Image.Image
  header: ImageHeader

  def read(self, upright):
    """Fully decodes the image.

    Args:
      upright: whether it is turned as its orientation says; else the pixels stay as they are stored.

    Returns:
      ImageFile. JPEG and PNG files are taken as they are where that will do. What is encoded anew carries no orientation: a PNG
      file with the same pixels, or for JPEG one of high quality.

    Raises:
      InputError: the file is broken or has more than 8 bits per channel. The message names it.
    """
    path, data, image, header = self
    depth = _bit_depth(data, image)
    if depth > 8:
      raise InputError(f'{path} has {depth} bits per channel; the model takes 8. Scale its values to 0..255.')
    turn = _TURNS.get(header.orientation) if upright else None
    is_jpeg = image.format in _JPEG_FORMATS
    as_it_is = turn is None and (is_jpeg and image.mode != 'CMYK' or image.format == 'PNG')
    warnings = [f'{path} {text}' for text in _losses(image)]
    if as_it_is and is_jpeg:
      # Looks at all of the data, but computes an eighth of the pixels only.
      image.draft(image.mode, (max(image.width // 8, 1), max(image.height // 8, 1)))
    _load(path, data, image)
    if as_it_is:
      return ImageFile(data, 'jpeg' if is_jpeg else 'png', *header.stored_size, warnings)
    image = _as_stored(image, header)
    image = _plain(path, image if turn is None else image.transpose(turn), warnings)
    return ImageFile(_encode(image, is_jpeg), 'jpeg' if is_jpeg else 'png', image.height, image.width, warnings)


def open_image(path):
  """Reads an image file and its head.

  Args:
    path: file of one of IMAGE_EXTENSIONS; its format is told from its bytes.

  Returns:
    OpenImage.

  Raises:
    InputError: the file is missing or no image of a known format. The message names it.
  """
  data = _read_bytes(path)
  image = _open(path, io.BytesIO(data))
  return OpenImage(path, data, image, _header(image))


def read_image(path, upright=True):
  """ImageFile of a file: open_image, then OpenImage.read."""
  return open_image(path).read(upright)


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
  data = _read_bytes(path)
  image = _open(path, io.BytesIO(data))
  if image.format != 'PNG':
    raise InputError(f'{path} is a {image.format} file; labels must be PNG, which keeps every value.')
  _load(path, data, image)
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


def _read_bytes(path):
  try:
    if hasattr(path, 'read_bytes'):
      return path.read_bytes()
    with _open_bytes(path) as image_file:
      return image_file.read()
  except (OSError, tf.errors.OpError) as error:
    raise _unreadable(path, error) from error


def _open_bytes(path):
  """A file of any file system, open to read; elsewhere than on a disk it is read at once."""
  if '://' not in str(path):
    return open(path, 'rb')
  with tf.io.gfile.GFile(path, 'rb') as remote:
    return io.BytesIO(remote.read())


def _unreadable(path, error):
  return InputError(f'{path} cannot be read: {error.message if isinstance(error, tf.errors.OpError) else error.strerror}.')


@functools.cache
def _known_formats():
  """Those of _FORMATS that this Pillow has."""
  Image.init()
  return [name for name in _FORMATS if name in Image.OPEN]


def _open(path, image_file):
  """Pillow image of an open file; its pixels are not decoded."""
  try:
    return Image.open(image_file, formats=_known_formats())
  except Image.UnidentifiedImageError as error:
    extension = os.path.splitext(str(path))[1][1:].lower()
    if extension in _OTHER_EXTENSIONS:
      reason = f'{path} is a picture that cannot be read (.{extension}); save it as JPEG, PNG or TIFF of 8 bits.'
    else:
      reason = f'{path} is broken ({_length(image_file)} bytes): no picture of a known format.'
    raise InputError(reason) from error
  except _DECODE_ERRORS as error:
    raise InputError(f'{path} is broken ({_length(image_file)} bytes): {error}.') from error


def _length(image_file):
  return image_file.seek(0, os.SEEK_END)


def _load(path, data, image):
  """Decodes a Pillow image of these bytes."""
  try:
    image.load()
    # Pillow does without the end of a PNG file, TensorFlow does not.
    if image.format == 'PNG' and _PNG_END not in data:
      raise EOFError('the end of the file is missing')
  except _DECODE_ERRORS as error:
    raise InputError(f'{path} is broken ({len(data)} bytes): {error}.') from error


def _header(image):
  try:
    orientation = image.getexif().get(_EXIF_ORIENTATION, 1)
  except Exception:  # Whatever a damaged block raises: viewers show such an image as it is stored.
    orientation = 1
  size = (image.tag_v2[_TIFF_HEIGHT], image.tag_v2[_TIFF_WIDTH]) if image.format == 'TIFF' else (image.height, image.width)
  return ImageHeader(size, orientation if orientation in _TURNS else 1)


def _bit_depth(data, image):
  """Bits per channel in the file, of which Pillow may keep 8."""
  if image.format == 'PNG':
    return data[_PNG_BIT_DEPTH]
  if image.format == 'TIFF':
    return max(image.tag_v2.get(_TIFF_BITS, (1,)))
  if image.format == 'PPM':
    arguments = image.tile[0].args if image.tile else ()
    largest = max((value for value in arguments if isinstance(value, int)), default=0) if isinstance(arguments, tuple) else 0
    return 16 if largest > 255 or image.mode.startswith(('I', 'F')) else 8
  if image.format == 'JPEG2000':
    start = data.find(_JPEG2000_MARKERS)
    components = int.from_bytes(data[start + _JPEG2000_NUM_COMPONENTS:start + _JPEG2000_DEPTHS], 'big')
    first = start + _JPEG2000_DEPTHS
    return max(((depth & 0x7f) + 1 for depth in data[first:first + 3 * components:3]), default=8)
  return 8


def _losses(image):
  """What of an image that is not decoded yet the model will not see."""
  losses = []
  num_frames = 1 if image.format == 'MPO' else getattr(image, 'n_frames', 1)
  if num_frames > 1:
    losses.append(f'holds {num_frames} pictures; the first is taken.')
  if image.mode in ('RGBA', 'LA', 'PA', 'RGBa', 'La') or 'transparency' in image.info:
    losses.append(f'has {max(len(image.getbands()), 2)} channels, the model takes 3: transparency is dropped.')
  return losses


def _as_stored(image, header):
  """The pixels of a decoded image as they lie in the file; of a TIFF file Pillow has turned them."""
  turn = _TURNS.get(header.orientation)
  if image.format != 'TIFF' or turn is None:
    return image
  back = {Image.Transpose.ROTATE_270: Image.Transpose.ROTATE_90, Image.Transpose.ROTATE_90: Image.Transpose.ROTATE_270}
  return image.transpose(back.get(turn, turn))


def _plain(path, image, warnings):
  """The image as gray or RGB, with nothing but its pixels."""
  if image.mode == 'CMYK':
    plain = _from_cmyk(path, image, warnings)
  else:
    try:
      plain = image.convert('L' if image.mode in ('1', 'L', 'LA', 'La') and 'transparency' not in image.info else 'RGB')
    except ValueError as error:
      raise InputError(f'{path} is a {image.mode} image, which has no colours to see; save it as RGB.') from error
  plain.info = {}
  return plain


def _from_cmyk(path, image, warnings):
  """RGB image of a CMYK one, by the colour profile in its file, or plainly without one."""
  profile = image.info.get('icc_profile')
  if profile:
    try:
      return ImageCms.profileToProfile(image, ImageCms.ImageCmsProfile(io.BytesIO(profile)), _srgb_profile(), outputMode='RGB')
    except (ImageCms.PyCMSError, OSError) as error:
      warnings.append(f'{path} has a colour profile for CMYK that cannot be used ({error}); its colours are computed without.')
  return image.convert('RGB')


@functools.cache
def _srgb_profile():
  return ImageCms.createProfile('sRGB')


def _encode(image, is_jpeg):
  encoded = io.BytesIO()
  if is_jpeg:
    image.save(encoded, 'JPEG', quality=_JPEG_QUALITY, subsampling=0)
  else:
    image.save(encoded, 'PNG')
  return encoded.getvalue()


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
