"""What is shown of TensorFlow's own lines, and what is told of a GPU that cannot be used."""

import os
import subprocess
import sys

import pytest

from deeplab.core.base import quiet_start

_CU_INIT = 'E0000 00:00:1.5 7 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error: UNKNOWN ERROR (303)\n'
_TALK = (
    'WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n'
    'I0000 00:00:1796642819.510929   30815 port.cc:153] oneDNN custom operations are on.\n'
    '2026-01-05 10:00:00.123456: I tensorflow/core/util/port.cc:113] oneDNN custom operations are on.\n'
    '2026-01-05 10:00:00.123456: W tensorflow/compiler/tf2tensorrt/utils/py_utils.cc:38] TF-TRT Warning\n'
    '2026-01-05 10:00:00.123456: E external/local_xla/cuda_dnn.cc:9261] Unable to register cuDNN factory\n' + _CU_INIT)
_FAULTS = (
    'E0000 00:00:1796642819.510929   30815 gpu_device.cc:5] out of memory\n'
    'F0000 00:00:1796642819.510929   30815 cpu_feature_guard.cc:5] this CPU lacks AVX\n'
    'Traceback (most recent call last):\n'
    'OSError: disk\n')


@pytest.fixture
def no_level(monkeypatch):
  monkeypatch.setattr(quiet_start, '_SEES_ALL', False)


def test_talk_is_left_out_and_faults_are_shown(no_level, capfd):
  with quiet_start.filtered() as texts:
    os.write(2, (_TALK + _FAULTS).encode())
    assert not texts
  assert texts == [_TALK + _FAULTS]
  assert capfd.readouterr().err == _FAULTS


def test_faults_are_shown_when_an_error_ends_it(no_level, capfd):
  with pytest.raises(ImportError), quiet_start.filtered():
    os.write(2, _FAULTS.encode())
    raise ImportError
  assert capfd.readouterr().err == _FAULTS


def test_level_of_the_user_wins(monkeypatch, capfd):
  monkeypatch.setattr(quiet_start, '_SEES_ALL', True)
  with quiet_start.filtered():
    os.write(2, _TALK.encode())
  assert capfd.readouterr().err == _TALK


def test_level_is_read_from_the_environment():
  code = ('import os; from deeplab.core.base import quiet_start; quiet_start.set_level(); '
          'print(quiet_start._SEES_ALL, os.environ["TF_CPP_MIN_LOG_LEVEL"])')
  for level, expected in (('', 'False 2'), ('0', 'True 0')):
    environment = {name: value for name, value in os.environ.items() if name != 'TF_CPP_MIN_LOG_LEVEL'}
    if level:
      environment['TF_CPP_MIN_LOG_LEVEL'] = level
    done = subprocess.run([sys.executable, '-c', code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected


@pytest.mark.parametrize('text, is_built_with_cuda, fault', [
    ('', False, 'was built without CUDA and runs on the CPU'),
    (_CU_INIT, True, 'driver of the NVIDIA GPU fails (INTERNAL: CUDA error: UNKNOWN ERROR (303))'),
    ("W] Could not load dynamic library 'libcudnn.so.9'; dlerror\nCannot dlopen some GPU libraries.\n", True,
     'does not find the libraries of CUDA (libcudnn.so.9)'),
    ('Cannot dlopen some GPU libraries.', True, "pip install 'tensorflow[and-cuda]'"),
])
def test_gpu_that_cannot_be_used(monkeypatch, text, is_built_with_cuda, fault):
  monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
  monkeypatch.setattr(quiet_start, 'has_nvidia_driver', lambda: True)
  assert fault in quiet_start.gpu_fault(text, 0, is_built_with_cuda)
  # One is used; the user hides them; there is none.
  assert not quiet_start.gpu_fault(text, 1, is_built_with_cuda)
  monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '-1')
  assert not quiet_start.gpu_fault(text, 0, is_built_with_cuda)
  monkeypatch.delenv('CUDA_VISIBLE_DEVICES')
  monkeypatch.setattr(quiet_start, 'has_nvidia_driver', lambda: False)
  assert not quiet_start.gpu_fault(text, 0, is_built_with_cuda)
