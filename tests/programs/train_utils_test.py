"""Loss, learning rate, gradient multipliers and the start from another checkpoint."""

import math
import os

import golden
import numpy as np
import pytest

from deeplab import train_utils
from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf

_LAST_LAYERS = ['logits', 'image_pooling', 'aspp', 'concat_projection', 'decoder', 'meta_architecture']


# The loss.


def _run_losses(scales_to_logits, labels, num_classes=3, ignore_label=255, step=0, **kwargs):
  """Values of the losses and the gradients with respect to the logits of each scale."""
  with tf.Graph().as_default(), tf.Session() as session:
    global_step = tf.train.create_global_step()
    tensors = {scale: tf.constant(logits, tf.float32) for scale, logits in scales_to_logits.items()}
    train_utils.add_softmax_cross_entropy_loss_for_each_scale(
        tensors, tf.constant(labels), num_classes, ignore_label, scope='semantic', **kwargs)
    losses = tf.losses.get_losses()
    global_step.load(step, session)
    return session.run([losses, tf.gradients(losses, list(tensors.values()))])


def _run_loss(logits, labels, **kwargs):
  (loss,), (gradient,) = _run_losses({'merged_logits': logits}, labels, **kwargs)
  return loss, gradient


def _random_case():
  """Logits [2, 2, 3, 3] and labels [2, 3, 5, 1], three of them ignored."""
  random = np.random.RandomState(0)
  logits = np.round(random.uniform(-2, 2, [2, 2, 3, 3]), 1).astype(np.float32)
  labels = random.randint(0, 3, [2, 3, 5, 1]).astype(np.int32)
  labels[0, 0, :2] = 255
  labels[1, 2, 4] = 255
  return logits, labels


def _pixels(*labels):
  """Labels of an image one pixel high."""
  return np.array(labels, np.int32).reshape([1, 1, -1, 1])


# Class probabilities 1/2, 1/4, 1/4 at each of four pixels: the loss is log 2 for class 0 and log 4 for the others.
_LOG2 = math.log(2)
_FOUR_PIXELS = np.tile(np.log([2.0, 1.0, 1.0]), [1, 1, 4, 1])


def test_loss_is_the_mean_over_pixels_that_count():
  loss, gradient = _run_loss(_FOUR_PIXELS, _pixels(0, 1, 2, 255))
  np.testing.assert_allclose(loss, (_LOG2 + 2 * _LOG2 + 2 * _LOG2) / 3, rtol=1e-6)
  # (softmax - one-hot) / 3 at each pixel that counts.
  expected = np.array([[-0.5, 0.25, 0.25], [0.5, -0.75, 0.25], [0.5, 0.25, -0.75], [0, 0, 0]]) / 3
  np.testing.assert_allclose(gradient[0, 0], expected, atol=1e-7)


def test_class_with_weight_zero_counts_in_the_divisor():
  loss, _ = _run_loss(_FOUR_PIXELS, _pixels(0, 1, 2, 255), loss_weight=[0.5, 3.0, 0.0])
  np.testing.assert_allclose(loss, (0.5 * _LOG2 + 3 * 2 * _LOG2) / 3, rtol=1e-6)


def test_hardest_pixels_are_a_share_of_all_pixels():
  # Half of four pixels are two, one of which is ignored among the hardest that remain.
  loss, gradient = _run_loss(_FOUR_PIXELS, _pixels(255, 0, 1, 255), top_k_percent_pixels=0.5)
  np.testing.assert_allclose(loss, (_LOG2 + 2 * _LOG2) / 2, rtol=1e-6)
  loss, gradient = _run_loss(_FOUR_PIXELS, _pixels(255, 0, 1, 255), top_k_percent_pixels=0.25)
  np.testing.assert_allclose(loss, 2 * _LOG2, rtol=1e-6)
  np.testing.assert_allclose(gradient[0, 0, :, 1], [0, 0, -0.75, 0], atol=1e-7)


def _loss_by_sorting(losses, share):
  """What the earlier code made of the pixel losses: the mean of the first k, sorted, that are not 0."""
  hardest, _ = tf.nn.top_k(losses, k=int(np.float32(share) * np.float32(losses.shape[0].value)))
  num_counted = tf.reduce_sum(tf.cast(tf.not_equal(hardest, 0.0), tf.float32))
  return tf.reduce_sum(hardest) / tf.maximum(num_counted, 1.0)


def _value_and_gradient(function, losses, share):
  with tf.Graph().as_default(), tf.Session() as session:
    losses = tf.constant(losses, tf.float32)
    loss = function(losses, share)
    return session.run([loss, tf.gradients(loss, losses)[0]])


@pytest.mark.parametrize('share', [0.001, 0.1, 0.25, 0.3, 0.5, 0.9, 0.99])
@pytest.mark.parametrize('losses', [
    [0.5, 3, 1, 2, 0.1, 7, 4, 6, 0.2, 5],
    [1, 2, 2, 3, 2, 1, 2, 3, 2, 1],
    [4] * 10,
    [0] * 10,
    [0, 0, 0, 2, 0, 0, 1, 0, 0, 0],
    [3],
    np.random.RandomState(0).randint(0, 5, 201),
], ids=['distinct', 'ties', 'equal', 'zero', 'few', 'one', 'many_ties'])
def test_hardest_pixels_are_those_of_sorting(losses, share):
  loss, gradient = _value_and_gradient(lambda losses, share: train_utils._mean_of_hardest(losses, share, 0), losses, share)
  expected_loss, expected_gradient = _value_and_gradient(_loss_by_sorting, losses, share)
  np.testing.assert_allclose(loss, expected_loss, rtol=1e-6)
  np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-6)
  # A whole number of pixels, none of them where the share is less than one pixel.
  assert np.count_nonzero(gradient) <= share * len(losses)


@pytest.mark.parametrize('share', [0.001, 0.25, 0.9])
@pytest.mark.parametrize('position', [0, 3, 7])
@pytest.mark.parametrize('num_bad', [1, 8])
def test_loss_that_is_no_number_is_noticed_among_the_hardest(share, position, num_bad):
  losses = np.arange(8.0)
  losses[position if num_bad == 1 else slice(None)] = np.nan
  loss, _ = _value_and_gradient(lambda losses, share: train_utils._mean_of_hardest(losses, share, 0), losses, share)
  assert np.isnan(loss)


@pytest.mark.parametrize('kwargs, expected', [
    ({}, 1.17029),
    ({'upsample_logits': False}, 1.11576),
    ({'loss_weight': 0.5}, 0.585146),
    ({'loss_weight': [0.1, 0.5, 0.0]}, 0.18864),
    ({'top_k_percent_pixels': 0.25}, 2.07793),
    ({'top_k_percent_pixels': 0.25, 'hard_example_mining_step': 100, 'step': 0}, 1.17029),
    ({'top_k_percent_pixels': 0.25, 'hard_example_mining_step': 100, 'step': 50}, 1.51388),
    ({'top_k_percent_pixels': 0.25, 'hard_example_mining_step': 100, 'step': 200}, 2.07793),
    ({'top_k_percent_pixels': 0.01}, 0.0),
])
def test_loss_of_the_earlier_code(kwargs, expected):
  loss, _ = _run_loss(*_random_case(), **kwargs)
  np.testing.assert_allclose(loss, expected, rtol=1e-5)


@pytest.mark.parametrize('kwargs', [{}, {'top_k_percent_pixels': 0.5}, {'loss_weight': [1.0, 2.0, 3.0]},
                                    {'upsample_logits': False}])
def test_loss_is_zero_where_everything_is_ignored(kwargs):
  logits, labels = _random_case()
  loss, gradient = _run_loss(logits, np.full_like(labels, 255), **kwargs)
  assert loss == 0.0
  assert not gradient.any()


def test_every_scale_has_a_loss_named_after_it():
  logits, labels = _random_case()
  losses, _ = _run_losses({'logits_0.50': logits, 'logits_1.00': 2 * logits, 'merged_logits': 1.5 * logits}, labels)
  np.testing.assert_allclose(losses, [1.17029, 1.50913, 1.32086], rtol=1e-5)
  with tf.Graph().as_default():
    train_utils.add_softmax_cross_entropy_loss_for_each_scale(
        {'logits_0.50': tf.constant(logits), 'merged_logits': tf.constant(logits)}, tf.constant(labels), 3, 255,
        scope='semantic')
    assert [loss.op.name for loss in tf.losses.get_losses()] == ['semantic_logits_0.50/value', 'semantic_merged_logits/value']


def test_matting_map():
  logits, labels = _random_case()
  opacity = np.where(labels == 255, 255, np.minimum(labels / 2, 1)).astype(np.float32)
  loss, _ = _run_loss(logits[..., :2], opacity, num_classes=2, gt_is_matting_map=True)
  np.testing.assert_allclose(loss, 0.887392, rtol=1e-5)


@pytest.mark.parametrize('bad', [7, 3, -1])
def test_label_outside_the_classes_is_refused(bad):
  logits, labels = _random_case()
  labels[labels == 255] = bad
  with pytest.raises(tf.errors.InvalidArgumentError) as error:
    _run_loss(logits, labels)
  for text in ['0..2', 'num_classes 3', 'ignore_label 255', f'[{bad}]']:
    assert text in error.value.message


def test_share_of_hard_pixels_is_summarised():
  logits, labels = _random_case()
  with tf.Graph().as_default(), tf.Session() as session:
    global_step = tf.train.create_global_step()
    train_utils.add_softmax_cross_entropy_loss_for_each_scale(
        {'merged_logits': tf.constant(logits)}, tf.constant(labels), 3, 255, hard_example_mining_step=10,
        top_k_percent_pixels=0.25, scope='semantic')
    shares = []
    for step in [0, 5, 10, 20]:
      global_step.load(step, session)
      summary = tf.Summary.FromString(session.run(tf.summary.merge_all()))
      shares.append(summary.value[0].simple_value)
  assert summary.value[0].tag == 'semantic_merged_logits/top_k_percent_pixels'
  np.testing.assert_allclose(shares, [1.0, 0.625, 0.25, 0.25])


def test_opacity_above_one_is_refused():
  with pytest.raises(tf.errors.InvalidArgumentError, match='128'):
    _run_loss(np.zeros([1, 1, 2, 2]), np.float32([[[[0.5], [128]]]]), num_classes=2, gt_is_matting_map=True)


@pytest.mark.parametrize('kwargs, message', [
    ({'top_k_percent_pixels': 0.0}, '--top_k_percent_pixels=0.0'),
    ({'top_k_percent_pixels': 1.5}, '--top_k_percent_pixels=1.5'),
    ({'hard_example_mining_step': -1}, '--hard_example_mining_step=-1'),
    ({'loss_weight': [1.0, 2.0]}, '2 numbers for 3 classes'),
    ({'gt_is_matting_map': True}, 'float labels'),
])
def test_loss_refuses_arguments(kwargs, message):
  with pytest.raises(InputError, match=message):
    _run_loss(*_random_case(), **kwargs)


def test_matting_map_has_two_classes_of_equal_weight():
  labels = np.zeros([1, 1, 4, 1], np.float32)
  with pytest.raises(InputError, match='2 classes'):
    _run_loss(_FOUR_PIXELS, labels, gt_is_matting_map=True)
  with pytest.raises(InputError, match='label_weights'):
    _run_loss(_FOUR_PIXELS[..., :2], labels, num_classes=2, loss_weight=2.0, gt_is_matting_map=True)


def test_loss_needs_labels():
  with pytest.raises(InputError, match='labels'):
    train_utils.add_softmax_cross_entropy_loss_for_each_scale({}, None, 3, 255)


# The learning rate.


def _rates(steps, **kwargs):
  args = {'learning_policy': 'poly', 'base_learning_rate': 0.007, 'learning_rate_decay_step': 2000,
          'learning_rate_decay_factor': 0.1, 'training_number_of_steps': 30000, 'learning_power': 0.9, 'slow_start_step': 0,
          'slow_start_learning_rate': 1e-4, **kwargs}
  with tf.Graph().as_default(), tf.Session() as session:
    global_step = tf.train.create_global_step()
    rate = train_utils.get_model_learning_rate(**args)
    rates = []
    for step in steps:
      global_step.load(step, session)
      rates.append(session.run(rate))
    return rates


def _learning_rate_cases():
  figures = golden.load('learning_rate.json')
  return [pytest.param(figures['steps'], {**figures['shared_args'], **case['args']}, case['rates'],
                       id=f'{case["args"]["learning_policy"]}_{number}') for number, case in enumerate(figures['cases'])]


@pytest.mark.parametrize('steps, args, expected', _learning_rate_cases())
def test_learning_rate_of_the_earlier_code(steps, args, expected):
  # Just before the end the poly rate hangs on the last bits of 1 - t / T.
  np.testing.assert_allclose(_rates(steps, **args), expected, rtol=1e-6)


@pytest.mark.parametrize('kwargs, step, expected', [
    ({'base_learning_rate': 1.0, 'learning_power': 1.0, 'training_number_of_steps': 10}, 4, 0.6),
    # After two steps of slow start, eight are left.
    ({'base_learning_rate': 1.0, 'learning_power': 1.0, 'training_number_of_steps': 10, 'slow_start_step': 2}, 2, 1.0),
    ({'base_learning_rate': 1.0, 'learning_power': 1.0, 'training_number_of_steps': 10, 'slow_start_step': 2}, 6, 0.5),
    ({'base_learning_rate': 1.0, 'learning_power': 2.0, 'decay_steps': 4.0, 'end_learning_rate': 0.2}, 2, 0.4),
    ({'base_learning_rate': 1.0, 'slow_start_step': 10, 'slow_start_learning_rate': 0.5, 'slow_start_burnin_type': 'linear'},
     5, 0.75),
    ({'learning_policy': 'step', 'base_learning_rate': 1.0, 'learning_rate_decay_step': 3, 'learning_rate_decay_factor': 0.5},
     7, 0.25),
    ({'learning_policy': 'cosine', 'base_learning_rate': 1.0, 'training_number_of_steps': 9}, 3, 0.75),
    ({'learning_policy': 'multi_steps', 'boundaries': [3, 5], 'boundary_learning_rates': [3.0, 2.0, 1.0]}, 3, 3.0),
    ({'learning_policy': 'multi_steps', 'boundaries': [3, 5], 'boundary_learning_rates': [3.0, 2.0, 1.0]}, 4, 2.0),
    ({'learning_policy': 'multi_steps', 'boundaries': [3, 5], 'boundary_learning_rates': [3.0, 2.0, 1.0]}, 6, 1.0),
])
def test_learning_rate_on_paper(kwargs, step, expected):
  np.testing.assert_allclose(_rates([step], **kwargs), [expected], rtol=1e-6)


@pytest.mark.parametrize('kwargs, message', [
    ({'learning_policy': 'warm'}, '--learning_policy=warm: choose one of: poly, step, cosine, multi_steps'),
    ({'slow_start_burnin_type': 'cubic'}, "'cubic'"),
    ({'slow_start_step': 30000}, '--slow_start_step'),
    ({'learning_policy': 'step', 'learning_rate_decay_step': 0}, '--learning_rate_decay_step=0'),
    ({'learning_policy': 'multi_steps'}, 'found None and None'),
    ({'learning_policy': 'multi_steps', 'boundaries': [1, 2], 'boundary_learning_rates': [1.0, 2.0]}, 'one more'),
    ({'learning_policy': 'multi_steps', 'boundaries': [2, 1], 'boundary_learning_rates': [1.0, 2.0, 3.0]}, 'ascending'),
])
def test_learning_rate_refuses_arguments(kwargs, message):
  with pytest.raises(InputError, match=message):
    _rates([0], **kwargs)


# Gradient multipliers.

# A network with the scopes and kinds of variables of DeepLabv3+, and one number in each shape to tell heads apart.
_BACKBONE_SHAPES = {'MobilenetV2/Conv/weights': [3, 3, 3, 4], 'MobilenetV2/Conv/BatchNorm/gamma': [4],
                    'MobilenetV2/Conv/BatchNorm/moving_mean': [4]}


def _network_shapes(num_classes=21):
  return {**_BACKBONE_SHAPES, 'image_pooling/weights': [1, 1, 4, 5], 'aspp0/weights': [1, 1, 4, 5],
          'aspp1_depthwise/depthwise_weights': [3, 3, 4, 1], 'concat_projection/BatchNorm/beta': [5],
          'logits/semantic/weights': [1, 1, 5, num_classes], 'logits/semantic/biases': [num_classes]}


def _build(shapes, value=0.0):
  """Model variables of these names and shapes, and the global step."""
  tf.train.create_global_step()
  return {name: tf.get_variable(name, shape, initializer=tf.constant_initializer(value),
                                collections=[tf.GraphKeys.GLOBAL_VARIABLES, tf.GraphKeys.MODEL_VARIABLES])
          for name, shape in shapes.items()}


def _multipliers(last_layers, factor, shapes):
  with tf.Graph().as_default():
    _build(shapes)
    return train_utils.get_model_gradient_multipliers(last_layers, factor)


def test_gradient_multipliers():
  assert _multipliers(_LAST_LAYERS, 10.0, _network_shapes()) == {
      'image_pooling/weights': 10.0, 'aspp0/weights': 10.0, 'aspp1_depthwise/depthwise_weights': 10.0,
      'concat_projection/BatchNorm/beta': 10.0, 'logits/semantic/weights': 10.0, 'logits/semantic/biases': 20.0}
  assert _multipliers(['logits'], 1.0, _network_shapes()) == {'logits/semantic/weights': 1.0, 'logits/semantic/biases': 2.0}


def test_bias_of_the_backbone_counts_twice():
  assert _multipliers(['logits'], 10.0, {'MobilenetV3/Conv/biases': [4], 'MobilenetV3/Conv/weights': [1, 1, 4, 4]}) == {
      'MobilenetV3/Conv/biases': 2.0}


@pytest.mark.parametrize('name, expected', [
    ('logits/semantic/weights', True), ('aspp1_depthwise/BatchNorm/beta', True), ('clone/aspp0/weights', True),
    ('decoder/decoder_conv0/biases', True), ('xception_65/exit_logits/weights', False), ('MobilenetV2/Conv/weights', False)])
def test_last_layer_is_found_where_a_part_of_the_name_begins(name, expected):
  assert train_utils.is_last_layer(name, _LAST_LAYERS) is expected


# The start from another checkpoint.


def _save(prefix, shapes, value, step=7):
  """Writes a checkpoint whose variables all hold `value`, with an optimizer slot for each."""
  with tf.Graph().as_default(), tf.Session() as session:
    _build(shapes, value)
    for name, shape in shapes.items():
      tf.get_variable(name + '/Momentum', shape, initializer=tf.constant_initializer(value))
    session.run(tf.global_variables_initializer())
    tf.train.get_global_step().load(step, session)
    os.makedirs(os.path.dirname(prefix), exist_ok=True)
    tf.train.Saver().save(session, prefix)
  return prefix


def _start(checkpoint_path, logdir, shapes, initialize_last_layer=True, last_layers=('logits',), ignore_missing_vars=True,
           with_scaffold=True):
  """Runs the init function after the initializers; returns the value of each variable, or None where there is no function."""
  with tf.Graph().as_default(), tf.Session() as session:
    variables = _build(shapes)
    first = next(iter(variables))
    variables['Momentum'] = tf.get_variable(first + '/Momentum', shapes[first], initializer=tf.zeros_initializer())
    init_fn = train_utils.get_model_init_fn(str(logdir), checkpoint_path, initialize_last_layer, last_layers,
                                            ignore_missing_vars=ignore_missing_vars)
    if init_fn is None:
      return None
    session.run(tf.global_variables_initializer())
    init_fn(*([tf.train.Scaffold()] if with_scaffold else []), session)
    values = session.run({**variables, 'global_step': tf.train.get_global_step()})
  return {name: value.max() for name, value in values.items()}


@pytest.mark.parametrize('with_scaffold', [True, False])
def test_init_restores_model_variables_only(tmp_path, with_scaffold):
  prefix = _save(str(tmp_path / 'initial' / 'model.ckpt-7'), _network_shapes(), 3.0)
  values = _start(prefix, tmp_path, _network_shapes(), with_scaffold=with_scaffold)
  assert values.pop('Momentum') == 0.0
  assert values.pop('global_step') == 0
  assert set(values.values()) == {3.0}


@pytest.mark.parametrize('last_layers, fresh', [
    (['logits'], {'logits/semantic/weights', 'logits/semantic/biases'}),
    (_LAST_LAYERS, set(_network_shapes()) - set(_BACKBONE_SHAPES)),
])
def test_init_leaves_out_the_last_layers(tmp_path, caplog, last_layers, fresh):
  prefix = _save(str(tmp_path / 'initial' / 'model.ckpt'), _network_shapes(), 3.0)
  with caplog.at_level('INFO', logger='absl'):
    values = _start(prefix, tmp_path, _network_shapes(3), False, last_layers)
  assert {name for name in _network_shapes() if values[name] == 0.0} == fresh
  assert f'Restored {9 - len(fresh)} of 9 model variables' in caplog.text
  assert 'skipped by --initialize_last_layer=false' in caplog.text
  assert 'MobilenetV2 3' in caplog.text
  assert f'newly initialised: {len(fresh)}' in caplog.text


def test_init_with_other_classes_names_both_counts_and_the_flag(tmp_path):
  prefix = _save(str(tmp_path / 'initial' / 'model.ckpt'), _network_shapes(21), 3.0)
  with pytest.raises(InputError) as error:
    _start(prefix, tmp_path, _network_shapes(3))
  for text in ['logits/semantic/biases is [21] in the checkpoint and [3] in this network', '21 classes', 'network has 3',
               '--initialize_last_layer=false', '[1, 1, 5, 21]']:
    assert text in str(error.value)


def test_init_auto_starts_only_unlike_last_layers_afresh(tmp_path, caplog):
  prefix = _save(str(tmp_path / 'initial' / 'model.ckpt'), _network_shapes(21), 3.0)
  values = _start(prefix, tmp_path, _network_shapes(3), 'auto', _LAST_LAYERS)
  assert {name for name in _network_shapes() if values[name] == 0.0} == {'logits/semantic/weights', 'logits/semantic/biases'}
  assert 'start afresh: logits/semantic/weights is [1, 1, 5, 21]' in caplog.text
  assert set(_start(prefix, tmp_path, _network_shapes(21), 'auto', _LAST_LAYERS).values()) == {0.0, 3.0}


@pytest.mark.parametrize('initialize_last_layer', [True, False, 'auto'])
def test_init_from_another_width_is_refused(tmp_path, initialize_last_layer):
  prefix = _save(str(tmp_path / 'initial' / 'model.ckpt'), _network_shapes(), 3.0)
  shapes = {**_network_shapes(), 'MobilenetV2/Conv/weights': [3, 3, 3, 8]}
  with pytest.raises(InputError, match=r'MobilenetV2/Conv/weights is \[3, 3, 3, 4\].*\[3, 3, 3, 8\].*--depth_multiplier'):
    _start(prefix, tmp_path, shapes, initialize_last_layer)


def test_init_from_another_backbone_is_refused(tmp_path):
  prefix = _save(str(tmp_path / 'initial' / 'model.ckpt'), _network_shapes(), 3.0)
  shapes = {name.replace('MobilenetV2', 'xception_65'): shape for name, shape in _network_shapes().items()}
  with pytest.raises(InputError) as error:
    _start(prefix, tmp_path, shapes)
  for text in ['backbone xception_65', 'Scopes of the checkpoint: ', 'MobilenetV2', '--model_variant=mobilenet_v2']:
    assert text in str(error.value)


def test_init_from_backbone_alone(tmp_path, caplog):
  prefix = _save(str(tmp_path / 'initial' / 'model.ckpt'), _BACKBONE_SHAPES, 3.0)
  with caplog.at_level('INFO', logger='absl'):
    values = _start(prefix, tmp_path, _network_shapes())
  assert {name for name in _network_shapes() if values[name] == 3.0} == set(_BACKBONE_SHAPES)
  assert 'not in the checkpoint: image_pooling 1, aspp0 1, aspp1_depthwise 1, concat_projection 1, logits 2' in caplog.text
  assert 'lacks 6 variables of this network, which start afresh: image_pooling 1, aspp0 1' in caplog.text
  with pytest.raises(InputError, match='lacks 6 variables of this network: image_pooling/weights'):
    _start(prefix, tmp_path, _network_shapes(), ignore_missing_vars=False)


_RANGE_SHAPES = {
    'MobilenetV2/Conv/weights_quant/min': [], 'MobilenetV2/Conv/weights_quant/max': [],
    'aspp0/act_quant/min': [], 'aspp0/act_quant/max': [], 'aspp0/act_quant/aspp0/act_quant/min/biased': [],
    'aspp0/act_quant/aspp0/act_quant/min/local_step': []}


@pytest.mark.parametrize('initialize_last_layer', [True, False, 'auto'])
def test_init_of_8_bit_training_from_floating_point(tmp_path, caplog, initialize_last_layer):
  prefix = _save(str(tmp_path / 'initial' / 'model.ckpt'), _network_shapes(), 3.0)
  with caplog.at_level('INFO', logger='absl'):
    values = _start(prefix, tmp_path, {**_network_shapes(), **_RANGE_SHAPES}, initialize_last_layer, ignore_missing_vars=False)
  assert {values[name] for name in _RANGE_SHAPES} == {0.0}
  assert f'Restored {9 if initialize_last_layer else 7} of 9 model variables' in caplog.text
  assert 'The 2 ranges of 8-bit training start afresh.' in caplog.text
  assert 'not in the checkpoint' not in caplog.text
  assert not [record for record in caplog.records if record.levelname == 'WARNING']


def test_init_of_8_bit_training_from_8_bits_names_missing_ranges(tmp_path, caplog):
  lost = 'aspp0/act_quant/aspp0/act_quant/min/biased'
  held = {**_network_shapes(), **_RANGE_SHAPES}
  del held[lost]
  prefix = _save(str(tmp_path / 'initial' / 'model.ckpt'), held, 3.0)
  values = _start(prefix, tmp_path, {**held, lost: []})
  assert {name for name, value in values.items() if value == 0.0} == {lost, 'Momentum', 'global_step'}
  assert 'lacks 1 variables of this network, which start afresh: aspp0 1.' in caplog.text


def test_checkpoint_of_the_training_takes_precedence(tmp_path, caplog):
  initial = _save(str(tmp_path / 'initial' / 'model.ckpt'), _network_shapes(), 3.0)
  _save(str(tmp_path / 'log' / 'model.ckpt-7'), _network_shapes(), 5.0, step=7)
  assert _start(initial, tmp_path / 'log', _network_shapes()) is None
  assert (f'RESUMING the run in {tmp_path / "log"} from step 7 (model.ckpt-7). Ignored because of that: '
          f'--tf_initial_checkpoint={initial} and --initialize_last_layer.') in caplog.text
  with pytest.raises(InputError, match='no such checkpoint'):
    _start(str(tmp_path / 'initial' / 'wrong'), tmp_path / 'log', _network_shapes())


def test_init_without_checkpoint(tmp_path):
  assert _start(None, tmp_path, _network_shapes()) is None


def test_init_refuses_unknown_mode(tmp_path):
  with pytest.raises(InputError, match='--initialize_last_layer=false: choose one of: true, false, auto'):
    _start('unused', tmp_path, _network_shapes(), 'false')
