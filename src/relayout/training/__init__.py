"""Training: a network, a loss and an optimiser as one sequence, which is run step by step.

>>> import numpy as np
>>> from relayout.graph import Graph, Node, Value
>>> from relayout.training import SGD, Trainer
>>> x = Value("x", ("batch", 2), np.dtype("f4"))
>>> line = Graph((x,), ("y",), (Node("MatMul", ("x", "w"), ("y",)),), {"w": np.zeros((2, 1), np.float32)})
>>> trainer = Trainer(line, "mean_squared_error", SGD(0.1), batch=4)
>>> points = np.float32([[0, 1], [1, 0], [1, 1], [2, 1]])
>>> targets = points @ np.float32([[3], [-1]])
>>> losses = [trainer.step(points, targets) for _ in range(100)]
>>> bool(losses[-1] < 1e-4 < losses[0])
True
>>> trainer["w"].round(1)
array([[ 3.],
       [-1.]], dtype=float32)

==============  ================================================================
``losses``      losses behind a network's result
``optimizers``  SGD, Adam, AdamW
``schedules``   learning rates by the number of the step
``steps``       the graphs that a trainer runs
``trainer``     a training run
``kept``        its states in a file
==============  ================================================================
"""

from __future__ import annotations

from relayout.training.losses import LOSSES
from relayout.training.optimizers import SGD, Adam, AdamW, Optimizer
from relayout.training.schedules import Cosine, Stepwise
from relayout.training.trainer import Trainer

__all__ = ["LOSSES", "SGD", "Adam", "AdamW", "Cosine", "Optimizer", "Stepwise", "Trainer"]
