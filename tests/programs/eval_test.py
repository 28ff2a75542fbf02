"""eval.py from records and a checkpoint to its report, against predictions and counts made without it."""

import csv
import io
import json
import os

import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver
from golden import assign_weights
from PIL import Image

from deeplab import common, model
from deeplab import eval as evaluation
from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf
from deeplab.core.report import evaluation_report, metrics
from deeplab.core.run import best_checkpoint, checkpoint, checkpoint_follower, run_options
from deeplab.datasets import dataset_info, tfexample

FLAGS = flags.FLAGS
_NAMES = ['none', 'disc', 'star', 'never']
_NUM_CLASSES, _CROP = len(_NAMES), [65, 65]
# Five images of three sizes: the last batch of two is not full.
_SIZES = [(60, 64), (65, 33), (60, 64), (41, 65), (60, 64)]


def _png(array):
  encoded = io.BytesIO()
  Image.fromarray(array).save(encoded, 'png')
  return encoded.getvalue()


def _examples():
  """List of (image uint8 [h, w, 3], label uint8 [h, w]): smooth colours, labels 0..2 and 255, never 3."""
  random = np.random.RandomState(3)
  examples = []
  for height, width in _SIZES:
    small = Image.fromarray(random.randint(0, 256, [6, 6, 3]).astype(np.uint8))
    label = random.choice([0, 1, 2, 255], [height, width], p=[0.5, 0.2, 0.2, 0.1]).astype(np.uint8)
    examples.append((np.asarray(small.resize((width, height))), label))
  return examples


def _write_records(folder, examples, num_classes=_NUM_CLASSES):
  folder.mkdir(exist_ok=True)
  with tf.io.TFRecordWriter(str(folder / 'val-00000-of-00001.tfrecord')) as writer:
    for index, (image, label) in enumerate(examples):
      example = tfexample.image_seg_to_tfexample(_png(image), f'picture{index}', *label.shape, _png(label), 'png')
      writer.write(example.SerializeToString())
  dataset_info.write_description(dataset_info.describe('shapes', num_classes, class_names=_NAMES[:num_classes]),
                                 str(folder / 'dataset.json'))


def _options():
  return common.ModelOptions({common.OUTPUT_TYPE: _NUM_CLASSES}, _CROP, None, 16, model_variant='mobilenet_v2',
                             depth_multiplier=0.35)


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  """Folder with `train` (a checkpoint of step 7 and its options), `records`, and `probabilities.npy` of each image."""
  folder = tmp_path_factory.mktemp('run')
  examples = _examples()
  _write_records(folder / 'records', examples)
  (folder / 'train').mkdir()
  with tf.Graph().as_default(), tf.Session() as session:
    images = tf.placeholder(tf.float32, [1, *_CROP, 3])
    probabilities = model.predict_labels(images, _options())['semantic_prob']
    assign_weights(session, tf.model_variables())
    _spread_predictions(session, np.log(session.run(probabilities, {images: _padded(examples[0][0], False)})))
    tf.train.create_global_step().load(7, session)
    tf.train.Saver().save(session, str(folder / 'train' / 'model.ckpt'), global_step=7)
    for name, flip in (('plain', False), ('flipped', True)):
      np.savez(folder / f'{name}.npz', *(session.run(probabilities, {images: _padded(image, flip)}) for image, _ in examples))
  with flagsaver.flagsaver(model_variant='mobilenet_v2'):
    run_options.write(str(folder / 'train'), common.run_flags(_options()),
                      dataset_info.describe('shapes', _NUM_CLASSES, class_names=_NAMES))
  return folder


def _spread_predictions(session, log_probabilities):
  """Sets the biases of the logits so that no class wins everywhere, and the last one nowhere."""
  biases, = (variable for variable in tf.model_variables() if variable.op.name == 'logits/semantic/biases')
  biases.load(session.run(biases) - log_probabilities.mean(axis=(0, 1, 2)) - [0, 0, 0, 1000], session)


def _padded(image, flip):
  padded = np.full([1, *_CROP, 3], 127.5, np.float32)
  padded[0, :image.shape[0], :image.shape[1]] = image
  return padded[:, :, ::-1] if flip else padded


def _expected_confusion(run, flip):
  """Pixel by pixel: int [classes, classes]."""
  confusion = np.zeros([_NUM_CLASSES, _NUM_CLASSES], int)
  plain, flipped = (list(np.load(run / f'{name}.npz').values()) for name in ('plain', 'flipped'))
  for (_, label), probability, mirrored in zip(_examples(), plain, flipped, strict=True):
    total = probability[0] + mirrored[0, :, ::-1] if flip else probability[0]
    for (y, x), truth in np.ndenumerate(label):
      if truth != 255:
        confusion[truth, total[y, x].argmax()] += 1
  return confusion


def _run_eval(run, out, **given):
  """Runs eval.main; returns what metrics.json holds."""
  values = {'checkpoint_dir': str(run / 'train'), 'dataset_dir': str(run / 'records'), 'eval_logdir': str(out),
            'eval_crop_size': [65, 65], 'max_number_of_evaluations': 1, **given}
  with flagsaver.flagsaver(**values):
    evaluation.main([])
  return json.loads((out / 'metrics.json').read_text())


def _scalars(folder):
  """Tag -> (step, value) of the event files in a folder."""
  return {value.tag: (event.step, value.simple_value) for path in folder.glob('events.*')
          for event in tf.train.summary_iterator(str(path)) for value in event.summary.value}


def _assert_confusion(found, expected):
  # Up to two pixels of 16000 may lie so near a border that another batch size decides otherwise.
  assert np.abs(np.array(found) - expected).sum() <= 4
  assert np.array(found).sum() == expected.sum()


def test_report(run, tmp_path):
  found = _run_eval(run, tmp_path, eval_batch_size=2, best_checkpoint_dir=str(tmp_path / 'best'))
  expected = _expected_confusion(run, flip=False)
  assert (expected.sum(axis=0)[:3] > 50).all() and expected[:, 3].sum() == 0
  _assert_confusion(found['confusion_matrix'], expected)
  confusion = np.array(found['confusion_matrix'])
  iou = [confusion[c, c] / (confusion[c].sum() + confusion[:, c].sum() - confusion[c, c]) for c in range(3)]
  assert found['miou'] == pytest.approx(np.mean(iou))
  assert [row['iou'] for row in found['classes']] == [*map(pytest.approx, iou), None]
  assert [row['name'] for row in found['classes']] == _NAMES
  assert found['pixel_accuracy'] == pytest.approx(np.trace(confusion) / confusion.sum())
  assert found['frequency_weighted_iou'] == pytest.approx(iou @ confusion.sum(axis=1)[:3] / confusion.sum())
  assert (found['step'], found['num_images'], found['dataset'], found['split']) == (7, 5, 'shapes', 'val')
  with open(tmp_path / 'metrics.csv', encoding='utf-8', newline='') as csv_file:
    rows = list(csv.DictReader(csv_file))
  assert [row['class'] for row in rows] == ['0', '1', '2', '3'] and rows[3]['iou'] == ''
  assert float(rows[1]['iou']) == pytest.approx(iou[1]) and int(rows[2]['labelled']) == confusion[2].sum()
  assert Image.open(tmp_path / 'confusion_matrix.png').mode == 'RGB'
  scalars = _scalars(tmp_path)
  assert set(scalars) == {'eval/miou_1.0_overall', 'eval/miou_1.0_class_0', 'eval/miou_1.0_class_1', 'eval/miou_1.0_class_2',
                          'eval/pixel_accuracy', 'eval/frequency_weighted_iou'}
  assert scalars['eval/miou_1.0_overall'] == (7, pytest.approx(found['miou']))
  assert checkpoint.resolve_checkpoint(str(tmp_path / 'best'), 'checkpoint_dir') == str(tmp_path / 'best' / 'model.ckpt-7')
  assert run_options.read(str(tmp_path / 'best')).flags['depth_multiplier'] == 0.35


def test_automatic_crop_and_another_batch_size(run, tmp_path):
  found = _run_eval(run, tmp_path, eval_batch_size=4, eval_crop_size=['auto'],
                    checkpoint_dir=str(run / 'train' / 'model.ckpt-7.index'))
  assert found['crop_size'] == _CROP
  _assert_confusion(found['confusion_matrix'], _expected_confusion(run, flip=False))


def test_mirrored_images_take_part_at_scale_one(run, tmp_path):
  found = _run_eval(run, tmp_path, add_flipped_images=True)
  assert np.abs(_expected_confusion(run, True) - _expected_confusion(run, False)).sum() > 50
  _assert_confusion(found['confusion_matrix'], _expected_confusion(run, flip=True))
  assert 'eval/miou_1.0_flipped_overall' in _scalars(tmp_path)


def test_tiles(run, tmp_path):
  found = _run_eval(run, tmp_path, eval_tile_size=[49])
  assert found['tile_size'] == [49, 49] and np.sum(found['confusion_matrix']) == _expected_confusion(run, False).sum()


def _refusal(run, out, **given):
  with pytest.raises(InputError) as error:
    _run_eval(run, out, **given)
  return str(error.value)


def test_image_larger_than_the_crop(run, tmp_path):
  message = _refusal(run, tmp_path, eval_crop_size=[49, 49])
  assert 'picture0 is 60x64' in message and '--eval_crop_size=49,49' in message and '65,65' in message


@pytest.mark.parametrize('crop_size', [[80], [96], [72, 88]])
def test_any_crop_that_holds_the_images(run, tmp_path, crop_size):
  found = _run_eval(run, tmp_path, eval_crop_size=crop_size)
  assert found['crop_size'] == [crop_size[0], crop_size[-1]] and found['num_images'] == 5
  assert np.sum(found['confusion_matrix']) == _expected_confusion(run, False).sum()


def test_resizing(run, tmp_path, caplog):
  found = _run_eval(run, tmp_path, eval_crop_size=['auto'], min_resize_value=20, max_resize_value=30)
  assert found['resize'] == {'min_resize_value': 20, 'max_resize_value': 30, 'resize_factor': None, 'keep_aspect_ratio': True}
  # The shorter side becomes 20, or less where the longer would exceed 30: 20x21, 30x15, 20x21, 18x30 ... rounded down.
  resized = [min(20 / min(size), 30 / max(size)) for size in _SIZES]
  sizes = [(int(height * scale), int(width * scale)) for (height, width), scale in zip(_SIZES, resized, strict=True)]
  assert found['crop_size'] == [33, 33]
  ignored = np.mean([(label == 255).mean() for _, label in _examples()])
  num_pixels = sum(height * width for height, width in sizes)
  assert np.sum(found['confusion_matrix']) == pytest.approx(num_pixels * (1 - ignored), rel=0.03)
  assert any('the metrics are those of the resized pixels' in record.getMessage() for record in caplog.records)


def test_label_out_of_range(run, tmp_path):
  image, label = _examples()[0]
  _write_records(tmp_path / 'records', [(image, np.where(label == 2, 100, label).astype(np.uint8))])
  message = _refusal(run, tmp_path, dataset_dir=str(tmp_path / 'records'))
  assert 'picture0' in message and '[100]' in message


def test_number_of_classes(run, tmp_path):
  _write_records(tmp_path / 'records', [], num_classes=2)
  message = _refusal(run, tmp_path, dataset_dir=str(tmp_path / 'records'))
  assert 'trained for 4 classes, the data set has 2' in message


@pytest.mark.parametrize('name, value, reason', [
    ('max_resize_value', 60, '--max_resize_value=60 with --min_resize_value=not set: give both'),
    ('eval_crop_size', [0, 65], 'above 0'),
    ('eval_crop_size', [65, 65, 3], 'height,width'), ('eval_tile_size', [0], 'above 0'),
    ('eval_scales', [0.5, 0.0], 'above 0'), ('eval_split', 'test', 'no labels'),
    ('checkpoint_dir', 'nowhere', 'no such checkpoint'),
    ('depth_multiplier', 1.0, 'the run has 0.35'), ('quantize_delay_step', 0, 'the run has -1')])
def test_bad_flag(run, tmp_path, name, value, reason):
  message = _refusal(run, tmp_path, **{name: value})
  assert f'--{name}' in message and reason in message


@pytest.mark.parametrize('name', ['eval_logdir', 'best_checkpoint_dir'])
@pytest.mark.parametrize('folder', ['file', 'file/below', '/proc/none'])
def test_folder_that_cannot_be_written(run, tmp_path, name, folder):
  """It is refused before the evaluation."""
  (tmp_path / 'file').write_text('')
  message = _refusal(run, tmp_path / 'out', **{name: str(tmp_path / folder)})
  assert f'--{name}: {tmp_path / folder} is no folder that can be written to' in message
  assert not (tmp_path / 'out' / 'metrics.json').exists()


def test_table():
  found = metrics.from_confusion_matrix(metrics.confusion_matrix(np.array([0, 0, 0, 1]), np.array([0, 0, 1, 1]), 3, 255))
  lines = evaluation_report.table(found, ['background', 'cat', 'dog']).split('\n')
  assert [line.split() for line in lines[:4]] == [
      ['class', 'name', 'iou', 'precision', 'recall', 'labelled', 'predicted'],
      ['0', 'background', '0.6667', '1.0000', '0.6667', '3', '2'],
      ['1', 'cat', '0.5000', '0.5000', '1.0000', '1', '2'],
      ['2', 'dog', '-', '-', '-', '0', '0']]
  assert lines[5].startswith('mIoU 0.5833 over the 2 classes')


def test_confusion_picture():
  picture = evaluation_report.draw_confusion_matrix(np.array([[0, 5], [0, 0]]), ['a', 'b'])
  # Full cell, away from its number, and an empty one.
  assert picture.getpixel((picture.width - 12, picture.height - 38)) == (8, 48, 107)
  assert picture.getpixel((picture.width - 12, picture.height - 12)) == (255, 255, 255)
  assert evaluation_report.draw_confusion_matrix(np.eye(151, dtype=int), ['class'] * 151).width < 2000


def _save(folder, step):
  folder.mkdir(exist_ok=True)
  with tf.Graph().as_default(), tf.Session() as session:
    tf.train.create_global_step().load(step, session)
    return tf.train.Saver().save(session, str(folder / 'model.ckpt'), global_step=step)


def test_best_checkpoint(tmp_path):
  prefixes = [_save(tmp_path / 'train', step) for step in (1, 2, 3)]
  best = str(tmp_path / 'best')
  assert best_checkpoint.keep_if_best(prefixes[0], 0.5, 1, best)
  assert not best_checkpoint.keep_if_best(prefixes[1], 0.4, 2, best)
  assert checkpoint.global_step(checkpoint.resolve_checkpoint(best, 'checkpoint_dir')) == 1
  assert best_checkpoint.keep_if_best(prefixes[2], 0.6, 3, best)
  assert checkpoint.global_step(checkpoint.resolve_checkpoint(best, 'checkpoint_dir')) == 3
  assert not [name for name in os.listdir(best) if name.startswith('model.ckpt-1.')]


@pytest.fixture
def clock(monkeypatch):
  """Time that passes only in sleep(); calls of `at[n]` happen when n seconds have passed."""
  class Clock:
    now, at = 0.0, {}

    def monotonic(self):
      return self.now

    def sleep(self, seconds):
      self.now += seconds
      for moment in [moment for moment in self.at if moment <= self.now]:
        self.at.pop(moment)()
      assert self.now < 10000
  clock = Clock()
  clock.at = {}
  monkeypatch.setattr(checkpoint_follower, 'time', clock)
  return clock


def _follow(path, max_rounds=0, interval=300):
  return checkpoint_follower.follow(str(path), interval, max_rounds, 'max_number_of_evaluations')


def test_follower_takes_the_newest_and_keeps_the_interval(tmp_path, clock):
  # Later the run has written two more, and then none for a while.
  clock.at = {20: lambda: _save(tmp_path, 1), 100: lambda: _save(tmp_path, 2), 200: lambda: _save(tmp_path, 3),
              900: lambda: _save(tmp_path, 4)}
  rounds = []
  for prefix in _follow(tmp_path, max_rounds=3):
    rounds.append((round(clock.now), os.path.basename(prefix)))
    clock.now += 50
  assert rounds == [(20, 'model.ckpt-1'), (320, 'model.ckpt-3'), (900, 'model.ckpt-4')]


def test_follower_waits_for_the_folder_and_says_so(tmp_path, clock, caplog):
  clock.at = {3: lambda: _save(tmp_path / 'train', 1)}
  with caplog.at_level('INFO', 'absl'):
    assert os.path.basename(next(_follow(tmp_path / 'train'))) == 'model.ckpt-1'
  assert sum('Looking again' in record.getMessage() for record in caplog.records) == 1


def test_single_checkpoint_is_taken_once(tmp_path, clock):
  prefix = _save(tmp_path, 1)
  assert list(_follow(prefix)) == [prefix]
  os.remove(tmp_path / 'checkpoint')
  assert list(_follow(tmp_path)) == [prefix]
  with pytest.raises(InputError, match='model.ckpt-2'):
    next(_follow(tmp_path / 'model.ckpt-2'))


def test_single_round_does_not_wait(tmp_path, clock):
  with pytest.raises(InputError, match='no checkpoint'):
    next(_follow(tmp_path, max_rounds=1))
