"""Several batches that make one update, through train.main and on a graph of one variable."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
import tiny_run

from deeplab import train
from deeplab.core.base.tf_compat import tf
from deeplab.core.cluster.accumulation import GradientAccumulator
from deeplab.core.run import checkpoint

# No augmentation, dropout or batch statistics; pictures that fill the crop.
_FLAGS = (*tiny_run.FLAGS, '--aspp_with_concat_projection=false', '--min_scale_factor=1', '--max_scale_factor=1',
          '--base_learning_rate=0.5', '--weight_decay=0.01', '--training_number_of_steps=2')


@pytest.fixture(scope='module')
def records(tmp_path_factory):
  return tiny_run.write_records(tmp_path_factory.mktemp('data') / 'records', tiny_run.symmetric_samples(8))


def _tensors(folder):
  prefix = tf.train.latest_checkpoint(str(folder))
  reader = tf.train.NewCheckpointReader(prefix)
  return {name: reader.get_tensor(name) for name in checkpoint.variable_shapes(prefix)}


def _train(records, folder, *arguments):
  code, log = tiny_run.run(train, *_FLAGS, f'--dataset_dir={records}', f'--train_logdir={folder}', *arguments)
  assert code == 0, log
  return log


@pytest.fixture(scope='module')
def whole_batches(records, tmp_path_factory):
  """(folder, log) of a run that sees all pictures in each step."""
  folder = tmp_path_factory.mktemp('whole') / 'train'
  return folder, _train(records, folder, '--train_batch_size=8')


@pytest.mark.parametrize('arguments', [('--train_batch_size=2', '--accumulate_steps=4'),
                                       ('--train_batch_size=4', '--accumulate_steps=2', '--num_clones=2', '--clone_on_cpu')],
                         ids=['one clone', 'two clones'])
def test_small_batches_make_the_update_of_a_large_one(records, whole_batches, tmp_path, arguments):
  folder, whole_log = whole_batches
  log = _train(records, tmp_path / 'train', *arguments)
  # The same variables, so that either run can go on as the other; two steps, in which the rate has fallen twice.
  expected, found = _tensors(folder), _tensors(tmp_path / 'train')
  start = checkpoint.variable_shapes(str(folder / 'model.ckpt-0'))
  assert set(found) == set(expected) == set(start) and found['global_step'] == 2
  for name, value in expected.items():
    np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
  np.testing.assert_allclose(tiny_run.losses(log), tiny_run.losses(whole_log), atol=2e-4)
  # Enough for a wrong mean to be seen.
  assert np.abs(expected['aspp0/weights/Momentum']).max() > 1e-3


def _session(train_op, *hooks):
  return tf.train.MonitoredSession(tf.train.ChiefSessionCreator(), hooks)


def _counter():
  """Tensor that is 1, 2, 3, ... in the runs of a session."""
  return tf.data.make_one_shot_iterator(tf.data.Dataset.range(1, 1000)).get_next()


def test_what_belongs_to_each_batch_is_done_with_each_batch():
  with tf.Graph().as_default():
    batch = tf.cast(_counter(), tf.float32)
    weight = tf.get_variable('weight', [2], initializer=tf.ones_initializer())
    seen = tf.get_variable('seen', [], initializer=tf.zeros_initializer(), trainable=False)
    see = seen.assign_add(1.0, read_value=False)
    accumulator = GradientAccumulator(3)
    loss, (grads, _) = accumulator.mean(batch, [[(batch * [1.0, 10.0], weight), (None, seen)]] * 2, [see])
    assert grads[1] == (None, seen)
    with tf.control_dependencies([see]):
      train_op = tf.identity(loss)
    with _session(train_op, accumulator) as session:
      for mean in (2.0, 5.0):
        run = session.run([train_op, grads[0][0]])
        np.testing.assert_allclose(run[0], mean)
        np.testing.assert_allclose(run[1], [mean, 10 * mean])
      assert session._tf_sess().run(seen) == 6  # pylint: disable=protected-access


def test_an_update_that_failed_leaves_nothing_to_the_next():
  with tf.Graph().as_default():
    batch = tf.cast(_counter(), tf.float32)
    weight = tf.get_variable('weight', [], initializer=tf.ones_initializer())
    broken = tf.Assert(tf.not_equal(batch, 2.0), ['broken'])
    accumulator = GradientAccumulator(3)
    loss, _ = accumulator.mean(batch, [[(batch, weight)]], [broken])
    with tf.Session() as session:
      session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
      context = tf.train.SessionRunContext(None, session)
      with pytest.raises(tf.errors.InvalidArgumentError, match='broken'):
        accumulator.before_run(context)
      accumulator.before_run(context)
      np.testing.assert_allclose(session.run(loss), (3 + 4 + 5) / 3)


def test_a_batch_that_overflows_costs_one_update_and_halves_the_scale_once():
  with tf.Graph().as_default():
    batch = _counter()
    weight = tf.get_variable('weight', [], initializer=tf.ones_initializer())
    scale = tf.mixed_precision.DynamicLossScale(1024.0)
    optimizer = tf.mixed_precision.MixedPrecisionLossScaleOptimizer(tf.train.GradientDescentOptimizer(1.0), scale)
    # The first of four batches overflows; the gradients of the others are their numbers.
    factor = tf.where(tf.equal(batch, 1), np.inf, tf.cast(batch, tf.float32))
    accumulator = GradientAccumulator(2)
    loss, (grads,) = accumulator.mean(weight, [optimizer.compute_gradients(factor * weight, [weight])], [])
    train_op = tf.group(optimizer.apply_gradients(grads), loss)
    state, states = [weight, scale()], []
    with _session(train_op, accumulator) as session:
      for _ in range(2):
        session.run(train_op)
        states.append(session._tf_sess().run(state))  # pylint: disable=protected-access
    np.testing.assert_allclose(states, [[1.0, 512.0], [1.0 - 3.5, 512.0]])


def test_float16(records, tmp_path):
  log = _train(records, tmp_path / 'train', '--mixed_precision=float16', '--accumulate_steps=2')
  assert len(tiny_run.losses(log)) == 2
  tensors = _tensors(tmp_path / 'train')
  assert tensors['current_loss_scale'] > 1 and np.abs(tensors['aspp0/weights/Momentum']).max() > 0


_WITH_PEAK_MEMORY = """
import atexit, pathlib, re
from deeplab import train
atexit.register(lambda: print(re.search(r'VmHWM:\\s*(\\d+) kB', pathlib.Path('/proc/self/status').read_text())[0]))
train.run()
"""


def _peak_megabytes(*arguments):
  # What getrusage tells also counts the process that started this one.
  output = subprocess.run([sys.executable, '-c', _WITH_PEAK_MEMORY, *arguments], capture_output=True, text=True, check=True,
                          env={**os.environ, 'CUDA_VISIBLE_DEVICES': ''}).stdout
  return int(re.search(r'VmHWM:\s*(\d+) kB', output)[1]) / 1024


@pytest.mark.full
@pytest.mark.skipif(sys.platform != 'linux', reason='reads /proc')
def test_memory_is_that_of_one_batch(records, tmp_path):
  one, accumulated, whole = (
      _peak_megabytes(f'--dataset_dir={records}', f'--train_logdir={tmp_path / str(index)}', '--model_variant=mobilenet_v2',
                      '--train_crop_size=321', '--fine_tune_batch_norm=false', '--training_number_of_steps=1', *arguments)
      for index, arguments in enumerate((('--train_batch_size=2',), ('--train_batch_size=2', '--accumulate_steps=4'),
                                         ('--train_batch_size=8',))))
  assert whole - one > 500
  # The sums and the noise of the allocator.
  assert accumulated - one < 0.2 * (whole - one)
