"""Files that other processes may read at any time, and the folders that programs write to."""

import os

from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf


def replace_file(path, content):
  """Writes a file; who opens it meanwhile finds the earlier content or the new one, complete.

  Args:
    path: the file; its folder exists.
    content: str or bytes.
  """
  with tf.io.gfile.GFile(path + '.tmp', 'wb') as new_file:
    new_file.write(content)
  tf.io.gfile.rename(path + '.tmp', path, overwrite=True)


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
