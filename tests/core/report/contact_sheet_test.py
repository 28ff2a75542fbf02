"""Tests for core/report/contact_sheet.py."""

import types

import numpy as np
import pytest

from deeplab.core.report import contact_sheet
from deeplab.core.report.contact_sheet import LabelledImage

_DESCRIPTOR = types.SimpleNamespace(num_classes=3, ignore_label=255, class_names=['floor', 'cat', 'dog' * 40],
                                    colors=[[0, 0, 0], [200, 0, 0], [0, 200, 0]])
_COUNTS = np.bincount([0] * 6 + [1] * 3 + [255], minlength=256)


def _pair(label=None, height=270, width=360, caption='a'):
  return LabelledImage(caption, np.full([height, width, 3], 100, np.uint8), label)


def _bar_lengths(sheet):
  """Pixels of the bars in the two columns of a legend below nothing, from the top, first the left ones."""
  return [int((sheet[row, left:left + 101] == 120).all(axis=1).sum()) for left in (196, 568) for row in (44, 66)]


def test_tile_shows_the_label_where_it_lies():
  label = np.zeros([270, 360], np.uint8)
  label[:, :180], label[200:, 180:] = 1, 255
  sheet = contact_sheet.draw('x', [_pair(label)], _DESCRIPTOR, _COUNTS)
  tile = sheet[34:34 + 270, 12:12 + 360]
  assert tile[100, 50].tolist() == [155, 45, 45]
  assert tile[100, 300].tolist() == [100, 100, 100]
  assert tile[250, 300].tolist() == np.rint(0.55 * np.full(3, 90) + 45).tolist()


@pytest.mark.parametrize('height, width', [(27, 36), (2700, 3600)])
def test_image_of_any_size_fits_its_tile(height, width):
  label = np.zeros([height, width], np.uint8)
  label[:height // 2] = 1
  sheet = contact_sheet.draw('x', [_pair(label, height, width)], _DESCRIPTOR, _COUNTS)
  tile = sheet[34:34 + 270, 12:12 + 360]
  assert (tile[:120] == [155, 45, 45]).all() and (tile[140:] == 100).all()


def test_bars_are_as_long_as_the_shares():
  # Against the largest share: floor 0.6, cat 0.3, dog never, ignored 0.1.
  assert _bar_lengths(contact_sheet.draw('x', [], _DESCRIPTOR, _COUNTS)) == [101, 51, 0, 18]
  assert _bar_lengths(contact_sheet.draw('x', [], _DESCRIPTOR, np.bincount([1], minlength=256))) == [0, 101, 0, 0]
  assert _bar_lengths(contact_sheet.draw('x', [], _DESCRIPTOR, np.zeros(256, np.int64))) == [0, 0, 0, 0]


@pytest.mark.parametrize('num_pairs', [0, 1, 5, 16])
def test_any_number_of_tiles(num_pairs):
  sheet = contact_sheet.draw('long ' * 200, [_pair(caption='n' * 300)] * num_pairs, _DESCRIPTOR, _COUNTS)
  # The image's gray alone, without captions and bars.
  assert (sheet == 100).all(axis=2).sum() == num_pairs * 270 * 360


def test_values_that_are_no_class_are_magenta():
  colors = contact_sheet.colors_of_values(_DESCRIPTOR)
  assert colors[[1, 2, 3, 254, 255]].tolist() == [[200, 0, 0], [0, 200, 0], [255, 0, 255], [255, 0, 255], [90, 90, 90]]
  counts = np.bincount([0, 7], minlength=256)
  sheet = contact_sheet.draw('x', [], _DESCRIPTOR, counts)
  assert (sheet == [255, 0, 255]).all(axis=2).any()
  assert not (contact_sheet.draw('x', [], _DESCRIPTOR, _COUNTS) == [255, 0, 255]).all(axis=2).any()


def test_classes_of_a_data_set_with_many_fill_columns():
  many = types.SimpleNamespace(num_classes=151, ignore_label=0, class_names=['x'] * 151, colors=[[1, 2, 3]] * 151)
  sheet = contact_sheet.draw('x', [_pair()] * 4, many, np.ones(256, np.int64))
  assert sheet.shape[0] < 34 + 304 + 40 * 22 and (sheet == [1, 2, 3]).all(axis=2).any()
