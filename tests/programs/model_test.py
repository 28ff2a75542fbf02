"""The network as a whole: sizes, options that contradict each other, shared weights, predictions."""

import itertools

import golden
import numpy as np
import pytest

from deeplab import common, model
from deeplab.core.base.tf_compat import tf
from deeplab.core.networks.nas import nas_network

_CLASSES = 5


def _options(crop_size, **fields):
  return common.ModelOptions({common.OUTPUT_TYPE: _CLASSES}, crop_size=crop_size,
                             **{'output_stride': 16, 'model_variant': 'mobilenet_v2', 'depth_multiplier': 0.35, **fields})


def _run(build):
  """Builds a graph, fills it with the recipe weights and runs what `build` returns."""
  with tf.Graph().as_default(), tf.Session() as session:
    fetches = build()
    golden.assign_weights(session, tf.global_variables())
    return session.run(fetches)


def _images(height, width, batch=1):
  return np.random.RandomState(0).uniform(0, 255, [batch, height, width, 3]).astype(np.float32)


@pytest.mark.parametrize('height,width,output_stride,decoder,expected', [
    (65, 65, 16, None, (5, 5)),
    (65, 97, 8, None, (9, 13)),
    (64, 80, 32, None, (2, 3)),
    (65, 97, 16, [4], (17, 25)),
    (66, 81, 16, [8, 4], (17, 21)),
])
def test_size_of_the_logits(height, width, output_stride, decoder, expected):
  with tf.Graph().as_default():
    logits = model.multi_scale_logits(tf.placeholder(tf.float32, [2, height, width, 3]),
                                      _options([height, width], output_stride=output_stride, decoder_output_stride=decoder), None)
  assert logits[common.OUTPUT_TYPE][model.MERGED_LOGITS_SCOPE].shape.as_list() == [2, *expected, _CLASSES]


@pytest.mark.parametrize('height,width', [(65, 65), (64, 97)])
def test_unknown_crop_size_gives_the_same_logits(height, width):
  images = _images(height, width)
  options = _options([height, width], decoder_output_stride=[4])
  static = _run(lambda: model.multi_scale_logits(tf.constant(images), options, None)[common.OUTPUT_TYPE])

  def build_dynamic():
    unknown = tf.placeholder_with_default(images, [None, None, None, 3])
    return model.multi_scale_logits(unknown, options._replace(crop_size=None), None)[common.OUTPUT_TYPE]

  dynamic = _run(build_dynamic)
  key = model.MERGED_LOGITS_SCOPE
  np.testing.assert_allclose(dynamic[key], static[key], atol=1e-4 * static[key].std())


def test_image_pyramid_with_unknown_crop_size():
  def build():
    images = tf.placeholder_with_default(_images(65, 65), [None, None, None, 3])
    return model.multi_scale_logits(images, _options(None), [0.5, 1.0])[common.OUTPUT_TYPE]

  logits = _run(build)
  assert sorted(logits) == ['logits_0.50', 'logits_1.00', 'merged_logits']
  np.testing.assert_array_equal(logits['merged_logits'], np.maximum(logits['logits_0.50'], logits['logits_1.00']))


def test_scales_of_a_pyramid_share_the_dense_prediction_cell():
  cell = [{'op': 'conv', 'input': -1, 'kernel': 3, 'rate': [1, 2]}, {'op': 'pyramid_pooling', 'input': 0, 'grid_size': [1, 1]}]
  options = _options([65, 65], dense_prediction_cell_config=cell)
  with tf.Graph().as_default():
    model.multi_scale_logits(tf.placeholder(tf.float32, [1, 65, 65, 3]), options, [1.0])
    one_scale = {v.op.name for v in tf.global_variables()}
  with tf.Graph().as_default():
    model.multi_scale_logits(tf.placeholder(tf.float32, [1, 65, 65, 3]), options, [0.5, 1.0])
    assert {v.op.name for v in tf.global_variables()} == one_scale
  assert 'meta_architecture/branch1/weights' in one_scale
  assert options.dense_prediction_cell_config == cell


def test_dense_prediction_cell_rates_follow_the_output_stride():
  cell = [{'op': 'conv', 'input': -1, 'kernel': [3, 3], 'rate': [2, 3]}]
  for output_stride, expected in ((16, [2, 3]), (8, [4, 6]), (32, [2, 3])):
    with tf.Graph().as_default() as graph:
      options = _options([65, 65], dense_prediction_cell_config=cell, output_stride=output_stride)
      model.multi_scale_logits(tf.placeholder(tf.float32, [1, 65, 65, 3]), options, None)
      blocks = [op for op in graph.get_operations() if 'branch0_depthwise' in op.name and op.type == 'SpaceToBatchND']
      assert tf.get_static_value(blocks[0].inputs[1]).tolist() == expected


@pytest.mark.parametrize('flipped', [False, True])
def test_multi_scale_probabilities_are_the_mean_of_the_softmaxes(flipped):
  images = _images(65, 65)
  options = _options([65, 65])
  scales = [0.75, 1.0]

  def build_parts():
    parts = []
    for scale, flip in itertools.product(scales, (False, True) if flipped else (False,)):
      seen = tf.constant(images[:, :, ::-1] if flip else images)
      logits = model.multi_scale_logits(seen, options, [scale])[common.OUTPUT_TYPE][model.MERGED_LOGITS_SCOPE]
      logits = tf.reverse(logits, [2]) if flip else logits
      parts.append(tf.nn.softmax(tf.image.resize_bilinear(logits, [65, 65], align_corners=True)))
    return parts

  expected = np.mean(_run(build_parts), axis=0)
  actual = _run(lambda: model.predict_labels_multi_scale(tf.constant(images), options, scales, flipped))
  np.testing.assert_allclose(actual[common.OUTPUT_TYPE + model.PROB_SUFFIX], expected, atol=1e-6)
  np.testing.assert_array_equal(actual[common.OUTPUT_TYPE], actual[common.OUTPUT_TYPE + model.PROB_SUFFIX].argmax(axis=3))


def test_flips_act_at_scale_one():
  images, options = _images(65, 65), _options([65, 65])
  plain, flipped = (_run(lambda flip=flip: model.predict_labels_multi_scale(tf.constant(images), options, [1.0], flip)[
      common.OUTPUT_TYPE + model.PROB_SUFFIX]) for flip in (False, True))
  assert np.abs(plain - flipped).max() > 1e-3


def test_predictions_without_upsampled_logits_are_nearest_neighbours():
  images, options = _images(33, 33), _options([33, 33], prediction_with_upsampled_logits=False)
  predictions = _run(lambda: model.predict_labels(tf.constant(images), options))
  labels = _run(lambda: tf.argmax(model.multi_scale_logits(tf.constant(images), options, None)[common.OUTPUT_TYPE][
      model.MERGED_LOGITS_SCOPE], 3))
  assert labels.shape == (1, 3, 3)
  # Pixel i of 33 shows pixel round(i * 2 / 32) of 3, halves rounded up.
  source = np.floor(np.arange(33) * 2 / 32 + 0.5).astype(int)
  np.testing.assert_array_equal(predictions[common.OUTPUT_TYPE][0], labels[0][source][:, source])
  np.testing.assert_allclose(predictions[common.OUTPUT_TYPE + model.PROB_SUFFIX].sum(axis=3), 1.0, atol=1e-5)


def test_scopes_of_the_head():
  assert model.get_extra_layer_scopes(last_layers_contain_logits_only=True) == ['logits']
  assert model.get_extra_layer_scopes() == ['logits', 'image_pooling', 'aspp', 'concat_projection', 'decoder',
                                            'meta_architecture']


@pytest.mark.parametrize('given,expected', [(None, {0.997, 0.9997}), (0.95, {0.95})])
def test_batch_norm_decay_is_that_of_each_part_or_the_one_given(given, expected):
  with tf.Graph().as_default(), tf.Session() as session:
    options = _options([65, 65], decoder_output_stride=[4], batch_norm_decay=given)
    model.multi_scale_logits(tf.zeros([1, 65, 65, 3]), options, None, is_training=True, fine_tune_batch_norm=True)
    variances = [v for v in tf.global_variables() if v.op.name.endswith('moving_variance')]
    session.run(tf.global_variables_initializer())
    # Weights of 0 make every batch variance 0, so that a moving variance of 1 becomes the decay.
    session.run([v.assign(tf.zeros_like(v)) for v in tf.trainable_variables()])
    session.run(tf.get_collection(tf.GraphKeys.UPDATE_OPS))
    decays = {round(float(value), 6) for array in session.run(variances) for value in array}
  assert decays == expected


@pytest.mark.parametrize('fields,message', [
    ({'model_variant': 'resnet_v1_34', 'depth_multiplier': 1.0}, 'choose one of: mobilenet_v2'),
    ({'output_stride': 12}, 'output_stride=12'),
    ({'multi_grid': [1, 2, 4]}, 'multi_grid'),
    ({'model_variant': 'xception_41', 'depth_multiplier': 1.0, 'multi_grid': [1, 2]}, 'give 3 rates'),
    ({'model_variant': 'resnet_v1_18', 'depth_multiplier': 1.0, 'multi_grid': [1, 2, 4]}, 'give 2 rates'),
    ({'model_variant': 'resnet_v1_50'}, 'depth_multiplier=0.35'),
    ({'model_variant': 'mobilenet_v3_large_seg', 'divisible_by': 4}, 'divisible_by=4'),
    ({'model_variant': 'mobilenet_edgetpu', 'output_stride': 4}, 'output_stride=4'),
    ({'model_variant': 'nas_hnasnet', 'depth_multiplier': 1.0}, 'features of stride 8'),
    ({'nas_architecture_options': {**nas_network.DEFAULT_OPTIONS, 'nas_use_classification_head': True}},
     'nas_use_classification_head'),
    ({'decoder_output_stride': [2]}, 'decoder_output_stride=2'),
    ({'logits_kernel_size': 3}, 'logits_kernel_size=3'),
    ({'decoder_output_is_logits': True}, 'needs --decoder_output_stride'),
    ({'decoder_output_is_logits': True, 'decoder_output_stride': [8], 'decoder_filters': 19}, 'number of classes of semantic, 5'),
    ({'aspp_with_squeeze_and_excitation': True, 'aspp_with_concat_projection': False, 'atrous_rates': [6]}, 'atrous_rates=[6]'),
    ({'dense_prediction_cell_config': [{'op': 'pool', 'input': -1}]}, "op 'pool'"),
    ({'dense_prediction_cell_config': [{'op': 'conv', 'input': 0, 'kernel': 1}]}, 'input 0'),
    ({'dense_prediction_cell_config': [{'op': 'conv', 'input': -1, 'kernel': 3}]}, 'lacks rate'),
])
def test_refuses_options_before_the_graph_is_built(fields, message):
  with tf.Graph().as_default() as graph:
    images = tf.placeholder(tf.float32, [1, 65, 65, 3])
    with pytest.raises(ValueError, match=message.replace('[', r'\[').replace(']', r'\]')):
      model.multi_scale_logits(images, _options([65, 65], **fields), None)
    assert len(graph.get_operations()) == 1


def test_pooling_window_larger_than_the_crop():
  options = _options([65, 65], image_pooling_crop_size=[97, 97])
  with tf.Graph().as_default(), pytest.raises(ValueError, match='--image_pooling_crop_size=97,97 is larger than the network '
                                              'input, 65,65: give a crop'):
    model.multi_scale_logits(tf.placeholder(tf.float32, [1, 65, 65, 3]), options, None)


def test_refine_by_decoder_keeps_its_call():
  def build():
    images = tf.constant(_images(65, 65))
    options = _options([65, 65])
    features, end_points = model.extract_features(images, options, weight_decay=4e-5, is_training=False)
    refined = model.refine_by_decoder(
        features, end_points, crop_size=[65, 65], decoder_output_stride=[4], decoder_use_separable_conv=True,
        model_variant='mobilenet_v2', weight_decay=4e-5, reuse=None, is_training=False, fine_tune_batch_norm=False)
    return model.get_branch_logits(refined, _CLASSES, aspp_with_batch_norm=True, scope_suffix=common.OUTPUT_TYPE)

  expected = _run(lambda: model.multi_scale_logits(tf.constant(_images(65, 65)), _options([65, 65], decoder_output_stride=[4]),
                                                   None)[common.OUTPUT_TYPE][model.MERGED_LOGITS_SCOPE])
  np.testing.assert_allclose(_run(build), expected, atol=1e-5)


def test_weight_decay_of_zero_adds_no_penalty():
  with tf.Graph().as_default():
    model.multi_scale_logits(tf.placeholder(tf.float32, [1, 65, 65, 3]), _options([65, 65]), None, weight_decay=0.0,
                             is_training=True)
    assert not tf.losses.get_regularization_losses()
