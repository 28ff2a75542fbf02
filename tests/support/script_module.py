"""Python files of scripts/, which are no part of the package, for tests to import."""

import importlib.util
import pathlib

SCRIPTS = pathlib.Path(__file__).parents[2] / 'scripts'


def load(path):
  """The module of a file, by its path in scripts/."""
  spec = importlib.util.spec_from_file_location(pathlib.PurePath(path).stem, SCRIPTS / path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module
