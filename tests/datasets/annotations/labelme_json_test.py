"""Tests for datasets/annotations/labelme_json.py: folders of images and JSON of labelme."""

import base64
import io
import json

import annotated
import numpy as np
import pytest
from annotated import HEIGHT, WIDTH, rectangle
from PIL import Image

from deeplab.core.base.errors import InputError
from deeplab.datasets import dataset_info


def _polygon(label, left, top, right, bottom, **fields):
  """A shape that covers the pixels left..right and top..bottom, all included."""
  return {'label': label, 'points': [[left, top], [right, top], [right, bottom], [left, bottom]], 'shape_type': 'polygon',
          'group_id': None, 'flags': {}, **fields}


def _write(root, name, *shapes, image=True, **fields):
  """NAME.jpg and NAME.json as labelme saves them."""
  if image:
    annotated.save_image(root / f'{name}.jpg')
  root.mkdir(exist_ok=True)
  content = {'version': '5.5.0', 'flags': {}, 'shapes': list(shapes), 'imagePath': f'{name}.jpg', 'imageData': None,
             'imageHeight': HEIGHT, 'imageWidth': WIDTH, **fields}
  (root / f'{name}.json').write_text(json.dumps(content))
  return root


def _convert_one(root, out, *flags):
  return annotated.convert(root, out, '--val_fraction=0', *flags)['train']


def _base64_of(pixels):
  encoded = io.BytesIO()
  Image.fromarray(pixels).save(encoded, 'PNG')
  return base64.b64encode(encoded.getvalue()).decode()


def test_polygons_in_order_with_classes_by_the_alphabet(tmp_path, capsys):
  root = _write(tmp_path / 'photos', 'a', _polygon('dog', 2, 2, 9, 8), _polygon('cat', 4, 3, 6, 5), _polygon('dog', 5, 4, 5, 4))
  _write(root, 'b', _polygon('dog', 0, 0, 20, 1, shape_type=None))
  records = _convert_one(root, tmp_path / 'out')
  assert capsys.readouterr().out.splitlines()[0] == f'labelme JSON: {root}, 3 classes: _background_, cat, dog.'
  expected = rectangle(2, 9, 2, 10, 2)
  expected[3:6, 4:7] = 1
  expected[4, 5] = 2
  np.testing.assert_array_equal(records['a'][1], expected)
  np.testing.assert_array_equal(records['b'][1], rectangle(0, 2, 0, WIDTH, 2))
  assert records['a'][0] == (root / 'a.jpg').read_bytes()
  assert dataset_info.get_descriptor('own_data', str(tmp_path / 'out')).class_names == ['_background_', 'cat', 'dog']


@pytest.mark.parametrize('shape, expected', [
    ({'shape_type': 'rectangle', 'points': [[9.0, 6.0], [3.0, 2.0]]}, rectangle(2, 7, 3, 10)),
    ({'shape_type': 'oriented_rectangle', 'points': [[3, 2], [9, 2], [9, 6], [3, 6]]}, rectangle(2, 7, 3, 10)),
    ({'shape_type': 'mask', 'points': [[3, 2], [5, 3]], 'mask': _base64_of(np.uint8([[1, 0, 1], [0, 1, 1]]))},
     np.pad(np.uint8([[1, 0, 1], [0, 1, 1]]), [(2, HEIGHT - 4), (3, WIDTH - 6)])),
    ({'shape_type': 'mask', 'points': [[-1, 11], [1, 12]], 'mask': _base64_of(np.uint8([[1, 0, 1], [1, 1, 1]]))},
     rectangle(11, 12, 1, 2)),
])
def test_shapes_cover_their_pixels(tmp_path, shape, expected):
  root = _write(tmp_path / 'photos', 'a', {'label': 'cat', **shape})
  np.testing.assert_array_equal(_convert_one(root, tmp_path / 'out')['a'][1], expected)


def test_circle_is_given_by_its_centre_and_a_point_on_it(tmp_path):
  root = _write(tmp_path / 'photos', 'a', {'label': 'cat', 'shape_type': 'circle', 'points': [[8, 6], [8, 2]]})
  label = _convert_one(root, tmp_path / 'out')['a'][1]
  rows, columns = np.mgrid[:HEIGHT, :WIDTH]
  distance = np.hypot(rows - 6, columns - 8)
  assert label[distance <= 3.5].all() and not label[distance > 4.5].any()


def test_background_and_ignored_shapes(tmp_path):
  root = _write(tmp_path / 'photos', 'a', _polygon('cat', 2, 2, 9, 8), _polygon('_background_', 4, 3, 6, 5),
                _polygon('__ignore__', 0, 0, 15, 0))
  expected = rectangle(2, 9, 2, 10)
  expected[3:6, 4:7] = 0
  expected[0] = 255
  np.testing.assert_array_equal(_convert_one(root, tmp_path / 'out')['a'][1], expected)


def test_image_inside_of_the_json_and_under_another_name(tmp_path):
  data = annotated.save_image(tmp_path / 'away/x.jpg')
  root = _write(tmp_path / 'photos', 'a', _polygon('cat', 2, 2, 9, 8), image=False, imageData=base64.b64encode(data).decode())
  _write(root, 'b', _polygon('cat', 2, 2, 9, 8), image=False, imagePath='..\\away\\x.jpg')
  annotated.save_image(root / 'c.png')
  _write(root, 'c', _polygon('cat', 2, 2, 9, 8), image=False, imagePath='gone.jpg', imageHeight=None, imageWidth=None)
  records = _convert_one(root, tmp_path / 'out')
  assert records['a'][0] == records['b'][0] == data and records['c'][0] == (root / 'c.png').read_bytes()
  for name in 'abc':
    np.testing.assert_array_equal(records[name][1], rectangle(2, 9, 2, 10))


@pytest.mark.parametrize('size', [(HEIGHT, WIDTH), (None, None)])
def test_shapes_lie_on_the_upright_photograph(tmp_path, size):
  root = _write(tmp_path / 'photos', 'a', _polygon('cat', 2, 2, 9, 8), imageHeight=size[0], imageWidth=size[1])
  upright = np.zeros([HEIGHT, WIDTH, 3], np.uint8)
  upright[2:9, 2:10] = 255
  exif = Image.Exif()
  exif[0x0112] = 6
  Image.fromarray(np.rot90(upright)).save(root / 'a.png', exif=exif)
  (root / 'a.jpg').unlink()
  image, label = _convert_one(root, tmp_path / 'out')['a']
  np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(image))), upright)
  np.testing.assert_array_equal(label, rectangle(2, 9, 2, 10))


def test_class_names_give_the_order(tmp_path):
  root = _write(tmp_path / 'photos', 'a', _polygon('cat', 2, 2, 9, 8), _polygon('dog', 0, 0, 1, 1))
  label = _convert_one(root, tmp_path / 'out', '--class_names=floor,dog,bird,cat')['a'][1]
  assert (label[0, 0], label[2, 2], label[11, 0]) == (1, 3, 0)
  for names, message in (('cat,dog', "begins with 'cat', which is a class of objects"),
                         ('floor,cat', "a.json is of class 'dog', which --class_names does not name"),
                         ('floor,cat,cat', 'names cat more than once')):
    with pytest.raises(InputError, match=message):
      annotated.convert(root, tmp_path / 'none', f'--class_names={names}')
  assert annotated.wrote_nothing(tmp_path / 'none')


def test_what_should_be_known_is_told(tmp_path, capsys):
  root = _write(tmp_path / 'photos', 'a', _polygon('cat', 2, 2, 9, 18), _polygon('dog', 40, 2, 50, 8),
                {'label': 'cat', 'shape_type': 'point', 'points': [[1, 1]]})
  _write(root, 'empty')
  records = _convert_one(root, tmp_path / 'out')
  assert not records['empty'][1].any()
  output = capsys.readouterr().out
  assert '1 shapes have no area and are left out: a: point.' in output
  assert 'a: 2 outside of its 12x16 pixels (height x width), 1 of them wholly: cat, dog' in output
  assert '1 of 2 images have no annotation; they are kept, all background: empty.' in output


def test_image_without_json_stops_it_unless_broken_ones_are_skipped(tmp_path):
  root = _write(tmp_path / 'photos', 'a', _polygon('cat', 2, 2, 9, 8))
  annotated.save_image(root / 'b.jpg')
  with pytest.raises(InputError, match='1 images of .*photos have no JSON: b.jpg'):
    annotated.convert(root, tmp_path / 'out')
  assert annotated.wrote_nothing(tmp_path / 'out')
  assert list(_convert_one(root, tmp_path / 'out', '--skip_broken')) == ['a']


@pytest.mark.parametrize('content, message', [
    ('{"shapes": [', r'b.json is not JSON \(.*line 1'),
    ('[]', 'b.json has no list "shapes"'),
    ({'shapes': [{'points': []}]}, 'b.json, shape 1: .* has no "label"'),
    ({'shapes': [{'label': 'cat', 'points': [[1, 2], [3, 4]]}]}, 'a polygon has 3 points or more, this one has 2'),
    ({'shapes': [{'label': 'cat', 'points': 'x'}]}, 'its points are x'),
    ({'shapes': [{'label': 'cat', 'points': [[1, 2], [3]]}]}, 'must be a list of'),
    ({'shapes': [{'label': 'cat', 'points': [[1, 2]] * 3, 'shape_type': 'star'}]}, "of type 'star'; known are polygon"),
    ({'shapes': [{'label': 'cat', 'points': [[1, 2]] * 2, 'shape_type': 'mask', 'mask': '~'}]}, 'its mask is no base64'),
    ({'shapes': [{'label': 'cat', 'points': [[1, 2]] * 2, 'shape_type': 'mask', 'mask': 'AAAA'}]}, 'its mask is no picture'),
    ({'shapes': [], 'imageHeight': 'x', 'imageWidth': 4}, 'the size xx4'),
    ({'shapes': [], 'imageHeight': 10**9, 'imageWidth': 10**9}, 'b.jpg is 12x16 .*b.json is 1000000000x1000000000'),
    ({'shapes': [], 'imageData': 'AAAA'}, r'b.json \(imageData\) is broken'),
    ({'shapes': [], 'imageData': '~'}, r'b.json \(imageData\) is no base64'),
    ({'shapes': [], 'imagePath': 'nowhere.jpg'}, 'nowhere.jpg cannot be read'),
])
def test_wrong_json_is_told_and_nothing_is_written(tmp_path, content, message):
  root = _write(tmp_path / 'photos', 'a', _polygon('cat', 2, 2, 9, 8))
  if 'nowhere' not in message:
    annotated.save_image(root / 'b.jpg')
  (root / 'b.json').write_text(content if isinstance(content, str) else json.dumps(content))
  with pytest.raises(InputError, match=message):
    annotated.convert(root, tmp_path / 'out')
  assert annotated.wrote_nothing(tmp_path / 'out')
  assert list(_convert_one(root, tmp_path / 'out', '--skip_broken')) == ['a']


def test_two_json_of_one_image_are_told(tmp_path):
  root = _write(tmp_path / 'photos', 'a', _polygon('cat', 2, 2, 9, 8))
  _write(root, 'b', image=False, imagePath='a.jpg')
  with pytest.raises(InputError, match='a.jpg belongs to 2 annotations: a, b'):
    annotated.convert(root, tmp_path / 'out')
