"""Training by several real processes on this machine, some of which die."""

import socket

import numpy as np
import pytest
import tiny_run
from local_cluster import CHIEF, PS, WORKER, first_steps, free_addresses

from deeplab import train
from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf
from deeplab.core.cluster import cluster as cluster_lib
from deeplab.core.cluster import cluster_server, peers
from deeplab.core.evaluation import history
from deeplab.core.run import checkpoint


def _assert_finished(cluster, last_step):
  """All processes ended well, the newest checkpoint is that of the last step, and its numbers are finite."""
  assert set(cluster.exit_codes().values()) == {0}, '\n'.join(map(cluster.log, cluster.members))
  assert cluster.saved_step() == last_step
  prefix = tf.train.latest_checkpoint(str(cluster.logdir))
  assert checkpoint.global_step(prefix) == last_step
  reader = tf.train.NewCheckpointReader(prefix)
  assert all(np.all(np.isfinite(reader.get_tensor(name))) for name in checkpoint.variable_shapes(prefix))


def test_asynchronous_training_by_tf_config_survives_its_parameter_server(make_cluster, tmp_path):
  cluster, last_step = make_cluster(by_tf_config=True), 150
  flags = (f'--dataset_dir={tiny_run.write_records(tmp_path / "data")}', f'--training_number_of_steps={last_step}',
           '--save_interval_secs=1')
  for member in cluster.members:
    cluster.start(member, *flags)
  cluster.wait_for(lambda: first_steps(cluster.log(WORKER)), 'step of worker 1')
  step = cluster.wait_for_later_checkpoint(0)
  cluster.kill(PS)
  cluster.start(PS, *flags)
  _assert_finished(cluster, last_step)
  # Each worker went on from a checkpoint not older than the last before the kill.
  assert all(first_steps(cluster.log(member))[-1] >= step for member in (CHIEF, WORKER))
  # One that comes when all is over trains no further step.
  cluster.start(WORKER, *flags)
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
  of_workers = [tiny_run.losses(cluster.log(member)) for member in (CHIEF, WORKER)]
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
  assert all('the last 2 validations brought no new best' in cluster.log(member) for member in (CHIEF, WORKER))
  # One that comes when all is over trains no further step.
  cluster.start(WORKER, *flags)
  assert cluster.exit_codes()[WORKER] == 0


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
  for member in (WORKER, CHIEF, ('ps', 0), ('ps', 1)):
    cluster.wait_for(lambda: first_steps(cluster.log(WORKER)), 'step of worker 1')
    step = cluster.wait_for_later_checkpoint(step)
    cluster.kill(member)
    cluster.start(member, *flags)
  # Once more, while the chief saves.
  step = cluster.wait_for_later_checkpoint(step)
  cluster.wait_for(cluster.is_saving, 'unfinished checkpoint')
  cluster.kill(CHIEF)
  cluster.start(CHIEF, *flags)
  _assert_finished(cluster, last_step)
  assert first_steps(cluster.log(CHIEF))[-1] >= step


def test_servers_started_elsewhere(tmp_path):
  ps, *workers = free_addresses(3)
  spec = tf.train.ClusterSpec({'ps': [ps], 'worker': workers})
  servers = [tf.train.Server(spec, job_name=job, task_index=task) for job, task in (PS, CHIEF, WORKER)]
  flags = (*tiny_run.FLAGS, f'--dataset_dir={tiny_run.write_records(tmp_path / "data")}', f'--train_logdir={tmp_path / "run"}',
           '--num_ps_tasks=1', '--num_replicas=2', '--startup_delay_steps=0')
  exit_code, log = tiny_run.run(train, *flags, f'--master={servers[1].target}', '--task=0')
  assert exit_code == 0 and first_steps(log) == [0]
  assert checkpoint.global_step(str(tmp_path / 'run' / 'model.ckpt-2')) == 2
  # The other worker finds the variables as the first has left them.
  exit_code, log = tiny_run.run(train, *flags, f'--master={servers[2].target}', '--task=1')
  assert exit_code == 0 and first_steps(log) == [2] and 'Finished at step 2' in log


def test_a_peer_that_never_comes_up_is_named(make_cluster, tmp_path):
  cluster = make_cluster()
  flags = (f'--dataset_dir={tiny_run.write_records(tmp_path / "data")}', '--peer_timeout_secs=3')
  cluster.start(CHIEF, *flags)
  cluster.wait_for(lambda: set(cluster.exit_codes().values()) == {1}, 'exit code 1')
  assert 'ps 0 has not answered at 127.0.0.1:' in cluster.log(CHIEF)
  cluster.start(PS, *flags)
  assert cluster.exit_codes()[PS] == 1
  assert 'No worker has answered for 3 seconds' in cluster.log(PS)


def test_evaluator_tells_of_a_silent_chief():
  ps, chief = free_addresses(2)
  description = cluster_lib.describe({'job_name': 'evaluator', 'ps_hosts': [ps], 'worker_hosts': [chief]})
  with pytest.raises(InputError, match=f'The chief has not answered at {chief} for 0 seconds'):
    peers.ChiefWatch(description, 0).look()
  with socket.create_server(('127.0.0.1', int(chief.rpartition(':')[2]))):
    peers.ChiefWatch(description, 0).look()
  peers.ChiefWatch(cluster_lib.describe({'job_name': 'evaluator'}), 0).look()


def test_a_port_in_use_is_named():
  with socket.socket() as used:
    used.bind(('127.0.0.1', 0))
    used.listen()
    address = f'127.0.0.1:{used.getsockname()[1]}'
    description = cluster_lib.describe({'job_name': 'ps', 'ps_hosts': [address], 'worker_hosts': free_addresses(1)})
    with pytest.raises(InputError, match=f'ps 0 at {address}: is another process using the port'):
      cluster_server.start(description, tf.ConfigProto())
