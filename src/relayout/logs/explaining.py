"""``explain``: a log, read and judged, as a value that prints itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from relayout.logs.advice import advice
from relayout.logs.events import Event, Log
from relayout.logs.judging import RoundTrip, Row, rows
from relayout.logs.measuring import measured
from relayout.logs.page import fragment, page
from relayout.logs.reading import read
from relayout.logs.sources import Progress
from relayout.logs.text import in_text
from relayout.logs.values import document

__all__ = ["Explanation", "explain"]


@dataclass(frozen=True)
class Explanation:
    """Which conversions a log shows, what they cost, and what to do about them."""

    log: Log
    rows: tuple[Row, ...]
    """Equal conversions together, the most expensive first."""
    trips: tuple[RoundTrip, ...]
    """Conversions that a later one undoes."""

    @property
    def events(self) -> tuple[Event, ...]:
        """All conversions, in the order in which they ran."""
        return self.log.events

    @property
    def seconds(self) -> float:
        """What all conversions take together."""
        return sum(row.seconds for row in self.rows)

    @property
    def share(self) -> float:
        """Their part of the time of everything in the log, from 0 to 1."""
        return self.seconds / self.log.seconds if self.log.seconds else 0.0

    def measured(
        self,
        top: int | None = None,
        threads: int | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Explanation:
        """The same, with what ``memcpy`` and Relayout take for each row on this machine.

        Parameters
        ----------
        top : int, optional
            How many rows are measured, the most expensive first; None: all.
        threads : int, optional
            How many threads may work.
        progress : callable, optional
            Called with what is measured next.
        """
        found = []
        for k, row in enumerate(self.rows):
            times = None
            if top is None or k < top:
                if progress is not None:
                    progress(f"{row.src} to {row.dst}")
                times = measured(row.events[0], threads)
            if times is not None:
                row = replace(row, memcpy_seconds=times.memcpy, relayout_seconds=times.relayout)
            found.append(row)
        return replace(self, rows=tuple(found))

    def text(self, top: int | None = None) -> str:
        """For a terminal: a table, and a sentence for each of its rows; of the ``top`` rows only."""
        return in_text(self.log, self.rows, self.trips, top)

    def html(self, top: int | None = None) -> str:
        """A page of its own, without anything from a network; what the log says is escaped."""
        return page(self.log, self.rows, self.trips, top)

    def json(self, top: int | None = None) -> dict[str, Any]:
        """Everything as plain data."""
        return document(self.log, self.rows, self.trips, top)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return fragment(self.log, self.rows, self.trips, None)


def explain(log: Any, *, measure: bool = False, progress: Progress | None = None) -> Explanation:
    r"""Explain the conversions of formats in a log that a runtime has written.

    Parameters
    ----------
    log : path, bytes, binary file or Log
        oneDNN's verbose output (``ONEDNN_VERBOSE=1``), also amid other output; a profile of ONNX Runtime; an
        execution graph or performance counters of OpenVINO; a trace of ``torch.profiler``. The kind is told
        by the content. Compressed files (gzip) are read through; files of any size are streamed.
    measure : bool
        Measure each conversion on this machine; :meth:`Explanation.measured` does so later.
    progress : callable, optional
        Called with the bytes that are read, and with all of them (None: unknown).

    Returns
    -------
    Explanation
        Of a log that is cut or damaged, what is left of it; ``log.problems`` says what is missing.

    Raises
    ------
    LayoutError
        It is none of these logs.
    OSError
        The file can't be read.

    Examples
    --------
    Weights that are packed in each of two calls:

    >>> conv = (
    ...     "onednn_verbose,v1,primitive,exec,cpu,reorder,jit:uni,undef,src:f32::blocked:abcd::f0 "
    ...     "dst:f32::blocked:ABcd16b16a::f0,,,64x64x3x3,0.02\n"
    ...     "onednn_verbose,v1,primitive,exec,cpu,convolution,jit:avx512_core,forward_training,"
    ...     "src:f32::blocked:aBcd16b::f0 wei:f32:a:blocked:ABcd16b16a::f0 bia:undef::undef::: "
    ...     "dst:f32:a:blocked:aBcd16b::f0,,alg:convolution_direct,"
    ...     "mb1_ic64oc64_ih14oh14kh3sh1dh0ph1_iw14ow14kw3sw1dw0pw1,0.06\n"
    ... )
    >>> found = explain((conv * 2).encode())
    >>> row = found.rows[0]
    >>> row.weights, row.count, row.calls, round(found.share, 3)
    (True, 2, 2, 0.25)
    >>> row.advice.partition(":")[0]
    'Weights are packed anew each time they are used, and not kept'
    """
    given = log if isinstance(log, Log) else read(log, progress)
    judged, trips = rows(given)
    told = tuple(replace(row, advice=advice(row, given)) for row in judged)
    found = Explanation(given, told, trips)
    return found.measured() if measure else found
