"""Simulated 8-bit arithmetic: its parts by hand, a small network in training, and the integer TFLite file."""

import contextlib
from unittest import mock

import golden
import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

from deeplab import common, export_model, model, train
from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import slim, tf
from deeplab.core.layers import fake_quantize, layers, quantized_layers
from deeplab.core.networks import feature_extractor
from deeplab.core.networks.backbone import UNIT_RANGE, Backbone
from deeplab.core.networks.mobilenet import mobilenet, mobilenet_v3
from deeplab.core.networks.mobilenet.mobilenet import Block, Conv
from deeplab.core.run import run_options
from deeplab.datasets import dataset_info

FLAGS = flags.FLAGS
_CROP = [33, 33]
# A stem, a residual block, and one with gates.
_ROWS = (Conv(3, 2, 8, tf.nn.relu6), Block(3, 1, 2, 8, tf.nn.relu6), Block(3, 2, 2, 8, mobilenet_v3.hard_swish, True))
_OPTIONS = common.ModelOptions({common.OUTPUT_TYPE: 3}, _CROP, None, 4, model_variant='small', aspp_convs_filters=8)


@pytest.fixture(autouse=True)
def small_network(monkeypatch):
  def build(images, options, training):
    return mobilenet.mobilenet(images, 'Small', _ROWS, options, training)
  row = Backbone(build, 'Small', UNIT_RANGE, {2: 'layer_1'}, honours=frozenset(['quantize_delay_step']))
  monkeypatch.setattr(slim, 'dropout', lambda inputs, *args, **kwargs: inputs)
  with mock.patch.dict(feature_extractor.BACKBONES, small=row):
    yield


@contextlib.contextmanager
def _quantizing(**state):
  """A session on a new graph in which layers quantise."""
  training = layers.TrainingState(**{'is_training': True, 'quantize_delay_step': 0, **state})
  with tf.Graph().as_default(), tf.Session() as session, slim.arg_scope(quantized_layers.arg_scope(training)):
    yield session


def _updates():
  return tf.get_collection(tf.GraphKeys.UPDATE_OPS)


def _range(session):
  return session.run([v for v in tf.model_variables() if v.op.name in ('x/min', 'x/max')])


def test_range_of_an_activation_is_a_debiased_moving_average():
  with _quantizing() as session:
    inputs = tf.placeholder(tf.float32, [3])
    rounded = fake_quantize.activation(inputs, 'x')
    session.run(tf.global_variables_initializer())
    assert _range(session) == [-6, 6]
    first, _ = session.run([rounded, _updates()], {inputs: [-1, 0, 1.55]})
    np.testing.assert_allclose(_range(session), [-1, 1.55], rtol=1e-4)
    # 255 steps of 0.01: 0 is a level, and so are the ends.
    np.testing.assert_allclose(first, [-1, 0, 1.55], atol=1e-4)
    session.run(_updates(), {inputs: [-3, 0, 0.55]})
    np.testing.assert_allclose(_range(session), [-(0.999 * 1 + 3) / 1.999, (0.999 * 1.55 + 0.55) / 1.999], rtol=1e-4)


def test_range_always_holds_zero():
  with _quantizing() as session:
    fake_quantize.activation(tf.constant([2.0, 3.0]), 'x')
    session.run(tf.global_variables_initializer())
    session.run(_updates())
    np.testing.assert_allclose(_range(session), [0, 3], rtol=1e-4)


def test_evaluation_rounds_in_the_stored_range():
  with _quantizing(is_training=False, quantize_delay_step=10) as session:
    rounded = fake_quantize.activation(tf.constant([-9.0, 0.0, 1.0, 9.0]), 'x')
    session.run(tf.global_variables_initializer())
    step = 12 / 255
    # -6..6 has no level at 0; the range moves by half a step.
    np.testing.assert_allclose(session.run(rounded), [-128 * step, 0, 21 * step, 127 * step], atol=1e-5)
    assert not _updates()


def test_weights_have_255_levels_in_their_present_range():
  with _quantizing() as session:
    rounded = fake_quantize.weights(tf.constant([-1.27, 0.0, 0.004, 0.006, 1.27]))
    session.run(tf.global_variables_initializer())
    np.testing.assert_allclose(session.run(rounded), [-1.27, 0, 0, 0.01, 1.27], atol=1e-6)


def test_delay():
  with _quantizing(quantize_delay_step=2) as session:
    step = tf.train.get_or_create_global_step()
    rounded = fake_quantize.activation(tf.constant([0.0, 0.013, 2.55]), 'x')
    session.run(tf.global_variables_initializer())
    for value, expected in ((0, 0.013), (1, 0.013), (2, 0.01), (3, 0.01)):
      step.load(value, session)
      np.testing.assert_allclose(session.run(rounded)[1], expected, atol=1e-4)


def _gradients(images, delay):
  """(merged logits, gradients of the trainable variables by name) of the small network in training."""
  with tf.Graph().as_default(), tf.Session() as session:
    tf.set_random_seed(1)
    logits = model.multi_scale_logits(tf.constant(images), _OPTIONS, None, is_training=True, fine_tune_batch_norm=True,
                                      quantize_delay_step=delay)[common.OUTPUT_TYPE][model.MERGED_LOGITS_SCOPE]
    variables = tf.trainable_variables()
    gradients = tf.gradients(tf.reduce_sum(tf.square(logits)), variables)
    random = np.random.RandomState(1)
    values = {v.op.name: random.uniform(0.5, 1, v.shape.as_list()) if v.op.name.endswith('gamma') else
                         random.normal(0, 0.3, v.shape.as_list()) for v in sorted(variables, key=lambda v: v.op.name)}
    session.run(tf.global_variables_initializer(), {v.initializer.inputs[1]: values[v.op.name] for v in variables})
    logits, gradients, _ = session.run([logits, {v.op.name: g for v, g in zip(variables, gradients)}, _updates()])
    moved = session.run({v.op.name: v for v in tf.global_variables() if 'moving' in v.op.name})
    return logits, gradients, moved


def test_folded_layers_train_as_others_until_rounding_begins():
  images = np.random.RandomState(0).uniform(0, 255, [2, *_CROP, 3]).astype(np.float32)
  logits, gradients, moved = _gradients(images, 1)
  expected_logits, expected_gradients, expected_moved = _gradients(images, -1)
  np.testing.assert_allclose(logits, expected_logits, atol=1e-3 * expected_logits.std())
  assert set(gradients) == set(expected_gradients) and set(moved) == set(expected_moved)
  scale = np.sqrt(sum(np.square(gradient).sum() for gradient in expected_gradients.values()))
  for name, gradient in expected_gradients.items():
    np.testing.assert_allclose(gradients[name], gradient, rtol=1e-2, atol=1e-4 * scale, err_msg=name)
  for name, value in expected_moved.items():
    np.testing.assert_allclose(moved[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


class _Batches:
  """An iterator over noise that the global step and the clone decide."""

  def __init__(self):
    random = np.random.RandomState(0)
    self._images = random.uniform(0, 255, [4, 2, 2, *_CROP, 3]).astype(np.float32)
    self._labels = random.randint(0, 3, [4, 2, 2, *_CROP, 1]).astype(np.int32)
    self._clones = 0

  def get_next(self):
    step = tf.identity(tf.train.get_global_step())
    clone, self._clones = self._clones, self._clones + 1
    return {'image': tf.constant(self._images)[step, clone], 'label': tf.constant(self._labels)[step, clone]}


def _build_training(**values):
  for name, value in {'model_variant': 'small', 'output_stride': 4, 'train_crop_size': _CROP, 'aspp_convs_filters': 8,
                      'fine_tune_batch_norm': True, 'clone_on_cpu': True, 'base_learning_rate': 0.01, **values}.items():
    setattr(FLAGS, name, value)
  tf.set_random_seed(1)
  return train._train_deeplab_model(_Batches(), 3, 255)[0]


def _state(session):
  return session.run({v.op.name: v for v in tf.global_variables()})


def test_resuming_in_the_delay_and_after_it_continues_exactly(tmp_path):
  with tf.Graph().as_default(), tf.Session() as session:
    train_tensor = _build_training(quantize_delay_step=2)
    saver = tf.train.Saver()
    session.run(tf.global_variables_initializer())
    paths, losses = {}, []
    for step in range(4):
      paths[step] = saver.save(session, str(tmp_path / f'{step}'))
      losses.append(session.run(train_tensor))
    expected = _state(session)
    for first in (1, 3):
      session.run(tf.global_variables_initializer())
      saver.restore(session, paths[first])
      assert [session.run(train_tensor) for _ in range(first, 4)] == losses[first:]
      actual = _state(session)
      assert all(np.array_equal(actual[name], value) for name, value in expected.items())
  assert any(name.endswith('/local_step') and value == 4 for name, value in expected.items())


@pytest.mark.full
def test_ranges_are_those_of_the_first_clone():
  states = []
  for num_clones in (1, 2):
    with tf.Graph().as_default(), tf.Session() as session:
      train_tensor = _build_training(quantize_delay_step=0, num_clones=num_clones)
      session.run(tf.global_variables_initializer())
      loss = session.run(train_tensor)
      states.append(_state(session))
      assert np.isfinite(loss)
  one, two = states
  assert set(one) == set(two)
  stored = [name for name in one if 'quant' in name or 'moving' in name]
  assert len(stored) > 100
  for name in stored:
    np.testing.assert_allclose(two[name], one[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_frozen_scopes_keep_their_batch_norm_and_quantise():
  with tf.Graph().as_default():
    model.multi_scale_logits(tf.zeros([2, *_CROP, 3]), _OPTIONS, None, is_training=True, fine_tune_batch_norm=True,
                             frozen_scopes=['Small'], quantize_delay_step=0)
    updated = {op.inputs[0].op.name for op in _updates()}
  assert {name.split('/')[0] for name in updated if 'moving' in name} == {'image_pooling', 'aspp0', 'concat_projection'}
  assert 'Small/Conv/weights_quant/min' in updated


def test_unable_backbone_is_refused_by_name():
  with tf.Graph().as_default() as graph:
    images = tf.placeholder(tf.float32, [1, *_CROP, 3])
    with pytest.raises(InputError, match='--quantize_delay_step=5 does not go with --model_variant=xception_65: only these can '
                                         'be quantised: mobilenet_v2, mobilenet_v3_large_seg, mobilenet_v3_small_seg'):
      model.multi_scale_logits(images, _OPTIONS._replace(model_variant='xception_65', output_stride=16), None,
                               quantize_delay_step=5)
    assert graph.get_operations() == [images.op]


def test_several_scales_are_refused():
  with tf.Graph().as_default():
    images = tf.zeros([1, *_CROP, 3])
    with pytest.raises(InputError, match='--image_pyramid=0.5,1.0 does not go with --quantize_delay_step'):
      model.predict(images, _OPTIONS, image_pyramid=[0.5, 1.0], quantize_delay_step=0)
    for scales, flip in (([0.5, 1.0], False), ([1.0], True)):
      with pytest.raises(InputError, match='--quantize_delay_step keeps the ranges of one scale'):
        model.predict(images, _OPTIONS, scales, flip, quantize_delay_step=0)


def _smooth_image():
  rows, columns = np.mgrid[:_CROP[0], :_CROP[1]] / 33
  return np.stack([255 * rows, 255 * columns, 255 * np.abs(rows - columns)], axis=2).astype(np.uint8)[np.newaxis]


@pytest.fixture
def quantized_run(tmp_path):
  """(folder, labels that the quantised network sees in the smooth image)."""
  image = _smooth_image()
  with tf.Graph().as_default(), tf.Session() as session:
    logits = model.multi_scale_logits(tf.constant(image, tf.float32), _OPTIONS, None, is_training=True, quantize_delay_step=0)[
        common.OUTPUT_TYPE][model.MERGED_LOGITS_SCOPE]
    golden.assign_weights(session, tf.trainable_variables())
    session.run([v.initializer for v in tf.global_variables() if v not in tf.trainable_variables()])
    # The biases are set so that no class wins everywhere.
    biases, = (v for v in tf.trainable_variables() if v.op.name == 'logits/semantic/biases')
    biases.load(session.run(biases) - session.run(logits).mean(axis=(0, 1, 2)), session)
    session.run(_updates())
    tf.train.create_global_step().load(1, session)
    tf.train.Saver().save(session, str(tmp_path / 'model.ckpt'), global_step=1)
  with flagsaver.flagsaver(quantize_delay_step=0):
    run_options.write(str(tmp_path), common.run_flags(_OPTIONS), dataset_info.describe('shapes', 3))
  with tf.Graph().as_default(), tf.Session() as session:
    labels, _ = model.predict(tf.constant(image, tf.float32), _OPTIONS, quantize_delay_step=0)
    tf.train.Saver().restore(session, str(tmp_path / 'model.ckpt-1'))
    return tmp_path, session.run(labels)


def _export(folder, **values):
  for name, value in {'checkpoint_path': str(folder), 'crop_size': _CROP, **values}.items():
    setattr(FLAGS, name, value)
  export_model.main(['export_model'])


def test_tflite_file_computes_with_integers_as_the_quantised_network(quantized_run):
  folder, expected = quantized_run
  assert min(np.bincount(expected.reshape(-1))) > 50
  _export(folder, tflite_path=str(folder / 'model.tflite'), export_path=str(folder / 'model.pb'))
  interpreter = tf.lite.Interpreter(str(folder / 'model.tflite'))
  interpreter.allocate_tensors()
  assert not [tensor['name'] for tensor in interpreter.get_tensor_details() if tensor['dtype'] in (np.float32, np.float16)]
  (image,), (labels,) = interpreter.get_input_details(), interpreter.get_output_details()
  assert (image['name'], image['dtype'], image['shape'].tolist()) == ('ImageTensor', np.uint8, [1, *_CROP, 3])
  assert (labels['name'], labels['dtype'], labels['shape'].tolist()) == ('SemanticPredictions', np.int32, [1, *_CROP])
  interpreter.set_tensor(image['index'], _smooth_image())
  interpreter.invoke()
  assert (interpreter.get_tensor(labels['index']) == expected).mean() > 0.95
  with tf.Graph().as_default(), tf.Session() as session:
    tf.import_graph_def(tf.GraphDef.FromString((folder / 'model.pb').read_bytes()), name='')
    assert (session.run('SemanticPredictions:0', {'ImageTensor:0': _smooth_image()}) == expected).mean() > 0.999
  with pytest.raises(InputError, match='--tflite_weights=float16: .* trained with --quantize_delay_step'):
    _export(folder, tflite_weights='float16')
  FLAGS.tflite_weights = 'float32'
  with pytest.raises(InputError, match='--onnx_path=model.onnx: .* trained with --quantize_delay_step'):
    _export(folder, onnx_path='model.onnx')
