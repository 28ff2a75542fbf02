"""TensorFlow's own lines at the start of a program: those that say nothing to a user are left out, faults get a line of ours.

TensorFlow's C++ parts write to file descriptor 2, most of it before anything can set their level. TF_CPP_MIN_LOG_LEVEL, where the
user gave it, wins: all that it lets through is then shown as it comes.
"""

import contextlib
import ctypes
import os
import re
import sys
import tempfile

_LEVEL = 'TF_CPP_MIN_LOG_LEVEL'
_SEES_ALL = _LEVEL in os.environ
# A line of TensorFlow in either of its forms, below the level of an error, or the one that stands before the first.
_TALK = re.compile(r'[IW]\d{4} [\d:.]+ +\d+ \S+:\d+\] |[-\d]+ [\d:.]+: [IW] |WARNING: All log messages before absl::Init')
# Errors in form only: what TensorFlow 2.16 to 2.18 register twice; a driver that is not there (else see `gpu_fault`); ops that
# have a kernel of TensorFlow, if none of oneDNN; assignments that the TFLite converter misses in a graph of constants.
_NO_ERROR = re.compile(r'Unable to register cu\w+ factory|computation_placer already registered|failed call to cuInit|'
                       r'oneDNN supports \w+ only on platforms with|grappler_item_builder\S+ Init node')
_CU_INIT_FAULT = re.compile(r'failed call to cuInit: (.*)')
_MISSING_LIBRARY = re.compile(r"Could not load dynamic library '([^']+)'")
_MISSING_LIBRARIES = 'Cannot dlopen some GPU libraries'


def set_level():
  """Hides what TensorFlow says below the level of an error, unless the user gave a level; before it is imported."""
  os.environ.setdefault(_LEVEL, '2')


@contextlib.contextmanager
def filtered():
  """Context in which nothing is written to stderr before its end, and then all but the idle talk of TensorFlow.

  Yields:
    List that holds the text written, once the context has ended.
  """
  texts: list[str] = []
  if _SEES_ALL:
    yield texts
    return
  sys.stderr.flush()
  try:
    real = os.dup(2)
  except OSError:  # A process without stderr.
    yield texts
    return
  with tempfile.TemporaryFile() as caught:
    os.dup2(caught.fileno(), 2)
    try:
      yield texts
    finally:
      sys.stderr.flush()
      os.dup2(real, 2)
      os.close(real)
      caught.seek(0)
      texts.append(caught.read().decode(errors='replace'))
      sys.stderr.write(''.join(_worth_reading(texts[0])))
      sys.stderr.flush()


def _worth_reading(text):
  return [line for line in text.splitlines(keepends=True)
          if line.strip() and not _TALK.match(line) and not _NO_ERROR.search(line)]


def has_nvidia_driver():
  """Whether the driver of an NVIDIA GPU is installed and has a device."""
  try:
    ctypes.CDLL('libcuda.so.1')
  except OSError:
    return False
  return os.path.exists('/proc/driver/nvidia/gpus') or os.path.exists('/dev/dxg')


def gpu_fault(text, num_gpus, is_built_with_cuda):
  """Why TensorFlow does not use a GPU whose driver is there.

  Args:
    text: what TensorFlow wrote when it looked for devices.
    num_gpus: number of GPUs that it found.
    is_built_with_cuda: whether it could use any.

  Returns:
    A sentence that says what to do, or '' where there is no fault.
  """
  if num_gpus or os.environ.get('CUDA_VISIBLE_DEVICES') in ('', '-1') or not has_nvidia_driver():
    return ''
  if not is_built_with_cuda:
    return ("There is an NVIDIA GPU, but this TensorFlow was built without CUDA and runs on the CPU. Install one with it: pip "
            "install 'tensorflow[and-cuda]'")
  if _MISSING_LIBRARIES in text or _MISSING_LIBRARY.search(text):
    names = ', '.join(dict.fromkeys(_MISSING_LIBRARY.findall(text)))
    return ('There is an NVIDIA GPU, but TensorFlow does not find the libraries of CUDA' + (f' ({names})' if names else '') +
            " and runs on the CPU. Install them: pip install 'tensorflow[and-cuda]'")
  fault = _CU_INIT_FAULT.search(text)
  if fault:
    return (f'The driver of the NVIDIA GPU fails ({fault[1].strip()}), and TensorFlow runs on the CPU. See whether nvidia-smi '
            f'works; TF_CPP_MIN_LOG_LEVEL=0 shows all that TensorFlow says.')
  return ''
