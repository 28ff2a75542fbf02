"""How the process takes memory from the operating system; each measurement in a process of its own."""

import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != 'glibc', reason='about the GNU allocator')

# Takes and frees 100 MB, of which it writes to every page, ten times.
_FAULTS = '''
import ctypes, resource, sys
from deeplab.core.base import host_memory
if sys.argv[1] == 'keep':
  host_memory.keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
  block = libc.malloc(100 << 20)
  ctypes.memset(block, 1, 100 << 20)
  libc.free(block)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
'''


def _faults(mode, **environment):
  """Page faults of ten blocks."""
  untuned = {name: value for name, value in os.environ.items() if not name.startswith('MALLOC_') and name != 'GLIBC_TUNABLES'}
  process = subprocess.run([sys.executable, '-c', _FAULTS, mode], capture_output=True, text=True, check=True,
                           env={**untuned, **environment})
  return int(process.stdout)


def test_freed_memory_is_kept():
  # Where the system gives out large pages by itself, the difference is in a few faults: compared, not counted.
  assert _faults('keep') < 0.2 * _faults('leave')


@pytest.mark.parametrize('environment', [{'MALLOC_ARENA_MAX': '2'}, {'MALLOC_TRIM_THRESHOLD_': '100000'},
                                         {'GLIBC_TUNABLES': 'glibc.malloc.arena_max=2'}], ids=lambda value: next(iter(value)))
def test_settings_of_the_user_are_left_alone(environment):
  assert _faults('keep', **environment) > 0.8 * _faults('leave', **environment)
