"""Modules of PyTorch in turns: eager in both formats, ``torch.compile`` with its own back end and with ours.

Everybody has a process (:mod:`relayout.bench.contest`) and builds the same network
(:mod:`relayout.bench.backends`), once for all batches and numbers of threads. A figure is the median of
ratios of rounds, and outputs are compared with those of eager PyTorch.

What compiling takes is the time of the first call: with empty caches on disk, and again in another process
with what the first has left there. PyTorch's own back end takes half a minute for that, so it is measured
once for each network and contestant, in the first entry, where each process starts alone. For all further
entries of the network contestants compile side by side.
"""

from __future__ import annotations

import compileall
import contextlib
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from relayout.bench import lines, zoo
from relayout.bench.contest import Contestant, apart, installed, timed
from relayout.bench.measure import OURS, Spread
from relayout.bench.models import ModuleEntry, plain, restored
from relayout.bench.particulars import particulars

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    *("CONTESTANTS", "EAGER", "NETWORKS", "REPRESENTATIVES", "Compared"),
    *("as_json", "entries", "machine", "read", "run", "show", "uncompiled", "versions"),
]

EAGER = "PyTorch"
LAST = "PyTorch channels_last"
COMPILED = ("torch.compile", "torch.compile frozen")
CONTESTANTS = (OURS, EAGER, LAST, *COMPILED)
COLUMNS = {EAGER: "eager", LAST: "last", COMPILED[0]: "tc", COMPILED[1]: "frozen"}

LEAST, FEW, LONG = 3, 2, 4.0
"""Rounds that there are at least; and where a call takes so many seconds, in which a disturbance of some
hundredths does not show."""

BUILT = (OURS, COMPILED[0])
"""Those whose first call is measured; with frozen weights PyTorch compiles other kernels, fewer as a rule."""

_REPRESENTATIVES = """
    resnet50 mobilenet_v2 efficientnet_b0 swin_t vit_b_16 convnext_tiny resnet18 mobilenet_v3_large
    squeezenet1_1 googlenet resnext50_32x4d densenet121 regnet_y_400mf shufflenet_v2_x1_0 maxvit_t vgg11
    mobilenet_v3_small mnasnet1_0 regnet_x_400mf inception_v3 efficientnet_v2_s alexnet wide_resnet50_2
    swin_v2_t
"""
REPRESENTATIVES = tuple(f"tv/{name}" for name in _REPRESENTATIVES.split())
"""One of each family, those first that say most."""

NETWORKS = (
    *REPRESENTATIVES,
    *(name for name in zoo.CENSUS if name.startswith("tv/") and name not in REPRESENTATIVES),
)
"""torchvision's networks for classification, one of each family in front."""


@dataclass
class Compared:
    """One network with one number of threads and one batch.

    Attributes
    ----------
    network : str
    threads, batch : int
    seconds : dict of str to Spread
        Of a call, by contestant.
    behind : dict of str to Spread
        The time of each other contestant / Relayout's: above 1, Relayout is faster.
    first, again : dict of str to float
        Seconds of the first call: with empty caches on disk, and with those that this has left. Only in the
        entry of a network where they were measured.
    first_own, again_own : dict of str to float
        What of these is the back end's own: all but dynamo, which traces the module and makes guards, and
        takes as long with any back end. Empty in results of before this was measured.
    compiled : float
        Those of the first call that are Relayout's own, dynamo's and AOTAutograd's apart.
    difference : float or None
        Of outputs from those of eager PyTorch, relative to their largest value.
    parts, left, conversions : int
        Parts that Relayout takes, operators that it leaves, conversions between formats.
    disturbed : bool
        Whether other processes took the cores.
    refused : dict of str to str
        Why a contestant could not do it.
    machine : dict of str to str or int
        Processor, cores and versions that it was measured with (:func:`machine`).
    """

    network: str
    threads: int
    batch: int
    seconds: dict[str, Spread] = field(default_factory=dict)
    behind: dict[str, Spread] = field(default_factory=dict)
    first: dict[str, float] = field(default_factory=dict)
    again: dict[str, float] = field(default_factory=dict)
    first_own: dict[str, float] = field(default_factory=dict)
    again_own: dict[str, float] = field(default_factory=dict)
    compiled: float = 0.0
    difference: float | None = None
    parts: int = 0
    left: int = 0
    conversions: int = 0
    disturbed: bool = False
    refused: dict[str, str] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int, int]:
        """What was measured."""
        return self.network, self.threads, self.batch

    @property
    def best(self) -> float | None:
        """The time of the better of eager channels-last and PyTorch's own back end / Relayout's."""
        return min((one.median for name, one in self.behind.items() if name != EAGER), default=None)


def versions() -> dict[str, str | None]:
    """The version of each other contestant; None where it is not installed, or lacks a compiler."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        own: str | None = version("torch")
    except PackageNotFoundError:
        own = None
    compiling = installed()["torch.compile"]
    return {name: compiling if name in COMPILED else own for name in CONTESTANTS[1:]}


def machine() -> dict[str, Any]:
    """Processor, cores and versions, as each line of a file of results names them."""
    packages = [name for name in ("relayout", "torch", "torchvision") if _installed(name)]
    return particulars(*packages)


def _installed(package: str) -> bool:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


def entries(
    networks: Sequence[str],
    batches: Sequence[int],
    threads: Sequence[int],
    names: Sequence[str],
    known: Mapping[tuple[str, int, int], Compared],
) -> list[tuple[str, int, int]]:
    """What is to be measured, the most telling first: network, number of threads, batch.

    One of each family comes before all others, and among these whole columns one by one. So a run that is cut
    short has all families with batch 1 on one thread, then with more. An entry of which a result has all
    contestants is left out.

    >>> entries(("tv/vgg16", "tv/resnet50"), (1, 8), (1,), CONTESTANTS, {})[:3]
    [('tv/resnet50', 1, 1), ('tv/resnet50', 1, 8), ('tv/vgg16', 1, 1)]
    """
    front = [one for one in REPRESENTATIVES if one in networks]
    return [
        (network, count, batch)
        for several in (front, [one for one in networks if one not in front])
        for count in threads
        for batch in batches
        for network in several
        if (found := known.get((network, count, batch))) is None
        or not {*names} <= {*found.seconds, *found.refused}
    ]


def uncompiled(
    network: str, names: Sequence[str], known: Mapping[tuple[str, int, int], Compared]
) -> list[str]:
    """Contestants whose first call no result of this network has.

    >>> uncompiled("tv/vgg16", CONTESTANTS, {})
    ['Relayout', 'torch.compile']
    """
    have = {name for one in known.values() if one.network == network for name in one.first}
    return [name for name in names if name in BUILT and name not in have]


def run(
    wanted: Sequence[tuple[str, int, int]],
    names: Sequence[str],
    rounds: int,
    seconds: float,
    minutes: float | None,
    results: Path | None,
    progress: Callable[[str], None],
    known: Mapping[tuple[str, int, int], Compared] | None = None,
) -> Iterator[Compared]:
    """A result for each network, number of threads and batch; also written to the file of results.

    Parameters
    ----------
    wanted : sequence of (str, int, int)
        Networks, numbers of threads, batches.
    names : sequence of str
        Who takes part, of :data:`CONTESTANTS`.
    rounds, seconds : int, float
        Rounds at most, and the time for them.
    minutes : float, optional
        No entry is begun after so long.
    results : Path, optional
        A file that gets a line for each.
    progress : callable
        Told what comes next.
    known : mapping, optional
        Results that there are, by network, threads and batch: what compiling takes is not measured again.
    """
    written()
    begun, here, have = time.monotonic(), machine(), dict(known or {})
    with tempfile.TemporaryDirectory() as shared:
        for network, settings in settings_of(wanted).items():
            with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
                cold = uncompiled(network, names, have)
                table = _Table(network, settings, names, Path(folder), Path(shared), stack)
                for threads, batch in settings:
                    if minutes is not None and time.monotonic() - begun > 60 * minutes:
                        return
                    progress(f"{network}, batch {batch}, threads: {threads}")
                    made = table.measured(threads, batch, cold, rounds, seconds)
                    made.machine, cold = here, []
                    have[made.key] = made
                    if results is not None:
                        lines.add(plain(made), results)
                    yield made


def written() -> None:
    """Write the bytecode of this package, as pip does for what it installs.

    A checkout has none where Python was told to write none. Then it is the time to compile a hundred modules
    of Python, a third of a second, that first calls would show. PyTorch, which was installed, has its own.
    """
    with contextlib.suppress(OSError):  # a folder that nobody may write to
        compileall.compile_dir(Path(__file__).parents[1], quiet=2)


def settings_of(wanted: Sequence[tuple[str, int, int]]) -> dict[str, list[tuple[int, int]]]:
    """The settings of each network, numbers of threads and batches, in the order of the networks.

    >>> settings_of([("tv/resnet50", 1, 1), ("tv/vgg16", 1, 1), ("tv/resnet50", 1, 8)])
    {'tv/resnet50': [(1, 1), (1, 8)], 'tv/vgg16': [(1, 1)]}
    """
    found: dict[str, list[tuple[int, int]]] = {}
    for network, *setting in wanted:
        threads, batch = setting
        found.setdefault(network, []).append((threads, batch))
    return found


class _Table:
    """A network in several settings: a process for each contestant, which goes through all of them.

    Parameters
    ----------
    network : str
    settings : sequence of (int, int)
        Numbers of threads, and batches.
    names : sequence of str
        Who takes part.
    folder, shared : Path
        For caches of this network, and for those of all.
    stack : ExitStack
        Ends the processes.
    """

    def __init__(
        self,
        network: str,
        settings: Sequence[tuple[int, int]],
        names: Sequence[str],
        folder: Path,
        shared: Path,
        stack: contextlib.ExitStack,
    ) -> None:
        self.network, self.names, self._folder, self._shared = network, names, folder, shared
        self._most, self._stack = max(batch for _, batch in settings), stack
        self._taking: dict[str, Contestant] = {}
        self._inputs = folder / "none.npz"
        np.savez(self._inputs)

    def measured(
        self, threads: int, batch: int, cold: Sequence[str], rounds: int, seconds: float
    ) -> Compared:
        """A result; of the contestants in ``cold`` with the time of the first call, one after the other."""
        result = Compared(self.network, threads, batch)
        for name in cold:
            self._cold(name, threads, batch, result)
        others = [name for name in self.names if name not in cold]
        cores = int(particulars()["cores"] or 1)
        with ThreadPoolExecutor(cores) as pool:
            list(pool.map(partial(self._ready, threads=threads, batch=batch), others))
        known = {name: self._taking[name] for name in self.names}
        result.refused = {name: one.refused for name, one in known.items() if one.refused}
        taking = {name: one for name, one in known.items() if not one.refused}
        if not taking:
            return result
        if OURS in taking:
            told = taking[OURS].told
            result.conversions, result.left, result.parts = (
                told[key] for key in ("conversions", "defined", "parts")
            )
            taking[OURS].does("tune")
        result.difference = apart(self._folder, EAGER) if {OURS, EAGER} <= {*taking} else None
        longest = max(one.told["second"] for one in taking.values())
        timed(result, taking, rounds, seconds, FEW if longest > LONG else LEAST)
        return result

    def _begun(self, name: str, threads: int, batch: int, place: Path) -> Contestant:
        """A process, which computes the first setting."""
        entry = ModuleEntry(self.network, self._inputs, batch, threads, self._most)
        one = Contestant(name, entry, self._outputs(name), _caches(place, name))
        return self._stack.enter_context(one)

    def _ready(self, name: str, threads: int, batch: int) -> None:
        """Have a contestant in a setting; one that ended in another setting begins anew."""
        one = self._taking.get(name)
        if one is not None and not one.refused:
            one.turns({"batch": batch, "threads": threads, "outputs": str(self._outputs(name))})
            return
        if one is not None:
            one.close()
        self._taking[name] = self._begun(name, threads, batch, self._shared)

    def _cold(self, name: str, threads: int, batch: int, result: Compared) -> None:
        """Have a contestant in the first setting, by itself: its first call is measured."""
        self._taking[name] = one = self._begun(name, threads, batch, self._folder)
        if one.refused:
            return
        _note(one, result.first, result.first_own)
        entry = ModuleEntry(self.network, self._inputs, batch, threads, self._most)
        with Contestant(name, entry, None, _caches(self._folder, name)) as warm:
            if not warm.refused:
                _note(warm, result.again, result.again_own)
                result.compiled = warm.told.get("compiled", result.compiled)

    def _outputs(self, name: str) -> Path:
        return self._folder / f"{name}.npz"


def _note(one: Contestant, whole: dict[str, float], own: dict[str, float]) -> None:
    """Note what a first call took, and the back end's own part of it."""
    whole[one.name] = first = one.told["first"]
    if "traced" in one.told:
        own[one.name] = first - one.told["traced"]


def _caches(folder: Path, name: str) -> dict[str, str]:
    """Where a contestant keeps what it has compiled; PyTorch's compiler takes no blanks there."""
    variables = ("TORCHINDUCTOR_CACHE_DIR", "RELAYOUT_CACHE")
    return {variable: str(folder / f"{name.replace(' ', '-')}-{variable}") for variable in variables}


# -- results in a file -----------------------------------------------------------------------------------


def _result(told: dict[str, Any]) -> Compared:
    return Compared(**restored(told))


CALLS = {
    "first": "first call, empty caches",
    "first_own": "the back end's own part",
    "again": "first call, with caches",
    "again_own": "the back end's own part, with caches",
}
"""What is measured of compiling."""

SAME = ("processor", "cores")
"""What has to be the same for results to stand in one table."""


def read(path: Path, here: Mapping[str, Any] | None = None) -> dict[tuple[str, int, int], Compared]:
    """The results of a file, by network, threads and batch.

    The last one of each is taken. What compiling takes is taken from the one before where the last one has
    not measured it.

    Parameters
    ----------
    path : Path
    here : mapping, optional
        A machine (:func:`machine`): results of other processors, or of another number of cores, are left out.
    """
    found: dict[tuple[str, int, int], Compared] = {}
    for one in lines.entries(path, _result):
        if here is not None and any(one.machine.get(fact) != here.get(fact) for fact in SAME):
            continue
        if (old := found.get(one.key)) is not None:
            for when in CALLS:
                setattr(one, when, {**getattr(old, when), **getattr(one, when)})
            one.compiled = one.compiled or old.compiled
        found[one.key] = one
    return found


def as_json(
    results: Sequence[Compared], machine: Mapping[str, Any], peers: Mapping[str, str | None]
) -> dict[str, Any]:
    """Everything as plain data."""
    return {"machine": machine, "peers": peers, "results": [plain(one) for one in results]}


# -- tables ----------------------------------------------------------------------------------------------


def means(results: Sequence[Compared]) -> Iterator[tuple[str, float, float, str, int]]:
    """For each other contestant, and for the best of them (:attr:`Compared.best`): the geometric mean of its
    time / Relayout's, the least and its network, and over how many.
    """
    names = [name for name in CONTESTANTS[1:] if any(name in one.behind for one in results)]
    for name in (*names, "the best"):
        found = [
            (ratio, one.network)
            for one in results
            if (ratio := one.best if name == "the best" else _median(one.behind.get(name))) is not None
        ]
        if found:
            yield name, _mean([ratio for ratio, _ in found]), *min(found), len(found)


def quicker(results: Sequence[Compared], when: str) -> list[float]:
    """The time of PyTorch's own back end / Relayout's for what :data:`CALLS` names."""
    both = [tuple(getattr(one, when).get(name) for name in (OURS, COMPILED[0])) for one in results]
    return [theirs / ours for ours, theirs in both if ours and theirs]


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def _median(spread: Spread | None) -> float | None:
    return None if spread is None else spread.median


def show(results: Sequence[Compared], console: Console) -> None:
    """A table for each batch and number of threads, and the geometric means of the ratios."""
    for batch, many in dict.fromkeys((one.batch, one.threads) for one in results):
        own = [one for one in results if (one.batch, one.threads) == (batch, many)]
        console.print(_table(own, f"batch {batch}, {many} thread{'s' * (many > 1)}"))
        for name, mean, least, where, count in means(own):
            told = f"{name:<22}  geometric mean {mean:.2f} of {count}, least {least:.2f}"
            console.print(f"{told} {where[: 79 - len(told)]}", markup=False)
        console.print()
    for when, what in CALLS.items():
        ratios = quicker(results, when)
        if ratios:
            told = f"geometric mean {_mean(ratios):.2f} of {len(ratios)}, least {min(ratios):.2f}"
            console.print(f"{what:<36}  {told}", markup=False)
    console.print("eager, last, tc, frozen: time of PyTorch in each of its ways / time of Relayout")
    console.print("diff: of outputs; parts: Relayout's, left: operators of PyTorch; cv: conversions")
    console.print("s: first call, Relayout's/torch.compile's, empty caches; warm: with caches; *: disturbed")
    for one in results:
        for name, why in one.refused.items():
            text = f"{one.network}, batch {one.batch}, threads: {one.threads}: {name} can't: {why}"
            console.print(text, markup=False)


def _table(results: Sequence[Compared], title: str) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    names = [name for name in CONTESTANTS[1:] if any(name in one.behind for one in results)]
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("network", overflow="fold", max_width=18)
    for heading in ("ms", *(COLUMNS[name] for name in names), "diff", "parts", "left", "cv", "s", "warm"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in results:
        table.add_row(
            one.network.partition("/")[2] + " *" * one.disturbed,
            f"{1e3 * one.seconds[OURS].median:.3g}" if OURS in one.seconds else "-",
            *(f"{one.behind[name].median:.2f}" if name in one.behind else "-" for name in names),
            "-" if one.difference is None else f"{one.difference:.0e}",
            str(one.parts),
            str(one.left),
            str(one.conversions),
            *(
                "/".join(_seconds(t.get(name)) for name in (OURS, COMPILED[0]))
                for t in (one.first, one.again)
            ),
        )
    return table


def _seconds(time: float | None) -> str:
    return "-" if time is None else f"{time:.1f}"
