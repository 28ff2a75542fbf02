"""Metrics of semantic segmentation, from a confusion matrix."""

from typing import NamedTuple

import numpy as np


class Metrics(NamedTuple):
  """Metrics of a set of images; n is the number of classes. What no pixel decides is NaN in the arrays and 0 elsewhere.

  Attributes:
    mean_iou: mean over the classes that occur in labels or predictions, as tf.metrics.mean_iou takes it: a class that is only
      predicted counts as 0. This is the figure that the field compares.
    mean_iou_of_labelled: mean over the classes that occur in labels.
    pixel_accuracy: share of the pixels that are right.
    frequency_weighted_iou: mean IoU weighted by the number of labelled pixels of each class.
    class_iou: float64 [n], right / (labelled + predicted - right) pixels; NaN for a class without label.
    precision: float64 [n], right / predicted pixels.
    recall: float64 [n], right / labelled pixels.
    labelled: int64 [n], pixels of each class in the labels.
    predicted: int64 [n], pixels of each class in the predictions.
  """
  mean_iou: float
  mean_iou_of_labelled: float
  pixel_accuracy: float
  frequency_weighted_iou: float
  class_iou: np.ndarray
  precision: np.ndarray
  recall: np.ndarray
  labelled: np.ndarray
  predicted: np.ndarray


def confusion_matrix(labels, predictions, num_classes, ignore_label):
  """Counts the pixels of each pair of classes.

  Args:
    labels: ints of any shape, classes or `ignore_label`.
    predictions: ints of the same shape, classes.
    num_classes: number of classes.
    ignore_label: value of labels that do not count, even where it is a class.

  Returns:
    int64 [num_classes, num_classes]: pixels of label i predicted as j.
  """
  counted = labels != ignore_label
  pairs = labels[counted].astype(np.int64) * num_classes + predictions[counted]
  return np.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)


def _ratio(numerator, denominator):
  """float64, NaN where the denominator is 0."""
  return np.divide(numerator, denominator, out=np.full(len(numerator), np.nan), where=denominator > 0)


def _mean(values):
  return float(np.mean(values)) if len(values) else 0.0


def from_confusion_matrix(confusion):
  """Metrics of a confusion matrix.

  Args:
    confusion: int64 [n, n], pixels of label i predicted as j.
  """
  right, labelled, predicted = np.diag(confusion), confusion.sum(axis=1), confusion.sum(axis=0)
  iou = _ratio(right, labelled + predicted - right)
  class_iou = np.where(labelled > 0, iou, np.nan)
  num_pixels = max(int(labelled.sum()), 1)
  return Metrics(
      mean_iou=_mean(iou[~np.isnan(iou)]),
      mean_iou_of_labelled=_mean(class_iou[labelled > 0]),
      pixel_accuracy=float(right.sum() / num_pixels),
      frequency_weighted_iou=float(np.nansum(class_iou * labelled) / num_pixels),
      class_iou=class_iou,
      precision=_ratio(right, predicted),
      recall=_ratio(right, labelled),
      labelled=labelled,
      predicted=predicted)
