"""Tests of core/images/input_preprocess.py."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from preprocess_golden import assert_golden, golden_cases

from deeplab.core.base.tf_compat import tf
from deeplab.core.images import input_preprocess, preprocess_utils

_IMAGENET_MEAN = (123.15, 115.90, 103.06)
_CROP = (33, 41)
_SCALES = {'min_scale_factor': 0.25, 'max_scale_factor': 3.0, 'scale_factor_step_size': 0.25}


def preprocess(image, label, *arguments, **named_arguments):
  """preprocess_image_and_label on arrays, run once; the graph does not know their size."""
  with tf.Graph().as_default(), tf.Session() as session:
    image, label = (None if array is None else tf.placeholder_with_default(array, [None, None, array.shape[2]])
                    for array in (image, label))
    outputs = input_preprocess.preprocess_image_and_label(image, label, *arguments, **named_arguments)
    return session.run([output for output in outputs if output is not None])


@pytest.mark.parametrize('case, image, label', golden_cases('preprocess_image_and_label'))
def test_evaluation_agrees_with_earlier_code(case, image, label):
  arguments = dict(case['args'])
  if arguments.pop('model_variant') == 'resnet_v1_50':
    arguments['pad_pixel'] = _IMAGENET_MEAN
  # The original image is given only where it was resized.
  outputs = preprocess(image, label, **arguments)[-len(case['outputs']):]
  for output, expected in zip(outputs, case['outputs'], strict=True):
    assert_golden(output, expected, is_label=output.dtype == np.int32)


def plain_training_chain(image, label, scales, crop, pad_pixel, seed):
  """The same augmentation step by step, on whole images."""
  scale_seed, window_seed, flip_seed = preprocess_utils.split_seed(seed, 3)
  scale = preprocess_utils.get_random_scale(*scales, seed=scale_seed)
  size = tf.cast(tf.cast(tf.shape(image)[:2], tf.float32) * scale, tf.int32)
  image = tf.image.resize_bilinear(tf.cast(image, tf.float32)[tf.newaxis], size, align_corners=True)[0]
  label = tf.image.resize_nearest_neighbor(tf.cast(label, tf.int32)[tf.newaxis], size, align_corners=True)[0]
  target = tf.maximum(size, crop)
  image = preprocess_utils.pad_to_bounding_box(image, 0, 0, target[0], target[1], pad_pixel)
  label = preprocess_utils.pad_to_bounding_box(label, 0, 0, target[0], target[1], 255)
  image, label = preprocess_utils.random_crop([image, label], *crop, seed=window_seed)
  return preprocess_utils.flip_dim([image, label], 0.5, dim=1, seed=flip_seed)[:2]


@pytest.mark.parametrize('scales', [(0.25, 3.0, 0.25), (0.5, 2.0, 0), (1.0, 1.0, 0)])
def test_training_equals_the_plain_chain(scales):
  with tf.Graph().as_default(), tf.Session() as session:
    image, label = tf.placeholder(tf.uint8, [None, None, 3]), tf.placeholder(tf.uint8, [None, None, 1])
    seed = tf.placeholder(tf.int64, [2])
    expected = plain_training_chain(image, label, scales, _CROP, _IMAGENET_MEAN, seed)
    actual = input_preprocess.preprocess_image_and_label(
        image, label, *_CROP, min_scale_factor=scales[0], max_scale_factor=scales[1], scale_factor_step_size=scales[2],
        pad_pixel=_IMAGENET_MEAN, seed=seed)[1:]
    assert actual[0].shape.as_list() == [*_CROP, 3] and actual[0].dtype == tf.float32
    assert actual[1].shape.as_list() == [*_CROP, 1] and actual[1].dtype == tf.int32

    @settings(max_examples=150, deadline=None)
    @given(st.tuples(st.integers(8, 90), st.integers(8, 90)), st.integers(0, 2**60))
    def check(size, number):
      random = np.random.RandomState(number % 2**32)
      pixels, classes = random.randint(0, 256, [*size, 3]), random.randint(0, 256, [*size, 1])
      expected_value, actual_value = session.run([expected, actual], {image: pixels, label: classes, seed: [number, 7]})
      np.testing.assert_allclose(actual_value[0], expected_value[0], rtol=0, atol=1e-3)
      np.testing.assert_array_equal(actual_value[1], expected_value[1])

    check()


@pytest.mark.parametrize('resize', [{}, {'min_resize_value': 30, 'max_resize_value': 50, 'resize_factor': 4}])
def test_image_and_label_stay_aligned(resize):
  """Pixels hold their own position, so each output pixel tells where image and label come from."""
  with tf.Graph().as_default(), tf.Session() as session:
    image, label = tf.placeholder(tf.float32, [None, None, 3]), tf.placeholder(tf.int32, [None, None, 1])
    seed = tf.placeholder(tf.int64, [2])
    outputs = input_preprocess.preprocess_image_and_label(
        image, label, *_CROP, ignore_label=-1, pad_pixel=(-1., -1., -1.), seed=seed, **_SCALES, **resize)[1:]

    @settings(max_examples=100, deadline=None)
    @given(st.tuples(st.integers(8, 90), st.integers(8, 90)), st.integers(0, 2**60))
    def check(size, number):
      rows, columns = np.mgrid[:size[0], :size[1]]
      pixels = np.stack([rows, columns, 0 * rows], -1)
      crop, numbers = session.run(outputs, {image: pixels, label: (1000 * rows + columns)[..., np.newaxis], seed: [number, 0]})
      numbers = numbers[..., 0]
      padded = numbers == -1
      np.testing.assert_array_equal((crop == -1).all(-1), padded)
      assert not padded.all()
      # Resized twice, a label can be half a pixel off each time.
      bound = 0.501 if not resize else 0.51 + 0.5 * max(size) / 25
      assert np.abs(crop[..., 0] - numbers // 1000)[~padded].max() <= bound
      assert np.abs(crop[..., 1] - numbers % 1000)[~padded].max() <= bound

    check()


@pytest.mark.parametrize('is_training', [True, False])
def test_labels_keep_their_values(is_training):
  with tf.Graph().as_default(), tf.Session() as session:
    label = tf.placeholder(tf.uint8, [None, None, 1])
    scales = _SCALES if is_training else {}
    image = tf.zeros(tf.concat([tf.shape(label)[:2], [3]], 0), tf.uint8)
    output = input_preprocess.preprocess_image_and_label(image, label, 65, 65, ignore_label=254, is_training=is_training,
                                                         **scales)[2]

    @settings(max_examples=60, deadline=None)
    @given(st.tuples(st.integers(4, 65), st.integers(4, 65)), st.sets(st.integers(0, 255), min_size=1, max_size=5),
           st.integers(0, 2**32 - 1))
    def check(size, values, number):
      labels = np.random.RandomState(number).choice(sorted(values), [*size, 1])
      found = set(np.unique(session.run(output, {label: labels})).tolist())
      assert found <= values | {254}
      assert is_training or found >= set(np.unique(labels).tolist())

    check()


def test_small_image_sits_in_the_upper_left_corner():
  image = np.full([2, 3, 3], 9, np.uint8)
  _, crop, label = preprocess(image, image[..., :1], 4, 5, is_training=False, pad_pixel=_IMAGENET_MEAN, ignore_label=77)
  expected = np.full([4, 5, 1], 77)
  expected[:2, :3] = 9
  np.testing.assert_array_equal(label, expected)
  np.testing.assert_array_equal(crop, np.where(expected == 9, np.float32(9), np.float32(_IMAGENET_MEAN)))


def test_without_resizing_the_original_is_the_input():
  image = np.arange(27, dtype=np.uint8).reshape(3, 3, 3)
  original, crop = preprocess(image, None, 3, 3, is_training=False)
  assert original.dtype == np.uint8
  np.testing.assert_array_equal(original, image)
  np.testing.assert_array_equal(crop, image)


def test_keep_aspect_ratio_reaches_the_resize():
  image = np.zeros([20, 40, 3], np.uint8)
  original, _ = preprocess(image, None, 65, 65, min_resize_value=30, is_training=False, keep_aspect_ratio=False)
  assert original.shape == (60, 60, 3)


def test_draws_differ_from_run_to_run():
  with tf.Graph().as_default(), tf.Session() as session:
    image = tf.reshape(tf.range(40 * 40 * 3), [40, 40, 3])
    crop = input_preprocess.preprocess_image_and_label(image, image[..., :1], 8, 8)[1]
    assert len({session.run(crop).tobytes() for _ in range(10)}) > 5


@pytest.mark.parametrize('size', [(60, 30), (30, 70), (60, 70)])
def test_evaluation_refuses_an_image_larger_than_the_crop(size):
  expected = f'Image street.jpg is {size[0]}x{size[1]} .* crop is 49x49; a crop of at least {size[0]},{size[1]} '
  with pytest.raises(tf.errors.InvalidArgumentError, match=expected):
    preprocess(np.zeros([*size, 3], np.uint8), None, 49, 49, is_training=False, image_name='street.jpg')


def test_a_better_aligned_crop_is_named():
  with pytest.raises(tf.errors.InvalidArgumentError, match='at least 60,70 is needed, best 65,81'):
    preprocess(np.zeros([60, 70, 3], np.uint8), None, 49, 49, is_training=False)


def test_training_needs_a_label():
  with tf.Graph().as_default(), pytest.raises(ValueError, match='label'):
    input_preprocess.preprocess_image_and_label(tf.zeros([4, 4, 3]), None, 4, 4)


def test_max_resize_value_alone_is_refused():
  with tf.Graph().as_default(), pytest.raises(ValueError, match='min_resize_value is not set'):
    input_preprocess.preprocess_image_and_label(tf.zeros([4, 4, 3]), None, 9, 9, max_resize_value=8, is_training=False)
