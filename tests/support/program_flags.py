"""Flags of a program in a process that may hold those of others, some under the same names."""

import contextlib

from absl import flags


@contextlib.contextmanager
def defined(define):
  """Runs `define`, which defines flags, with all flags of this project out of the way; puts them back in the end."""
  registered = flags.FLAGS._flags()
  hidden = {name: flag for name, flag in registered.items()
            if flags.FLAGS.find_module_defining_flag(name, '').startswith('deeplab')}
  for name in hidden:
    del registered[name]
  before = set(registered)
  try:
    define()
    yield flags.FLAGS
  finally:
    for name in set(registered) - before:
      delattr(flags.FLAGS, name)
    registered.update(hidden)
