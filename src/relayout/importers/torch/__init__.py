"""Networks from PyTorch: programs of ``torch.export`` as graphs.

::

    program = torch.export.export(model.eval(), (x,))
    graph = load(program)                or load("model.pt2")

How a program becomes a graph
=============================

``torch.export`` writes down the calls of ATen's operators that a model makes. PyTorch can take these apart
into some 180 operators, "core ATen", and there an LSTM is over a thousand nodes. So a program is taken apart
only as far as needed (:mod:`.program`): what the table has a translation for stays whole.

::

    .archive       .pt2 files: what one may contain, checked before PyTorch reads it
    .program       the program: taken apart, its inputs, weights and outputs
    .translation   node after node: arguments as values, results by their names in the program
    .arrays        weights as arrays
    .call          what a translation is given: the node, and means to write nodes of the graph
    .operators     the translations, by family: one entry of the table for each operator of ATen

The nodes that come out have the names and meanings of ONNX's newest versions
(:mod:`relayout.graph.operators`). Weights keep the names of the state dict and share PyTorch's memory, read
only. What a node needs in another order, such as the transposed weight of a linear layer, is computed by
nodes, which passes fold: so weights can be learned as they are. Those that the model learns are the graph's
:attr:`~relayout.graph.Graph.parameters`; buffers are not. Inputs and outputs come in the order of the
flattened arguments and results.
"""

from relayout.importers.torch.program import load

__all__ = ["load"]
