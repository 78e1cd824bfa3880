"""From dynamo's graph to ATen's in one pass, where no gradients are wanted.

AOTAutograd runs a graph twice for that, each time through several layers of dispatch: once to find out which
results share memory and which inputs are written, once to write down operators without writes in place. That
takes about as long as dynamo itself. Most graphs of inference need none of it. Here dynamo's graph runs once,
on fake tensors, and the operators that these are given are written down (:mod:`.recording`)::

    dynamo's node                    operators that are dispatched        nodes of the graph that is made
    y = F.batch_norm(x, ...)         batch_norm, native_batch_norm, ...   _native_batch_norm_legit_no_training
    y += z                           add_(y, z)                           add(y, z), which is y from then on
    mask = torch.zeros(7, 7)         zeros                                none: it is computed, as a constant
    mask[:3] = 1                     slice, fill_                         none

All else is for AOTAutograd to see to, and :func:`traced` answers None: open sizes, inputs that are written or
returned, random numbers, a tensor that is read after its memory was written through another one, operators of
higher order, autocast, subclasses of tensors. So does whatever goes wrong here.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.node import map_arg

from relayout.torch.compiling.recording import Recorder, Untraced

__all__ = ["Traced", "traced"]

log = logging.getLogger(__name__)


class Traced(NamedTuple):
    """A graph of ATen's operators.

    Attributes
    ----------
    module : torch.fx.GraphModule
        It takes what dynamo's graph takes.
    weights : tuple of int
        The places of arguments that are parameters or buffers.
    """

    module: Any
    weights: tuple[int, ...]


def traced(module: Any, inputs: Sequence[Any]) -> Traced | None:
    """ATen's graph of a graph of dynamo; None where AOTAutograd has to make it.

    Parameters
    ----------
    module : torch.fx.GraphModule
        Dynamo's graph, of which no gradients are wanted.
    inputs : sequence
        What it is called with.
    """
    context = torch._guards.TracingContext.try_get()
    mode = getattr(context, "fake_mode", None) or FakeTensorMode()
    pending = getattr(mode.shape_env, "pending_fresh_unbacked_symbols", [])
    known = len(pending)
    try:
        return _traced(module, inputs, mode)
    except Exception as error:  # whatever it is: there is another way, which knows more
        log.debug("traced by AOTAutograd: %s: %s", type(error).__name__, error)
        del pending[known:]  # sizes that only data decide; AOTAutograd would look for them in its own graph
        return None


def _traced(module: Any, inputs: Sequence[Any], mode: FakeTensorMode) -> Traced:
    if torch._C._is_any_autocast_enabled():
        raise Untraced("autocast")
    nodes = list(module.graph.nodes)
    placeholders = [node for node in nodes if node.op == "placeholder"]
    if len(placeholders) != len(inputs):
        raise Untraced("parameters of the graph itself")
    recorder = Recorder(mode)
    known: dict[Any, Any] = {
        node: recorder.input(node, one) for node, one in zip(placeholders, inputs, strict=True)
    }
    with torch._C._AutoDispatchBelowAutograd(), recorder:  # operators come as in inference_mode
        for node in nodes:
            if node.op in ("call_function", "call_method"):
                known[node] = _called(node, known, recorder)
            elif node.op not in ("placeholder", "output"):
                raise Untraced(f"a node {node.op}")
    (output,) = [node for node in nodes if node.op == "output"]
    made = recorder.module(map_arg(output.args[0], known.__getitem__))
    return Traced(made, tuple(k for k, node in enumerate(placeholders) if _is_weight(node)))


def _is_weight(node: Any) -> bool:
    """Whether dynamo says that an argument is a parameter or a buffer."""
    return bool(node.meta.get("tensor_dict", {}).get("_dynamo_static_input_type"))


def _called(node: Any, known: Mapping[Any, Any], recorder: Recorder) -> Any:
    """What a node of dynamo's returns."""
    said = node.meta.get("example_value")
    if node.target is torch._C._log_api_usage_once:  # a note for those who count what is used
        return None
    if said is None and node.target is not operator.setitem:
        raise Untraced(f"{node.target} is called for what it does: autocast, or the mode of gradients")
    if torch.is_grad_enabled():  # otherwise views of parameters only look as if they had some
        for one in said if isinstance(said, (list, tuple)) else (said,):
            if isinstance(one, torch.Tensor) and one.requires_grad:
                raise Untraced("gradients")
    recorder.stack = node.meta.get("nn_module_stack")
    args, kwargs = map_arg((node.args, node.kwargs), known.__getitem__)
    if node.op == "call_function":
        return node.target(*args, **kwargs)
    return getattr(args[0], node.target)(*args[1:], **kwargs)
