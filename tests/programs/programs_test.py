"""The programs as processes of their own: from any folder, without PYTHONPATH, and one after the other on the same run."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
import tiny_run

_MODULE = [sys.executable, '-m']
_SOURCES = {path.name for pattern in ('*.py', 'core/**/*.py', 'datasets/**/*.py')
            for path in pathlib.Path(__file__).parents[2].glob(pattern)}
_SCRIPTS = pathlib.Path(sys.executable).parent


@pytest.mark.parametrize('command,flag,purpose', [
    ([*_MODULE, 'deeplab.train'], '--train_logdir', 'Trains DeepLabv3+'),
    ([*_MODULE, 'deeplab.eval'], '--eval_logdir', 'Measures DeepLabv3+'),
    ([*_MODULE, 'deeplab.vis'], '--vis_logdir', 'Draws what'),
    ([*_MODULE, 'deeplab.export_model'], '--export_path', 'Writes a trained checkpoint'),
    ([_SCRIPTS / 'deeplab-train'], '--train_logdir', 'Trains DeepLabv3+'),
    ([_SCRIPTS / 'deeplab-export'], '--export_path', 'Writes a trained checkpoint')])
def test_help(command, flag, purpose, tmp_path):
  environment = {name: value for name, value in os.environ.items() if name != 'PYTHONPATH'}
  done = subprocess.run([*command, '--help'], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
  assert flag in done.stdout and purpose in done.stdout
  assert 'Traceback' not in done.stderr


def _is_ours(line):
  """Whether a line is the beginning of a message of this project."""
  match = re.match(r'[IW]\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ (\w+\.py):\d+\] .', line)
  return match and match[1] in _SOURCES


def _run(folder, program, *arguments):
  """Runs a program to its end, from a folder; fails where it does, or where a byte of its output is not of this project."""
  environment = {name: value for name, value in os.environ.items() if name not in ('TF_CPP_MIN_LOG_LEVEL', 'PYTHONWARNINGS')}
  done = subprocess.run([*_MODULE, f'deeplab.{program}', *arguments], cwd=folder, env=environment, capture_output=True,
                        text=True, timeout=300)
  assert done.returncode == 0, done.stderr[-2000:]
  assert done.stdout == ''
  # The only message of several lines is the table of eval.
  table = re.compile(r'class name .*\n( +\d+ .*\n)+\nmIoU .*\npixel accuracy .*\n')
  foreign = [line for line in table.sub('', done.stderr).splitlines() if not _is_ours(line)]
  assert not foreign, foreign


@pytest.mark.parametrize('quantize_delay_step', [
    pytest.param(-1, id='float'), pytest.param(0, id='8bit', marks=pytest.mark.full)])
def test_each_program_takes_up_what_the_one_before_left(quantize_delay_step, tmp_path):
  records = tiny_run.write_records(tmp_path / 'records')
  tiny_run.write_records(tmp_path / 'records', split='val')
  _run(tmp_path, 'train', f'--dataset_dir={records}', '--train_logdir=train', '--model_variant=mobilenet_v2',
       '--depth_multiplier=0.35', '--train_crop_size=33', '--train_batch_size=2', '--fine_tune_batch_norm=false',
       '--training_number_of_steps=2', f'--quantize_delay_step={quantize_delay_step}')
  _run(tmp_path, 'eval', f'--dataset_dir={records}', '--checkpoint_dir=train', '--eval_logdir=eval', '--eval_crop_size=auto',
       '--max_number_of_evaluations=1')
  assert json.loads((tmp_path / 'eval' / 'metrics.json').read_text(encoding='utf-8'))['num_images'] == 4
  _run(tmp_path, 'vis', f'--dataset_dir={records}', '--checkpoint_dir=train', '--vis_logdir=vis', '--vis_crop_size=auto',
       '--max_number_of_iterations=1')
  assert len(list((tmp_path / 'vis' / 'segmentation_results').glob('*_prediction.png'))) == 4
  _run(tmp_path, 'export_model', '--checkpoint_path=train', '--crop_size=49', '--export_path=out/graph.pb',
       '--tflite_path=out/model.tflite')
  assert sorted(path.name for path in (tmp_path / 'out').iterdir()) == ['graph.pb', 'model.tflite']
