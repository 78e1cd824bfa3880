"""Conversions of PyTorch's tensors, and batches of pictures, beside PyTorch's own operations.

Three kinds of cases:

``conversion``  all activations of ResNet-50, from and to channels-last, in f32 and in bf16, and from f32 to
                bf16 in one step: :func:`relayout.torch.contiguous` and ``to`` beside PyTorch's
``batch``       pictures of 224 x 224, u8, to a normalised batch: :class:`relayout.torch.Collate` beside
                operations of PyTorch, plain and in place
``loader``      the same by a ``DataLoader``, in this process and with two workers

Everybody allocates the result in each call, as programs do. Results are compared bit for bit before anything
is timed; those of batches, which PyTorch computes in f32 here, may differ by 1e-6, and by a unit in the last
place of bf16.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from itertools import product
from math import exp, log
from typing import TYPE_CHECKING, Any

from relayout.bench.load import Load, disturbed
from relayout.bench.measure import OURS, Spread, Stopwatch, figures, in_rounds

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["ACTIVATIONS", "Case", "Result", "as_json", "cases", "means", "measured", "show"]

ACTIVATIONS = (
    *((64, 112), (64, 56), (256, 56), (128, 56), (128, 28), (512, 28)),
    *((256, 28), (256, 14), (1024, 14), (512, 14), (512, 7), (2048, 7)),
)
"""Channels, and rows and columns, of what the layers of ResNet-50 write."""

TYPES = (("float32", "float32"), ("bfloat16", "bfloat16"), ("float32", "bfloat16"))
LAST, CONTIGUOUS = "channels_last", "contiguous_format"
PLAIN, IN_PLACE = "PyTorch", "PyTorch in place"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZE, MANY, BATCHES, WORKERS = 224, 32, 4, (0, 2)
TIMES = 4
"""How often a data set of a loader has each of its pictures, so that an epoch outweighs its beginning."""
EPOCHS = 5
"""Of our loader before it is timed: its processes have chosen their schedules by then."""
FEW = 1 << 18
"""Bytes of a tensor above which nothing may be slower than PyTorch."""


@dataclass(frozen=True)
class Case:
    """What is measured; frozen, and prints itself on a line.

    Attributes
    ----------
    kind : str
        ``conversion``, ``batch`` or ``loader``.
    dims : tuple of int
        Of the tensor, or of the batch that is made: n, c, h, w.
    given, asked : str
        Data types, by PyTorch's names.
    memory_format : str
        Of the result; a conversion comes from the other one.
    workers : int
        Processes of a loader.
    """

    kind: str
    dims: tuple[int, ...]
    given: str
    asked: str
    memory_format: str
    workers: int = 0

    def __str__(self) -> str:
        types = self.given if self.given == self.asked else f"{self.given} -> {self.asked}"
        workers = f", {self.workers} workers" if self.kind == "loader" else ""
        return f"{self.kind} {'x'.join(map(str, self.dims))} {types} -> {self.memory_format}{workers}"

    @property
    def nbytes(self) -> int:
        """Bytes of the source."""
        size = {"uint8": 1, "bfloat16": 2, "float32": 4}[self.given]
        for extent in self.dims:
            size *= extent
        return size

    @property
    def group(self) -> str:
        """What it is summed up with."""
        types = self.asked if self.given in (self.asked, "uint8") else f"{self.given} -> {self.asked}"
        where = {
            "conversion": f" -> {self.memory_format}",
            "batch": "",
            "loader": f", {self.workers} workers",
        }
        return f"{self.kind} {types}{where[self.kind]}"


@dataclass(frozen=True)
class Result:
    """What a case gave with one number of threads; ``behind`` is the time of others / ours, by round."""

    case: Case
    threads: int
    seconds: dict[str, Spread]
    behind: dict[str, Spread]
    rounds: dict[str, int]
    disturbed: bool


def cases(batches: Sequence[int] = (8,), texts: Sequence[str] = ()) -> list[Case]:
    """All cases, or those whose line has one of the texts in it."""
    found = [
        Case("conversion", (batch, channels, size, size), *types, memory_format)
        for types, memory_format, batch, (channels, size) in product(
            TYPES, (LAST, CONTIGUOUS), batches, ACTIVATIONS
        )
    ]
    made = (MANY, 3, SIZE, SIZE)
    for asked, memory_format in product(("float32", "bfloat16"), (LAST, CONTIGUOUS)):
        found.append(Case("batch", made, "uint8", asked, memory_format))
    for asked, workers in product(("float32", "bfloat16"), WORKERS):
        found.append(Case("loader", made, "uint8", asked, LAST, workers))
    return [one for one in found if not texts or any(text in str(one) for text in texts)]


def measured(
    wanted: Sequence[tuple[Case, int]], rounds: int, seconds: float, progress: Callable[[str], None]
) -> Iterator[Result]:
    """A result for each case and number of threads.

    Parameters
    ----------
    wanted : sequence of (Case, int)
        Cases, and how many threads PyTorch and Relayout may use.
    rounds, seconds : int, float
        Rounds at most, and the time for them; a loader gets eight times as much.
    progress : callable
        Is told what is measured.

    Raises
    ------
    RuntimeError
        The results are not PyTorch's.
    """
    torch, load = import_module("torch"), Load()
    before = torch.get_num_threads()
    try:
        for case, threads in wanted:
            progress(f"{case}, threads: {threads}")
            torch.set_num_threads(threads)
            with contextlib.ExitStack() as stack:
                actions = _MAKERS[case.kind](case, torch, stack)
                watches = {name: Stopwatch(action) for name, action in actions.items()}
                budget = seconds * (8 if case.kind == "loader" else 1)
                samples = in_rounds(watches, rounds, budget, threads, tuple(watches))
            told = figures(samples, OURS)
            busy = disturbed(max(threads, case.workers), load.others())
            yield Result(case, threads, told["seconds"], told["ratios"], told["rounds"], busy)
    finally:
        torch.set_num_threads(before)


def _conversion(case: Case, torch: Any, stack: contextlib.ExitStack) -> dict[str, Callable[[], Any]]:
    ours = import_module("relayout.torch")
    moving = import_module("relayout.torch.moving")
    asked, memory_format = getattr(torch, case.asked), getattr(torch, case.memory_format)
    other = getattr(torch, CONTIGUOUS if case.memory_format == LAST else LAST)
    x = torch.randn(case.dims).to(getattr(torch, case.given)).contiguous(memory_format=other)
    if case.given == case.asked:
        mine: Callable[[], Any] = partial(ours.contiguous, x, memory_format)
        theirs = partial(x.contiguous, memory_format=memory_format)
    else:
        mine = partial(ours.to, x, asked, memory_format=memory_format)
        theirs = partial(x.to, asked, memory_format=memory_format)
    found = moving.problem(x.shape, x.stride(), x.dtype, asked, memory_format, torch.get_num_threads())
    two = theirs()
    if found is not None:
        found.tune(x.data_ptr(), two.data_ptr())
    one, two = mine(), theirs()
    if one.stride() != two.stride() or not torch.equal(one, two):
        raise RuntimeError(f"{case}: the result is not PyTorch's")
    return {OURS: mine, PLAIN: theirs}


class Operations:
    """Batches as programs make them of PyTorch's operations; can be pickled, as workers need."""

    def __init__(self, asked: str, memory_format: str, in_place: bool) -> None:
        self.asked, self.memory_format, self.in_place = asked, memory_format, in_place

    def __call__(self, pictures: Sequence[Any]) -> Any:
        """Stack pictures, normalise them, and bring them into the format."""
        torch = import_module("torch")
        x = torch.stack([torch.as_tensor(one) for one in pictures]).permute(0, 3, 1, 2)
        mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (MEAN, STD))
        if self.in_place:
            x = x.to(torch.float32).div_(255).sub_(mean).div_(std)
        else:
            x = (x.to(torch.float32) / 255 - mean) / std
        return x.to(getattr(torch, self.asked)).contiguous(memory_format=getattr(torch, self.memory_format))


def _ways(case: Case, torch: Any) -> dict[str, Callable[[Any], Any]]:
    ours = import_module("relayout.torch")
    asked, memory_format = getattr(torch, case.asked), getattr(torch, case.memory_format)
    return {
        OURS: ours.Collate(MEAN, STD, dtype=asked, memory_format=memory_format),
        PLAIN: Operations(case.asked, case.memory_format, False),
        IN_PLACE: Operations(case.asked, case.memory_format, True),
    }


def _pictures(torch: Any, many: int) -> Any:
    rng = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (many, SIZE, SIZE, 3), dtype=torch.uint8, generator=rng)


def _batch(case: Case, torch: Any, stack: contextlib.ExitStack) -> dict[str, Callable[[], Any]]:
    pictures, ways = list(_pictures(torch, case.dims[0])), _ways(case, torch)
    for _ in range(200):  # schedules are chosen
        ways[OURS](pictures[:4])
    _compare(case, torch, ways[OURS](pictures), ways[PLAIN](pictures))
    return {name: partial(way, pictures) for name, way in ways.items()}


def _compare(case: Case, torch: Any, one: Any, two: Any) -> None:
    """Whether two batches are the same but for roundings in f32, or in the last place of 16 bits."""
    close = torch.allclose(one, two, rtol=1e-2 * (one.itemsize < 4), atol=1e-6)
    if one.stride() != two.stride() or not close:
        raise RuntimeError(f"{case}: the result is not PyTorch's")


def _loader(case: Case, torch: Any, stack: contextlib.ExitStack) -> dict[str, Callable[[], Any]]:
    data = import_module("torch.utils.data")
    pictures = list(_pictures(torch, case.dims[0] * BATCHES)) * TIMES
    more = {"persistent_workers": True} if case.workers else {}
    loaders: dict[str, Any] = {}
    for name, way in _ways(case, torch).items():
        loader = data.DataLoader(
            pictures, batch_size=case.dims[0], collate_fn=way, num_workers=case.workers, **more
        )
        stack.callback(_ended, loader)
        loaders[name] = loader
    for one, two in zip(loaders[OURS], loaders[PLAIN], strict=True):
        _compare(case, torch, one, two)
    actions: dict[str, Callable[[], Any]] = {name: partial(_epoch, own) for name, own in loaders.items()}
    for _ in range(EPOCHS):
        actions[OURS]()
    return actions


def _epoch(loader: Any) -> None:
    for batch in loader:
        batch[0, 0, 0, 0].item()


def _ended(loader: Any) -> None:
    """End the workers of a loader now."""
    if loader._iterator is not None:
        loader._iterator._shutdown_workers()


_MAKERS = {"conversion": _conversion, "batch": _batch, "loader": _loader}


# -- reports ------------------------------------------------------------------------------------------------


def means(results: Sequence[Result]) -> list[dict[str, Any]]:
    """For each group and number of threads the others' time / ours: geometric mean, least, and where."""
    found = []
    for group, threads in dict.fromkeys((one.case.group, one.threads) for one in results):
        own = [one for one in results if (one.case.group, one.threads) == (group, threads)]
        for name in own[0].behind:
            ratios = {str(one.case): one.behind[name].median for one in own}
            large = [one.behind[name].median for one in own if one.case.nbytes >= FEW]
            least = min(ratios, key=lambda key: ratios[key])
            found.append(
                {
                    "group": group,
                    "threads": threads,
                    "other": name,
                    "mean": exp(sum(map(log, ratios.values())) / len(ratios)),
                    "least": ratios[least],
                    "where": least,
                    "least_large": min(large, default=None),
                    "cases": len(ratios),
                }
            )
    return found


def as_json(results: Sequence[Result], machine: dict[str, Any]) -> dict[str, Any]:
    """Everything as plain data."""
    return {
        "machine": machine,
        "means": means(results),
        "results": [
            {
                **asdict(one),
                "seconds": {name: spread._asdict() for name, spread in one.seconds.items()},
                "behind": {name: spread._asdict() for name, spread in one.behind.items()},
            }
            for one in results
        ],
    }


def show(results: Sequence[Result], console: Console) -> None:
    """A table: for each group and number of threads the time of others / ours."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in ("group", "other"):
        table.add_column(heading)
    for heading in ("threads", "mean", "least", "least, 256 KiB on", "cases", "disturbed"):
        table.add_column(heading, justify="right")
    for row in means(results):
        own = [one for one in results if (one.case.group, one.threads) == (row["group"], row["threads"])]
        table.add_row(
            row["group"],
            row["other"],
            str(row["threads"]),
            f"{row['mean']:.2f}",
            f"{row['least']:.2f}",
            "-" if row["least_large"] is None else f"{row['least_large']:.2f}",
            str(row["cases"]),
            str(sum(one.disturbed for one in own)),
        )
    console.print(table)
