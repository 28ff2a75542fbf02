import functools

import numpy as np
import pytest

from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import slim, tf
from deeplab.core.layers import layers
from deeplab.core.networks import stack


def _images(height=8, width=8):
  return tf.reshape(tf.range(float(height * width)), [1, height, width, 1])


def _conv_stem(images):
  return slim.conv2d(images, 1, 1, stride=2, scope='conv')


def _conv_unit(net, stride, rate):
  return slim.conv2d(net, 1, 3, stride=stride, rate=rate, scope='conv')


def _extract(images, output_stride=8, strides=(2, 2)):
  blocks = [stack.Block(f'block{i}', 'unit', [_conv_unit] * 2, stride) for i, stride in enumerate(strides, start=1)]
  return stack.extract(images, 'root', stack.Stem(_conv_stem, 2), blocks, output_stride, layers.TrainingState())


# Entry blocks, middle and exit blocks of Xception-41, and blocks of ResNet-18: stride of the stem, and of each block.
@pytest.mark.parametrize('stem_stride, block_strides, output_stride, expected', [
    (2, (2, 2, 2, 1, 2, 1), 32, [(2, 1), (2, 1), (2, 1), (1, 1), (2, 1), (1, 1)]),
    (2, (2, 2, 2, 1, 2, 1), 16, [(2, 1), (2, 1), (2, 1), (1, 1), (1, 1), (1, 2)]),
    (2, (2, 2, 2, 1, 2, 1), 8, [(2, 1), (2, 1), (1, 1), (1, 2), (1, 2), (1, 4)]),
    (2, (2, 2, 2, 1, 2, 1), 4, [(2, 1), (1, 1), (1, 2), (1, 4), (1, 4), (1, 8)]),
    (4, (2, 2, 2, 1), 32, [(2, 1), (2, 1), (2, 1), (1, 1)]),
    (4, (2, 2, 2, 1), 4, [(1, 1), (1, 2), (1, 4), (1, 8)]),
])
def test_dropped_stride_dilates_only_what_follows(stem_stride, block_strides, output_stride, expected):
  seen = []

  def unit(net, stride, rate):
    seen.append((stride, rate))
    return net

  blocks = [stack.Block(f'block{i}', 'unit', [unit], stride) for i, stride in enumerate(block_strides)]
  with tf.Graph().as_default():
    stack.extract(_images(), 'root', stack.Stem(lambda images: images, stem_stride), blocks, output_stride,
                  layers.TrainingState())
  assert seen == expected


def test_stride_is_in_the_last_unit():
  seen = []

  def unit(net, stride, rate, name):
    seen.append((name, stride, rate))
    return net

  blocks = [stack.Block('block', 'unit', [functools.partial(unit, name=name) for name in 'abc'], 2)]
  with tf.Graph().as_default():
    stack.extract(_images(), 'root', stack.Stem(lambda images: images, 2), blocks, 4, layers.TrainingState())
  assert seen == [('a', 1, 1), ('b', 1, 1), ('c', 2, 1)]


@pytest.mark.parametrize('output_stride, shape', [(2, (4, 5)), (4, (2, 3)), (8, (1, 2)), (None, (1, 2))])
def test_output_stride_is_the_ratio_of_resolutions(output_stride, shape):
  with tf.Graph().as_default():
    features, _ = _extract(_images(8, 9), output_stride)
  assert features.shape.as_list() == [1, *shape, 1]


@pytest.mark.parametrize('output_stride', [0, 1, 3, 6, 16])
def test_unreachable_output_stride_is_refused(output_stride):
  with tf.Graph().as_default(), pytest.raises(InputError, match=f'--output_stride={output_stride}: root can have 2, 4, 8$'):
    _extract(_images(), output_stride)


def test_end_points_are_the_outputs_of_convolutions_units_and_blocks():
  with tf.Graph().as_default():
    features, end_points = _extract(_images(), strides=(2,), output_stride=4)
  assert list(end_points) == ['root/conv', 'root/block1/unit_1/unit/conv', 'root/block1/unit_1/unit',
                              'root/block1/unit_2/unit/conv', 'root/block1/unit_2/unit', 'root/block1']
  assert end_points['root/block1'] is features
  assert end_points['root/block1/unit_1/unit'].shape.as_list() == [1, 4, 4, 1]


def test_names_of_end_points_do_not_depend_on_the_scope_of_the_caller():
  with tf.Graph().as_default():
    _, expected = _extract(_images())
  with tf.Graph().as_default(), tf.variable_scope('outer'), tf.variable_scope('root'):
    _, end_points = _extract(_images())
    assert tf.global_variables()[0].op.name == 'outer/root/root/conv/weights'
  assert list(end_points) == list(expected)


def test_each_call_returns_its_own_tensors_and_leaves_no_collection():
  with tf.Graph().as_default():
    calls = []
    for _ in range(2):
      with tf.variable_scope(tf.get_variable_scope(), reuse=tf.AUTO_REUSE):
        calls.append(_extract(_images()))
    with tf.variable_scope('other'):
      calls.append(_extract(_images()))
    tensors = [tensor for _, end_points in calls for tensor in (end_points['root/conv'], end_points['root/block1'])]
    assert len(set(map(id, tensors))) == 6
    assert len(tf.global_variables()) == 2 * 2 * 5
    assert not [name for name in tf.get_default_graph().get_all_collection_keys() if 'end_points' in name]
    with tf.Session() as session:
      session.run(tf.global_variables_initializer())
      first, second = session.run([calls[0][0], calls[1][0]])
  np.testing.assert_array_equal(first, second)


def test_grid_or_ones():
  assert stack.grid_or_ones(None, 3, 'net') == (1, 1, 1)
  assert stack.grid_or_ones([1, 2], 2, 'net') == (1, 2)
  with pytest.raises(InputError, match='--multi_grid=1,2: net takes 3 rates, for example 1,2,4'):
    stack.grid_or_ones([1, 2], 3, 'net')
