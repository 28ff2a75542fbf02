"""datasets/image_files.py: images in the formats and with the orientations that cameras and programs write."""

import io
import pathlib
import struct

import numpy as np
import pytest
from PIL import Image, ImageCms, features

from deeplab.core.base.errors import InputError
from deeplab.datasets import image_files

_ORIENTATION = 0x0112
# EXIF orientation -> what a viewer does with an array [height, width, 3].
_UPRIGHT = {
    1: lambda pixels: pixels, 2: np.fliplr, 3: lambda pixels: np.rot90(pixels, 2), 4: np.flipud,
    5: lambda pixels: pixels.transpose(1, 0, 2), 6: lambda pixels: np.rot90(pixels, -1),
    7: lambda pixels: np.rot90(pixels.transpose(1, 0, 2), 2), 8: np.rot90}
_LOSSLESS = {'WEBP': {'lossless': True}, 'JPEG2000': {'irreversible': False}, 'AVIF': {'quality': 100, 'subsampling': '4:4:4'},
             'JPEG': {'quality': 95, 'subsampling': 0}}
# Largest mean difference, values of 255.
_DEVIATION = {'JPEG': 3, 'AVIF': 3}
_SUPPORTED = [name for name in ('PNG', 'TIFF', 'WEBP', 'BMP', 'GIF', 'PPM', 'TGA', 'PCX', 'JPEG2000', 'AVIF')
              if {'AVIF': 'avif', 'JPEG2000': 'jpg_2000', 'WEBP': 'webp'}.get(name, 'pil') in features.get_supported()]


def _smooth(height=24, width=40):
  """uint8 [height, width, 3]; no two corners alike."""
  small = np.random.default_rng(0).integers(0, 256, [3, 4, 3], np.uint8)
  return np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))


def _save(path, image, image_format, orientation=None, **options):
  exif = Image.Exif()
  if orientation:
    exif[_ORIENTATION] = orientation
    options['exif'] = exif
  image = image if isinstance(image, Image.Image) else Image.fromarray(image)
  image.save(path, image_format, **{**_LOSSLESS.get(image_format, {}), **options})
  return str(path)


def _decoded(image):
  """Pixels of an ImageFile, and the orientation that is left in it."""
  picture = Image.open(io.BytesIO(image.data))
  assert picture.format.lower() == image.format and picture.size == (image.width, image.height)
  return np.asarray(picture.convert('RGB')).astype(int), picture.getexif().get(_ORIENTATION, 1)


@pytest.mark.parametrize('orientation', range(1, 9))
@pytest.mark.parametrize('image_format', ['JPEG', 'PNG', 'TIFF', 'WEBP'])
def test_image_is_turned_upright_or_left_as_stored(tmp_path, image_format, orientation):
  pixels = _smooth()
  path = _save(tmp_path / 'a', pixels, image_format, orientation)
  upright = _UPRIGHT[orientation](pixels)
  header = image_files.read_header(path)
  assert header == image_files.open_image(path).header
  assert (header.orientation, header.stored_size, header.upright_size) == (orientation, (24, 40), upright.shape[:2])
  for is_upright, expected in ((True, upright), (False, pixels)):
    image = image_files.read_image(path, is_upright)
    assert image.format == ('jpeg' if image_format == 'JPEG' else 'png') and image.warnings == []
    found, left = _decoded(image)
    assert found.shape == expected.shape and np.abs(found - expected).mean() <= _DEVIATION.get(image_format, 0)
    assert left == 1 or not is_upright
  if image_format in ('JPEG', 'PNG'):
    # Not encoded anew where the file will do.
    assert image_files.read_image(path, False).data == pathlib.Path(path).read_bytes()


@pytest.mark.parametrize('compression', ['raw', 'tiff_lzw', 'tiff_adobe_deflate', 'packbits'])
def test_tiff_of_every_compression_is_turned(tmp_path, compression):
  path = _save(tmp_path / 'a.tif', _smooth(), 'TIFF', 6, compression=compression)
  np.testing.assert_array_equal(_decoded(image_files.read_image(path))[0], np.rot90(_smooth(), -1))
  np.testing.assert_array_equal(_decoded(image_files.read_image(path, upright=False))[0], _smooth())


@pytest.mark.parametrize('mode', ['1', 'L', 'P', 'RGBA', 'LA'])
def test_turned_png_of_every_mode(tmp_path, mode):
  image = Image.fromarray(np.dstack([_smooth(), _smooth()[:, :, 0]])).convert(mode)
  path = _save(tmp_path / 'a.png', image, 'PNG', 8)
  np.testing.assert_array_equal(_decoded(image_files.read_image(path))[0], np.rot90(np.asarray(image.convert('RGB'))))


def test_turned_gray_jpeg_stays_gray(tmp_path):
  image = image_files.read_image(_save(tmp_path / 'a.jpg', _smooth()[:, :, 0], 'JPEG', 3))
  assert Image.open(io.BytesIO(image.data)).mode == 'L'
  assert np.abs(_decoded(image)[0][:, :, 0] - np.rot90(_smooth()[:, :, 0], 2)).mean() < 2


@pytest.mark.parametrize('exif', [b'Exif\0\0', b'Exif\0\0MM\0*\0\0\0\x08\xff\xff', b'Exif\0\0nonsense'])
def test_damaged_exif_is_no_orientation(tmp_path, exif):
  path = _save(tmp_path / 'a.jpg', _smooth(), 'JPEG', exif=exif)
  assert image_files.read_header(path).orientation == 1
  assert image_files.read_image(path).data == pathlib.Path(path).read_bytes()


@pytest.mark.parametrize('value', [0, 9, 77])
def test_unknown_orientation_is_none(tmp_path, value):
  exif = Image.Exif()
  exif[_ORIENTATION] = value
  _save(tmp_path / 'a.jpg', _smooth(), 'JPEG', exif=exif)
  assert image_files.read_header(tmp_path / 'a.jpg').orientation == 1


@pytest.mark.parametrize('image_format', _SUPPORTED)
def test_format_is_stored_as_png(tmp_path, image_format):
  pixels = np.asarray(Image.fromarray(_smooth()).quantize(64).convert('RGB')) if image_format == 'GIF' else _smooth()
  image = image_files.read_image(_save(tmp_path / 'a', pixels, image_format))
  assert (image.format, image.height, image.width, image.warnings) == ('png', 24, 40, [])
  assert np.abs(_decoded(image)[0] - pixels).mean() <= _DEVIATION.get(image_format, 0)


def test_file_of_several_pictures_gives_the_first_and_says_so(tmp_path):
  second = Image.fromarray(np.zeros([24, 40, 3], np.uint8))
  image = image_files.read_image(_save(tmp_path / 'a.tif', _smooth(), 'TIFF', save_all=True, append_images=[second]))
  np.testing.assert_array_equal(_decoded(image)[0], _smooth())
  assert len(image.warnings) == 1 and 'a.tif holds 2 pictures; the first is taken' in image.warnings[0]


def _tiff_of_16_bits(path):
  """A TIFF file of three channels, which Pillow reads and halves without a word."""
  data = np.full([2, 2, 3], 300, '<u2').tobytes()
  entries = [(256, 3, 1, 2), (257, 3, 1, 2), (258, 3, 3, 110), (259, 3, 1, 1), (262, 3, 1, 2), (273, 4, 1, 116), (277, 3, 1, 3),
             (278, 3, 1, 2)]
  head = b'II*\0' + struct.pack('<IH', 8, len(entries)) + b''.join(struct.pack('<HHII', *entry) for entry in entries)
  path.write_bytes((head + bytes(4)).ljust(110, b'\0') + struct.pack('<3H', 16, 16, 16) + data)


def _write_deep(path, kind):
  if kind == 'tiff colour':
    _tiff_of_16_bits(path)
  elif kind == 'ppm colour':
    path.write_bytes(b'P6 2 1 65535\n' + bytes(12))
  elif kind == 'ppm of 10 bits':
    path.write_bytes(b'P6 2 1 1023\n' + bytes(12))
  else:
    Image.fromarray(np.full([6, 7], 300, np.uint16)).save(path, kind)


@pytest.mark.parametrize('kind', ['PNG', 'TIFF', 'tiff colour', 'ppm colour', 'ppm of 10 bits',
                                  *(['JPEG2000'] if 'JPEG2000' in _SUPPORTED else [])])
def test_more_than_8_bits_are_refused_by_name(tmp_path, kind):
  _write_deep(tmp_path / 'deep.img', kind)
  with pytest.raises(InputError, match=r'deep.img has 16 bits per channel; the model takes 8'):
    image_files.read_image(str(tmp_path / 'deep.img'))


@pytest.mark.parametrize('mode', ['F', 'I'])
def test_tiff_of_real_numbers_is_refused(tmp_path, mode):
  Image.fromarray(np.ones([6, 7], np.float32)).convert(mode).save(tmp_path / 'a.tif')
  with pytest.raises(InputError, match=r'a.tif has 32 bits'):
    image_files.read_image(str(tmp_path / 'a.tif'))


@pytest.mark.parametrize('image_format', [name for name in _SUPPORTED if name not in ('PNG', 'GIF')])
def test_file_cut_in_two_is_refused_by_name(tmp_path, image_format):
  path = _save(tmp_path / 'cut.img', _smooth(), image_format)
  data = pathlib.Path(path).read_bytes()
  pathlib.Path(path).write_bytes(data[:len(data) // 2])
  with pytest.raises(InputError, match=r'cut.img is broken \(\d+ bytes\)'):
    image_files.read_image(path)


def test_picture_of_a_phone_that_cannot_be_read_is_told_apart(tmp_path):
  (tmp_path / 'a.HEIC').write_bytes(b'\0\0\0\x18ftypheic' + bytes(100))
  with pytest.raises(InputError, match=r'a.HEIC is a picture that cannot be read \(.heic\); save it as JPEG'):
    image_files.read_image(str(tmp_path / 'a.HEIC'))


class _InMemory:
  """A file that is none, such as a picture inside of a JSON file."""

  def read_bytes(self):
    encoded = io.BytesIO()
    Image.fromarray(_smooth()).save(encoded, 'PNG')
    return encoded.getvalue()

  def __str__(self):
    return 'picture in a.json'


def test_bytes_in_memory_do_as_a_file():
  np.testing.assert_array_equal(_decoded(image_files.read_image(_InMemory()))[0], _smooth())


def _cmyk_profile():
  """An ICC profile in which full cyan is as red as Lab can tell, and no ink is white."""
  identity = bytes(range(256))
  # Lab of 8 bits at the corners of the cube, the last channel (black) running fastest.
  corners = bytearray()
  for corner in range(16):
    cyan, black = corner & 8, corner & 1
    corners += bytes([0, 128, 128] if black else [138, 209, 198] if cyan else [255, 128, 128])
  lut = b'mft1' + bytes(4) + bytes([4, 3, 2, 0]) + struct.pack('>9i', *(65536 if index % 4 == 0 else 0 for index in range(9)))
  lut += identity * 4 + bytes(corners) + identity * 3
  size = 128 + 4 + 12 + len(lut)
  head = struct.pack('>I4sI4s4s4s', size, b'test', 0x02100000, b'prtr', b'CMYK', b'Lab ') + bytes(12) + b'acsp'
  head = head.ljust(68, b'\0') + struct.pack('>3I', 0xF6D6, 0x10000, 0xD32D)
  return head.ljust(128, b'\0') + struct.pack('>I4sII', 1, b'A2B0', 144, len(lut)) + lut


@pytest.mark.parametrize('image_format', ['JPEG', 'TIFF'])
def test_cmyk_is_converted_by_its_profile_and_plainly_without(tmp_path, image_format):
  inks = np.zeros([16, 16, 4], np.uint8)
  inks[:, 8:, 0] = 255
  image = Image.fromarray(inks, 'CMYK')
  plain = image_files.read_image(_save(tmp_path / 'plain', image, image_format))
  by_profile = image_files.read_image(_save(tmp_path / 'profile', image, image_format, icc_profile=_cmyk_profile()))
  assert plain.warnings == by_profile.warnings == []
  assert plain.format == by_profile.format == ('jpeg' if image_format == 'JPEG' else 'png')
  for found, right in ((plain, (0, 255, 255)), (by_profile, (255, 0, 0))):
    pixels, _ = _decoded(found)
    assert np.abs(pixels[2:-2, 2:6] - 255).max() < 12
    assert np.abs(pixels[2:-2, 10:14].mean(axis=(0, 1)) - right).max() < 30


def test_profile_of_other_colours_is_warned_of(tmp_path):
  rgb = ImageCms.ImageCmsProfile(ImageCms.createProfile('sRGB')).tobytes()
  image = image_files.read_image(_save(tmp_path / 'a.jpg', Image.new('CMYK', (9, 9), (255, 0, 0, 0)), 'JPEG', icc_profile=rgb))
  assert len(image.warnings) == 1 and 'a.jpg has a colour profile for CMYK that cannot be used' in image.warnings[0]
  assert np.abs(_decoded(image)[0] - (0, 255, 255)).mean() < 5
