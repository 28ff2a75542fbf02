"""The searched networks: a stem of stride 4, then twelve cells on a ladder of resolutions.

PNASNet (arXiv:1712.00559) only descends the ladder; HNASNet is the network found by Auto-DeepLab (arXiv:1901.02985), which climbs
back as well. Level 0, 1, 2, 3 of the ladder is stride 4, 8, 16, 32; each level down doubles the width of the cells.
"""

from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import slim, tf
from deeplab.core.layers import layers
from deeplab.core.networks.nas import nas_cell, nas_genotypes

_BATCH_NORM_DECAY = 0.9997
_BATCH_NORM_EPSILON = 1e-3
_STEM_STRIDE = 4
_DEEPEST_LEVEL = 3
# Level of each cell; pnasnet has one row per output stride.
_PNASNET_LEVELS = {
    8: (1,) * 12,
    16: (1,) * 4 + (2,) * 8,
    32: (1,) * 4 + (2,) * 4 + (3,) * 4,
}
_HNASNET_LEVELS = (0, 0, 0, 1, 2, 1, 2, 2, 3, 3, 2, 1)
_HNASNET_STRIDE = 8
# Nominal stride -> width of the convolutions by which the classification head gets there.
_HEAD_DOWNSAMPLING = {16: 512, 32: 1024}
_HEAD_DEPTH = 2048
# ModelOptions.nas_architecture_options when nothing special is asked for.
DEFAULT_OPTIONS = {
    'nas_stem_output_num_conv_filters': 20,
    'nas_use_classification_head': False,
    'nas_remove_os32_stride': False,
}


def _arg_scope(training):
  """Convolutions without bias, activation and normaliser; each batch norm has a scope of its own."""
  batch_norm_params = layers.batch_norm_params(training, _BATCH_NORM_DECAY, _BATCH_NORM_EPSILON)
  with slim.arg_scope([layers.batch_norm], **batch_norm_params), slim.arg_scope(
      [slim.conv2d, slim.separable_conv2d],
      weights_initializer=slim.variance_scaling_initializer(factor=1 / 3, mode='FAN_IN', uniform=True),
      weights_regularizer=layers.l2_regularizer(training.weight_decay),
      activation_fn=None,
      biases_initializer=None) as arg_scope:
    return arg_scope


def _root_global_step():
  """The global step, made where it belongs if the program has none: outside of every variable scope."""
  with tf.variable_scope(tf.VariableScope(reuse=tf.AUTO_REUSE, name=''), auxiliary_name_scope=False):
    return tf.train.get_or_create_global_step()


def _keep_probs(training, num_cells):
  """Keep probability of the paths of each cell: falls linearly with the depth and, from 1, with the global step.

  Returns:
    List of float32 scalar tensors, or of None where no path is dropped.

  Raises:
    ValueError: drop path is asked for with a probability or a number of steps that makes no sense.
  """
  keep_prob, num_steps = training.drop_path_keep_prob, training.total_training_steps
  if not 0 < keep_prob <= 1:
    raise InputError(f'--drop_path_keep_prob={keep_prob}: give a probability above 0, up to 1 (no drop path).')
  if not training.is_training or keep_prob == 1:
    return [None] * num_cells
  if not num_steps or num_steps < 1:
    raise InputError(f'--drop_path_keep_prob={keep_prob} is reached at the end of training; give the number of training steps, '
                     f'above 0, not {num_steps}.')
  progress = tf.minimum(1.0, tf.cast(_root_global_step(), tf.float32) / num_steps)
  return [1.0 - progress * (1.0 - keep_prob) * (index + 1) / num_cells for index in range(num_cells)]


def _stem(images):
  """Three 3x3 convolutions; returns the feature maps of stride 2 and 4, before ReLU."""
  net = layers.conv2d_same(images, 64, 3, stride=2, scope='conv0')
  net = tf.nn.relu(layers.batch_norm(net, scope='conv0_bn'))
  net = layers.conv2d_same(net, 64, 3, scope='conv1')
  half = layers.batch_norm(net, scope='conv1_bn')
  net = layers.conv2d_same(tf.nn.relu(half), 128, 3, stride=2, scope='conv2')
  return half, layers.batch_norm(net, scope='conv2_bn')


def _cells(stem, genotype, levels, architecture, keep_probs):
  """Runs the cells behind the feature maps of the stem; returns the output of each."""
  width = architecture['nas_stem_output_num_conv_filters']
  # Without its last stride the network keeps the widths of all levels, but not their resolutions.
  lowest = _DEEPEST_LEVEL - 1 if architecture['nas_remove_os32_stride'] else _DEEPEST_LEVEL
  outputs = list(stem)
  rung = 0
  for index, level in enumerate(levels):
    net, rung_before, rung = outputs[-1], rung, min(level, lowest)
    if rung < rung_before:
      net = nas_cell.scale(net, 2)
    stride = 2 if rung > rung_before else 1
    with tf.variable_scope(f'cell_{index}'):
      outputs.append(nas_cell.build(net, outputs[-2], genotype, width * 2**level, stride, keep_probs[index]))
  return outputs[len(stem):]


def _classification_head(net, net_stride, output_stride):
  """ImageNet head: 3x3 convolutions down to a nominal stride of 32, dilated beyond `output_stride`, then a wide 1x1.

  Args:
    net: features after ReLU.
    net_stride: their nominal stride, 8, 16 or 32.
    output_stride: real stride of the result; `net_stride` or a multiple that is 16 or 32.

  Returns:
    Features [batch, height, width, 2048] after ReLU, and the end points, before ReLU.
  """
  end_points = {}
  rate = 1
  for nominal_stride, depth in _HEAD_DOWNSAMPLING.items():
    if nominal_stride <= net_stride:
      continue
    stride = 2 if nominal_stride <= output_stride else 1
    if stride == 1:
      rate *= 2
    scope = f'downsample_os{nominal_stride}'
    net = layers.conv2d_same(net, depth, 3, stride=stride, rate=rate, scope=f'{scope}_conv')
    end_points[scope] = layers.batch_norm(net, scope=f'{scope}_bn')
    net = tf.nn.relu(end_points[scope])
  net = slim.conv2d(net, _HEAD_DEPTH, 1, scope='classification_head_conv')
  end_points['classification_head'] = layers.batch_norm(net, scope='classification_head_bn')
  return tf.nn.relu(end_points['classification_head']), end_points


def _architecture(options):
  """The dict of NAS options, once it is complete."""
  architecture = options.nas_architecture_options or {}
  missing = [name for name in DEFAULT_OPTIONS if name not in architecture]
  if missing:
    raise InputError(f'nas_architecture_options lacks {", ".join(missing)}; give all of: {", ".join(DEFAULT_OPTIONS)}.')
  return architecture


def _build(images, options, training, scope, genotype, levels):
  """Stem, cells, final ReLU and the classification head where it is asked for."""
  architecture = _architecture(options)
  keep_probs = _keep_probs(training, len(levels))
  with tf.variable_scope(scope), slim.arg_scope(_arg_scope(training)):
    stem = _stem(images)
    cells = _cells(stem, genotype, levels, architecture, keep_probs)
    end_points = {'Stem': stem[-1], **{f'Cell_{index}': net for index, net in enumerate(cells)}}
    features = tf.nn.relu(cells[-1])
    if architecture['nas_use_classification_head']:
      features, head_end_points = _classification_head(features, _STEM_STRIDE * 2**levels[-1], options.output_stride)
      end_points.update(head_end_points)
    return features, end_points


def pnasnet(images, options, training):
  """PNASNet-5 cells (arXiv:1712.00559) at output stride 8, 16 or 32.

  Args:
    images: float32 [batch, height, width, channels], -1..1; height and width may be unknown.
    options: common.ModelOptions; read are output_stride and nas_architecture_options, whose nas_stem_output_num_conv_filters is
      the width of the cells at stride 4 (the stem itself has a fixed width).
    training: layers.TrainingState. Drop path acts when is_training, whether or not batch norm follows the batch.

  Returns:
    features: [batch, height / output_stride, width / output_stride, depth], after ReLU. With nas_remove_os32_stride an output
      stride of 32 gives features of stride 16.
    end_points: `Stem`, `Cell_0` ... `Cell_11` and, with the classification head, `downsample_os16`, `downsample_os32` where the
      network does not end there, `classification_head`; all before ReLU.

  Raises:
    ValueError: another output stride, incomplete nas_architecture_options, or drop path without a number of steps.
  """
  if options.output_stride not in _PNASNET_LEVELS:
    raise InputError(f'--output_stride={options.output_stride}: pnasnet runs at one of: {", ".join(map(str, _PNASNET_LEVELS))}.')
  return _build(images, options, training, 'pnasnet', nas_genotypes.PNASNET, _PNASNET_LEVELS[options.output_stride])


def hnasnet(images, options, training):
  """The network found by Auto-DeepLab (arXiv:1901.02985); its cells end at stride 8.

  Arguments and results as for pnasnet. The features have stride 8 whatever the output stride says; only the classification head
  goes on to it, 16 or 32. Climbing one level turns n pixels into 2n - 1, so that crops of a multiple of 32, plus 1, fit best.

  Raises:
    ValueError: as pnasnet.
  """
  if options.output_stride not in (_HNASNET_STRIDE, *_HEAD_DOWNSAMPLING):
    raise InputError(f'--output_stride={options.output_stride}: hnasnet takes 8, 16 or 32.')
  return _build(images, options, training, 'hnasnet', nas_genotypes.HNASNET, _HNASNET_LEVELS)
