"""Training while the disk is full, and while the clock of the machine is set back."""

import os
import resource
import time

import pytest
import tiny_run

from deeplab import train
from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf
from deeplab.core.run import checkpoint, checkpoint_follower, training_hooks


@pytest.fixture(scope='module')
def records(tmp_path_factory):
  return tiny_run.write_records(tmp_path_factory.mktemp('faults') / 'records')


@pytest.fixture
def file_size_limit():
  """Function that sets the size in bytes that no file can pass, as a full disk or a quota does; lifted in the end."""
  before = resource.getrlimit(resource.RLIMIT_FSIZE)
  yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
  resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_disk_is_full_while_saving(records, tmp_path, monkeypatch, file_size_limit):
  folder = tmp_path / 'train'
  command = [train, *tiny_run.FLAGS, f'--dataset_dir={records}', f'--train_logdir={folder}']
  assert not tiny_run.run(*command)[0]
  before_save = training_hooks.FiniteWeightsListener.before_save

  def fill_up(listener, session, step):
    before_save(listener, session, step)
    if step == 4:
      file_size_limit(20000)

  with monkeypatch.context() as patch:
    patch.setattr(training_hooks.FiniteWeightsListener, 'before_save', fill_up)
    code, log = tiny_run.run(*command, '--training_number_of_steps=4')
  file_size_limit(resource.RLIM_INFINITY)
  assert code == 1 and 'ERROR' in log and 'model.ckpt-4' in log and 'Traceback' not in log
  assert checkpoint.global_step(checkpoint.prepare_resume(str(folder))) == 2
  code, log = tiny_run.run(*command, '--training_number_of_steps=4')
  assert not code and 'Training from step 2 to 4' in log


def test_clock_is_set_back(records, tmp_path, monkeypatch):
  """Checkpoints keep their interval: with one second and slow steps each step has its own."""
  folder, real_time, offset = tmp_path / 'train', time.time, [0.0]
  monkeypatch.setattr(time, 'time', lambda: real_time() + offset[0])
  after_run = training_hooks.ProgressHook.after_run

  def set_back(hook, run_context, run_values):
    after_run(hook, run_context, run_values)
    offset[0] -= 3600
    time.sleep(1.1)

  monkeypatch.setattr(training_hooks.ProgressHook, 'after_run', set_back)
  assert not tiny_run.run(train, *tiny_run.FLAGS, f'--dataset_dir={records}', f'--train_logdir={folder}',
                          '--save_interval_secs=1', '--training_number_of_steps=3')[0]
  assert {f'model.ckpt-{step}.index' for step in range(4)} <= set(os.listdir(folder))


def test_checkpoint_that_its_run_removes_meanwhile(tmp_path, absl_log):
  prefix = str(tmp_path / 'model.ckpt-1')
  with checkpoint_follower.unless_removed(prefix, max_rounds=0):
    raise tf.errors.NotFoundError(None, None, 'gone')
  assert f'{prefix} was removed before all was done with it; the next one follows.' in absl_log.text
  with pytest.raises(InputError), checkpoint_follower.unless_removed(prefix, max_rounds=1):
    raise InputError('the only one')
  (tmp_path / 'model.ckpt-1.index').touch()
  with pytest.raises(InputError), checkpoint_follower.unless_removed(prefix, max_rounds=0):
    raise InputError('another reason')


def test_timer():
  timer = training_hooks.SteadyTimer(every_secs=1000)
  assert timer.should_trigger_for_step(5)
  assert timer.update_last_triggered_step(5) == (None, None)
  assert not timer.should_trigger_for_step(5) and not timer.should_trigger_for_step(6)
  quick = training_hooks.SteadyTimer(every_secs=0)
  quick.update_last_triggered_step(5)
  assert not quick.should_trigger_for_step(5) and quick.should_trigger_for_step(6)
  seconds, steps = quick.update_last_triggered_step(8)
  assert seconds >= 0 and steps == 3
  assert isinstance(quick, tf.train.SecondOrStepTimer)
