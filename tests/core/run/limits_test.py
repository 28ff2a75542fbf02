"""Memory told before it runs out, and what TensorFlow refuses told by the flags to change."""

import pytest
import tiny_run
from absl.testing import flagsaver

from deeplab import eval as evaluation
from deeplab import train, vis
from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf
from deeplab.core.images import tiling
from deeplab.core.run import limits


def test_peak_of_a_chain():
  with tf.Graph().as_default():
    images = tf.placeholder(tf.float32, [None, 10, 10, 1])
    wide = tf.nn.relu(tf.nn.conv2d(images, tf.get_variable('weights', [1, 1, 1, 4]), padding='SAME'))
    # 4 weights; 100 pixels of 1 channel beside 100 of 4, which relu overwrites.
    assert limits.peak_bytes(wide, 1) == 4 * (4 + 100 + 400)
    assert limits.peak_bytes(wide, 3) == 4 * (4 + 3 * (100 + 400))
    # The image is gone when 100 of 2 follow.
    narrow = tf.nn.conv2d(wide, tf.get_variable('more_weights', [1, 1, 4, 2]), padding='SAME')
    assert limits.peak_bytes(narrow, 1) == 4 * (4 + 8 + 400 + 200)


def test_tensor_that_is_needed_again_is_kept():
  with tf.Graph().as_default():
    pixels = tf.placeholder(tf.float32, [100])
    other = tf.nn.elu(tf.nn.elu(pixels))
    assert limits.peak_bytes(other, 1) == 4 * 200
    assert limits.peak_bytes(tf.concat([other, pixels], 0), 1) - 4 == 4 * 400


@pytest.fixture(scope='module')
def run_dir(tmp_path_factory):
  """Folder with `records` and, in `train`, a run of one step."""
  folder = tmp_path_factory.mktemp('run')
  for split in ('train', 'val'):
    tiny_run.write_records(folder / 'records', split=split)
  with flagsaver.flagsaver():
    code, log = tiny_run.run(train, *tiny_run.FLAGS, '--training_number_of_steps=1', f'--dataset_dir={folder}/records',
                             f'--train_logdir={folder}/train')
  assert not code, log
  return folder


def _arguments(program, folder, out):
  name = {evaluation: 'eval', vis: 'vis'}[program]
  rounds = {evaluation: 'evaluations', vis: 'iterations'}[program]
  return (f'--dataset_dir={folder}/records', f'--checkpoint_dir={folder}/train', f'--{name}_logdir={out}',
          f'--{name}_crop_size=65', f'--{name}_batch_size=2', f'--max_number_of_{rounds}=1')


@pytest.mark.parametrize('program, name', [(evaluation, 'eval'), (vis, 'vis')])
def test_need_is_told(run_dir, tmp_path, monkeypatch, program, name):
  code, log = tiny_run.run(program, *_arguments(program, run_dir, tmp_path))
  # The logits: 2 images of 65x65 pixels, 3 classes of 4 bytes; all else is smaller, as the network is.
  assert not code and 'INFO 2 images of 65x65 pixels take about 0 MB of memory.' in log and 'there are.' not in log
  monkeypatch.setattr(limits, '_memory_bytes', lambda session: 1000)
  code, log = tiny_run.run(program, *_arguments(program, run_dir, tmp_path))
  assert not code and f'WARNING That is more than the 0 MB there are. Give --{name}_tile_size=513,513' in log


@pytest.mark.parametrize('program, name', [(evaluation, 'eval'), (vis, 'vis')])
def test_running_out_of_it_is_told(run_dir, tmp_path, monkeypatch, program, name):
  def fail(*unused_arguments):
    raise tf.errors.ResourceExhaustedError(None, None, 'OOM when allocating tensor')
  monkeypatch.setattr(tiling, 'predict', fail)
  code, log = tiny_run.run(program, *_arguments(program, run_dir, tmp_path))
  assert code == 1
  assert f'ERROR Not enough memory for 2 images of 65x65 pixels. Give --{name}_tile_size=513,513' in log


def test_other_errors_stay():
  with pytest.raises(tf.errors.InvalidArgumentError), limits.explained('eval', '', 1, [65, 65], [65, 65]):
    raise tf.errors.InvalidArgumentError(None, None, 'shapes differ')
  with pytest.raises(InputError, match='too large .--image_dir=x with --vis_crop_size=65,65; auto takes'), \
      limits.explained('vis', '--image_dir=x', 1, [65, 65], [65, 65]):
    raise tf.errors.InvalidArgumentError(None, None, 'assertion failed: [too large]')
