"""Command lines before they are parsed: flags files are put in their place, and of a list only the value in force is left.

A flag given later in another place, a flags file or the command line, replaces. In one place a list grows by single values, and a
value with a comma replaces all before it.
"""

import os
import re

from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf

_COMMENTS = ('#', '//')
_FLAG = re.compile(r'--?(?P<name>\w+)(=(?P<value>.*))?', re.DOTALL)


def resolve(arguments, list_flags, is_left_out=lambda name, path: False):
  """The arguments of a command line in their final form.

  Args:
    arguments: texts, without the name of the program.
    list_flags: names of the flags that hold lists.
    is_left_out: function of the name of a flag and the path of the flags file that holds it; whether that line is ignored.

  Returns:
    List of texts without --flagfile; each flag of a list is written --name=value.

  Raises:
    InputError: a flags file cannot be read, or holds itself.
  """
  resolved, place_of_list = [], {}
  pending = _with_files(arguments, is_left_out)
  for argument, place in pending:
    if argument == '--':
      return [*resolved, argument, *(rest for rest, _ in pending)]
    match = _FLAG.fullmatch(argument)
    if match and match['name'] in list_flags:
      name, value = match['name'], match['value']
      if value is None:
        value = next(pending, (None, place))[0]
        if value is None:
          return [*resolved, argument]
      if ',' in value or place_of_list.get(name, place) is not place:
        resolved = [other for other in resolved if not other.startswith(f'--{name}=')]
      place_of_list[name] = place
      argument = f'--{name}={value}'
    resolved.append(argument)
  return resolved


def _with_files(arguments, is_left_out, open_files=()):
  """Yields each argument and the place that it stands in, an object; lines of a flags file in place of its --flagfile."""
  place = object()
  pending = iter(arguments)
  for argument in pending:
    match = _FLAG.fullmatch(argument)
    if argument == '--':
      yield argument, place
      yield from ((rest, place) for rest in pending)
    elif match and match['name'] == 'flagfile':
      path = os.path.expanduser(next(pending, '') if match['value'] is None else match['value'])
      if path in open_files:
        raise InputError(f'--flagfile={path} stands in that file itself, or in one that it names.')
      yield from _with_files(_lines(path), is_left_out, (*open_files, path))
    elif not (match and open_files and is_left_out(match['name'], open_files[-1])):
      yield argument, place


def _lines(path):
  """The lines of a flags file, without comments."""
  try:
    with tf.io.gfile.GFile(path) as flags_file:
      lines = [line.strip() for line in flags_file.read().splitlines()]
  except (tf.errors.OpError, UnicodeDecodeError) as error:
    raise InputError(f'--flagfile={path} is no text file that can be read ({error}).') from error
  return [line for line in lines if line and not line.startswith(_COMMENTS)]
