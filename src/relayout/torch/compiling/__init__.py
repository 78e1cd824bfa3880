"""``torch.compile(model, backend="relayout")``: models of PyTorch with formats planned for the whole graph.

backend      what dynamo calls: from its graph to ATen's operators
tracing      that way in one pass, where no gradients are wanted
recording    the operators that it meets, written down
views        what is written through a view, and read of it afterwards
joint        training: forward and backward, before they are cut in two
calls        what PyTorch calls then: the program for the weights and sizes of a call
weights      weights that are packed once, and watched
sizes        graphs with open sizes, for those of a call
program      a graph of which parts are compiled, and the rest is PyTorch's
aliases      views that a graph returns of one value
support      which nodes may be taken
partition    which of them go together
part         one part, compiled
kept         parts that an earlier process has compiled
lending      weights that a part only moves, whatever their values
report       what was taken, what was left, and why
entry        ``relayout.torch.compile`` and ``relayout.torch.explain``
"""

from relayout.torch.compiling.backend import Backend, backend
from relayout.torch.compiling.entry import compile, explain
from relayout.torch.compiling.options import Options
from relayout.torch.compiling.report import GraphReport, Left, Report

__all__ = ["Backend", "GraphReport", "Left", "Options", "Report", "backend", "compile", "explain"]
