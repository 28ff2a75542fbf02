"""Tests for datasets/check_data.py."""

import io

import numpy as np
import program_flags
import pytest
from PIL import Image

from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf
from deeplab.datasets import check_data, dataset_info, tfexample

_DESCRIPTOR = dataset_info.describe('x', 3, splits_to_sizes={'train': 2})


def _encode(pixels, image_format='PNG'):
  encoded = io.BytesIO()
  Image.fromarray(pixels).save(encoded, image_format)
  return encoded.getvalue()


def _label(*values):
  """Label of 6x7 pixels: a row of each value, the others of the first."""
  return _encode(np.repeat(np.uint8([*values, *values[:1] * (6 - len(values))])[:, np.newaxis], 7, axis=1))


def _record(name, label=None, image=None, height=6, width=7):
  image = _encode(np.zeros([6, 7, 3], np.uint8), 'JPEG') if image is None else image
  return tfexample.image_seg_to_tfexample(image, name, height, width, _label(0, 1, 2) if label is None else label, 'jpg')


def _write(folder, *examples, split='train'):
  path = folder / f'{split}-00000-of-00001.tfrecord'
  with tf.io.TFRecordWriter(str(path)) as writer:
    for example in examples:
      writer.write(example if isinstance(example, bytes) else example.SerializeToString())
  return path


def _check(folder, descriptor=_DESCRIPTOR, split='train', **options):
  return check_data.check(descriptor, str(folder), split, **options)


def test_data_in_order(tmp_path):
  _write(tmp_path, _record('a'), _record('b', _label(0, 255)))
  report = _check(tmp_path)
  assert (report.split, report.num_images, report.max_size) == ('train', 2, (6, 7))
  assert report.counts[[0, 1, 2, 255]].tolist() == [4 * 7 + 5 * 7, 7, 7, 7] and report.counts.sum() == 2 * 42
  assert report.problems == report.warnings == []
  check_data.require(report)


@pytest.mark.parametrize('examples, parts', [
    ([_record('bad', _label(0, 100))], ('bad', 'values 100 (17 %', 'num_classes=3', 'ignore_label=255')),
    ([_record('bad', image=_encode(np.zeros([6, 7, 3], np.uint8), 'JPEG')[:300])], ('bad: the image does not decode',)),
    ([_record('bad', image=b'')], ('bad: the image does not decode',)),
    ([_record('bad', label=b'no PNG')], ('bad: the label does not decode',)),
    ([_record('bad', label=b'')], ('bad has no label',)),
    ([_record('bad', label=_encode(np.zeros([3, 7], np.uint8)))], ('bad: the image is 6x7', 'label 3x7')),
    ([_record('bad', height=60)], ('bad: the record says 60x7', 'image is 6x7')),
    ([b'no example'], ('record of 10 bytes cannot be parsed',)),
])
def test_problem_of_a_record_is_told_and_the_others_are_read(tmp_path, examples, parts):
  _write(tmp_path, *examples, _record('good'))
  report = _check(tmp_path)
  assert report.num_images == 2 and len(report.problems) == 1
  assert all(part in report.problems[0] for part in parts)
  with pytest.raises(InputError) as error:
    check_data.require(report)
  assert report.problems[0] in str(error.value)


def test_record_that_says_no_size_is_in_order(tmp_path):
  _write(tmp_path, _record('a', height=0, width=0), _record('b'))
  assert _check(tmp_path).problems == []


def test_split_of_tests_needs_no_labels(tmp_path):
  _write(tmp_path, _record('a', label=b''), split='test')
  report = _check(tmp_path, split='test')
  assert report.problems == report.warnings == []


@pytest.mark.parametrize('damage', ['cut', 'content', 'checksum'])
def test_damaged_file_is_named_and_the_next_one_read(tmp_path, damage):
  path = _write(tmp_path, _record('a'), _record('b'))
  other = tmp_path / 'train-00000-of-00002.tfrecord'
  path.rename(other)
  _write(tmp_path, _record('c')).rename(tmp_path / 'train-00001-of-00002.tfrecord')
  content = bytearray(other.read_bytes())
  if damage == 'cut':
    del content[-10:]
  else:
    content[-10 if damage == 'content' else -1] ^= 1
  other.write_bytes(content)
  report = _check(tmp_path)
  assert report.num_images == 2 and len(report.problems) == 1
  assert f'{other} is damaged after 1 whole records' in report.problems[0]


def test_images_larger_than_the_crop_are_named_with_the_size_that_fits(tmp_path):
  large = _encode(np.zeros([40, 20, 3], np.uint8), 'JPEG')
  _write(tmp_path, _record('a'), _record('tall', image=large, height=40, width=20, label=_encode(np.eye(40, 20, dtype=np.uint8))))
  assert _check(tmp_path, crop_size=(40, 20)).problems == []
  report = _check(tmp_path, crop_size=(33, 33))
  assert report.max_size == (40, 20)
  assert len(report.problems) == 1
  assert '1 images are larger than the crop of 33x33: tall (40x20). --eval_crop_size=49,33 takes all.' in report.problems[0]


def test_one_class_left_after_ignoring_is_warned_of(tmp_path, absl_log):
  _write(tmp_path, _record('a', _label(0, 1)), _record('b', _label(0, 1)))
  descriptor = dataset_info.describe('x', 2, ignore_label=0)
  report = _check(tmp_path, descriptor)
  assert len(report.warnings) == 1 and 'only class 1 (class_1) is left' in report.warnings[0]
  check_data.require(report)
  assert report.warnings[0] in absl_log.text


def test_classes_present_and_never_present_are_reported(tmp_path):
  _write(tmp_path, _record('a', _label(0, 1, 255)), _record('b', _label(0)))
  report = _check(tmp_path, dataset_info.describe('x', 4))
  assert len(report.warnings) == 1
  assert 'present: 0 (class_0), 1 (class_1); never present: 2 (class_2), 3 (class_3)' in report.warnings[0]


def test_labels_that_are_all_ignored_are_warned_of(tmp_path):
  _write(tmp_path, _record('a', _label(255)), _record('b', _label(255)))
  assert 'no pixel is left' in _check(tmp_path).warnings[0]


def test_declared_size_that_differs_is_warned_of_with_both_numbers(tmp_path):
  _write(tmp_path, _record('a'), _record('b'), _record('c'))
  assert _check(tmp_path).warnings == ["Split 'train' of data set 'x' should have 2 images; its files hold 3."]


def test_repeated_name_is_warned_of(tmp_path):
  _write(tmp_path, _record('a'), _record('a'))
  assert _check(tmp_path).warnings == ['The name a stands for 2 records.']


def test_part_of_a_split(tmp_path):
  _write(tmp_path, _record('a', _label(0)), _record('b', _label(0, 100)), _record('c'))
  report = _check(tmp_path, max_images=1)
  assert (report.num_images, report.problems, report.warnings) == (1, [], [])
  assert len(_check(tmp_path, max_images=2).problems) == 1


def test_many_problems_are_cut_in_the_message(tmp_path):
  _write(tmp_path, *[_record(f'n{index}', _label(100)) for index in range(60)])
  with pytest.raises(InputError, match='(?s)60 problems.*and 10 more'):
    check_data.require(_check(tmp_path))


def test_missing_split_is_refused(tmp_path):
  with pytest.raises(InputError, match='No file matches'):
    _check(tmp_path)


def test_report_as_text(tmp_path):
  _write(tmp_path, _record('a', _label(0, 1, 255)), _record('b', _label(0, 0, 9)))
  descriptor = dataset_info.describe('x', 3, class_names=['sky', 'sea', 'ship'])
  lines = check_data.format_report(_check(tmp_path, descriptor), descriptor).split('\n')
  assert lines[0] == "Split 'train': 2 images, the largest 6x7 (height x width)."
  assert [line.split() for line in lines[1:6]] == [
      ['0', 'sky', '75.000', '%'], ['1', 'sea', '8.333', '%'], ['2', 'ship', '0.000', '%'], ['9', 'NO', 'CLASS', '8.333', '%'],
      ['255', 'ignored', '8.333', '%']]
  assert lines[6].startswith('Warning: ') and lines[7].startswith('Problem: b has label values 9')


@pytest.fixture
def parse_flags():
  with program_flags.defined(check_data._define_flags) as values:
    yield lambda *arguments: values(['check_data', *arguments])


def test_program_checks_all_splits_of_the_folder(tmp_path, capsys, parse_flags):
  _write(tmp_path, _record('a'))
  _write(tmp_path, _record('b'), split='val')
  dataset_info.write_description(_DESCRIPTOR._replace(splits_to_sizes={'train': 1, 'val': 1}), str(tmp_path / 'dataset.json'))
  parse_flags(f'--dataset_dir={tmp_path}')
  check_data.main([])
  printed = capsys.readouterr().out
  assert "Split 'train': 1" in printed and "Split 'val': 1" in printed and 'x with 3 classes is in order' in printed


def test_program_ends_with_an_error_where_there_are_problems(tmp_path, capsys, parse_flags):
  _write(tmp_path, _record('a', _label(0, 100)))
  parse_flags(f'--dataset_dir={tmp_path}', '--splits=train', '--eval_crop_size=5')
  with pytest.raises(InputError, match='2 problems'):
    check_data.main([])
  printed = capsys.readouterr().out
  assert 'a has label values 100' in printed and 'larger than the crop of 5x5' in printed
