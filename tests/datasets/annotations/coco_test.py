"""Tests for datasets/annotations/coco.py and the areas of drawing.py: COCO instances from several tools."""

import json
import sys

import annotated
import numpy as np
import pytest
from annotated import HEIGHT, WIDTH, rectangle
from PIL import Image
from pycocotools import mask

from deeplab.core.base.errors import InputError
from deeplab.datasets import dataset_info
from deeplab.datasets.annotations import drawing

_CATEGORIES = [{'id': 7, 'name': 'cat'}, {'id': 3, 'name': 'dog'}]
_SIZE = {'height': HEIGHT, 'width': WIDTH}


def _polygon(left, top, right, bottom):
  return [left, top, right, top, right, bottom, left, bottom]


def _runs(label):
  """Uncompressed run lengths: along the columns, beginning with those outside."""
  pixels = np.concatenate([[0], label.T.ravel() > 0])
  edges = np.flatnonzero(np.diff(pixels)) if pixels[1:].any() else np.array([], np.int64)
  return np.diff([0, *edges.tolist(), label.size]).tolist()


def _annotation(image_id, category_id, segmentation, **fields):
  return {'id': 100 * image_id + category_id, 'image_id': image_id, 'category_id': category_id, 'segmentation': segmentation,
          'iscrowd': 0, **fields}


def _write(path, annotations, names=('a.jpg',), folder=None, categories=None, **fields):
  """instances.json and its images; the id of an image is its place among `names`."""
  for seed, name in enumerate(names):
    annotated.save_image((folder or path.parent) / name.replace('\\', '/'), seed)
  content = {'images': [{'id': index, 'file_name': name, **_SIZE} for index, name in enumerate(names)],
             'annotations': annotations, 'categories': categories or _CATEGORIES, **fields}
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(json.dumps(content))
  return path


def _labels(path, out, *flags):
  records = annotated.merged(annotated.convert(path, out, *flags))
  return {name: label for name, (_, label) in records.items()}


def test_polygons_runs_and_crowds_by_category_id(tmp_path, capsys):
  dog, cat = rectangle(1, 4, 2, 9, 1), rectangle(5, 12, 10, 16, 2)
  compressed = mask.encode(np.asfortranarray(dog))
  path = _write(tmp_path / 'instances.json', [
      _annotation(0, 3, [_polygon(2, 1, 9, 4)]),
      _annotation(1, 7, {'counts': _runs(cat), 'size': [HEIGHT, WIDTH]}, iscrowd=1),
      _annotation(2, 3, {'counts': compressed['counts'].decode(), 'size': [HEIGHT, WIDTH]}, iscrowd=1),
  ], ['a.jpg', 'b.jpg', 'c.jpg'])
  labels = _labels(path, tmp_path / 'out')
  assert capsys.readouterr().out.splitlines()[0] == f'COCO instances: {path}, 3 classes: background, dog, cat.'
  np.testing.assert_array_equal(labels['a'], dog)
  np.testing.assert_array_equal(labels['b'], cat)
  np.testing.assert_array_equal(labels['c'], dog)
  assert dataset_info.get_descriptor('own_data', str(tmp_path / 'out')).class_names == ['background', 'dog', 'cat']


def test_larger_objects_come_first(tmp_path):
  whole = rectangle(0, HEIGHT, 0, WIDTH)
  path = _write(tmp_path / 'instances.json', [
      _annotation(0, 7, [_polygon(4, 4, 6, 6), [8.0, 4.0, 10, 4, 10, 6, 8, 6]]),
      _annotation(0, 3, [_polygon(2, 2, 12, 10)]),
      _annotation(0, 7, {'counts': _runs(whole), 'size': [HEIGHT, WIDTH]}, iscrowd=1)])
  expected = rectangle(2, 10, 2, 12, 1)
  expected[4:6, 4:6] = expected[4:6, 8:10] = 2
  expected[~rectangle(2, 10, 2, 12).astype(bool)] = 2
  np.testing.assert_array_equal(_labels(path, tmp_path / 'out')['a'], expected)


def test_polygons_cover_the_pixels_that_pycocotools_gives_them():
  rng = np.random.default_rng(0)
  for _ in range(50):
    angles = np.sort(rng.uniform(0, 2 * np.pi, 12))
    radii = rng.uniform(20, 60, 12)
    points = np.stack([80 + radii * np.cos(angles), 64 + radii * np.sin(angles)], axis=1)
    picture = Image.new('L', (160, 128))
    drawing.polygons_of_corners('x', [points]).paint(picture, 1)
    drawn = np.asarray(picture)
    expected = mask.decode(mask.frPyObjects([points.ravel().tolist()], 128, 160))[:, :, 0]
    assert (drawn & expected).sum() > 0.985 * (drawn | expected).sum()


def test_polygons_are_cut_at_every_border_of_the_image():
  points = np.array([[-5.0, -1e300], [3, -2], [3, 2], [-1e18, 2]])
  picture = Image.new('L', (6, 4))
  drawing.polygons_of_corners('x', [points]).paint(picture, 1)
  np.testing.assert_array_equal(np.asarray(picture), [[1, 1, 1, 0, 0, 0]] * 2 + [[0] * 6] * 2)


@pytest.mark.parametrize('json_path, images, file_name', [
    ('result.json', 'images', 'a.jpg'),
    ('result.json', '.', 'images\\a.jpg'),
    ('annotations/instances_default.json', 'images', 'a.jpg'),
    ('train/_annotations.coco.json', 'train', 'a.jpg'),
])
def test_images_are_found_near_the_json_as_tools_lay_them(tmp_path, json_path, images, file_name):
  root = tmp_path / 'export'
  path = _write(root / json_path, [_annotation(0, 3, [_polygon(2, 1, 9, 4)])], [file_name], root / images)
  name = 'images_a' if '\\' in file_name else 'a'
  for annotations in (root, path):
    np.testing.assert_array_equal(_labels(annotations, tmp_path / f'out_{annotations.name}')[name], rectangle(1, 4, 2, 9))


def test_folders_of_roboflow_are_splits(tmp_path):
  for folder in ('train', 'valid'):
    _write(tmp_path / 'export' / folder / '_annotations.coco.json', [_annotation(0, 3, [_polygon(2, 1, 9, 4)])],
           [f'{folder}.jpg'])
  splits = annotated.convert(tmp_path / 'export', tmp_path / 'out')
  assert {split: list(records) for split, records in splits.items()} == {'train': ['train'], 'val': ['valid']}


def test_subsets_of_datumaro_have_folders_of_images(tmp_path):
  images = {}
  for subset in ('train', 'val'):
    path = _write(tmp_path / f'export/annotations/instances_{subset}.json', [_annotation(0, 3, [_polygon(2, 1, 9, 4)])],
                  folder=tmp_path / f'export/images/{subset}')
    images[subset] = annotated.save_image(tmp_path / f'export/images/{subset}/a.jpg', len(subset))
  splits = annotated.convert(tmp_path / 'export', tmp_path / 'out')
  assert {split: records['a'][0] for split, records in splits.items()} == images
  path.rename(path.with_name('instances_mine.json'))
  path.with_name('instances_train.json').unlink()
  (tmp_path / 'export/images/val').rename(tmp_path / 'export/images/mine')
  assert list(annotated.convert(tmp_path / 'export', tmp_path / 'one')) == ['train']


def test_image_folder_and_what_should_be_known(tmp_path, capsys, absl_log):
  path = _write(tmp_path / 'instances.json', [_annotation(0, 3, [_polygon(-9, 1, 9, 4)])], ['x/a.jpg', 'y/a.jpg'],
                tmp_path / 'photographs')
  annotated.save_image(tmp_path / 'photographs/x/b.jpg')
  labels = _labels(path, tmp_path / 'out', f'--image_folder={tmp_path}/photographs', '--val_fraction=0')
  np.testing.assert_array_equal(labels['x_a'], rectangle(1, 4, 0, 9))
  assert not labels['y_a'].any()
  output = capsys.readouterr().out
  assert 'x_a: 1 outside of its 12x16 pixels (height x width): dog' in output
  assert '1 of 2 images have no annotation; they are kept, all background: y_a.' in output
  assert f'1 images of {tmp_path}/photographs are not listed in {path} and left out: x/b.jpg.' in output
  assert 'never present: 2 (cat)' in absl_log.text


def test_category_called_background_is_class_0(tmp_path):
  categories = [{'id': 0, 'name': 'dog'}, {'id': 1, 'name': 'Background'}]
  path = _write(tmp_path / 'instances.json', [
      _annotation(0, 0, [_polygon(2, 1, 9, 4)]), _annotation(0, 1, [_polygon(3, 2, 5, 3)])], categories=categories)
  expected = rectangle(1, 4, 2, 9)
  expected[2, 3:5] = 0
  np.testing.assert_array_equal(_labels(path, tmp_path / 'out')['a'], expected)


def test_size_is_the_images_where_the_json_does_not_say_it(tmp_path, absl_log):
  path = _write(tmp_path / 'instances.json', [], images=[{'id': 0, 'file_name': 'a.jpg'}])
  content = json.loads(path.read_text())
  content['annotations'] = [_annotation(0, 3, [_polygon(2, 1, 90, 4)])]
  path.write_text(json.dumps(content))
  np.testing.assert_array_equal(_labels(path, tmp_path / 'out')['a'], rectangle(1, 4, 2, WIDTH))
  assert '(image a.jpg): 1 outside of its 12x16 pixels' in absl_log.text


_CUT = mask.encode(np.asfortranarray(rectangle(1, 4, 2, 9)))['counts'].decode()[:5]


@pytest.mark.parametrize('annotation, message', [
    (_annotation(0, 5, [_polygon(2, 1, 9, 4)]), r'annotation 5 is of category 5, which is not listed; .* 3 \(dog\), 7 \(cat\)'),
    (_annotation(4, 3, [_polygon(2, 1, 9, 4)]), '1 annotations belong to images that it does not list: image_id 4'),
    (_annotation(0, 3, []), 'has no segmentation; a box alone'),
    (_annotation(0, 3, None), 'has no segmentation'),
    (_annotation(0, 3, [[1, 2, 3, 4]]), 'three points or more'),
    (_annotation(0, 3, [[1, 2, 3, 4, 5, 'x']]), 'is no polygon'),
    (_annotation(0, 3, [[1, 2, 3, 4, 5, float('nan')]]), 'is no polygon'),
    (_annotation(0, 3, {'counts': [5], 'size': [HEIGHT, WIDTH]}), 'add up to 12 x 16 = 192; these add up to 5'),
    (_annotation(0, 3, {'counts': [HEIGHT * WIDTH + 1, -1], 'size': [HEIGHT, WIDTH]}), 'must be whole numbers'),
    (_annotation(0, 3, {'counts': [100], 'size': [10, 10]}), 'run lengths are of 10x10 pixels, its image of 12x16'),
    (_annotation(0, 3, {'counts': _CUT, 'size': [HEIGHT, WIDTH]}), 'are not those of 12x16 pixels'),
    (_annotation(0, 3, {'counts': '~~~~', 'size': [HEIGHT, WIDTH]}), 'are not those of 12x16 pixels'),
    (_annotation(0, 3, {'counts': 'ä', 'size': 'x'}), 'have the size x'),
])
def test_wrong_annotations_are_told_and_nothing_is_written(tmp_path, annotation, message):
  path = _write(tmp_path / 'instances.json', [annotation, _annotation(1, 3, [_polygon(2, 1, 9, 4)])], ['a.jpg', 'b.jpg'])
  with pytest.raises(InputError, match=message):
    annotated.convert(path, tmp_path / 'out')
  assert annotated.wrote_nothing(tmp_path / 'out')
  assert 'b' in _labels(path, tmp_path / 'out', '--skip_broken', '--val_fraction=0')


@pytest.mark.parametrize('change, message', [
    (lambda content: content.pop('annotations'), "has no list 'annotations'"),
    (lambda content: content['images'].append(5), "'images' holds '5'"),
    (lambda content: content['images'].append({'id': 9}), 'needs a "file_name"'),
    (lambda content: content['images'].clear(), 'annotations belong to images that it does not list|lists no image'),
    (lambda content: content['categories'].clear(), 'lists no category'),
    (lambda content: content['categories'].append({'id': 'x', 'name': 'y'}), 'needs an "id"'),
    (lambda content: content['categories'].append({'id': 9, 'name': 'cat'}), 'names cat more than once'),
    (lambda content: content['categories'].append({'id': 3, 'name': 'cow'}), "category 3 is 'cow' here and 'dog' before"),
    (lambda content: content['images'].append({'id': 9, 'file_name': 'a.jpg', **_SIZE}), 'a names 2 images'),
    (lambda content: content['images'][0].update(file_name='nowhere.jpg'), "first image, 'nowhere.jpg', lies neither"),
    (lambda content: content['images'][0].update(height=16, width=12), 'a.jpg is 12x16 .*image a.jpg.* is 16x12'),
    (lambda content: content['images'][0].update(height=-1), 'its size is -1x16'),
    (lambda content: content.update(shapes=[]), 'is a JSON of labelme; give the folder'),
])
def test_wrong_files_are_told_and_nothing_is_written(tmp_path, change, message):
  path = _write(tmp_path / 'instances.json', [_annotation(0, 3, [_polygon(2, 1, 9, 4)])])
  content = json.loads(path.read_text())
  change(content)
  path.write_text(json.dumps(content))
  with pytest.raises(InputError, match=message):
    annotated.convert(path, tmp_path / 'out')
  assert annotated.wrote_nothing(tmp_path / 'out')


def test_missing_pycocotools_is_named(tmp_path, monkeypatch):
  counts = mask.encode(np.asfortranarray(rectangle(1, 4, 2, 9)))['counts'].decode()
  path = _write(tmp_path / 'instances.json', [_annotation(0, 3, {'counts': counts, 'size': [HEIGHT, WIDTH]})])
  monkeypatch.setitem(sys.modules, 'pycocotools.mask', None)
  with pytest.raises(InputError, match=r'need the package pycocotools: "pip install pycocotools", or "pip install .\[coco\]"'):
    annotated.convert(path, tmp_path / 'out')
