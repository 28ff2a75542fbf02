"""Real processes of a cluster on this machine: parameter servers and two workers, which tests start, signal and read."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import tiny_run

from deeplab.core.base.tf_compat import tf

# Bound of everything that a test waits for; the machine may be busy.
_LIMIT_SECS = 300
CHIEF, WORKER, PS = ('worker', 0), ('worker', 1), ('ps', 0)


def free_addresses(count):
  sockets = [socket.socket() for _ in range(count)]
  for free in sockets:
    free.bind(('127.0.0.1', 0))
  addresses = [f'127.0.0.1:{free.getsockname()[1]}' for free in sockets]
  for free in sockets:
    free.close()
  return addresses


class LocalCluster:
  """Two workers and their parameter servers; each process has a group of its own and writes to a file of its own."""

  def __init__(self, folder, num_ps=1, by_tf_config=False):
    self._folder = folder
    self._by_tf_config = by_tf_config
    self._addresses = {'worker': free_addresses(2), 'ps': free_addresses(num_ps)}
    self._processes = {}
    self._log_starts = {}
    self.logdir = folder / 'cluster'
    self.members = [*(('ps', task) for task in range(num_ps)), CHIEF, WORKER]

  def start(self, member, *arguments):
    job, task = member
    environment = {**os.environ, 'CUDA_VISIBLE_DEVICES': '', 'PYTHONUNBUFFERED': '1'}
    if self._by_tf_config:
      chief, worker = self._addresses['worker']
      environment['TF_CONFIG'] = json.dumps({
          'cluster': {'chief': [chief], 'worker': [worker], 'ps': self._addresses['ps']},
          'task': {'type': 'chief' if member == CHIEF else job, 'index': 0}})
    else:
      hosts = [f'--{name}_hosts={",".join(addresses)}' for name, addresses in self._addresses.items()]
      arguments = (*arguments, f'--job_name={job}', f'--task={task}', *hosts)
    command = [sys.executable, tiny_run.__file__, *tiny_run.FLAGS, f'--train_logdir={self.logdir}', '--startup_delay_steps=0',
               *arguments]
    with open(self._log_path(member), 'a', encoding='utf-8') as log:
      self._log_starts[member] = log.tell()
      self._processes[member] = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)

  def kill(self, member):
    os.killpg(self._processes[member].pid, signal.SIGKILL)
    assert self._processes.pop(member).wait() == -signal.SIGKILL

  def send(self, number, *members):
    """Sends a signal to some processes."""
    for member in members:
      self._processes[member].send_signal(number)

  def end_of(self, member):
    """Exit code of a process, once it has ended."""
    self.wait_for(lambda: self._processes[member].poll() is not None, f'end of {member}')
    return self._processes.pop(member).returncode

  def _log_path(self, member):
    return self._folder / f'{member[0]}{member[1]}.log'

  def log(self, member, since_start=False):
    """What a process has written, by default with what those before it have."""
    text = self._log_path(member).read_bytes()
    return text[self._log_starts[member] if since_start else 0:].decode('utf-8', 'replace')

  def last_step(self, member):
    """The last step that the present process tells of, or 0."""
    steps = re.findall(r'step (\d+)/', self.log(member, since_start=True))
    return int(steps[-1]) if steps else 0

  def wait_for_step(self, step, *members):
    """Waits until workers have come to a step."""
    self.wait_for(lambda: all(self.last_step(member) >= step for member in members), f'step {step} of {members}')

  def wait_for_line(self, member, line):
    self.wait_for(lambda: line in self.log(member, since_start=True), f'{line!r} of {member}')

  def wait_for(self, condition, what):
    """Result of `condition`, once it is true."""
    start = time.monotonic()
    while time.monotonic() - start < _LIMIT_SECS:
      result = condition()
      if result:
        return result
      time.sleep(0.02)
    raise AssertionError(f'No {what}.\n' + '\n'.join(self.log(member) for member in self._processes))

  def exit_codes(self):
    """Exit codes of the processes that run, once all have ended."""
    self.wait_for(lambda: all(process.poll() is not None for process in self._processes.values()), 'end')
    return {member: process.returncode for member, process in self._processes.items()}

  def saved_step(self):
    """Step of the newest checkpoint, 0 where there is none."""
    prefix = tf.train.latest_checkpoint(str(self.logdir))
    return int(prefix.rpartition('-')[2]) if prefix else 0

  def is_saving(self):
    """Whether files of a checkpoint are there, but not yet the last of them."""
    steps = {path.name.split('.')[1] for path in self.logdir.glob('model.ckpt-*')}
    return any(not (self.logdir / f'model.{step}.meta').exists() for step in steps)

  def wait_for_later_checkpoint(self, step):
    return self.wait_for(lambda: self.saved_step() > step and self.saved_step(), f'checkpoint after step {step}')

  def stop_all(self):
    for process in self._processes.values():
      if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def first_steps(log):
  """Steps at which the sessions of a worker began."""
  return [int(step) for step in re.findall(r'Training from step (\d+)', log)]
