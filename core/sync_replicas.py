"""Synchronous training: one update per step from the mean of the workers' gradients (arXiv:1604.00981).

TensorFlow's SyncReplicasOptimizer collects gradients on the parameter servers and hands out a token per worker and step. Its own
hook closes the queue of tokens with the session of the chief, after which no restarted chief could go on; this one does not.
"""

import threading

from deeplab.core.tf_compat import tf


class SyncReplicasHook(tf.train.SessionRunHook):
  """Runs the chief's part of a tf.train.SyncReplicasOptimizer, and that of the other workers."""

  def __init__(self, optimizer, is_chief, is_resumed, num_workers):
    """Creates the hook.

    Args:
      optimizer: tf.train.SyncReplicasOptimizer, after apply_gradients.
      is_chief: whether this worker applies the updates.
      is_resumed: whether training goes on from a checkpoint.
      num_workers: number of workers.
    """
    self._optimizer = optimizer
    self._is_chief = is_chief
    self._is_resumed = is_resumed
    self._num_workers = num_workers

  def begin(self):
    # The scaffold has the same; TensorFlow would complain at the end that nobody used this one.
    self._optimizer.ready_for_local_init_op.mark_used()
    if not self._is_chief:
      self._init_op = self._optimizer.local_step_init_op
      return
    self._init_op = self._optimizer.chief_init_op
    self._update_op, = self._optimizer.get_chief_queue_runner().enqueue_ops
    self._release_op = self._optimizer.get_init_tokens_op(self._num_workers)

  def after_create_session(self, session, coord):
    session.run(self._init_op)
    if not self._is_chief:
      return
    # Workers may wait for the tokens of an update that died with the earlier chief. At the very start none waits, and a token too
    # many would let one of them give two gradients to the first update.
    if self._is_resumed:
      session.run(self._release_op)
    self._is_resumed = True
    threading.Thread(target=self._update, args=(session, coord), daemon=True).start()

  def _update(self, session, coord):
    """Applies the gradients whenever there are enough, until the session ends."""
    while not coord.should_stop():
      try:
        session.run(self._update_op)
      except Exception as error:  # pylint: disable=broad-except
        # The next training step raises it; the end of the session is no error.
        if not coord.should_stop():
          coord.request_stop(error)

  def end(self, session):
    if self._is_chief:
      # Whoever still waits then finds that training has ended.
      session.run(self._release_op)
