"""How the files that describe a run or its data stay readable for later and for earlier versions of this program.

Such a file is a JSON object with a head beside its content:
    format     number of the format; files without one, of version 1.0.0, are of format 1
    version    the version that wrote it
    off        each field that came after format 1 -> the value with which all is as it was without the field
A reader that knows more fields than the file gives those the value `off` of its own table. One that knows fewer goes by the `off`
of the file: a field that is off is left out, any other is refused by name.
"""

from typing import Any, NamedTuple

from deeplab.core.base.version import VERSION

# Counts up with every field that a table of Added gets, in whichever file.
FORMAT = 2


class Added(NamedTuple):
  """A field that came after format 1.

  Attributes:
    name: the field.
    format: the format that brought it.
    off: value with which all is as it was without it.
  """
  name: str
  format: int
  off: Any


class Head(NamedTuple):
  """What a file says of itself; see the head of this module."""
  format: int
  version: str
  off: dict


def head(added):
  """What a file of this version begins with.

  Args:
    added: the rows of its table, Added.

  Returns:
    Dict.
  """
  return {**Head(FORMAT, VERSION, {row.name: row.off for row in added})._asdict()}


def take_head(content):
  """Takes the head out of the content of a file.

  Args:
    content: dict, as JSON gives it.

  Returns:
    (Head, dict of the rest).

  Raises:
    ValueError: the head is damaged.
  """
  found = Head(content.get('format', 1), content.get('version', '1.0.0'), content.get('off', {}))
  if isinstance(found.format, bool) or not isinstance(found.format, int) or found.format < 1:
    raise ValueError(f"'format' is {found.format!r}; it must be a number from 1 on")
  if not isinstance(found.version, str):
    raise ValueError(f"'version' is {found.version!r}; it must be a text")
  if not isinstance(found.off, dict):
    raise ValueError(f"'off' is {found.off!r}; it must be an object")
  return found, {name: value for name, value in content.items() if name not in Head._fields}


def known_values(values, known, file_head):
  """The fields of a file that this version knows.

  Args:
    values: dict, name of a field -> value.
    known: names that this version knows.
    file_head: Head of the file.

  Returns:
    Dict; fields that are unknown here and off in the file are left out.

  Raises:
    ValueError: an unknown field is in use.
  """
  for name, value in values.items():
    if name not in known and (name not in file_head.off or file_head.off[name] != value):
      raise ValueError(f'it has {name}={value}, which this version, {VERSION}, does not know; version {file_head.version} '
                       'wrote it')
  return {name: value for name, value in values.items() if name in known}


def filled(values, added, file_head):
  """The fields of a file, with the value `off` for those that came after its format.

  Args:
    values: dict, name of a field -> value.
    added: rows of the table, Added.
    file_head: Head of the file.
  """
  return {**{row.name: row.off for row in added if row.format > file_head.format}, **values}
