"""The searched cells as rows: PNASNet-5 (arXiv:1712.00559) and the cell found for Auto-DeepLab (arXiv:1901.02985)."""

import functools

from deeplab.core.networks.nas import nas_cell
from deeplab.core.networks.nas.nas_cell import Combination, identity

_SEPARABLE_3, _SEPARABLE_5, _SEPARABLE_7 = (functools.partial(nas_cell.separable, kernel_size=size) for size in (3, 5, 7))
_ATROUS_3, _ATROUS_5 = (functools.partial(nas_cell.atrous, kernel_size=size) for size in (3, 5))
_MAX_POOL_3 = functools.partial(nas_cell.max_pool, kernel_size=3)

PNASNET = (
    Combination(_SEPARABLE_5, 1, _MAX_POOL_3, 1),
    Combination(_SEPARABLE_7, 0, _MAX_POOL_3, 0),
    Combination(_SEPARABLE_5, 0, _SEPARABLE_3, 0),
    Combination(_SEPARABLE_3, 4, _MAX_POOL_3, 0),
    Combination(_SEPARABLE_3, 1, identity, 0),
)

HNASNET = (
    Combination(_ATROUS_5, 1, _SEPARABLE_3, 0),
    Combination(_SEPARABLE_3, 1, _ATROUS_3, 0),
    Combination(_SEPARABLE_3, 3, _SEPARABLE_3, 1),
    Combination(_SEPARABLE_5, 4, _SEPARABLE_5, 2),
    Combination(_SEPARABLE_5, 3, _ATROUS_5, 5),
)
