"""The commands of scripts/train_cluster_local.sh, without the training."""

import os
import pathlib
import subprocess

from deeplab.core.base import command_line

_SCRIPT = pathlib.Path(__file__).parents[2] / 'scripts' / 'train_cluster_local.sh'
_LISTS = {'train_crop_size', 'decoder_output_stride', 'ps_hosts', 'worker_hosts'}


def _commands(folder, *arguments):
  """Command lines, lists of texts, that the script gives to python."""
  bin_folder = folder / 'venv' / 'bin'
  bin_folder.mkdir(parents=True)
  (bin_folder / 'activate').write_text(f'PATH="{bin_folder}:$PATH"\n')
  (bin_folder / 'python').write_text(f'#!/usr/bin/env bash\necho "$@" >>"{folder}/commands.txt"\n')
  (bin_folder / 'python').chmod(0o755)
  (folder / 'venv' / '.installed').touch()
  environment = {**os.environ, 'VENV': str(folder / 'venv'), 'WORK': str(folder / 'work')}
  subprocess.run(['bash', str(_SCRIPT), *arguments], env=environment, check=True, capture_output=True, timeout=120)
  return [line.split() for line in (folder / 'commands.txt').read_text().splitlines()]


def test_arguments_replace_the_lists_of_the_script(tmp_path):
  trainings = [command[1:] for command in _commands(tmp_path, '--train_crop_size=65,65', '--sync_replicas')
               if command[0].endswith('train.py')]
  assert len(trainings) == 3
  for arguments in trainings:
    resolved = command_line.resolve(arguments, _LISTS)
    assert [text for text in resolved if 'train_crop_size' in text] == ['--train_crop_size=65,65']
    assert '--decoder_output_stride=4' in resolved and '--sync_replicas' in resolved
    assert sum(text.startswith('--worker_hosts=localhost:') for text in resolved) == 1
  assert {argument for arguments in trainings for argument in arguments if argument.startswith(('--job_name', '--task'))} == {
      '--job_name=ps', '--job_name=worker', '--task=0', '--task=1'}
