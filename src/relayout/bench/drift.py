"""Some steps of training beside PyTorch's in single and in double precision: how far apart they come.

Steps amplify rounding: a rectifier whose input changes its sign by rounding passes a gradient or does not,
and each step starts from what the last one left. So a difference between two programs says little alone. What
tells whether one of them is wrong is how far each is from double precision::

    ours - PyTorch    two single precisions: both errors
    ours - exact      what Relayout is off by
    PyTorch - exact   what PyTorch is off by

Parameters differ in two measures: the norm of the difference by the norm of the parameter, and the largest
difference by the largest element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from relayout.bench.steps import MOMENTUM, resnet

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["PAIRS", "Drift", "drift", "show"]

PAIRS: Final = ("ours - PyTorch", "ours - exact", "PyTorch - exact")
DEMAND: Final = 1e-3
"""What losses and parameters should agree within."""


@dataclass
class Drift:
    """How far apart some steps have come.

    Attributes
    ----------
    network, batch, rate : str, int, float
        What was trained.
    losses : mapping of str to list of float
        Of each contestant, ahead of each step.
    norms, largest : mapping of str to mapping of str to float
        For each pair and parameter the relative difference, in both measures.
    steps : mapping of str to list of float
        For each pair the largest difference of norms after each step.
    """

    network: str
    batch: int
    rate: float
    losses: dict[str, list[float]] = field(default_factory=dict)
    norms: dict[str, dict[str, float]] = field(default_factory=dict)
    largest: dict[str, dict[str, float]] = field(default_factory=dict)
    steps: dict[str, list[float]] = field(default_factory=dict)

    def loss(self, pair: str) -> float:
        """The largest relative difference of losses."""
        one, other = (self.losses[name] for name in pair.split(" - "))
        return max(abs(a - b) / abs(b) for a, b in zip(one, other, strict=True))

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return asdict(self)


def drift(
    network: str,
    batch: int,
    rate: float,
    steps: int,
    size: int,
    threads: int,
    progress: Callable[[str], None],
) -> Drift:
    """Train the same steps three times."""
    from relayout import networks
    from relayout.training import SGD, Trainer

    torch = import_module("torch")
    torch.set_num_threads(threads)
    graph = networks.graph(network, size=size)
    rng = np.random.default_rng(1)
    classes = 1000
    data = [
        (rng.standard_normal((batch, 3, size, size), dtype=np.float32), rng.integers(0, classes, batch))
        for _ in range(steps)
    ]
    made = Drift(network, batch, rate)
    states: dict[str, Mapping[str, Any]] = {}
    after: dict[str, list[Mapping[str, Any]]] = {}  # each step, to 24 bits
    for name, dtype in (("exact", torch.float64), ("PyTorch", torch.float32)):
        known = {key: torch.tensor(one, dtype=dtype) for key, one in graph.constants.items() if one.ndim}
        learned = [one.requires_grad_() for key, one in known.items() if "running" not in key]
        optimizer = torch.optim.SGD(learned, rate, momentum=MOMENTUM)
        scores = partial(resnet, torch, networks.resnet.NETWORKS[network], known)
        made.losses[name], after[name] = [], []
        for k, (x, labels) in enumerate(data):
            progress(f"{name}, step {k + 1} of {steps}")
            optimizer.zero_grad()
            given = torch.tensor(x, dtype=dtype)
            loss = torch.nn.functional.cross_entropy(scores(given), torch.tensor(labels))
            loss.backward()
            optimizer.step()
            made.losses[name].append(loss.item())
            after[name].append({key: one.detach().float().numpy().copy() for key, one in known.items()})
        states[name] = {key: one.detach().double().numpy() for key, one in known.items()}
        del optimizer, learned, known, loss
    progress("ours")
    trainer = Trainer(graph, "cross_entropy", SGD(rate, momentum=MOMENTUM), batch=batch, threads=threads)
    made.losses["ours"], after["ours"] = [], []
    for x, labels in data:
        made.losses["ours"].append(trainer.step(x, labels))
        after["ours"].append({key: trainer[key] for key in states["exact"] if key in trainer})
    states["ours"] = {key: trainer[key].astype(np.float64) for key in states["exact"] if key in trainer}
    for pair in PAIRS:
        trails = zip(*(after[name] for name in pair.split(" - ")), strict=True)
        made.steps[pair] = [
            max(float(np.linalg.norm(a[key] - b[key]) / np.linalg.norm(b[key])) for key in states["ours"])
            for a, b in trails
        ]
        one, other = (states[name] for name in pair.split(" - "))
        made.norms[pair], made.largest[pair] = {}, {}
        for key in states["ours"]:
            off = one[key] - other[key]
            made.norms[pair][key] = float(np.linalg.norm(off) / np.linalg.norm(other[key]))
            made.largest[pair][key] = float(np.abs(off).max() / np.abs(other[key]).max())
    return made


def show(several: Sequence[Drift], console: Console) -> None:
    """A row for each run and pair; then the parameters that differ most."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    headings = ("network", "batch", "rate", "pair", "losses", "norm: median", "worst", "max: median", "worst")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("network", "pair") else "right")
    for one in several:
        for pair in PAIRS:
            figures = [one.loss(pair)]
            for measure in (one.norms[pair], one.largest[pair]):
                figures += [float(np.median(list(measure.values()))), max(measure.values())]
            where = (one.network, str(one.batch), f"{one.rate:g}") if pair == PAIRS[0] else ("", "", "")
            table.add_row(*where, pair, *(f"{figure:.1e}" for figure in figures))
    console.print(table)
    for one in several:
        told = f"{one.network}, batch {one.batch}, rate {one.rate:g}"
        for pair in PAIRS:
            trail = ", ".join(f"{off:.1e}" for off in one.steps[pair])
            console.print(f"{told}: worst norm after each step, {pair}: {trail}", markup=False)
        worst = sorted(one.norms[PAIRS[0]], key=lambda key: -one.norms[PAIRS[0]][key])[:5]
        for key in worst:
            apart = ", ".join(f"{pair} {one.norms[pair][key]:.1e}" for pair in PAIRS)
            console.print(f"{told}: {key}: {apart}", markup=False)
        met = {
            "losses": one.loss(PAIRS[0]),
            "norms of parameters": max(one.norms[PAIRS[0]].values()),
            "single elements": max(one.largest[PAIRS[0]].values()),
        }
        said = ", ".join(f"{what} {'within' if off <= DEMAND else 'not within'}" for what, off in met.items())
        console.print(f"{told}: {said} {DEMAND:g} of PyTorch's", markup=False)
