"""Tests for core/images/colormap.py."""

import numpy as np
import pytest

from deeplab.core.base.errors import InputError
from deeplab.core.images import colormap


@pytest.mark.parametrize('index, color', [
    (0, (0, 0, 0)), (1, (128, 0, 0)), (2, (0, 128, 0)), (3, (128, 128, 0)), (4, (0, 0, 128)), (5, (128, 0, 128)), (8, (64, 0, 0)),
    (21, (128, 64, 128)), (23, (128, 192, 128)), (37, (128, 0, 192)), (127, (224, 192, 192)), (175, (192, 160, 192)),
    (255, (224, 224, 192)), (256, (0, 0, 32))])
def test_pascal_colors(index, color):
  assert tuple(colormap.create_label_colormap('pascal')[index]) == color


@pytest.mark.parametrize('name, entries, first, last', [
    ('ade20k', 151, (0, 0, 0), (92, 0, 255)), ('cityscapes', 256, (128, 64, 128), (0, 0, 0)),
    ('mapillary_vistas', 66, (165, 42, 42), (0, 0, 0)), ('pascal', 512, (0, 0, 0), None)])
def test_entries_of_each_map(name, entries, first, last):
  colors = colormap.create_label_colormap(name)
  assert colors.shape == (entries, 3) and colors.dtype == np.uint8
  assert tuple(colors[0]) == first
  assert last is None or tuple(colors[-1]) == last


def test_cityscapes_colors_end_with_class_18():
  colors = colormap.create_label_colormap('cityscapes')
  assert tuple(colors[18]) == (119, 11, 32)
  assert not colors[19:].any()


def test_pascal_colors_all_differ():
  assert len(np.unique(colormap.create_label_colormap('pascal'), axis=0)) == 512


def test_unknown_map_is_refused_with_the_known_ones():
  with pytest.raises(InputError, match=r"'foo'.*ade20k, cityscapes, mapillary_vistas, pascal"):
    colormap.create_label_colormap('foo')
  with pytest.raises(InputError, match='foo'):
    colormap.label_to_color_image(np.zeros([1, 1], int), 'foo')


def test_label_to_color_image():
  label = np.array([[0, 1], [5, 255]])
  expected = [[[0, 0, 0], [128, 0, 0]], [[128, 0, 128], [224, 224, 192]]]
  np.testing.assert_array_equal(colormap.label_to_color_image(label), expected)


def test_label_to_color_image_with_own_colors():
  pixels = colormap.label_to_color_image(np.array([[1, 0]]), [[1, 2, 3], [4, 5, 6]])
  assert pixels.tolist() == [[[4, 5, 6], [1, 2, 3]]]


@pytest.mark.parametrize('label, message', [
    (np.zeros([2, 2, 1], int), r'\[2, 2, 1\]'), (np.array([[66]]), '0 to 65'), (np.array([[-1]]), '-1')])
def test_label_without_color_is_refused(label, message):
  with pytest.raises(InputError, match=message):
    colormap.label_to_color_image(label, 'mapillary_vistas')
