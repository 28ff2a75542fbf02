"""Tests for datasets/annotations/roboflow_masks.py: the folders of Roboflow's "Semantic Segmentation Masks"."""

import annotated
import numpy as np
import pytest
from annotated import rectangle

from deeplab.core.base.errors import InputError
from deeplab.datasets import dataset_info

_TABLE = 'Pixel Value, Class\n0, background\n1, cat\n2, "dog, small"\n'


def _write(root, folders=('train', 'valid', 'test'), table=_TABLE, value=2):
  for seed, name in enumerate(folders):
    annotated.save_image(root / name / f'f{seed}_jpg.rf.0{seed}.jpg', seed)
    annotated.save_png(root / name / f'f{seed}_jpg.rf.0{seed}_mask.png', rectangle(1, 4, 2, 8, value))
    (root / name / '_classes.csv').write_text(table)
  return root


def test_folders_are_splits_and_values_classes(tmp_path, capsys):
  root = _write(tmp_path / 'export')
  splits = annotated.convert(root, tmp_path / 'out')
  assert capsys.readouterr().out.splitlines()[0] == (
      f'Roboflow "Semantic Segmentation Masks": {root}, 3 classes: background, cat, dog, small.')
  assert {split: list(records) for split, records in splits.items()} == {
      'train': ['f0_jpg.rf.00'], 'val': ['f1_jpg.rf.01'], 'test': ['f2_jpg.rf.02']}
  np.testing.assert_array_equal(splits['val']['f1_jpg.rf.01'][1], rectangle(1, 4, 2, 8, 2))
  assert splits['val']['f1_jpg.rf.01'][0] == (root / 'valid/f1_jpg.rf.01.jpg').read_bytes()
  assert dataset_info.get_descriptor('own_data', str(tmp_path / 'out')).class_names == ['background', 'cat', 'dog, small']


def test_values_with_gaps_become_classes_in_a_row(tmp_path):
  root = _write(tmp_path / 'export', table='Pixel Value, Class\n7, cat\n3, background\n0, floor\n', value=7)
  records = annotated.convert(root, tmp_path / 'out')['train']
  # background 0, floor 1, cat 2; the label holds 0 and 7.
  np.testing.assert_array_equal(records['f0_jpg.rf.00'][1], rectangle(1, 4, 2, 8, 1) + 1)


def test_one_split_alone_is_divided(tmp_path):
  root = _write(tmp_path / 'export', ['train'])
  annotated.save_image(root / 'train/b.jpg')
  annotated.save_png(root / 'train/b_mask.png', rectangle(1, 4, 2, 8))
  assert sorted(annotated.convert(root / 'train', tmp_path / 'out')) == ['train', 'val']


@pytest.mark.parametrize('table, message', [
    ('Pixel Value, Class\n0, background\n1\n', "_classes.csv, line 3: '1'"),
    ('Pixel Value, Class\n0, background\n1, cat\n1, dog\n', 'line 4'),
    ('Pixel Value, Class\n0, background\n999, cat\n', 'line 3'),
    ('Pixel Value, Class\n0, background\n1, cat\n', 'f0_jpg.rf.00_mask.png.* 2 '),
    ('', '_classes.csv holds no class'),
])
def test_wrong_tables_are_told_and_nothing_is_written(tmp_path, table, message):
  root = _write(tmp_path / 'export', table=table)
  with pytest.raises(InputError, match=message):
    annotated.convert(root, tmp_path / 'out')
  assert annotated.wrote_nothing(tmp_path / 'out')


def test_tables_must_agree(tmp_path):
  root = _write(tmp_path / 'export')
  (root / 'valid/_classes.csv').write_text('Pixel Value, Class\n0, background\n2, cat\n')
  with pytest.raises(InputError, match='valid/_classes.csv gives other classes than .*train/_classes.csv'):
    annotated.convert(root, tmp_path / 'out')


def test_masks_and_images_without_the_other_are_told(tmp_path):
  root = _write(tmp_path / 'export')
  annotated.save_image(root / 'train/b.jpg')
  with pytest.raises(InputError, match='train/b.jpg has no mask'):
    annotated.convert(root, tmp_path / 'out')
  (root / 'train/b.jpg').rename(root / 'train/c_mask.png')
  with pytest.raises(InputError, match='train/c_mask.png has no image'):
    annotated.convert(root, tmp_path / 'out')
  assert annotated.wrote_nothing(tmp_path / 'out')
  assert 'b' not in annotated.convert(root, tmp_path / 'out', '--skip_broken')['train']
