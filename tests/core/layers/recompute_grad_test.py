"""--recompute_grad: the same numbers from less memory."""

import os
import subprocess
import sys

import golden
import numpy as np
import pytest
import tiny_run
import training_graph

from deeplab import train
from deeplab.core.base.tf_compat import slim, tf

# The decoder of the first takes layer_4/expansion_output, from inside of a block; that of ResNet the end of a block.
_QUICK = [('mobilenet_v2_aspp_decoder', True), ('resnet_v1_18_beta', False)]
_CASES = [pytest.param(name, fine_tune, marks=[] if (name, fine_tune) in _QUICK else [pytest.mark.full],
                       id=f'{name}-{"fine_tune_bn" if fine_tune else "frozen_bn"}')
          for name in ('mobilenet_v2', 'mobilenet_v2_aspp_decoder', 'mobilenet_v3_small_seg', 'resnet_v1_18_beta', 'xception_41')
          for fine_tune in (True, False)]


@pytest.fixture(autouse=True)
def no_dropout(monkeypatch):
  monkeypatch.setattr(slim, 'dropout', lambda inputs, *args, **kwargs: inputs)


def _step(name, fine_tune_batch_norm, recompute_grad, dtype=tf.float32):
  """(loss, variable name -> gradient, variable name -> moving average after the step, number of update ops)."""
  with tf.Graph().as_default(), tf.Session() as session:
    graph = training_graph.build(training_graph.figures(name)['case'], fine_tune_batch_norm, dtype, recompute_grad)
    variables = tf.trainable_variables()
    gradients = tf.gradients(graph.cross_entropy + graph.penalty, variables)
    golden.assign_weights(session, tf.global_variables())
    loss, gradients, _ = session.run(
        [graph.cross_entropy, {v.op.name: g for v, g in zip(variables, gradients) if g is not None}, graph.update_ops])
    averages = session.run({v.op.name: v for v in tf.global_variables() if '/moving_' in v.op.name})
    return loss, gradients, averages, len(graph.update_ops)


def _assert_same(actual, expected, bound):
  """Compares arrays by their names, in units of the largest value of each, or of rounding where nothing else is in it."""
  assert list(actual) == list(expected)
  noise = 1e-6 * max(np.abs(value).max() for value in expected.values())
  for name, value in expected.items():
    np.testing.assert_allclose(actual[name], value, rtol=0, atol=bound * np.abs(value).max() + noise, err_msg=name)


@pytest.mark.parametrize('name, fine_tune_batch_norm', _CASES)
def test_same_step(name, fine_tune_batch_norm):
  loss, gradients, averages, num_update_ops = _step(name, fine_tune_batch_norm, recompute_grad=True)
  expected_loss, expected_gradients, expected_averages, expected_num_update_ops = _step(name, fine_tune_batch_norm, False)
  np.testing.assert_allclose(loss, expected_loss, rtol=1e-6)
  _assert_same(gradients, expected_gradients, 2e-4)
  assert num_update_ops == expected_num_update_ops
  _assert_same(averages, expected_averages, 1e-6)
  initial = {variable: golden.weights(variable, value.shape) for variable, value in averages.items()}
  assert all(np.array_equal(initial[variable], value) != fine_tune_batch_norm for variable, value in averages.items())


@pytest.mark.full
def test_same_step_in_bfloat16():
  loss, gradients, _, _ = _step('mobilenet_v2', True, True, tf.bfloat16)
  expected_loss, expected_gradients, _, _ = _step('mobilenet_v2', True, False, tf.bfloat16)
  np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
  assert {value.dtype for value in gradients.values()} == {np.dtype(np.float32)}
  # The gradients of a tensor used twice are added in another order, in eight bits of precision.
  norm, difference = (np.sqrt(sum(np.square(value).sum() for value in values)) for values in (
      expected_gradients.values(), [gradients[name] - value for name, value in expected_gradients.items()]))
  assert difference < 0.03 * norm


@pytest.mark.parametrize('name', ['resnet_v1_18_beta', pytest.param('mobilenet_v2', marks=pytest.mark.full)])
def test_variables_and_update_ops_are_golden(name):
  figures = training_graph.figures(name)
  with tf.Graph().as_default():
    graph = training_graph.build(figures['case'], True, recompute_grad=True)
    assert sorted([v.op.name, v.shape.as_list()] for v in tf.global_variables()) == sorted(
        row[:2] for row in figures['variables'])
    assert len(graph.update_ops) == figures['num_update_ops']
    num_penalties = len(tf.losses.get_regularization_losses())
    tf.gradients(graph.cross_entropy, tf.trainable_variables())
    assert num_penalties == len(tf.losses.get_regularization_losses()) == sum('r' in row[2] for row in figures['variables'])


def _needs(op):
  """All ops that run before this one."""
  found, pending = set(), [op]
  while pending:
    current = pending.pop()
    for needed in (*(tensor.op for tensor in current.inputs), *current.control_inputs):
      if needed not in found:
        found.add(needed)
        pending.append(needed)
  return found


def _convolutions(ops):
  return [op for op in ops if op.type in ('Conv2D', 'DepthwiseConv2dNative')]


def test_recomputed_ops_wait_for_the_gradient_of_their_block():
  with tf.Graph().as_default() as graph:
    built = training_graph.build(training_graph.figures('mobilenet_v2')['case'], True, recompute_grad=True)
    forward = graph.get_operations()
    tf.gradients(built.cross_entropy, tf.trainable_variables())
    recomputed = _convolutions(set(graph.get_operations()) - set(forward))
    assert len(recomputed) == len(_convolutions(op for op in forward if op.name.startswith('MobilenetV2/'))) == 51
    for op in recomputed:
      assert any(needed.type == 'SparseSoftmaxCrossEntropyWithLogits' for needed in _needs(op)), op.name


@pytest.mark.parametrize('clones', [1, 2])
def test_same_training_run(clones, tmp_path):
  data = tiny_run.write_records(tmp_path / 'data')
  weights = []
  for switch in ('--recompute_grad', '--norecompute_grad'):
    folder = tmp_path / switch
    code, log = tiny_run.run(train, *tiny_run.FLAGS, f'--dataset_dir={data}', f'--train_logdir={folder}', switch,
                             f'--num_clones={clones}', '--clone_on_cpu', '--train_batch_size=4', '--fine_tune_batch_norm')
    assert code == 0, log
    reader = tf.train.load_checkpoint(str(folder))
    weights.append({name: reader.get_tensor(name) for name in sorted(reader.get_variable_to_shape_map())})
  _assert_same(*weights, 1e-4)


@pytest.mark.parametrize('arguments, message', [
    (['--model_variant=nas_hnasnet'], '--recompute_grad has no effect: the paths that the NAS networks drop at random'),
    (['--xla'], '--xla would undo --recompute_grad: give one of them.'),
])
def test_refused(arguments, message):
  code, log = tiny_run.run(train, *tiny_run.FLAGS, '--dataset_dir=none', '--train_logdir=none', '--recompute_grad', *arguments)
  assert code == 1
  assert message in log


@pytest.mark.full
@pytest.mark.skipif(not sys.platform.startswith('linux'), reason='reads /proc, and tunes the GNU allocator')
def test_takes_less_memory():
  # Large blocks go back to the system when they are freed.
  environment = {**os.environ, 'CUDA_VISIBLE_DEVICES': '', 'MALLOC_MMAP_THRESHOLD_': '65536'}
  recomputed, kept = (int(subprocess.run([sys.executable, training_graph.__file__, recompute], capture_output=True, text=True,
                                         check=True, env=environment).stdout.split()[-1]) for recompute in ('true', 'false'))
  assert recomputed < 0.75 * kept
