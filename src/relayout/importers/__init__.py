"""Networks of other systems, read into graphs: one package for each system.

Each has a function ``load`` that returns a :class:`relayout.graph.graph.Graph` whose operators are those of
:mod:`relayout.graph.operators`. The system itself is imported when it is called.
"""
