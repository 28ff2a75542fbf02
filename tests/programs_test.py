"""The programs start as modules and as console scripts from any folder, without PYTHONPATH."""

import os
import pathlib
import subprocess
import sys

import pytest

_MODULE = [sys.executable, '-m']
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
