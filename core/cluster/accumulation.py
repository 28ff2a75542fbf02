"""One update from several batches, of which only one at a time is in memory."""

from deeplab.core.base.tf_compat import tf


class GradientAccumulator(tf.train.SessionRunHook):
  """Adds up what the batches of an update give; the update then sees their mean.

  Each run of the training session trains on the last batch of an update. As a hook of that session this object first runs the
  others. The sums live on the devices of the clones, are of this process alone and are not saved: an update is made whole or not
  at all.
  """

  def __init__(self, num_batches=1, clone_input=None):
    """Adds nothing to the graph yet.

    Args:
      num_batches: batches of an update; 1: the graph stays as it is.
      clone_input: clone_input.CloneInput that the batches come from; None where it prefetches nothing.
    """
    self._num_batches = num_batches
    self._input = clone_input
    self._start_ops, self._add_ops = [], []

  def mean(self, loss, tower_grads, batch_ops):
    """Means over the batches of an update, for the run that trains on the last of them.

    Args:
      loss: float32 scalar of one batch.
      tower_grads: for each clone the list of (gradient or None, variable), of one batch.
      batch_ops: ops to run with every batch, such as the updates of batch norm.

    Returns:
      (loss, tower_grads) of the same form.
    """
    if self._num_batches == 1:
      return loss, tower_grads
    with tf.variable_scope('accumulated'):
      mean_loss = self._mean(loss, 'loss')
      # Variables share names with nothing: those of a clone lie in its scope.
      mean_grads = [[(gradient if gradient is None else self._mean(gradient, f'clone_{clone}/{variable.op.name}'), variable)
                     for gradient, variable in grads_and_vars] for clone, grads_and_vars in enumerate(tower_grads)]
    self._start_op, self._add_op = (tf.group(*ops, *batch_ops) for ops in (self._start_ops, self._add_ops))
    return mean_loss, mean_grads

  def _mean(self, value, name):
    # Named in full, so that a parameter server does not get what is of this process.
    with tf.device(value.device):
      total = tf.get_variable(name, value.shape, value.dtype, tf.zeros_initializer(), trainable=False,
                              collections=[tf.GraphKeys.LOCAL_VARIABLES])
      self._start_ops.append(total.assign(value, read_value=False))
      self._add_ops.append(total.assign_add(value, read_value=False))
      return (total + value) / self._num_batches

  def before_run(self, run_context):
    for index in range(self._num_batches - 1):
      # The first one replaces what an update that failed has left.
      batch_op = self._add_op if index else self._start_op
      run_context.session.run([batch_op, self._input.fetch_ops if self._input else []])
