"""Training: the joint graph of forward and backward, before it is cut in two.

AOTAutograd traces both passes into one graph, and cuts it where gradients begin: the forward graph returns
what the model returns and, behind that, all that the backward graph reads of it (*saved* values). Here that
becomes less before the cut::

    positions of max pooling    the backward pass finds them again in the data, which is kept anyway
    views                       made anew from what they are views of
    detach                      what it reads

Two facts are put right. Statistics of batches of bfloat16 are float32 in PyTorch's kernels, not what its rule
says. And where running statistics normalise, those of the batch are empty tensors that nobody reads.

The operators of the two graphs are what autograd calls: ``convolution_backward`` and its like stay whole
(:mod:`relayout.importers.torch.operators.gradients`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch._functorch.partitioners import default_partition

from relayout.torch.operators import LIBRARY

__all__ = ["keep_saved", "partitioned", "simplified"]

LIBRARY.define(
    "max_pool2d_backward(Tensor dy, Tensor x, int[2] kernel_size, int[2] stride, int[2] padding, "
    "int[2] dilation, bool ceil_mode) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _max_pool_backward(dy: Any, x: Any, *window: Any) -> Any:
    """With the positions found anew."""
    _, positions = torch.ops.aten.max_pool2d_with_indices.default(x, *window)
    return torch.ops.aten.max_pool2d_with_indices_backward.default(dy, x, *window, positions)


LIBRARY.impl("max_pool2d_backward", _max_pool_backward, "CompositeExplicitAutograd")


def partitioned(module: Any, inputs: Any, **given: Any) -> Any:
    """The forward and the backward graph of a joint graph.

    Parameters
    ----------
    module : torch.fx.GraphModule
        The joint graph; it is changed.
    inputs
        What it is called with.
    **given
        As AOTAutograd hands it to those that cut.
    """
    simplified(module.graph)
    module.recompile()
    return default_partition(module, inputs, **given)


def keep_saved() -> None:
    """Say that saved values stay as they are; else AOTAutograd would refuse ``retain_graph=True``."""
    known: Any = getattr(torch._guards.TracingContext.try_get(), "fw_metadata", None)
    if getattr(known, "bw_donated_idxs", None):
        known.bw_donated_idxs = []


def simplified(graph: Any) -> None:
    """Let a joint graph keep less from the forward to the backward pass."""
    results = set(graph.output_node().all_input_nodes)
    for node in list(graph.nodes):
        if node.target is torch.ops.aten.detach.default and node not in results:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    for node in list(graph.nodes):
        if node.target is torch.ops.aten._native_batch_norm_legit_functional.default:
            _with_wide_statistics(node)
        if node.target is torch.ops.aten.native_batch_norm_backward.default and not node.args[7]:
            node.args = (*node.args[:5], None, None, *node.args[7:])
        if _is_backward(node):
            if node.target is torch.ops.aten.max_pool2d_with_indices_backward.default:
                node = _without_positions(graph, node)
            _with_own_views(graph, node)
    graph.eliminate_dead_code()


def _with_wide_statistics(node: Any) -> None:
    """Let the statistics of a batch have the data type of the running ones, as they have in PyTorch."""
    dtype = node.args[3].meta["val"].dtype
    made, *statistics = node.meta["val"]
    node.meta["val"] = (made, *(one.to(dtype) for one in statistics))
    for user in node.users:
        user.meta["val"] = node.meta["val"][user.args[1]]


def _is_backward(node: Any) -> bool:
    return bool(node.op == "call_function" and node.meta.get("partitioner_tag") == "is_backward")


def _without_positions(graph: Any, node: Any) -> Any:
    with graph.inserting_before(node):
        made = graph.call_function(torch.ops.relayout.max_pool2d_backward.default, node.args[:-1])
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    graph.erase_node(node)
    return made


def _with_own_views(graph: Any, node: Any) -> None:
    """Let a node of the backward pass read views that are made there."""
    for one in list(node.all_input_nodes):
        if _is_view(one) and not _is_backward(one):
            with graph.inserting_before(node):
                made = graph.node_copy(one)
            made.meta["partitioner_tag"] = "is_backward"
            node.replace_input_with(one, made)
            _with_own_views(graph, made)


def _is_view(node: Any) -> bool:
    return node.op == "call_function" and bool(getattr(node.target, "is_view", False))
