"""Contestants of a step of training: what :mod:`relayout.bench.contestant` makes of a task with a step.

All begin with the same parameters, take the same batch again and again, and do the same: forward, backward,
stochastic gradient descent with momentum. A call is a step; it gives the loss ahead of it, so the loss of the
first call shows that all compute the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from relayout.bench.contestant import Made

if TYPE_CHECKING:
    from relayout.networks.resnet import Architecture

__all__ = ["FORMATS", "MAKERS", "resnet"]

RATE, MOMENTUM = 0.01, 0.9
FORMATS = ("nhwc", "nChw16c")
"""One format for all images, besides those that the planner chooses."""


def ours(task: Mapping[str, Any], arrays: Sequence[Any], format: str | None = None) -> Made:
    """A trainer; what it tells is how many conversions the plan has left, and how many steps NumPy does."""
    from relayout import networks
    from relayout.training import SGD, Trainer

    graph = networks.graph(task["network"], size=arrays[0].shape[-1])
    made = Trainer(
        graph,
        "cross_entropy",
        SGD(RATE, momentum=MOMENTUM),
        batch=task["batch"],
        format=format,
        threads=task["threads"],
    )

    def told() -> dict[str, Any]:
        by_numpy = sum("definition" in one.implementation for one in made.layers())
        return {"conversions": len(made.plan.conversions), "defined": by_numpy}

    return lambda: [made.step(*arrays)], told, {}


def pytorch(
    task: Mapping[str, Any], arrays: Sequence[Any], channels_last: bool = False, compiled: bool = False
) -> Made:
    """PyTorch: functions of its own, autograd, its optimiser."""
    from relayout import networks

    torch = import_module("torch")
    torch.set_num_threads(task["threads"])
    graph = networks.graph(task["network"], size=arrays[0].shape[-1])
    known = {name: torch.tensor(data) for name, data in graph.constants.items() if data.ndim}
    x, labels = (torch.from_numpy(one) for one in arrays)
    if channels_last:
        (x, *moved) = (
            one.contiguous(memory_format=torch.channels_last) if one.ndim == 4 else one
            for one in (x, *known.values())
        )
        known = dict(zip(known, moved, strict=True))
    learned = [one.requires_grad_() for name, one in known.items() if "running" not in name]
    optimizer = torch.optim.SGD(learned, RATE, momentum=MOMENTUM)
    scores = partial(resnet, torch, networks.resnet.NETWORKS[task["network"]], known)
    model: Callable[..., Any] = torch.compile(scores) if compiled else scores

    def call() -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        return [loss.item()]

    return call, dict, {}


def resnet(torch: Any, architecture: Architecture, known: Mapping[str, Any], x: Any) -> Any:
    """The scores of a residual network in training form; parameters by the names of ``torchvision``."""
    functions = torch.nn.functional

    def normalized(x: Any, name: str) -> Any:
        mean, variance, weight, bias = (
            known[f"{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")
        )
        return functions.batch_norm(x, mean, variance, weight, bias, training=True)

    def convolved(x: Any, name: str, stride: int = 1, padding: int = 0, groups: int = 1) -> Any:
        return functions.conv2d(x, known[f"{name}.weight"], None, stride, padding, 1, groups)

    y = functions.relu(normalized(convolved(x, "conv1", 2, 3), "bn1"))
    y = functions.max_pool2d(y, 3, 2, 1)
    for stage, depth in enumerate(architecture.depths):
        for place in range(depth):
            name = f"layer{stage + 1}.{place}"
            stride, around = 2 if place == 0 and stage else 1, y
            y = functions.relu(normalized(convolved(y, f"{name}.conv1"), f"{name}.bn1"))
            y = convolved(y, f"{name}.conv2", stride, 1, architecture.groups)
            y = functions.relu(normalized(y, f"{name}.bn2"))
            y = normalized(convolved(y, f"{name}.conv3"), f"{name}.bn3")
            if place == 0:
                around = normalized(convolved(around, f"{name}.downsample.0", stride), f"{name}.downsample.1")
            y = functions.relu(y + around)
    return functions.linear(y.mean((2, 3)), known["fc.weight"], known["fc.bias"])


MAKERS: Mapping[str, Callable[[Mapping[str, Any], Sequence[Any]], Made]] = {
    "Relayout": ours,
    **{f"Relayout {format}": partial(ours, format=format) for format in FORMATS},
    "PyTorch": pytorch,
    "PyTorch channels_last": partial(pytorch, channels_last=True),
    "torch.compile": partial(pytorch, compiled=True),
}
