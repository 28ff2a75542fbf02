"""Tests for datasets/preview.py, and of preview.png as check_data and a conversion leave it."""

import types

import annotated
import numpy as np
import program_flags
from annotated import HEIGHT, WIDTH, rectangle
from PIL import Image

from deeplab.datasets import build_data, check_data, dataset_info, preview


def _convert(tmp_path, splits, num_classes=3):
  """Records of noise with labels; `splits`: split -> dict, name -> label or None."""
  pairs = {}
  for split, labels in splits.items():
    pairs[split] = []
    for seed, (name, label) in enumerate(labels.items()):
      annotated.save_image(tmp_path / f'images/{name}.jpg', seed)
      if label is not None:
        annotated.save_png(tmp_path / f'labels/{name}.png', label)
      pairs[split].append(build_data.Pair(name, str(tmp_path / f'images/{name}.jpg'),
                                          None if label is None else str(tmp_path / f'labels/{name}.png')))
  descriptor = dataset_info.describe('x', num_classes)
  return build_data.build(pairs, descriptor, str(tmp_path / 'out'), 2)


def _has_color(path, color):
  return (np.asarray(Image.open(path).convert('RGB')) == color).all(axis=2).any()


def test_conversion_ends_with_a_preview(tmp_path, capsys):
  descriptor = _convert(tmp_path, {'train': {'a': rectangle(1, 5, 2, 9), 'b': rectangle(3, 9, 2, 9, 2)}, 'test': {'c': None}})
  path = tmp_path / 'out/preview.png'
  assert f'Look at {path}' in capsys.readouterr().out
  # The legend has the colours of the classes.
  assert all(_has_color(path, descriptor.colors[value]) for value in range(3))
  assert Image.open(path).size == (3 * 372 + 12, 34 + 304 + 2 * 22 + 12)


def test_check_data_draws_it_anew_though_records_are_damaged(tmp_path, capsys):
  _convert(tmp_path, {'train': {name: rectangle(1, 5, 2, 9) for name in 'abcd'}, 'val': {'e': rectangle(1, 5, 2, 9)}})
  path = tmp_path / 'out/preview.png'
  path.unlink()
  record_file = tmp_path / 'out/train-00000-of-00002.tfrecord'
  record_file.write_bytes(record_file.read_bytes()[:-20])
  with program_flags.defined(check_data._define_flags) as values:
    values(['program', f'--dataset_dir={tmp_path}/out'])
    try:
      check_data.main([])
    except ValueError as error:
      assert '1 problems' in str(error)
  assert Image.open(path).width == 4 * 372 + 12
  assert 'damaged after 1 whole records' in capsys.readouterr().out


def test_preview_that_cannot_be_written_is_a_warning(tmp_path, absl_log):
  descriptor = _convert(tmp_path, {'train': {'a': rectangle(1, 5, 2, 9)}})
  (tmp_path / 'out/preview.png').unlink()
  (tmp_path / 'out/preview.png').mkdir()
  preview.write(str(tmp_path / 'out'), descriptor, ['train'], np.ones(256, np.int64))
  assert 'preview.png is not drawn: ' in absl_log.text


def test_those_that_show_new_classes_are_chosen():
  samples = [types.SimpleNamespace(values=frozenset(values)) for values in ([0], [0], [0, 1], [0, 1, 2], [3], [0])]
  assert preview.choose(samples, 3) == [samples[0], samples[3], samples[4]]
  assert preview.choose(samples, 9) == samples
  assert preview.choose([], 3) == []


def test_wrong_sizes_and_values_are_drawn_as_they_are(tmp_path):
  """A label of another size, and a value that is no class: as older records may hold them."""
  _convert(tmp_path, {'train': {'a': rectangle(1, 5, 2, 9, 7, HEIGHT, WIDTH)}}, num_classes=8)
  descriptor = dataset_info.describe('x', 3, splits_to_sizes={'train': 1})
  counts = np.bincount([0] * 9 + [7], minlength=256)
  preview.write(str(tmp_path / 'out'), descriptor, ['train'], counts)
  assert _has_color(tmp_path / 'out/preview.png', [255, 0, 255])
