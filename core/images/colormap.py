"""Colours of classes in pictures of labels and predictions."""

import numpy as np

from deeplab.core.base.errors import InputError

_PASCAL_ENTRIES = 512
_CITYSCAPES_ENTRIES = 256

# RGB of the classes in order, two hexadecimal digits a channel, as the publishers of the data sets draw them.
_CITYSCAPES = '''
    804080 f423e8 464646 66669c be9999 999999 faaa1e dcdc00 6b8e23 98fb98 4682b4 dc143c ff0000 00008e 000046 003c64 005064 0000e6
    770b20'''
_ADE20K = '''
    000000 787878 b47878 06e6e6 503232 04c803 787850 8c8c8c cc05ff e6e6e6 04fa07 e005ff ebff07 96053d 787846 08ff33 ff0652
    8fff8c ccff04 ff3307 cc4603 0066c8 3de6fa ff0633 0b66ff ff0747 ff09e0 0907e6 dcdcdc ff095c 7009ff 08ffd6 07ffe0 ffb806
    0aff47 ff290a 07ffff e0ff08 6608ff ff3d06 ffc207 ff7a08 00ff14 ff0829 ff0599 0633ff eb0cff a09614 00a3ff 8c8c8c fa0a0f
    14ff00 1fff00 ff1f00 ffe000 99ff00 0000ff ff4700 00ebff 00adff 1f00ff 0bc8c8 ff5200 00fff5 003dff 00ff70 00ff85 ff0000
    ffa300 ff6600 c2ff00 008fff 33ff00 0052ff 00ff29 00ffad 0a00ff adff00 00ff99 ff5c00 ff00ff ff00f5 ff0066 ffad00 ff0014
    ffb8b8 001fff 00ff3d 0047ff ff00cc 00ffc2 00ff52 000aff 0070ff 3300ff 00c2ff 007aff 00ffa3 ff9900 00ff0a ff7000 8fff00
    5200ff a3ff00 ffeb00 08b8aa 8500ff 00ff5c b800ff ff001f 00b8ff 00d6ff ff0070 5cff00 00e0ff 70e0ff 46b8a0 a300ff 9900ff
    47ff00 ff00a3 ffcc00 ff008f 00ffeb 85ff00 ff00eb f500ff ff007a fff500 0abed4 d6ff00 00ccff 1400ff ffff00 0099ff 0029ff
    00ffcc 2900ff 29ff00 ad00ff 00f5ff 4700ff 7a00ff 00ffb8 005cff b8ff00 0085ff ffd600 19c2c2 66ff00 5c00ff'''
_MAPILLARY_VISTAS = '''
    a52a2a 00c000 c4c4c4 be9999 b4a5b4 66669c 66669c 8040ff 8c8cc8 aaaaaa faaaa0 606060 e6968c 804080 6e6e6e f423e8 966464
    464646 96785a dc143c ff0000 ff0000 ff0000 c88080 ffffff 40aa40 804040 4682b4 ffffff 98fb98 6b8e23 00aa1e ffff80 fa001e
    000000 dcdcdc aaaaaa de2828 64aa1e 282828 212121 aaaaaa 00008e aaaaaa d2aa64 999999 808080 00008e faaa1e c0c0c0 dcdc00
    b4a5b4 770b20 00008e 003c64 00008e 00005a 0000e6 005064 804040 00006e 000046 0000c0 202020 000000 000000'''


def _from_hex(text):
  return np.frombuffer(bytes.fromhex(text), np.uint8).reshape(-1, 3)


def _pascal():
  """The bits of an index, three at a time from the lowest, are the bits of red, green and blue from the highest."""
  index = np.arange(_PASCAL_ENTRIES)
  colors = np.zeros([_PASCAL_ENTRIES, 3], np.uint8)
  for shift in range(7, -1, -1):
    for channel in range(3):
      colors[:, channel] |= ((index >> channel & 1) << shift).astype(np.uint8)
    index >>= 3
  return colors


def _cityscapes():
  colors = np.zeros([_CITYSCAPES_ENTRIES, 3], np.uint8)
  named = _from_hex(_CITYSCAPES)
  colors[:len(named)] = named
  return colors


_COLORMAPS = {
    'ade20k': lambda: _from_hex(_ADE20K),
    'cityscapes': _cityscapes,
    'mapillary_vistas': lambda: _from_hex(_MAPILLARY_VISTAS),
    'pascal': _pascal,
}


def create_label_colormap(dataset='pascal'):
  """Colours of a data set.

  Args:
    dataset: 'ade20k', 'cityscapes', 'mapillary_vistas' or 'pascal'.

  Returns:
    uint8 [entries, 3], RGB; 151, 256, 66 and 512 entries.

  Raises:
    ValueError: the name is another.
  """
  if dataset not in _COLORMAPS:
    raise InputError(f'Unknown colour map {dataset!r}; choose one of: {", ".join(sorted(_COLORMAPS))}.')
  return _COLORMAPS[dataset]()


def label_to_color_image(label, dataset='pascal'):
  """Draws a label.

  Args:
    label: int [height, width], values 0 and above.
    dataset: name of a colour map, or the colours themselves, [entries, 3].

  Returns:
    uint8 [height, width, 3], RGB.

  Raises:
    ValueError: `label` has another rank, or a value without colour.
  """
  colors = create_label_colormap(dataset) if isinstance(dataset, str) else np.asarray(dataset, np.uint8)
  label = np.asarray(label)
  if label.ndim != 2:
    raise InputError(f'A label has the shape [height, width]; this one has {list(label.shape)}.')
  if label.size and not 0 <= label.min() <= label.max() < len(colors):
    raise InputError(f'The label holds values {label.min()} to {label.max()}; the colour map has the entries 0 to '
                     f'{len(colors) - 1}.')
  return colors[label]
