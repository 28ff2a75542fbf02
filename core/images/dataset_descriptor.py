"""What there is to know about a data set: its splits, and what the values of its labels mean."""

from typing import NamedTuple

from deeplab.core.base import stored_format
from deeplab.core.images import colormap


class DatasetDescriptor(NamedTuple):
  """A data set.

  Attributes:
    name: as in --dataset.
    splits_to_sizes: dict, name of a split -> number of its images.
    num_classes: number of classes, the ignored value not counted unless it lies among them.
    ignore_label: value of pixels that count neither in the loss nor in a metric, 0..255.
    class_names: one name per class.
    colors: one RGB triple (0..255) per class.
    train_id_to_eval_id: one number per class, what the benchmark's server expects in place of a class; None: the class itself.
  """
  name: str
  splits_to_sizes: dict[str, int]
  num_classes: int
  ignore_label: int
  class_names: list[str]
  colors: list[list[int]]
  train_id_to_eval_id: list[int] | None = None


# Fields that a stored description got after format 1; `describe` fills them in where they are left out.
ADDED_FIELDS: tuple[stored_format.Added, ...] = ()


def describe(name, num_classes, ignore_label=255, splits_to_sizes=None, class_names=None, colors=None, train_id_to_eval_id=None):
  """DatasetDescriptor with what may be left out filled in: numbered names, the colours of PASCAL VOC."""
  return DatasetDescriptor(
      name=name, splits_to_sizes=dict(splits_to_sizes or {}), num_classes=num_classes, ignore_label=ignore_label,
      class_names=list(class_names or [f'class_{index}' for index in range(num_classes)]),
      colors=[list(color) for color in colors or colormap.create_label_colormap('pascal')[:num_classes].tolist()],
      train_id_to_eval_id=train_id_to_eval_id)
