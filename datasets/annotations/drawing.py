"""Areas of annotations drawn into labels: pictures of mode 'L' whose pixels are classes.

Tools mean two things by the points of a polygon. COCO's are corners between pixels: a pixel belongs to the polygon if its centre
lies inside. labelme's are pixels, those of the outline belong to the area; it draws them with Pillow, and so does this.
"""

import functools
import math

import numpy as np
from PIL import Image, ImageDraw

from deeplab.datasets.annotations.annotation_set import Region


def _bounds(points):
  return (*points.min(axis=0).tolist(), *points.max(axis=0).tolist())


def polygons_of_corners(class_name, polygons):
  """Region of polygons whose points lie between pixels, as COCO's; holes are where a polygon crosses itself.

  Args:
    class_name: name.
    polygons: list of float [points, 2], (x, y) in pixels.
  """
  return Region(class_name, _bounds(np.concatenate(polygons)), functools.partial(_paint_corners, polygons))


def _paint_corners(polygons, label, value):
  for points in polygons:
    _paint_inside(points, label, value)


def _paint_inside(points, label, value):
  """Sets the pixels whose centres lie inside of a polygon: those with an odd number of its edges to the left."""
  left, top = (max(int(math.floor(side)), 0) for side in points.min(axis=0))
  right, bottom = (min(int(math.ceil(side)), length) for side, length in zip(points.max(axis=0), label.size, strict=True))
  if left >= right or top >= bottom:
    return
  start = points - (left + 0.5, top + 0.5)
  end = np.roll(start, -1, axis=0)
  low, high = (_whole(side(start[:, 1], end[:, 1]), bottom - top) for side in (np.minimum, np.maximum))
  # One crossing for each edge and each row of centres from its lower end up to, not including, its upper.
  counts = high - low
  edges = np.repeat(np.arange(len(points)), counts)
  rows = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + low[edges]
  (x, y), (slope_x, slope_y) = start[edges].T, (end - start)[edges].T
  columns = _whole(x + (rows - y) * slope_x / slope_y, right - left)
  width = right - left + 1
  crossings = np.bincount(rows * width + columns, minlength=(bottom - top) * width).reshape(bottom - top, width)
  inside = np.cumsum(crossings[:, :-1], axis=1) % 2 == 1
  label.paste(value, (left, top), Image.fromarray(inside.astype(np.uint8) * 255))


def _whole(positions, length):
  """The first whole number at or behind each position, within 0..length."""
  return np.clip(np.ceil(positions), 0, length).astype(np.int64)


def bitmap(class_name, bounds, read_pixels):
  """Region of single pixels.

  Args:
    class_name: name.
    bounds: (left, top, right, bottom), whole numbers; the first pixel lies at the left top.
    read_pixels: function without arguments that gives bool [height, width]; called when the region is drawn, so that few are
      held.
  """
  def paint(label, value):
    label.paste(value, bounds[:2], Image.fromarray(read_pixels().astype(np.uint8) * 255))

  return Region(class_name, bounds, paint)


def polygon_of_pixels(class_name, points):
  """Region of a polygon whose points are pixels; `points`: float [points, 2], (x, y)."""
  outline = [tuple(point) for point in points.tolist()]
  return Region(class_name, _bounds(points),
                lambda label, value: ImageDraw.Draw(label).polygon(outline, fill=value, outline=value))


def rectangle(class_name, points):
  """Region of a rectangle; `points`: float [2, 2], two opposite pixels (x, y)."""
  bounds = _bounds(points)
  return Region(class_name, bounds, lambda label, value: ImageDraw.Draw(label).rectangle(bounds, fill=value, outline=value))


def circle(class_name, points):
  """Region of a circle; `points`: float [2, 2], its centre and a point on it (x, y)."""
  (x, y), (edge_x, edge_y) = points.tolist()
  radius = math.hypot(edge_x - x, edge_y - y)
  bounds = x - radius, y - radius, x + radius, y + radius
  return Region(class_name, bounds, lambda label, value: ImageDraw.Draw(label).ellipse(bounds, fill=value, outline=value))
