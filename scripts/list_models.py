"""Prints the table of backbones (size, cost, strides) and of the published checkpoints with the flags that each needs."""

import math
from typing import NamedTuple

from absl import app

from deeplab import common, model
from deeplab.core.base.tf_compat import tf
from deeplab.core.networks import feature_extractor

_CROP_SIZE = [513, 513]
_OUTPUT_STRIDE = 16
_NUM_CLASSES = 21
_ARCHIVES = 'http://download.tensorflow.org/models/'

_VOC, _CITYSCAPES, _ADE20K = 'PASCAL VOC', 'Cityscapes', 'ADE20K'
_MOBILENET_V2 = '--model_variant=mobilenet_v2'
_XCEPTION_65 = '--model_variant=xception_65 --atrous_rates=6,12,18 --decoder_output_stride=4'
_XCEPTION_71 = ('--model_variant=xception_71 --decoder_output_stride=4 '
                '--dense_prediction_cell_json=core/dense_prediction_cell_branch5_top1_cityscapes.json')
_EDGETPU = '--model_variant=mobilenet_edgetpu --output_stride=32'
_MOBILENET_V3_HEAD = ('--output_stride=32 --image_pooling_crop_size=769,769 --image_pooling_stride=4,5 --aspp_convs_filters=128 '
                      '--aspp_with_concat_projection=false --aspp_with_squeeze_and_excitation --image_se_uses_qsigmoid '
                      '--decoder_output_stride=8 --decoder_use_sum_merge --decoder_filters=19 --decoder_output_is_logits')


class Published(NamedTuple):
  """A checkpoint of the DeepLab model zoo: the flags of the network it was trained as, and mIoU in percent (None: not one)."""
  name: str
  archive: str
  trained_on: str
  flags: str
  miou: float | None = None


PUBLISHED = (
    Published('mobilenetv2_dm05_coco_voc_trainaug', 'deeplabv3_mnv2_dm05_pascal_trainaug_2018_10_01', _VOC,
              f'{_MOBILENET_V2} --depth_multiplier=0.5', 70.19),
    Published('mobilenetv2_dm05_coco_voc_trainval', 'deeplabv3_mnv2_dm05_pascal_trainval_2018_10_01', _VOC,
              f'{_MOBILENET_V2} --depth_multiplier=0.5', 71.83),
    Published('mobilenetv2_coco_voc_trainaug', 'deeplabv3_mnv2_pascal_train_aug_2018_01_29', _VOC, _MOBILENET_V2, 75.32),
    Published('mobilenetv2_coco_voc_trainval', 'deeplabv3_mnv2_pascal_trainval_2018_01_29', _VOC, _MOBILENET_V2, 80.25),
    Published('xception65_coco_voc_trainaug', 'deeplabv3_pascal_train_aug_2018_01_04', _VOC, _XCEPTION_65, 82.20),
    Published('xception65_coco_voc_trainval', 'deeplabv3_pascal_trainval_2018_01_04', _VOC, _XCEPTION_65, 87.80),
    Published('mobilenetv2_coco_cityscapes_trainfine', 'deeplabv3_mnv2_cityscapes_train_2018_02_05', _CITYSCAPES, _MOBILENET_V2,
              70.71),
    Published('mobilenetv3_large_cityscapes_trainfine', 'deeplab_mnv3_large_cityscapes_trainfine_2019_11_15', _CITYSCAPES,
              f'--model_variant=mobilenet_v3_large_seg {_MOBILENET_V3_HEAD}', 72.41),
    Published('mobilenetv3_small_cityscapes_trainfine', 'deeplab_mnv3_small_cityscapes_trainfine_2019_11_15', _CITYSCAPES,
              f'--model_variant=mobilenet_v3_small_seg {_MOBILENET_V3_HEAD}', 68.99),
    Published('xception65_cityscapes_trainfine', 'deeplabv3_cityscapes_train_2018_02_06', _CITYSCAPES, _XCEPTION_65, 78.79),
    Published('xception71_dpc_cityscapes_trainfine', 'deeplab_cityscapes_xception71_trainfine_2018_09_08', _CITYSCAPES,
              _XCEPTION_71, 80.31),
    Published('xception71_dpc_cityscapes_trainval', 'deeplab_cityscapes_xception71_trainvalfine_2018_09_08', _CITYSCAPES,
              _XCEPTION_71, 82.66),
    Published('EdgeTPU-DeepLab', 'edgetpu-deeplab_2020_03_09', _CITYSCAPES, _EDGETPU, 70.6),
    Published('EdgeTPU-DeepLab-slim', 'edgetpu-deeplab-slim_2020_03_09', _CITYSCAPES,
              f'{_EDGETPU} --aspp_convs_filters=128 --depth_multiplier=0.75', 70.0),
    Published('mobilenetv2_ade20k_train', 'deeplabv3_mnv2_ade20k_train_2018_12_03', _ADE20K,
              f'{_MOBILENET_V2} --decoder_output_stride=4', 32.04),
    Published('xception65_ade20k_train', 'deeplabv3_xception_ade20k_train_2018_05_29', _ADE20K, _XCEPTION_65, 45.65),
    Published('xception_41_imagenet', 'xception_41_2018_05_09', 'ImageNet', '--model_variant=xception_41'),
    Published('xception_65_imagenet', 'deeplabv3_xception_2018_01_04', 'ImageNet', '--model_variant=xception_65'),
    Published('xception_65_imagenet_coco', 'xception_65_coco_pretrained_2018_10_02', 'ImageNet, COCO',
              '--model_variant=xception_65'),
    Published('xception_71_imagenet', 'xception_71_2018_05_09', 'ImageNet', '--model_variant=xception_71'),
    Published('resnet_v1_50_beta_imagenet', 'resnet_v1_50_2018_05_04', 'ImageNet',
              '--model_variant=resnet_v1_50_beta --multi_grid=1,2,4'),
    Published('resnet_v1_101_beta_imagenet', 'resnet_v1_101_2018_05_04', 'ImageNet',
              '--model_variant=resnet_v1_101_beta --multi_grid=1,2,4'),
)


def multiply_adds(graph):
  """Multiply-adds of all convolutions of a graph whose shapes are known."""
  total = 0
  for op in graph.get_operations():
    if op.type in ('Conv2D', 'DepthwiseConv2dNative'):
      height, width, depth, multiplier = op.inputs[1].shape.as_list()
      per_output = height * width * (depth if op.type == 'Conv2D' else 1)
      total += per_output * math.prod(op.outputs[0].shape.as_list())
  return total


def measure(model_variant):
  """(parameters, multiply-adds) of the backbone with the default head, for one image."""
  backbone = feature_extractor.get_backbone(model_variant)
  options = common.ModelOptions({common.OUTPUT_TYPE: _NUM_CLASSES}, _CROP_SIZE, model_variant=model_variant,
                                output_stride=backbone.fixed_stride or _OUTPUT_STRIDE)
  with tf.Graph().as_default() as graph:
    model.multi_scale_logits(tf.placeholder(tf.float32, [1, *_CROP_SIZE, 3]), options, image_pyramid=None)
    return sum(math.prod(variable.shape.as_list()) for variable in tf.trainable_variables()), multiply_adds(graph)


def _strides(numbers):
  return ', '.join(map(str, sorted(numbers)))


def backbone_row(name):
  """The line of a backbone in the table."""
  backbone = feature_extractor.BACKBONES[name]
  parameters, cost = measure(name)
  return (f'| {name} | {parameters / 1e6:.2f} M | {cost / 1e9:.2f} B | {_strides(backbone.output_strides)} | '
          f'{_strides(backbone.low_level)} |')


def _print_backbones():
  print(f'With the default head for {_NUM_CLASSES} classes, at {_CROP_SIZE[0]}x{_CROP_SIZE[1]} and output stride '
        f'{_OUTPUT_STRIDE} (nas_hnasnet: 8).\n')
  print('| --model_variant | parameters | multiply-adds | --output_stride | --decoder_output_stride |')
  print('|---|---|---|---|---|')
  for name in feature_extractor.BACKBONES:
    print(backbone_row(name), flush=True)


def _print_published():
  print(f'\nPublished checkpoints, {_ARCHIVES}ARCHIVE.tar.gz; unpack, then give the flags to every program.\n')
  print('| checkpoint | trained on | mIoU % | ARCHIVE | flags |')
  print('|---|---|---|---|---|')
  for row in PUBLISHED:
    miou = '' if row.miou is None else f'{row.miou:.2f}'
    print(f'| {row.name} | {row.trained_on} | {miou} | {row.archive} | `{row.flags}` |')


def main(unused_argv):
  _print_backbones()
  _print_published()


if __name__ == '__main__':
  app.run(main)
