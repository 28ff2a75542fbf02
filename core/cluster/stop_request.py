"""A parameter server that is told to stop while the others are not: it asks the chief to save, and ends when that is done."""

import time

from absl import logging

from deeplab.core.base.tf_compat import tf
from deeplab.core.cluster import cluster as cluster_lib
from deeplab.core.cluster import peers


def queue(ps_task):
  """Queue on a parameter server: it puts an element there when it is told to stop; the chief takes it away when it has saved."""
  with tf.device(f'/job:{cluster_lib.PS}/task:{ps_task}/device:CPU:0'):
    return tf.FIFOQueue(1, tf.bool, shapes=[[]], shared_name='stop_request')


class StopRequestHook(tf.train.SessionRunHook):
  """Saves when a parameter server asks for it, and makes no further step, which would be lost, until that one is gone."""

  def __init__(self, cluster, stop, grace_secs, save=None):
    """Creates the hook.

    Args:
      cluster: Cluster with parameter servers that train.py has started.
      stop: stop_signal.StopSignal of this process; once it is told to stop itself, its own end saves.
      grace_secs: seconds after which a parameter server must have ended.
      save: function of the session, of the chief alone.
    """
    self._cluster = cluster
    self._stop = stop
    self._grace_secs = grace_secs
    self._save = save

  def begin(self):
    queues = [queue(task) for task in range(self._cluster.num_ps)]
    self._sizes = [request.size() for request in queues]
    self._takes = [request.dequeue() for request in queues]

  def before_run(self, run_context):
    return tf.train.SessionRunArgs(self._sizes)

  def after_run(self, run_context, run_values):
    asking = [task for task, size in enumerate(run_values.results) if size]
    if not asking or self._stop.signal_number:
      return
    logging.warning('Parameter servers %s were told to stop: no further step until they are back.', asking)
    if self._save:
      self._save(run_context.session)
      run_context.session.run([self._takes[task] for task in asking])
    self._await_end([self._cluster.ps_hosts[task] for task in asking])

  def _await_end(self, addresses):
    deadline = time.monotonic() + self._grace_secs
    while time.monotonic() < deadline and all(map(peers.answers, addresses)):
      if self._stop.told.wait(peers.STOP_POLL_SECS):
        return
