"""The end of a run before its last step, which the chief decides and every worker makes."""

from deeplab.core.base.tf_compat import tf
from deeplab.core.cluster import cluster as cluster_lib


class EarlyStopHook(tf.train.SessionRunHook):
  """Ends the training of this process, after the step that runs, once the chief has decided so.

  Its attribute `has_stopped` says whether that has happened.
  """

  def __init__(self, cluster, train_tensor, is_over=None):
    """Creates the hook.

    Args:
      cluster: Cluster.
      train_tensor: tensor that trains one step.
      is_over: function without arguments, whether training shall end; of the chief alone.
    """
    self._cluster = cluster
    self._train_tensor = train_tensor
    self._is_over = is_over
    self._verdict = None
    self.has_stopped = False

  def begin(self):
    if not self._cluster.num_ps:
      return
    with tf.device(f'/job:{cluster_lib.PS}/task:0/device:CPU:0'):
      # It needs no initialisation, and holds one element once training is over.
      queue = tf.FIFOQueue(1, tf.bool, shapes=[[]], shared_name='early_stop')
      # Read after the step: the end of the chief lets synchronous workers make one more, and no other.
      with tf.control_dependencies([self._train_tensor]):
        self._verdict = queue.size()
      self._look, self._tell, self._clear = queue.size(), queue.enqueue(True), queue.dequeue_up_to(1)

  def after_create_session(self, session, coord):
    verdict = self._verdict is not None and session.run(self._look)
    if verdict and self._is_over:
      # Of an earlier run: servers that are started elsewhere outlive it.
      session.run(self._clear)
      verdict = False
    if self._is_told(session, verdict):
      coord.request_stop()

  def before_run(self, run_context):
    return None if self._verdict is None else tf.train.SessionRunArgs(self._verdict)

  def after_run(self, run_context, run_values):
    if self._is_told(run_context.session, run_values.results):
      run_context.request_stop()

  def _is_told(self, session, verdict):
    if not verdict and self._is_over and self._is_over():
      if self._verdict is not None:
        session.run(self._tell)
      verdict = True
    self.has_stopped = self.has_stopped or bool(verdict)
    return self.has_stopped
