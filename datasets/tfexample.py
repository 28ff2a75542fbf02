"""The record of one image and its label: a tf.train.Example, written and read here.

    image/encoded                       JPEG or PNG file, as it lies on disk
    image/filename                      name under which reports speak of the image
    image/format                        'jpeg' or 'png', what the bytes are
    image/height, image/width           pixels
    image/channels                      3, what the reader decodes to
    image/segmentation/class/encoded    gray PNG of 8 bits; absent where an image has no label
    image/segmentation/class/format     'png'
"""

import contextlib
import os
from typing import NamedTuple

from deeplab.core.base import errors
from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf

_FORMATS = {'jpg': 'jpeg', 'jpeg': 'jpeg', 'png': 'png'}
# A record begins with its length (8 bytes) and the masked CRC-32C of that (4 bytes).
_LENGTH_BYTES = 8
_HEAD_BYTES = 12
_CRC32C_POLYNOMIAL = 0x82f63b78
_CRC_MASK_DELTA = 0xa282ead8


class EncodedRecord(NamedTuple):
  """A record before decoding.

  Attributes:
    image: string scalar, JPEG or PNG file; '' if absent.
    label: string scalar, PNG file; '' if absent.
    name: string scalar, file name of the image; '' if absent.
    height: int64 scalar, pixels; 0 if absent.
    width: int64 scalar, pixels; 0 if absent.
  """
  image: tf.Tensor
  label: tf.Tensor
  name: tf.Tensor
  height: tf.Tensor
  width: tf.Tensor


def _bytes_feature(value):
  # Names of files may hold bytes that are no UTF-8; fsencode gives back the bytes that the file system had.
  value = os.fsencode(value) if isinstance(value, str) else value
  return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


def _int64_feature(value):
  return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))


def image_seg_to_tfexample(image_data, filename, height, width, seg_data, image_format, label_format='png'):
  """Packs one image and its label.

  Args:
    image_data: bytes of a JPEG or PNG file.
    filename: name of the image, str or bytes.
    height: pixels.
    width: pixels.
    seg_data: bytes of a gray 8-bit PNG file whose values are classes, or None for an image without label.
    image_format: 'jpg', 'jpeg' or 'png', what `image_data` is.
    label_format: what `seg_data` is.

  Returns:
    tf.train.Example.
  """
  features = {
      'image/encoded': _bytes_feature(image_data),
      'image/filename': _bytes_feature(filename),
      'image/format': _bytes_feature(_FORMATS[image_format]),
      'image/height': _int64_feature(height),
      'image/width': _int64_feature(width),
      'image/channels': _int64_feature(3),
  }
  if seg_data is not None:
    features['image/segmentation/class/encoded'] = _bytes_feature(seg_data)
    features['image/segmentation/class/format'] = _bytes_feature(label_format)
  return tf.train.Example(features=tf.train.Features(feature=features))


def parse_features(serialized):
  """Takes a record apart without decoding the pictures.

  Args:
    serialized: string scalar, a serialized tf.train.Example.

  Returns:
    EncodedRecord.
  """
  parsed = tf.io.parse_single_example(serialized, {
      'image/encoded': tf.io.FixedLenFeature((), tf.string, ''),
      'image/segmentation/class/encoded': tf.io.FixedLenFeature((), tf.string, ''),
      'image/filename': tf.io.FixedLenFeature((), tf.string, ''),
      'image/height': tf.io.FixedLenFeature((), tf.int64, 0),
      'image/width': tf.io.FixedLenFeature((), tf.int64, 0),
  })
  return EncodedRecord(image=parsed['image/encoded'], label=parsed['image/segmentation/class/encoded'],
                       name=parsed['image/filename'], height=parsed['image/height'], width=parsed['image/width'])


def unpack(serialized):
  """Takes a record apart without a graph.

  Args:
    serialized: bytes of a serialized tf.train.Example.

  Returns:
    EncodedRecord of bytes and whole numbers.
  """
  features = tf.train.Example.FromString(serialized).features.feature

  def first(key, missing):
    values = features[key].bytes_list.value or features[key].int64_list.value if key in features else ()
    return values[0] if values else missing

  return EncodedRecord(image=first('image/encoded', b''), label=first('image/segmentation/class/encoded', b''),
                       name=first('image/filename', b''), height=first('image/height', 0), width=first('image/width', 0))


def decode_image(encoded):
  """Decodes a picture; whether it is JPEG or PNG is told from its bytes.

  Args:
    encoded: string scalar, JPEG or PNG file; gray is repeated over the channels, alpha is dropped.

  Returns:
    uint8 [height, width, 3].
  """
  # The JPEG op decodes PNG bytes too, and of all ops it alone decodes JPEG bytes as published models saw them (fast DCT).
  return tf.image.decode_jpeg(encoded, channels=3)


def decode_label(encoded):
  """Decodes a label.

  Args:
    encoded: string scalar, gray PNG file.

  Returns:
    uint8 [height, width, 1], classes or the ignored value.
  """
  return tf.image.decode_png(encoded, channels=1)


def _crc32c(data):
  crc = 0xffffffff
  for byte in data:
    crc ^= byte
    for _ in range(8):
      crc = (crc >> 1) ^ (_CRC32C_POLYNOMIAL * (crc & 1))
  return crc ^ 0xffffffff


def is_record_file(path):
  """Whether a file begins as a file of records does; reads 12 bytes."""
  with tf.io.gfile.GFile(path, 'rb') as record_file:
    head = record_file.read(_HEAD_BYTES)
  crc = _crc32c(head[:_LENGTH_BYTES])
  masked = (((crc >> 15) | (crc << 17)) + _CRC_MASK_DELTA) & 0xffffffff
  return len(head) == _HEAD_BYTES and int.from_bytes(head[_LENGTH_BYTES:], 'little') == masked


def cpu_session(graph=None):
  """A session that leaves the accelerator to the training that may follow in this process; `graph`: None for the default one."""
  return tf.Session(graph=graph, config=tf.ConfigProto(device_count={'GPU': 0}))


def read_records(path):
  """Serialized records of a file in order, their checksums compared.

  Args:
    path: TFRecord file.

  Yields:
    bytes.

  Raises:
    ValueError: a checksum is wrong, or the file ends within a record; raised after the records before that.
  """
  number = 0
  graph = tf.Graph()
  with graph.as_default():
    following = tf.data.make_one_shot_iterator(tf.data.TFRecordDataset(path)).get_next()
  # Neither is the default between two records: others may be read in turn.
  with contextlib.closing(cpu_session(graph)) as session:
    while True:
      try:
        record = session.run(following)
      except tf.errors.OutOfRangeError:
        return
      except tf.errors.DataLossError as error:
        raise InputError(f'{path} is damaged after {number} whole records ({errors.explain(error)}); copy it anew, or '
                         'convert the data set again.') from error
      number += 1
      yield record
