"""Networks as graphs: operations and the values between them, formats unknown.

::

    importers  --->  Graph  --passes-->  Graph  --planner-->  formats of values  --->  Run

A :class:`~relayout.graph.graph.Graph` says what is computed. What its operators mean is in
:mod:`relayout.graph.operators`: a definition in NumPy for each, so that correctness never depends on a
kernel.
"""

from typing import TYPE_CHECKING

from relayout.forking import later as _later
from relayout.graph.graph import Graph, Node, Value

if TYPE_CHECKING:
    from relayout.graph import planner as planner

__all__ = ["Graph", "Node", "Value", "planner"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = _later(__name__, "planner")
