"""Whether the other processes of a cluster answer, and the end of a worker that waits in vain for one.

TensorFlow waits for a missing process for ever, inside of calls that nothing can interrupt. So threads watch, and end the process
as a whole.
"""

import socket
import threading
import time

from deeplab.core.base.errors import InputError
from deeplab.core.base.stop_signal import end_process
from deeplab.core.cluster import cluster as cluster_lib

_POLL_SECS = 1.0
_CONNECT_SECS = 2.0
# How long processes of a finished run may be silent; enough for others to close their sessions.
FINISHED_LIMIT_SECS = 60.0
# The same for a process that was told to stop: while it lasts, and how long a parameter server may be silent.
STOP_POLL_SECS = 0.25
_STOP_LIMIT_SECS = 1.0


def answers(address):
  """Whether something listens at 'host:port'."""
  host, _, port = address.rpartition(':')
  try:
    with socket.create_connection((host.strip('[]'), int(port)), timeout=_CONNECT_SECS):
      return True
  except OSError:
    return False


class Silence:
  """For how many seconds each of some addresses has not answered."""

  def __init__(self, addresses):
    self._addresses = addresses
    self._heard = [time.monotonic()] * len(addresses)

  def measure(self, indexes):
    """dict, index -> seconds, 0 for those that answer now."""
    silent = {}
    for index in indexes:
      if answers(self._addresses[index]):
        self._heard[index] = time.monotonic()
        silent[index] = 0.0
      else:
        silent[index] = time.monotonic() - self._heard[index]
    return silent


class ChiefWatch:
  """Tells a process that follows a run when the chief has been silent for a time limit, if its address is known."""

  def __init__(self, cluster, limit_secs):
    self._limit_secs = limit_secs
    self._silence = Silence(cluster.worker_hosts[:1])
    self._address = cluster.worker_hosts[0] if cluster.worker_hosts else None

  def look(self):
    """Raises InputError where the chief has been silent for too long."""
    if self._address and self._silence.measure([0])[0] > self._limit_secs:
      raise InputError(f'The chief has not answered at {self._address} for {self._limit_secs} seconds (--peer_timeout_secs), and '
                       'training is not finished.')


class PeerWatch:
  """Ends a worker when processes that it needs have not answered for a time limit; a context manager.

  The exit code is 1, or 0 where the others are gone because training is finished.
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
    servers, workers = Silence(self._cluster.ps_hosts), Silence(self._cluster.worker_hosts)
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
    if silent[name] > FINISHED_LIMIT_SECS and self._is_finished():
      end_process(0, f'Training is finished, and {name} has ended: so does this process.')
    if silent[name] > self._limit_secs:
      job, task = name.split()
      hosts = self._cluster.ps_hosts if job == cluster_lib.PS else self._cluster.worker_hosts
      end_process(1, f'{name} has not answered at {hosts[int(task)]} for {self._limit_secs} seconds (--peer_timeout_secs). '
                      'Is it running, and can this machine reach it?')


def end_in_time(cluster, grace_secs, interrupt, tell_saved):
  """What a worker of a cluster does beside its last step once it is told to stop.

  Args:
    cluster: Cluster; this process is one of its workers.
    grace_secs: seconds within which it has to end.
    interrupt: function without arguments that lets the main thread wait for no other worker.
    tell_saved: function without arguments, a sentence about what is saved and what is not.

  Returns:
    Function of a training_hooks.StopOnSignalHook, for its argument `react`; it ends the process with the exit code of a stop by a
    signal when the session does not.
  """
  def react(stop):
    exit_code = 128 + stop.signal_number
    if not (stop.is_training or cluster.is_chief):
      end_process(exit_code, 'Stopped before the first step of this worker.')
    # It asks a parameter server, which may be gone.
    threading.Thread(target=interrupt, daemon=True).start()
    silence, deadline = Silence(cluster.ps_hosts), time.monotonic() + grace_secs
    while not stop.ended.wait(STOP_POLL_SECS):
      gone = [task for task, secs in silence.measure(range(len(cluster.ps_hosts))).items() if secs > _STOP_LIMIT_SECS]
      if gone:
        end_process(exit_code, f'Parameter server {gone[0]} at {cluster.ps_hosts[gone[0]]} is gone: nothing more can be saved. '
                               f'{tell_saved()}')
      if time.monotonic() > deadline:
        end_process(exit_code, f'Not ended {grace_secs} seconds after the signal (--termination_grace_secs). {tell_saved()}')
  return react
