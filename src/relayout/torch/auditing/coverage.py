"""Which operators of the installed PyTorch keep channels-last, by running all of a list.

Each is called with batches of two and of one. Of the second, the strides of the batch place no element, and
there PyTorch's own operators may leave strides that it takes for another format.

==============  ====================================================================================
verdict         the result
==============  ====================================================================================
``keeps``       is in channels-last, and is taken for it
``gaps``        is a view in the order of channels-last, with gaps: each reader packs it
``ambiguous``   is in channels-last, and is taken for ``contiguous_format``
``loses``       is contiguous
``other``       has other strides, or no format of its own
``refuses``     is none: the operator raises, or has no kernel for this number of axes
==============  ====================================================================================
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch

from relayout.errors import LayoutError
from relayout.pytorch import suggest_memory_format
from relayout.torch.auditing.cases import CASES, CHANNELS, SIZE, Case, names
from relayout.torch.auditing.seen import CHANNELS_LAST, format_of
from relayout.torch.auditing.watching import Watch

__all__ = ["VERDICTS", "Changed", "Covered", "changed", "covered", "document", "verdict_of"]

VERDICTS = ("refuses", "loses", "ambiguous", "other", "gaps", "keeps")
"""From the worst to the best: of two runs the worse one counts."""
BATCHES = (2, 1)


class Covered(NamedTuple):
    """What became of a tensor in channels-last."""

    kind: str
    operator: str
    text: str
    """What was called."""
    rank: int
    verdict: str
    strides: tuple[int, ...]
    """Of the result, in the run that decided."""
    kernels: tuple[str, ...]
    """What PyTorch ran."""
    note: str = ""
    """What it raised, or that the verdict is that of a batch of one."""


def verdict_of(result: torch.Tensor) -> str:
    """What a result is, by its strides."""
    dims, strides = tuple(result.shape), result.stride()
    lies = format_of(dims, strides)
    if lies in CHANNELS_LAST:
        return "keeps" if suggest_memory_format(dims, strides) == lies else "ambiguous"
    return {"contiguous": "loses", "gaps": "gaps", "both": "keeps"}.get(lies, "other")


def covered(
    cases: Iterable[Case] = CASES, progress: Callable[[Case], None] = lambda case: None
) -> tuple[Covered, ...]:
    """Run operators, and judge their results.

    Parameters
    ----------
    cases : iterable of Case
        Which operators; all of the list, if not given.
    progress : callable
        Called with each case before it is run.

    Examples
    --------
    >>> from relayout.torch.auditing.cases import CASES
    >>> wanted = [case for case in CASES if case.operator in ("relu", "softmax over channels")]
    >>> [(one.operator, one.rank, one.verdict) for one in covered(wanted)]  # doctest: +NORMALIZE_WHITESPACE
    [('relu', 4, 'keeps'), ('relu', 5, 'keeps'),
     ('softmax over channels', 4, 'loses'), ('softmax over channels', 5, 'loses')]
    """
    todo = [(case, rank) for case in cases for rank in case.ranks]
    found = []
    with torch.random.fork_rng(devices=[]), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what operators think of these strides is the question here
        for case, rank in todo:
            progress(case)
            several, one = (_run(case, rank, batch) for batch in BATCHES)
            worse = min(several, one, key=_badness)
            if worse.verdict != several.verdict:
                worse = worse._replace(note=f"with one image; with several it {several.verdict}")
            found.append(worse)
    return tuple(found)


def _badness(one: Covered) -> int:
    return VERDICTS.index(one.verdict)


def _run(case: Case, rank: int, batch: int) -> Covered:
    memory_format = torch.channels_last if rank == 4 else torch.channels_last_3d
    torch.manual_seed(0)
    x = torch.randn(batch, CHANNELS, *(SIZE,) * (rank - 2)).to(memory_format=memory_format)
    given, spatial = names(x), str(rank - 2)
    text, operator = case.text.replace("{d}", spatial), case.operator.replace("{d}", spatial)
    watch = Watch(None, ())
    try:
        result: Any = watch.run(lambda: eval(text, given))
    except (RuntimeError, NotImplementedError, ValueError, TypeError, IndexError) as error:
        said = str(error).splitlines()[0]
        return Covered(case.kind, operator, text, rank, "refuses", (), (), said)
    kernels = tuple(dict.fromkeys(kernel.name for kernel in watch.kernels))
    return Covered(case.kind, operator, text, rank, verdict_of(result), result.stride(), kernels)


def document(found: Iterable[Covered]) -> dict[str, Any]:
    """The table as plain data."""
    rows = list(found)
    return {
        "torch": torch.__version__.partition("+")[0],
        "counts": {
            str(rank): dict(Counter(one.verdict for one in rows if one.rank == rank)) for rank in (4, 5)
        },
        "operators": [one._asdict() for one in rows],
    }


class Changed(NamedTuple):
    """An operator of which two versions of PyTorch make different things."""

    operator: str
    text: str
    rank: int
    before: str
    """The earlier verdict; empty where there is none of that operator."""
    after: str


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Changed, ...]:
    """Compare two tables.

    Parameters
    ----------
    before, after : mapping
        What :func:`document` has made, under two versions of PyTorch.

    Returns
    -------
    tuple of Changed
        In the order of the later table; what only the earlier one has is not told.

    Raises
    ------
    LayoutError
        One of them is no such table.

    Examples
    --------
    >>> row = {"operator": "roll", "rank": 4, "text": "x.roll(1, 2)"}
    >>> made = [{"operators": [{**row, "verdict": verdict}]} for verdict in ("loses", "keeps")]
    >>> changed(*made)
    (Changed(operator='roll', text='x.roll(1, 2)', rank=4, before='loses', after='keeps'),)
    """
    try:
        earlier = {(one["operator"], one["rank"]): one["verdict"] for one in before["operators"]}
        return tuple(
            Changed(one["operator"], one["text"], one["rank"], was, one["verdict"])
            for one in after["operators"]
            if (was := earlier.get((one["operator"], one["rank"]), "")) != one["verdict"]
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise LayoutError(
            "a table of operators is what relayout audit --operators --json writes, with operator, rank and "
            f"verdict of each; this one has none ({type(error).__name__}: {error})"
        ) from error
