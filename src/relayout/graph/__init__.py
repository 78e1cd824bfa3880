"""Networks as graphs: operations and the values between them, formats unknown.

::

    importers  --->  Graph  --passes-->  Graph  --planner-->  formats of values  --->  Run

A :class:`~relayout.graph.graph.Graph` says what is computed. What its operators mean is in
:mod:`relayout.graph.operators`: a definition in NumPy for each, so that correctness never depends on a
kernel.
"""
