"""ONNX models as graphs (extra ``onnx``): :func:`read`.

::

    reading      files and bytes as messages; what is too large or damaged
    model        messages as graphs: order, inner graphs, functions
    building     graphs while they are made; what rewriting rules see of them
    attributes, tensors, external
                 attributes and tensors as values; data in files beside the model
    versions     the operators of older versions in terms of the newest
    microsoft    operators of ONNX Runtime's own, as its optimisers and quantisers leave them
"""

from relayout.importers.onnx.reading import read

__all__ = ["read"]
