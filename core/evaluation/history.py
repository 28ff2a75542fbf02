"""The validations of a run, in `<train_logdir>/validation/history.json`: what train.py goes on from and report.html draws."""

import json
import os
import time
from typing import NamedTuple

from deeplab.core.base import files
from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf

FOLDER = 'validation'
FILE_NAME = 'history.json'
# Between two looks at a file that another process writes.
_LOOK_SECS = 5.0


class Validation(NamedTuple):
  """One validation; figures as in core/report/metrics.py.

  Attributes:
    step: global step of the weights.
    miou, miou_of_labelled_classes, pixel_accuracy, frequency_weighted_iou: 0..1.
    loss: mean cross entropy of the labelled pixels.
    seconds: how long it took.
    class_iou: one number per class, None for a class without label.
    is_best: whether no earlier one had as high an mIoU.
  """
  step: int
  miou: float
  miou_of_labelled_classes: float
  pixel_accuracy: float
  frequency_weighted_iou: float
  loss: float
  seconds: float
  class_iou: list
  is_best: bool


class History(NamedTuple):
  """All validations of a run on the same images.

  Attributes:
    split: name of the split.
    num_images: its images that are seen.
    class_names: one name per class.
    validations: list of Validation, by step.
  """
  split: str
  num_images: int
  class_names: list
  validations: list

  @property
  def best(self):
    """The latest Validation that was the best so far, or None."""
    return next((validation for validation in reversed(self.validations) if validation.is_best), None)

  @property
  def num_without_best(self):
    """Number of validations after the best."""
    return len(self.validations) - 1 - self.validations.index(self.best) if self.best else len(self.validations)


def folder(train_logdir):
  """Folder of the history, and of the TensorBoard events of the validations."""
  return os.path.join(train_logdir, FOLDER)


def read(train_logdir):
  """The History of a training folder, or None where it has none.

  Raises:
    InputError: the file is damaged.
  """
  path = os.path.join(folder(train_logdir), FILE_NAME)
  try:
    content = files.read_json(path)
    if content is None:
      return None
    validations = [Validation(**{name: row[name] for name in Validation._fields}) for row in content['validations']]
    return History(content['split'], content['num_images'], content['class_names'], validations)
  except (ValueError, KeyError, TypeError) as error:
    raise InputError(f'{path} is damaged ({error}). Remove it; the validations so far are then forgotten.') from error


def write(train_logdir, history):
  """Replaces the file in one step; its folder exists."""
  rows = ',\n'.join(f'  {json.dumps(validation._asdict())}' for validation in history.validations)
  head = ''.join(f' {json.dumps(name)}: {json.dumps(value)},\n' for name, value in history._asdict().items()
                 if name != 'validations')
  files.replace_file(os.path.join(folder(train_logdir), FILE_NAME), f'{{\n{head} "validations": [\n{rows}\n ]\n}}\n')


def remove(train_logdir):
  """Removes the file, if there is one."""
  path = os.path.join(folder(train_logdir), FILE_NAME)
  if tf.io.gfile.exists(path):
    tf.io.gfile.remove(path)


class Watch:
  """The history that another process writes."""

  def __init__(self, train_logdir):
    self._train_logdir = train_logdir
    self._next_look = 0.0
    self._history = None

  def latest(self):
    """History, or None; a few seconds old at most."""
    if time.monotonic() >= self._next_look:
      self._history = read(self._train_logdir)
      self._next_look = time.monotonic() + _LOOK_SECS
    return self._history
