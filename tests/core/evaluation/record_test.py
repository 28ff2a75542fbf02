"""The record of validations, and the folder of the best checkpoint, when processes die and disks are full."""

import json
import os
import resource
import signal
import time

import numpy as np
import pytest

from deeplab import common
from deeplab.core.base import files
from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf
from deeplab.core.evaluation import evaluation, history, validation
from deeplab.core.run import best_checkpoint, checkpoint
from deeplab.datasets import dataset_info


def _save(folder, step):
  folder.mkdir(exist_ok=True)
  with tf.Graph().as_default(), tf.Session() as session:
    tf.train.create_global_step().load(step, session)
    return tf.train.Saver().save(session, str(folder / 'model.ckpt'), global_step=step)


def _record(folder, num_images=2):
  descriptor = dataset_info.describe('shapes', 2, class_names=['none', 'disc'])
  options = common.ModelOptions({common.OUTPUT_TYPE: 2}, [65, 65], None, 16)
  subject = evaluation.Subject(descriptor, 'val', num_images, options, {}, [65, 65], [65, 65])
  return validation.Record(str(folder), subject)


def _measured(right):
  """Of each class `right` pixels of 10 are right: mIoU = right / (20 - right)."""
  return validation.Measured(np.array([[right, 10 - right], [10 - right, right]]), 0.5)


def _kept_step(folder):
  """Step of the checkpoint in `best`, which is whole and has its own metrics."""
  prefix = checkpoint.resolve_checkpoint(str(folder / 'best'), 'checkpoint_dir')
  step = checkpoint.global_step(prefix)
  assert json.loads((folder / 'best' / 'metrics.json').read_text())['step'] == step
  return step


def test_best_is_kept_over_restarts(tmp_path):
  prefixes = {step: _save(tmp_path, step) for step in (1, 2, 3, 4)}
  record = _record(tmp_path)
  record.add(prefixes[1], 1, _measured(5), 1.5)
  record.add(prefixes[2], 2, _measured(8), 1.5)
  record = _record(tmp_path)
  # As good is no new best.
  record.add(prefixes[3], 3, _measured(8), 1.5)
  assert _kept_step(tmp_path) == 2
  assert [kept.is_best for kept in record.history.validations] == [True, True, False]
  assert (record.history.best.step, record.history.num_without_best) == (2, 1)
  assert record.history.validations[1].miou == pytest.approx(8 / 12)
  record.add(prefixes[4], 4, _measured(9), 1.5)
  assert _kept_step(tmp_path) == 4 and record.history.num_without_best == 0
  assert sorted(path.name for path in (tmp_path / 'best').iterdir()) == [
      'checkpoint', 'confusion_matrix.png', 'metrics.csv', 'metrics.json', 'model.ckpt-4.data-00000-of-00001',
      'model.ckpt-4.index', 'model.ckpt-4.meta']


def test_run_that_goes_on_from_an_earlier_step(tmp_path):
  record = _record(tmp_path)
  for step, right in ((1, 5), (2, 9)):
    record.add(_save(tmp_path, step), step, _measured(right), 1.0)
  record = _record(tmp_path)
  record.forget_after(1)
  assert [kept.step for kept in record.history.validations] == [1]
  # The best of the abandoned end stays the best.
  record.add(_save(tmp_path, 2), 2, _measured(6), 1.0)
  record.add(_save(tmp_path, 3), 3, _measured(7), 1.0)
  assert [kept.is_best for kept in record.history.validations] == [True, True, False]
  assert _kept_step(tmp_path) == 2


def test_kill_between_the_best_and_its_note(tmp_path):
  record = _record(tmp_path)
  record.add(_save(tmp_path, 1), 1, _measured(9), 1.0)
  (tmp_path / 'validation' / 'history.json').unlink()
  record = _record(tmp_path)
  record.add(str(tmp_path / 'model.ckpt-1'), 1, _measured(9), 1.0)
  assert record.history.best.step == 1 and _kept_step(tmp_path) == 1


def test_damaged_history_is_named(tmp_path):
  _record(tmp_path)
  (tmp_path / 'validation' / 'history.json').write_text('{"split": "val"}')
  with pytest.raises(InputError, match='history.json is damaged'):
    _record(tmp_path)


def _in_child(function):
  """Runs a function in a process of its own, which is given back running."""
  child = os.fork()
  if child:
    return child
  try:
    function()
  finally:
    os._exit(1)


def test_kill_at_any_moment_of_the_replacement(tmp_path):
  prefixes = [_save(tmp_path, step) for step in (1, 2)]

  def write_metrics(step):
    return lambda folder: files.replace_file(os.path.join(folder, 'metrics.json'), json.dumps({'step': step}))

  def replace_for_ever():
    while True:
      for step, prefix in enumerate(prefixes, 1):
        best_checkpoint.replace(prefix, str(tmp_path / 'best'), write_metrics(step))

  found, trial = set(), 0
  # On a machine with much else to do, the child may not get to the second one for long.
  while trial < 30 or found != {1, 2}:
    trial += 1
    assert trial <= 500
    child = _in_child(replace_for_ever)
    while not (tmp_path / 'best').exists():
      time.sleep(0.001)
    time.sleep(0.003 + 0.001 * trial)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    found.add(_kept_step(tmp_path))
    files.recover_folder(str(tmp_path / 'best'))
    assert [path.name for path in tmp_path.glob('*best*')] == ['best']


def test_file_system_that_cannot_exchange_folders(tmp_path, monkeypatch):
  monkeypatch.setattr(files, '_exchange', lambda one, other: False)
  best = str(tmp_path / 'best')
  for step in (1, 2):
    best_checkpoint.replace(_save(tmp_path, step), best, lambda folder: None)
    assert checkpoint.global_step(checkpoint.resolve_checkpoint(best, 'checkpoint_dir')) == step
  # Killed between the two renames.
  os.rename(best, tmp_path / 'old.best')
  os.makedirs(tmp_path / 'new.best')
  files.recover_folder(best)
  assert checkpoint.global_step(checkpoint.resolve_checkpoint(best, 'checkpoint_dir')) == 2
  assert [path.name for path in tmp_path.glob('*best*')] == ['best']


def test_full_disk_leaves_the_best_and_training_alone(tmp_path, caplog):
  record = _record(tmp_path)
  record.add(_save(tmp_path, 1), 1, _measured(5), 1.0)
  prefix = _save(tmp_path, 2)
  limit = resource.getrlimit(resource.RLIMIT_FSIZE)
  # The kernel refuses every further byte in a file.
  resource.setrlimit(resource.RLIMIT_FSIZE, (0, limit[1]))
  try:
    with caplog.at_level('WARNING', 'absl'):
      record.add(prefix, 2, _measured(8), 1.0)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
  warnings = [entry.getMessage() for entry in caplog.records]
  assert any('Validation: the best checkpoint cannot be written (' in warning for warning in warnings)
  assert any('Validation: its figures cannot be written (' in warning for warning in warnings)
  assert _kept_step(tmp_path) == 1 and [path.name for path in tmp_path.glob('*best*')] == ['best']
  # With room again all is caught up with, and what is better than what is kept is kept.
  record.add(_save(tmp_path, 3), 3, _measured(7), 1.0)
  assert _kept_step(tmp_path) == 3
  assert [kept.step for kept in history.read(str(tmp_path)).validations] == [1, 2, 3]
