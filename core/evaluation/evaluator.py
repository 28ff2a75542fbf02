"""The evaluator of a run: a process of its own that validates the checkpoints as they come, and ends with the run."""

import os
import time

from absl import logging

from deeplab.core.base import files
from deeplab.core.base.tf_compat import tf
from deeplab.core.evaluation import history
from deeplab.core.run import best_checkpoint, checkpoint, checkpoint_follower

_CANDIDATE = 'candidate'


def follow(record, measure, interval_steps, last_step, is_over, look):
  """Validates each new checkpoint that is due, of several new ones only the newest, until the run has ended.

  Args:
    record: validation.Record.
    measure: function, prefix of a checkpoint -> validation.Measured.
    interval_steps: steps between two validations, or None for one at each checkpoint.
    last_step: global step at which training ends.
    is_over: function without arguments, whether the validations so far end the run.
    look: function that is called every second while there is nothing to do; it may raise what ends the waiting.
  """
  prefix = None
  while record.last_step < last_step and not is_over():
    prefix = checkpoint_follower.wait_for_newer(record.train_logdir, 'train_logdir', prefix, look)
    step = checkpoint.global_step(prefix) or 0
    # The run may have gone back to an earlier checkpoint.
    record.forget_after(step)
    if record.is_due(step, interval_steps, last_step):
      _validate(record, measure, prefix, step)


def _validate(record, measure, prefix, step):
  start = time.monotonic()
  # The run may remove its checkpoint meanwhile.
  folder = files.prepare_folder(os.path.join(history.folder(record.train_logdir), _CANDIDATE))
  try:
    copy = os.path.join(folder, best_checkpoint.copy(prefix, folder))
    measured = measure(copy)
    record.add(prefix, step, measured, time.monotonic() - start, copy)
  except tf.errors.NotFoundError as error:
    logging.warning('%s was removed before it could be validated (%s).', prefix, error.message)
  finally:
    files.remove_folder(folder)
