"""Training that validates itself: the same figures as eval.py, the same training as without, kills and refusals."""

import json
import re
import shutil
import signal
import time

import numpy as np
import pytest
import tiny_run

from deeplab import common, model, train
from deeplab import eval as evaluation
from deeplab.core.base.tf_compat import tf
from deeplab.core.evaluation import history, validation
from deeplab.core.run import checkpoint, run_options, training_hooks
from deeplab.datasets import tfexample

_LINE = r'INFO validation at step (\d): mIoU (\d\.\d{3}) \(best (\d\.\d{3})\), pixel accuracy \d\.\d\d, \d+ s'
_STEPS = [2, 4, 5]


def _samples(count, size):
  """Pictures of one colour on the left and another on the right, labelled so; a few pixels ignored."""
  random, samples = np.random.RandomState(4), []
  for _ in range(count):
    label = np.zeros(size, np.uint8)
    label[:, size[1] // 2:] = 1
    image = np.where(label[..., None] == 1, [200, 30, 60], [20, 180, 90]) + random.randint(-20, 20, [*size, 3])
    label[0] = 255
    samples.append((image.astype(np.uint8), label))
  return samples


@pytest.fixture(scope='module')
def records(tmp_path_factory):
  folder = tmp_path_factory.mktemp('data') / 'records'
  tiny_run.write_records(folder, _samples(4, (40, 36)))
  # Of two sizes, none that of the crop.
  return tiny_run.write_records(folder, [*_samples(3, (37, 50)), *_samples(2, (45, 30))], split='val')


def _train(records, folder, *arguments):
  return tiny_run.run(train, *tiny_run.FLAGS, f'--dataset_dir={records}', f'--train_logdir={folder}', '--base_learning_rate=0.3',
                      '--training_number_of_steps=5', *arguments)


@pytest.fixture(scope='module')
def run(records, tmp_path_factory):
  """(folder, log) of a finished run that validated at steps 2, 4 and 5; not to be written to."""
  folder = tmp_path_factory.mktemp('finished') / 'train'
  code, log = _train(records, folder, '--validation_split=val', '--validation_interval_steps=2')
  assert code == 0, log
  return folder, log


def _json(path):
  return json.loads(path.read_text(encoding='utf-8'))


def _eval(records, prefix, out):
  code, log = tiny_run.run(evaluation, f'--dataset_dir={records}', f'--checkpoint_dir={prefix}', f'--eval_logdir={out}',
                           '--eval_crop_size=auto', '--max_number_of_evaluations=1')
  assert not code, log
  return _json(out / 'metrics.json')


def _without_path(metrics):
  return {name: value for name, value in metrics.items() if name not in ('checkpoint', 'loss')}


def _scalars(folder):
  """(tag, step) -> value of all events in a folder."""
  return {(value.tag, event.step): value.simple_value for path in folder.glob('events.*')
          for event in tf.train.summary_iterator(str(path)) for value in event.summary.value}


def _losses(log):
  return re.findall(r'step \d/5  loss (\S+)', log)


# What is measured.


def test_figures_are_those_of_eval_to_the_last_digit(records, run, tmp_path):
  folder, log = run
  lines = re.findall(_LINE, log)
  assert [int(step) for step, _, _ in lines] == _STEPS
  stored = history.read(str(folder))
  assert (stored.split, stored.num_images, stored.class_names) == ('val', 5, tiny_run.CLASS_NAMES)
  assert len({validation.loss for validation in stored.validations}) == 3
  for kept, (_, miou, best) in zip(stored.validations, lines, strict=True):
    found = _eval(records, folder / f'model.ckpt-{kept.step}', tmp_path / str(kept.step))
    assert (found['miou'], found['pixel_accuracy'], found['step']) == (kept.miou, kept.pixel_accuracy, kept.step)
    assert [row['iou'] for row in found['classes']] == kept.class_iou
    assert miou == f'{kept.miou:.3f}'
    assert best == f'{max(earlier.miou for earlier in stored.validations if earlier.step <= kept.step):.3f}'
  assert _without_path(found) == _without_path(_json(folder / 'validation' / 'metrics.json'))


def test_best_is_a_folder_of_its_own_for_every_program(records, run, tmp_path):
  folder, _ = run
  best = history.read(str(folder)).best
  prefix = checkpoint.resolve_checkpoint(str(folder / 'best'), 'checkpoint_dir')
  assert checkpoint.global_step(prefix) == best.step
  assert run_options.read(prefix).dataset.class_names == tiny_run.CLASS_NAMES
  kept, found = _json(folder / 'best' / 'metrics.json'), _eval(records, folder / 'best', tmp_path)
  assert kept['miou'] == best.miou == max(validation.miou for validation in history.read(str(folder)).validations)
  assert _without_path(kept) == _without_path(found) and found['num_images'] == 5
  # Not only weights: training goes on from it.
  assert 'logits/semantic/weights/Momentum' in checkpoint.variable_shapes(prefix)
  assert [path.name for path in folder.glob('best*')] == ['best']


def test_curves_lie_in_one_chart_with_those_of_training(run):
  folder, _ = run
  scalars = _scalars(folder / 'validation')
  assert {step for tag, step in scalars if tag == 'eval/miou_1.0_overall'} == set(_STEPS)
  for kept in history.read(str(folder)).validations:
    assert scalars['eval/miou_1.0_overall', kept.step] == pytest.approx(kept.miou)
    assert scalars['eval/miou_1.0_class_1', kept.step] == pytest.approx(kept.class_iou[1])
    assert scalars['Losses/semantic_merged_logits/value', kept.step] == pytest.approx(kept.loss)
  assert 'Losses/semantic_merged_logits/value' in {tag for tag, _ in _scalars(folder)}


def test_loss_is_the_mean_cross_entropy_of_the_labelled_pixels(records, run):
  folder, _ = run
  losses = []
  with tiny_run.with_tiny_network(), tf.Graph().as_default(), tf.Session() as session:
    images = tf.placeholder(tf.float32, [1, 49, 65, 3])
    stored = run_options.read(str(folder)).flags
    options = common.ModelOptions({common.OUTPUT_TYPE: 3}, [49, 65], None, 16, model_variant='tiny', aspp_convs_filters=8)
    assert stored['aspp_convs_filters'] == 8
    _, probabilities = model.predict(images, options)
    tf.train.Saver().restore(session, str(folder / 'model.ckpt-5'))
    for image, label in [*_samples(3, (37, 50)), *_samples(2, (45, 30))]:
      height, width = label.shape
      padded = np.full([1, 49, 65, 3], 127.5, np.float32)
      padded[0, :height, :width] = image
      found = session.run(probabilities, {images: padded})[0, :height, :width]
      losses += [-np.log(found[y, x, truth]) for (y, x), truth in np.ndenumerate(label) if truth != 255]
  assert history.read(str(folder)).validations[-1].loss == pytest.approx(np.mean(losses), rel=1e-5)


def test_training_is_the_same_without(records, run, tmp_path):
  code, log = _train(records, tmp_path / 'train')
  assert code == 0 and len(_losses(log)) == 5
  assert _losses(log) == _losses(run[1])
  assert 'validation' not in log and not (tmp_path / 'train' / 'validation').exists()
  one, other = (tf.train.NewCheckpointReader(str(folder / 'model.ckpt-5')) for folder in (run[0], tmp_path / 'train'))
  assert one.get_variable_to_shape_map() == other.get_variable_to_shape_map()
  for name in one.get_variable_to_shape_map():
    np.testing.assert_array_equal(one.get_tensor(name), other.get_tensor(name))


def test_each_checkpoint_is_validated_and_some_images_suffice(records, tmp_path):
  folder = tmp_path / 'train'
  code, log = _train(records, folder, '--validation_split=val', '--validation_max_images=2', '--num_clones=2', '--clone_on_cpu',
                     '--mixed_precision=bfloat16', '--training_number_of_steps=1')
  assert code == 0, log
  stored = history.read(str(folder))
  # Not that of step 0.
  assert [validation.step for validation in stored.validations] == [1] and stored.num_images == 2
  assert np.sum(_json(folder / 'validation' / 'metrics.json')['confusion_matrix']) == 2 * 36 * 50


def test_time_of_validation_is_no_time_of_training(records, tmp_path, monkeypatch):
  class Clock:
    """Each look takes a second, each validation a thousand."""
    now = 0.0

    def monotonic(self):
      self.now += 1
      return self.now

    time = time.time

  clock, measure = Clock(), validation.measure

  def slow_measure(*arguments):
    clock.now += 1000
    return measure(*arguments)

  for module in (training_hooks, validation):
    monkeypatch.setattr(module, 'time', clock)
  monkeypatch.setattr(validation, 'measure', slow_measure)
  _, log = _train(records, tmp_path / 'train', '--validation_split=val', '--validation_interval_steps=2')
  speeds = re.findall(r'(\S+) images/s  (\S+) left', log)
  # Two images a step, in which progress and the timer of the saver look at the clock.
  assert len(speeds) == 5 and all(float(speed) >= 0.5 for speed, _ in speeds)
  assert all(left < '0:00:15' for _, left in speeds)
  assert len(re.findall(r'validation at step .*, 100\d s', log)) == 3


def test_validation_longer_than_the_time_between_checkpoints():
  timer = training_hooks._SaveTimer(100, None)
  timer.update_last_triggered_step(1)
  timer.leave_out(-101)
  assert timer.should_trigger_for_step(2)
  timer.leave_out(50)
  assert not timer.should_trigger_for_step(2)


def test_multiples_of_the_interval():
  timer = training_hooks._SaveTimer(10000, 5)
  timer.update_last_triggered_step(3)
  assert [step for step in range(4, 8) if timer.should_trigger_for_step(step)] == [5, 6, 7]
  # Workers of a cluster may pass a multiple.
  timer.update_last_triggered_step(7)
  assert [step for step in range(8, 12) if timer.should_trigger_for_step(step)] == [10, 11]


# Ends and new beginnings.


def test_kill_during_validation(tmp_path):
  # So many images that a validation can be met.
  records = tmp_path / 'records'
  tiny_run.write_records(records, _samples(4, (40, 36)))
  tiny_run.write_records(records, _samples(2, (40, 36)) * 100, split='val')
  folder = tmp_path / 'train'
  command = [*tiny_run.FLAGS, f'--dataset_dir={records}', f'--train_logdir={folder}', '--validation_split=val',
             '--validation_interval_steps=2', '--training_number_of_steps=3']
  process = tiny_run.start_process(*command)
  end = time.monotonic() + 240
  while not (folder / 'model.ckpt-2.meta').exists():
    assert process.poll() is None and time.monotonic() < end
    time.sleep(0.005)
  process.kill()
  assert process.wait() == -signal.SIGKILL
  assert history.read(str(folder)) is None
  code, log = tiny_run.run(train, *command)
  assert code == 0 and f'RESUMING the run in {folder} from step 2' in log
  assert [validation.step for validation in history.read(str(folder)).validations] == [2, 3]


def test_signal_during_validation(records, tmp_path, monkeypatch):
  measure = validation.measure

  def interrupted_measure(*arguments):
    signal.raise_signal(signal.SIGTERM)
    return measure(*arguments)

  with monkeypatch.context() as context:
    context.setattr(validation, 'measure', interrupted_measure)
    code, log = _train(records, tmp_path / 'train', '--validation_split=val', '--validation_interval_steps=2')
  assert code == 128 + signal.SIGTERM
  assert 'WARNING The validation at step 2 was broken off.' in log and 'Ended by SIGTERM at step 2 of 5' in log
  code, log = _train(records, tmp_path / 'train', '--validation_split=val', '--validation_interval_steps=2')
  assert code == 0
  assert [validation.step for validation in history.read(str(tmp_path / 'train')).validations] == _STEPS


# Refusals.


def _unlabelled(folder):
  tiny_run.write_records(folder, [(image, np.full_like(label, 255)) for image, label in _samples(2, (40, 36))], split='val')


def _of_other_classes(folder):
  tiny_run.write_records(folder, [(image, label + 7) for image, label in _samples(2, (40, 36))], split='val')


def _without_records(folder):
  (folder / 'val-00000-of-00001.tfrecord').write_bytes(b'')


def _without_labels(folder):
  image = tiny_run.encode(_samples(1, (40, 36))[0][0])
  with tf.io.TFRecordWriter(str(folder / 'val-00000-of-00001.tfrecord')) as writer:
    writer.write(tfexample.image_seg_to_tfexample(image, 'lonely', 40, 36, None, 'png').SerializeToString())


@pytest.mark.parametrize('write_val, message', [
    (lambda folder: None, "(split 'val'). The folder holds the splits: train."),
    (_without_records, "Split 'val' has 0 examples"),
    (_unlabelled, '--validation_split=val: none of the 2 images that were looked at has a labelled pixel'),
    (_without_labels, 'lonely has no label.'),
    (_of_other_classes, 'picture0 has label values 6, 7, 8'),
], ids=['missing', 'empty', 'all_ignored', 'unlabelled', 'other_classes'])
def test_split_that_cannot_be_validated_is_refused(tmp_path, write_val, message):
  tiny_run.write_records(tmp_path / 'records', _samples(2, (40, 36)))
  write_val(tmp_path / 'records')
  code, log = _train(tmp_path / 'records', tmp_path / 'train', '--validation_split=val')
  assert code == 1 and message in log
  assert 'Training from step' not in log and not list(tmp_path.glob('train/model.ckpt*'))


def test_best_of_a_run_that_is_gone_is_not_overwritten(records, tmp_path):
  folder = tmp_path / 'train'
  (folder / 'best').mkdir(parents=True)
  (folder / 'best' / 'model.ckpt-9.index').write_text('precious')
  code, log = _train(records, folder, '--validation_split=val')
  assert code == 1 and f'holds no checkpoint to go on from, but {folder}/best of an earlier run.' in log
  assert (folder / 'best' / 'model.ckpt-9.index').read_text() == 'precious'


def test_other_images_have_a_history_of_their_own(records, run, tmp_path):
  folder = tmp_path / 'train'
  shutil.copytree(run[0], folder)
  code, log = _train(records, folder, '--validation_split=val', '--validation_max_images=1', '--training_number_of_steps=6')
  assert code == 0 and 'WARNING Validations so far were of 5 images of split val; those of 1 images' in log
  stored = history.read(str(folder))
  assert [validation.step for validation in stored.validations] == [5, 6]
  assert _json(folder / 'best' / 'metrics.json')['num_images'] == 1


# Early stopping.


def test_early_stopping(records, tmp_path):
  # Nothing moves, so that the first validation stays the best.
  folder, flags = tmp_path / 'train', ('--validation_split=val', '--validation_interval_steps=2', '--base_learning_rate=0',
                                       '--training_number_of_steps=20')
  code, log = _train(records, folder, *flags, '--early_stopping_validations=2')
  assert code == 0
  assert 'Finished at step 6 of 20: the last 2 validations brought no new best (--early_stopping_validations).' in log
  assert f'The best checkpoint is in {folder}/best.' in log
  assert checkpoint.global_step(checkpoint.resolve_checkpoint(str(folder), 'checkpoint_dir')) == 6
  # Once more is no step further; with more patience it goes on.
  code, log = _train(records, folder, *flags, '--early_stopping_validations=2')
  assert code == 0 and 'Finished at step 6 of 20' in log and 'step 7/20' not in log
  code, log = _train(records, folder, *flags, '--early_stopping_validations=3')
  assert code == 0 and 'Finished at step 8 of 20' in log
  assert [kept.step for kept in history.read(str(folder)).validations] == [2, 4, 6, 8]


# Another process validates.


def test_evaluator_of_a_run_that_has_ended(records, run, tmp_path):
  flags = ('--validation_split=val', '--validation_job=evaluator')
  code, log = _train(records, tmp_path / 'train', *flags)
  assert code == 0 and 'validation at step' not in log
  code, log = _train(records, tmp_path / 'train', *flags, '--job_name=evaluator')
  assert code == 0 and 'validation at step 5: ' in log and 'The run has ended, and so does its evaluator.' in log
  expected, (found,) = history.read(str(run[0])).validations[-1], history.read(str(tmp_path / 'train')).validations
  assert (found.step, found.miou, found.class_iou) == (expected.step, expected.miou, expected.class_iou)
  assert _json(tmp_path / 'train' / 'best' / 'metrics.json')['checkpoint'] == str(tmp_path / 'train' / 'model.ckpt-5')
  assert sorted(path.name for path in (tmp_path / 'train' / 'validation').iterdir() if 'events' not in path.name) == [
      'confusion_matrix.png', 'history.json', 'metrics.csv', 'metrics.json']


def test_evaluator_follows_a_run_and_ends_it(records, tmp_path):
  folder = tmp_path / 'train'
  command = ('--validation_split=val', '--validation_job=evaluator', '--validation_interval_steps=20', '--base_learning_rate=0',
             '--early_stopping_validations=2', '--training_number_of_steps=1000000')
  evaluator = tiny_run.start_process(*tiny_run.FLAGS, f'--dataset_dir={records}', f'--train_logdir={folder}', *command,
                                     '--job_name=evaluator')
  try:
    code, log = _train(records, folder, *command)
    output, _ = evaluator.communicate(timeout=300)
  finally:
    evaluator.kill()
  assert code == 0 and 'the last 2 validations brought no new best' in log, log
  assert evaluator.returncode == 0 and 'The run has ended, and so does its evaluator.' in output, output
  stored = history.read(str(folder))
  assert len(stored.validations) == 3 and stored.best == stored.validations[0]
  assert checkpoint.global_step(checkpoint.resolve_checkpoint(str(folder / 'best'), 'checkpoint_dir')) == stored.best.step
