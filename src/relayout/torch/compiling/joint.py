"""Training: the joint graph of forward and backward, before it is cut in two.

AOTAutograd traces both passes into one graph, and cuts it where gradients begin: the forward graph returns
what the model returns and, behind that, all that the backward graph reads of it (*saved* values). Here that
becomes less before the cut::

    positions of max pooling    the backward pass finds them again in the data, which is kept anyway
    attention's result, sums    the backward pass computes the weights again (:mod:`.recomputed`)
    views                       made anew from what they are views of
    detach                      what it reads

What is kept of images has the strides of ``channels_last``, whatever those of eager PyTorch are. Nobody but
the backward graph reads it, and kernels read and write channels that are neighbours.

Two facts are put right. Statistics of batches of bfloat16 are float32 in PyTorch's kernels, not what its rule
says. And where running statistics normalise, those of the batch are empty tensors that nobody reads.

The operators of the two graphs are what autograd calls: ``convolution_backward`` and its like stay whole
(:mod:`relayout.importers.torch.operators.gradients`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch._functorch.partitioners import default_partition

from relayout.torch.compiling.recomputed import recomputed
from relayout.torch.compiling.support import values_of

__all__ = ["keep_saved", "partitioned", "simplified"]


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
    forward, backward = default_partition(module, inputs, **given)
    _with_channels_last(forward.graph, backward.graph, given["num_fwd_outputs"])
    return forward, backward


IMAGES = frozenset({
    "aten.convolution.default", "aten._native_batch_norm_legit_functional.default",
    "aten._native_batch_norm_legit.no_stats", "aten.max_pool2d_with_indices.default",
    "aten.avg_pool2d.default",
})  # fmt: skip
"""Operators whose results are images."""


def _with_channels_last(forward: Any, backward: Any, returned: int) -> None:
    """Give images that are saved, and that nobody else sees, strides that suit both passes.

    Their dims tell images from what else may have four axes. A value with views stays as it is, since not all
    strides have every view.
    """
    output = forward.output_node().args[0]
    own = {one for one in output[:returned] if isinstance(one, torch.fx.Node)}
    dims = {
        tuple(one.shape)
        for node in forward.nodes
        if str(node.target) in IMAGES
        for one in values_of(node)[:1]
        if _known(one)
    }
    readers = {node.name: node for node in backward.nodes if node.op == "placeholder"}
    for node in output[returned:]:
        value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
        if not isinstance(value, torch.Tensor) or node.op == "placeholder" or node in own or _is_view(node):
            continue
        reader = readers.get(node.name)
        if reader is None or not _known(value) or tuple(value.shape) not in dims or value.dim() not in (4, 5):
            continue
        if any(_is_view(user) for user in (*node.users, *reader.users)):
            continue
        last = torch.channels_last if value.dim() == 4 else torch.channels_last_3d
        with value.fake_mode:
            node.meta["val"] = torch.empty_like(value, memory_format=last)
        reader.meta["val"] = node.meta["val"]


def _known(value: Any) -> bool:
    """Whether all sizes of a tensor are numbers."""
    return all(type(n) is int for n in value.shape)


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
            other = recomputed(node)
            _with_own_views(graph, node if other is None else _replaced(graph, node, *other))
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


def _replaced(graph: Any, node: Any, target: Any, arguments: Any) -> Any:
    """Another operator in the place of a node."""
    with graph.inserting_before(node):
        made = graph.call_function(target, arguments)
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
