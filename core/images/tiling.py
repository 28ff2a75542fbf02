"""Prediction of images larger than the network input, tile by tile."""

import itertools

import numpy as np

# Share of a tile that its neighbour covers too, at least.
_OVERLAP = 0.25


def windows(length, tile):
  """Tiles along one image side.

  Args:
    length: side of the image in pixels.
    tile: side of a tile in pixels.

  Returns:
    List of (start of the tile, begin, end): the pixels begin..end-1 are taken from that tile. They adjoin, and between two tiles
    the border lies in the middle of their overlap, as far as can be from the edges where context is missing.
  """
  if tile >= length:
    return [(0, 0, length)]
  overlap = int(tile * _OVERLAP)
  num_tiles = -(-(length - overlap) // (tile - overlap))
  starts = [round(index * (length - tile) / (num_tiles - 1)) for index in range(num_tiles)]
  borders = [0, *((start + tile + following) // 2 for start, following in itertools.pairwise(starts)), length]
  return [(start, begin, end) for start, (begin, end) in zip(starts, itertools.pairwise(borders), strict=True)]


def predict(predict_tile, images, tile_size):
  """Predicts images from overlapping tiles; in each place the tile counts whose middle is nearer.

  Args:
    predict_tile: function, float32 [batch, height, width, 3] of `tile_size` -> int [batch, height, width].
    images: float32 [batch, height, width, 3], no side smaller than that of a tile.
    tile_size: (height, width) in pixels.

  Returns:
    int64 [batch, height, width].
  """
  height, width = images.shape[1:3]
  predictions = np.empty(images.shape[:3], np.int64)
  for y, top, bottom in windows(height, tile_size[0]):
    for x, left, right in windows(width, tile_size[1]):
      tile = predict_tile(images[:, y:y + tile_size[0], x:x + tile_size[1]])
      predictions[:, top:bottom, left:right] = tile[:, top - y:bottom - y, left - x:right - x]
  return predictions
