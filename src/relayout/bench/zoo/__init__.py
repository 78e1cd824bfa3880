"""Networks of public packages with random weights: what whole networks are measured and tested on.

A name is a family and a model: ``tv/resnet50`` is torchvision's, ``timm/...`` timm's, ``hf/...`` a small
model of transformers, ``extra/...`` a network of a few lines that is built here. Nothing is downloaded:
weights are random, with the statistics of normalisations and the scales of layers moved away from 0 and 1, so
that an operation that is left out is seen in the result.

:data:`CENSUS` names the networks whose operators were counted before there was an importer,
:data:`MEASURED` those of the table of speeds, :data:`TRAINED` those that are trained for a step.
:func:`build` makes one with inputs, :func:`exported` writes it as an ONNX file and keeps that.
"""

from relayout.bench.zoo.building import Network, build, missing, missing_writers, tensors
from relayout.bench.zoo.exporting import WRITERS, Exported, exported, folder, stem
from relayout.bench.zoo.names import CENSUS, MEASURED, MORE, NARROW, TRAINED
from relayout.bench.zoo.quantising import quantised, stem_of_bytes

__all__ = [
    "CENSUS",
    "MEASURED",
    "MORE",
    "NARROW",
    "TRAINED",
    "WRITERS",
    "Exported",
    "Network",
    "build",
    "exported",
    "folder",
    "missing",
    "missing_writers",
    "quantised",
    "stem",
    "stem_of_bytes",
    "tensors",
]
