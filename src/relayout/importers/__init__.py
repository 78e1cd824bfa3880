"""Networks of other systems as graphs, a package for each system: ``onnx`` and ``torch``.

An importer knows its system's files, versions and names, and nothing of formats. What it makes is a
:class:`~relayout.graph.graph.Graph` of operators in their newest meaning.
"""
