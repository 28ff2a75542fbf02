"""What a checkpoint path means."""

import os
import shutil

import numpy as np
import pytest

from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf
from deeplab.core.run import checkpoint


def _save(folder, steps=(8,), sharded=False, **saver_args):
  """Writes a checkpoint for each step; returns their prefixes."""
  os.makedirs(folder, exist_ok=True)
  with tf.Graph().as_default(), tf.Session() as session:
    # Each device, here one named and one not, has its own shard.
    with tf.device('/device:CPU:0'):
      tf.get_variable('weights0', [3, 4])
    tf.get_variable('weights1', [3, 4])
    global_step = tf.train.create_global_step()
    session.run(tf.global_variables_initializer())
    saver = tf.train.Saver(sharded=sharded, **saver_args)
    prefixes = []
    for step in steps:
      global_step.load(step, session)
      prefixes.append(saver.save(session, os.path.join(folder, 'model.ckpt'), global_step=step))
  return prefixes


def _resolve(path):
  return checkpoint.resolve_checkpoint(str(path), 'tf_initial_checkpoint')


def _refusal(path):
  with pytest.raises(InputError) as error:
    _resolve(path)
  assert str(error.value).startswith(f'--tf_initial_checkpoint={path}')
  return str(error.value)


@pytest.mark.parametrize('suffix', ['', '.index', '.meta', '.data-00000-of-00001'])
def test_prefix_and_its_files(tmp_path, suffix):
  prefix, = _save(tmp_path)
  assert _resolve(prefix + suffix) == prefix


def test_prefix_in_the_current_folder(tmp_path, monkeypatch):
  _save(tmp_path)
  monkeypatch.chdir(tmp_path)
  assert _resolve('model.ckpt-8') == 'model.ckpt-8'
  assert 'model.ckpt-8' in _refusal('model.ckpt-9')


def test_sharded_checkpoint(tmp_path):
  prefix, = _save(tmp_path, sharded=True)
  assert _resolve(prefix + '.data-00001-of-00002') == prefix
  os.remove(prefix + '.data-00001-of-00002')
  message = _refusal(prefix)
  assert 'data files are missing' in message
  assert f'{prefix}.data-00000-of-00002' in message


def test_first_checkpoint_format(tmp_path):
  prefix, = _save(tmp_path, write_version=tf.train.SaverDef.V1)
  assert _resolve(prefix) == prefix
  assert checkpoint.variable_shapes(prefix)['weights0'] == [3, 4]


def test_folder_means_its_newest_checkpoint(tmp_path):
  prefixes = _save(tmp_path, steps=[8, 16, 100])
  assert _resolve(tmp_path) == prefixes[-1]


def test_moved_folder(tmp_path):
  # The saver writes absolute paths when it is given an absolute one.
  _save(tmp_path / 'old', steps=[8, 16])
  shutil.move(tmp_path / 'old', tmp_path / 'new')
  assert str(tmp_path / 'old') in (tmp_path / 'new' / 'checkpoint').read_text()
  assert _resolve(tmp_path / 'new') == str(tmp_path / 'new' / 'model.ckpt-16')


def test_copied_folder_is_read_itself(tmp_path):
  _save(tmp_path / 'old')
  shutil.copytree(tmp_path / 'old', tmp_path / 'new')
  assert _resolve(tmp_path / 'new') == str(tmp_path / 'new' / 'model.ckpt-8')


def test_half_written_checkpoint_is_passed_over(tmp_path, caplog):
  older, newest = _save(tmp_path, steps=[8, 16])
  data = newest + '.data-00000-of-00001'
  os.truncate(data, os.path.getsize(data) // 2)
  assert _resolve(tmp_path) == older
  assert 'cut short' in caplog.text
  assert f'{os.path.getsize(data)} of 104 bytes' in _refusal(newest)


@pytest.mark.parametrize('content', [None, '', 'model_checkpoint_path: "gone"', 'not a state file'])
def test_folder_without_usable_state_file(tmp_path, content):
  prefix, = _save(tmp_path)
  os.remove(tmp_path / 'checkpoint')
  if content is not None:
    (tmp_path / 'checkpoint').write_text(content)
  assert _resolve(tmp_path) == prefix


def test_folder_with_several_checkpoints_and_no_state_file(tmp_path):
  prefixes = _save(tmp_path, steps=[8, 16, 100])
  os.remove(tmp_path / 'checkpoint')
  assert ', '.join(prefixes) in _refusal(tmp_path)


def test_folder_with_broken_checkpoint_alone(tmp_path):
  prefix, = _save(tmp_path)
  os.remove(prefix + '.data-00000-of-00001')
  assert 'data files are missing; found none' in _refusal(tmp_path)


def test_folder_without_checkpoint(tmp_path):
  assert 'holds: nothing' in _refusal(tmp_path)
  (tmp_path / 'train-00000-of-00001.tfrecord').write_text('')
  assert 'train-00000-of-00001.tfrecord' in _refusal(tmp_path)


def test_missing_checkpoint_lists_what_is_near(tmp_path):
  prefix, = _save(tmp_path)
  assert prefix in _refusal(tmp_path / 'model.ckpt-9')
  assert f'{tmp_path / "no"} does not exist' in _refusal(tmp_path / 'no' / 'model.ckpt-9')


@pytest.mark.parametrize('name', ['model.tar.gz', 'model.tgz', 'model.zip'])
def test_archive(tmp_path, name):
  assert 'unpack it first' in _refusal(tmp_path / name)


@pytest.mark.parametrize('name', ['frozen_inference_graph.pb', 'model.ckpt.index'])
def test_file_that_is_no_checkpoint(tmp_path, name):
  (tmp_path / name).write_bytes(b'\x0a\x00' * 200)
  assert f'{tmp_path / name} is not a file of a TensorFlow checkpoint' in _refusal(tmp_path / name)


def test_contents(tmp_path):
  prefix, = _save(tmp_path)
  assert checkpoint.variable_shapes(prefix) == {'weights0': [3, 4], 'weights1': [3, 4], 'global_step': []}
  assert checkpoint.global_step(prefix) == 8
  with tf.Graph().as_default(), tf.Session() as session:
    tf.get_variable('weights0', initializer=np.zeros(3))
    session.run(tf.global_variables_initializer())
    prefix = tf.train.Saver().save(session, str(tmp_path / 'weights.ckpt'))
  assert checkpoint.global_step(prefix) is None
