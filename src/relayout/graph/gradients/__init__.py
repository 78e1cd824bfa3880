"""Rules of differentiation: from the gradients of a node's outputs to those of its inputs, by operator.

A rule is given a :class:`~.reverse.Reverse` and returns a gradient for each input, None where none flows ::

    @gradient("Mul")
    def mul(r):
        x, y = r.inputs
        return r.summed(r("Mul", r.dy, y), x), r.summed(r("Mul", r.dy, x), y)

What it appends are nodes of the graph as all others: most are ONNX's operators, and a gradient that is one
primitive is an operator of its own (:mod:`relayout.graph.operators.gradients`).

==================  =========================================================
``reverse``         a node while it is differentiated; the table of rules
``elementwise``     arithmetic, functions, choices, casts
``activations``     activation functions
``shapes``          dims, axes and parts
``gathering``       elements by index
``products``        matrix products
``convolution``     convolutions, both ways
``attention``       attention, its weights computed once more
``pooling``         pooling
``normalizations``  over batches, layers, groups; softmax
``recurrent``       LSTM, GRU and RNN, through time
``reductions``      reductions
``resizing``        interpolation
``sampling``        samples between elements
``losses``          losses
==================  =========================================================
"""

from relayout.graph.gradients import (  # noqa: F401 (they fill the table)
    activations,
    attention,
    convolution,
    elementwise,
    gathering,
    losses,
    normalizations,
    pooling,
    products,
    recurrent,
    reductions,
    resizing,
    sampling,
    shapes,
)
from relayout.graph.gradients.reverse import RULES, Reverse, gradient

__all__ = ["RULES", "Reverse", "gradient"]
