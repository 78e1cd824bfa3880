"""The translations of ATen's operators, by family."""

from relayout.importers.torch.operators import (
    attention,
    creation,
    elementwise,
    gradients,
    indexing,
    normalization,
    pooling,
    products,
    recurrent,
    reductions,
    resampling,
    shapes,
    sizes,
    statistics,
)
from relayout.importers.torch.operators.table import IGNORED, TABLE

__all__ = [
    "IGNORED", "TABLE", "attention", "creation", "elementwise", "gradients", "indexing", "normalization",
    "pooling", "products", "recurrent", "reductions", "resampling", "shapes", "sizes", "statistics",
]  # fmt: skip
