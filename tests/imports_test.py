"""The rooms of the house stand on each other as docs/architecture.md says, and only one module knows TensorFlow."""

import ast
import pathlib
import re

import pytest

_ROOT = pathlib.Path(__file__).parents[1]
# A row of the table: | `room`, `room` | what it is for | `room` `room` |; a room is a folder, or a module of the top level.
_ROW = re.compile(r'\| (?P<rooms>`.*?) \|.*\| (?P<below>`.*`|nothing) \|')
_MAX_MODULES = 9


def _table():
  """Room -> rooms that it stands on, in the order of the table, the highest first."""
  text = (_ROOT / 'docs' / 'architecture.md').read_text(encoding='utf-8')
  rows = [match for match in map(_ROW.fullmatch, text.splitlines()) if match]
  return {room: re.findall(r'`(.+?)`', row['below']) for row in rows for room in re.findall(r'`(.+?)`', row['rooms'])}


_TABLE = _table()


def _room(path):
  return '/'.join(path.parts[:-1]) or path.stem


def _modules():
  """Full name of each module -> its path from the root."""
  found = [path.relative_to(_ROOT) for folder in (_ROOT.glob('*.py'), _ROOT.glob('core/**/*.py'), _ROOT.glob('datasets/**/*.py'))
           for path in folder]
  return {'.'.join(('deeplab', *path.with_suffix('').parts)): path
          for path in found if path.name not in ('__init__.py', 'setup.py', 'noxfile.py')}


_MODULES = _modules()


def _imports(path):
  """Full names of everything a file imports, at any depth of its code."""
  for node in ast.walk(ast.parse((_ROOT / path).read_text(encoding='utf-8'))):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      yield from (f'{node.module}.{alias.name}' for alias in node.names)


def _imported_rooms(path):
  """Room -> modules of it that a file imports."""
  rooms = {}
  for name in _imports(path):
    if name.startswith('deeplab.'):
      module = name if name in _MODULES else name.rpartition('.')[0]
      rooms.setdefault(_room(_MODULES[module]), []).append(module)
  return rooms


def _lowest_above(*rooms):
  """The lowest rooms that may import from all of `rooms`: where code that needs them belongs."""
  able = [room for room, below in _TABLE.items() if set(rooms) <= {room, *below}]
  return able[-1] if able else 'a room above both'


def test_table_runs_downward():
  rooms = list(_TABLE)
  for index, room in enumerate(rooms):
    assert set(_TABLE[room]) <= set(rooms[index + 1:]), f'{room} stands on a room that the table does not list below it'


def test_table_lists_every_room():
  assert set(_TABLE) == {_room(path) for path in _MODULES.values()}


@pytest.mark.parametrize('room', _TABLE)
def test_imports_are_those_of_the_table(room):
  used = set()
  for path in (path for path in _MODULES.values() if _room(path) == room):
    for other, modules in _imported_rooms(path).items():
      assert other in (room, *_TABLE[room]), (
          f'{path} imports {", ".join(modules)}, but {room} does not stand on {other} (docs/architecture.md): this code belongs '
          f'into {_lowest_above(room, other)}, or what it needs of {other} into a room below both.')
      used.add(other)
  unused = set(_TABLE[room]) - used
  assert not unused, f'{room} imports nothing of {", ".join(sorted(unused))}: take that out of its row in docs/architecture.md.'


@pytest.mark.parametrize('room', [room for room in _TABLE if room.startswith('core/')])
def test_rooms_of_core_are_small_and_say_what_belongs_in_them(room):
  assert sum(_room(path) == room for path in _MODULES.values()) <= _MAX_MODULES
  sign = ast.get_docstring(ast.parse((_ROOT / room / '__init__.py').read_text(encoding='utf-8')))
  assert 'Not here:' in sign and 'Begin with' in sign


def test_one_module_imports_tensorflow():
  importers = {module for module, path in _MODULES.items()
               if any(name.split('.')[0] in ('tensorflow', 'tf_slim', 'tf_keras') for name in _imports(path))}
  assert importers == {'deeplab.core.base.tf_compat'}
