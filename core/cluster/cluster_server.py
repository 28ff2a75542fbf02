"""The servers of a cluster that train.py starts, and how long a parameter server lives.

It ends when all workers have reported that training is finished. Processes may die and come back at any time, as cluster managers
have it: a process counts as gone only when its address has not answered for a time limit. Where the training folder already holds
the last step, the others have ended well and there is nothing to wait for. Told to stop, a parameter server stays until those
that need it have saved.
"""

import time

from absl import logging

from deeplab.core.base.errors import InputError
from deeplab.core.base.stop_signal import StopSignal, end_process
from deeplab.core.base.tf_compat import tf
from deeplab.core.cluster import cluster as cluster_lib
from deeplab.core.cluster import peers, stop_request

_POLL_SECS = 1.0
# Between the last report (or checkpoint) and the end of a parameter server; the worker closes its session meanwhile.
_LINGER_SECS = 2.0
# Between two looks whether the chief has initialised the variables, and for how long; restoring large ones may take minutes.
_CHIEF_POLL_SECS = 1
_CHIEF_LIMIT_SECS = 7200


def start(cluster, config):
  """Starts the TensorFlow server of this process.

  Args:
    cluster: Cluster with addresses.
    config: tf.ConfigProto of its devices.

  Returns:
    tf.train.Server, which serves as long as the process lives.

  Raises:
    InputError: it cannot serve at its address.
  """
  if cluster.is_ps:
    config.device_count['GPU'] = 0
  spec = tf.train.ClusterSpec({cluster_lib.PS: cluster.ps_hosts, cluster_lib.WORKER: cluster.worker_hosts})
  try:
    server = tf.train.Server(spec, job_name=cluster.job, task_index=cluster.task, config=config)
  except tf.errors.OpError as error:
    raise InputError(f'No server can be started for {cluster.job} {cluster.task} at {cluster.address}: is another process using '
                     f'the port? ({error.message})') from error
  logging.info('This process is %s %d of %d parameter servers and %d workers, at %s.', cluster.job, cluster.task, cluster.num_ps,
               cluster.num_workers, cluster.address)
  return server


def serve_variables(cluster, server, limit_secs, grace_secs, is_finished):
  """The life of a parameter server.

  Args:
    cluster: Cluster; this process is one of its parameter servers.
    server: tf.train.Server of this process.
    limit_secs: seconds after which workers that do not answer are given up.
    grace_secs: seconds within which it ends when it is told to stop; until then it stays for workers that save.
    is_finished: function without arguments, whether the training folder (if this process sees it) holds the last step.

  Returns:
    Number of the signal that ended it, or None where the workers are done.

  Raises:
    InputError: no unfinished worker answers, and training is not finished.
  """
  unfinished = set(range(cluster.num_workers))
  silence = peers.Silence(cluster.worker_hosts)
  with tf.Graph().as_default(), StopSignal(lambda stop: _end_in_time(stop, grace_secs)) as stop:
    queue, request = _finished_queue(cluster.task, cluster.num_workers), stop_request.queue(cluster.task)
    count, take = queue.size(), queue.dequeue()
    asks, ask = request.size(), request.enqueue(True)
    with tf.Session(server.target, config=tf.ConfigProto(device_filters=cluster.device_filters)) as session:
      while unfinished and not stop.told.wait(_POLL_SECS):
        for _ in range(session.run(count)):
          unfinished.discard(int(session.run(take)))
        if unfinished and _are_given_up(cluster, unfinished, silence, limit_secs, is_finished):
          break
      if stop.signal_number:
        session.run(ask)
        _stay_for_workers([cluster.worker_hosts[task] for task in unfinished], lambda: not session.run(asks))
        logging.warning('Parameter server %d ends, as it was told to.', cluster.task)
        return stop.signal_number
  time.sleep(_LINGER_SECS)
  logging.info('The workers are done; parameter server %d ends.', cluster.task)
  return None


def _are_given_up(cluster, unfinished, silence, limit_secs, is_finished):
  """Whether workers that have not reported their end need no parameter server any more; arguments as above."""
  silent_secs = min(silence.measure(unfinished).values())
  if silent_secs > peers.FINISHED_LIMIT_SECS and is_finished():
    return True
  if silent_secs > limit_secs and 0 in unfinished:
    raise InputError(f'No worker has answered for {limit_secs} seconds (--peer_timeout_secs), and training is not finished: '
                     f'{", ".join(cluster.worker_hosts)}. Are they running, at these addresses?')
  if silent_secs > limit_secs:
    logging.warning('Training is finished, but workers %s never came back.', sorted(unfinished))
  return silent_secs > limit_secs


def _stay_for_workers(addresses, is_saved):
  """Waits until no worker answers, or the chief, if it goes on, has saved."""
  saved_at = None
  # A worker that has ended once is not waited for again.
  while addresses := [address for address in addresses if peers.answers(address)]:
    if saved_at is None and is_saved():
      saved_at = time.monotonic()
    if saved_at is not None and time.monotonic() > saved_at + _LINGER_SECS:
      return
    time.sleep(peers.STOP_POLL_SECS)


def _end_in_time(stop, grace_secs):
  """Ends a parameter server that workers still hold back when its time is over."""
  if not stop.ended.wait(grace_secs):
    end_process(128 + stop.signal_number, f'Workers have not ended or saved {grace_secs} seconds after the signal '
                                          '(--termination_grace_secs).')


def report_finished(cluster, server):
  """Tells the parameter servers that this worker is done.

  Args:
    cluster: Cluster; this process is one of its workers.
    server: tf.train.Server of this process.
  """
  for task, address in enumerate(cluster.ps_hosts):
    with tf.Graph().as_default():
      report = _finished_queue(task, cluster.num_workers).enqueue(cluster.task)
      config = tf.ConfigProto(device_filters=[f'/job:{cluster_lib.PS}/task:{task}', *cluster.device_filters[1:]])
      try:
        # One that does not answer would be waited for; restarted, it sees the finished run.
        if peers.answers(address):
          with tf.Session(server.target, config=config) as session:
            session.run(report)
      except (tf.errors.UnavailableError, tf.errors.AbortedError):
        logging.warning('Parameter server %d at %s died before the end was reported to it.', task, address)


def _finished_queue(ps_task, num_workers):
  """Queue on a parameter server to which each worker, when done, adds its index."""
  with tf.device(f'/job:{cluster_lib.PS}/task:{ps_task}/device:CPU:0'):
    return tf.FIFOQueue(num_workers, tf.int32, shapes=[[]], shared_name='finished_workers')


class WorkerSessionCreator(tf.train.SessionCreator):
  """Session of a worker other than the chief; it waits until the chief has initialised or restored the variables."""

  def __init__(self, scaffold, target, config):
    self._scaffold = scaffold
    self._target = target
    self._config = config

  def create_session(self):
    self._scaffold.finalize()
    manager = tf.train.SessionManager(
        local_init_op=self._scaffold.local_init_op, ready_op=self._scaffold.ready_op,
        ready_for_local_init_op=self._scaffold.ready_for_local_init_op, recovery_wait_secs=_CHIEF_POLL_SECS)
    return manager.wait_for_session(self._target, self._config, _CHIEF_LIMIT_SECS)
