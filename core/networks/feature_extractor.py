"""The table of backbones, and what is looked up in it.

To add a network: write its file, add its row to BACKBONES and its golden figures to tests/testdata/architectures.
"""

from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf
from deeplab.core.networks import resnet_v1_beta, xception
from deeplab.core.networks.backbone import IMAGENET_MEAN, UNIT_RANGE, Backbone
from deeplab.core.networks.mobilenet import mobilenet_v2, mobilenet_v3
from deeplab.core.networks.nas import nas_network

_MOBILENET_STRIDES = (1, 2, 4, 8, 16, 32)
_RESNET_STRIDES = (4, 8, 16, 32)
_XCEPTION_STRIDES = (2, 4, 8, 16, 32)
_NAS_STRIDES = (8, 16, 32)
# MobileNetV3 and EdgeTPU always round channels to multiples of this number.
_FIXED_DIVISOR = 8


def _resnet_low_level(scope, last_conv, units):
  """End points of a ResNet: the last convolution of the unit before the stride, in blocks 1 to 3."""
  return {4 * 2**i: f'{scope}/block{i + 1}/unit_{unit}/{last_conv}' for i, unit in enumerate(units)}


def _xception_low_level(scope, entry_blocks):
  """End points of an Xception: the second convolution of the modules that halve the resolution."""
  modules = [f'entry_flow/block{block}' for block in entry_blocks] + ['exit_flow/block1']
  return {4 * 2**i: f'{scope}/{module}/unit_1/xception_module/separable_conv2_pointwise' for i, module in enumerate(modules)}


def _mobilenet_low_level(*layer_numbers):
  """End points of a MobileNet: inside the block that next halves the resolution, before it does."""
  return {4 * 2**i: f'layer_{number}/depthwise_output' for i, number in enumerate(layer_numbers)}


def _resnet(build, scope, input_norm, num_grid_rates, last_conv, units):
  return Backbone(build, scope, input_norm, _resnet_low_level(scope, last_conv, units), _RESNET_STRIDES, num_grid_rates)


def _resnet_18(build, input_norm):
  return _resnet(build, 'resnet_v1_18', input_norm, 2, 'lite_bottleneck_v1/conv2', (1, 1, 1))


def _resnet_50(build, input_norm):
  return _resnet(build, 'resnet_v1_50', input_norm, 3, 'bottleneck_v1/conv3', (2, 3, 5))


def _resnet_101(build, input_norm):
  return _resnet(build, 'resnet_v1_101', input_norm, 3, 'bottleneck_v1/conv3', (2, 3, 22))


def _xception(build, scope, entry_blocks):
  return Backbone(build, scope, UNIT_RANGE, _xception_low_level(scope, entry_blocks), _XCEPTION_STRIDES, 3)


BACKBONES = {
    'mobilenet_v2': Backbone(
        mobilenet_v2.mobilenet_v2, 'MobilenetV2', UNIT_RANGE, _mobilenet_low_level(4, 7, 14), _MOBILENET_STRIDES,
        honours=frozenset(['depth_multiplier', 'divisible_by', 'quantize_delay_step'])),
    'mobilenet_v3_large_seg': Backbone(
        mobilenet_v3.large_seg, 'MobilenetV3', UNIT_RANGE, _mobilenet_low_level(4, 7, 13), _MOBILENET_STRIDES,
        honours=frozenset(['depth_multiplier', 'quantize_delay_step']), fixed_divisor=_FIXED_DIVISOR),
    'mobilenet_v3_small_seg': Backbone(
        mobilenet_v3.small_seg, 'MobilenetV3', UNIT_RANGE, _mobilenet_low_level(2, 4, 9), _MOBILENET_STRIDES,
        honours=frozenset(['depth_multiplier', 'quantize_delay_step']), fixed_divisor=_FIXED_DIVISOR),
    # Its blocks of strides 4 and 8 have no depthwise convolution; the earlier code had no decoder here.
    'mobilenet_edgetpu': Backbone(
        mobilenet_v3.edgetpu, 'MobilenetEdgeTPU', UNIT_RANGE, {4: 'layer_6', 8: 'layer_10', 16: 'layer_18/depthwise_output'},
        (8, 16, 32), honours=frozenset(['depth_multiplier', 'quantize_delay_step']), fixed_divisor=_FIXED_DIVISOR),
    'resnet_v1_18': _resnet_18(resnet_v1_beta.resnet_v1_18, IMAGENET_MEAN),
    'resnet_v1_18_beta': _resnet_18(resnet_v1_beta.resnet_v1_18_beta, UNIT_RANGE),
    'resnet_v1_50': _resnet_50(resnet_v1_beta.resnet_v1_50, IMAGENET_MEAN),
    'resnet_v1_50_beta': _resnet_50(resnet_v1_beta.resnet_v1_50_beta, UNIT_RANGE),
    'resnet_v1_101': _resnet_101(resnet_v1_beta.resnet_v1_101, IMAGENET_MEAN),
    'resnet_v1_101_beta': _resnet_101(resnet_v1_beta.resnet_v1_101_beta, UNIT_RANGE),
    'xception_41': _xception(xception.xception_41, 'xception_41', (2, 3)),
    'xception_65': _xception(xception.xception_65, 'xception_65', (2, 3)),
    'xception_71': _xception(xception.xception_71, 'xception_71', (3, 5)),
    'nas_pnasnet': Backbone(
        nas_network.pnasnet, 'pnasnet', UNIT_RANGE, {4: 'Stem', 8: 'Cell_3', 16: 'Cell_7'}, _NAS_STRIDES,
        honours=frozenset(['nas_architecture_options'])),
    'nas_hnasnet': Backbone(
        nas_network.hnasnet, 'hnasnet', UNIT_RANGE, {4: 'Cell_2', 8: 'Cell_5', 16: 'Cell_7'}, _NAS_STRIDES,
        honours=frozenset(['nas_architecture_options']), fixed_stride=8),
}


def get_backbone(model_variant):
  """Row of a network.

  Raises:
    ValueError: unknown name; the message lists the known ones.
  """
  if model_variant not in BACKBONES:
    raise InputError(f'--model_variant={model_variant}: no such backbone; choose one of: {", ".join(BACKBONES)}')
  return BACKBONES[model_variant]


def mean_pixel(model_variant=None):
  """The RGB pixel, [0, 255], that the network maps to 0 and images are padded with; list of 3 floats.

  Without a variant it is the ImageNet mean, as for the plain ResNets.
  """
  input_norm = IMAGENET_MEAN if model_variant is None else get_backbone(model_variant).input_norm
  return list(input_norm.zero_pixel)


def feature_stride(options):
  """Ratio of input to feature resolution that the network really has, whatever options.output_stride asks for."""
  backbone = get_backbone(options.model_variant)
  nas_options = options.nas_architecture_options
  # The convolutions of the ImageNet head bring the features to the output stride.
  if 'nas_architecture_options' not in backbone.honours or nas_options['nas_use_classification_head']:
    return options.output_stride
  stride = backbone.fixed_stride or options.output_stride
  return min(stride, 16) if nas_options['nas_remove_os32_stride'] else stride


def _refuse(options, flag, value, reason):
  raise InputError(f'--{flag}={value} does not go with --model_variant={options.model_variant}: {reason}')


def _check_multi_grid(options, backbone):
  rates = options.multi_grid
  if not rates:
    return
  if backbone.multi_grid_length is None:
    _refuse(options, 'multi_grid', rates, 'only ResNet and Xception have a multi-grid block; leave the flag out.')
  if len(rates) != backbone.multi_grid_length:
    _refuse(options, 'multi_grid', rates, f'give {backbone.multi_grid_length} rates.')


def _check_width(options, backbone):
  if options.depth_multiplier <= 0:
    _refuse(options, 'depth_multiplier', options.depth_multiplier, 'give a number above 0.')
  if options.depth_multiplier != 1.0 and 'depth_multiplier' not in backbone.honours:
    _refuse(options, 'depth_multiplier', options.depth_multiplier, 'only MobileNets come in several widths; leave the flag out.')
  if options.divisible_by not in (None, backbone.fixed_divisor) and 'divisible_by' not in backbone.honours:
    _refuse(options, 'divisible_by', options.divisible_by,
            f'it always rounds to {backbone.fixed_divisor}.' if backbone.fixed_divisor else 'it is for mobilenet_v2.')


def _check_nas(options, backbone):
  if 'nas_architecture_options' in backbone.honours:
    return
  for name, default in nas_network.DEFAULT_OPTIONS.items():
    if options.nas_architecture_options.get(name, default) != default:
      _refuse(options, name, options.nas_architecture_options[name], 'it is for the NAS networks; leave the flag out.')


def _check_quantization(options, backbone, quantize_delay_step):
  if quantize_delay_step >= 0 and 'quantize_delay_step' not in backbone.honours:
    able = [name for name, row in BACKBONES.items() if 'quantize_delay_step' in row.honours]
    _refuse(options, 'quantize_delay_step', quantize_delay_step, f'only these can be quantised: {", ".join(able)}')


def check_options(options, quantize_delay_step=-1):
  """Refuses options that the backbone cannot honour, before any tensor is made.

  Args:
    options: ModelOptions.
    quantize_delay_step: as in layers.TrainingState.

  Raises:
    ValueError: names the flag, its value and what the backbone can do.
  """
  backbone = get_backbone(options.model_variant)
  if options.output_stride not in backbone.output_strides:
    _refuse(options, 'output_stride', options.output_stride,
            f'choose one of: {", ".join(map(str, backbone.output_strides))}')
  for stride in options.decoder_output_stride or []:
    if stride not in backbone.low_level:
      _refuse(options, 'decoder_output_stride', stride, f'choose from: {", ".join(map(str, sorted(backbone.low_level)))}')
  _check_multi_grid(options, backbone)
  _check_width(options, backbone)
  _check_nas(options, backbone)
  _check_quantization(options, backbone, quantize_delay_step)


def extract_features(images, options, training):
  """Normalises the images and runs the backbone.

  Args:
    images: [batch, height, width, 3] RGB, 0..255, any numeric dtype.
    options: ModelOptions.
    training: layers.TrainingState.

  Returns:
    features: [batch, height / output_stride, width / output_stride, depth] of options.preprocessed_images_dtype.
    end_points: name -> tensor.

  Raises:
    ValueError: unknown backbone.
  """
  backbone = get_backbone(options.model_variant)
  normalized = tf.cast(backbone.input_norm.normalize(images), options.preprocessed_images_dtype)
  return backbone.build(normalized, options, training)


def low_level_features(end_points, model_variant, strides):
  """The end points that the decoder takes: list of (stride, tensor) in the order of `strides`."""
  names = get_backbone(model_variant).low_level
  return [(stride, end_points[names[stride]]) for stride in strides]
