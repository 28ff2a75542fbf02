"""Files that other processes may read at any time."""

from deeplab.core.tf_compat import tf


def replace_file(path, content):
  """Writes a file; who opens it meanwhile finds the earlier content or the new one, complete.

  Args:
    path: the file; its folder exists.
    content: str or bytes.
  """
  with tf.io.gfile.GFile(path + '.tmp', 'wb') as new_file:
    new_file.write(content)
  tf.io.gfile.rename(path + '.tmp', path, overwrite=True)
