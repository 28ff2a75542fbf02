"""Confusion matrix and metrics, on numbers small enough for paper."""

import numpy as np
import pytest

from deeplab.core.base.tf_compat import tf
from deeplab.core.images import tiling
from deeplab.core.report import metrics

_NAN = float('nan')


def _measure(labels, predictions, num_classes, ignore_label=255):
  return metrics.from_confusion_matrix(
      metrics.confusion_matrix(np.array(labels), np.array(predictions), num_classes, ignore_label))


def test_confusion_matrix_has_a_row_per_label():
  confusion = metrics.confusion_matrix(np.array([[0, 0, 1], [2, 2, 255]]), np.array([[0, 1, 1], [0, 2, 2]]), 3, 255)
  assert confusion.tolist() == [[1, 1, 0], [0, 1, 0], [1, 0, 1]]
  assert confusion.dtype == np.int64


def test_uint8_labels_do_not_overflow():
  confusion = metrics.confusion_matrix(np.array([150], np.uint8), np.array([149], np.int32), 151, 0)
  assert confusion[150, 149] == 1 and confusion.sum() == 1


def test_ignored_value_among_the_classes():
  confusion = metrics.confusion_matrix(np.array([0, 1, 2]), np.array([1, 1, 0]), 3, 0)
  assert confusion.tolist() == [[0, 0, 0], [0, 1, 0], [1, 0, 0]]


def test_all_figures():
  # Labels 0 0 0 1, predictions 0 0 1 1.
  found = _measure([0, 0, 0, 1], [0, 0, 1, 1], 2)
  np.testing.assert_allclose(found.class_iou, [2 / 3, 1 / 2])
  np.testing.assert_allclose(found.precision, [1, 1 / 2])
  np.testing.assert_allclose(found.recall, [2 / 3, 1])
  assert found.mean_iou == pytest.approx(7 / 12)
  assert found.pixel_accuracy == 0.75
  assert found.frequency_weighted_iou == pytest.approx((3 * 2 / 3 + 1 / 2) / 4)
  assert found.labelled.tolist() == [3, 1] and found.predicted.tolist() == [2, 2]


@pytest.mark.parametrize('labels, predictions, mean_iou, of_labelled', [
    ([0, 0, 1, 1, 2], [0, 1, 1, 1, 0], 1 / 3, 1 / 3),
    ([0, 0, 1, 1, 255], [0, 1, 1, 1, 3], 0.583333, 0.583333),
    # Class 3 is only predicted: it counts as 0 in the mean that the field compares.
    ([0, 0, 1, 1], [0, 0, 1, 3], (1 + 1 / 2 + 0) / 3, (1 + 1 / 2) / 2),
    ([255, 255], [1, 2], 0, 0),
])
def test_mean_iou(labels, predictions, mean_iou, of_labelled):
  found = _measure(labels, predictions, 5)
  assert found.mean_iou == pytest.approx(mean_iou, abs=1e-6)
  assert found.mean_iou_of_labelled == pytest.approx(of_labelled, abs=1e-6)


def test_class_without_label_has_no_iou():
  found = _measure([0, 0], [0, 3], 4)
  np.testing.assert_array_equal(found.class_iou, [1 / 2, _NAN, _NAN, _NAN])
  np.testing.assert_array_equal(found.precision, [1, _NAN, _NAN, 0])
  np.testing.assert_array_equal(found.recall, [1 / 2, _NAN, _NAN, _NAN])


def test_mean_iou_as_tensorflow_takes_it():
  random = np.random.RandomState(0)
  labels, predictions = random.choice([0, 1, 2, 5, 255], 500), random.choice([0, 1, 4, 5], 500)
  with tf.Graph().as_default(), tf.Session() as session:
    mean_iou, update = tf.metrics.mean_iou(tf.constant(np.where(labels == 255, 0, labels)), tf.constant(predictions), 7,
                                           tf.constant((labels != 255).astype(np.float32)))
    session.run(tf.local_variables_initializer())
    session.run(update)
    assert _measure(labels, predictions, 7).mean_iou == pytest.approx(session.run(mean_iou), abs=1e-6)


@pytest.mark.parametrize('length, tile, expected', [
    (40, 65, [(0, 0, 40)]),
    (65, 65, [(0, 0, 65)]),
    (66, 65, [(0, 0, 33), (1, 33, 66)]),
    (100, 40, [(0, 0, 35), (30, 35, 65), (60, 65, 100)]),
])
def test_windows(length, tile, expected):
  assert tiling.windows(length, tile) == expected


@pytest.mark.parametrize('length, tile', [(2049, 513), (1000, 7), (77, 1), (514, 513)])
def test_windows_cover_each_pixel_once(length, tile):
  windows = tiling.windows(length, tile)
  assert [begin for _, begin, _ in windows] == [0, *(end for _, _, end in windows[:-1])] and windows[-1][2] == length
  assert all(0 <= start <= begin < end <= start + tile <= length for start, begin, end in windows)


def test_tiled_prediction_puts_each_pixel_in_its_place():
  images = np.arange(2 * 50 * 70 * 3, dtype=np.float32).reshape(2, 50, 70, 3)

  def predict_tile(tile):
    assert tile.shape == (2, 24, 32, 3)
    return tile[..., 0].astype(np.int64)

  np.testing.assert_array_equal(tiling.predict(predict_tile, images, (24, 32)), images[..., 0].astype(np.int64))
