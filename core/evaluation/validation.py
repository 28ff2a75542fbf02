"""Validation of a run while it trains: when, what is kept of it, and whether there is anything more to wait for."""

import math
import os
import time
from typing import NamedTuple

import numpy as np
from absl import logging

from deeplab import common
from deeplab.core.base import files
from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf
from deeplab.core.evaluation import evaluation
from deeplab.core.evaluation import history as history_lib
from deeplab.core.report import evaluation_report, metrics
from deeplab.core.run import best_checkpoint

BEST_FOLDER = 'best'
# Tag under which training writes its cross entropy, so that both curves lie in one chart.
_LOSS_TAG = 'Losses/semantic_merged_logits/value'
_PROGRESS_SECS = 10
# Step and mIoU where no best checkpoint is kept: any mIoU is above.
_NONE_KEPT = (-1, -1.0)


def prepare_folder(train_logdir, is_resumed):
  """Looks for what an earlier run has left, before a run begins.

  Args:
    train_logdir: the training folder.
    is_resumed: whether the run goes on from a checkpoint of the folder.

  Raises:
    InputError: a best checkpoint is there of a run whose other ones are gone.
  """
  if is_resumed:
    return
  best_folder = os.path.join(train_logdir, BEST_FOLDER)
  files.recover_folder(best_folder)
  if tf.io.gfile.isdir(best_folder):
    raise InputError(f'--train_logdir={train_logdir} holds no checkpoint to go on from, but {best_folder} of an earlier run. '
                     'Move that away, or name another --train_logdir.')
  history_lib.remove(train_logdir)


class Measured(NamedTuple):
  """What a network makes of a split.

  Attributes:
    confusion: int64 [classes, classes], pixels of label i predicted as j.
    loss: mean cross entropy of the labelled pixels.
  """
  confusion: np.ndarray
  loss: float


def measure(session, network, subject, is_told):
  """Predicts all images of a split, whole.

  Args:
    session: session on the graph of the network.
    network: evaluation.Network.
    subject: evaluation.Subject, its tiles as large as its crops.
    is_told: function without arguments, whether to end at once.

  Returns:
    Measured; None where it was told to end.

  Raises:
    InputError: memory ran out.
  """
  losses, start = [], time.time()
  next_report = start + _PROGRESS_SECS

  def report(done):
    nonlocal next_report
    if time.time() >= next_report:
      logging.info('Validation: %d of %d images.', done, subject.num_images)
      next_report = time.time() + _PROGRESS_SECS
    return is_told()

  def predict(batch):
    predictions, loss = session.run([network.predictions, network.loss], {
        network.images: batch[common.IMAGE], network.labels: batch[common.LABEL][..., 0]})
    losses.append(float(loss))
    return predictions

  try:
    confusion = evaluation.sum_confusion(session, network, subject, predict, report)
  except tf.errors.ResourceExhaustedError as error:
    height, width = subject.crop_size
    raise InputError(f'Not enough memory for --validation_split={subject.split}, whole images of {height}x{width} pixels. Leave '
                     'it out, and evaluate the checkpoints in another process: eval.py --eval_tile_size=513,513.') from error
  return None if confusion is None else Measured(confusion, math.fsum(losses) / max(int(confusion.sum()), 1))


class Record:
  """The validations of a run, in its folder: history, TensorBoard events, metrics of the latest, and the best checkpoint.

  What cannot be written, on a full disk, is told and left out; training goes on.
  """

  def __init__(self, train_logdir, subject):
    """Reads what there is.

    Args:
      train_logdir: the training folder, which exists.
      subject: evaluation.Subject.

    Raises:
      InputError: the history is damaged.
    """
    self.train_logdir = train_logdir
    self._subject = subject
    self._folder = history_lib.folder(train_logdir)
    self._best_folder = os.path.join(train_logdir, BEST_FOLDER)
    self._writer = None
    files.make_folder(self._folder, 'train_logdir')
    files.recover_folder(self._best_folder)
    self.history = history_lib.History(subject.split, subject.num_images, subject.descriptor.class_names, [])
    stored = history_lib.read(train_logdir)
    if stored and (stored.split, stored.num_images) == (subject.split, subject.num_images):
      self.history = self.history._replace(validations=stored.validations)
    elif stored and stored.validations:
      logging.warning('Validations so far were of %d images of split %s; those of %d images of split %s begin a history of their '
                      'own, and a best checkpoint.', stored.num_images, stored.split, subject.num_images, subject.split)
    self._kept = self._read_kept()

  def _read_kept(self):
    """(step, mIoU) of the best checkpoint, where it can be compared; else of none."""
    kept = evaluation_report.read_metrics(self._best_folder) or {}
    is_same = (kept.get('split'), kept.get('num_images')) == (self._subject.split, self._subject.num_images)
    return (kept['step'], kept['miou']) if is_same else _NONE_KEPT

  def forget_after(self, step):
    """Drops what another end of this run has left that goes on from an earlier step."""
    validations = [validation for validation in self.history.validations if validation.step <= step]
    self.history = self.history._replace(validations=validations)

  @property
  def last_step(self):
    """Step of the latest validation, 0 before any."""
    return self.history.validations[-1].step if self.history.validations else 0

  def is_due(self, step, interval_steps, last_step):
    """Whether the weights of a step are to be validated.

    Args:
      step: global step.
      interval_steps: steps between two validations, or None for one at each checkpoint.
      last_step: global step at which training ends; it is validated in any case.
    """
    # Untrained weights tell nothing; those of a run that goes on may have been validated before it ended.
    if step == 0 or step <= self.last_step:
      return False
    return not interval_steps or step >= last_step or step // interval_steps > self.last_step // interval_steps

  def add(self, prefix, step, measured, seconds, copy=None):
    """Keeps a validation.

    Args:
      prefix: prefix of the checkpoint of these weights.
      step: their global step.
      measured: Measured.
      seconds: how long it took.
      copy: prefix of a copy of the checkpoint, where that itself may be gone by now; or None.
    """
    found = metrics.from_confusion_matrix(measured.confusion)
    best = self._best_before(step)
    self._keep_if_best(prefix, step, found, measured, copy)
    validation = history_lib.Validation(
        step=step, miou=found.mean_iou, miou_of_labelled_classes=found.mean_iou_of_labelled, pixel_accuracy=found.pixel_accuracy,
        frequency_weighted_iou=found.frequency_weighted_iou, loss=measured.loss, seconds=round(seconds, 3),
        class_iou=[None if math.isnan(iou) else float(iou) for iou in found.class_iou], is_best=found.mean_iou > best)
    self.history.validations.append(validation)
    self._write('its figures', lambda: self._write_files(prefix, found, measured, validation))
    logging.info('validation at step %d: mIoU %.3f (best %.3f), pixel accuracy %.2f, %.0f s', step, found.mean_iou,
                 max(best, found.mean_iou), found.pixel_accuracy, seconds)

  def _best_before(self, step):
    # One that died before it noted a new best finds it kept.
    kept_step, kept_miou = self._kept
    return max([_NONE_KEPT[1] if kept_step == step else kept_miou, *(earlier.miou for earlier in self.history.validations)])

  def _keep_if_best(self, prefix, step, found, measured, copy):
    if found.mean_iou > self._kept[1] and self._write('the best checkpoint', lambda: best_checkpoint.replace(
        copy or prefix, self._best_folder, lambda folder: self._write_metrics(folder, prefix, step, found, measured))):
      self._kept = step, found.mean_iou

  def _write_metrics(self, folder, prefix, step, found, measured):
    evaluation_report.write_files(folder, found, measured.confusion, self._subject.descriptor.class_names,
                                  {**self._subject.facts(prefix, step), 'loss': measured.loss})

  def _write_files(self, prefix, found, measured, validation):
    history_lib.write(self.train_logdir, self.history)
    self._write_metrics(self._folder, prefix, validation.step, found, measured)
    # Without a graph, of which FileWriterCache would add a copy.
    self._writer = self._writer or tf.summary.FileWriter(self._folder)
    evaluation_report.add_scalars(self._writer, found, self._subject.metric_name, validation.step, {_LOSS_TAG: measured.loss})

  def _write(self, what, write):
    """Whether it could be written."""
    try:
      write()
      return True
    except (tf.errors.OpError, OSError) as error:
      logging.warning('Validation: %s cannot be written (%s). Training goes on.', what, getattr(error, 'message', error))
      return False


class ValidationListener(tf.train.CheckpointSaverListener):
  """Validates after a checkpoint is saved, on the chief of a run."""

  def __init__(self, record, measure_weights, interval_steps, last_step, leave_out, is_told):
    """Creates the listener.

    Args:
      record: Record.
      measure_weights: function, (session, prefix of the checkpoint just saved) -> Measured, or None where it was told to end.
      interval_steps: steps between two validations, or None for one at each checkpoint.
      last_step: global step at which training ends; it is validated in any case.
      leave_out: function, (seconds, steps that others have made meanwhile): time that is not training.
      is_told: function without arguments, whether training was told to end, so that nothing is validated any more.
    """
    self._record = record
    self._measure_weights = measure_weights
    self._interval_steps = interval_steps
    self._last_step = last_step
    self._leave_out = leave_out
    self._is_told = is_told
    self._has_begun = False

  def after_save(self, session, global_step_value):
    step = int(global_step_value)
    if not self._has_begun:
      self._record.forget_after(step)
      self._has_begun = True
    if not self._is_told() and self._record.is_due(step, self._interval_steps, self._last_step):
      self._validate(session, step)

  def _validate(self, session, step):
    start = time.monotonic()
    prefix = tf.train.latest_checkpoint(self._record.train_logdir)
    measured = self._measure_weights(session, prefix)
    if measured is None:
      logging.warning('The validation at step %d was broken off.', step)
      return
    seconds = time.monotonic() - start
    self._record.add(prefix, step, measured, seconds)
    steps = int(session.run(tf.train.get_global_step())) - step
    self._leave_out(time.monotonic() - start, steps)
