"""The photographs of a plain folder as data, without records or labels."""

import os

from absl import logging

from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf
from deeplab.core.images import preprocess_utils
from deeplab.datasets import image_files, tfexample

_MAX_LISTED = 8


class Photographs:
  """The photographs of a folder, in the order of their names, upright as a viewer shows them.

  Attributes:
    num_images: number of files.
    flags: the flag that names the folder, for messages.
    unreadable: paths that the last reading left out, each after a warning.
  """

  def __init__(self, folder):
    """Lists the folder.

    Args:
      folder: path; folders in it are not looked into.

    Raises:
      ValueError: there is no such folder, or no photograph in it.
    """
    by_stem = image_files.list_folder(folder, image_files.PICTURE_EXTENSIONS)
    self._folder = folder
    self._paths = sorted(path for paths in by_stem.values() for path in paths)
    if not self._paths:
      raise InputError(f'{folder} holds no photographs: no file ends in {", ".join(image_files.IMAGE_EXTENSIONS)}.')
    self._shared_stems = {stem for stem, paths in by_stem.items() if len(paths) > 1}
    self.num_images = len(self._paths)
    self.flags = f'--image_dir={folder}'
    self.unreadable = []
    self._told = set()

  def dataset(self):
    """tf.data.Dataset of (file name, encoded image, ''), string scalars; it needs an initialisable iterator."""
    return tf.data.Dataset.from_generator(self._read_all, output_types=(tf.string,) * 3, output_shapes=((),) * 3)

  def _read_all(self):
    self.unreadable = []
    for path in self._paths:
      try:
        image = image_files.read_image(path)
      except InputError as error:
        self._warn(f'Left out: {error}')
        self.unreadable.append(path)
        continue
      for warning in image.warnings:
        self._warn(warning)
      yield os.fsencode(os.path.basename(path)), image.data, b''

  def _warn(self, message):
    """Logs a warning, but not again when the folder is read again."""
    if message not in self._told:
      self._told.add(message)
      logging.warning('%s', message)

  def largest_size(self, min_resize_value=None, max_resize_value=None, resize_factor=None, keep_aspect_ratio=True):
    """Size into which every photograph fits.

    Args:
      min_resize_value, max_resize_value, resize_factor, keep_aspect_ratio: resizing, as for data_generator.Dataset.

    Returns:
      [height, width], the largest of each after resizing.
    """
    @tf.autograph.experimental.do_not_convert
    def size(unused_name, encoded, unused_label):
      height, width, _ = tf.unstack(tf.shape(tfexample.decode_image(encoded)))
      if min_resize_value or max_resize_value:
        height, width = preprocess_utils.resized_size(height, width, min_resize_value, max_resize_value, resize_factor,
                                                      keep_aspect_ratio)
      return tf.stack([height, width])

    with tf.Graph().as_default(), tf.Session() as session:
      return session.run(self.dataset().map(size).reduce(tf.zeros([2], tf.int32), tf.maximum)).tolist()

  def result_names(self, unused_index, file_name):
    """Names for the pictures and the raw prediction: the file's without extension, unless two files share it."""
    stem = os.path.splitext(file_name)[0]
    name = file_name if stem in self._shared_stems else stem
    return name, name

  def refuse_unreadable(self):
    """Raises ValueError if the last reading left out photographs; call it when the others are done."""
    names = [os.path.basename(path) for path in self.unreadable]
    if names:
      further = f' and {len(names) - _MAX_LISTED} more' if len(names) > _MAX_LISTED else ''
      raise InputError(f'{len(names)} of the {self.num_images} photographs in {self._folder} could not be read and were left '
                       f'out: {", ".join(names[:_MAX_LISTED])}{further}.')
