import functools

import golden
import numpy as np
import pytest

from deeplab import common
from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import slim, tf
from deeplab.core.layers import layers
from deeplab.core.networks import xception

# xception_41 with one middle module in place of eight.
_SHORT = functools.partial(
    xception.xception_41, rows=(*xception._ENTRY_FLOW, xception._middle_flow(1), xception._EXIT_FLOW))  # pylint: disable=protected-access
_TRAINING = layers.TrainingState(weight_decay=4e-5, is_training=True, fine_tune_batch_norm=True)
_EVALUATION = layers.TrainingState()


def _build(network, images, output_stride=16, training=_TRAINING, **fields):
  options = common.ModelOptions({common.OUTPUT_TYPE: 21}, output_stride=output_stride, **fields)
  return network(images, options, training)


def _random_images(height, width, limit=1.0):
  return np.random.RandomState(0).uniform(-limit, limit, [1, height, width, 3]).astype(np.float32)


# Facts of the published networks: variables, regularised variables, batch norm updates.
@pytest.mark.parametrize('variant, counts, entry_blocks', [
    ('xception_41', (420, 45, 168), (2, 3)), pytest.param('xception_65', (660, 69, 264), (2, 3), marks=pytest.mark.full),
    pytest.param('xception_71', (730, 77, 292), (3, 5), marks=pytest.mark.full)])
def test_counts_and_end_points_of_the_decoder(variant, counts, entry_blocks):
  with tf.Graph().as_default():
    features, end_points = _build(getattr(xception, variant), tf.zeros([1, 33, 33, 3]), output_stride=32)
    assert (len(tf.global_variables()), len(tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)),
            len(tf.get_collection(tf.GraphKeys.UPDATE_OPS))) == counts
    assert set(slim.get_model_variables()) == set(tf.global_variables())
  modules = [f'{variant}/entry_flow/block{i}' for i in entry_blocks] + [f'{variant}/exit_flow/block1']
  assert features.shape.as_list() == [1, 2, 2, 2048]
  assert [end_points[f'{module}/unit_1/xception_module/separable_conv2_pointwise'].shape.as_list() for module in modules] == [
      [1, 9, 9, 256], [1, 5, 5, 728], [1, 3, 3, 1024]]
  assert all(name.startswith(variant + '/') for name in end_points)


def _run(bounded):
  """Name below the root scope -> value of every end point, and the operations; input so large that bounds are reached."""
  with tf.Graph().as_default() as graph, tf.Session() as session:
    images = tf.constant(_random_images(33, 35, limit=9))
    _, end_points = _build(_SHORT, images, 32, _EVALUATION, use_bounded_activation=bounded)
    golden.assign_weights(session, tf.global_variables())
    values = session.run(end_points)
  return {name.replace('xception_41/', ''): value for name, value in values.items()}, graph.get_operations()


def _parts(values, block):
  """Output, third pointwise and first depthwise convolution of the module."""
  module = f'{block}/unit_1/xception_module'
  return values[module], values[module + '/separable_conv3_pointwise'], values[module + '/separable_conv1_depthwise']


def _num_pads(operations):
  return sum(op.type == 'Pad' for op in operations)


def test_modules():
  values, operations = _run(bounded=False)
  assert values['entry_flow/conv1_2'].min() == 0 and values['entry_flow/conv1_2'].max() > 6
  # Entry: linear convolutions, the input added through a convolution, nothing after the sum.
  output, conv, depthwise = _parts(values, 'entry_flow/block3')
  assert depthwise.min() < 0 and conv.min() < 0 and output.min() < 0
  np.testing.assert_allclose(output, conv + values['entry_flow/block3/unit_1/xception_module/shortcut'], rtol=1e-5, atol=1e-5)
  # Middle: the input itself added.
  output, conv, _ = _parts(values, 'middle_flow/block1')
  np.testing.assert_allclose(output, conv + values['entry_flow/block3'], rtol=1e-5, atol=1e-5)
  np.testing.assert_array_equal(values['middle_flow/block1'], output)
  # Last: activations inside, nothing added.
  output, conv, depthwise = _parts(values, 'exit_flow/block2')
  assert depthwise.min() == 0 and conv.min() == 0
  np.testing.assert_array_equal(output, conv)
  # Every strided convolution, the first one included.
  assert _num_pads(operations) == 5
  assert {op.get_attr('epsilon') for op in operations if op.type.startswith('FusedBatchNorm')} == {np.float32(0.001)}


def test_bounded_modules():
  values, operations = _run(bounded=True)
  assert (values['entry_flow/conv1_2'].min(), values['entry_flow/conv1_2'].max()) == (0, 6)
  output, conv, depthwise = _parts(values, 'entry_flow/block2')
  shortcut = values['entry_flow/block2/unit_1/xception_module/shortcut']
  assert (depthwise.min(), depthwise.max()) == (-6, 6) and shortcut.max() > 6
  np.testing.assert_allclose(output, np.clip(conv + np.clip(shortcut, -6, 6), 0, 6), rtol=1e-5, atol=1e-5)
  output, conv, _ = _parts(values, 'middle_flow/block1')
  np.testing.assert_allclose(output, np.clip(conv + values['entry_flow/block3'], 0, 6), rtol=1e-5, atol=1e-5)
  output, conv, depthwise = _parts(values, 'exit_flow/block2')
  assert depthwise.min() == 0 and depthwise.max() <= 6
  np.testing.assert_array_equal(output, conv)
  # Only the first convolution pads explicitly.
  assert _num_pads(operations) == 1


def _recorded_strides_and_rates(monkeypatch, network, **options):
  """Scope below the root, without the parts that all modules share -> (stride, rate) of every depthwise convolution."""
  seen = {}
  depthwise_conv2d_same = layers.depthwise_conv2d_same

  def recorder(inputs, kernel_size, stride=1, rate=1, scope=None):
    _, flow, block, _, _ = tf.get_variable_scope().name.split('/')
    seen[f'{flow}/{block}/{scope}'.replace('_flow/block', '').replace('separable_conv', '')] = (stride, rate)
    return depthwise_conv2d_same(inputs, kernel_size, stride, rate, scope)

  monkeypatch.setattr(layers, 'depthwise_conv2d_same', recorder)
  with tf.Graph().as_default():
    _build(network, tf.zeros([1, 33, 33, 3]), **options)
  return seen


def test_strides_and_rates_at_output_stride_8(monkeypatch):
  seen = _recorded_strides_and_rates(monkeypatch, _SHORT, output_stride=8, multi_grid=[1, 2, 4])
  assert [seen[f'entry1/{i}_depthwise'] for i in (1, 2, 3)] == [(1, 1), (1, 1), (2, 1)]
  assert [seen[f'entry{i}/3_depthwise'] for i in (1, 2, 3)] == [(2, 1), (2, 1), (1, 1)]
  assert [seen[f'middle1/{i}_depthwise'] for i in (1, 2, 3)] == [(1, 2)] * 3
  assert [seen[f'exit1/{i}_depthwise'] for i in (1, 2, 3)] == [(1, 2)] * 3
  assert [seen[f'exit2/{i}_depthwise'] for i in (1, 2, 3)] == [(1, 4), (1, 8), (1, 16)]
  assert len(seen) == 3 * (3 + 1 + 2)


@pytest.mark.full
def test_strides_and_rates_of_the_long_entry_flow(monkeypatch):
  seen = _recorded_strides_and_rates(monkeypatch, xception.xception_71, output_stride=16)
  assert [seen[f'entry{i}/3_depthwise'] for i in range(1, 6)] == [(2, 1), (1, 1), (2, 1), (1, 1), (2, 1)]
  assert seen['exit1/3_depthwise'] == (1, 1)
  assert seen['exit2/1_depthwise'] == (1, 2)


# The padding of bounded networks depends on the size, so that only odd sizes have the property.
@pytest.mark.parametrize('bounded, sizes', [
    (False, [(33, 49), (34, 48)]), pytest.param(True, [(33, 65)], marks=pytest.mark.full)])
def test_dense_features_subsampled_are_those_of_the_nominal_stride(bounded, sizes):
  with tf.Graph().as_default(), tf.Session() as session:
    images = tf.placeholder(tf.float32, [1, None, None, 3])
    features = []
    for output_stride in (32, 16, 8):
      with tf.variable_scope('', reuse=tf.AUTO_REUSE):
        features.append(_build(_SHORT, images, output_stride, _EVALUATION, multi_grid=[1, 2, 1],
                               use_bounded_activation=bounded)[0])
    golden.assign_weights(session, tf.global_variables())
    for size in sizes:
      nominal, dense, denser = session.run(features, {images: _random_images(*size)})
      assert nominal.shape[1:3] == (2, 2 if size[1] < 65 else 3) and nominal.max() > 0
      np.testing.assert_allclose(dense[:, ::2, ::2], nominal, rtol=1e-4, atol=1e-5 * nominal.max())
      np.testing.assert_allclose(denser[:, ::4, ::4], nominal, rtol=1e-4, atol=1e-5 * nominal.max())


def test_wrong_multi_grid_is_refused():
  with tf.Graph().as_default(), pytest.raises(InputError, match='--multi_grid=1,2: xception_41 takes 3 rates'):
    _build(xception.xception_41, tf.zeros([1, 33, 33, 3]), multi_grid=[1, 2])


@pytest.mark.parametrize('output_stride', [1, 12, 64])
def test_unreachable_output_stride_is_refused(output_stride):
  with tf.Graph().as_default(), pytest.raises(InputError, match='xception_71 can have 2, 4, 8, 16, 32'):
    _build(xception.xception_71, tf.zeros([1, 33, 33, 3]), output_stride)
