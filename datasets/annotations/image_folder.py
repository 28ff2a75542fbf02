"""Where the images of an export lie."""

import functools
import os

from deeplab.core.base.errors import InputError


class ImageFolder:
  """Files of a folder and of those in it that can be images.

  Attributes:
    path: of the folder.
  """

  def __init__(self, path, extensions):
    """Args:
      path: of the folder.
      extensions: of images, small letters without dot.

    Raises:
      InputError: there is no such folder.
    """
    if not os.path.isdir(path):
      raise InputError(f'{path}: there is no such folder of images. Give it as --image_folder.')
    self.path = path
    self._extensions = extensions

  @functools.cached_property
  def files(self):
    """Paths of all images relative to the folder, with slashes, sorted; hidden ones left out."""
    found = []
    for folder, folders, names in os.walk(self.path):
      folders[:] = sorted(name for name in folders if not name.startswith('.'))
      relative = os.path.relpath(folder, self.path)
      found += [os.path.normpath(os.path.join(relative, name)).replace(os.sep, '/') for name in names
                if self.is_image(name) and not name.startswith('.')]
    return sorted(found)

  def is_image(self, file_name):
    return os.path.splitext(file_name)[1][1:].lower() in self._extensions

  @functools.cached_property
  def _by_stem(self):
    return _group(self.files, lambda path: os.path.splitext(path)[0])

  @functools.cached_property
  def _by_file_name(self):
    return _group(self.files, os.path.basename)

  def find_file(self, file_name):
    """Path of an image that a tool names with its extension.

    Tools put folders before the name that are not there: then the only image of that name counts.

    Args:
      file_name: relative to the folder, with either kind of slash.

    Returns:
      Path; where there is no such image, the one where it should lie.
    """
    file_name = file_name.replace('\\', '/')
    direct = os.path.join(self.path, file_name)
    if os.path.isfile(direct):
      return direct
    alike = self._by_file_name.get(os.path.basename(file_name), [])
    return os.path.join(self.path, alike[0]) if len(alike) == 1 else direct

  def find_stem(self, name):
    """Paths of the images `name` (relative, without extension); or one that is missing.

    Returns:
      List of at least one path.
    """
    found = self._by_stem.get(name.replace('\\', '/'))
    return [os.path.join(self.path, path) for path in found or [f'{name}.*']]


def _group(paths, key):
  groups = {}
  for path in paths:
    groups.setdefault(key(path), []).append(path)
  return groups
