"""The MobileNet rows and their runner: widths, strides, rates, end points, dense features."""

import golden
import numpy as np
import pytest

from deeplab import common
from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import slim, tf
from deeplab.core.layers import layers
from deeplab.core.networks.mobilenet import mobilenet, mobilenet_v2, mobilenet_v3

_ROWS = {
    'v2': mobilenet_v2.ROWS,
    'large_seg': mobilenet_v3.LARGE_SEG_ROWS,
    'small_seg': mobilenet_v3.SMALL_SEG_ROWS,
    'edgetpu': mobilenet_v3.EDGETPU_ROWS,
}
_BUILD = {
    'v2': mobilenet_v2.mobilenet_v2,
    'large_seg': mobilenet_v3.large_seg,
    'small_seg': mobilenet_v3.small_seg,
    'edgetpu': mobilenet_v3.edgetpu,
}


def _build(name, images, training=None, **options):
  options = common.ModelOptions({common.OUTPUT_TYPE: 21}, **options)
  return _BUILD[name](images, options, training or layers.TrainingState())


def _build_rows(rows, images, training):
  return mobilenet.mobilenet(images, 'Net', rows, common.ModelOptions({common.OUTPUT_TYPE: 21}, output_stride=None), training)


@pytest.mark.parametrize('channels,divisor,minimum,expected', [
    (16, 8, None, 16),
    (20, 8, None, 24),  # half way goes up
    (17.7, 8, None, 16),
    (18, 8, None, 24),  # 16 would lose more than a tenth
    (2, 8, None, 8),
    (11.2, 1, 1, 11),
    (5.6, 8, 1, 8),
    (16, 64, 8, 72),  # the minimum stands below half a divisor, then a tenth is lost
    (1.6, 8, 1, 9),
])
def test_make_divisible(channels, divisor, minimum, expected):
  assert mobilenet.make_divisible(channels, divisor, minimum) == expected


def test_hard_swish():
  with tf.Graph().as_default(), tf.Session() as session:
    values = session.run(mobilenet_v3.hard_swish(tf.constant([-4.0, -3.0, -1.0, 0.0, 1.0, 3.0, 5.0])))
  np.testing.assert_allclose(values, [0, 0, -1 / 3, 0, 2 / 3, 3, 5], rtol=1e-6)


def test_squeeze_excite_gates_each_channel_by_its_mean():
  inputs = np.zeros([1, 2, 2, 32], np.float32)
  # Means 1, -1, -5 and 4 after the identity weights give the gates 4/6, 3/6 (the relu clips), 3/6 and 1.
  for channel, mean in enumerate([1, -1, -5, 4]):
    inputs[0, :, :, channel] = mean + np.array([[-1, 1], [2, -2]])
  with tf.Graph().as_default(), tf.Session() as session:
    gated = mobilenet.squeeze_excite(tf.constant(inputs))
    variables = {v.op.name: v for v in tf.global_variables()}
    shapes = {name: v.shape.as_list() for name, v in variables.items()}
    assert shapes == {'squeeze_excite/Conv/weights': [1, 1, 32, 8], 'squeeze_excite/Conv/biases': [8],
                      'squeeze_excite/Conv_1/weights': [1, 1, 8, 32], 'squeeze_excite/Conv_1/biases': [32]}
    session.run(tf.global_variables_initializer())
    session.run([variables['squeeze_excite/Conv/weights'].assign(np.eye(32, 8)[None, None]),
                 variables['squeeze_excite/Conv_1/weights'].assign(np.eye(8, 32)[None, None])])
    gates = np.array([4 / 6, 0.5, 0.5, 1.00002])
    np.testing.assert_allclose(session.run(gated)[..., :4], inputs[..., :4] * gates, rtol=3e-5)


@pytest.mark.parametrize('options,outputs,expansions', [
    ({'depth_multiplier': 0.35}, [11, 6] + 2 * [8] + 3 * [11] + 4 * [22] + 3 * [34] + 3 * [56] + [112],
     [40] + 2 * [48] + 3 * [64] + 4 * [136] + 3 * [208] + 3 * [336]),
    ({'depth_multiplier': 0.35, 'divisible_by': 8}, [16, 8] + 2 * [8] + 3 * [16] + 4 * [24] + 3 * [32] + 3 * [56] + [112],
     3 * [48] + 3 * [96] + 4 * [144] + 3 * [192] + 3 * [336]),
])
def test_mobilenet_v2_widths(options, outputs, expansions):
  with tf.Graph().as_default():
    _, end_points = _build('v2', tf.zeros([1, 33, 33, 3]), **options)
  assert [end_points[f'layer_{number}'].shape[-1].value for number in range(1, 19)] == outputs
  assert 'layer_2/expansion_output' not in end_points
  assert [end_points[f'layer_{number}/expansion_output'].shape[-1].value for number in range(3, 19)] == expansions


def test_edgetpu_widths_skips_and_fused_blocks():
  with tf.Graph().as_default() as graph:
    _, end_points = _build('edgetpu', tf.zeros([1, 33, 33, 3]), depth_multiplier=0.75, output_stride=16)
    shapes = {v.op.name: v.shape.as_list() for v in tf.global_variables()}
  widths = [end_points[f'layer_{number}'].shape[-1].value for number in range(1, 25)]
  assert widths == [24, 16] + 4 * [24] + 4 * [40] + 8 * [72] + 4 * [120] + [144, 960]
  skips = {op.name.split('/')[1] for op in graph.get_operations() if op.name.split('/')[2:] == ['add']}
  # Not 13, although stride and channels would allow it.
  assert skips == {f'expanded_conv_{number}' for number in (2, 3, 4, 6, 7, 8, 10, 11, 12, 14, 15, 16, 18, 19, 20)}
  assert [key for key in end_points if key.startswith('layer_2/')] == ['layer_2/output']
  assert [key for key in end_points if key.startswith('layer_3/')] == ['layer_3/expansion_output', 'layer_3/output']
  assert end_points['layer_3/expansion_output'].shape.as_list() == [1, 9, 9, 128]
  assert shapes['MobilenetEdgeTPU/expanded_conv_1/expand/weights'] == [3, 3, 16, 128]


_STEPS = {
    ('v2', 32): 'S . S . S . . S . . . . . . S . . .',
    ('v2', 16): 'S . S . S . . S . . . . . . 1 2 2 2',
    ('v2', 8): 'S . S . S . . 1 2 2 2 2 2 2 2 4 4 4',
    ('v2', 4): 'S . S . 1 2 2 2 4 4 4 4 4 4 4 8 8 8',
    ('large_seg', 32): 'S . S . S . . S . . . . . S . . .',
    ('large_seg', 16): 'S . S . S . . S . . . . . 1 2 2 .',
    ('large_seg', 8): 'S . S . S . . 1 2 2 2 2 2 2 4 4 .',
    ('small_seg', 32): 'S S S . S . . . . S . . .',
    ('small_seg', 16): 'S S S . S . . . . 1 2 2 .',
    ('small_seg', 8): 'S S S . 1 2 2 2 2 2 4 4 .',
    ('edgetpu', 32): 'S . S . . . S . . . S . . . . . . . S . . . . .',
    ('edgetpu', 16): 'S . S . . . S . . . S . . . . . . . 1 2 2 2 2 .',
    ('edgetpu', 8): 'S . S . . . S . . . 1 2 2 2 2 2 2 2 2 4 4 4 4 .',
}


@pytest.mark.parametrize('name,output_stride', _STEPS)
def test_strides_and_rates(name, output_stride):
  """S is a stride of 2, a dot stride 1 and rate 1, a number the rate of a layer behind the place where strides end."""
  meaning = {'S': (2, 1), '.': (1, 1)}
  expected = [meaning.get(step) or (1, int(step)) for step in _STEPS[name, output_stride].split()]
  assert mobilenet.strides_and_rates(_ROWS[name], output_stride) == expected


@pytest.mark.parametrize('name', _ROWS)
def test_no_output_stride_means_32(name):
  assert mobilenet.strides_and_rates(_ROWS[name], None) == mobilenet.strides_and_rates(_ROWS[name], 32)


@pytest.mark.parametrize('name,output_stride,legal', [
    ('v2', 12, '1, 2, 4, 8, 16, 32'),
    ('v2', 64, '1, 2, 4, 8, 16, 32'),
    ('small_seg', 0, '1, 2, 4, 8, 16, 32'),
    ('edgetpu', 4, '8, 16, 32'),  # its fused blocks keep their strides
])
def test_unreachable_output_stride_is_an_error(name, output_stride, legal):
  with tf.Graph().as_default() as graph:
    with pytest.raises(InputError, match=f'--output_stride={output_stride}: .* {legal}'):
      _build(name, tf.placeholder(tf.float32, [1, 33, 33, 3]), output_stride=output_stride)
    assert len(graph.get_operations()) == 1


# Height and width of the image: odd, even, neither a multiple nor one more.
_SIZES = [(65, 97), (64, 96), (70, 51)]


def _sampling(side, removed_stride):
  """Slice that takes from `side` dense features those that a network with `removed_stride` more would compute.

  A SAME convolution of stride 2 starts at index 1 on an even side, at 0 on an odd one.
  """
  start, step = 0, 1
  while step < removed_stride:
    start += step * (1 - side % 2)
    side, step = -(-side // 2), 2 * step
  return slice(start, None, step)


def _end_points_at(output_strides, name, wanted, **options):
  """Values of the end points `wanted`: dict (size, output stride) -> list, all with the same weights.

  The squeeze-excite gates do not depend on the image here: the mean over a map differs from the mean over every second pixel.
  """
  with tf.Graph().as_default(), tf.Session() as session:
    images = tf.placeholder(tf.float32, [1, None, None, 3])
    tensors = {}
    with tf.variable_scope('', reuse=tf.AUTO_REUSE):
      for output_stride in output_strides:
        _, end_points = _build(name, images, output_stride=output_stride, **options)
        tensors[output_stride] = [end_points[key] for key in wanted]
    golden.assign_weights(session, tf.global_variables())
    session.run([v.assign(tf.zeros_like(v)) for v in tf.global_variables() if 'squeeze_excite/Conv_1/weights' in v.op.name])
    image = np.random.RandomState(0).uniform(-1, 1, [1, 100, 100, 3])
    return {(size, output_stride): values for size in _SIZES
            for output_stride, values in session.run(tensors, {images: image[:, :size[0], :size[1]]}).items()}


def _assert_subsampled_equals(dense, nominal, removed_stride):
  rows, columns = (_sampling(side, removed_stride) for side in dense.shape[1:3])
  assert nominal.std() > 0.1
  np.testing.assert_allclose(dense[:, rows, columns], nominal, rtol=1e-4, atol=1e-5 * nominal.std())


@pytest.mark.parametrize('name,depth_multiplier', [('v2', 0.35), ('large_seg', 0.5), ('edgetpu', 0.25)])
def test_dense_features_subsampled_equal_the_nominal_ones(name, depth_multiplier):
  last_layer = f'layer_{len(_ROWS[name])}'
  values = _end_points_at([8, 16, 32], name, [last_layer], depth_multiplier=depth_multiplier)
  for size in _SIZES:
    for output_stride in (8, 16):
      dense, nominal = values[size, output_stride][0], values[size, 32][0]
      assert dense.shape[1:3] == tuple(-(-side // output_stride) for side in size)
      _assert_subsampled_equals(dense, nominal, 32 // output_stride)


def test_small_seg_gains_a_skip_in_layer_10_where_its_stride_is_removed():
  values = _end_points_at([8, 16, 32], 'small_seg', ['layer_9', 'layer_10'], depth_multiplier=0.5)
  for size in _SIZES:
    nominal_9, nominal_10 = values[size, 32]
    for output_stride in (8, 16):
      dense_9, dense_10 = values[size, output_stride]
      _assert_subsampled_equals(dense_9, nominal_9, 16 // output_stride)
      _assert_subsampled_equals(dense_10 - dense_9, nominal_10, 32 // output_stride)


def test_end_points_of_v2():
  with tf.Graph().as_default():
    features, end_points = _build('v2', tf.zeros([2, 65, 65, 3]), output_stride=16)
  suffixes = ('', '/output', '/depthwise_output', '/expansion_output')
  expected = {f'layer_{number}{suffix}' for number in range(1, 19) for suffix in suffixes}
  assert set(end_points) == expected - {'layer_1' + suffix for suffix in suffixes[1:]} - {'layer_2/expansion_output'}
  assert features is end_points['layer_18'] is end_points['layer_18/output']
  assert features.shape.as_list() == [2, 5, 5, 320]


def test_depthwise_output_comes_before_squeeze_excite():
  with tf.Graph().as_default():
    _, end_points = _build_rows(_ROWS['small_seg'][:2], tf.zeros([1, 33, 33, 3]), layers.TrainingState())
  assert end_points['layer_2/depthwise_output'].op.name == 'Net/expanded_conv/depthwise/Relu'


def _penalised_variables():
  variables = tf.trainable_variables()
  gradients = tf.gradients(tf.losses.get_regularization_loss(), variables)
  return {v.op.name for v, g in zip(variables, gradients, strict=True) if g is not None}


def test_weight_decay_spares_depthwise_weights_biases_and_batch_norm():
  with tf.Graph().as_default():
    _build_rows(_ROWS['small_seg'][:3], tf.zeros([1, 33, 33, 3]), layers.TrainingState())
    names = {v.op.name for v in tf.global_variables()}
    assert _penalised_variables() == {'Net/Conv/weights', 'Net/expanded_conv/squeeze_excite/Conv/weights',
                                      'Net/expanded_conv/squeeze_excite/Conv_1/weights', 'Net/expanded_conv/project/weights',
                                      'Net/expanded_conv_1/expand/weights', 'Net/expanded_conv_1/project/weights'}
  assert {name for name in names if 'depthwise_weights' in name or 'biases' in name} == {
      'Net/expanded_conv/depthwise/depthwise_weights', 'Net/expanded_conv_1/depthwise/depthwise_weights',
      'Net/expanded_conv/squeeze_excite/Conv/biases', 'Net/expanded_conv/squeeze_excite/Conv_1/biases'}


@pytest.mark.parametrize('is_training,fine_tune_batch_norm,num_updates',
                         [(True, True, 2 * 6), (True, False, 0), (False, True, 0)])
def test_batch_norm_follows_the_batch_only_when_trained(is_training, fine_tune_batch_norm, num_updates):
  training = layers.TrainingState(is_training=is_training, fine_tune_batch_norm=fine_tune_batch_norm)
  with tf.Graph().as_default():
    _build_rows(_ROWS['v2'][:3], tf.zeros([2, 33, 33, 3]), training)
    assert len(tf.get_collection(tf.GraphKeys.UPDATE_OPS)) == num_updates


def test_moving_averages_decay_by_0_997():
  training = layers.TrainingState(is_training=True, fine_tune_batch_norm=True)
  with tf.Graph().as_default(), tf.Session() as session:
    _build_rows(_ROWS['v2'][:1], tf.zeros([2, 33, 33, 3]), training)
    session.run(tf.global_variables_initializer())
    session.run(tf.get_collection(tf.GraphKeys.UPDATE_OPS))
    variance = session.run(slim.get_variables_by_name('moving_variance', 'Net/Conv/BatchNorm')[0])
  np.testing.assert_allclose(variance, 0.997, rtol=1e-6)  # the variance of a black batch is 0


def test_a_second_build_shares_the_variables():
  with tf.Graph().as_default() as graph, tf.variable_scope('', reuse=tf.AUTO_REUSE):
    _build_rows(_ROWS['small_seg'][:4], tf.zeros([1, 33, 33, 3]), layers.TrainingState())
    names = {v.op.name for v in tf.global_variables()}
    _build_rows(_ROWS['small_seg'][:4], tf.zeros([1, 65, 65, 3]), layers.TrainingState())
    assert {v.op.name for v in tf.global_variables()} == names
    assert graph.get_operation_by_name('Net/Net/input').type == 'Identity'
