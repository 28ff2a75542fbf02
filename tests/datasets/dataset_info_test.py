"""Tests for datasets/dataset_info.py."""

import json
import logging
import os

import numpy as np
import pytest

from deeplab.core.base import stored_format
from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf
from deeplab.core.base.version import VERSION
from deeplab.datasets import dataset_info


@pytest.fixture
def absl_log(caplog):
  logger = logging.getLogger('absl')
  level, propagate = logger.level, logger.propagate
  logger.propagate = True
  logger.setLevel(logging.INFO)
  yield caplog
  logger.propagate = propagate
  logger.setLevel(level)


def _write_shards(folder, *names):
  folder.mkdir(exist_ok=True)
  for name in names:
    with tf.io.TFRecordWriter(str(folder / name)) as writer:
      writer.write(b'record')


def _write_json(folder, **fields):
  (folder / 'dataset.json').write_text(json.dumps(fields))


def _names(paths):
  return [os.path.basename(path) for path in paths]


@pytest.mark.parametrize('name, num_classes, ignore_label, splits, some_names', [
    ('pascal_voc_seg', 21, 255, {'train': 1464, 'train_aug': 10582, 'trainval': 2913, 'val': 1449},
     {0: 'background', 15: 'person', 20: 'tvmonitor'}),
    ('cityscapes', 19, 255, {'train_fine': 2975, 'train_coarse': 22973, 'trainval_fine': 3475, 'trainval_coarse': 23473,
                             'val_fine': 500, 'test_fine': 1525}, {0: 'road', 8: 'vegetation', 18: 'bicycle'}),
    ('ade20k', 151, 0, {'train': 20210, 'val': 2000}, {1: 'wall', 13: 'person', 17: 'mountain', 137: 'traffic light',
                                                       150: 'flag'}),
])
def test_known_data_sets(name, num_classes, ignore_label, splits, some_names):
  descriptor = dataset_info.get_descriptor(name)
  assert (descriptor.name, descriptor.num_classes, descriptor.ignore_label) == (name, num_classes, ignore_label)
  assert descriptor.splits_to_sizes == splits
  assert len(descriptor.class_names) == len(set(descriptor.class_names)) == len(descriptor.colors) == num_classes
  assert {index: descriptor.class_names[index] for index in some_names} == some_names


def test_cityscapes_has_the_ids_of_its_benchmark():
  ids = dataset_info.get_descriptor('cityscapes').train_id_to_eval_id
  assert len(ids) == 19 and (ids[0], ids[2], ids[13], ids[18]) == (7, 11, 26, 33)
  assert dataset_info.get_descriptor('pascal_voc_seg').train_id_to_eval_id is None


def test_unknown_data_set_is_refused_with_the_known_ones(tmp_path):
  with pytest.raises(InputError, match=r'--dataset=foo.*ade20k, cityscapes, pascal_voc_seg.*dataset.json'):
    dataset_info.get_descriptor('foo', str(tmp_path))


def test_own_data_set_is_described_by_its_folder(tmp_path):
  _write_json(tmp_path, name='roofs', num_classes=2, splits_to_sizes={'train': 5}, class_names=['other', 'roof'],
              colors=[[0, 0, 0], [1, 2, 3]])
  descriptor = dataset_info.get_descriptor('roofs', str(tmp_path))
  assert descriptor == ('roofs', {'train': 5}, 2, 255, ['other', 'roof'], [[0, 0, 0], [1, 2, 3]], None)
  # The flag's default gives way to the folder.
  assert dataset_info.get_descriptor('pascal_voc_seg', str(tmp_path)) == descriptor


def test_another_name_than_the_folder_says_is_refused(tmp_path):
  _write_json(tmp_path, name='roofs', num_classes=2)
  with pytest.raises(InputError, match=r"--dataset=cityscapes.*'roofs'.*--dataset=roofs"):
    dataset_info.get_descriptor('cityscapes', str(tmp_path))


def test_description_overrides_a_known_data_set(tmp_path):
  _write_json(tmp_path, name='cityscapes', num_classes=9, splits_to_sizes={'train_fine': 3})
  descriptor = dataset_info.get_descriptor('cityscapes', str(tmp_path))
  assert (descriptor.num_classes, descriptor.splits_to_sizes, descriptor.train_id_to_eval_id) == (9, {'train_fine': 3}, None)


def test_what_a_description_leaves_out_is_filled_in(tmp_path):
  _write_json(tmp_path, name='roofs', num_classes=3)
  assert dataset_info.get_descriptor('roofs', str(tmp_path)) == (
      'roofs', {}, 3, 255, ['class_0', 'class_1', 'class_2'], [[0, 0, 0], [128, 0, 0], [0, 128, 0]], None)


@pytest.mark.parametrize('name', ['pascal_voc_seg', 'cityscapes', 'ade20k'])
def test_description_round_trip(tmp_path, name):
  path = str(tmp_path / 'dataset.json')
  dataset_info.write_description(dataset_info.get_descriptor(name), path)
  assert dataset_info.read_description(path) == dataset_info.get_descriptor(name)
  assert os.listdir(tmp_path) == ['dataset.json']


@pytest.mark.parametrize('fields, message', [
    ({'num_classes': 2}, "'name' is missing"),
    ({'name': 'x'}, "'num_classes' is missing"),
    ({'name': 'x', 'num_classes': 0}, "'num_classes' is 0.*1 to 256"),
    ({'name': 'x', 'num_classes': 257}, "'num_classes' is 257"),
    ({'name': 'x', 'num_classes': True}, "'num_classes' is true"),
    ({'name': 'x', 'num_classes': '2'}, "'num_classes' is \"2\""),
    ({'name': '', 'num_classes': 2}, "'name'"),
    ({'name': 'x', 'num_classes': 2, 'ignore_label': 256}, "'ignore_label' is 256.*0 to 255"),
    ({'name': 'x', 'num_classes': 2, 'class_names': ['a']}, r"'class_names'.*1 given for 2 classes"),
    ({'name': 'x', 'num_classes': 1, 'colors': [[0, 0]]}, "'colors'"),
    ({'name': 'x', 'num_classes': 1, 'colors': [[0, 0, 256]]}, "'colors'"),
    ({'name': 'x', 'num_classes': 1, 'train_id_to_eval_id': [-1]}, "'train_id_to_eval_id'"),
    ({'name': 'x', 'num_classes': 1, 'splits_to_sizes': {'train': '5'}}, "'splits_to_sizes'"),
    ({'name': 'x', 'num_classes': 1, 'ignored': 255}, "unknown field 'ignored'.*ignore_label"),
])
def test_wrong_description_is_refused_by_field(tmp_path, fields, message):
  _write_json(tmp_path, **fields)
  with pytest.raises(InputError, match=message) as error:
    dataset_info.get_descriptor('x', str(tmp_path))
  assert str(tmp_path / 'dataset.json') in str(error.value)


@pytest.mark.parametrize('text', ['', '{', '[]', '"x"'])
def test_description_that_is_no_object_is_refused(tmp_path, text):
  (tmp_path / 'dataset.json').write_text(text)
  with pytest.raises(InputError, match='dataset.json'):
    dataset_info.get_descriptor('x', str(tmp_path))


def test_split_files_are_sorted_and_are_those_of_the_split_alone(tmp_path):
  _write_shards(tmp_path, 'train-00001-of-00002.tfrecord', 'train-00000-of-00002.tfrecord', 'train_aug-00000-of-00001.tfrecord',
                '.train-00000.tmp', 'train-own')
  (tmp_path / 'train-logs').mkdir()
  assert _names(dataset_info.find_split_files(str(tmp_path), 'train')) == [
      'train-00000-of-00002.tfrecord', 'train-00001-of-00002.tfrecord', 'train-own']


def test_empty_shards_of_older_converters_are_left_out(tmp_path):
  _write_shards(tmp_path, 'val-00000-of-00002.tfrecord')
  (tmp_path / 'val-00001-of-00002.tfrecord').touch()
  assert _names(dataset_info.find_split_files(str(tmp_path), 'val')) == ['val-00000-of-00002.tfrecord']


def test_split_without_a_record_is_refused(tmp_path):
  for index in range(4):
    (tmp_path / f'train-0000{index}-of-00004.tfrecord').touch()
  with pytest.raises(InputError, match=r"'train' has 0 examples: all 4 files of .*train-\*"):
    dataset_info.find_split_files(str(tmp_path), 'train')


@pytest.mark.parametrize('content', [b'no record, but a text', b'abc', b'\x1f\x8b\x08\x00' * 10])
def test_foreign_file_is_refused_by_name(tmp_path, content):
  _write_shards(tmp_path, 'train-00000-of-00001.tfrecord')
  (tmp_path / 'train-notes.txt').write_bytes(content)
  with pytest.raises(InputError, match='train-notes.txt is no TFRecord file'):
    dataset_info.find_split_files(str(tmp_path), 'train')


def test_missing_folder_and_file_for_folder_are_refused(tmp_path):
  with pytest.raises(InputError, match='--dataset_dir=.*nowhere: there is no such folder'):
    dataset_info.find_split_files(str(tmp_path / 'nowhere'), 'train')
  _write_shards(tmp_path, 'train-00000-of-00001.tfrecord')
  with pytest.raises(InputError, match='is a file; give the folder'):
    dataset_info.find_split_files(str(tmp_path / 'train-00000-of-00001.tfrecord'), 'train')


def test_empty_folder_is_refused_with_the_pattern(tmp_path):
  with pytest.raises(InputError) as error:
    dataset_info.find_split_files(str(tmp_path), 'train')
  assert f'{tmp_path}/train-*' in str(error.value) and 'empty' in str(error.value)


def test_other_split_is_proposed(tmp_path):
  _write_shards(tmp_path, 'train-00000-of-00001.tfrecord', 'val-00000-of-00001.tfrecord')
  with pytest.raises(InputError, match=r"train_fine-\*.*holds the splits: train, val. Did you mean 'train'\?"):
    dataset_info.find_split_files(str(tmp_path), 'train_fine', 'pascal_voc_seg')


def test_files_of_the_folder_are_listed(tmp_path):
  (tmp_path / 'a.jpg').touch()
  (tmp_path / 'b').mkdir()
  with pytest.raises(InputError, match='holds: a.jpg, b/.'):
    dataset_info.find_split_files(str(tmp_path), 'train')


@pytest.mark.parametrize('given, right', [('.', 'tfrecord'), ('tfrecord/below', 'tfrecord')])
def test_folder_one_level_off_is_proposed(tmp_path, given, right):
  (tmp_path / 'tfrecord' / 'below').mkdir(parents=True)
  _write_shards(tmp_path / 'tfrecord', 'train-00000-of-00001.tfrecord')
  with pytest.raises(InputError) as error:
    dataset_info.find_split_files(str(tmp_path / given), 'train')
  assert f'Did you mean --dataset_dir={tmp_path / right}?' in str(error.value)


@pytest.mark.parametrize('written, wanted', [('train', 'train_fine'), ('train_fine', 'train'), ('val', 'val_fine'),
                                             ('val_fine', 'val')])
def test_older_and_newer_split_names_of_cityscapes(tmp_path, written, wanted):
  _write_shards(tmp_path, f'{written}-00000-of-00001.tfrecord')
  assert _names(dataset_info.find_split_files(str(tmp_path), wanted, 'cityscapes')) == [f'{written}-00000-of-00001.tfrecord']


def test_missing_shards_are_warned_of(tmp_path, absl_log):
  _write_shards(tmp_path, 'train-00000-of-00003.tfrecord', 'train-00002-of-00003.tfrecord')
  assert len(dataset_info.find_split_files(str(tmp_path), 'train')) == 2
  assert '2 of 3 files train-*' in absl_log.text


def test_two_conversions_in_one_folder_are_warned_of(tmp_path, absl_log):
  _write_shards(tmp_path, 'train-00000-of-00001.tfrecord', 'train-00000-of-00002.tfrecord', 'train-00001-of-00002.tfrecord')
  assert len(dataset_info.find_split_files(str(tmp_path), 'train')) == 3
  assert 'of 1 and of 2 files' in absl_log.text


def test_list_splits(tmp_path):
  _write_shards(tmp_path, 'val-00000-of-00001.tfrecord', 'train_aug-00000-of-00001.tfrecord')
  (tmp_path / 'dataset.json').touch()
  assert dataset_info.list_splits(str(tmp_path)) == ['train_aug', 'val']


def test_list_splits_of_a_folder_without_any(tmp_path):
  with pytest.raises(InputError, match='The folder is empty'):
    dataset_info.list_splits(str(tmp_path))


def _counts(**pixels):
  counts = np.zeros(256, np.int64)
  for value, number in pixels.items():
    counts[int(value[1:])] = number
  return counts


def test_wrong_values_are_described_with_the_numbers_that_matter():
  descriptor = dataset_info.describe('x', 3)
  assert dataset_info.describe_wrong_values(_counts(_0=5, _2=5, _255=5), descriptor) == ''
  text = dataset_info.describe_wrong_values(_counts(_0=6, _3=1, _100=1), descriptor)
  for part in ('values 3, 100 (25 %', '0 to 2', 'num_classes=3', 'ignore_label=255'):
    assert part in text


def test_one_class_left_is_warned_of():
  warnings = dataset_info.warnings_of_counts(_counts(_0=5, _1=5), dataset_info.describe('x', 2, ignore_label=0))
  assert len(warnings) == 1 and 'After ignoring the value 0, only class 1 (class_1) is left' in warnings[0]


def test_nothing_left_is_warned_of():
  warnings = dataset_info.warnings_of_counts(_counts(_255=5), dataset_info.describe('x', 2))
  assert len(warnings) == 1 and 'no pixel is left' in warnings[0]


def test_classes_never_present_are_reported():
  warnings = dataset_info.warnings_of_counts(_counts(_0=5, _1=5, _255=1), dataset_info.describe('x', 4))
  assert len(warnings) == 1
  assert 'present: 0 (class_0), 1 (class_1); never present: 2 (class_2), 3 (class_3)' in warnings[0]


def test_complete_data_set_gives_no_warning():
  assert dataset_info.warnings_of_counts(_counts(_0=5, _1=5, _255=1), dataset_info.describe('x', 2)) == []


def test_description_has_a_head(tmp_path):
  dataset_info.write_description(dataset_info.describe('mine', 2), str(tmp_path / 'dataset.json'))
  content = json.loads((tmp_path / 'dataset.json').read_text())
  assert (content['format'], content['version'], content['off']) == (stored_format.FORMAT, VERSION, {})


def test_description_of_a_later_version(tmp_path):
  head = {'format': 9, 'version': '2.5.0', 'off': {'license': ''}}
  _write_json(tmp_path, **head, name='mine', num_classes=2, license='')
  assert dataset_info.get_descriptor('mine', str(tmp_path)) == dataset_info.describe('mine', 2)
  _write_json(tmp_path, **head, name='mine', num_classes=2, license='free')
  with pytest.raises(InputError, match=r'dataset.json: it has license=free, which this version, .* version 2.5.0 wrote it\.'):
    dataset_info.get_descriptor('mine', str(tmp_path))
  # Nobody's later version wrote this one.
  _write_json(tmp_path, name='mine', num_classes=2, class_name=['a', 'b'])
  with pytest.raises(InputError, match="unknown field 'class_name'; the fields are"):
    dataset_info.get_descriptor('mine', str(tmp_path))
