"""Tests for datasets/annotations/cvat_masks.py: the folders of CVAT's "Segmentation mask 1.1" and of PASCAL VOC."""

import annotated
import numpy as np
import pytest
from annotated import HEIGHT, WIDTH, rectangle

from deeplab.core.base.errors import InputError
from deeplab.core.images import colormap
from deeplab.datasets import dataset_info

_COLORS = {'cat': (48, 112, 32), 'background': (0, 0, 0), 'dog': (176, 112, 32)}
# Background in the second row, classes as the tool wants them.
_LABEL_MAP = '# label:color_rgb:parts:actions\n' + ''.join(
    f'{name}:{red},{green},{blue}::\n' for name, (red, green, blue) in _COLORS.items())
_CAT, _DOG = rectangle(2, 6, 3, 9), rectangle(1, 11, 8, 15, 2)


def _paint(classes):
  return np.uint8([_COLORS[name] for name in ('background', 'cat', 'dog')])[classes]


def _write(root, labels, label_map=_LABEL_MAP, lists=None):
  """An export; `labels`: name -> array for a PNG file, or None for an image without annotation."""
  for seed, (name, label) in enumerate(labels.items()):
    annotated.save_image(root / 'JPEGImages' / f'{name}.jpg', seed)
    if label is not None:
      annotated.save_png(root / 'SegmentationClass' / f'{name}.png', label)
  for split, names in (lists or {'default': list(labels)}).items():
    path = root / 'ImageSets' / 'Segmentation' / f'{split}.txt'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('\n'.join(names) + '\n')
  if label_map:
    (root / 'labelmap.txt').write_text(label_map)
  return root


def test_colours_become_classes_with_background_first(tmp_path, capsys):
  root = _write(tmp_path / 'cvat', {'a': _paint(_CAT), 'b': _paint(_DOG)})
  records = annotated.merged(annotated.convert(root, tmp_path / 'out'))
  assert capsys.readouterr().out.splitlines()[0] == (
      f'CVAT "Segmentation mask 1.1" or PASCAL VOC: {root}, 3 classes: background, cat, dog.')
  np.testing.assert_array_equal(records['a'][1], _CAT)
  np.testing.assert_array_equal(records['b'][1], _DOG)
  assert records['a'][0] == (root / 'JPEGImages/a.jpg').read_bytes()
  assert dataset_info.get_descriptor('own_data', str(tmp_path / 'out')).class_names == ['background', 'cat', 'dog']


def test_without_a_class_background_the_black_one_is_class_0(tmp_path):
  root = _write(tmp_path / 'cvat', {'a': _paint(_CAT), 'b': _paint(_DOG)}, _LABEL_MAP.replace('background', 'floor'))
  records = annotated.merged(annotated.convert(root, tmp_path / 'out'))
  np.testing.assert_array_equal(records['a'][1], _CAT)
  assert dataset_info.get_descriptor('own_data', str(tmp_path / 'out')).class_names == ['floor', 'cat', 'dog']


def test_a_class_called_background_is_class_0_whatever_its_colour(tmp_path):
  label_map = 'car:0,0,0::\nBackground:9,9,9::\n'
  pixels = np.full([HEIGHT, WIDTH, 3], 9, np.uint8)
  pixels[3:5] = 0
  records = annotated.merged(annotated.convert(_write(tmp_path / 'cvat', {'a': pixels}, label_map), tmp_path / 'out'))
  np.testing.assert_array_equal(records['a'][1], rectangle(3, 5, 0, WIDTH))


def test_palette_is_read_by_its_colours_and_the_rim_of_objects_is_ignored(tmp_path):
  root = _write(tmp_path / 'cvat', {'a': None})
  indices = np.where(_DOG, 7, 4).astype(np.uint8)
  indices[0] = 9
  palette = np.zeros([10, 3], np.uint8)
  palette[[4, 7, 9]] = _COLORS['background'], _COLORS['dog'], (224, 224, 192)
  annotated.save_png(root / 'SegmentationClass/a.png', indices, palette)
  expected = _DOG.copy()
  expected[0] = 255
  np.testing.assert_array_equal(annotated.convert(root, tmp_path / 'out')['train']['a'][1], expected)


def test_gray_values_are_rows_of_the_map(tmp_path):
  rows = np.uint8([1, 0, 2])
  root = _write(tmp_path / 'cvat', {'a': rows[_CAT], 'b': rows[_DOG]})
  records = annotated.merged(annotated.convert(root, tmp_path / 'out'))
  np.testing.assert_array_equal(records['a'][1], _CAT)
  np.testing.assert_array_equal(records['b'][1], _DOG)


def test_gray_values_that_are_all_colours_of_the_map_are_colours(tmp_path):
  label_map = 'cat:255,255,255::\nbackground:0,0,0::\n'
  root = _write(tmp_path / 'cvat', {'a': _CAT * 255}, label_map)
  np.testing.assert_array_equal(
      annotated.convert(root, tmp_path / 'out', '--ignore_label=254')['train']['a'][1], _CAT)


def test_lists_are_splits_and_an_image_without_label_is_background(tmp_path, capsys):
  root = _write(tmp_path / 'cvat', {'a': _paint(_CAT), 'b': _paint(_DOG), 'c': None, 'd': _paint(_CAT)},
                lists={'train': ['a', 'c'], 'val': ['"b"']})
  splits = annotated.convert(root, tmp_path / 'out')
  assert {split: sorted(records) for split, records in splits.items()} == {'train': ['a', 'c'], 'val': ['b']}
  assert not splits['train']['c'][1].any()
  output = capsys.readouterr().out
  assert '1 of 3 images have no annotation; they are kept, all background: c.' in output
  assert f'1 images of {root}/JPEGImages are in no list of ImageSets/Segmentation and left out: d.jpg.' in output
  assert f'1 labels of {root}/SegmentationClass are in no list' in output


def test_folders_in_names_and_images_elsewhere(tmp_path):
  root = _write(tmp_path / 'cvat', {'left/1': _paint(_CAT), 'right/1': _paint(_DOG)}, lists={'train': ['left/1.jpg', 'right/1']})
  (root / 'JPEGImages').rename(tmp_path / 'photographs')
  records = annotated.convert(root, tmp_path / 'out', f'--image_folder={tmp_path}/photographs')['train']
  np.testing.assert_array_equal(records['left_1'][1], _CAT)
  np.testing.assert_array_equal(records['right_1'][1], _DOG)


def test_pascal_voc_has_no_label_map(tmp_path, capsys):
  root = _write(tmp_path / 'voc', {'a': None, 'b': None}, None, {'train': ['a'], 'val': ['b']})
  for name, label in (('a', _CAT), ('b', _DOG)):
    annotated.save_png(root / f'SegmentationClass/{name}.png', label, colormap.create_label_colormap('pascal')[:256])
  splits = annotated.convert(root, tmp_path / 'out')
  np.testing.assert_array_equal(splits['val']['b'][1], _DOG)
  assert 'classes are numbered by the labels' in capsys.readouterr().out
  assert dataset_info.get_descriptor('own_data', str(tmp_path / 'out')).num_classes == 3


def test_class_names_give_another_order(tmp_path):
  root = _write(tmp_path / 'cvat', {'a': _paint(_CAT), 'b': _paint(_DOG)})
  names = tmp_path / 'names.txt'
  names.write_text('__ignore__\nother\ndog\n\ncat\n')
  records = annotated.merged(annotated.convert(root, tmp_path / 'out', f'--class_names={names}'))
  np.testing.assert_array_equal(records['a'][1], _CAT * 2)
  np.testing.assert_array_equal(records['b'][1], _DOG // 2)
  assert dataset_info.get_descriptor('own_data', str(tmp_path / 'out')).class_names == ['other', 'dog', 'cat']


@pytest.mark.parametrize('label_map, label, parts', [
    ('background:0,0,0::\ncat:48,112,32::\n', _paint(_DOG), ('a.png', '(176, 112, 32)')),
    ('background:0,0,0::\ncat:::\n', _paint(_CAT), ('labelmap.txt, line 2', "'cat:::' gives no colour")),
    ('background:0,0,0::\ncat:1,2,300::\n', _paint(_CAT), ('labelmap.txt, line 2', 'numbers 0 to 255')),
    ('background:0,0,0::\ncat:0,0,0::\n', _paint(_CAT), ('labelmap.txt', '(0, 0, 0) stands for background, cat')),
    ('background:0,0,0::\ncat:1,1,1::\ncat:2,2,2::\n', _paint(_CAT), ('names cat more than once',)),
    ('# nothing\n', _paint(_CAT), ('labelmap.txt holds no class',)),
    (_LABEL_MAP, _CAT + 7, ('a.png', '7, 8', 'stand for no class of', 'labelmap.txt')),
    (_LABEL_MAP, _paint(_CAT)[:5], ('a.jpg is 12x16', 'a.png is 5x16')),
    (None, _paint(_CAT), ('labels hold nothing that can be read',)),
])
def test_wrong_exports_are_told_and_nothing_is_written(tmp_path, label_map, label, parts):
  root = _write(tmp_path / 'cvat', {'a': label}, label_map)
  with pytest.raises(InputError) as error:
    annotated.convert(root, tmp_path / 'out')
  assert all(part in str(error.value) for part in parts)
  assert annotated.wrote_nothing(tmp_path / 'out')


def test_export_without_images_asks_for_them(tmp_path):
  root = _write(tmp_path / 'cvat', {'a': _paint(_CAT)})
  (root / 'JPEGImages').rename(tmp_path / 'elsewhere')
  with pytest.raises(InputError, match='no JPEGImages; CVAT writes it with "Save images". Else give .* --image_folder'):
    annotated.convert(root, tmp_path / 'out')
