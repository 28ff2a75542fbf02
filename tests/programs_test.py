"""The programs start as modules from any folder, without PYTHONPATH."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize('program,flag', [
    ('train', '--train_logdir'), ('eval', '--eval_logdir'), ('vis', '--vis_logdir'), ('export_model', '--export_path')])
def test_program_starts_as_a_module(program, flag, tmp_path):
  environment = {name: value for name, value in os.environ.items() if name != 'PYTHONPATH'}
  done = subprocess.run([sys.executable, '-m', f'deeplab.{program}', '--help'], cwd=tmp_path, env=environment,
                        capture_output=True, text=True, timeout=120)
  assert flag in done.stdout
  assert 'Traceback' not in done.stderr
