"""Tests for datasets/tfexample.py."""

import io
import os

import numpy as np
import pytest
from PIL import Image

from deeplab.core.base.tf_compat import tf
from deeplab.datasets import tfexample


def _encode(pixels, image_format, mode=None):
  image = Image.fromarray(pixels)
  encoded = io.BytesIO()
  (image.convert(mode) if mode else image).save(encoded, image_format)
  return encoded.getvalue()


def _run(function, argument):
  with tf.Graph().as_default(), tf.Session() as session:
    return session.run(function(tf.constant(argument)))


def test_features_of_an_example():
  example = tfexample.image_seg_to_tfexample(b'image', 'name', 3, 4, b'label', 'jpg')
  features = example.features.feature
  texts = {key: features[key].bytes_list.value[0] for key in features if features[key].bytes_list.value}
  numbers = {key: features[key].int64_list.value[0] for key in features if features[key].int64_list.value}
  assert texts == {'image/encoded': b'image', 'image/filename': b'name', 'image/format': b'jpeg',
                   'image/segmentation/class/encoded': b'label', 'image/segmentation/class/format': b'png'}
  assert numbers == {'image/height': 3, 'image/width': 4, 'image/channels': 3}


@pytest.mark.parametrize('image_format, stored', [('jpg', b'jpeg'), ('jpeg', b'jpeg'), ('png', b'png')])
def test_format_is_stored_in_one_spelling(image_format, stored):
  example = tfexample.image_seg_to_tfexample(b'', 'name', 1, 1, b'', image_format)
  assert example.features.feature['image/format'].bytes_list.value[0] == stored


def test_image_without_label_has_no_label_features():
  example = tfexample.image_seg_to_tfexample(b'image', 'name', 3, 4, None, 'png')
  assert not [key for key in example.features.feature if 'segmentation' in key]


@pytest.mark.parametrize('name', ['2007_000033', 'Straße_東京', b'latin\xe9', os.fsdecode(b'latin\xe9')])
def test_record_round_trip(name):
  example = tfexample.image_seg_to_tfexample(b'\xff\xd8\xff', name, 3, 4, b'\x89PNG', 'jpg')
  record = _run(tfexample.parse_features, example.SerializeToString())
  assert record == (b'\xff\xd8\xff', b'\x89PNG', name if isinstance(name, bytes) else os.fsencode(name), 3, 4)


def test_absent_features_have_defaults():
  assert _run(tfexample.parse_features, tf.train.Example().SerializeToString()) == (b'', b'', b'', 0, 0)


@pytest.mark.parametrize('mode', ['L', 'RGB', 'RGBA', 'LA', 'P'])
def test_png_image_decodes_to_rgb(mode):
  pixels = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)
  image = Image.fromarray(pixels).convert(mode)
  encoded = io.BytesIO()
  image.save(encoded, 'PNG')
  np.testing.assert_array_equal(_run(tfexample.decode_image, encoded.getvalue()), np.asarray(image.convert('RGB')))


@pytest.mark.parametrize('mode', ['L', 'RGB'])
def test_jpeg_image_decodes_to_rgb(mode):
  decoded = _run(tfexample.decode_image, _encode(np.full([9, 11, 3], 100, np.uint8), 'JPEG', mode))
  assert decoded.shape == (9, 11, 3)
  np.testing.assert_array_equal(decoded, 100)


def test_label_keeps_every_value():
  label = np.arange(256, dtype=np.uint8).reshape(16, 16)
  np.testing.assert_array_equal(_run(tfexample.decode_label, _encode(label, 'PNG')), label[:, :, np.newaxis])


def test_is_record_file(tmp_path):
  whole = str(tmp_path / 'whole')
  with tf.io.TFRecordWriter(whole) as writer:
    writer.write(b'x' * 300)
  compressed = str(tmp_path / 'compressed')
  with tf.io.TFRecordWriter(compressed, 'GZIP') as writer:
    writer.write(b'x' * 300)
  (tmp_path / 'text').write_text('a text of more than twelve bytes')
  (tmp_path / 'short').write_bytes(b'abc')
  found = {name: tfexample.is_record_file(str(tmp_path / name)) for name in ('whole', 'compressed', 'text', 'short')}
  assert found == {'whole': True, 'compressed': False, 'text': False, 'short': False}
