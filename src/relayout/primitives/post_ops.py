"""Post-ops, where those who make primitives look for them; :mod:`relayout.ops.post_ops` says what they mean.

>>> from relayout.primitives.post_ops import BinaryOp, Function, Sum
>>> print(Function("clip", 0, 6), Sum(0.5))
clip(0, 6) sum(0.5)
"""

from relayout.ops.functions import Function
from relayout.ops.post_ops import BinaryOp, PostOp, Sum

__all__ = ["BinaryOp", "Function", "PostOp", "Sum"]
