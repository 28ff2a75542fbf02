import functools

import numpy as np
import pytest

from deeplab import common
from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import slim, tf
from deeplab.core.layers import layers
from deeplab.core.networks import resnet_v1_beta

_TRAINING = layers.TrainingState(weight_decay=4e-5, is_training=True, fine_tune_batch_norm=True)
_EVALUATION = layers.TrainingState()


def _build(network, images, output_stride=16, training=_TRAINING, **fields):
  options = common.ModelOptions({common.OUTPUT_TYPE: 21}, output_stride=output_stride, **fields)
  return network(images, options, training)


def _random_images(height, width):
  return np.random.RandomState(0).uniform(-1, 1, [1, height, width, 3]).astype(np.float32)


# Facts of the published networks: variables, regularised variables, batch norm updates, convolutions as shortcuts.
@pytest.mark.parametrize('variant, counts', [
    ('resnet_v1_18', (100, 20, 40, 3)), ('resnet_v1_18_beta', (115, 23, 46, 4)), ('resnet_v1_50', (265, 53, 106, 4)),
    ('resnet_v1_50_beta', (275, 55, 110, 4)), pytest.param('resnet_v1_101', (520, 104, 208, 4), marks=pytest.mark.full),
    pytest.param('resnet_v1_101_beta', (530, 106, 212, 4), marks=pytest.mark.full)])
def test_counts_and_end_points_of_the_decoder(variant, counts):
  with tf.Graph().as_default():
    features, end_points = _build(getattr(resnet_v1_beta, variant), tf.zeros([1, 33, 33, 3]), output_stride=32)
    assert (len(tf.global_variables()), len(tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)),
            len(tf.get_collection(tf.GraphKeys.UPDATE_OPS)), sum(name.endswith('/shortcut') for name in end_points)) == counts
    assert set(slim.get_model_variables()) == set(tf.global_variables())
  scope = variant.replace('_beta', '')
  if '18' in variant:
    units, depths, depth = [f'block{i}/unit_1/lite_bottleneck_v1/conv2' for i in (1, 2, 3)], (64, 128, 256), 512
  else:
    places = ((1, 2), (2, 3), (3, 22 if '101' in variant else 5))
    units, depths, depth = [f'block{i}/unit_{j}/bottleneck_v1/conv3' for i, j in places], (256, 512, 1024), 2048
  assert features.shape.as_list() == [1, 2, 2, depth]
  assert [end_points[f'{scope}/{unit}'].shape.as_list() for unit in units] == [
      [1, side, side, channels] for side, channels in zip((9, 5, 3), depths, strict=True)]
  assert all(name.startswith(scope + '/') for name in end_points)


def test_unit_is_relu_of_shortcut_and_residual():
  with tf.Graph().as_default(), tf.Session() as session:
    tf.set_random_seed(0)
    network = functools.partial(resnet_v1_beta.resnet_v1_50, num_units=(3, 1, 1, 1))
    _, end_points = _build(network, tf.constant(_random_images(33, 36)), 32, _EVALUATION, multi_grid=[1])
    session.run(tf.global_variables_initializer())
    values = {name.replace('resnet_v1_50/', ''): value for name, value in session.run(end_points).items()}
  unit_1, unit_2, unit_3 = (f'block1/unit_{i}/bottleneck_v1' for i in (1, 2, 3))
  for unit, shortcut in [(unit_1, values[unit_1 + '/shortcut']), (unit_2, values[unit_1]), (unit_3, values[unit_2][:, ::2, ::2])]:
    residual = values[unit + '/conv3']
    assert residual.min() < 0 <= values[unit + '/conv2'].min()
    np.testing.assert_allclose(values[unit], np.maximum(shortcut + residual, 0), rtol=1e-5, atol=1e-5)
  np.testing.assert_array_equal(values['block1'], values[unit_3])


def _recorded_strides_and_rates(monkeypatch, network, **options):
  """Last parts of the scope -> (stride, rate) of every convolution above 1x1 in the blocks."""
  seen = {}
  conv2d_same = layers.conv2d_same

  def recorder(inputs, num_outputs, kernel_size, stride=1, rate=1, scope=None, **kwargs):
    _, *block = tf.get_variable_scope().name.split('/')
    if block:
      seen[block[0], block[1], scope] = (stride, rate)
    return conv2d_same(inputs, num_outputs, kernel_size, stride, rate, scope, **kwargs)

  monkeypatch.setattr(layers, 'conv2d_same', recorder)
  with tf.Graph().as_default():
    _build(network, tf.zeros([1, 33, 33, 3]), **options)
  return seen


def test_strides_and_rates_of_bottlenecks(monkeypatch):
  seen = _recorded_strides_and_rates(monkeypatch, resnet_v1_beta.resnet_v1_50, output_stride=8, multi_grid=[1, 2, 4])
  assert [seen['block1', f'unit_{i}', 'conv2'] for i in (1, 2, 3)] == [(1, 1), (1, 1), (2, 1)]
  assert {seen['block2', f'unit_{i}', 'conv2'] for i in range(1, 5)} == {(1, 1)}
  assert {seen['block3', f'unit_{i}', 'conv2'] for i in range(1, 7)} == {(1, 2)}
  assert [seen['block4', f'unit_{i}', 'conv2'] for i in (1, 2, 3)] == [(1, 4), (1, 8), (1, 16)]


def test_strides_and_rates_of_lite_units(monkeypatch):
  seen = _recorded_strides_and_rates(monkeypatch, resnet_v1_beta.resnet_v1_18, output_stride=16, multi_grid=[1, 3])
  assert [seen['block2', 'unit_2', conv] for conv in ('conv1', 'conv2')] == [(1, 1), (2, 1)]
  assert [seen['block3', 'unit_2', conv] for conv in ('conv1', 'conv2')] == [(1, 1), (1, 1)]
  assert [seen['block4', unit, conv] for unit in ('unit_1', 'unit_2') for conv in ('conv1', 'conv2')] == [
      (1, 2), (1, 2), (1, 6), (1, 6)]


@pytest.mark.parametrize('network, multi_grid', [
    (resnet_v1_beta.resnet_v1_18, [1, 2]),
    (functools.partial(resnet_v1_beta.resnet_v1_50_beta, num_units=(1, 2, 1, 3)), [1, 2, 1])])
def test_dense_features_subsampled_are_those_of_the_nominal_stride(network, multi_grid):
  with tf.Graph().as_default(), tf.Session() as session:
    tf.set_random_seed(0)
    images = tf.placeholder(tf.float32, [1, None, None, 3])
    features = []
    for output_stride in (32, 16, 8):
      with tf.variable_scope('', reuse=tf.AUTO_REUSE):
        features.append(_build(network, images, output_stride, _EVALUATION, multi_grid=multi_grid)[0])
    session.run(tf.global_variables_initializer())
    for size in [(33, 49), (34, 48)]:
      nominal, dense, denser = session.run(features, {images: _random_images(*size)})
      assert nominal.shape[1:3] == (2, 2) and nominal.max() > 0
      np.testing.assert_allclose(dense[:, ::2, ::2], nominal, rtol=1e-4, atol=1e-5 * nominal.max())
      np.testing.assert_allclose(denser[:, ::4, ::4], nominal, rtol=1e-4, atol=1e-5 * nominal.max())


def test_batch_norm_numbers():
  with tf.Graph().as_default() as graph:
    _build(resnet_v1_beta.resnet_v1_18, tf.zeros([2, 33, 33, 3]))
    epsilons = [op.get_attr('epsilon') for op in graph.get_operations() if op.type.startswith('FusedBatchNorm')]
    np.testing.assert_allclose(epsilons, [1.001e-5] * 20, rtol=1e-6)
    variance = graph.get_tensor_by_name('resnet_v1_18/conv1/BatchNorm/moving_variance/Read/ReadVariableOp:0')
    with tf.Session() as session:
      session.run(tf.global_variables_initializer())
      session.run(tf.get_collection(tf.GraphKeys.UPDATE_OPS))
      # It starts at 1, and a black batch has none.
      np.testing.assert_allclose(session.run(variance), np.full(64, 0.95), rtol=1e-6)


@pytest.mark.parametrize('variant, multi_grid, example', [('resnet_v1_18', [1, 2, 4], '1,2'), ('resnet_v1_101', [1, 2], '1,2,4')])
def test_wrong_multi_grid_is_refused(variant, multi_grid, example):
  with tf.Graph().as_default(), pytest.raises(InputError, match=f'--multi_grid=.*for example {example}$'):
    _build(getattr(resnet_v1_beta, variant), tf.zeros([1, 33, 33, 3]), multi_grid=multi_grid)


@pytest.mark.parametrize('output_stride', [2, 12, 64])
def test_unreachable_output_stride_is_refused(output_stride):
  with tf.Graph().as_default(), pytest.raises(InputError, match='resnet_v1_50 can have 4, 8, 16, 32'):
    _build(resnet_v1_beta.resnet_v1_50, tf.zeros([1, 33, 33, 3]), output_stride)
