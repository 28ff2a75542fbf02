"""Tests for the converters: datasets/image_files.py, build_data.py, build_*_data.py and remove_gt_colormap.py."""

import contextlib
import io
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import zlib

import numpy as np
import program_flags
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf
from deeplab.core.images import colormap
from deeplab.datasets import (
  build_ade20k_data,
  build_cityscapes_data,
  build_data,
  build_own_data,
  build_shapes_data,
  build_voc2012_data,
  dataset_info,
  file_pairs,
  image_files,
  remove_gt_colormap,
  tfexample,
)

_ROOT = pathlib.Path(build_data.__file__).parents[1]
_ROW = np.uint8([[0, 1, 0, 1, 0, 1, 0]])
_VOC_PALETTE = colormap.create_label_colormap('pascal')[:256].ravel().tolist()


def _pixels(height=6, width=7, channels=3, seed=0):
  return np.random.default_rng(seed).integers(0, 256, [height, width, channels], np.uint8)


def _save(path, pixels, **options):
  path.parent.mkdir(parents=True, exist_ok=True)
  image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
  image.save(path, **options)
  return str(path)


def _palette_image(values):
  image = Image.fromarray(values)
  image.putpalette(_VOC_PALETTE)
  return image


def _write_voc(root, names, lists=None, label=None):
  """A data set in the layout of PASCAL VOC with labels of the values 0 and 1."""
  for index, name in enumerate(names):
    _save(root / 'JPEGImages' / f'{name}.jpg', _pixels(seed=index))
    _save(root / 'SegmentationClass' / f'{name}.png', np.tile(_ROW, [6, 1]) if label is None else label)
  for split, members in (lists or {'train': names}).items():
    path = root / 'ImageSets' / f'{split}.txt'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b'\n'.join(map(os.fsencode, members)) + b'\n')
  return root


def _convert_voc(root, output_dir, **options):
  splits = file_pairs.pairs_of_lists(str(root / 'ImageSets'), str(root / 'JPEGImages'), str(root / 'SegmentationClass'))
  descriptor = dataset_info.get_descriptor('pascal_voc_seg')
  return build_data.build(splits, descriptor, str(output_dir), num_shards=4, **options)


def _examples(folder, split):
  """Features of the records of a split, by name."""
  found = {}
  for path in sorted(pathlib.Path(folder).glob(f'{split}-*')):
    for record in tf.io.tf_record_iterator(str(path)):
      features = tf.train.Example.FromString(record).features.feature
      values = {key: (feature.bytes_list.value or feature.int64_list.value)[0] for key, feature in features.items()}
      found[values['image/filename']] = values
  return found


def _label_values(example):
  label = Image.open(io.BytesIO(example['image/segmentation/class/encoded']))
  assert label.mode == 'L'
  return np.asarray(label)


@contextlib.contextmanager
def _flags_of(program, *arguments):
  """The flags of a program, which are defined only where it is run, with values from a command line."""
  with program_flags.defined(program._define_flags) as values:
    values(['program', *arguments])
    yield values


# Whole conversions.


def test_records_hold_the_files_as_they_are(tmp_path):
  root = _write_voc(tmp_path / 'voc', ['a', 'b', 'c'], {'train': ['a', 'b'], 'val': ['c']})
  descriptor = _convert_voc(root, tmp_path / 'out')
  assert descriptor.splits_to_sizes == {'train': 2, 'val': 1}
  train = _examples(tmp_path / 'out', 'train')
  assert sorted(train) == [b'a', b'b'] and sorted(_examples(tmp_path / 'out', 'val')) == [b'c']
  assert train[b'a'] == {
      'image/encoded': (root / 'JPEGImages/a.jpg').read_bytes(), 'image/filename': b'a', 'image/format': b'jpeg',
      'image/height': 6, 'image/width': 7, 'image/channels': 3, 'image/segmentation/class/format': b'png',
      'image/segmentation/class/encoded': (root / 'SegmentationClass/a.png').read_bytes()}


def test_description_lies_beside_the_records(tmp_path):
  _convert_voc(_write_voc(tmp_path / 'voc', ['a', 'b']), tmp_path / 'out')
  fields = json.loads((tmp_path / 'out/dataset.json').read_text())
  assert (fields['name'], fields['num_classes'], fields['ignore_label']) == ('pascal_voc_seg', 21, 255)
  assert fields['splits_to_sizes'] == {'train': 2}
  assert fields['class_names'][15] == 'person' and fields['colors'][15] == [192, 128, 128]
  assert dataset_info.get_descriptor('pascal_voc_seg', str(tmp_path / 'out')).splits_to_sizes == {'train': 2}


@pytest.mark.parametrize('num_images, num_files', [(1, 1), (3, 3), (4, 4), (9, 4)])
def test_no_shard_is_empty_and_names_count_them(tmp_path, num_images, num_files):
  _convert_voc(_write_voc(tmp_path / 'voc', [f'n{index}' for index in range(num_images)]), tmp_path / 'out')
  files = sorted((tmp_path / 'out').glob('train-*'))
  assert [path.name for path in files] == [f'train-{index:05d}-of-{num_files:05d}.tfrecord' for index in range(num_files)]
  assert all(path.stat().st_size for path in files)
  assert len(_examples(tmp_path / 'out', 'train')) == num_images


def test_order_is_shuffled_and_the_same_each_time(tmp_path):
  names = [f'n{index:02d}' for index in range(20)]
  root = _write_voc(tmp_path / 'voc', names)
  for output in ('one', 'two'):
    _convert_voc(root, tmp_path / output)
  order = list(_examples(tmp_path / 'one', 'train'))
  assert order != sorted(order) and sorted(order) == list(map(str.encode, names))
  for path in (tmp_path / 'one').iterdir():
    assert path.read_bytes() == (tmp_path / 'two' / path.name).read_bytes()


def test_second_conversion_replaces_the_files_of_the_first(tmp_path):
  _convert_voc(_write_voc(tmp_path / 'voc', ['a', 'b', 'c', 'd']), tmp_path / 'out')
  (tmp_path / 'out' / 'train-own.tfrecord').touch()
  _convert_voc(_write_voc(tmp_path / 'voc2', ['e', 'f']), tmp_path / 'out')
  assert sorted(path.name for path in (tmp_path / 'out').iterdir()) == [
      'dataset.json', 'preview.png', 'train-00000-of-00002.tfrecord', 'train-00001-of-00002.tfrecord', 'train-own.tfrecord']


def test_further_split_joins_the_description(tmp_path):
  _convert_voc(_write_voc(tmp_path / 'voc', ['a']), tmp_path / 'out')
  _convert_voc(_write_voc(tmp_path / 'voc2', ['b', 'c'], {'train_aug': ['b', 'c']}), tmp_path / 'out')
  assert dataset_info.get_descriptor('pascal_voc_seg', str(tmp_path / 'out')).splits_to_sizes == {'train': 1, 'train_aug': 2}


def test_split_of_another_data_set_is_refused(tmp_path):
  _convert_voc(_write_voc(tmp_path / 'voc', ['a']), tmp_path / 'out')
  with pytest.raises(InputError, match=r"holds the splits 'train' of data set 'pascal_voc_seg' \(21 classes.*'x' \(2 classes"):
    build_data.build({'val': []}, dataset_info.describe('x', 2), str(tmp_path / 'out'), 1)


def test_list_with_blank_lines_carriage_returns_and_byte_order_mark(tmp_path):
  root = _write_voc(tmp_path / 'voc', ['a', 'b'])
  (root / 'ImageSets/train.txt').write_bytes(b'\xef\xbb\xbfa\r\n\r\n  b \r\n\n')
  assert file_pairs.read_split_lists(str(root / 'ImageSets')) == {'train': ['a', 'b']}


@pytest.mark.parametrize('content, message', [(b'', 'train.txt is empty'), (b'\n \n', 'train.txt is empty'),
                                              (b'a\nb\na\n', "train.txt names 'a' more than once")])
def test_wrong_list_is_refused(tmp_path, content, message):
  (tmp_path / 'train.txt').write_bytes(content)
  with pytest.raises(InputError, match=message):
    file_pairs.read_split_lists(str(tmp_path))


def test_folder_without_lists_and_missing_folder_are_refused(tmp_path):
  with pytest.raises(InputError, match=r'no \*.txt in'):
    file_pairs.read_split_lists(str(tmp_path))
  with pytest.raises(InputError, match='there is no such folder'):
    file_pairs.read_split_lists(str(tmp_path / 'nowhere'))


@pytest.mark.parametrize('extension', ['jpg', 'jpeg', 'png', 'JPG', 'PNG'])
def test_image_is_found_under_every_extension_and_its_format_told_from_the_bytes(tmp_path, extension):
  root = _write_voc(tmp_path / 'voc', ['a'])
  (root / 'JPEGImages/a.jpg').rename(root / f'JPEGImages/a.{extension}')
  _convert_voc(root, tmp_path / 'out')
  assert _examples(tmp_path / 'out', 'train')[b'a']['image/format'] == b'jpeg'


def test_png_image_is_stored_as_png(tmp_path):
  root = _write_voc(tmp_path / 'voc', ['a'])
  _save(root / 'JPEGImages/a.jpg', _pixels(), format='PNG')
  _convert_voc(root, tmp_path / 'out')
  assert _examples(tmp_path / 'out', 'train')[b'a']['image/format'] == b'png'


def test_image_format_chooses_among_several_files(tmp_path):
  root = _write_voc(tmp_path / 'voc', ['a'])
  _save(root / 'JPEGImages/a.png', _pixels())
  folders = [str(root / name) for name in ('ImageSets', 'JPEGImages', 'SegmentationClass')]
  pair, = file_pairs.pairs_of_lists(*folders)['train']
  assert re.search('a stands for several files: .*a.jpg, .*a.png', pair.problem)
  assert file_pairs.pairs_of_lists(*folders, 'png')['train'][0].image == str(root / 'JPEGImages/a.png')


@pytest.mark.parametrize('name', ['Straße_東京', os.fsdecode(b'latin\xe9'), 'with space', 'a.b.c'])
def test_unusual_file_names_survive(tmp_path, name):
  _convert_voc(_write_voc(tmp_path / 'voc', [name]), tmp_path / 'out')
  assert list(_examples(tmp_path / 'out', 'train')) == [os.fsencode(name)]


def test_split_of_tests_needs_no_labels(tmp_path):
  root = _write_voc(tmp_path / 'voc', ['a', 'b'], {'test': ['a', 'b']})
  (root / 'SegmentationClass/b.png').unlink()
  _convert_voc(root, tmp_path / 'out')
  examples = _examples(tmp_path / 'out', 'test')
  assert {name: 'image/segmentation/class/encoded' in examples[name] for name in examples} == {b'a': True, b'b': False}


# Problems.


def _break_everything(root):
  """Files with one problem each; the parts of the message that tells it, by name."""
  _save(root / 'JPEGImages/gray16.png', np.full([6, 7], 300, np.uint16))
  (root / 'JPEGImages/gray16.jpg').unlink()
  whole = (root / 'JPEGImages/cut.jpg').read_bytes()
  (root / 'JPEGImages/cut.jpg').write_bytes(whole[:300])
  (root / 'JPEGImages/text.jpg').write_text('no picture')
  (root / 'JPEGImages/empty.jpg').write_bytes(b'')
  _save(root / 'JPEGImages/icon.jpg', _pixels(), format='ICO')
  (root / 'JPEGImages/lost.jpg').unlink()
  (root / 'SegmentationClass/nolabel.png').unlink()
  _save(root / 'SegmentationClass/half.png', np.zeros([3, 7], np.uint8))
  _save(root / 'SegmentationClass/painted.png', np.full([6, 7], 100, np.uint8))
  _save(root / 'SegmentationClass/colour.png', np.full([6, 7, 3], (128, 0, 0), np.uint8))
  _save(root / 'SegmentationClass/jpeg.png', np.zeros([6, 7], np.uint8), format='JPEG')
  _save(root / 'SegmentationClass/deep.png', np.full([6, 7], 1000, np.uint16))
  label = (root / 'SegmentationClass/cutlabel.png').read_bytes()
  (root / 'SegmentationClass/cutlabel.png').write_bytes(label[:50])
  return {
      'gray16': ('gray16.png', '16 bits'), 'cut': ('cut.jpg', 'broken (300 bytes)'), 'text': ('text.jpg', 'no picture'),
      'empty': ('empty.jpg', 'broken (0 bytes)'), 'icon': ('icon.jpg', 'no picture of a known format'),
      'lost': ('train', "'lost'", 'no such image'), 'nolabel': ('nolabel.jpg has no label', 'no nolabel.png'),
      'half': ('half.jpg', '6x7', 'half.png', '3x7'), 'painted': ('painted.png', '100', 'num_classes=21', 'ignore_label=255'),
      'colour': ('colour.png', '(128, 0, 0)', '--color_table'), 'jpeg': ('jpeg.png', 'JPEG', 'must be PNG'),
      'deep': ('deep.png', '1000', '0 to 255'), 'cutlabel': ('cutlabel.png', 'broken (50 bytes)'),
  }


_BROKEN = ['gray16', 'cut', 'text', 'empty', 'icon', 'lost', 'nolabel', 'half', 'painted', 'colour', 'jpeg', 'deep', 'cutlabel']


def test_all_problems_are_listed_with_their_files_and_nothing_is_written(tmp_path):
  root = _write_voc(tmp_path / 'voc', ['good', *_BROKEN], {'train': ['good', *_BROKEN], 'trainval': ['good', 'cut']})
  expected = _break_everything(root)
  assert sorted(expected) == sorted(_BROKEN)
  with pytest.raises(InputError) as error:
    _convert_voc(root, tmp_path / 'out')
  first, *lines = str(error.value).split('\n')
  assert first.startswith('13 problems') and '--skip_broken' in first and len(lines) == 13
  for parts in expected.values():
    assert [line for line in lines if all(part in line for part in parts)], parts
  assert os.listdir(tmp_path / 'out') == []


def test_failed_conversion_leaves_the_earlier_records(tmp_path):
  _convert_voc(_write_voc(tmp_path / 'voc', ['a']), tmp_path / 'out')
  before = {path.name: path.read_bytes() for path in (tmp_path / 'out').iterdir()}
  with pytest.raises(InputError):
    _convert_voc(_write_voc(tmp_path / 'bad', ['b'], label=np.full([6, 7], 100, np.uint8)), tmp_path / 'out')
  assert {path.name: path.read_bytes() for path in (tmp_path / 'out').iterdir()} == before


def test_skip_broken_writes_the_rest_and_lists_what_it_left_out(tmp_path, capsys):
  root = _write_voc(tmp_path / 'voc', ['good', 'fine', *_BROKEN])
  expected = _break_everything(root)
  descriptor = _convert_voc(root, tmp_path / 'out', skip_broken=True)
  assert descriptor.splits_to_sizes == {'train': 2}
  assert sorted(_examples(tmp_path / 'out', 'train')) == [b'fine', b'good']
  assert len(list((tmp_path / 'out').glob('train-*-of-00002.tfrecord'))) == 2
  printed = capsys.readouterr().out
  assert '13 problems; these pairs were left out' in printed and all(parts[0] in printed for parts in expected.values())


def test_skip_broken_with_nothing_left_is_an_error(tmp_path):
  root = _write_voc(tmp_path / 'voc', ['a'], label=np.full([6, 7], 100, np.uint8))
  with pytest.raises(InputError, match="(?s)Split 'train' has no image.*a.png"):
    _convert_voc(root, tmp_path / 'out', skip_broken=True)


# Images.


@pytest.mark.parametrize('image_format', ['JPEG', 'PNG'])
@pytest.mark.parametrize('missing', [1, 5, 11, 20])
def test_image_without_its_end_is_refused(tmp_path, image_format, missing):
  path = _save(tmp_path / 'a.img', _pixels(), format=image_format)
  whole = pathlib.Path(path).read_bytes()
  image_files.read_image(path)
  pathlib.Path(path).write_bytes(whole[:-missing])
  with pytest.raises(InputError, match='a.img is broken'):
    image_files.read_image(path)


@pytest.mark.parametrize('mode', ['L', 'RGB'])
def test_gray_and_colour_images_are_taken_without_a_warning(tmp_path, mode):
  path = _save(tmp_path / 'a.jpg', Image.fromarray(_pixels()).convert(mode))
  image = image_files.read_image(path)
  assert (image.format, image.height, image.width, image.warnings) == ('jpeg', 6, 7, [])


@pytest.mark.parametrize('mode, channels', [('RGBA', 4), ('LA', 2)])
def test_transparency_is_warned_of(tmp_path, mode, channels):
  image = image_files.read_image(_save(tmp_path / 'a.png', Image.fromarray(_pixels(channels=4)).convert(mode)))
  assert len(image.warnings) == 1 and f'a.png has {channels} channels, the model takes 3' in image.warnings[0]


def test_16_bit_image_is_refused_with_its_depth(tmp_path):
  with pytest.raises(InputError, match='a.png has 16 bits per channel'):
    image_files.read_image(_save(tmp_path / 'a.png', np.full([6, 7], 300, np.uint16)))


# Labels.


def test_palette_label_is_read_as_indices(tmp_path):
  values = np.uint8([[0, 1, 2], [3, 0, 255]])
  image = Image.fromarray(values)
  image.putpalette(_VOC_PALETTE)
  label = image_files.read_label(_save(tmp_path / 'a.png', image))
  np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(label.data))), values)
  assert Image.open(io.BytesIO(label.data)).mode == 'L'
  assert label.counts[[0, 1, 2, 3, 255]].tolist() == [2, 1, 1, 1, 1] and label.counts.sum() == 6


@pytest.mark.parametrize('bits, values', [(1, [[0, 1, 1]]), (2, [[0, 1, 3]]), (4, [[0, 7, 15]])])
@pytest.mark.parametrize('kind', ['gray', 'palette'])
def test_labels_of_few_bits_keep_their_values(tmp_path, bits, values, kind):
  path = str(tmp_path / 'a.png')
  if kind == 'palette':
    _palette_image(np.uint8(values)).save(path, bits=bits)
  else:
    _write_gray_png(path, np.uint8(values), bits)
  label = image_files.read_label(path)
  assert np.asarray(Image.open(io.BytesIO(label.data))).tolist() == values


def _write_gray_png(path, values, bits):
  """A gray PNG file of 1, 2 or 4 bits, which Pillow writes only for 1."""
  def chunk(kind, data):
    return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))

  rows = b''
  for row in values:
    text = ''.join(f'{value:0{bits}b}' for value in row.tolist())
    text += '0' * (-len(text) % 8)
    rows += b'\0' + int(text, 2).to_bytes(len(text) // 8, 'big')
  header = struct.pack('>IIBBBBB', values.shape[1], values.shape[0], bits, 0, 0, 0, 0)
  pathlib.Path(path).write_bytes(b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', header) + chunk(b'IDAT', zlib.compress(rows))
                                 + chunk(b'IEND', b''))


def test_16_bit_label_is_read_as_values(tmp_path):
  label = image_files.read_label(_save(tmp_path / 'a.png', np.uint16([[0, 7, 255]])))
  assert np.asarray(Image.open(io.BytesIO(label.data))).tolist() == [[0, 7, 255]]


def test_colour_label_needs_a_table(tmp_path):
  path = _save(tmp_path / 'a.png', np.uint8([[[0, 0, 0], [128, 0, 0], [9, 9, 9]]]))
  with pytest.raises(InputError, match=r'a.png .*\(0, 0, 0\), \(9, 9, 9\), \(128, 0, 0\); give a --color_table'):
    image_files.read_label(path)
  with pytest.raises(InputError, match=r'\(9, 9, 9\), which the colour table lacks'):
    image_files.read_label(path, {(0, 0, 0): 0, (128, 0, 0): 1})
  label = image_files.read_label(path, {(0, 0, 0): 0, (128, 0, 0): 1, (9, 9, 9): 255})
  assert np.asarray(Image.open(io.BytesIO(label.data))).tolist() == [[0, 1, 255]]


def test_transparent_label_is_read_and_warned_of(tmp_path):
  pixels = np.zeros([2, 3, 4], np.uint8)
  pixels[0, :, 0] = 128
  label = image_files.read_label(_save(tmp_path / 'a.png', pixels), {(0, 0, 0): 0, (128, 0, 0): 1})
  assert label.counts[:2].tolist() == [3, 3] and 'transparency' in label.warnings[0]


def test_color_table(tmp_path):
  path = tmp_path / 'table.txt'
  path.write_text('# value red green blue\n0 0 0 0\n1, 128, 0, 0  # roof\n\n255\t9\t9\t9\n')
  assert image_files.read_color_table(str(path)) == {(0, 0, 0): 0, (128, 0, 0): 1, (9, 9, 9): 255}
  assert image_files.read_color_table(None) is None


@pytest.mark.parametrize('text, message', [('0 0 0\n', 'line 1'), ('0 0 0 0\n1 0 0 256\n', 'line 2'), ('a 0 0 0', 'line 1'),
                                           ('0 1 1 1\n1 1 1 1\n', r'line 2: colour \(1, 1, 1\) stands for 0 already')])
def test_wrong_color_table_is_refused_by_line(tmp_path, text, message):
  (tmp_path / 'table.txt').write_text(text)
  with pytest.raises(InputError, match=message):
    image_files.read_color_table(str(tmp_path / 'table.txt'))


def test_missing_color_table_is_refused(tmp_path):
  with pytest.raises(InputError, match='nowhere.txt cannot be read'):
    image_files.read_color_table(str(tmp_path / 'nowhere.txt'))


@pytest.fixture(scope='module')
def read_back():
  """Function of a serialized record: (EncodedRecord, decoded image, decoded label)."""
  with tf.Graph().as_default(), tf.Session() as session:
    serialized = tf.placeholder(tf.string, [])
    record = tfexample.parse_features(serialized)
    fetches = record, tfexample.decode_image(record.image), tfexample.decode_label(record.label)
    yield session.make_callable(fetches, [serialized])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(height=st.integers(1, 40), width=st.integers(1, 40), seed=st.integers(0, 1 << 30),
       image_mode=st.sampled_from(['1', 'L', 'P', 'RGB', 'RGBA', 'LA']), image_format=st.sampled_from(['JPEG', 'PNG']),
       label_kind=st.sampled_from(['gray', 'palette', 'deep', 'colour']))
def test_round_trip_of_images_of_all_modes_and_sizes(tmp_path, read_back, height, width, seed, image_mode, image_format,
                                                     label_kind):
  image_mode = image_mode if image_format == 'PNG' or image_mode in ('L', 'RGB') else 'RGB'
  image = Image.fromarray(_pixels(height, width, 4, seed)).convert(image_mode)
  pair = build_data.Pair('näme', _save(tmp_path / 'image', image, format=image_format), str(tmp_path / 'label.png'))
  values = np.random.default_rng(seed).choice(np.uint8([0, 1, 2, 3, 255]), [height, width])
  colors = {(value, 7, 255 - value): value for value in (0, 1, 2, 3, 255)}
  label = {'gray': values, 'palette': _palette_image(values), 'deep': values.astype(np.uint16),
           'colour': np.stack([values, np.full_like(values, 7), 255 - values], axis=-1)}[label_kind]
  _save(tmp_path / 'label.png', label)
  converted = build_data._convert(pair, dataset_info.describe('x', 4), colors)
  assert converted.problems == [] and converted.counts.sum() == height * width
  record, decoded_image, decoded_label = read_back(converted.record)
  assert (record.name.decode(), record.height, record.width) == ('näme', height, width)
  assert record.image == (tmp_path / 'image').read_bytes()
  np.testing.assert_array_equal(decoded_label[:, :, 0], values)
  assert decoded_image.shape == (height, width, 3)
  if image_format == 'PNG':
    np.testing.assert_array_equal(decoded_image, np.asarray(image.convert('RGB')))


# The programs.


def test_parallel_map_keeps_the_order_of_any_number_of_items():
  assert list(build_data.parallel_map(lambda item: item * 2, iter(range(1000)))) == list(range(0, 2000, 2))


@pytest.mark.parametrize('program, defaults', [
    (build_voc2012_data, {'image_folder': './VOCdevkit/VOC2012/JPEGImages',
                          'semantic_segmentation_folder': './VOCdevkit/VOC2012/SegmentationClassRaw',
                          'list_folder': './VOCdevkit/VOC2012/ImageSets/Segmentation', 'output_dir': './tfrecord'}),
    (build_cityscapes_data, {'cityscapes_root': './cityscapes', 'output_dir': './tfrecord'}),
    (build_ade20k_data, {'train_image_folder': './ADE20K/ADEChallengeData2016/images/training',
                         'train_image_label_folder': './ADE20K/ADEChallengeData2016/annotations/training',
                         'val_image_folder': './ADE20K/ADEChallengeData2016/images/validation',
                         'val_image_label_folder': './ADE20K/ADEChallengeData2016/annotations/validation',
                         'output_dir': './ADE20K/tfrecord'}),
    (remove_gt_colormap, {'original_gt_folder': './VOCdevkit/VOC2012/SegmentationClass', 'segmentation_format': 'png',
                          'output_dir': './VOCdevkit/VOC2012/SegmentationClassRaw'}),
])
def test_flags_and_their_defaults(program, defaults):
  with _flags_of(program) as values:
    assert {name: values[name].value for name in defaults} == defaults


def test_voc_program_reads_the_published_labels_and_those_without_colour_map_alike(tmp_path):
  root = _write_voc(tmp_path / 'voc', ['a', 'b'])
  for name in ('a', 'b'):
    _save(root / f'SegmentationClass/{name}.png', _palette_image(np.full([6, 7], 3, np.uint8)))
  remove_gt_colormap.remove_colormap(str(root / 'SegmentationClass'), 'png', str(root / 'Raw'))
  for labels in ('SegmentationClass', 'Raw'):
    with _flags_of(build_voc2012_data, f'--image_folder={root}/JPEGImages', f'--semantic_segmentation_folder={root}/{labels}',
                   f'--list_folder={root}/ImageSets', f'--output_dir={tmp_path}/{labels}', '--image_format=jpg'):
      build_voc2012_data.main([])
  published, gray = (_examples(tmp_path / labels, 'train') for labels in ('SegmentationClass', 'Raw'))
  assert published == gray
  assert (_label_values(gray[b'a']) == 3).all()


def test_voc_program_takes_the_description_of_another_data_set(tmp_path):
  root = _write_voc(tmp_path / 'voc', ['a'])
  folders = [f'--image_folder={root}/JPEGImages', f'--semantic_segmentation_folder={root}/SegmentationClass',
             f'--list_folder={root}/ImageSets', f'--output_dir={tmp_path}/out']
  dataset_info.write_description(dataset_info.describe('roofs', 2, class_names=['other', 'roof']), str(root / 'dataset.json'))
  with _flags_of(build_voc2012_data, *folders, f'--description={root}/dataset.json'):
    build_voc2012_data.main([])
  descriptor = dataset_info.get_descriptor('roofs', str(tmp_path / 'out'))
  assert (descriptor.num_classes, descriptor.class_names) == (2, ['other', 'roof'])
  with _flags_of(build_voc2012_data, *folders, '--description=nowhere.json'), pytest.raises(InputError, match='nowhere.json'):
    build_voc2012_data.main([])


def _write_cityscapes(root, folder, city, frame, label=True):
  _save(root / f'leftImg8bit/{folder}/{city}/{city}_{frame}_leftImg8bit.png', _pixels())
  if label:
    _save(root / f'gtFine/{folder}/{city}/{city}_{frame}_gtFine_labelTrainIds.png', np.full([6, 7], int(frame), np.uint8))


def test_cityscapes_pairs_by_name(tmp_path):
  for city in ('aachen', 'bochum'):
    _write_cityscapes(tmp_path, 'train', city, '000001')
    _write_cityscapes(tmp_path, 'train', city, '000002')
  _write_cityscapes(tmp_path, 'val', 'ulm', '000003')
  _write_cityscapes(tmp_path, 'test', 'bonn', '000004', label=False)
  with _flags_of(build_cityscapes_data, f'--cityscapes_root={tmp_path}', f'--output_dir={tmp_path}/out'):
    build_cityscapes_data.main([])
  assert dataset_info.get_descriptor('cityscapes', str(tmp_path / 'out')).splits_to_sizes == {
      'train_fine': 4, 'val_fine': 1, 'test_fine': 1}
  train = _examples(tmp_path / 'out', 'train_fine')
  assert sorted(train) == [b'aachen_000001', b'aachen_000002', b'bochum_000001', b'bochum_000002']
  assert all((_label_values(example) == int(name[-1:])).all() for name, example in train.items())
  assert train[b'aachen_000001']['image/format'] == b'png'


def test_cityscapes_image_without_label_is_refused_by_name(tmp_path):
  _write_cityscapes(tmp_path, 'train', 'aachen', '000001')
  _write_cityscapes(tmp_path, 'train', 'aachen', '000002', label=False)
  _write_cityscapes(tmp_path, 'train', 'aachen', '000003')
  with _flags_of(build_cityscapes_data, f'--cityscapes_root={tmp_path}', f'--output_dir={tmp_path}/out'), pytest.raises(
      InputError, match='1 problems.*\n.*aachen_000002_gtFine_labelTrainIds.png cannot be read'):
    build_cityscapes_data.main([])


def test_cityscapes_folder_without_images_is_refused(tmp_path):
  with pytest.raises(InputError, match='--cityscapes_root'):
    build_cityscapes_data.pairs_of_root(str(tmp_path))


def test_ade20k_stores_bare_names_and_what_the_bytes_are(tmp_path):
  for folder, name in (('training', 'ADE_train_1'), ('training', 'ADE_train_2'), ('validation', 'ADE_val_1')):
    _save(tmp_path / f'images/{folder}/{name}.jpg', _pixels())
    _save(tmp_path / f'annotations/{folder}/{name}.png', np.full([6, 7], 150, np.uint8))
  with _flags_of(build_ade20k_data, f'--train_image_folder={tmp_path}/images/training',
                 f'--train_image_label_folder={tmp_path}/annotations/training',
                 f'--val_image_folder={tmp_path}/images/validation',
                 f'--val_image_label_folder={tmp_path}/annotations/validation', f'--output_dir={tmp_path}/out'):
    build_ade20k_data.main([])
  train = _examples(tmp_path / 'out', 'train')
  assert sorted(train) == [b'ADE_train_1', b'ADE_train_2'] and train[b'ADE_train_1']['image/format'] == b'jpeg'
  assert dataset_info.get_descriptor('ade20k', str(tmp_path / 'out')).splits_to_sizes == {'train': 2, 'val': 1}


def _own_flags(root, *more):
  return [f'--image_folder={root}/JPEGImages', f'--label_folder={root}/SegmentationClass', f'--output_dir={root}/out', *more]


def test_own_data_needs_two_folders_alone(tmp_path):
  root = _write_voc(tmp_path, [f'n{index:02d}' for index in range(20)])
  with _flags_of(build_own_data, *_own_flags(root)):
    build_own_data.main([])
  descriptor = dataset_info.get_descriptor('own_data', str(root / 'out'))
  assert (descriptor.num_classes, descriptor.ignore_label, descriptor.splits_to_sizes) == (2, 255, {'train': 18, 'val': 2})
  assert not set(_examples(root / 'out', 'train')) & set(_examples(root / 'out', 'val'))


def test_own_data_with_lists_names_and_colour_table(tmp_path):
  root = _write_voc(tmp_path, ['a', 'b', 'c'], {'train': ['a', 'b'], 'val': ['c']},
                    label=np.tile(np.uint8([[[0, 0, 0], [255, 0, 0], [9, 9, 9], [0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]]]),
                                  [6, 1, 1]))
  (root / 'table.txt').write_text('0 0 0 0\n1 255 0 0\n255 9 9 9\n')
  with _flags_of(build_own_data, *_own_flags(root, f'--list_folder={root}/ImageSets', f'--color_table={root}/table.txt',
                                             '--class_names=other,roof', '--dataset_name=roofs')):
    build_own_data.main([])
  descriptor = dataset_info.get_descriptor('roofs', str(root / 'out'))
  assert (descriptor.num_classes, descriptor.class_names) == (2, ['other', 'roof'])
  assert descriptor.splits_to_sizes == {'train': 2, 'val': 1}
  assert _label_values(_examples(root / 'out', 'val')[b'c'])[0].tolist() == [0, 1, 255, 0, 0, 0, 0]


def test_own_data_whose_object_has_the_ignored_value_is_refused(tmp_path):
  root = _write_voc(tmp_path, ['a', 'b'], label=np.uint8([[0, 255, 0, 255, 0, 255, 0]] * 6))
  with _flags_of(build_own_data, *_own_flags(root)), pytest.raises(InputError, match=r'hold \[0, 255\].*fewer than two classes'):
    build_own_data.main([])


def test_own_data_with_labels_outside_of_the_given_classes_is_refused(tmp_path):
  root = _write_voc(tmp_path, ['a', 'b'], label=np.uint8([[0, 128, 0, 1, 0, 1, 0]] * 6))
  with _flags_of(build_own_data, *_own_flags(root, '--num_classes=2')), pytest.raises(
      InputError, match='a.png has label values 128 .*num_classes=2'):
    build_own_data.main([])


def test_own_data_with_two_numbers_of_classes_is_refused(tmp_path):
  root = _write_voc(tmp_path, ['a', 'b'])
  with _flags_of(build_own_data, *_own_flags(root, '--num_classes=3', '--class_names=x,y')), pytest.raises(
      InputError, match='--num_classes=3, but --class_names holds 2'):
    build_own_data.main([])


def test_ignoring_all_but_one_class_is_warned_of_at_conversion(tmp_path, absl_log):
  root = _write_voc(tmp_path, ['a', 'b'])
  with _flags_of(build_own_data, *_own_flags(root, '--num_classes=2', '--ignore_label=0')):
    build_own_data.main([])
  assert 'After ignoring the value 0, only class 1 (class_1) is left' in absl_log.text


def test_classes_never_present_are_reported_at_conversion(tmp_path, absl_log):
  root = _write_voc(tmp_path, ['a', 'b'])
  with _flags_of(build_own_data, *_own_flags(root, '--num_classes=4')):
    build_own_data.main([])
  assert 'never present: 2 (class_2), 3 (class_3)' in absl_log.text


@pytest.mark.parametrize('count, fraction, num_val', [(10, 0.1, 1), (10, 0.3, 3), (4, 0.01, 1), (4, 0.0, 0), (1, 0.5, 0)])
def test_split_pairs(count, fraction, num_val):
  splits = build_own_data.split_pairs([build_data.Pair(str(index), '', '') for index in range(count)], fraction)
  assert {split: len(pairs) for split, pairs in splits.items()} == (
      {'train': count - num_val, 'val': num_val} if num_val else {'train': count})
  assert len({pair.name for pairs in splits.values() for pair in pairs}) == count


def test_remove_gt_colormap_writes_gray_indices(tmp_path):
  values = np.uint8([[0, 1, 2, 3]])
  _save(tmp_path / 'in/a.png', _palette_image(values))
  _save(tmp_path / 'in/b.png', values)
  remove_gt_colormap.remove_colormap(str(tmp_path / 'in'), 'png', str(tmp_path / 'out'))
  for name in ('a.png', 'b.png'):
    label = Image.open(tmp_path / 'out' / name)
    assert label.mode == 'L' and np.asarray(label).tolist() == [[0, 1, 2, 3]]


def test_remove_gt_colormap_refuses_colour_and_writes_nothing(tmp_path):
  _save(tmp_path / 'in/a.png', np.zeros([1, 4], np.uint8))
  _save(tmp_path / 'in/b.png', np.full([1, 4, 3], (128, 0, 0), np.uint8))
  with pytest.raises(InputError, match=r'b.png.*\(128, 0, 0\)'):
    remove_gt_colormap.remove_colormap(str(tmp_path / 'in'), 'png', str(tmp_path / 'out'))
  assert not (tmp_path / 'out').exists()
  remove_gt_colormap.remove_colormap(str(tmp_path / 'in'), 'png', str(tmp_path / 'out'), {(128, 0, 0): 1})
  assert np.asarray(Image.open(tmp_path / 'out/b.png')).tolist() == [[1, 1, 1, 1]]


def test_remove_gt_colormap_of_a_folder_without_labels_is_refused(tmp_path):
  with pytest.raises(InputError, match=r'no \*.png in'):
    remove_gt_colormap.remove_colormap(str(tmp_path), 'png', str(tmp_path / 'out'))


def test_shapes_are_a_data_set_in_the_layout_of_voc(tmp_path):
  build_shapes_data.build_shapes(str(tmp_path / 'shapes'), num_train=12, num_val=3, seed=1)
  descriptor = dataset_info.get_descriptor('shapes', str(tmp_path / 'shapes'))
  assert descriptor.class_names == ['background', 'disc', 'square', 'triangle', 'star', 'cross']
  splits = file_pairs.pairs_of_lists(*[str(tmp_path / 'shapes' / name) for name in (
      'ImageSets/Segmentation', 'JPEGImages', 'SegmentationClass')])
  assert {split: len(pairs) for split, pairs in splits.items()} == {'train': 12, 'val': 3}
  assert all(Image.open(pair.label).mode == 'P' for pair in splits['train'])
  counts = sum(image_files.read_label(pair.label).counts for pair in splits['train'])
  assert np.flatnonzero(counts).tolist() == [0, 1, 2, 3, 4, 5, 255]
  assert build_data.build(splits, descriptor, str(tmp_path / 'out'), 2).splits_to_sizes == {'train': 12, 'val': 3}


def test_shapes_of_a_seed_are_always_the_same(tmp_path):
  for folder, seed in (('one', 5), ('two', 5), ('three', 6)):
    build_shapes_data.build_shapes(str(tmp_path / folder), num_train=1, num_val=1, seed=seed)
  one, two, three = ((tmp_path / folder / 'JPEGImages/train_0000.jpg').read_bytes() for folder in ('one', 'two', 'three'))
  assert one == two != three


def _run(*arguments, **environment):
  return subprocess.run(arguments, capture_output=True, text=True, timeout=300, env={**os.environ, **environment})


def test_program_by_path_ends_with_a_message_and_a_code(tmp_path):
  root = _write_voc(tmp_path / 'voc', ['a'], label=np.full([6, 7], 100, np.uint8))
  done = _run(sys.executable, str(_ROOT / 'datasets/build_voc2012_data.py'), f'--image_folder={root}/JPEGImages',
              f'--semantic_segmentation_folder={root}/SegmentationClass', f'--list_folder={root}/ImageSets',
              f'--output_dir={tmp_path}/out')
  assert done.returncode == 1
  assert 'a.png has label values 100' in done.stderr and 'Traceback' not in done.stderr


def test_program_refuses_an_unknown_flag(tmp_path):
  done = _run(sys.executable, '-m', 'deeplab.datasets.build_voc2012_data', '--image_foldr=x', f'--output_dir={tmp_path}/out')
  assert done.returncode == 1 and 'image_foldr' in done.stderr and 'image_folder' in done.stderr


@pytest.mark.full
@pytest.mark.parametrize('program', ['download_and_convert_voc2012.sh', 'download_and_convert_ade20k.sh',
                                     'convert_cityscapes.sh'])
def test_scripts_convert_a_data_set_that_is_there(tmp_path, program):
  if 'voc' in program:
    root = _write_voc(tmp_path / 'VOCdevkit/VOC2012', ['a', 'b'])
    (root / 'ImageSets').rename(root / 'Segmentation')
    (root / 'ImageSets').mkdir()
    (root / 'Segmentation').rename(root / 'ImageSets/Segmentation')
    split = 'train'
  elif 'ade' in program:
    for folder in ('training', 'validation'):
      _save(tmp_path / f'ADEChallengeData2016/images/{folder}/a.jpg', _pixels())
      _save(tmp_path / f'ADEChallengeData2016/annotations/{folder}/a.png', np.full([6, 7], 150, np.uint8))
    split = 'val'
  else:
    _write_cityscapes(tmp_path, 'train', 'aachen', '000001')
    split = 'train_fine'
  done = _run('bash', str(_ROOT / 'scripts' / program), WORK_DIR=str(tmp_path), CITYSCAPES_ROOT=str(tmp_path),
              PYTHON=sys.executable, URL='http://nowhere.invalid/archive')
  assert done.returncode == 0, done.stderr
  assert len(_examples(tmp_path / 'tfrecord', split)) in (1, 2)
