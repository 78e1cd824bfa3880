"""Do networks train: one step of each, its loss and its gradients beside PyTorch's in double precision.

PyTorch computes the same step twice, in double and in single precision. What its single precision is off by
is what rounding does to this network, and the yardstick: Relayout may be off by :data:`TIMES` as much.
Dropouts drop nothing, batch normalisations take the statistics of the batch.

::

    loss                        relative
    gradients, all together     |found - exact| / |exact|, of the vector of all gradients
    each gradient               |found - exact|, beside what PyTorch is off by there

Where rounding decides the sign of what a rectifier reads, or which of two elements is the larger one,
gradients jump. So what differs is tried again with other inputs: an error differs each time, a jump does not.

A gradient that is 0 but for rounding, such as that of a bias ahead of a normalisation, has no digits that
could agree. So single gradients have an allowance: the part of their norm by which PyTorch's are off all
together, at least :data:`OWN`, and :data:`SHARE` times the norm of all. Parameters are found by their names
or, where an exporter has renamed or transposed them, by their values.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from relayout.errors import LayoutError

if TYPE_CHECKING:
    from relayout.graph.graph import Graph
    from relayout.training import Trainer

__all__ = ["BATCH", "PICTURES", "TIMES", "Compared", "compared", "picture"]

BATCH: Final = 4
PICTURES: Final = 64
"""Height and width of pictures."""
LARGER: Final = {
    "tv/inception_v3": 96,
    "timm/inception_v3": 96,
    "timm/inception_v4": 96,
    "tv-video": 64,
    "timm/tiny_vit": 224,
    "tv/maxvit": 224,
}
"""Beginnings of names of networks that take larger ones."""
RATE, MOMENTUM = 0.01, 0.9

TIMES: Final = 4.0
"""How many times as far off as PyTorch's single precision a loss and the gradients together may be."""
EACH: Final = 16.0
"""The same of each gradient: one of few elements is nearer by luck."""
OWN, SHARE = 2.0**-20, 2.0**-24
DRAWS: Final = 3
"""How many inputs are tried."""
LEAST: Final = 2.0**-20
"""What a loss and the gradients together may be off by in any case."""


def picture(name: str) -> int:
    """The height and width of pictures for a network.

    >>> picture("tv/resnet18"), picture("tv/inception_v3")
    (64, 96)
    """
    return next((size for start, size in LARGER.items() if name.startswith(start)), PICTURES)


@dataclass
class Compared:
    """One step beside PyTorch's.

    Attributes
    ----------
    loss, own_loss : float
        How far Relayout's and PyTorch's single precision are from double precision, relative.
    gradients, own_gradients : float
        The same of all gradients together.
    worst : float
        How many times as far off as PyTorch's a gradient is, at most.
    which : str
        That parameter.
    statistics : float
        The largest difference of running statistics, relative to their largest value.
    missing, others, apart : list of str
        Parameters that have a gradient and are not learned; what is learned and is no parameter; names of one
        parameter that are learned as several.
    notes : str
        What else there is to say.
    """

    loss: float
    own_loss: float
    gradients: float
    own_gradients: float
    worst: float
    which: str
    statistics: float
    missing: list[str]
    others: list[str]
    apart: list[str]
    notes: str = ""

    @property
    def agrees(self) -> bool:
        """Whether rounding explains all differences, and the same is learned."""
        near = self.loss <= TIMES * self.own_loss + LEAST
        near = near and self.gradients <= TIMES * self.own_gradients + LEAST
        return near and self.worst <= EACH and self.statistics < 1e-4 and not (self.missing or self.apart)

    def __str__(self) -> str:
        told = [
            f"loss {self.loss:.1e} ({self.own_loss:.1e})",
            f"gradients {self.gradients:.1e} ({self.own_gradients:.1e})",
            f"worst {self.worst:.2g} times: {self.which}",
        ]
        if self.statistics:
            told.append(f"statistics {self.statistics:.1e}")
        for what in ("missing", "others", "apart"):
            several = getattr(self, what)
            if several:
                told.append(f"{what} {len(several)}: {', '.join(several[:3])}")
        return "; ".join([*told, *([self.notes] if self.notes else [])])


def compared(module: Any, inputs: Sequence[Any], graph: Graph, seconds: dict[str, float]) -> Compared:
    """Train one step, and compare it; ``seconds`` is told how long which part took.

    Raises
    ------
    LayoutError
        The network can't be trained here.
    """
    from relayout.training import SGD, Trainer

    torch = import_module("torch")
    start = perf_counter()
    trainer = Trainer(graph, _loss(graph), SGD(RATE, momentum=MOMENTUM), dropout=0.0)
    seconds["compile"] = perf_counter() - start
    begin = {name: trainer[name] for name in trainer}
    several: list[Compared] = []
    for draw in range(DRAWS):
        torch.manual_seed(draw)
        given = inputs if not draw else [_drawn(one) for one in inputs]
        several.append(_step(trainer, graph, module, given, seconds))
        if several[-1].agrees:
            break
        for name, array in begin.items():
            trainer[name] = array
        trainer.count = 0
    return min(several, key=lambda one: (not one.agrees, one.gradients / (one.own_gradients + LEAST)))


def _drawn(one: Any) -> Any:
    """Other numbers; words and masks stay."""
    torch = import_module("torch")
    return torch.randn_like(one) if one.is_floating_point() else one


def _step(
    trainer: Trainer, graph: Graph, module: Any, inputs: Sequence[Any], seconds: dict[str, float]
) -> Compared:
    torch = import_module("torch")
    folded = not trainer.statistics
    exact = _reference(module, inputs, torch.float64, not folded)
    own = _reference(module, inputs, torch.float32, not folded)
    last = trainer.inputs[-1]
    arrays = [one.numpy() for one in inputs][: len(trainer.inputs) - 1]
    start = perf_counter()
    loss = trainer.step(*arrays, exact.targets.astype(last.dtype))
    seconds["first"] = perf_counter() - start
    made = _compared(trainer, graph, module, loss, exact, own)
    if folded and exact.normalized:
        made.notes = "statistics are folded into weights"
    return made


@dataclass
class _Reference:
    loss: float
    gradients: dict[str, Any]
    statistics: dict[str, Any]
    targets: Any
    normalized: bool


def _loss(graph: Graph) -> str:
    """What suits the first result."""
    value = graph.value(graph.results[0])
    classes = value.dims[1] if value.dims is not None and len(value.dims) > 1 else 1
    return "cross_entropy" if classes != 1 else "mean_squared_error"


def _reference(module: Any, inputs: Sequence[Any], dtype: Any, training: bool) -> _Reference:
    """A step of PyTorch's in a data type."""
    from relayout.bench.zoo import tensors

    torch = import_module("torch")
    model = copy.deepcopy(module).to(dtype)
    several = [one for one in model.modules() if isinstance(one, torch.nn.modules.batchnorm._BatchNorm)]
    for one in several if training else ():
        one.train()
    given = [one.to(dtype) if one.is_floating_point() else one for one in inputs]
    for one in model.parameters():
        one.requires_grad_()
    result = tensors(model(*given))[0]
    rng = np.random.default_rng(0)
    if result.dim() > 1 and result.shape[1] > 1:
        targets = rng.integers(0, result.shape[1], (result.shape[0], *result.shape[2:]))
        loss = torch.nn.functional.cross_entropy(result, torch.from_numpy(targets))
    else:
        targets = rng.standard_normal(tuple(result.shape))  # type: ignore[assignment]
        loss = torch.nn.functional.mse_loss(result, torch.from_numpy(targets).to(dtype))
    loss.backward()
    found = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    return _Reference(
        loss.item(),
        {name: one.to(torch.float64).numpy() for name, one in found.items()},
        {
            name: one.to(torch.float64).numpy()
            for name, one in model.named_buffers()
            if name.endswith(("running_mean", "running_var"))
        },
        targets,
        bool(several),
    )


def _compared(
    trainer: Trainer, graph: Graph, module: Any, loss: float, exact: _Reference, own: _Reference
) -> Compared:
    places = _places(trainer, graph, module)
    squares = dict.fromkeys(("found", "own", "exact"), 0.0)
    errors, missing, apart = [], [], []
    for name, gradient in exact.gradients.items():
        if not gradient.any():
            continue
        several = places.get(name, [])
        if not several:
            missing.append(name)
            continue
        if len(several) > 1:
            apart.append(name)
        found = sum(_seen(trainer[f"momentum/{place}"], gradient.shape) for place in several)
        off = float(np.linalg.norm((np.asarray(found, np.float64) - gradient).ravel()))
        behind = float(np.linalg.norm((own.gradients[name] - gradient).ravel()))
        size = float(np.linalg.norm(gradient.ravel()))
        errors.append((off, behind, size, name))
        for key, part in zip(squares, (off, behind, size), strict=True):
            squares[key] += part**2
    total = squares["exact"] ** 0.5
    least = SHARE * total / max(len(errors), 1) ** 0.5
    share = max(OWN, squares["own"] ** 0.5 / total)  # where all are far off, some are by luck near
    ratios = [(off / (behind + share * size + least), name) for off, behind, size, name in errors]
    worst, which = max(ratios, default=(0.0, ""))
    if not errors:
        raise LayoutError("no parameter has a gradient")
    known = {place for several in places.values() for place in several}
    return Compared(
        abs(loss - exact.loss) / abs(exact.loss),
        abs(own.loss - exact.loss) / abs(exact.loss),
        (squares["found"] ** 0.5) / total,
        (squares["own"] ** 0.5) / total,
        worst if np.isfinite(worst) else float("inf"),
        which,
        _statistics(trainer, exact.statistics),
        missing,
        [name for name in trainer.parameters if name not in known],
        apart,
    )


def _seen(found: Any, shape: tuple[int, ...]) -> Any:
    """A gradient as PyTorch's parameter has it: exporters transpose matrices and leave axes of 1 out."""
    if found.shape == shape:
        return found
    return (
        found.reshape(shape) if sum(n > 1 for n in shape) < 2 or found.ndim != 2 else found.T.reshape(shape)
    )


def _places(trainer: Trainer, graph: Graph, module: Any) -> dict[str, list[str]]:
    """For each of PyTorch's parameters the names under which it is learned: its own, or of equal values."""
    found: dict[str, list[str]] = {}
    first: dict[int, str] = {}
    for name, one in module.named_parameters(remove_duplicate=False):
        key = first.setdefault(id(one), name)
        if name in trainer.parameters:
            found.setdefault(key, []).append(name)
    taken = {name for several in found.values() for name in several}
    rest: dict[bytes, list[str]] = {}
    for name in trainer.parameters:
        if name not in taken:
            rest.setdefault(_key(graph.constants[name]), []).append(name)
    alike: dict[bytes, int] = {}  # layers that are copies of each other have equal values
    for _, one in module.named_parameters():
        content = _key(one.detach().numpy())
        alike[content] = alike.get(content, 0) + 1
    for name, one in module.named_parameters():
        if name not in found:
            data = one.detach().numpy()
            for form in (data, data.T if data.ndim == 2 else data):
                several = rest.get(_key(form), [])
                if several:
                    found[name] = (
                        several[:1] if alike[_key(data)] > 1 or not _distinct(data) else list(several)
                    )
                    for place in found[name]:
                        several.remove(place)
                    break
    return found


def _distinct(data: Any) -> bool:
    """Whether equal values say that it is the same parameter."""
    return data.size > 1 and bool((data != data.ravel()[0]).any())


def _key(data: Any) -> bytes:
    return b"x".join(str(n).encode() for n in data.shape if n > 1) + np.ascontiguousarray(data).tobytes()


def _statistics(trainer: Trainer, exact: Mapping[str, Any]) -> float:
    """The largest difference of running statistics, as far as they have their names."""
    worst = 0.0
    for name in trainer.statistics:
        if name in exact and exact[name].size:
            gap = float(np.abs(trainer[name] - exact[name]).max())
            worst = max(worst, gap / max(float(np.abs(exact[name]).max()), 1e-30))
    return worst
