"""Training by several real processes on this machine, some of which die."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
import tiny_run

from deeplab import train
from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf
from deeplab.core.cluster import cluster as cluster_lib
from deeplab.core.cluster import cluster_server
from deeplab.core.evaluation import history
from deeplab.core.run import checkpoint

# Bound of everything that a test waits for; the machine may be busy.
_LIMIT_SECS = 300
_CHIEF, _WORKER, _PS = ('worker', 0), ('worker', 1), ('ps', 0)


def _free_addresses(count):
  sockets = [socket.socket() for _ in range(count)]
  for free in sockets:
    free.bind(('127.0.0.1', 0))
  addresses = [f'127.0.0.1:{free.getsockname()[1]}' for free in sockets]
  for free in sockets:
    free.close()
  return addresses


class _Cluster:
  """Two workers and their parameter servers; each process has a group of its own and writes to a file of its own."""

  def __init__(self, folder, num_ps=1, by_tf_config=False):
    self._folder = folder
    self._by_tf_config = by_tf_config
    self._addresses = {'worker': _free_addresses(2), 'ps': _free_addresses(num_ps)}
    self._processes = {}
    self.logdir = folder / 'cluster'
    self.members = [*(('ps', task) for task in range(num_ps)), _CHIEF, _WORKER]

  def start(self, member, *arguments):
    job, task = member
    environment = {**os.environ, 'CUDA_VISIBLE_DEVICES': '', 'PYTHONUNBUFFERED': '1'}
    if self._by_tf_config:
      chief, worker = self._addresses['worker']
      environment['TF_CONFIG'] = json.dumps({
          'cluster': {'chief': [chief], 'worker': [worker], 'ps': self._addresses['ps']},
          'task': {'type': 'chief' if member == _CHIEF else job, 'index': 0}})
    else:
      hosts = [f'--{name}_hosts={",".join(addresses)}' for name, addresses in self._addresses.items()]
      arguments = (*arguments, f'--job_name={job}', f'--task={task}', *hosts)
    command = [sys.executable, tiny_run.__file__, *tiny_run.FLAGS, f'--train_logdir={self.logdir}', '--startup_delay_steps=0',
               *arguments]
    with open(self._folder / f'{job}{task}.log', 'a', encoding='utf-8') as log:
      self._processes[member] = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)

  def kill(self, member):
    os.killpg(self._processes[member].pid, signal.SIGKILL)
    assert self._processes.pop(member).wait() == -signal.SIGKILL

  def log(self, member):
    return (self._folder / f'{member[0]}{member[1]}.log').read_text(encoding='utf-8')

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


@pytest.fixture
def make_cluster(tmp_path):
  made = []

  def make(**arguments):
    made.append(_Cluster(tmp_path, **arguments))
    return made[-1]

  yield make
  for cluster in made:
    cluster.stop_all()


def _assert_finished(cluster, last_step):
  """All processes ended well, the newest checkpoint is that of the last step, and its numbers are finite."""
  assert set(cluster.exit_codes().values()) == {0}, '\n'.join(map(cluster.log, cluster.members))
  assert cluster.saved_step() == last_step
  prefix = tf.train.latest_checkpoint(str(cluster.logdir))
  assert checkpoint.global_step(prefix) == last_step
  reader = tf.train.NewCheckpointReader(prefix)
  assert all(np.all(np.isfinite(reader.get_tensor(name))) for name in checkpoint.variable_shapes(prefix))


def _first_steps(log):
  """Steps at which the sessions of a worker began."""
  return [int(step) for step in re.findall(r'Training from step (\d+)', log)]


def test_asynchronous_training_by_tf_config_survives_its_parameter_server(make_cluster, tmp_path):
  cluster, last_step = make_cluster(by_tf_config=True), 150
  flags = (f'--dataset_dir={tiny_run.write_records(tmp_path / "data")}', f'--training_number_of_steps={last_step}',
           '--save_interval_secs=1')
  for member in cluster.members:
    cluster.start(member, *flags)
  cluster.wait_for(lambda: _first_steps(cluster.log(_WORKER)), 'step of worker 1')
  step = cluster.wait_for_later_checkpoint(0)
  cluster.kill(_PS)
  cluster.start(_PS, *flags)
  _assert_finished(cluster, last_step)
  # Each worker went on from a checkpoint not older than the last before the kill.
  assert all(_first_steps(cluster.log(member))[-1] >= step for member in (_CHIEF, _WORKER))
  # One that comes when all is over trains no further step.
  cluster.start(_WORKER, *flags)
  _assert_finished(cluster, last_step)


@pytest.mark.parametrize('worker_flags', [('--train_batch_size=4',), ('--train_batch_size=2', '--accumulate_steps=2')],
                         ids=['whole', 'accumulated'])
def test_two_synchronous_workers_are_two_clones(make_cluster, tmp_path, worker_flags):
  # No augmentation, dropout or batch statistics. Each worker, and each clone, has four images per step, together all eight.
  last_step = 4
  data = tiny_run.write_records(tmp_path / 'data', tiny_run.symmetric_samples(8))
  flags = (f'--dataset_dir={data}', f'--training_number_of_steps={last_step}', '--aspp_with_batch_norm=false',
           '--min_scale_factor=1', '--max_scale_factor=1', '--base_learning_rate=0.5')
  exit_code, log = tiny_run.run(train, *tiny_run.FLAGS, *flags, f'--train_logdir={tmp_path / "clones"}', '--num_clones=2',
                                '--clone_on_cpu', '--train_batch_size=8')
  assert exit_code == 0
  cluster = make_cluster()
  initial = f'--tf_initial_checkpoint={tmp_path / "clones" / "model.ckpt-0"}'
  for member in cluster.members:
    cluster.start(member, *flags, initial, '--sync_replicas', *worker_flags)
  _assert_finished(cluster, last_step)
  of_workers = [tiny_run.losses(cluster.log(member)) for member in (_CHIEF, _WORKER)]
  losses = tiny_run.losses(log)
  np.testing.assert_allclose(np.mean(of_workers, axis=0), losses, atol=1e-4)
  assert len(losses) == last_step and np.ptp(losses) > 0.1


@pytest.mark.parametrize('further_flags', [(), pytest.param(('--sync_replicas',), marks=pytest.mark.full)],
                         ids=['asynchronous', 'synchronous'])
def test_early_stopping_ends_all_processes(make_cluster, tmp_path, further_flags):
  cluster = make_cluster()
  tiny_run.write_records(tmp_path / 'data')
  # A rate of 0, so that the first validation stays the best.
  flags = (f'--dataset_dir={tiny_run.write_records(tmp_path / "data", split="val")}', '--training_number_of_steps=1000000',
           '--validation_split=val', '--validation_interval_steps=20', '--early_stopping_validations=2',
           '--base_learning_rate=0', *further_flags)
  for member in cluster.members:
    cluster.start(member, *flags)
  assert set(cluster.exit_codes().values()) == {0}, '\n'.join(map(cluster.log, cluster.members))
  stored = history.read(str(cluster.logdir))
  assert len(stored.validations) == 3 and stored.best == stored.validations[0]
  assert all('the last 2 validations brought no new best' in cluster.log(member) for member in (_CHIEF, _WORKER))
  # One that comes when all is over trains no further step.
  cluster.start(_WORKER, *flags)
  assert cluster.exit_codes()[_WORKER] == 0


@pytest.mark.full
@pytest.mark.parametrize('further_flags', [(), ('--sync_replicas',), ('--sync_replicas', '--backup_workers=1')],
                         ids=['asynchronous', 'synchronous', 'backup'])
def test_training_survives_the_death_of_every_process(make_cluster, tmp_path, further_flags):
  cluster, last_step = make_cluster(num_ps=2), 600
  flags = (f'--dataset_dir={tiny_run.write_records(tmp_path / "data")}', f'--training_number_of_steps={last_step}',
           '--save_interval_secs=1', *further_flags)
  for member in cluster.members:
    cluster.start(member, *flags)
  step = 0
  for member in (_WORKER, _CHIEF, ('ps', 0), ('ps', 1)):
    cluster.wait_for(lambda: _first_steps(cluster.log(_WORKER)), 'step of worker 1')
    step = cluster.wait_for_later_checkpoint(step)
    cluster.kill(member)
    cluster.start(member, *flags)
  # Once more, while the chief saves.
  step = cluster.wait_for_later_checkpoint(step)
  cluster.wait_for(cluster.is_saving, 'unfinished checkpoint')
  cluster.kill(_CHIEF)
  cluster.start(_CHIEF, *flags)
  _assert_finished(cluster, last_step)
  assert _first_steps(cluster.log(_CHIEF))[-1] >= step


def test_servers_started_elsewhere(tmp_path):
  ps, *workers = _free_addresses(3)
  spec = tf.train.ClusterSpec({'ps': [ps], 'worker': workers})
  servers = [tf.train.Server(spec, job_name=job, task_index=task) for job, task in (_PS, _CHIEF, _WORKER)]
  flags = (*tiny_run.FLAGS, f'--dataset_dir={tiny_run.write_records(tmp_path / "data")}', f'--train_logdir={tmp_path / "run"}',
           '--num_ps_tasks=1', '--num_replicas=2', '--startup_delay_steps=0')
  exit_code, log = tiny_run.run(train, *flags, f'--master={servers[1].target}', '--task=0')
  assert exit_code == 0 and _first_steps(log) == [0]
  assert checkpoint.global_step(str(tmp_path / 'run' / 'model.ckpt-2')) == 2
  # The other worker finds the variables as the first has left them.
  exit_code, log = tiny_run.run(train, *flags, f'--master={servers[2].target}', '--task=1')
  assert exit_code == 0 and _first_steps(log) == [2] and 'Finished at step 2' in log


def test_a_peer_that_never_comes_up_is_named(make_cluster, tmp_path):
  cluster = make_cluster()
  flags = (f'--dataset_dir={tiny_run.write_records(tmp_path / "data")}', '--peer_timeout_secs=3')
  cluster.start(_CHIEF, *flags)
  cluster.wait_for(lambda: set(cluster.exit_codes().values()) == {1}, 'exit code 1')
  assert 'ps 0 has not answered at 127.0.0.1:' in cluster.log(_CHIEF)
  cluster.start(_PS, *flags)
  assert cluster.exit_codes()[_PS] == 1
  assert 'No worker has answered for 3 seconds' in cluster.log(_PS)


def test_evaluator_tells_of_a_silent_chief():
  ps, chief = _free_addresses(2)
  description = cluster_lib.describe({'job_name': 'evaluator', 'ps_hosts': [ps], 'worker_hosts': [chief]})
  with pytest.raises(InputError, match=f'The chief has not answered at {chief} for 0 seconds'):
    cluster_server.ChiefWatch(description, 0).look()
  with socket.create_server(('127.0.0.1', int(chief.rpartition(':')[2]))):
    cluster_server.ChiefWatch(description, 0).look()
  cluster_server.ChiefWatch(cluster_lib.describe({'job_name': 'evaluator'}), 0).look()


def test_a_port_in_use_is_named():
  with socket.socket() as used:
    used.bind(('127.0.0.1', 0))
    used.listen()
    address = f'127.0.0.1:{used.getsockname()[1]}'
    description = cluster_lib.describe({'job_name': 'ps', 'ps_hosts': [address], 'worker_hosts': _free_addresses(1)})
    with pytest.raises(InputError, match=f'ps 0 at {address}: is another process using the port'):
      cluster_server.start(description, tf.ConfigProto())
