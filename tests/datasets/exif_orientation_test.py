"""datasets/exif_orientation.py, and whole conversions of turned images: records and labels must show the same."""

import io
import pathlib

import numpy as np
import pytest
from PIL import Image

from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf
from deeplab.datasets import build_data, dataset_info, exif_orientation, file_pairs, image_files

# What the camera does to an upright picture before it stores it, by orientation.
_STORED = {
    1: lambda pixels: pixels, 2: np.fliplr, 3: lambda pixels: np.rot90(pixels, 2), 4: np.flipud,
    5: lambda pixels: np.swapaxes(pixels, 0, 1), 6: np.rot90, 7: lambda pixels: np.rot90(np.swapaxes(pixels, 0, 1), 2),
    8: lambda pixels: np.rot90(pixels, -1)}


def _write(root, name, orientation, labels='upright', size=(48, 64), extension='jpg'):
  """A red rectangle in a corner of gray noise, stored as a camera that was held in this way does, and its label.

  Args:
    root: folder.
    name: of the files.
    orientation: EXIF number.
    labels: 'upright' or 'stored', what the label shows.
    size: (height, width) of the upright picture.
    extension: of the image.
  """
  label = np.zeros(size, np.uint8)
  label[4:size[0] // 3, 6:size[1] // 2] = 1
  noise = np.random.default_rng(orientation).integers(100, 140, [*size, 1], np.uint8).repeat(3, axis=2)
  upright = np.where(label[..., np.newaxis], np.uint8([230, 20, 20]), noise)
  exif = Image.Exif()
  exif[0x0112] = orientation
  for folder in ('images', 'labels'):
    (root / folder).mkdir(parents=True, exist_ok=True)
  options = {'quality': 95} if extension == 'jpg' else {}
  Image.fromarray(np.ascontiguousarray(_STORED[orientation](upright))).save(
      root / f'images/{name}.{extension}', exif=exif, **options)
  shown = label if labels == 'upright' else np.ascontiguousarray(_STORED[orientation](label))
  Image.fromarray(shown).save(root / f'labels/{name}.png')


def _convert(root, **options):
  """Converts and returns image and label of each record by name, and asserts that the label marks the red."""
  pairs = file_pairs.pairs_of_folders(str(root / 'images'), str(root / 'labels'))
  build_data.build({'train': pairs}, dataset_info.describe('red', 2), str(root / 'out'), 2, **options)
  found = {}
  for path in sorted(pathlib.Path(root / 'out').glob('train-*')):
    for record in tf.io.tf_record_iterator(str(path)):
      features = tf.train.Example.FromString(record).features.feature
      image, label = (Image.open(io.BytesIO(features[key].bytes_list.value[0]))
                      for key in ('image/encoded', 'image/segmentation/class/encoded'))
      name = features['image/filename'].bytes_list.value[0].decode()
      size = tuple(features[f'image/{side}'].int64_list.value[0] for side in ('width', 'height'))
      assert image.size == label.size == size, name
      pixels = np.asarray(image.convert('RGB')).astype(int)
      red, marked = (pixels[..., 0] > 170) & (pixels[..., 1] < 80), np.asarray(label) == 1
      found[name] = (red & marked).sum() / (red | marked).sum(), image
  return found


def _agrees(found):
  return {name: overlap > 0.9 for name, (overlap, _) in found.items()}


@pytest.mark.parametrize('extension', ['jpg', 'png', 'tif'])
def test_upright_labels_turn_the_images(tmp_path, extension, absl_log):
  absl_log.set_level('INFO', 'absl')
  for orientation in range(1, 9):
    _write(tmp_path, f'o{orientation}', orientation, extension=extension)
  found = _convert(tmp_path)
  assert _agrees(found) == dict.fromkeys([f'o{orientation}' for orientation in range(1, 9)], True)
  assert all(image.getexif().get(0x0112, 1) == 1 and image.size == (64, 48) for _, image in found.values())
  assert not [record for record in absl_log.records if record.levelname == 'WARNING' and 'EXIF' in record.getMessage()]
  assert 'Labels are upright, as the sizes of 4 images with EXIF orientation tell' in absl_log.text


@pytest.mark.parametrize('extension', ['jpg', 'png', 'tif'])
def test_labels_of_the_stored_pixels_leave_them(tmp_path, extension, absl_log):
  """Those too whose own sizes tell nothing."""
  absl_log.set_level('INFO', 'absl')
  for orientation in range(1, 9):
    _write(tmp_path, f'o{orientation}', orientation, 'stored', extension=extension)
  _write(tmp_path, 'square', 6, 'stored', (50, 50), extension)
  found = _convert(tmp_path)
  assert _agrees(found) == dict.fromkeys([f'o{orientation}' for orientation in range(1, 9)] + ['square'], True)
  assert found['o6'][1].size == (48, 64)
  assert 'Labels are as the stored pixels' in absl_log.text


def test_sizes_that_cannot_tell_are_upright_with_one_warning(tmp_path, absl_log):
  for orientation in (2, 3, 4):
    _write(tmp_path, f'o{orientation}', orientation)
  for orientation in (5, 6, 7, 8):
    _write(tmp_path, f's{orientation}', orientation, size=(50, 50))
  _write(tmp_path, 'plain', 1)
  assert all(_agrees(_convert(tmp_path)).values())
  warnings = [record.getMessage() for record in absl_log.records if 'EXIF' in record.getMessage()]
  assert len(warnings) == 1 and warnings[0].startswith('7 images are turned upright')
  assert '--exif_orientation=ignore' in warnings[0]


def test_labels_of_both_kinds_are_named_and_stop(tmp_path):
  _write(tmp_path, 'lies', 6)
  _write(tmp_path, 'stands', 8, 'stored')
  _write(tmp_path, 'other', 3)
  for skip_broken in (False, True):
    with pytest.raises(InputError, match=r"as upright images: '[^']*lies.jpg'. Labels as the stored pixels: '[^']*stands.jpg'"):
      _convert(tmp_path, skip_broken=skip_broken)
    assert list((tmp_path / 'out').iterdir()) == []
  found = _convert(tmp_path, skip_broken=True, orientation='apply')
  assert _agrees(found) == {'lies': True, 'other': True}
  assert _agrees(_convert(tmp_path, skip_broken=True, orientation='ignore')) == {'stands': True, 'other': False}


def test_choice_wins_where_sizes_tell_nothing(tmp_path, absl_log):
  _write(tmp_path, 'down', 3, 'stored')
  assert _agrees(_convert(tmp_path, orientation='ignore')) == {'down': True}
  assert _agrees(_convert(tmp_path, orientation='apply')) == {'down': False}
  assert 'EXIF' not in absl_log.text


@pytest.mark.parametrize('orientation, label_size, image', [
    ('apply', (64, 48), '48x64 .height x width. turned upright by its EXIF orientation'),
    ('ignore', (48, 64), '64x48 .height x width. as it is stored, against its EXIF orientation'),
    ('auto', (47, 64), '48x64 .height x width. turned upright by its EXIF orientation')])
def test_wrong_size_says_how_the_image_was_turned(tmp_path, orientation, label_size, image):
  _write(tmp_path, 'a', 6)
  Image.fromarray(np.zeros(label_size, np.uint8)).save(tmp_path / 'labels/a.png')
  with pytest.raises(InputError, match=f'a.jpg is {image}, but its label .* is {label_size[0]}x{label_size[1]}'):
    _convert(tmp_path, orientation=orientation)


def test_images_without_labels_follow_the_others(tmp_path):
  _write(tmp_path, 'a', 6, 'stored')
  _write(tmp_path, 'b', 8, 'stored')
  splits = {'test': [build_data.Pair('a', str(tmp_path / 'images/a.jpg'), None)],
            'val': [build_data.Pair('b', str(tmp_path / 'images/b.jpg'), str(tmp_path / 'labels/b.png'))]}
  build_data.build(splits, dataset_info.describe('red', 2), str(tmp_path / 'out'), 1)
  record, = tf.io.tf_record_iterator(str(tmp_path / 'out/test-00000-of-00001.tfrecord'))
  assert tf.train.Example.FromString(record).features.feature['image/height'].int64_list.value[0] == 64


@pytest.mark.parametrize('orientation, label, told', [
    (6, (48, 64), 'apply'), (6, (64, 48), 'ignore'), (6, (50, 50), None), (3, (64, 48), None), (6, None, None)])
def test_what_a_label_tells(orientation, label, told):
  assert exif_orientation.of_label(image_files.ImageHeader((64, 48), orientation), label) == told
