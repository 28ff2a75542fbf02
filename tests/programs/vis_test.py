"""vis.py from records and from photographs to its pictures, against the network itself; and the pictures alone."""

import numpy as np
import pytest
import tiny_network
from absl import flags
from PIL import Image

from deeplab import vis
from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf
from deeplab.core.report import visualization
from deeplab.datasets import dataset_info, tfexample

FLAGS = flags.FLAGS
_COLORS = np.array([[0, 0, 0], [200, 0, 0], [0, 100, 50], [9, 9, 9], [30, 60, 90]], np.uint8)
_NAMES = ['a/first.jpg', 'second.png', 'third', 'fourth']


@pytest.fixture(scope='module')
def predictions(run_dir):
  """Labels of each image."""
  return [labels for labels, _ in tiny_network.predict(run_dir, tiny_network.images())]


def _labels():
  """A label for every image but the last."""
  random = np.random.RandomState(5)
  return [random.choice([0, 1, 2, 255], size).astype(np.uint8) for size in tiny_network.SIZES[:-1]] + [None]


def _write_records(folder, images, **description):
  folder.mkdir(exist_ok=True)
  with tf.io.TFRecordWriter(str(folder / 'val-00000-of-00001.tfrecord')) as writer:
    for name, image, label in zip(_NAMES, images, _labels(), strict=False):
      example = tfexample.image_seg_to_tfexample(tiny_network.png(image), name, *image.shape[:2],
                                                 None if label is None else tiny_network.png(label), 'png')
      writer.write(example.SerializeToString())
  descriptor = dataset_info.describe(**{
      'name': 'shapes', 'num_classes': tiny_network.NUM_CLASSES, 'class_names': tiny_network.CLASS_NAMES,
      'colors': _COLORS.tolist(), **description})
  dataset_info.write_description(descriptor, str(folder / 'dataset.json'))


def _visualize(run_dir, log_dir, **values):
  settings = {'checkpoint_dir': str(run_dir), 'vis_logdir': str(log_dir), 'vis_crop_size': [65, 65], 'vis_batch_size': 3,
              'max_number_of_iterations': 1, 'also_save_raw_predictions': True, **values}
  for name, value in settings.items():
    setattr(FLAGS, name, value)
  vis.main(['vis'])


def _read(path):
  with Image.open(path) as image:
    return np.asarray(image)


def test_pictures_of_records(run_dir, predictions, tmp_path):
  """Images of four sizes in batches of three; one has no label."""
  _write_records(tmp_path / 'records', tiny_network.images())
  _visualize(run_dir, tmp_path, dataset_dir=str(tmp_path / 'records'))
  results = tmp_path / 'segmentation_results'
  for index, (image, expected) in enumerate(zip(tiny_network.images(), predictions, strict=True)):
    raw = _read(tmp_path / 'raw_segmentation_results' / f'{["first", "second", "third", "fourth"][index]}.png')
    assert raw.dtype == np.uint8 and raw.shape == expected.shape
    assert (raw == expected).mean() > 0.999
    np.testing.assert_array_equal(_read(results / f'{index:06d}_image.png'), image)
    np.testing.assert_array_equal(_read(results / f'{index:06d}_prediction.png'), _COLORS[raw])
    overlay = visualization.overlay(image, raw, _COLORS)
    height, width = raw.shape
    np.testing.assert_array_equal(_read(results / f'{index:06d}_overlay.png')[:height, :width], overlay)
  assert len(list(results.iterdir())) == 4 * 3 + 3
  assert not (results / '000003_error.png').exists()
  raw, label = _read(tmp_path / 'raw_segmentation_results' / 'second.png'), _labels()[1]
  errors, share = visualization.error_map(tiny_network.images()[1], raw, label, 255)
  np.testing.assert_array_equal(_read(results / '000001_error.png')[:40, :65], errors)
  assert share == (raw != label)[label != 255].mean()
  assert _read(tmp_path / 'legend.png').shape[1] == 800


def test_raw_predictions_have_the_numbers_that_the_description_gives(run_dir, predictions, tmp_path):
  eval_ids = [7, 8, 11, 12, 13]
  _write_records(tmp_path / 'records', tiny_network.images()[:1], train_id_to_eval_id=eval_ids)
  _visualize(run_dir, tmp_path, dataset_dir=str(tmp_path / 'records'))
  raw = _read(tmp_path / 'raw_segmentation_results' / 'first.png')
  assert (raw == np.array(eval_ids)[predictions[0]]).mean() > 0.999


def test_own_classes_under_the_name_cityscapes_keep_their_numbers(run_dir, predictions, tmp_path):
  _write_records(tmp_path / 'records', tiny_network.images()[:1], name='cityscapes')
  _visualize(run_dir, tmp_path, dataset_dir=str(tmp_path / 'records'), dataset='cityscapes', colormap_type='cityscapes')
  raw = _read(tmp_path / 'raw_segmentation_results' / 'first.png')
  assert (raw == predictions[0]).mean() > 0.999
  colors = np.array(dataset_info.get_descriptor('cityscapes').colors)
  np.testing.assert_array_equal(_read(tmp_path / 'segmentation_results' / '000000_prediction.png'), colors[raw])


def test_resizing_is_undone(run_dir, tmp_path):
  """With --min_resize_value alone, too."""
  image, = tiny_network.images([(48, 96)])
  _write_records(tmp_path / 'records', [image])
  _visualize(run_dir, tmp_path, dataset_dir=str(tmp_path / 'records'), min_resize_value=32)
  np.testing.assert_array_equal(_read(tmp_path / 'segmentation_results' / '000000_image.png'), image)
  with tf.Graph().as_default(), tf.Session() as session:
    resized = session.run(tf.image.resize_bilinear(image[np.newaxis], [32, 64], align_corners=True))[0]
    (expected, _), = tiny_network.predict(run_dir, [resized])
    expected = session.run(tf.image.resize_nearest_neighbor(expected[np.newaxis, ..., np.newaxis], [48, 96], align_corners=True))
  assert (_read(tmp_path / 'raw_segmentation_results' / 'first.png') == expected[0, ..., 0]).mean() > 0.999


def test_flips_are_averaged_at_scale_1(run_dir, predictions, tmp_path):
  _write_records(tmp_path / 'records', tiny_network.images()[:1])
  _visualize(run_dir, tmp_path, dataset_dir=str(tmp_path / 'records'), add_flipped_images=True)
  raw = _read(tmp_path / 'raw_segmentation_results' / 'first.png')
  (expected, _), = tiny_network.predict(run_dir, tiny_network.images()[:1], flip=True)
  assert (raw == expected).mean() > 0.999
  assert (raw != predictions[0]).any()


def test_folder_of_photographs(run_dir, tmp_path, caplog):
  """Gray and transparent files, two of one stem, a broken one, and files that are no photographs."""
  photographs = tmp_path / 'photographs'
  photographs.mkdir()
  image = Image.fromarray(tiny_network.images()[0])
  image.convert('L').save(photographs / 'gray.PNG')
  image.convert('RGBA').save(photographs / 'b.png')
  image.resize((20, 70)).save(photographs / 'b.jpg')
  (photographs / 'broken.jpg').write_bytes((photographs / 'b.jpg').read_bytes()[:300])
  (photographs / 'notes.txt').write_text('not a photograph')
  with pytest.raises(InputError, match='1 of the 4 photographs in .* could not be read and were left out: broken.jpg'):
    _visualize(run_dir, tmp_path, image_dir=str(photographs), vis_crop_size=['auto'], vis_batch_size=2,
               max_number_of_iterations=0)
  # Though --vis_crop_size=auto has them read twice.
  warnings = sorted(record.getMessage() for record in caplog.records if record.levelname == 'WARNING')
  assert len(warnings) == 2 and warnings[0].endswith('transparency is dropped.') and warnings[1].startswith('Left out: ')
  names = {path.name for path in (tmp_path / 'segmentation_results').iterdir()}
  assert names == {f'{name}_{kind}.png' for name in ('gray', 'b.png', 'b.jpg') for kind in ('image', 'prediction', 'overlay')}
  gray = np.asarray(image.convert('L'))
  np.testing.assert_array_equal(_read(tmp_path / 'segmentation_results' / 'gray_image.png'), np.stack([gray] * 3, axis=2))
  assert _read(tmp_path / 'raw_segmentation_results' / 'b.jpg.png').shape == (70, 20)


def test_image_larger_than_the_crop_is_named(run_dir, tmp_path):
  _write_records(tmp_path / 'records', tiny_network.images())
  with pytest.raises(InputError, match='first.jpg is 60x60 .height x width. but the crop is 49x49; a crop of at least 60,60 is '
                     'needed, best 65,65. .--vis_split=val of --dataset_dir=.*records with --vis_crop_size=49,49; auto takes'):
    _visualize(run_dir, tmp_path, dataset_dir=str(tmp_path / 'records'), vis_crop_size=[49])


@pytest.mark.parametrize('values, message', [
    ({}, '--dataset_dir.*--image_dir'),
    ({'image_dir': '{folder}/none'}, 'none: there is no such folder'),
    ({'image_dir': '{folder}'}, 'holds no photographs'),
    ({'image_dir': __file__}, 'vis_test.py is a file; give the folder that holds it'),
    ({'dataset_dir': __file__}, 'vis_test.py is a file; give the folder that holds it'),
    ({'image_dir': '{folder}', 'vis_logdir': __file__}, '--vis_logdir: .*segmentation_results is no folder that can be written'),
    ({'image_dir': '{folder}', 'eval_scales': [0.5, 0.0]}, '--eval_scales=0.5,0.0'),
])
def test_bad_flags_are_refused(run_dir, tmp_path, values, message):
  (tmp_path / 'empty').mkdir()
  values = {name: value.format(folder=tmp_path / 'empty') if name == 'image_dir' else value for name, value in values.items()}
  with pytest.raises(InputError, match=message):
    _visualize(run_dir, tmp_path, **values)


def test_overlay_mixes_colours_and_draws_borders():
  image = np.full([3, 4, 3], 100, np.uint8)
  label = np.array([[0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 1]])
  picture = visualization.overlay(image, label, _COLORS)
  # Black classes leave the photograph; 0.55 * (200, 0, 0) + 0.45 * 100 elsewhere; white where the right neighbour differs.
  assert picture[1].tolist() == [[100, 100, 100], [100, 100, 100], [255, 255, 255], [155, 45, 45]]
  assert (image == 100).all()


def test_error_map_marks_wrong_and_ignored_pixels():
  image = np.full([1, 4, 3], 200, np.uint8)
  picture, share = visualization.error_map(image, np.array([[1, 2, 1, 0]]), np.array([[1, 1, 255, 0]]), 255)
  # 0.55 * 255 + 0.45 * 200 where the prediction is right.
  assert picture[0].tolist() == [[230, 230, 230], [214, 39, 40], [90, 90, 90], [230, 230, 230]]
  assert share == pytest.approx(1 / 3)
  assert visualization.error_map(image, np.zeros([1, 4]), np.full([1, 4], 255), 255)[1] == 0


def test_legend_shows_every_colour_below_the_picture():
  picture = np.full([50, 500, 3], 128, np.uint8)
  entries = [((200, 10, 10), 'chair'), ((10, 200, 10), 'a long name of a class'), ((10, 10, 200), 'table')]
  framed = visualization.with_legend(picture, entries)
  np.testing.assert_array_equal(framed[:50, :500], picture)
  legend = framed[50:].reshape(-1, 3).tolist()
  assert all(list(color) in legend for color, _ in entries)
  assert visualization.with_legend(picture[:, :10], entries).shape[1] >= 240


@pytest.mark.parametrize('size, new_size', [((5, 7), (9, 13)), ((9, 13), (5, 7)), ((1, 4), (3, 1)), ((33, 17), (60, 50))])
def test_labels_are_resized_as_tensorflow_does(size, new_size):
  label = np.random.RandomState(0).randint(0, 200, size)
  with tf.Graph().as_default(), tf.Session() as session:
    expected = session.run(tf.image.resize_nearest_neighbor(label[np.newaxis, ..., np.newaxis], new_size, align_corners=True))
  np.testing.assert_array_equal(visualization.resize_label(label, new_size), expected[0, ..., 0])
