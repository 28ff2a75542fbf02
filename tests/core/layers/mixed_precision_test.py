"""--mixed_precision: networks computed in a 16-bit type whose weights, statistics, loss and optimizer are float32."""

import functools
import subprocess
import sys

import golden
import numpy as np
import pytest
import tiny_run
import training_graph

from deeplab import eval as eval_program
from deeplab import train
from deeplab.core.base.tf_compat import slim, tf
from deeplab.core.layers import layers, mixed_precision

_TYPES = (tf.bfloat16, tf.float16)
# The gradient of the biases is not small, whatever the network sees.
_HEAD, _BIASES = 'logits/semantic/weights', 'logits/semantic/biases'


# Networks.


def _cases():
  """Quick: the first with trained and frozen batch norm in bfloat16, and one small network in float16."""
  quick = [('mobilenet_v2', True, tf.bfloat16), ('resnet_v1_18_beta', False, tf.bfloat16),
           ('mobilenet_v3_small_seg', True, tf.float16)]
  # With frozen batch norm the losses of the deep networks are in the thousands: their logits overflow 8 bits of precision.
  others = [(name, fine_tune, dtype) for dtype in _TYPES for name, fine_tune in (
      ('mobilenet_v2', True), ('mobilenet_v2', False), ('mobilenet_v3_small_seg', True), ('resnet_v1_18_beta', True),
      ('xception_41', True), ('nas_pnasnet', True), ('nas_hnasnet', True))]
  for case in [*quick, *(case for case in others if case not in quick)]:
    name, fine_tune, dtype = case
    yield pytest.param(*case, marks=[] if case in quick else [pytest.mark.full],
                       id=f'{name}-{"fine_tune_bn" if fine_tune else "frozen_bn"}-{dtype.name}')


def _types_of(op_type):
  """Data types of all ops of this type in the default graph."""
  return {op.get_attr('T') for op in tf.get_default_graph().get_operations() if op.type == op_type}


@pytest.mark.parametrize('name, fine_tune_batch_norm, dtype', list(_cases()))
def test_network(name, fine_tune_batch_norm, dtype, monkeypatch):
  monkeypatch.setattr(slim, 'dropout', lambda inputs, *args, **kwargs: inputs)
  figures = training_graph.figures(name)
  expected = figures['train_fine_tune_bn' if fine_tune_batch_norm else 'train_frozen_bn']
  with tf.Graph().as_default(), tf.Session() as session:
    graph = training_graph.build(figures['case'], fine_tune_batch_norm, dtype)
    variables = tf.global_variables()
    assert {variable.dtype.base_dtype for variable in variables} == {tf.float32}
    assert sorted([v.op.name, v.shape.as_list()] for v in variables) == sorted(row[:2] for row in figures['variables'])
    assert len(tf.losses.get_regularization_losses()) == sum('r' in row[2] for row in figures['variables'])
    assert len(graph.update_ops) == (figures['num_update_ops'] if fine_tune_batch_norm else 0)
    assert _types_of('Conv2D') == {dtype}
    assert graph.logits.dtype == graph.cross_entropy.dtype == graph.penalty.dtype == tf.float32
    golden.assign_weights(session, variables)
    loss, penalty = session.run([graph.cross_entropy, graph.penalty])
  np.testing.assert_allclose(loss, expected['cross_entropy'], rtol=2e-2)
  np.testing.assert_allclose(penalty, expected['regularization'], rtol=1e-4)


def _small_layers(dtype):
  """A depthwise and a full convolution, as model.py runs them; the result."""
  images = tf.cast(tf.fill([2, 5, 5, 4], 0.5), dtype)
  training = layers.TrainingState(is_training=True, fine_tune_batch_norm=True)
  with tf.variable_scope('net', custom_getter=mixed_precision.float32_getter), slim.arg_scope(mixed_precision.arg_scope(dtype)), \
      slim.arg_scope(layers.head_arg_scope(training)):
    return layers.split_separable_conv2d(images, 3, scope='conv')


@pytest.mark.parametrize('dtype', _TYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize('gpus, depthwise', [([], tf.float32), (['gpu'], None)], ids=['cpu', 'gpu'])
def test_depthwise_convolutions_are_float32_without_gpu(dtype, gpus, depthwise, monkeypatch):
  monkeypatch.setattr(tf.config, 'list_physical_devices', lambda kind: gpus)
  with tf.Graph().as_default():
    result = _small_layers(dtype)
    assert _types_of('DepthwiseConv2dNative') == {depthwise or dtype}
    assert _types_of('Conv2D') == {dtype}
    # What lies between them is in the 16-bit type either way.
    assert _types_of('FusedBatchNormV3') == {dtype}
    assert result.dtype == dtype
    gradients = tf.gradients(tf.reduce_sum(tf.cast(result, tf.float32)), tf.trainable_variables())
    assert {gradient.dtype for gradient in gradients} == {tf.float32}


@pytest.mark.parametrize('layer', [layers.depthwise_conv2d, slim.separable_conv2d], ids=['outer', 'inner'])
def test_depthwise_convolution_keeps_its_batch_norm(layer, monkeypatch):
  monkeypatch.setattr(tf.config, 'list_physical_devices', lambda kind: [])
  with tf.Graph().as_default():
    with slim.arg_scope(mixed_precision.arg_scope(tf.bfloat16)), slim.arg_scope([layer], normalizer_fn=layers.batch_norm):
      layers.depthwise_conv2d(tf.zeros([1, 5, 5, 4], tf.bfloat16), 3, scope='with')
      layers.depthwise_conv2d(tf.zeros([1, 5, 5, 4], tf.bfloat16), 3, normalizer_fn=None, scope='without')
    names = [variable.op.name for variable in tf.global_variables()]
  assert 'with/BatchNorm/moving_mean' in names
  assert 'without/BatchNorm/moving_mean' not in names


def test_penalty_is_that_of_the_float32_weights():
  with tf.Graph().as_default(), tf.Session() as session:
    with tf.variable_scope('', custom_getter=mixed_precision.float32_getter):
      weights = tf.get_variable('weights', [2], tf.bfloat16, tf.constant_initializer(1.001),
                                regularizer=layers.l2_regularizer(0.5))
    session.run(tf.global_variables_initializer())
    assert weights.dtype == tf.bfloat16 and session.run(weights).astype(np.float32).tolist() == [1, 1]
    # 0.5 * (1.001 ** 2 + 1.001 ** 2) / 2.
    np.testing.assert_allclose(session.run(tf.losses.get_regularization_loss()), 0.5 * 1.001 ** 2, rtol=1e-6)


def test_float32_is_as_without():
  with tf.Graph().as_default():
    with tf.variable_scope('', custom_getter=mixed_precision.float32_getter):
      weights = tf.get_variable('weights', [2], tf.float32)
    assert weights is tf.global_variables()[0]
    assert mixed_precision.arg_scope(tf.float32) == {}
    assert not mixed_precision.is_mixed(tf.float32)


# Runs.


@pytest.fixture(scope='module')
def records(tmp_path_factory):
  return tiny_run.write_records(tmp_path_factory.mktemp('data') / 'records')


def _train(records, folder, *arguments):
  return tiny_run.run(train, *tiny_run.FLAGS, f'--dataset_dir={records}', f'--train_logdir={folder}', *arguments)


def _train_in_process(records, folder, *arguments):
  process = subprocess.run([sys.executable, tiny_run.__file__, *tiny_run.FLAGS, f'--dataset_dir={records}',
                            f'--train_logdir={folder}', *arguments], capture_output=True, text=True, check=False)
  assert process.returncode == 0, process.stderr
  assert 'Finished at step 2.' in process.stderr


def _tensors(folder, step):
  reader = tf.train.load_checkpoint(f'{folder}/model.ckpt-{step}')
  return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def _assert_sound(tensors):
  assert {value.dtype for name, value in tensors.items() if name not in ('global_step', 'good_steps')} == {np.dtype(np.float32)}
  assert all(np.isfinite(value).all() for value in tensors.values())


def _assert_evaluates(records, folder, tmp_path):
  """eval.py, which knows nothing of 16 bits, takes the newest checkpoint."""
  code, log = tiny_run.run(eval_program, f'--dataset_dir={records}', '--eval_split=train', f'--checkpoint_dir={folder}',
                           f'--eval_logdir={tmp_path}/eval', '--eval_crop_size=65,65', '--max_number_of_evaluations=1')
  assert not code, log
  assert 'mIoU' in log


def test_bfloat16_run_and_float32_run_go_on_from_each_other(records, tmp_path):
  folder = tmp_path / 'train'
  _train_in_process(records, folder, '--mixed_precision=bfloat16')
  for last_step, arguments in ((3, []), (4, ['--mixed_precision=bfloat16'])):
    code, log = _train(records, folder, f'--training_number_of_steps={last_step}', *arguments)
    assert code == 0, log
    assert f'Training from step {last_step - 1} to {last_step}' in log
  tensors = _tensors(folder, 4)
  _assert_sound(tensors)
  assert not np.array_equal(tensors[_BIASES], _tensors(folder, 2)[_BIASES])
  # A step in bfloat16 does not round the weights.
  assert not np.array_equal(tensors[_HEAD], tensors[_HEAD].astype(tf.bfloat16.as_numpy_dtype).astype(np.float32))
  _assert_evaluates(records, folder, tmp_path)


def test_float16_run_gives_weights_to_a_float32_run(records, tmp_path):
  folder = tmp_path / 'train'
  _train_in_process(records, folder, '--mixed_precision=float16')
  tensors = _tensors(folder, 2)
  _assert_sound(tensors)
  assert tensors['good_steps'] == 2 and tensors['current_loss_scale'] == 2 ** 15
  assert not np.array_equal(tensors[_BIASES], _tensors(folder, 0)[_BIASES])
  _assert_evaluates(records, folder, tmp_path)
  code, log = _train(records, tmp_path / 'next', f'--tf_initial_checkpoint={folder}/model.ckpt-2')
  assert code == 0, log
  np.testing.assert_array_equal(_tensors(tmp_path / 'next', 0)[_HEAD], tensors[_HEAD])
  code, log = _train(records, tmp_path / 'next', '--mixed_precision=float16', '--training_number_of_steps=3')
  assert code == 1
  assert 'lacks 2 variables of the optimizer' in log and '--tf_initial_checkpoint=' in log


@pytest.mark.parametrize('optimizer, clones', [('momentum', 2), ('adam', 1)])
def test_overflow_halves_the_scale_and_leaves_the_weights(optimizer, clones, records, tmp_path, monkeypatch):
  # The gradients of a loss of about 1, times 2 ** 40, overflow float16.
  monkeypatch.setattr(tf.mixed_precision, 'DynamicLossScale',
                      functools.partial(tf.mixed_precision.DynamicLossScale, initial_loss_scale=2.0 ** 40))
  code, log = _train(records, tmp_path, '--mixed_precision=float16', f'--optimizer={optimizer}', f'--num_clones={clones}',
                     '--clone_on_cpu', '--training_number_of_steps=1')
  assert code == 0, log
  before, after = (_tensors(tmp_path, step) for step in (0, 1))
  changed = {name for name in before if not np.array_equal(before[name], after[name])}
  assert changed == {'current_loss_scale', 'global_step'}
  assert after['current_loss_scale'] == 2.0 ** 39


def test_update_of_float16_is_that_of_the_unscaled_gradient(records, tmp_path):
  gradients = []
  for name, arguments in (('float32', []), ('float16', ['--mixed_precision=float16'])):
    code, log = _train(records, tmp_path / name, '--training_number_of_steps=1', '--optimizer=momentum', *arguments)
    assert code == 0, log
    # After one step it is the gradient. Inside of the untrained network numbers are too small for 16 bits to compare.
    gradients.append(_tensors(tmp_path / name, 1)[_BIASES + '/Momentum'])
  assert np.abs(gradients[0]).max() > 0.1
  np.testing.assert_allclose(gradients[1], gradients[0], rtol=1e-2, atol=1e-4)


# Flags.


@pytest.mark.parametrize('arguments, message', [
    (['--mixed_precision=bfloat16', '--quantize_delay_step=0'],
     '--mixed_precision=bfloat16 does not go with --quantize_delay_step: 8-bit arithmetic is simulated in float32.'),
    (['--mixed_precision=float16', '--sync_replicas', '--ps_hosts=a:1', '--worker_hosts=b:1,c:1', '--job_name=worker'],
     '--mixed_precision=float16 does not go with --sync_replicas'),
    (['--mixed_precision=float8'], 'mixed_precision'),
])
def test_refused(arguments, message):
  code, log = _check(*arguments)
  assert code == 1
  assert message in log


def _check(*arguments):
  """Exit code and log of a command line that is looked at, and no more."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(train, 'main', lambda argv: train.train_flags.check())
    return tiny_run.run(train, '--dataset_dir=none', '--train_logdir=none', '--train_batch_size=8', *arguments)


@pytest.mark.parametrize('arguments, has_bfloat16, warning', [
    (['--mixed_precision=float16'], True, '--mixed_precision=float16 will be slower than float32: this CPU has no units for it.'),
    (['--mixed_precision=bfloat16'], False, '--mixed_precision=bfloat16 will be slower than float32'),
    (['--mixed_precision=bfloat16', '--model_variant=mobilenet_v2'], True, 'may be slower than float32: on a CPU'),
    (['--mixed_precision=bfloat16', '--model_variant=xception_65'], True, None),
    ([], False, None),
])
def test_warning_of_slow_types(arguments, has_bfloat16, warning, monkeypatch):
  monkeypatch.setattr(tf.config, 'list_physical_devices', lambda kind: [])
  monkeypatch.setattr(mixed_precision, 'cpu_has_bfloat16', lambda: has_bfloat16)
  code, log = _check(*arguments)
  assert not code, log
  assert warning is None or warning in log
  assert ('slower than float32' in log) == (warning is not None)


@pytest.mark.parametrize('line, expected', [
    ('flags : fpu sse avx512_bf16 avx512f', True), ('flags : fpu amx_bf16', True), ('Features : asimd bf16', True),
    ('flags : fpu avx2 avx512f', False)])
def test_cpu_has_bfloat16(line, expected, tmp_path, monkeypatch):
  (tmp_path / 'cpuinfo').write_text(f'processor : 0\n{line}\n')
  monkeypatch.setattr(mixed_precision, '_CPU_INFO', str(tmp_path / 'cpuinfo'))
  assert mixed_precision.cpu_has_bfloat16() is expected
  monkeypatch.setattr(mixed_precision, '_CPU_INFO', str(tmp_path / 'none'))
  assert mixed_precision.cpu_has_bfloat16()
