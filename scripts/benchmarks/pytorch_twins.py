"""Two networks of this project in plain PyTorch: what a training step here is timed against.

They are --model_variant=mobilenet_v2 with the default head (output stride 16, ASPP of the image-level feature and a 1x1
convolution), and --model_variant=xception_65 with --atrous_rates=6,12,18 --decoder_output_stride=4. Layers, channels, strides,
dilations and batch norm are the same, and the parameters stand in the order in which the graph makes its trainable variables;
tests/benchmark_twins_test.py copies the weights and compares the logits. The rest is as users of PyTorch write it.

    pip install torch
"""

import functools

import torch
from torch import nn
from torch.nn import functional

# Expansion, channels, stride of the first block, dilation of each block.
_MOBILENET_ROWS = (
    (1, 16, 1, (1,)),
    (6, 24, 2, (1, 1)),
    (6, 32, 2, (1, 1, 1)),
    (6, 64, 2, (1, 1, 1, 1)),
    (6, 96, 1, (1, 1, 1)),
    (6, 160, 1, (1, 2, 2)),
    (6, 320, 1, (2,)),
)


def _conv(inputs, outputs, kernel=1, stride=1, dilation=1, groups=1, *, momentum, eps, activation=None):
  layers = [nn.Conv2d(inputs, outputs, kernel, stride, dilation * (kernel // 2), dilation, groups, bias=False),
            nn.BatchNorm2d(outputs, eps=eps, momentum=momentum)]
  return nn.Sequential(*layers, *([activation(inplace=True)] if activation else []))


_mobilenet_conv = functools.partial(_conv, momentum=0.003, eps=1e-3)
_xception_conv = functools.partial(_conv, momentum=0.0003, eps=1e-3)
_head_conv = functools.partial(_conv, momentum=0.0003, eps=1e-5, activation=nn.ReLU)


def _separable(conv, inputs, outputs, stride=1, dilation=1, **kwargs):
  return nn.Sequential(conv(inputs, inputs, 3, stride, dilation, inputs, **kwargs), conv(inputs, outputs, **kwargs))


def _resize(images, size):
  return functional.interpolate(images, size, mode='bilinear', align_corners=True)


class InvertedResidual(nn.Module):
  """A block of MobileNetV2."""

  def __init__(self, inputs, outputs, expansion, stride, dilation):
    super().__init__()
    inner = inputs * expansion
    expand = [_mobilenet_conv(inputs, inner, activation=nn.ReLU6)] if expansion > 1 else []
    self.layers = nn.Sequential(
        *expand, _mobilenet_conv(inner, inner, 3, stride, dilation, inner, activation=nn.ReLU6), _mobilenet_conv(inner, outputs))
    self.is_residual = stride == 1 and inputs == outputs

  def forward(self, net):
    return net + self.layers(net) if self.is_residual else self.layers(net)


def _mobilenet_v2():
  """MobileNetV2 up to its 320 channels."""
  layers, inputs = [_mobilenet_conv(3, 32, 3, 2, activation=nn.ReLU6)], 32
  for expansion, outputs, first_stride, dilations in _MOBILENET_ROWS:
    for index, dilation in enumerate(dilations):
      layers.append(InvertedResidual(inputs, outputs, expansion, 1 if index else first_stride, dilation))
      inputs = outputs
  return nn.Sequential(*layers)


class XceptionModule(nn.Module):
  """Three separable convolutions, each behind a ReLU, and the shortcut around them."""

  def __init__(self, inputs, depths, stride=1):
    super().__init__()
    first, second, third = depths
    self.conv1 = _separable(_xception_conv, inputs, first)
    self.conv2 = _separable(_xception_conv, first, second)
    self.conv3 = _separable(_xception_conv, second, third, stride)
    self.shortcut = nn.Identity() if inputs == third else _xception_conv(inputs, third, stride=stride)

  def forward(self, net):
    """Returns the result and the output of the second convolution, which the decoder uses."""
    low_level = self.conv2(functional.relu(self.conv1(functional.relu(net))))
    return self.shortcut(net) + self.conv3(functional.relu(low_level)), low_level


class Xception65(nn.Module):
  """Xception-65 up to its 2048 channels."""

  def __init__(self):
    super().__init__()
    conv = functools.partial(_xception_conv, activation=nn.ReLU)
    self.stem = nn.Sequential(conv(3, 32, 3, 2), conv(32, 64, 3))
    self.entry1 = XceptionModule(64, [128] * 3, 2)
    self.entry2 = XceptionModule(128, [256] * 3, 2)
    self.entry3 = XceptionModule(256, [728] * 3, 2)
    self.middle = nn.ModuleList(XceptionModule(728, [728] * 3) for _ in range(16))
    self.exit1 = XceptionModule(728, [728, 1024, 1024])
    self.exit2 = nn.Sequential(*(_separable(conv, inputs, outputs, dilation=2)
                                 for inputs, outputs in ((1024, 1536), (1536, 1536), (1536, 2048))))

  def forward(self, images):
    """Returns the features and the low-level features of stride 4."""
    net, _ = self.entry1(self.stem(images))
    net, low_level = self.entry2(net)
    for module in (self.entry3, *self.middle, self.exit1):
      net, _ = module(net)
    return self.exit2(net), low_level


class ASPP(nn.Module):
  """Image-level branch, 1x1 branch and one separable branch per rate, joined and projected."""

  def __init__(self, inputs, rates=()):
    super().__init__()
    self.image_pooling = nn.Sequential(nn.AdaptiveAvgPool2d(1), _head_conv(inputs, 256))
    self.branches = nn.ModuleList([
        _head_conv(inputs, 256), *(_separable(_head_conv, inputs, 256, dilation=rate) for rate in rates)])
    self.projection = nn.Sequential(_head_conv(256 * (2 + len(rates)), 256), nn.Dropout(0.1))

  def forward(self, features):
    image_level = self.image_pooling(features).expand(-1, -1, *features.shape[2:])
    return self.projection(torch.cat([image_level, *(branch(features) for branch in self.branches)], 1))


class MobileNetV2DeepLab(nn.Sequential):
  """DeepLabv3 on MobileNetV2."""

  def __init__(self, num_classes):
    super().__init__(_mobilenet_v2(), ASPP(320), nn.Conv2d(256, num_classes, 1))

  def forward(self, images):
    return _resize(super().forward(images), images.shape[2:])


class Xception65DeepLab(nn.Module):
  """DeepLabv3+ on Xception-65."""

  def __init__(self, num_classes):
    super().__init__()
    self.backbone = Xception65()
    self.aspp = ASPP(2048, (6, 12, 18))
    self.low_level_projection = _head_conv(256, 48)
    self.decoder = nn.Sequential(_separable(_head_conv, 256 + 48, 256), _separable(_head_conv, 256, 256))
    self.logits = nn.Conv2d(256, num_classes, 1)

  def forward(self, images):
    features, low_level = self.backbone(images)
    features = _resize(self.aspp(features), low_level.shape[2:])
    features = self.decoder(torch.cat([features, self.low_level_projection(low_level)], 1))
    return _resize(self.logits(features), images.shape[2:])


NETWORKS = {'mobilenet_v2': MobileNetV2DeepLab, 'xception_65': Xception65DeepLab}


def training_step(model_variant, crop_size, batch_size, num_classes=21):
  """Makes a network and a batch of random images.

  Args:
    model_variant: key of NETWORKS.
    crop_size: side of the square images in pixels, a multiple of 16 plus 1.
    batch_size: number of images, at least 2 (PyTorch normalises no single value per channel).
    num_classes: number of classes.

  Returns:
    Function without arguments that trains one step on the batch and returns the loss, a float.
  """
  network = NETWORKS[model_variant](num_classes).to(memory_format=torch.channels_last).train()
  optimizer = torch.optim.SGD(network.parameters(), lr=0.007, momentum=0.9, weight_decay=4e-5)
  images = (torch.rand(batch_size, 3, crop_size, crop_size) * 2 - 1).contiguous(memory_format=torch.channels_last)
  labels = torch.randint(num_classes, (batch_size, crop_size, crop_size))

  def step():
    optimizer.zero_grad()
    loss = functional.cross_entropy(network(images), labels, ignore_index=255)
    loss.backward()
    optimizer.step()
    return loss.item()

  return step
