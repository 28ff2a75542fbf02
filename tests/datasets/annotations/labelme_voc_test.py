"""Tests for datasets/annotations/labelme_voc.py: the folders of labelme2voc."""

import annotated
import numpy as np
import pytest
from annotated import rectangle

from deeplab.core.base.errors import InputError
from deeplab.core.images import colormap
from deeplab.datasets import dataset_info

_PALETTE = colormap.create_label_colormap('pascal')[:256]
_LABEL = rectangle(2, 6, 3, 9)
_LABEL[0] = 255


def _write(root, label_folder='SegmentationClassPNG', name_file='class_names.txt', names='_background_\ncat\n'):
  annotated.save_image(root / 'JPEGImages/a.jpg')
  annotated.save_png(root / label_folder / 'a.png', _LABEL, _PALETTE)
  (root / name_file).write_text(names)
  return root


@pytest.mark.parametrize('label_folder, name_file, names', [
    ('SegmentationClassPNG', 'class_names.txt', '_background_\ncat\n'),
    ('SegmentationClass', 'labels.txt', '__ignore__\n_background_\ncat\n')])
def test_indices_are_classes_and_255_is_ignored(tmp_path, capsys, label_folder, name_file, names):
  root = _write(tmp_path / 'voc', label_folder, name_file, names)
  image, label = annotated.convert(root, tmp_path / 'out')['train']['a']
  assert capsys.readouterr().out.splitlines()[0] == f'labelme2voc: {root}, 2 classes: _background_, cat.'
  np.testing.assert_array_equal(label, _LABEL)
  assert image == (root / 'JPEGImages/a.jpg').read_bytes()
  assert dataset_info.get_descriptor('own_data', str(tmp_path / 'out')).class_names == ['_background_', 'cat']


def test_class_that_class_names_leaves_out_is_told(tmp_path, capsys):
  root = _write(tmp_path / 'voc')
  with pytest.raises(InputError, match=r'a.png has the values 1 \(12 % of its pixels\), which stand for no class'):
    annotated.convert(root, tmp_path / 'out', '--class_names=other,dog')
  assert '--class_names does not name cat: labels that hold it are problems.' in capsys.readouterr().out


def test_labels_without_image_and_images_without_label_are_told(tmp_path):
  root = _write(tmp_path / 'voc')
  annotated.save_image(root / 'JPEGImages/b.jpg')
  annotated.save_png(root / 'SegmentationClassPNG/c.png', _LABEL, _PALETTE)
  with pytest.raises(InputError) as error:
    annotated.convert(root, tmp_path / 'out')
  assert 'SegmentationClassPNG/b.png cannot be read' in str(error.value) and 'JPEGImages/c.*' in str(error.value)
  assert annotated.wrote_nothing(tmp_path / 'out')
  assert list(annotated.merged(annotated.convert(root, tmp_path / 'out', '--skip_broken', '--val_fraction=0'))) == ['a']


@pytest.mark.parametrize('names, message', [('', 'class_names.txt holds no name'), ('_background_\ncat\ncat\n', 'names cat more'),
                                            ('_background_\n', '1 classes'), (b'\xff\xfe\x41', 'no text in UTF-8')])
def test_wrong_names_are_told_and_nothing_is_written(tmp_path, names, message):
  root = _write(tmp_path / 'voc')
  (root / 'class_names.txt').write_bytes(names if isinstance(names, bytes) else names.encode())
  with pytest.raises(InputError, match=message):
    annotated.convert(root, tmp_path / 'out')
  assert annotated.wrote_nothing(tmp_path / 'out')


def test_class_beyond_the_names_is_told(tmp_path):
  root = _write(tmp_path / 'voc')
  annotated.save_png(root / 'SegmentationClassPNG/a.png', _LABEL + 1, _PALETTE)
  with pytest.raises(InputError, match='a.png.* values 2 .*num_classes=2'):
    annotated.convert(root, tmp_path / 'out')
