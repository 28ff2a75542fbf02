"""The servers of a cluster that train.py starts: how long each lives, and what it does when another one falls silent.

A parameter server ends when all workers have reported that training is finished. Processes may die and come back at any time, as
cluster managers have it: a process counts as gone only when its address has not answered for a time limit. Where the training
folder already holds the last step, the others have ended well and there is nothing to wait for.
"""

import os
import socket
import sys
import threading
import time

from absl import logging

from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf
from deeplab.core.cluster import cluster as cluster_lib

_POLL_SECS = 1.0
_CONNECT_SECS = 2.0
# How long processes of a finished run may be silent; enough for others to close their sessions.
_FINISHED_LIMIT_SECS = 60.0
# Between the last report and the end of a parameter server; the worker closes its session meanwhile.
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


def serve_variables(cluster, server, limit_secs, is_finished):
  """The life of a parameter server.

  Args:
    cluster: Cluster; this process is one of its parameter servers.
    server: tf.train.Server of this process.
    limit_secs: seconds after which workers that do not answer are given up.
    is_finished: function without arguments, whether the training folder (if this process sees it) holds the last step.

  Raises:
    InputError: no unfinished worker answers, and training is not finished.
  """
  finished = set()
  silence = _Silence(cluster.worker_hosts)
  with tf.Graph().as_default():
    queue = _finished_queue(cluster.task, cluster.num_workers)
    count, take = queue.size(), queue.dequeue()
    with tf.Session(server.target, config=tf.ConfigProto(device_filters=cluster.device_filters)) as session:
      while len(finished) < cluster.num_workers:
        for _ in range(session.run(count)):
          finished.add(int(session.run(take)))
        silent_secs = min(silence.measure(set(range(cluster.num_workers)) - finished).values(), default=0)
        if silent_secs > _FINISHED_LIMIT_SECS and is_finished():
          break
        if silent_secs > limit_secs and 0 not in finished:
          raise InputError(f'No worker has answered for {limit_secs} seconds (--peer_timeout_secs), and training is not '
                           f'finished: {", ".join(cluster.worker_hosts)}. Are they running, at these addresses?')
        if silent_secs > limit_secs:
          logging.warning('Training is finished, but workers %s never came back.',
                          sorted(set(range(cluster.num_workers)) - finished))
          break
        time.sleep(_POLL_SECS)
  time.sleep(_LINGER_SECS)
  logging.info('The workers are done; parameter server %d ends.', cluster.task)


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
        if _answers(address):
          with tf.Session(server.target, config=config) as session:
            session.run(report)
      except (tf.errors.UnavailableError, tf.errors.AbortedError):
        logging.warning('Parameter server %d at %s died before the end was reported to it.', task, address)


def _finished_queue(ps_task, num_workers):
  """Queue on a parameter server to which each worker, when done, adds its index."""
  with tf.device(f'/job:{cluster_lib.PS}/task:{ps_task}/device:CPU:0'):
    return tf.FIFOQueue(num_workers, tf.int32, shapes=[[]], shared_name='finished_workers')


def _answers(address):
  """Whether something listens at 'host:port'."""
  host, _, port = address.rpartition(':')
  try:
    with socket.create_connection((host.strip('[]'), int(port)), timeout=_CONNECT_SECS):
      return True
  except OSError:
    return False


class _Silence:
  """For how many seconds each of some addresses has not answered."""

  def __init__(self, addresses):
    self._addresses = addresses
    self._heard = [time.monotonic()] * len(addresses)

  def measure(self, indexes):
    """dict, index -> seconds, 0 for those that answer now."""
    silent = {}
    for index in indexes:
      if _answers(self._addresses[index]):
        self._heard[index] = time.monotonic()
        silent[index] = 0.0
      else:
        silent[index] = time.monotonic() - self._heard[index]
    return silent


class ChiefWatch:
  """Tells a process that follows a run when the chief has been silent for a time limit, if its address is known."""

  def __init__(self, cluster, limit_secs):
    self._limit_secs = limit_secs
    self._silence = _Silence(cluster.worker_hosts[:1])
    self._address = cluster.worker_hosts[0] if cluster.worker_hosts else None

  def look(self):
    """Raises InputError where the chief has been silent for too long."""
    if self._address and self._silence.measure([0])[0] > self._limit_secs:
      raise InputError(f'The chief has not answered at {self._address} for {self._limit_secs} seconds (--peer_timeout_secs), and '
                       'training is not finished.')


class PeerWatch:
  """Ends a worker when processes that it needs have not answered for a time limit; a context manager.

  TensorFlow waits for a missing process for ever, inside of calls that nothing can interrupt. So the process ends as a whole,
  with exit code 1, or 0 where the others are gone because training is finished.
  """

  def __init__(self, cluster, limit_secs, is_finished, needed_workers=1):
    """Creates the watch.

    Args:
      cluster: Cluster; this process is one of its workers.
      limit_secs: seconds after which a process that does not answer is given up.
      is_finished: function without arguments, whether the training folder holds the last step.
      needed_workers: number of workers, the chief among them, without which there is no progress.
    """
    self._cluster = cluster
    self._limit_secs = limit_secs
    self._is_finished = is_finished
    self._needed_workers = needed_workers
    self._stop = threading.Event()
    self._thread = threading.Thread(target=self._watch, daemon=True)

  def __enter__(self):
    self._thread.start()
    return self

  def __exit__(self, *unused_exception):
    self._stop.set()
    self._thread.join()

  def _watch(self):
    servers, workers = _Silence(self._cluster.ps_hosts), _Silence(self._cluster.worker_hosts)
    others = set(range(self._cluster.num_workers if self._needed_workers > 1 else 1)) - {self._cluster.task}
    num_spare = self._cluster.num_workers - self._needed_workers
    while not self._stop.wait(_POLL_SECS):
      silent_workers = workers.measure(others)
      # The chief cannot be spared.
      spared = sorted(others - {0}, key=silent_workers.get, reverse=True)[:num_spare]
      silent = {f'ps {task}': secs for task, secs in servers.measure(range(self._cluster.num_ps)).items()}
      silent.update({f'worker {task}': secs for task, secs in silent_workers.items() if task not in spared})
      self._judge(silent)

  def _judge(self, silent):
    """Ends this process where one of `silent`, name -> seconds, is gone."""
    name = max(silent, key=silent.get)
    if silent[name] > _FINISHED_LIMIT_SECS and self._is_finished():
      _end_process(0, f'Training is finished, and {name} has ended: so does this process.')
    if silent[name] > self._limit_secs:
      job, task = name.split()
      hosts = self._cluster.ps_hosts if job == cluster_lib.PS else self._cluster.worker_hosts
      _end_process(1, f'{name} has not answered at {hosts[int(task)]} for {self._limit_secs} seconds (--peer_timeout_secs). '
                      'Is it running, and can this machine reach it?')


def _end_process(exit_code, message):
  logging.log(logging.ERROR if exit_code else logging.INFO, '%s', message)
  logging.flush()
  sys.stdout.flush()
  os._exit(exit_code)


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
