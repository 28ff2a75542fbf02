"""The dense prediction cell: a small searched graph of branches in the place of ASPP (arXiv:1809.04184).

A cell is a list of branch dicts, as JSON files hold them:
  op: 'conv' or 'pyramid_pooling'.
  input: index of an earlier branch, or -1 for the features of the backbone.
  kernel (conv): side, or [height, width]; 1x1 is a plain convolution, others are separable.
  rate (conv other than 1x1): [height, width], for output stride 16; scaled for others.
  grid_size (pyramid_pooling): [height, width], number of cells that the pooling window divides the features into.
"""

from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import slim, tf
from deeplab.core.layers import layers, utils

META_ARCHITECTURE_SCOPE = 'meta_architecture'
_OPERATIONS = ('conv', 'pyramid_pooling')
_FILTERS = 256
_DROPOUT_KEEP_PROB = 0.9
_RATES_ARE_FOR_OUTPUT_STRIDE = 16


def _pair(value):
  return [value, value] if isinstance(value, int) else list(value)


def check_config(config, crop_size):
  """Refuses a cell that cannot be built.

  Args:
    config: list of branch dicts.
    crop_size: [height, width] or None.

  Raises:
    ValueError: names the branch, what it holds and what would be right.
  """
  if not isinstance(config, list) or not config:
    raise InputError('--dense_prediction_cell_json: the file must hold a list of branches.')
  for i, branch in enumerate(config):
    where = f'--dense_prediction_cell_json: branch {i}'
    operation = branch.get('op')
    if operation not in _OPERATIONS:
      raise InputError(f'{where} has op {operation!r}; choose one of: {", ".join(_OPERATIONS)}')
    if not isinstance(branch.get('input'), int) or branch['input'] >= i:
      raise InputError(f'{where} has input {branch.get("input")!r}; give -1 or the index of an earlier branch.')
    needed = ['grid_size'] if operation == 'pyramid_pooling' else ['kernel']
    if operation == 'conv' and _pair(branch.get('kernel', 1)) != [1, 1]:
      needed.append('rate')
    missing = [key for key in needed if key not in branch]
    if missing:
      raise InputError(f'{where} ({operation}) lacks {" and ".join(missing)}.')
    if operation == 'pyramid_pooling' and crop_size is None:
      raise InputError(f'{where} (pyramid_pooling) needs a crop size that is known when the graph is built.')


def _conv_branch(features, branch, scope, output_stride, weight_decay):
  kernel_size = _pair(branch['kernel'])
  if kernel_size == [1, 1]:
    return layers.conv2d(features, _FILTERS, 1, scope=scope)
  multiplier = max(1, _RATES_ARE_FOR_OUTPUT_STRIDE // output_stride)
  rate = [side * multiplier for side in _pair(branch['rate'])]
  return layers.split_separable_conv2d(features, _FILTERS, kernel_size, rate=rate, weight_decay=weight_decay, scope=scope)


def _pyramid_pooling_branch(features, branch, scope, options):
  window = [layers.pooling_window(options, 1.0 / (options.output_stride * cells))[axis]
            for axis, cells in enumerate(_pair(branch['grid_size']))]
  pooled = slim.avg_pool2d(features, window, stride=1, padding='VALID')
  pooled = layers.conv2d(pooled, _FILTERS, 1, scope=scope)
  return utils.resize_to(pooled, layers.feature_size(features, options))


def build_cell(features, config, options, training):
  """Builds the branches in order, joins all of them and projects.

  Args:
    features: float32 [batch, height, width, channels] of the backbone.
    config: list of branch dicts.
    options: ModelOptions.
    training: layers.TrainingState.

  Returns:
    float32 [batch, height, width, 256].
  """
  check_config(config, options.crop_size)
  with tf.variable_scope(META_ARCHITECTURE_SCOPE), slim.arg_scope(layers.head_arg_scope(training)):
    branches = []
    for i, branch in enumerate(config):
      source = features if branch['input'] < 0 else branches[branch['input']]
      if branch['op'] == 'pyramid_pooling':
        branches.append(_pyramid_pooling_branch(source, branch, f'branch{i}', options))
      else:
        branches.append(_conv_branch(source, branch, f'branch{i}', options.output_stride, training.weight_decay))
    joined = slim.dropout(tf.concat(branches, axis=3), keep_prob=_DROPOUT_KEEP_PROB, is_training=training.is_training,
                          scope=layers.CONCAT_PROJECTION_SCOPE + '_dropout')
    return layers.conv2d(joined, _FILTERS, 1, scope=layers.CONCAT_PROJECTION_SCOPE)
