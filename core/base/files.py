"""Files that other processes may read at any time, and the folders that programs write to."""

import ctypes
import json
import os

from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf

# Of renameat2, from linux/fcntl.h and linux/fs.h.
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
# First letters of a folder that is being made ready, and of one that is set aside. Not the last ones: ram:// takes a path for a
# folder where others begin with it.
_NEW, _OLD = 'new.', 'old.'
# What a file system says that has no such operation, or forbids it, as some do that show an object store as folders.
_CANNOT_RENAME = (tf.errors.UnimplementedError, tf.errors.PermissionDeniedError)


def replace_file(path, content):
  """Writes a file; who opens it meanwhile finds the earlier content or the new one, complete, where the file system can rename.

  Args:
    path: the file; its folder exists.
    content: str or bytes.
  """
  _write(path + '.tmp', content)
  try:
    tf.io.gfile.rename(path + '.tmp', path, overwrite=True)
  except _CANNOT_RENAME:
    _write(path, content)
    tf.io.gfile.remove(path + '.tmp')


def _write(path, content):
  with tf.io.gfile.GFile(path, 'wb') as new_file:
    new_file.write(content)


def read_json(path):
  """What a JSON file holds, or None where there is no such file.

  Raises:
    ValueError: it is no JSON, or holds null.
  """
  if not tf.io.gfile.exists(path):
    return None
  with tf.io.gfile.GFile(path, 'rb') as json_file:
    content = json.loads(json_file.read())
  if content is None:
    raise ValueError('it holds null')
  return content


def make_folder(path, flag_name):
  """Makes a folder unless it is there, and tries whether files can be written to it.

  Args:
    path: the folder.
    flag_name: name of the flag that holds it, or a path in it, for messages.

  Raises:
    InputError: it cannot be made, or not be written to.
  """
  probe = os.path.join(path, '.write_test')
  try:
    tf.io.gfile.makedirs(path)
    replace_file(probe, '')
    tf.io.gfile.remove(probe)
  except tf.errors.OpError as error:
    raise InputError(f'--{flag_name}: {path} is no folder that can be written to ({error.message}). Give another one.') from error


def prepare_folder(path):
  """Makes an empty folder beside `path`, for replace_folder to put in its place; returns its path."""
  new = _beside(path, _NEW)
  remove_folder(new)
  tf.io.gfile.makedirs(new)
  return new


def replace_folder(path):
  """Puts the folder of prepare_folder in the place of `path`.

  Linux exchanges the two in one step. Elsewhere the earlier one is set aside for a moment; recover_folder brings it back where
  the process dies then.
  """
  new, old = _beside(path, _NEW), _beside(path, _OLD)
  if _is_folder(path) and _exchange(new, path):
    remove_folder(new)
    return
  if _is_folder(path):
    remove_folder(old)
    _move_folder(path, old)
  _move_folder(new, path)
  remove_folder(old)


def recover_folder(path):
  """Repairs what a process has left that died within the functions above."""
  if not _is_folder(path) and _is_folder(_beside(path, _OLD)):
    _move_folder(_beside(path, _OLD), path)
  remove_folder(_beside(path, _NEW))
  remove_folder(_beside(path, _OLD))


def _beside(path, mark):
  parent, name = os.path.split(path.rstrip('/'))
  return os.path.join(parent, mark + name)


def _is_folder(path):
  """Whether there is such a folder; ram:// says so of all paths that one begins with, `model` where there is model.new."""
  parent, name = os.path.split(path.rstrip('/'))
  return tf.io.gfile.isdir(path) and name in (found.rstrip('/') for found in tf.io.gfile.listdir(parent or '.'))


def _move_folder(source, target):
  """Renames a folder; on another file system than a disk, or one that cannot, moves what is in it."""
  # ram:// loses the files, and object stores copy each of them as well.
  if '://' not in source:
    try:
      tf.io.gfile.rename(source, target)
      return
    except _CANNOT_RENAME:
      pass
  for folder, _, names in tf.io.gfile.walk(source):
    new_folder = os.path.join(target, os.path.relpath(folder, source)) if folder.rstrip('/') != source else target
    tf.io.gfile.makedirs(new_folder)
    for name in names:
      tf.io.gfile.copy(os.path.join(folder, name), os.path.join(new_folder, name), overwrite=True)
  remove_folder(source)


def remove_folder(path):
  """Removes a folder, if it is there, and all that is in it."""
  if _is_folder(path):
    tf.io.gfile.rmtree(path)


def _exchange(one, other):
  """Exchanges two folders in one step; False where the system or the file system cannot."""
  try:
    return not ctypes.CDLL(None).renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
  except (AttributeError, OSError):
    return False
