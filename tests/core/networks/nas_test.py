"""The cells and the searched networks built of them; figures that the graph of a whole model fixes are in the golden tests."""

import functools

import numpy as np
import pytest

from deeplab import common
from deeplab.core.base.tf_compat import slim, tf
from deeplab.core.layers import layers
from deeplab.core.networks.nas import nas_cell, nas_genotypes, nas_network

_ARCHITECTURE = {'nas_stem_output_num_conv_filters': 20, 'nas_use_classification_head': False, 'nas_remove_os32_stride': False}
_SMALL_ROWS = (
    nas_cell.Combination(nas_cell.identity, 0, functools.partial(nas_cell.max_pool, kernel_size=3), 1),
    nas_cell.Combination(functools.partial(nas_cell.atrous, kernel_size=3), 1, nas_cell.identity, 2),
)


def _options(output_stride, **architecture):
  return common.ModelOptions({common.OUTPUT_TYPE: 21}, crop_size=[65, 65], output_stride=output_stride,
                             nas_architecture_options={**_ARCHITECTURE, **architecture})


def _image(height, width, channels=1):
  return np.random.RandomState(0).standard_normal([1, height, width, channels]).astype(np.float32)


def _run(tensors, feed=None):
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    return session.run(tensors, feed)


def _names(suffix):
  return [variable.op.name for variable in tf.global_variables() if variable.op.name.endswith(suffix)]


@pytest.mark.parametrize('genotype, states', [
    (nas_genotypes.PNASNET, [1, 1, 0, 0, 0, 0, 4, 0, 1, 0]),
    (nas_genotypes.HNASNET, [1, 0, 1, 0, 3, 1, 4, 2, 3, 5]),
])
def test_hidden_states_of_the_genotypes(genotype, states):
  assert [state for row in genotype for state in (row.left_state, row.right_state)] == states


def test_cell_adds_both_sides_and_joins_the_new_states():
  previous = np.arange(9, dtype=np.float32).reshape([1, 3, 3, 1])
  row = nas_cell.Combination(nas_cell.identity, 1, functools.partial(nas_cell.max_pool, kernel_size=3), 1)
  doubled = nas_cell.Combination(nas_cell.identity, 2, nas_cell.identity, 2)
  with tf.Graph().as_default():
    output = _run(nas_cell.build(tf.zeros([1, 3, 3, 4]), tf.constant(previous), (row, doubled), 1, 1, None))
  expected = np.array([[4, 6, 7], [10, 12, 13], [13, 15, 16]])
  np.testing.assert_array_equal(output[0, :, :, 0], expected)
  np.testing.assert_array_equal(output[0, :, :, 1], 2 * expected)


def test_only_a_strided_cell_has_a_convolution_in_its_empty_branch():
  with tf.Graph().as_default():
    for stride in (1, 2):
      with tf.variable_scope(f'stride_{stride}'):
        output = nas_cell.build(tf.zeros([2, 9, 9, 6]), tf.zeros([2, 17, 17, 3]), nas_genotypes.PNASNET, 4, stride, None)
        assert output.shape.as_list() == [2, 9 if stride == 1 else 5, 9 if stride == 1 else 5, 20]
    assert _names('right/1x1/weights') == ['stride_2/comb_iter_4/right/1x1/weights']
    assert len(_names('prev_1x1/weights')) == 2


@pytest.mark.parametrize('size', [8, 9])
def test_strided_separable_convolution_samples_the_dense_one(size):
  with tf.Graph().as_default(), tf.variable_scope('op', reuse=tf.AUTO_REUSE), \
      slim.arg_scope([slim.batch_norm], is_training=False), \
      slim.arg_scope([slim.separable_conv2d], activation_fn=None, pointwise_initializer=tf.ones_initializer()):
    dense, strided = (nas_cell.separable(tf.constant(_image(size, size)), 1, stride, kernel_size=5) for stride in (1, 2))
    first, second = (tf.global_variables(f'op/separable_5x5_{layer}/depthwise_weights')[0] for layer in (1, 2))
    with tf.Session() as session:
      session.run(tf.global_variables_initializer())
      # The stride is in the first layer alone; the second one copies its input.
      first.load(np.random.RandomState(1).standard_normal([5, 5, 1, 1]), session)
      second.load(np.eye(1, 25, 12).reshape([5, 5, 1, 1]), session)
      of_dense, of_strided = session.run([dense, strided])
  assert of_dense.std() > 0.1
  np.testing.assert_allclose(of_strided, of_dense[:, ::2, ::2], atol=1e-5)


def test_initial_weights_are_uniform_up_to_one_over_the_root_of_their_inputs():
  with tf.Graph().as_default(), slim.arg_scope(nas_network._arg_scope(layers.TrainingState())):
    nas_cell.separable(tf.zeros([1, 9, 9, 16]), 64, 1, kernel_size=5)
    depthwise, pointwise = _run([tf.global_variables('separable_5x5_1/depthwise_weights')[0],
                                 tf.global_variables('separable_5x5_1/pointwise_weights')[0]])
  for weights, limit in ((depthwise, 1 / 20), (pointwise, 1 / 4)):
    assert 0.95 * limit < np.abs(weights).max() <= limit
    assert weights.std() == pytest.approx(limit / np.sqrt(3), rel=0.1)


@pytest.mark.parametrize('size', [(9, 9), (8, 11)])
@pytest.mark.parametrize('stride', [1, 2])
def test_unknown_sizes_give_the_numbers_of_known_ones(size, stride):
  image, previous = _image(*size, channels=2), _image(2 * size[0] - 1, 2 * size[1] - 1, channels=2)
  with tf.Graph().as_default(), tf.variable_scope('cell', reuse=tf.AUTO_REUSE), \
      slim.arg_scope([slim.batch_norm], is_training=False):
    feed = {tf.placeholder(tf.float32, [1, None, None, 2]): value for value in (image, previous)}
    unknown = nas_cell.build(*feed, _SMALL_ROWS, 3, stride, None)
    known = nas_cell.build(tf.constant(image), tf.constant(previous), _SMALL_ROWS, 3, stride, None)
    assert known.shape.as_list() == [1, -(-size[0] // stride), -(-size[1] // stride), 6]
    of_unknown, of_known = _run([unknown, known], feed)
  np.testing.assert_array_equal(of_unknown, of_known)


def test_scale_keeps_the_corners():
  with tf.Graph().as_default():
    doubled = _run(nas_cell.scale(tf.constant([[[[0.0], [2.0]], [[4.0], [6.0]]]]), 2))
  np.testing.assert_array_equal(doubled[0, :, :, 0], [[0, 1, 2], [2, 3, 4], [4, 5, 6]])


def test_drop_path_zeroes_whole_examples_and_keeps_the_mean():
  with tf.Graph().as_default():
    tf.set_random_seed(1)
    output = _run(nas_cell.drop_path(tf.ones([5000, 2, 2, 1]), tf.constant(0.8)))
  np.testing.assert_array_equal(output, np.broadcast_to(output[:, :1, :1], output.shape))
  np.testing.assert_allclose(np.unique(output), [0, 1.25])
  assert output.mean() == pytest.approx(1.0, abs=0.03)


def test_no_drop_path_is_the_identity():
  with tf.Graph().as_default():
    net = tf.ones([2, 3, 3, 1])
    assert nas_cell.drop_path(net, None) is net
    np.testing.assert_array_equal(_run(nas_cell.drop_path(net, 1.0)), np.ones([2, 3, 3, 1]))


@pytest.mark.parametrize('step, expected', [
    (0, [1, 1, 1, 1]),
    (5, [0.95, 0.9, 0.85, 0.8]),
    (10, [0.9, 0.8, 0.7, 0.6]),
    (20, [0.9, 0.8, 0.7, 0.6]),
])
def test_keep_probability_falls_with_depth_and_step(step, expected):
  training = layers.TrainingState(is_training=True, drop_path_keep_prob=0.6, total_training_steps=10)
  with tf.Graph().as_default(), tf.variable_scope('outer', reuse=tf.AUTO_REUSE):
    keep_probs = nas_network._keep_probs(training, 4)
    with tf.Session() as session:
      session.run(tf.global_variables_initializer())
      tf.train.get_global_step().load(step, session)
      np.testing.assert_allclose(session.run(keep_probs), expected, rtol=1e-6)


@pytest.mark.parametrize('training', [
    layers.TrainingState(is_training=False, drop_path_keep_prob=0.6, total_training_steps=10),
    layers.TrainingState(is_training=True, drop_path_keep_prob=1.0),
])
def test_without_training_or_probability_there_is_no_drop_path(training):
  with tf.Graph().as_default():
    assert nas_network._keep_probs(training, 3) == [None] * 3
    assert tf.train.get_global_step() is None


@pytest.mark.full
def test_pnasnet_at_stride_8_counts():
  training = layers.TrainingState(is_training=True, fine_tune_batch_norm=True)
  with tf.Graph().as_default():
    features, end_points = nas_network.pnasnet(tf.zeros([2, 65, 65, 3]), _options(8), training)
    assert features.shape.as_list() == [2, 9, 9, 200]
    assert [net.shape.as_list()[1:] for net in end_points.values()] == [[17, 17, 128]] + [[9, 9, 200]] * 12
    assert len(tf.global_variables()) == 1004
    assert len(tf.losses.get_regularization_losses()) == 316
    assert len(tf.get_collection(tf.GraphKeys.UPDATE_OPS)) == 344


def test_hnasnet_of_unknown_size_with_classification_head(monkeypatch):
  monkeypatch.setattr(nas_network, '_HNASNET_LEVELS', (0, 1, 2, 1))
  with tf.Graph().as_default():
    images = tf.placeholder(tf.float32, [None, None, None, 3])
    options = _options(16, nas_stem_output_num_conv_filters=2, nas_use_classification_head=True)
    features, end_points = nas_network.hnasnet(images, options, layers.TrainingState())
    assert list(end_points) == ['Stem', 'Cell_0', 'Cell_1', 'Cell_2', 'Cell_3', 'downsample_os16', 'downsample_os32',
                                'classification_head']
    *values, of_features = _run([*end_points.values(), features], {images: _image(33, 65, channels=3)})
  assert [value.shape[1:] for value in values] == [
      (9, 17, 128), (9, 17, 10), (5, 9, 20), (3, 5, 40), (5, 9, 20), (3, 5, 512), (3, 5, 1024), (3, 5, 2048)]
  np.testing.assert_array_equal(of_features, np.maximum(values[-1], 0))


def test_pnasnet_without_its_last_stride_and_with_drop_path(monkeypatch):
  monkeypatch.setattr(nas_network, '_PNASNET_LEVELS', {32: (1, 2, 3)})
  training = layers.TrainingState(is_training=True, drop_path_keep_prob=0.5, total_training_steps=10)
  with tf.Graph().as_default() as graph, tf.variable_scope('outer'):
    features, end_points = nas_network.pnasnet(
        tf.zeros([2, 65, 65, 3]), _options(32, nas_stem_output_num_conv_filters=3, nas_remove_os32_stride=True), training)
    assert [net.shape.as_list()[1:] for net in end_points.values()] == [[17, 17, 128], [9, 9, 30], [5, 5, 60], [5, 5, 120]]
    assert features.shape.as_list() == [2, 5, 5, 120]
    assert tf.train.get_global_step().op.name == 'global_step'
    # Batch norm is frozen, drop path is not: a random number per example for 9 of the 10 operations of each cell.
    assert not tf.get_collection(tf.GraphKeys.UPDATE_OPS)
    random_ops = [op for op in graph.get_operations() if op.type == 'RandomUniform' and 'Initializer' not in op.name]
    assert len(random_ops) == 3 * 9


@pytest.mark.parametrize('build, options, message', [
    (nas_network.pnasnet, _options(4), 'output_stride=4'),
    (nas_network.hnasnet, _options(4), 'output_stride=4'),
    (nas_network.hnasnet, _options(24, nas_use_classification_head=True), 'output_stride=24'),
    (nas_network.pnasnet, _options(8)._replace(nas_architecture_options={'nas_remove_os32_stride': True}),
     'lacks nas_stem_output_num_conv_filters, nas_use_classification_head'),
    (nas_network.hnasnet, _options(8)._replace(nas_architecture_options=None), 'lacks nas_stem'),
])
def test_impossible_options_are_refused(build, options, message):
  with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
    build(tf.zeros([1, 33, 33, 3]), options, layers.TrainingState())


@pytest.mark.parametrize('keep_prob, num_steps, message', [
    (0.0, 10, 'drop_path_keep_prob=0.0'),
    (1.5, 10, 'drop_path_keep_prob=1.5'),
    (0.5, None, 'not None'),
    (0.5, 0, 'not 0'),
])
def test_impossible_drop_path_is_refused(keep_prob, num_steps, message):
  training = layers.TrainingState(is_training=True, drop_path_keep_prob=keep_prob, total_training_steps=num_steps)
  with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
    nas_network.hnasnet(tf.zeros([1, 33, 33, 3]), _options(8), training)
