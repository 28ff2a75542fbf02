"""How the gradients of several workers become updates of the variables that they share: one by one, or together.

Both kinds are hooks of the training session, because the second has work to do around its steps.
"""

import threading

from absl import logging

from deeplab.core.base.tf_compat import tf

# Before any; gradients of it are never used.
_PAST_STEP = -1


class AsynchronousUpdates(tf.train.SessionRunHook):
  """Each worker applies its gradients when it has them; so does a process that trains alone.

  Its attribute `moves_averages` says whether this worker updates the moving averages of batch norm.
  """

  moves_averages = True

  def __init__(self, last_step):
    """Creates the hook.

    Args:
      last_step: number of updates by all workers together.
    """
    self._last_step = last_step

  def apply(self, optimizer, grads_and_vars):
    """Op that updates the variables and counts the global step, in the default graph.

    Running it raises OutOfRangeError, before any update, where the other workers have made the last step.

    Args:
      optimizer: tf.train.Optimizer.
      grads_and_vars: list of (gradient, variable).
    """
    global_step = tf.train.get_global_step()
    # Counted first, in one atomic op: workers that arrive together could else all make the last step.
    with tf.control_dependencies([gradient for gradient, _ in grads_and_vars]), tf.device(global_step.device):
      counted = tf.count_up_to(global_step, self._last_step)
    with tf.control_dependencies([counted]):
      return optimizer.apply_gradients(grads_and_vars)

  def interrupt(self):
    """Lets this worker wait for no other: it never does."""


class SynchronousUpdates(tf.train.SessionRunHook):
  """One update per step, from the mean of the gradients of the workers (arXiv:1604.00981).

  tf.train.SyncReplicasOptimizer collects the gradients on the parameter servers and gives each worker a token for the next step.
  Its own hook closes the queue of tokens together with the session of the chief, after which no restarted chief could go on; this
  one leaves it open. Attribute `moves_averages`: as above.
  """

  def __init__(self, cluster, num_backup_workers, is_resumed):
    """Creates the hook.

    Args:
      cluster: cluster.Cluster.
      num_backup_workers: number of workers whose gradients an update does not wait for.
      is_resumed: whether training goes on from a checkpoint.
    """
    self._num_workers = cluster.num_workers
    self._num_gradients = cluster.num_workers - num_backup_workers
    self._is_chief = self.moves_averages = cluster.is_chief
    self._is_resumed = is_resumed
    self._session = None

  def apply(self, optimizer, grads_and_vars):
    """Op that hands the gradients over and waits for the update, in the default graph; arguments as above."""
    self._optimizer = tf.train.SyncReplicasOptimizer(optimizer, self._num_gradients, self._num_workers)
    return self._optimizer.apply_gradients(grads_and_vars, global_step=tf.train.get_global_step())

  def begin(self):
    # The scaffold has the same; TensorFlow would complain at the end that nobody used this one.
    self._optimizer.ready_for_local_init_op.mark_used()
    self._init_op = self._optimizer.chief_init_op if self._is_chief else self._optimizer.local_step_init_op
    runner = self._optimizer.get_chief_queue_runner()
    self._update_op, = runner.enqueue_ops
    self._release_op = self._optimizer.get_init_tokens_op(self._num_workers)
    self._interrupt_op = runner.queue.enqueue_many([tf.fill([self._num_workers], tf.constant(_PAST_STEP, tf.int64))])

  def interrupt(self):
    """Lets this worker, from another thread, wait no more for an update that others will not complete.

    The tokens are of a step that has passed: another worker that takes one computes a gradient in vain, which no update gets.
    """
    if self._session is None:
      return
    try:
      self._session.run(self._interrupt_op)
    except (RuntimeError, tf.errors.OpError):  # The session has ended, or its parameter server.
      logging.info('No worker is released: the session has ended.')

  def after_create_session(self, session, coord):
    self._session = session
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
