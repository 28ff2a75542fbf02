"""export_model.py from a checkpoint to its files, run as their users do, against the network itself."""

import shutil

import numpy as np
import onnxruntime
import pytest
import tiny_network
import tiny_run
from absl import flags
from PIL import Image

from deeplab import common, export_model, vis
from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf
from deeplab.core.run import checkpoint

FLAGS = flags.FLAGS
_NO_RESIZE = {'min_resize_value': None, 'max_resize_value': None, 'resize_factor': None, 'keep_aspect_ratio': True}


@pytest.fixture(scope='module')
def predictions(run_dir):
  """(labels, probabilities) of each image."""
  results = tiny_network.predict(run_dir, tiny_network.images())
  assert all(len(np.unique(labels)) > 2 for labels, _ in results)
  return results


def _export(run_dir, **values):
  FLAGS.checkpoint_path = str(run_dir)
  FLAGS.crop_size = tiny_network.CROP
  for name, value in values.items():
    setattr(FLAGS, name, value)
  export_model.main(['export_model'])


def _run_frozen_graph(path, images):
  """(labels, probabilities) of each image, by the names that clients know."""
  graph_def = tf.GraphDef.FromString(path.read_bytes())
  with tf.Graph().as_default(), tf.Session() as session:
    tf.import_graph_def(graph_def, name='')
    return [session.run(['SemanticPredictions:0', 'SemanticProbabilities:0'], {'ImageTensor:0': image[np.newaxis]})
            for image in images]


def _interpreter(content):
  interpreter = tf.lite.Interpreter(model_content=content)
  interpreter.allocate_tensors()
  return interpreter


def _run_tflite(interpreter, image):
  interpreter.set_tensor(interpreter.get_input_details()[0]['index'], image)
  interpreter.invoke()
  return interpreter.get_tensor(interpreter.get_output_details()[0]['index'])


def test_frozen_graph_and_saved_model_predict_as_the_network(run_dir, predictions, tmp_path):
  images = tiny_network.images()
  frozen, saved_model = tmp_path / 'new' / 'frozen_inference_graph.pb', tmp_path / 'new' / 'saved_model'
  _export(run_dir, export_path=str(frozen), saved_model_dir=str(saved_model), save_inference_graph=True)
  for (labels, probabilities), (expected_labels, expected_probabilities) in zip(_run_frozen_graph(frozen, images), predictions,
                                                                                 strict=True):
    assert labels.dtype == np.int32 and labels.shape == (1, *expected_labels.shape)
    assert (labels[0] == expected_labels).mean() > 0.999
    assert probabilities.dtype == np.float32
    np.testing.assert_allclose(probabilities[0], expected_probabilities, atol=1e-5)
  with pytest.raises(tf.errors.InvalidArgumentError, match='ImageTensor is 66x40 .height x width. but the crop is 65x65'):
    _run_frozen_graph(frozen, [np.zeros([66, 40, 3], np.uint8)])

  graph_def = tf.GraphDef.FromString(frozen.read_bytes())
  assert not any(node.device or 'Variable' in node.op for node in graph_def.node)
  assert {'ArgMax', 'RawSemanticPredictions', 'RawSemanticProbabilities'} <= {node.name for node in graph_def.node}
  assert 'name: "ImageTensor"' in (tmp_path / 'new' / 'inference_graph.pbtxt').read_text()

  with tf.Graph().as_default(), tf.Session() as session:
    signature = tf.saved_model.load(session, ['serve'], str(saved_model)).signature_def['serving_default']
    assert list(signature.inputs) == ['ImageTensor']
    assert sorted(signature.outputs) == ['SemanticPredictions', 'SemanticProbabilities']
    labels = session.run(signature.outputs['SemanticPredictions'].name,
                         {signature.inputs['ImageTensor'].name: images[1][np.newaxis]})
  assert (labels[0] == predictions[1][0]).mean() > 0.999


def test_resizing_is_undone_in_the_graph(run_dir, tmp_path):
  image, = tiny_network.images([(96, 64)])
  _export(run_dir, export_path=str(tmp_path / 'model.pb'), min_resize_value=40, max_resize_value=60)
  (labels, probabilities), = _run_frozen_graph(tmp_path / 'model.pb', [image])
  assert labels.shape == (1, 96, 64) and probabilities.shape == (1, 96, 64, tiny_network.NUM_CLASSES)
  np.testing.assert_allclose(probabilities.sum(axis=3), 1, atol=1e-5)
  with tf.Graph().as_default(), tf.Session() as session:
    resized = session.run(tf.image.resize_bilinear(image[np.newaxis], [60, 40], align_corners=True))[0]
    expected, _ = tiny_network.predict(run_dir, [resized])[0]
    expected = session.run(tf.image.resize_nearest_neighbor(expected[np.newaxis, ..., np.newaxis], [96, 64], align_corners=True))
  assert (labels[0] == expected[0, ..., 0]).mean() > 0.999


def test_flips_are_averaged_at_scale_1(run_dir, predictions, tmp_path):
  image = tiny_network.images()[0]
  _export(run_dir, export_path=str(tmp_path / 'model.pb'), add_flipped_images=True)
  (_, probabilities), = _run_frozen_graph(tmp_path / 'model.pb', [image])
  (_, expected), = tiny_network.predict(run_dir, [image], flip=True)
  np.testing.assert_allclose(probabilities[0], expected, atol=1e-5)
  assert abs(probabilities[0] - predictions[0][1]).max() > 1e-3


def test_probabilities_of_several_scales_are_their_mean(run_dir, tmp_path):
  image = tiny_network.images()[0]
  _export(run_dir, export_path=str(tmp_path / 'model.pb'), inference_scales=[0.5, 1.0], add_flipped_images=True)
  (labels, probabilities), = _run_frozen_graph(tmp_path / 'model.pb', [image])
  alone = [tiny_network.predict(run_dir, [image], scales=(scale,), flip=True)[0][1] for scale in (0.5, 1.0)]
  np.testing.assert_allclose(probabilities[0], np.mean(alone, axis=0), atol=1e-5)
  np.testing.assert_allclose(probabilities.sum(axis=3), 1, atol=1e-5)
  assert (labels[0] == probabilities[0].argmax(axis=2)).mean() > 0.999


def _run_onnx(path, images):
  """(labels, probabilities) of each image, by ONNX Runtime."""
  session = onnxruntime.InferenceSession(str(path), providers=['CPUExecutionProvider'])
  return [session.run(['SemanticPredictions', 'SemanticProbabilities'], {'ImageTensor': image[np.newaxis]}) for image in images]


def test_onnx_file_predicts_as_the_network_at_any_size(run_dir, predictions, tmp_path):
  _export(run_dir, onnx_path=str(tmp_path / 'new' / 'model.onnx'))
  results = _run_onnx(tmp_path / 'new' / 'model.onnx', tiny_network.images())
  for (labels, probabilities), (expected_labels, expected_probabilities) in zip(results, predictions, strict=True):
    assert labels.dtype == np.int32 and labels.shape == (1, *expected_labels.shape)
    assert (labels[0] == expected_labels).mean() > 0.999
    np.testing.assert_allclose(probabilities[0], expected_probabilities, atol=1e-5)
  assert [path.name for path in (tmp_path / 'new').iterdir()] == ['model.onnx']


def test_onnx_file_scales_flips_and_resizes_as_the_frozen_graph(run_dir, tmp_path):
  images = tiny_network.images([(96, 64), (50, 70)])
  _export(run_dir, onnx_path=str(tmp_path / 'model.onnx'), export_path=str(tmp_path / 'model.pb'), min_resize_value=40,
          max_resize_value=60, inference_scales=[0.5], add_flipped_images=True)
  for found, expected in zip(_run_onnx(tmp_path / 'model.onnx', images), _run_frozen_graph(tmp_path / 'model.pb', images),
                             strict=True):
    assert found[0].shape == expected[0].shape and (found[0] == expected[0]).mean() > 0.999
    np.testing.assert_allclose(found[1], expected[1], atol=1e-5)


def test_missing_converter_is_named_with_its_extra(run_dir, tmp_path, monkeypatch):
  monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
  with pytest.raises(InputError, match=r'--onnx_path=.*model.onnx needs the package tf2onnx.*pip install "deeplab-slim\[onnx\]"'):
    _export(run_dir, onnx_path=str(tmp_path / 'model.onnx'))


@pytest.mark.parametrize('weights, label_dtype, agreement, bytes_per_weight', [
    ('float32', 'int32', 0.995, 4), ('float16', 'uint8', 0.99, 2), ('int8', 'int32', 0.9, 1)])
def test_tflite(run_dir, predictions, tmp_path, weights, label_dtype, agreement, bytes_per_weight):
  path = tmp_path / 'model.tflite'
  _export(run_dir, tflite_path=str(path), tflite_weights=weights, tflite_label_dtype=label_dtype)
  # The structure of the network takes less than a quarter of a megabyte.
  num_weights = sum(np.prod(shape) for shape in checkpoint.variable_shapes(str(run_dir / 'model.ckpt-7')).values())
  assert path.stat().st_size < bytes_per_weight * num_weights + 250_000
  interpreter = _interpreter(path.read_bytes())
  image, = interpreter.get_input_details()
  labels, = interpreter.get_output_details()
  assert (image['name'], image['dtype'], image['shape'].tolist()) == ('ImageTensor', np.uint8, [1, 65, 65, 3])
  assert (labels['name'], labels['dtype'], labels['shape'].tolist()) == ('SemanticPredictions', np.dtype(label_dtype),
                                                                         [1, 65, 65])
  operations = {details['op_name'] for details in interpreter._get_ops_details()}
  assert 'CONV_2D' in operations and not operations & {'WHILE', 'IF', 'CALL_ONCE', 'CUSTOM'}
  assert not [name for name in operations if name.startswith('Flex')]
  # The image that fills the crop; around others, 127 stands for the 127.5 that a byte cannot hold.
  predicted = _run_tflite(interpreter, tiny_network.images()[-1][np.newaxis])
  assert (predicted[0] == predictions[-1][0]).mean() > agreement


def test_uint8_labels_must_hold_all_classes():
  model_options = tiny_network.options()._replace(outputs_to_num_classes={'semantic': 257})
  options = common.CheckpointOptions(model_options, None, _NO_RESIZE, None)
  with pytest.raises(InputError, match='--tflite_label_dtype=uint8 holds at most 256 classes, the network has 257'):
    export_model.build_tflite_graph(options, label_dtype=tf.uint8)


def test_options_come_from_the_run(run_dir, tmp_path):
  """Neither --depth_multiplier nor --num_classes is given; a contradiction is refused."""
  with pytest.raises(InputError, match='--depth_multiplier is 1.0, the run has 0.35'):
    FLAGS.depth_multiplier = 1.0
    _export(run_dir, export_path=str(tmp_path / 'model.pb'))
  FLAGS.depth_multiplier = 0.35
  with pytest.raises(InputError, match='5 classes'):
    _export(run_dir, export_path=str(tmp_path / 'model.pb'), num_classes=21)


@pytest.mark.parametrize('values, message', [
    ({}, 'Nothing to export: give --export_path'),
    ({'tflite_path': 'model.tflite', 'save_inference_graph': True}, '--save_inference_graph .* --export_path'),
    ({'tflite_path': 'model.tflite', 'quantize_delay_step': 0}, '--quantize_delay_step is 0, the run has -1'),
    ({'tflite_path': 'model.tflite', 'inference_scales': [1.0, -1.0]}, '--inference_scales=1.0,-1.0'),
    ({'export_path': '.'}, '--export_path=. is a folder'),
    ({'tflite_path': '.'}, '--tflite_path=. is a folder'),
    ({'onnx_path': '.'}, '--onnx_path=. is a folder'),
    ({'saved_model_dir': '.'}, '--saved_model_dir=. exists and is no SavedModel'),
    ({'export_path': f'{__file__}/graph.pb'}, '--export_path: .*export_model_test.py is no folder that can be written to'),
    ({'tflite_path': '/proc/none/model.tflite'}, '--tflite_path: /proc/none is no folder that can be written to'),
    ({'saved_model_dir': f'{__file__}/model/'}, '--saved_model_dir: .*export_model_test.py is no folder'),
    ({'tflite_path': 'model.tflite', 'max_resize_value': 65}, '--max_resize_value=65 with --min_resize_value=not set'),
])
def test_bad_flags_are_refused(run_dir, values, message):
  with pytest.raises(InputError, match=message):
    _export(run_dir, **values)


@pytest.fixture(scope='module')
def dense_run(tmp_path_factory):
  """A run with rates and a decoder."""
  folder = tmp_path_factory.mktemp('dense')
  tiny_network.write_run(folder, atrous_rates=[1, 2], decoder_output_stride=[4], output_stride=8)
  return folder


def test_export_sees_what_vis_draws(dense_run, tmp_path):
  """Neither is told about the network."""
  images = tiny_network.images()
  records = tiny_run.write_records(tmp_path / 'records', [(image, np.zeros(image.shape[:2], np.uint8)) for image in images],
                                   tiny_network.NUM_CLASSES, 'val')
  code, log = tiny_run.run(vis, f'--dataset_dir={records}', f'--checkpoint_dir={dense_run}', f'--vis_logdir={tmp_path}',
                           '--vis_crop_size=65', '--max_number_of_iterations=1', '--also_save_raw_predictions')
  assert not code, log
  code, log = tiny_run.run(export_model, f'--checkpoint_path={dense_run}', f'--export_path={tmp_path}/graph.pb',
                           '--crop_size=65')
  assert not code, log
  for index, (labels, _) in enumerate(_run_frozen_graph(tmp_path / 'graph.pb', images)):
    with Image.open(tmp_path / 'raw_segmentation_results' / f'picture{index}.png') as drawn:
      assert len(np.unique(labels)) > 1 and (np.asarray(drawn) == labels[0]).mean() > 0.999


def test_export_warns_of_another_output_stride(dense_run, tmp_path):
  code, log = tiny_run.run(export_model, f'--checkpoint_path={dense_run}', f'--export_path={tmp_path}/graph.pb',
                           '--crop_size=65', '--output_stride=16')
  assert not code and 'WARNING --output_stride=16 is used as given; the checkpoint was trained with 8.' in log


@pytest.mark.parametrize('given, message', [
    ('', 'in this network. Compare with the flags of the training: --model_variant, --depth_multiplier'),
    ('--model_variant=resnet_v1_18', 'it lacks resnet_v1_18'),
    ('--depth_multiplier=0.35', 'it holds aspp1_depthwise'),
    ('--depth_multiplier=0.35 --atrous_rates=1,2', 'it holds decoder'),
])
def test_checkpoint_without_description_wants_the_flags_of_its_network(dense_run, tmp_path, given, message):
  shutil.copytree(dense_run, tmp_path / 'train')
  (tmp_path / 'train' / 'model_options.json').unlink()
  code, log = tiny_run.run(export_model, f'--checkpoint_path={tmp_path}/train', f'--export_path={tmp_path}/graph.pb',
                           '--crop_size=65', *given.split())
  assert code == 1 and 'is of another network: ' in log and message in log
  assert not (tmp_path / 'graph.pb').exists()


def test_saved_model_is_replaced(tmp_path):
  for value in (1.0, 2.0):
    with tf.Graph().as_default(), tf.Session() as session:
      number = tf.placeholder(tf.float32, [], name='number')
      export_model.write_saved_model(session, [number], [tf.add(number, value, name='sum')], str(tmp_path / 'model'))
  assert [path.name for path in tmp_path.iterdir()] == ['model']
  with tf.Graph().as_default(), tf.Session() as session:
    tf.saved_model.load(session, ['serve'], str(tmp_path / 'model'))
    assert session.run('sum:0', {'number:0': 3.0}) == 5.0
