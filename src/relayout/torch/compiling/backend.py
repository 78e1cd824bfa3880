"""The back end: what dynamo calls with each graph that it has traced.

``pip install`` enters it under the name ``relayout`` among PyTorch's back ends, so nothing need be imported.
Dynamo's graph becomes one of ATen's operators, without writes in place. What has a translation here stays
whole; other operators are taken apart as far as PyTorch can. Most graphs of inference need one pass for that
(:mod:`.tracing`). For all others there is AOTAutograd, which sees to views, to inputs that are written, and
to open sizes.

Where gradients are enabled and wanted of anything that goes in, it traces the backward pass, too, and there
are two graphs instead of one (:mod:`.joint`). Their weights are inputs like others, since they change in each
step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd

from relayout.forking import lock
from relayout.runtime.collection import paused
from relayout.torch.compiling.calls import Calls
from relayout.torch.compiling.decompositions import rules
from relayout.torch.compiling.options import Options
from relayout.torch.compiling.report import GraphReport, Report
from relayout.torch.compiling.tracing import traced

__all__ = ["Backend", "backend"]

log = logging.getLogger(__name__)


class Backend:
    """A back end for ``torch.compile`` that tells what it did.

    Parameters
    ----------
    options : Options, optional

    Attributes
    ----------
    report : Report
        All graphs until now.
    """

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        self.report = Report()

    __name__ = "relayout"

    def __call__(self, module: Any, inputs: Sequence[Any], **given: Any) -> Callable[..., Any]:
        """What runs in the place of dynamo's graph."""
        options = self.options.changed({**(given.pop("options", None) or {})})
        learns = torch.is_grad_enabled() and any(_learns(one) for one in (*inputs, *module.parameters()))
        if learns and not options.training:
            self._note("gradients are wanted, and training=False")
            return module.forward  # type: ignore[no-any-return]
        if not learns:
            with paused():
                found = traced(module, inputs)
            if found is not None:
                calls = Calls(found.module, found.weights, options, self.report)
                return lambda *arguments: calls(list(arguments))

        with lock():  # needed for training alone
            from relayout.torch.compiling.joint import keep_saved, partitioned

        # of a forward pass that gradients are computed of
        real = replace(options, precision=None, algorithm="direct")

        def compiled(graph: Any, _: Sequence[Any]) -> Any:
            return Calls(graph, _static(graph), options, self.report)

        def forward(graph: Any, _: Sequence[Any]) -> Any:
            keep_saved()
            return Calls(graph, (), real, self.report, "forward")

        def backward(graph: Any, _: Sequence[Any]) -> Any:
            return Calls(graph, (), real, self.report, "backward")

        made = aot_autograd(
            fw_compiler=forward,
            bw_compiler=backward,
            inference_compiler=compiled,
            partition_fn=partitioned,
            decompositions=rules(),
            keep_inference_input_mutations=True,
        )
        return made(module, inputs)  # type: ignore[no-any-return]

    def _note(self, why: str) -> None:
        self.report.graphs.append(GraphReport(note=why))
        log.info("left to PyTorch: %s", why)


def backend(module: Any, inputs: Sequence[Any], **given: Any) -> Callable[..., Any]:
    """The back end named ``relayout``, which ``torch.compile`` finds by its entry point.

    Parameters
    ----------
    module : torch.fx.GraphModule
        Dynamo's graph.
    inputs : sequence of torch.Tensor
        What it is called with.
    **given
        ``options``: see :class:`~.options.Options`.
    """
    return Backend()(module, inputs, **given)


def _learns(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _static(graph: Any) -> list[int]:
    """The places of parameters and buffers, those apart that the graph writes to."""
    context = torch._guards.TracingContext.try_get()
    known = getattr(getattr(context, "fw_metadata", None), "static_input_indices", None) or ()
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    written = {
        node.args[0]
        for node in graph.graph.nodes
        if node.op == "call_function" and getattr(getattr(node.target, "_schema", None), "is_mutable", False)
    }
    return [
        k
        for k in known
        if isinstance(placeholders[k].meta.get("val"), torch.Tensor) and placeholders[k] not in written
    ]
