"""Writes a trained checkpoint as a model that runs elsewhere: frozen graph, SavedModel, ONNX file, TFLite file.

python export_model.py --checkpoint_path=... --export_path=out/frozen_inference_graph.pb

Frozen graph, SavedModel and ONNX file take an image of any size that fits into --crop_size (after resizing, if asked for):
    ImageTensor              uint8 [1, height, width, 3], RGB
    SemanticPredictions      int32 [1, height, width]
    SemanticProbabilities    float32 [1, height, width, classes]
The TFLite file takes and gives the crop itself; smaller images are padded on the right and below by who calls it:
    ImageTensor              uint8 [1, crop height, crop width, 3], RGB
    SemanticPredictions      int32 or uint8 [1, crop height, crop width]
That of a network trained with --quantize_delay_step computes with 8-bit integers alone.
"""

import contextlib
import importlib.util
import os

from absl import flags, logging

from deeplab import common, model
from deeplab.core.base import files, quiet_start
from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf
from deeplab.core.images import input_preprocess
from deeplab.core.networks import feature_extractor
from deeplab.core.run import checkpoint, checkpoint_fit

FLAGS = flags.FLAGS

common.define_network_flags()

flags.DEFINE_string('checkpoint_path', None, 'Prefix of the checkpoint, or its folder.')
flags.DEFINE_integer('num_classes', None, 'Number of classes; unset: that of the checkpoint.', lower_bound=1)
common.define_numbers('crop_size', [513, 513], 'height,width of the network input in pixels; larger images are refused.')
common.define_numbers('inference_scales', [1.0], 'Scales at which an image is seen; their probabilities are averaged.', float)
common.define_flip_flag()

# Output; at least one of the four paths.
flags.DEFINE_string('export_path', None, 'File for the frozen graph, for example out/frozen_inference_graph.pb.')
flags.DEFINE_string('saved_model_dir', None, 'Folder for a SavedModel with the signature serving_default.')
flags.DEFINE_string('onnx_path', None, 'File for an ONNX model, for example out/model.onnx; needs the extra [onnx].')
flags.DEFINE_string('tflite_path', None, 'File for a TFLite model, for example out/model.tflite.')
flags.DEFINE_boolean('save_inference_graph', False, 'Also write inference_graph.pbtxt beside the frozen graph.')
flags.DEFINE_enum('tflite_weights', 'float32', ['float32', 'float16', 'int8'], 'How the TFLite file holds its weights; with int8 '
                  '(dynamic range) it computes in 8 bits, activations scaled on the fly.')
flags.DEFINE_enum('tflite_label_dtype', 'int32', ['int32', 'uint8'], 'Numbers in which the TFLite model gives labels.')

INPUT_NAME = 'ImageTensor'
LABELS_NAME = 'SemanticPredictions'
PROBABILITIES_NAME = 'SemanticProbabilities'
_RAW_LABELS_NAME = 'RawSemanticPredictions'
_RAW_PROBABILITIES_NAME = 'RawSemanticProbabilities'
_GRAPH_TEXT_FILE = 'inference_graph.pbtxt'
_SAVED_MODEL_FILE = 'saved_model.pb'
_FILE_FLAGS = ('export_path', 'onnx_path', 'tflite_path')
_PATH_FLAGS = (*_FILE_FLAGS, 'saved_model_dir')
# Of ONNX 1.8, which runtimes read since 2020.
_ONNX_OPSET = 13


def build_inference_graph(checkpoint_options, scales=(1.0,), add_flipped_images=False):
  """Builds image -> prediction in the default graph, with the names of the module's docstring.

  Args:
    checkpoint_options: common.CheckpointOptions; its crop size is known.
    scales: scales at which the image is seen.
    add_flipped_images: whether each scale is seen mirrored, too.

  Returns:
    (image, labels, probabilities), tensors. Running them raises InvalidArgumentError for an image larger than the crop.
  """
  options = checkpoint_options.model_options
  image = tf.placeholder(tf.uint8, [1, None, None, 3], name=INPUT_NAME)
  height, width = options.crop_size
  resized, padded, _ = input_preprocess.preprocess_image_and_label(
      tf.squeeze(image, [0]), None, height, width, is_training=False, image_name=INPUT_NAME,
      pad_pixel=feature_extractor.mean_pixel(options.model_variant), **checkpoint_options.resize)
  labels, probabilities = model.predict(tf.expand_dims(padded, 0), options, scales, add_flipped_images,
                                        checkpoint_options.image_pyramid, checkpoint_options.quantize_delay_step)
  labels = tf.cast(labels, tf.float32, name=_RAW_LABELS_NAME)
  probabilities = tf.identity(probabilities, name=_RAW_PROBABILITIES_NAME)

  size = tf.shape(image)[1:3]
  height, width = tf.unstack(tf.shape(resized)[:2])
  labels = tf.image.resize_nearest_neighbor(labels[:, :height, :width, tf.newaxis], size, align_corners=True)
  labels = tf.cast(tf.squeeze(labels, [3]), tf.int32, name=LABELS_NAME)
  probabilities = tf.image.resize_bilinear(probabilities[:, :height, :width], size, align_corners=True, name=PROBABILITIES_NAME)
  return image, labels, probabilities


def build_tflite_graph(checkpoint_options, scales=(1.0,), add_flipped_images=False, label_dtype=tf.int32):
  """Builds crop -> labels in the default graph; every shape in it is fixed. Arguments as build_inference_graph.

  Returns:
    (image, labels), tensors.

  Raises:
    ValueError: `label_dtype` cannot hold all classes.
  """
  options = checkpoint_options.model_options
  num_classes = options.outputs_to_num_classes[common.OUTPUT_TYPE]
  if num_classes - 1 > label_dtype.max:
    raise InputError(f'--tflite_label_dtype={label_dtype.name} holds at most {label_dtype.max + 1} classes, the network has '
                     f'{num_classes}; use int32.')
  image = tf.placeholder(tf.uint8, [1, *options.crop_size, 3], name=INPUT_NAME)
  labels, _ = model.predict(tf.cast(image, tf.float32), options, scales, add_flipped_images, checkpoint_options.image_pyramid,
                            checkpoint_options.quantize_delay_step)
  return image, tf.cast(labels, label_dtype, name=LABELS_NAME)


def _write(path, content):
  files.replace_file(path, content)
  logging.info('Wrote %s, %.1f MB.', path, len(content) / 1e6)


def _frozen_graph(session):
  """GraphDef of the inference graph with its variables as constants, not tied to a device."""
  graph_def = session.graph.as_graph_def()
  for node in graph_def.node:
    node.device = ''
  return tf.graph_util.convert_variables_to_constants(session, graph_def, [LABELS_NAME, PROBABILITIES_NAME])


def write_frozen_graph(session, path):
  """Writes the inference graph of a session as a frozen graph."""
  _write(path, _frozen_graph(session).SerializeToString())


@contextlib.contextmanager
def _converter_lines_sorted():
  """Context in which a converter does not tell of its inner life."""
  verbosity = logging.get_verbosity()
  logging.set_verbosity(min(verbosity, logging.WARNING))
  try:
    with quiet_start.filtered():
      yield
  finally:
    logging.set_verbosity(verbosity)


def _hand_sizes_as_tensors(onnx_graph, operations):
  """A rewriter of tf2onnx: it keeps the float32 ratio of a constant size, which may be a pixel short."""
  for operation in operations:
    if operation.type in ('ResizeBilinear', 'ResizeNearestNeighbor'):
      size = operation.input[1]
      onnx_graph.replace_input(operation, size, onnx_graph.make_node('Identity', [size]).output[0], 1)
  return onnx_graph.get_nodes()


def write_onnx(session, path):
  """Writes the inference graph of a session as an ONNX model; needs the package tf2onnx."""
  import onnx
  import tf2onnx
  names = [f'{name}:0' for name in (INPUT_NAME, LABELS_NAME, PROBABILITIES_NAME)]
  with _converter_lines_sorted():
    onnx_model, _ = tf2onnx.convert.from_graph_def(
        _frozen_graph(session), name='deeplab', input_names=names[:1], output_names=names[1:], opset=_ONNX_OPSET,
        custom_rewriter=[_hand_sizes_as_tensors], tensors_to_rename={name: name.removesuffix(':0') for name in names})
  for tensor in (*onnx_model.graph.input, *onnx_model.graph.output):
    for dimension, name in zip(tensor.type.tensor_type.shape.dim[1:3], ('height', 'width')):
      dimension.dim_param = name
  # An operation that tf2onnx cannot convert it leaves as it is, with no more than a line in the log.
  onnx.checker.check_model(onnx_model)
  _write(path, onnx_model.SerializeToString())


def write_graph_text(graph, frozen_graph_path):
  """Writes the graph with its variables as text beside the frozen one."""
  text = str(graph.as_graph_def())
  _write(os.path.join(os.path.dirname(frozen_graph_path), _GRAPH_TEXT_FILE), text.encode())


def write_saved_model(session, inputs, outputs, folder):
  """Writes a SavedModel; one that is there is replaced.

  Args:
    session: session on the inference graph.
    inputs: input tensors; the signature calls each by its own name.
    outputs: output tensors, likewise.
    folder: where to.
  """
  signature = tf.saved_model.predict_signature_def({tensor.op.name: tensor for tensor in inputs},
                                                   {tensor.op.name: tensor for tensor in outputs})
  folder = folder.rstrip('/')
  builder = tf.saved_model.Builder(files.prepare_folder(folder))
  builder.add_meta_graph_and_variables(
      session, [tf.saved_model.tag_constants.SERVING],
      {tf.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY: signature}, strip_default_attrs=True)
  builder.save()
  files.replace_folder(folder)
  logging.info('Wrote the SavedModel %s.', folder)


def convert_to_tflite(session, image, labels, weights='float32'):
  """Converts the graph between two tensors to a TFLite model of built-in operations alone.

  Args:
    session: session with the variables.
    image: input tensor.
    labels: output tensor.
    weights: 'float32'; 'float16'; or 'int8', whose activations are quantised on the fly.

  Returns:
    Bytes of the model.
  """
  converter = tf.lite.TFLiteConverter.from_session(session, [image], [labels])
  if weights != 'float32':
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
  if weights == 'float16':
    converter.target_spec.supported_types = [tf.float16]
  with _converter_lines_sorted():
    return converter.convert()


def _pool_instead_of_mean(graph_def, graph):
  """Writes means over all pixels as average pooling; the converters of TensorFlow 2.16 to 2.18 leave means in floating point."""
  for node in graph_def.node:
    if node.op != 'Mean' or not node.attr['keep_dims'].b:
      continue
    height, width = graph.get_operation_by_name(node.name).inputs[0].shape.as_list()[1:3]
    node.op = 'AvgPool'
    del node.input[1:]
    for name in ('keep_dims', 'Tidx'):
      del node.attr[name]
    for name in ('ksize', 'strides'):
      node.attr[name].list.i.extend([1, height, width, 1])
    node.attr['padding'].s = b'VALID'
    node.attr['data_format'].s = b'NHWC'


def convert_to_integer_tflite(session, image, labels, backbone_scope):
  """Converts the graph of a quantised network to a TFLite model that computes with 8-bit integers alone.

  Args:
    session: session with the variables.
    image: input tensor, uint8; the model has one of the same name, type and shape.
    labels: output tensor, likewise.
    backbone_scope: scope of the backbone, whose op `input` has the images in [-1, 1].

  Returns:
    Bytes of the model.
  """
  frozen = tf.graph_util.convert_variables_to_constants(session, session.graph.as_graph_def(), [labels.op.name])
  _pool_instead_of_mean(frozen, session.graph)
  with tf.Graph().as_default(), tf.Session() as new_session:
    # The bytes of the image are the 8-bit form of the normalised one, so that the model starts behind the normalisation.
    normalized = tf.placeholder(tf.float32, image.shape, name=image.op.name)
    network_labels, = tf.import_graph_def(frozen, {f'{backbone_scope}/{backbone_scope}/input:0': normalized}, [labels.name],
                                          name='network')
    named_labels = tf.identity(network_labels, name=labels.op.name)
    converter = tf.lite.TFLiteConverter.from_session(new_session, [normalized], [named_labels])
    converter.inference_type = tf.uint8
    # A byte stands for (byte - mean) / standard deviation.
    converter.quantized_input_stats = {image.op.name: (127.5, 127.5)}
    with _converter_lines_sorted():
      return converter.convert()


def _check_flags():
  """Refuses values that cannot be right, before any work."""
  if not FLAGS.inference_scales or min(FLAGS.inference_scales) <= 0:
    raise InputError(f'--inference_scales={",".join(map(str, FLAGS.inference_scales))}: give scales above 0, for example '
                     '0.5,1.0,1.5.')
  if not any(FLAGS[name].value for name in _PATH_FLAGS):
    raise InputError('Nothing to export: give --export_path (frozen graph), --saved_model_dir, --onnx_path or --tflite_path.')
  if FLAGS.save_inference_graph and not FLAGS.export_path:
    raise InputError(f'--save_inference_graph writes {_GRAPH_TEXT_FILE} beside the frozen graph; give its --export_path, too.')
  if FLAGS.onnx_path and importlib.util.find_spec('tf2onnx') is None:
    raise InputError(f'--onnx_path={FLAGS.onnx_path} needs the package tf2onnx, an extra of this one: '
                     'pip install "deeplab-slim[onnx]", or pip install -e ".[onnx]" in the repository.')


def _check_targets():
  """Refuses files and folders that cannot be written, before any work; makes the folders that they lie in."""
  for name in _FILE_FLAGS:
    if FLAGS[name].value and tf.io.gfile.isdir(FLAGS[name].value):
      raise InputError(f'--{name}={FLAGS[name].value} is a folder; give the name of a file.')
  for name in _PATH_FLAGS:
    path = FLAGS[name].value
    if path:
      files.make_folder(os.path.dirname(path.rstrip('/')) or '.', name)
  folder = FLAGS.saved_model_dir
  if folder and tf.io.gfile.exists(folder) and not tf.io.gfile.exists(os.path.join(folder, _SAVED_MODEL_FILE)):
    raise InputError(f'--saved_model_dir={folder} exists and is no SavedModel; give a new folder.')


def _check_quantized(prefix):
  """Refuses what does not go with a network that was trained for 8-bit arithmetic."""
  if FLAGS.tflite_weights != 'float32':
    raise InputError(f'--tflite_weights={FLAGS.tflite_weights}: {prefix} is of a network trained with --quantize_delay_step, '
                     'whose TFLite file holds 8-bit integers; leave the flag out.')
  if FLAGS.onnx_path:
    raise InputError(f'--onnx_path={FLAGS.onnx_path}: {prefix} is of a network trained with --quantize_delay_step, whose '
                     'rounding ONNX has no operations for; give --tflite_path.')


def _export_graphs(prefix, checkpoint_options):
  with tf.Graph().as_default() as graph:
    image, labels, probabilities = build_inference_graph(checkpoint_options, FLAGS.inference_scales, FLAGS.add_flipped_images)
    with checkpoint_fit.restored_session(prefix, common.session_config()) as session:
      if FLAGS.export_path:
        write_frozen_graph(session, FLAGS.export_path)
      if FLAGS.saved_model_dir:
        write_saved_model(session, [image], [labels, probabilities], FLAGS.saved_model_dir)
      if FLAGS.onnx_path:
        write_onnx(session, FLAGS.onnx_path)
    if FLAGS.save_inference_graph:
      write_graph_text(graph, FLAGS.export_path)


def _export_tflite(prefix, checkpoint_options):
  with tf.Graph().as_default():
    image, labels = build_tflite_graph(checkpoint_options, FLAGS.inference_scales, FLAGS.add_flipped_images,
                                       tf.as_dtype(FLAGS.tflite_label_dtype))
    with checkpoint_fit.restored_session(prefix, common.session_config()) as session:
      if checkpoint_options.quantize_delay_step >= 0:
        scope = feature_extractor.get_backbone(checkpoint_options.model_options.model_variant).scope
        content = convert_to_integer_tflite(session, image, labels, scope)
      else:
        content = convert_to_tflite(session, image, labels, FLAGS.tflite_weights)
    _write(FLAGS.tflite_path, content)


def main(unused_argv):
  _check_flags()
  prefix = checkpoint.resolve_checkpoint(FLAGS.checkpoint_path, 'checkpoint_path')
  checkpoint_options = common.checkpoint_options(
      prefix, FLAGS.num_classes, common.parse_size(FLAGS.crop_size, 'crop_size'))
  if checkpoint_options.quantize_delay_step >= 0:
    _check_quantized(prefix)
  _check_targets()
  if FLAGS.export_path or FLAGS.saved_model_dir or FLAGS.onnx_path:
    _export_graphs(prefix, checkpoint_options)
  if FLAGS.tflite_path:
    _export_tflite(prefix, checkpoint_options)


def run():
  """Entry of the program."""
  common.run_program(main, ['checkpoint_path'])


if __name__ == '__main__':
  run()
