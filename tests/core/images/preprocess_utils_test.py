"""Tests of core/images/preprocess_utils.py; figures of testdata/ come from the earlier code."""

import golden
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from preprocess_golden import assert_golden, golden_cases

from deeplab.core.base.tf_compat import tf
from deeplab.core.images import preprocess_utils

_RESIZE_METHOD = tf.image.ResizeMethod


def run(build, *inputs):
  """Value of build(constants of the inputs) in a graph of its own."""
  with tf.Graph().as_default(), tf.Session() as session:
    return session.run(build(*[tf.constant(value) for value in inputs]))


@pytest.mark.parametrize('case, image, label', golden_cases('resize_to_range'))
def test_resize_to_range_agrees_with_earlier_code(case, image, label):
  actual = run(lambda image, label: preprocess_utils.resize_to_range(image, label, **case['args']), image, label)
  assert_golden(actual[0], case['outputs'][0], is_label=False)
  assert_golden(actual[1], case['outputs'][1], is_label=True)


@pytest.mark.parametrize('case, image, label', golden_cases('randomly_scale_image_and_label'))
def test_scaling_agrees_with_earlier_code(case, image, label):
  actual = run(lambda image, label: preprocess_utils.randomly_scale_image_and_label(image, label, **case['args']), image, label)
  assert_golden(actual[0], case['outputs'][0], is_label=False)
  assert_golden(actual[1], case['outputs'][1], is_label=True)


@pytest.mark.parametrize('case, image, label', golden_cases('pad_to_bounding_box'))
def test_padding_agrees_with_earlier_code(case, image, label):
  arguments = dict(case['args'])
  image_value, label_value = arguments.pop('pad_values')
  image = run(lambda image: preprocess_utils.pad_to_bounding_box(image, pad_value=image_value, **arguments),
              image.astype(np.float32))
  label = run(lambda label: preprocess_utils.pad_to_bounding_box(label, pad_value=label_value, **arguments), label)
  assert_golden(image, case['outputs'][0], is_label=False)
  assert_golden(label, case['outputs'][1], is_label=True)


# Height, width, min_size, max_size, factor -> size.
@pytest.mark.parametrize('height, width, min_size, max_size, factor, expected', [
    (60, 40, 50, 100, None, (75, 50)),
    (15, 30, 50, 100, None, (50, 100)),
    (15, 50, 50, 100, None, (30, 100)),
    (60, 40, 50, 98, 8, (81, 57)),
    (15, 30, 50, 98, 8, (49, 97)),
    (15, 50, 50, 98, 8, (33, 97)),
    (60, 40, 96, 98, 8, (97, 65)),
    (97, 38, 97, 97, 8, (97, 41)),
    (96, 97, 97, 97, 8, (97, 97)),
    (3936, 5248, 1441, 1441, 16, (1089, 1441)),
    (512, 683, 513, 513, 16, (385, 513)),
    (300, 400, 513, 513, 16, (385, 513)),
    (1024, 2048, 513, 1025, 16, (513, 1025)),
    (375, 500, 257, 257, 16, (193, 257)),
    (375, 500, 513, None, 16, (513, 689)),
    (375, 500, 513, None, None, (513, 684)),
    (366, 500, 3, 3, None, (2, 3)),
])
def test_resized_size(height, width, min_size, max_size, factor, expected):
  assert tuple(run(lambda: preprocess_utils.resized_size(height, width, min_size, max_size, factor))) == expected


@pytest.mark.parametrize('height, width', [(97, 38), (96, 97)])
def test_resized_size_without_aspect_ratio(height, width):
  assert run(lambda: preprocess_utils.resized_size(height, width, 97, 97, 8, keep_aspect_ratio=False)) == [97, 97]


def test_shorter_side_becomes_min_size_exactly():
  with tf.Graph().as_default(), tf.Session() as session:
    sides = tf.placeholder(tf.int32, [3])
    size = preprocess_utils.resized_size(*tf.unstack(sides))

    @settings(max_examples=200, deadline=None)
    @given(st.tuples(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 1500)))
    def check(values):
      assert min(session.run(size, {sides: values})) == values[2]

    check()


def test_resize_to_range_needs_min_size():
  with pytest.raises(ValueError, match='min_resize_value is not set'):
    run(lambda image: preprocess_utils.resize_to_range(image, max_size=10)[0], np.zeros([4, 4, 3], np.float32))


def test_resize_to_range_needs_rank_3():
  with pytest.raises(ValueError):
    run(lambda image: preprocess_utils.resize_to_range(image, min_size=10)[0], np.zeros([4, 4], np.float32))


def test_resize_to_range_without_label():
  with tf.Graph().as_default():
    resized = preprocess_utils.resize_to_range(tf.zeros([4, 6, 3], tf.uint8), min_size=4)
  assert resized[0].dtype == tf.float32 and resized[1] is None


def test_resize_to_range_of_channels_first_label():
  label = np.arange(24).reshape(2, 3, 4)
  image = np.zeros([3, 4, 3], np.float32)
  by_channel = run(lambda image, label: preprocess_utils.resize_to_range(image, label, min_size=6, label_layout_is_chw=True)[1],
                   image, label)
  expected = run(lambda image, label: preprocess_utils.resize_to_range(image, label, min_size=6)[1], image,
                 label.transpose(1, 2, 0))
  assert by_channel.shape == (2, 6, 8)
  np.testing.assert_array_equal(by_channel, expected.transpose(2, 0, 1))


_LABEL = (10 * np.arange(3)[:, np.newaxis] + np.arange(4))[..., np.newaxis].astype(np.int32)


@pytest.mark.parametrize('scale, rows, columns', [
    (0.5, [0], [0, 3]),
    (0.75, [0, 2], [0, 2, 3]),
    (1.5, [0, 1, 1, 2], [0, 1, 1, 2, 2, 3]),
    (2.0, [0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 2, 2, 3, 3]),
])
def test_label_takes_nearest_pixel(scale, rows, columns):
  image = np.zeros([3, 4, 3], np.float32)
  scaled = run(lambda image, label: preprocess_utils.randomly_scale_image_and_label(image, label, scale)[1], image, _LABEL)
  np.testing.assert_array_equal(scaled[..., 0], 10 * np.array(rows)[:, np.newaxis] + np.array(columns))


def test_image_is_interpolated():
  image = np.arange(12, dtype=np.uint8).reshape(3, 4, 1)
  scaled, label = preprocess_utils.randomly_scale_image_and_label, None
  actual = run(lambda image: scaled(image, label, 1.5)[0], image)[..., 0]
  np.testing.assert_allclose(actual[0], [0, .6, 1.2, 1.8, 2.4, 3], atol=1e-6)
  np.testing.assert_allclose(actual[:, 0], [0, 8 / 3, 16 / 3, 8], atol=1e-6)


def test_scale_1_changes_nothing():
  image, label = object(), object()
  assert preprocess_utils.randomly_scale_image_and_label(image, label, 1.0) == (image, label)


def test_scaling_keeps_a_pixel():
  assert run(lambda image: preprocess_utils.randomly_scale_image_and_label(image, None, 0.01)[0],
             np.ones([20, 30, 3], np.uint8)).shape == (1, 1, 3)


def test_nearest_agrees_with_kernel():
  with tf.Graph().as_default(), tf.Session() as session:
    label = tf.placeholder(tf.int32, [None, None, 1])
    size = tf.placeholder(tf.int32, [2])
    ours = preprocess_utils._resize(label, tf.unstack(size), _RESIZE_METHOD.NEAREST_NEIGHBOR)
    kernel = tf.image.resize_nearest_neighbor(label[tf.newaxis], size, align_corners=True)[0]

    @settings(max_examples=200, deadline=None)
    @given(st.tuples(st.integers(1, 90), st.integers(1, 90)), st.tuples(st.integers(1, 200), st.integers(1, 200)))
    def check(old_size, new_size):
      numbers = np.arange(old_size[0] * old_size[1]).reshape(*old_size, 1)
      np.testing.assert_array_equal(*session.run([ours, kernel], {label: numbers, size: new_size}))

    check()


def test_label_resize_method():
  with tf.Graph().as_default():
    assert preprocess_utils.get_label_resize_method(tf.zeros([1])) == _RESIZE_METHOD.BILINEAR
    assert preprocess_utils.get_label_resize_method(tf.zeros([1], tf.uint8)) == _RESIZE_METHOD.NEAREST_NEIGHBOR
    with pytest.raises(ValueError, match='bool'):
      preprocess_utils.get_label_resize_method(tf.zeros([1], tf.bool))


@pytest.mark.parametrize('arguments, expected', [
    *golden.load('random_scale_sets.json').items(),
    ('0.8,1.2,0.1', [0.8, 0.9, 1.0, 1.1, 1.2]),
    ('0.5,2,0.3', [0.5, 0.8, 1.1, 1.4, 1.7, 2.0]),
    ('0.01,2,0.25', np.linspace(0.01, 2, 8)),
])
def test_set_of_random_scales(arguments, expected):
  with tf.Graph().as_default(), tf.Session() as session:
    scale = preprocess_utils.get_random_scale(*map(float, arguments.split(',')))
    assert scale.shape == [] and scale.dtype == tf.float32
    draws = tf.map_fn(lambda seed: preprocess_utils.get_random_scale(*map(float, arguments.split(',')), seed=[seed, 0]),
                      tf.range(300), tf.float32)
    np.testing.assert_allclose(np.unique(session.run(draws)), expected, atol=1e-5)


def test_random_scale_without_step():
  with tf.Graph().as_default(), tf.Session() as session:
    scale = preprocess_utils.get_random_scale(0.5, 2.0, 0)
    assert scale.shape == []
    draws = [session.run(scale) for _ in range(50)]
  assert 0.5 <= min(draws) < 0.8 and 1.7 < max(draws) < 2.0 and len(set(draws)) > 40


@pytest.mark.parametrize('arguments', [(-0.1, 1.0, 0.1), (2.0, 1.0, 0.1), (0.5, 1.0, -0.1)])
def test_wrong_range_of_scales(arguments):
  with pytest.raises(ValueError, match=f'min_scale_factor={arguments[0]}.*max_scale_factor={arguments[1]}'):
    preprocess_utils.get_random_scale(*arguments)


@pytest.mark.parametrize('prob, expected', [(1.0, [[2, 1], [4, 3]]), (-1.0, [[1, 2], [3, 4]])])
def test_flip(prob, expected):
  image = np.array([[1, 2], [3, 4]])
  first, second, flipped = run(lambda image: preprocess_utils.flip_dim([image, 10 * image], prob), image)
  np.testing.assert_array_equal(first, expected)
  np.testing.assert_array_equal(second, 10 * np.array(expected))
  assert flipped == (prob == 1.0)


def test_flip_along_rows():
  np.testing.assert_array_equal(run(lambda image: preprocess_utils.flip_dim([image], 1.0, dim=0)[0], [[1, 2], [3, 4]]),
                                [[3, 4], [1, 2]])


def test_flips_half_of_the_time():
  with tf.Graph().as_default(), tf.Session() as session:
    _, flipped = preprocess_utils.flip_dim([tf.zeros([1, 2, 1])])
    assert 25 < sum(session.run(flipped) for _ in range(100)) < 75


@pytest.mark.parametrize('dim', [-1, 2])
def test_flip_of_missing_axis(dim):
  with tf.Graph().as_default(), pytest.raises(ValueError, match=f'Axis {dim}'):
    preprocess_utils.flip_dim([tf.zeros([2, 2])], dim=dim)


@pytest.mark.parametrize('dtype', [np.uint8, np.int32, np.float32])
def test_pad(dtype):
  image = np.array([[[1], [2]]], dtype)
  padded = run(lambda image: preprocess_utils.pad_to_bounding_box(image, 1, 2, 3, 5, 9), image)
  assert padded.dtype == dtype
  np.testing.assert_array_equal(padded[..., 0], [[9, 9, 9, 9, 9], [9, 9, 1, 2, 9], [9, 9, 9, 9, 9]])


def test_pad_with_a_pixel_changes_no_pixel():
  image = np.random.RandomState(0).uniform(0, 255, [2, 5, 7, 3]).astype(np.float32)
  pixel = np.array([123.15, 115.90, 103.06], np.float32)
  padded = run(lambda image: preprocess_utils.pad_to_bounding_box(image, 1, 0, 8, 9, pixel), image)
  expected = np.broadcast_to(pixel, [2, 8, 9, 3]).copy()
  expected[:, 1:6, :7] = image
  np.testing.assert_array_equal(padded, expected)


def test_pad_sets_the_static_shape():
  with tf.Graph().as_default():
    image = tf.placeholder(tf.float32, [None, None, 3])
    assert preprocess_utils.pad_to_bounding_box(image, 0, 0, 5, 6, 0.0).shape.as_list() == [5, 6, 3]


def test_pad_of_a_wrong_rank():
  with tf.Graph().as_default(), pytest.raises(ValueError, match='rank'):
    preprocess_utils.pad_to_bounding_box(tf.zeros([2, 2]), 0, 0, 5, 6, 0.0)


@pytest.mark.parametrize('shape, offset, target', [
    ([5, 5, 3], (0, 0), (4, 6)), ([5, 5, 3], (0, 0), (6, 4)), ([5, 5, 3], (2, 0), (6, 6)), ([5, 5, 3], (0, -1), (6, 6)),
    ([5, 5], (0, 0), (6, 6))])
def test_pad_that_does_not_fit(shape, offset, target):
  with tf.Graph().as_default(), tf.Session() as session:
    image = tf.placeholder(tf.float32, None)
    padded = preprocess_utils.pad_to_bounding_box(image, *offset, *target, 0.0)
    with pytest.raises(tf.errors.InvalidArgumentError, match='does not fit on a canvas of|not compatible with expected shape'):
      session.run(padded, {image: np.zeros(shape)})


def test_random_crop_cuts_one_window():
  image = np.arange(30).reshape(5, 6, 1)
  with tf.Graph().as_default(), tf.Session() as session:
    crops = preprocess_utils.random_crop([tf.constant(image), tf.constant(100 + image)], 4, 4)
    assert crops[0].shape.as_list() == [4, 4, 1]
    corners = set()
    for _ in range(60):
      first, second = session.run(crops)
      corner = first[0, 0, 0]
      np.testing.assert_array_equal(first[..., 0], corner + 6 * np.arange(4)[:, np.newaxis] + np.arange(4))
      np.testing.assert_array_equal(second, 100 + first)
      corners.add(corner)
  assert corners == {0, 1, 2, 6, 7, 8}


def test_random_crop_of_nothing():
  with pytest.raises(ValueError, match='at least one'):
    preprocess_utils.random_crop([], 2, 2)


def test_random_crop_of_a_wrong_rank():
  with tf.Graph().as_default(), pytest.raises(ValueError):
    preprocess_utils.random_crop([tf.zeros([3, 3])], 2, 2)


@pytest.mark.parametrize('first, second, message', [
    ([4, 4, 1], [4, 5, 1], 'second is 4x5 but first is 4x4'),
    ([4, 4, 1], [5, 4, 1], 'second is 5x4 but first is 4x4'),
    ([2, 4, 1], [2, 4, 1], 'crop of 3x3 is larger than an image of 2x4'),
    ([4, 4], [4, 4, 1], 'not compatible with expected shape')])
def test_random_crop_that_cannot_be(first, second, message):
  with tf.Graph().as_default(), tf.Session() as session:
    images = [tf.placeholder(tf.float32, None, name=name) for name in ('first', 'second')]
    crops = preprocess_utils.random_crop(images, 3, 3)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
      session.run(crops, {images[0]: np.zeros(first), images[1]: np.zeros(second)})


def test_crop_beyond_the_image():
  with pytest.raises(tf.errors.InvalidArgumentError, match='3x3 at offset 1,0 exceeds an image of 3x3'):
    run(lambda image: preprocess_utils._crop(image, 1, 0, 3, 3), np.zeros([3, 3, 1]))


def test_resolve_shape():
  with tf.Graph().as_default(), tf.Session() as session:
    image = tf.placeholder(tf.float32, [None, 4, 3])
    height, width, channels = preprocess_utils.resolve_shape(image, 3)
    assert (width, channels) == (4, 3)
    assert session.run(height, {image: np.zeros([2, 4, 3])}) == 2
    with pytest.raises(ValueError):
      preprocess_utils.resolve_shape(image, 4)


def test_a_seed_decides_the_draw():
  image = np.arange(400).reshape(20, 20, 1)
  draw = lambda seed: run(lambda image: [*preprocess_utils.random_crop([image], 3, 3, seed=[seed, 1]),
                                         preprocess_utils.get_random_scale(0.5, 2.0, 0, seed=[seed, 2])], image)
  first, again, other = draw(5), draw(5), draw(6)
  np.testing.assert_array_equal(first[0], again[0])
  assert first[1] == again[1]
  assert first[1] != other[1] and not np.array_equal(first[0], other[0])


def test_split_seed():
  assert preprocess_utils.split_seed(None, 3) == [None, None, None]
  seeds = run(lambda: preprocess_utils.split_seed([1, 2], 3))
  assert len({tuple(seed) for seed in seeds}) == 3


@pytest.mark.parametrize('crop', [preprocess_utils._crop_then_scale, preprocess_utils._scale_then_crop,
                                  preprocess_utils.crop_scaled_image])
def test_window_equals_part_of_scaled_image(crop):
  with tf.Graph().as_default(), tf.Session() as session:
    image, label = tf.placeholder(tf.uint8, [None, None, 3]), tf.placeholder(tf.int32, [None, None, 1])
    scale, seed = tf.placeholder(tf.float32, []), tf.placeholder(tf.int32, [2])
    window = preprocess_utils.random_window(image, scale, 20, 30, seed)
    whole = preprocess_utils.randomly_scale_image_and_label(image, label, scale)
    expected = [tf.slice(part, [*window.offset, 0], [*window.size, -1]) for part in whole]
    actual = [crop(image, window), preprocess_utils.crop_scaled_label(label, window)]

    @settings(max_examples=100, deadline=None)
    @given(st.tuples(st.integers(1, 70), st.integers(1, 70)), st.floats(0.1, 4.0), st.integers(0, 1000))
    def check(size, factor, number):
      pixels = np.random.RandomState(number).randint(0, 256, [*size, 3])
      numbers = np.arange(size[0] * size[1]).reshape(*size, 1)
      expected_value, actual_value = session.run(
          [expected, actual], {image: pixels, label: numbers, scale: factor, seed: [number, 0]})
      np.testing.assert_allclose(actual_value[0], expected_value[0], rtol=0, atol=1e-3)
      np.testing.assert_array_equal(actual_value[1], expected_value[1])

    check()
