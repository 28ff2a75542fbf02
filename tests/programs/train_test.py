"""Whole training runs through train.main, on a data set of a few pictures."""

import json
import os
import re
import shutil
import signal
import time

import numpy as np
import pytest
import tiny_run
from absl.testing import flagsaver
from golden import load

from deeplab import train
from deeplab.core.base.tf_compat import tf
from deeplab.core.run import checkpoint, training_hooks
from deeplab.datasets import dataset_info

_BACKBONE, _HEAD = 'Tiny/Conv/weights', 'aspp0/weights'


@pytest.fixture(scope='module')
def records(tmp_path_factory):
  return tiny_run.write_records(tmp_path_factory.mktemp('data') / 'records')


@pytest.fixture(scope='module')
def run_of_two_steps(records, tmp_path_factory):
  """(folder, log) of a finished run; not to be written to."""
  folder = tmp_path_factory.mktemp('finished') / 'train'
  code, log = _train(records, folder)
  assert code == 0
  return folder, log


def _train(records, folder, *arguments):
  return tiny_run.run(train, *tiny_run.FLAGS, f'--dataset_dir={records}', f'--train_logdir={folder}', *arguments)


def _copy(folder, tmp_path):
  return shutil.copytree(folder, tmp_path / 'copy')


def _newest(folder):
  return tf.train.latest_checkpoint(str(folder))


def _tensors(folder):
  reader = tf.train.NewCheckpointReader(_newest(folder))
  return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def _summaries(folder):
  """Tag -> value of all events in a folder."""
  return {value.tag: value for events in folder.glob('events.*') for event in tf.train.summary_iterator(str(events))
          for value in event.summary.value}


def _changed(before, after):
  return {name for name in before if not np.array_equal(before[name], after[name])}


@pytest.fixture
def losses(monkeypatch):
  """List that receives (step, loss) of each step that is trained."""
  seen, after_run = [], training_hooks.ProgressHook.after_run

  def record(hook, run_context, run_values):
    seen.append(run_values.results[:2])
    after_run(hook, run_context, run_values)

  monkeypatch.setattr(training_hooks.ProgressHook, 'after_run', record)
  return seen


def _signal_after(monkeypatch, step, number):
  """Lets this process get a signal at the end of a step."""
  after_run = training_hooks.ProgressHook.after_run

  def interrupt(hook, run_context, run_values):
    after_run(hook, run_context, run_values)
    if hook.global_step == step:
      signal.raise_signal(number)

  monkeypatch.setattr(training_hooks.ProgressHook, 'after_run', interrupt)


# Start and end.


def test_two_steps(run_of_two_steps):
  folder, log = run_of_two_steps
  assert checkpoint.global_step(_newest(folder)) == 2
  assert 'Clone 0: 2 images per step on /device:CPU:0.' in log
  assert 'Training from step 0 to 2, learning rate 0.0001.' in log
  assert 'Finished at step 2.' in log
  tensors = _tensors(folder)
  assert all(np.isfinite(value).all() for value in tensors.values())
  assert tensors['logits/semantic/weights'].shape == (1, 1, 8, 3)
  assert np.abs(tensors['logits/semantic/weights/Momentum']).max() > 0
  assert {'flags.txt', 'model_options.json', 'checkpoint', 'graph.pbtxt'} <= set(os.listdir(folder))
  # Names alone, so that the folder can be moved.
  assert str(folder) not in (folder / 'checkpoint').read_text()


def test_progress_lines_and_summaries(run_of_two_steps):
  folder, log = run_of_two_steps
  assert re.findall(r'INFO step (\d)/2  loss \d\.\d{4}  learning rate \S+  \d+\.\d images/s  0:\d\d:\d\d left', log) == ['1', '2']
  tags = _summaries(folder)
  assert {'flags', 'learning_rate', 'total_loss', 'Losses/semantic_merged_logits/value',
          'Losses/total_regularization_loss'} <= set(tags)
  # No histogram of each variable unless asked for.
  assert not any('weights' in tag for tag in tags)
  assert b'--train_batch_size=2' in tags['flags'].tensor.string_val[0]


def test_two_clones_train_like_one(records, run_of_two_steps, tmp_path):
  code, log = _train(records, tmp_path / 'train', '--num_clones=2', '--clone_on_cpu', '--training_number_of_steps=1',
                     '--save_summaries_images', '--save_summaries_histograms')
  assert code == 0
  assert 'Clone 1: 1 images per step on /device:CPU:0.' in log
  assert checkpoint.global_step(_newest(tmp_path / 'train')) == 1
  one, two = (checkpoint.variable_shapes(_newest(folder)) for folder in (run_of_two_steps[0], tmp_path / 'train'))
  assert one == two
  # Those of the first clone alone.
  assert {'samples/image/image/0', 'samples/label/image/0', 'samples/semantic/image/0', 'aspp0/weights'} <= set(
      _summaries(tmp_path / 'train'))
  assert not any(tag.startswith('clone_') for tag in _summaries(tmp_path / 'train'))


def test_finished_run_is_not_trained_further(records, run_of_two_steps, tmp_path):
  folder = _copy(run_of_two_steps[0], tmp_path)
  # A file of flags that a run wrote gives the same run again.
  code, log = tiny_run.run(train, f'--flagfile={folder}/flags.txt', f'--train_logdir={folder}')
  assert code == 0
  assert f'WARNING RESUMING the run in {folder} from step 2 (model.ckpt-2)' in log
  assert 'Other than in the run so far' not in log
  assert checkpoint.global_step(_newest(folder)) == 2


def test_end_of_data(records, tmp_path, monkeypatch):
  original = train.data_generator.Dataset
  monkeypatch.setattr(train.data_generator, 'Dataset',
                      lambda *args, **kwargs: original(*args, **{**kwargs, 'should_repeat': False}))
  code, log = _train(records, tmp_path / 'train', '--training_number_of_steps=9')
  assert code == 1
  assert f'The data of split train in {records} ended at step 2 of 9.' in log


def test_loss_that_is_not_finite(records, tmp_path):
  code, log = _train(records, tmp_path / 'train', '--base_learning_rate=1e30', '--training_number_of_steps=9')
  assert code == 1
  # The loss of the second step sees the weights that the first one has spoilt.
  assert re.search(r'ERROR Training has diverged: the loss is (nan|inf|-nan) at step [12] with learning rate \S*e\+2\d', log)
  assert checkpoint.global_step(_newest(tmp_path / 'train')) == 0
  for index in (tmp_path / 'train').glob('*.index'):
    reader = tf.train.NewCheckpointReader(str(index)[:-len('.index')])
    assert all(np.isfinite(reader.get_tensor(name)).all() for name in reader.get_variable_to_shape_map())


# Going on.


def test_three_steps_and_three_more_equal_six(tmp_path, monkeypatch, losses):
  # Mirrored pictures that fill the crop, both in each batch: neither order nor augmentation makes a difference.
  random, samples = np.random.RandomState(0), []
  for _ in range(2):
    image, label = random.randint(0, 256, [33, 17, 3]), random.choice(3, [33, 17], p=[0.9, 0.05, 0.05])
    samples.append(tuple(np.concatenate([half, half[:, -2::-1]], axis=1).astype(np.uint8) for half in (image, label)))
  records = tiny_run.write_records(tmp_path / 'records', samples)
  flags = ('--training_number_of_steps=6', '--base_learning_rate=0.5', '--min_scale_factor=1', '--max_scale_factor=1',
           # Without dropout.
           '--aspp_with_concat_projection=false')
  assert _train(records, tmp_path / 'whole', *flags)[0] == 0
  whole = list(losses)
  assert [step for step, _ in whole] == [1, 2, 3, 4, 5, 6]
  losses.clear()
  with monkeypatch.context() as context:
    _signal_after(context, 3, signal.SIGINT)
    code, log = _train(records, tmp_path / 'halves', *flags)
  assert code == 128 + signal.SIGINT
  assert 'WARNING Ended by SIGINT at step 3 of 6; the same command goes on from there.' in log
  moved = shutil.move(tmp_path / 'halves', tmp_path / 'moved')
  code, log = _train(records, moved, *flags)
  assert code == 0
  assert 'Training from step 3 to 6, learning rate 0.267943' in log
  np.testing.assert_allclose(losses, whole, rtol=0, atol=1e-5)
  # Enough movement for a wrong start to be seen.
  assert all(abs(before - after) > 1e-2 for (_, before), (_, after) in zip(whole, whole[1:], strict=False))


def test_resume_warns_of_other_flags_and_keeps_the_wanted_number(records, run_of_two_steps, tmp_path):
  folder = _copy(run_of_two_steps[0], tmp_path)
  code, log = _train(records, folder, '--training_number_of_steps=3', '--max_checkpoints_to_keep=2',
                     f'--tf_initial_checkpoint={run_of_two_steps[0]}')
  assert code == 0
  assert 'WARNING Other than in the run so far: --training_number_of_steps=3 (it was --training_number_of_steps=2).' in log
  assert 'With another --training_number_of_steps the poly and cosine policies give another learning rate' in log
  assert f'Ignored because of that: --tf_initial_checkpoint={run_of_two_steps[0]} and --initialize_last_layer.' in log
  assert sorted(path.name for path in folder.glob('*.index')) == ['model.ckpt-2.index', 'model.ckpt-3.index']


@pytest.mark.parametrize('arguments, expected', [
    (['--output_stride=8'], '--output_stride: 16 in the run, 8 now'),
    (['--atrous_rates=1,2', '--decoder_output_stride=4'], '--atrous_rates: not set in the run, 1,2 now'),
    (['--atrous_rates=1,2', '--decoder_output_stride=4'], '--decoder_output_stride: not set in the run, 4 now'),
    (['--model_variant=mobilenet_v2'], '--model_variant: tiny in the run, mobilenet_v2 now'),
])
def test_resume_with_other_options_is_refused(records, run_of_two_steps, arguments, expected):
  code, log = _train(records, run_of_two_steps[0], *arguments)
  assert code == 1
  assert expected in log and 'another --train_logdir to start afresh' in log


def test_resume_with_other_classes_is_refused(run_of_two_steps, tmp_path):
  code, log = _train(tiny_run.write_records(tmp_path / 'records', num_classes=5), run_of_two_steps[0])
  assert code == 1
  assert 'num_classes of the data set: 3 in the run (shapes), 5 now (shapes)' in log


def test_resume_without_description_looks_at_the_variables(run_of_two_steps, tmp_path):
  folder = _copy(run_of_two_steps[0], tmp_path)
  (folder / 'model_options.json').unlink()
  code, log = _train(tiny_run.write_records(tmp_path / 'records', num_classes=5), folder)
  assert code == 1
  assert 'model.ckpt-2 is of another network: ' in log and 'logits/semantic/biases is [3] in it and [5]' in log


def test_resume_with_another_optimizer_is_refused(records, run_of_two_steps, tmp_path):
  code, log = _train(records, _copy(run_of_two_steps[0], tmp_path), '--optimizer=adam')
  assert code == 1
  assert 'variables of the optimizer' in log and 'start a new --train_logdir with --tf_initial_checkpoint=' in log


def test_folder_after_a_crash(run_of_two_steps, tmp_path):
  folder = _copy(run_of_two_steps[0], tmp_path)
  data, = folder.glob('model.ckpt-2.data*')
  data.write_bytes(data.read_bytes()[:-100])
  assert checkpoint.prepare_resume(str(folder)) == str(folder / 'model.ckpt-0') == _newest(folder)
  # A crash of the machine can leave the file of names empty.
  (folder / 'checkpoint').write_text('')
  assert checkpoint.prepare_resume(str(folder)) == str(folder / 'model.ckpt-0') == _newest(folder)
  for path in folder.glob('*.index'):
    path.write_bytes(b'')
  with pytest.raises(ValueError, match='holds no usable checkpoint'):
    checkpoint.prepare_resume(str(folder))


def test_folder_without_checkpoints(tmp_path):
  assert checkpoint.prepare_resume(str(tmp_path / 'missing')) is None
  assert checkpoint.prepare_resume(str(tmp_path)) is None
  (tmp_path / 'checkpoint').write_text('model_checkpoint_path: "/elsewhere/model.ckpt-8"\n')
  with pytest.raises(ValueError, match='model.ckpt-8.index is missing'):
    checkpoint.prepare_resume(str(tmp_path))


def _wait(condition, process, seconds=240):
  end = time.monotonic() + seconds
  while not condition():
    assert process.poll() is None, process.communicate()[0]
    assert time.monotonic() < end
    time.sleep(0.001)


def test_kill_at_any_moment(records, tmp_path):
  folder, arguments = tmp_path / 'train', ['--save_interval_secs=1', '--training_number_of_steps=1000000']
  command = [*tiny_run.FLAGS, f'--dataset_dir={records}', f'--train_logdir={folder}', *arguments]
  process = tiny_run.start_process(*command)
  _wait(lambda: folder.exists() and _newest(folder) and not _newest(folder).endswith('-0'), process)
  saved = checkpoint.global_step(_newest(folder))
  # The next save has begun: its files are not all there, and the newest whole one is an earlier one.
  _wait(lambda: any('temp' in name for name in os.listdir(folder)), process)
  process.kill()
  assert process.wait() == -signal.SIGKILL
  resumed = checkpoint.prepare_resume(str(folder))
  assert checkpoint.global_step(resumed) >= saved
  process = tiny_run.start_process(*command)
  _wait(lambda: _newest(folder) != resumed, process)
  process.send_signal(signal.SIGTERM)
  output, _ = process.communicate()
  assert process.returncode == 128 + signal.SIGTERM
  assert f'RESUMING the run in {folder} from step {checkpoint.global_step(resumed)} ' in output
  last_step = checkpoint.global_step(_newest(folder))
  assert f'Ended by SIGTERM at step {last_step} of 1000000' in output
  assert 'Traceback' not in output


# Starting from another checkpoint.


@pytest.fixture(scope='module')
def records_of_five_classes(tmp_path_factory):
  return tiny_run.write_records(tmp_path_factory.mktemp('five') / 'records', num_classes=5)


def test_fine_tuning_with_another_head_and_frozen_scopes(records_of_five_classes, run_of_two_steps, tmp_path):
  # A rate that moves every float, and batch norm that would follow the batch.
  code, log = _train(records_of_five_classes, tmp_path / 'train', f'--tf_initial_checkpoint={run_of_two_steps[0]}',
                     '--initialize_last_layer=auto', '--freeze_backbone', '--frozen_scopes=image_pooling',
                     '--fine_tune_batch_norm=true', '--base_learning_rate=0.1', '--training_number_of_steps=1')
  assert code == 0
  assert 'logits/semantic/weights is [1, 1, 8, 3] in the checkpoint and [1, 1, 8, 5] in this network' in log
  assert re.search(r'Restored (\d+) of \d+ model variables from .*model.ckpt-2: Tiny \d+, image_pooling 5, aspp0 5, ', log)
  assert 'Frozen: Tiny, image_pooling; ' in log
  assert '--fine_tune_batch_norm with 2 images per clone' in log
  assert 'a decay of 0.9997 hardly move in 1 steps' in log
  before, after = _tensors(run_of_two_steps[0]), _tensors(tmp_path / 'train')
  changed = _changed({name: value for name, value in before.items() if after.get(name, value).shape == value.shape
                      and name in after and not name.endswith('Momentum') and name != 'global_step'}, after)
  assert {name.split('/')[0] for name in changed} == {'aspp0', 'concat_projection'}
  assert {'aspp0/weights', 'aspp0/BatchNorm/moving_mean', 'aspp0/BatchNorm/gamma'} <= changed
  assert after['global_step'] == 1
  # What is not trained has no momentum.
  assert {name.split('/')[0] for name in after if name.endswith('Momentum')} == {'aspp0', 'concat_projection', 'logits'}


def test_head_of_another_size_is_refused(records_of_five_classes, run_of_two_steps, tmp_path):
  code, log = _train(records_of_five_classes, tmp_path / 'train',
                     f'--tf_initial_checkpoint={run_of_two_steps[0]}/model.ckpt-2.index')
  assert code == 1
  assert 'It was trained for 3 classes, this network has 5. Pass --initialize_last_layer=false' in log


def test_unknown_frozen_scope_is_refused(records, tmp_path):
  code, log = _train(records, tmp_path / 'train', '--frozen_scopes=MobilenetV2')
  assert code == 1
  assert '--frozen_scopes=MobilenetV2: no variable of the network lies in it; scopes: Tiny, image_pooling, aspp0' in log


def test_label_weights_from_the_data(tmp_path):
  label = np.zeros(tiny_run.SIZE, np.uint8)
  # A quarter of class 1; class 2 does not occur.
  label[:10] = 1
  records = tiny_run.write_records(tmp_path / 'records', [(tiny_run.noise_image(np.random.RandomState(0)), label)])
  with flagsaver.flagsaver(dataset_dir=records, label_weights=['auto']):
    train._fix_label_weights(dataset_info.get_descriptor('shapes', records))
    np.testing.assert_allclose(train.FLAGS.label_weights, [2 / 3, 2.0, 1.0])


# Files for the earlier code.


def test_keys_of_a_checkpoint(tmp_path):
  expected = load('tf115_run_keys.json')
  records = tiny_run.write_records(tmp_path / 'records', num_classes=21)
  code, _ = _train(records, tmp_path / 'train', '--model_variant=mobilenet_v2', '--depth_multiplier=0.5',
                   '--aspp_convs_filters=256', '--training_number_of_steps=1')
  assert code == 0
  assert checkpoint.variable_shapes(_newest(tmp_path / 'train')) == expected
  assert json.loads((tmp_path / 'train' / 'model_options.json').read_text())['dataset']['num_classes'] == 21
