"""Follows the checkpoints of a training run for the programs that look at each."""

import contextlib
import os
import time

from absl import logging

from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf
from deeplab.core.run import checkpoint

_POLL_SECS = 1.0


def follow(path, interval_secs, max_rounds, max_rounds_flag):
  """Yields the prefix of each new checkpoint, of several new ones only the newest.

  One checkpoint, given by its prefix or as a folder without the `checkpoint` file that a training run keeps, is yielded once. A
  folder that holds nothing yet is waited for, unless one round is all that is wanted.

  Args:
    path: value of --checkpoint_dir: folder of a training run, or a checkpoint as checkpoint.resolve_checkpoint takes it.
    interval_secs: least number of seconds between the starts of two rounds.
    max_rounds: number of checkpoints after which to end; 0 or less: never.
    max_rounds_flag: name of the flag that holds it, for messages.

  Yields:
    Prefixes of whole checkpoints.

  Raises:
    InputError: there is no usable checkpoint, and none is waited for.
  """
  if max_rounds == 1 or not _may_grow(path):
    yield checkpoint.resolve_checkpoint(path, 'checkpoint_dir')
    return
  previous, num_rounds = None, 0
  while True:
    previous = wait_for_newer(path, 'checkpoint_dir', previous)
    start = time.monotonic()
    yield previous
    num_rounds += 1
    if num_rounds == max_rounds:
      return
    logging.info('Done with %s. Looking for a newer checkpoint in %s, from %d seconds after the last start on; '
                 '--%s=1 ends after one.', previous, path, interval_secs, max_rounds_flag)
    time.sleep(max(0.0, start + interval_secs - time.monotonic()))


@contextlib.contextmanager
def unless_removed(prefix, max_rounds):
  """Context for the use of a checkpoint that `follow` yielded; one that its run removes meanwhile is passed over with a warning.

  Args:
    prefix: prefix of the checkpoint.
    max_rounds: as for `follow`; the only checkpoint is missed.
  """
  try:
    yield
  except (InputError, tf.errors.OpError):
    if max_rounds == 1 or tf.io.gfile.exists(prefix + '.index'):
      raise
    logging.warning('%s was removed before all was done with it; the next one follows. A larger --max_checkpoints_to_keep of its '
                    'run would keep it.', prefix)


def _may_grow(path):
  """Whether a training run writes here, or may yet begin to."""
  if checkpoint.is_folder(path):
    return tf.io.gfile.exists(os.path.join(path, 'checkpoint')) or not tf.io.gfile.glob(os.path.join(path, '*.index'))
  # The prefix of a checkpoint, or a mistyped one, lies in a folder of checkpoints.
  return not tf.io.gfile.glob(os.path.join(os.path.dirname(path), '*.index')) and not tf.io.gfile.exists(path)


def wait_for_newer(path, flag_name, previous, look=lambda: None):
  """Prefix of the newest checkpoint, as soon as that is another one than `previous`.

  Args:
    path: folder of a training run.
    flag_name: flag that holds it, for messages.
    previous: prefix of a checkpoint, or None.
    look: function that is called every second and may raise what ends the waiting.
  """
  told = None
  while True:
    try:
      prefix = checkpoint.resolve_checkpoint(path, flag_name)
      if prefix != previous:
        return prefix
    except InputError as error:
      if str(error) != told:
        told = str(error)
        logging.info('%s Looking again every second until there is one; Ctrl-C ends this.', told)
    look()
    time.sleep(_POLL_SECS)
