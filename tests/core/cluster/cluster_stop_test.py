"""Clusters of real processes that are told to stop: what is saved, and that every process ends."""

import signal

import pytest
import tiny_run
from local_cluster import CHIEF, PS, WORKER, first_steps

# Shells say this, too.
_TOLD = 128 + signal.SIGTERM
# Steps in which the cluster is at work.
_SOME_STEPS = 6
_SYNCHRONOUS = ('--sync_replicas',)
_BACKUP = ('--sync_replicas', '--backup_workers=1')


def _kinds(*, full):
  """Parameters (number of parameter servers, flags); `full`: also the first is for a full run alone."""
  kinds = [pytest.param(1, (), id='asynchronous', marks=[pytest.mark.full] * full)]
  others = {'synchronous': (1, _SYNCHRONOUS), 'backup': (2, _BACKUP), 'two_ps': (2, ())}
  return kinds + [pytest.param(*kind, id=name, marks=pytest.mark.full) for name, kind in others.items()]


@pytest.fixture
def flags(tmp_path):
  # Saves but for those at a signal are far apart, and the grace is enough for a busy machine.
  return (f'--dataset_dir={tiny_run.write_records(tmp_path / "data")}', '--training_number_of_steps=1000000',
          '--save_interval_secs=100000', '--termination_grace_secs=200')


def _start(cluster, flags):
  for member in cluster.members:
    cluster.start(member, *flags)


@pytest.mark.parametrize(('num_ps', 'further_flags'), _kinds(full=False))
def test_a_cluster_that_is_told_to_stop_goes_on_from_there(make_cluster, flags, num_ps, further_flags):
  cluster = make_cluster(num_ps=num_ps)
  _start(cluster, (*flags, *further_flags))
  cluster.wait_for_step(_SOME_STEPS, CHIEF, WORKER)
  reached = cluster.last_step(CHIEF)
  cluster.send(signal.SIGTERM, *cluster.members)
  assert set(cluster.exit_codes().values()) == {_TOLD}
  saved = cluster.saved_step()
  assert saved >= reached
  assert f'Ended by SIGTERM at step {saved} of' in cluster.log(CHIEF)
  _start(cluster, (*flags, *further_flags))
  cluster.wait_for_step(saved + _SOME_STEPS, CHIEF, WORKER)
  assert first_steps(cluster.log(CHIEF)) == [0, saved]
  # Without a parameter server nothing can be saved; no process waits for it.
  cluster.kill(PS)
  cluster.send(signal.SIGTERM, *cluster.members[1:])
  assert set(cluster.exit_codes().values()) == {_TOLD}
  for member in (CHIEF, WORKER):
    assert f'is of step {saved}; later steps are lost' in cluster.log(member)
