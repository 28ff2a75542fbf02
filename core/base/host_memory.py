"""How the process takes memory from the operating system."""

import ctypes
import os

# Parameters of mallopt, from malloc.h of the GNU C library.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_NEVER = -1


def keep_freed_memory():
  """Lets the GNU allocator keep freed blocks for the next ones instead of giving them back to the system.

  A training step frees and takes the same large blocks again and again, and each page of a block that is new to the process costs
  a fault. Elsewhere, and where the user has tuned the allocator by its environment variables, nothing is changed.
  """
  if any(name.startswith('MALLOC_') or name == 'GLIBC_TUNABLES' for name in os.environ):
    return
  try:
    os.confstr('CS_GNU_LIBC_VERSION')
    mallopt = ctypes.CDLL(None).mallopt
  except (AttributeError, OSError, TypeError, ValueError):
    return
  mallopt(_M_MMAP_MAX, 0)
  mallopt(_M_TRIM_THRESHOLD, _NEVER)
