"""Whether the labels of a data set show its images upright, or as the camera stored them.

A camera that was held on its side stores the pixels as they fell and notes by a number (EXIF) how to turn them. Labelling tools
show the upright image, so labels are mostly upright; some programs lose the number, and then labels are as the stored pixels.
Where the sizes of both differ, a label tells which it is.
"""

from deeplab.core.base.errors import InputError, listed

AUTO, APPLY, IGNORE = CHOICES = ('auto', 'apply', 'ignore')


def of_label(header, label_size):
  """What the label of one image tells.

  Args:
    header: image_files.ImageHeader.
    label_size: (height, width), or None without a label.

  Returns:
    APPLY: it has the size of the upright image and not that of the stored one. IGNORE: the other way round. None: the sizes
    cannot tell.
  """
  sizes = {APPLY: header.upright_size, IGNORE: header.stored_size}
  fitting = [choice for choice, size in sizes.items() if size == label_size]
  return fitting[0] if len(fitting) == 1 else None


def of_data_set(images):
  """What the labels of all images tell together.

  Args:
    images: dict, APPLY and IGNORE -> paths of the images whose label tells so.

  Returns:
    APPLY or IGNORE, or None where no label tells.

  Raises:
    InputError: some tell one thing and some the other.
  """
  told = [choice for choice in (APPLY, IGNORE) if images[choice]]
  if len(told) > 1:
    raise InputError(
        'Images turned by EXIF orientation have labels of both kinds, so that some pairs do not fit together. Labels as upright '
        f'images: {listed(sorted(images[APPLY]))}. Labels as the stored pixels: {listed(sorted(images[IGNORE]))}. Make them '
        f'alike; or give --exif_orientation={APPLY} or --exif_orientation={IGNORE} with --skip_broken, which leaves out the '
        'other kind.')
  return told[0] if told else None
