"""Which reader a log needs, told by its content, never by its name.

===================================  ======================================================================
what the first bytes have            reader
===================================  ======================================================================
``<?xml``, ``<net``                  ``openvino_graph``
``[`` or ``{``, then ``node_type``,  ``openvino_counters``
... and a time
``[`` or ``{`` with ``"cat":         ``onnxruntime``
"Session"`` or ``"Node"``
any other ``[`` or ``{``             ``pytorch``, if there is an operator
``layerName;execStatus``             ``openvino_counters``, a CSV report
anything else                        every line is looked at: ``onednn``, or what ``benchmark_app -pc`` prints
===================================  ======================================================================
"""

from __future__ import annotations

import codecs
import re
from dataclasses import replace
from typing import Any

from relayout.errors import LayoutError
from relayout.logs import onednn, onnxruntime, openvino_counters, openvino_graph, pytorch
from relayout.logs.events import Log
from relayout.logs.sources import Progress, Source

__all__ = ["KINDS", "read"]

KINDS = (
    "oneDNN's verbose output (ONEDNN_VERBOSE=1), profiles of ONNX Runtime, execution graphs and performance "
    "counters of OpenVINO, and traces of torch.profiler"
)
SHOWN = 16  # bytes that an error shows of what it can't read

_JSON = re.compile(rb'[\[{]\s*(?:["{\[\]}]|$)')
"""A program's output may begin with a bracket, too: [Step 1/11], [rank 0]."""
_ORT = re.compile(rb'"cat"\s*:\s*"(?:Session|Node)"')
_OPENVINO = re.compile(rb'"(?:node_type|layerType|report_type)"\s*:')
_TRACE = re.compile(rb'"(?:traceEvents|ph)"\s*:')


def read(log: Any, progress: Progress | None = None) -> Log:
    """Read a log.

    Parameters
    ----------
    log : path, bytes, or a binary file
        What a runtime has written; gzip is read through. Files are streamed.
    progress : callable, optional
        Called with the bytes that are read, and with all of them (None: unknown).

    Returns
    -------
    Log
        Of a log that is cut or damaged what is left, and :attr:`Log.problems` says so.

    Raises
    ------
    LayoutError
        It is empty, or none of the logs that are known.
    OSError
        The file can't be read.

    Examples
    --------
    >>> read(b"onednn_verbose,v1,info,oneDNN v3.12.0 (commit 80afa71)").title
    'oneDNN v3.12.0 verbose output'
    """
    source = Source(log, progress)
    try:
        found = _read(source)
    finally:
        source.close()
    if source.problem:
        return replace(found, problems=(*found.problems, source.problem))
    return found


def _read(source: Source) -> Log:
    head = source.head()
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not text:
        why = f": {source.problem}" if source.problem else ""
        raise LayoutError(f"{source.name} is empty{why}; explained are {KINDS}")
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise LayoutError(
            f"{source.name} is UTF-16, as PowerShell's > writes it, and logs are read as UTF-8: convert it "
            "with Get-Content LOG | Set-Content -Encoding utf8 NEW"
        )
    if text.startswith((b"<?xml", b"<net", b"<!DOCTYPE")):
        return openvino_graph.read(source.chunks())
    if _JSON.match(text) and not onednn.MARKER.search(head.decode("latin-1")):
        if _OPENVINO.search(head):
            return openvino_counters.read_json(source.chunks())
        if _ORT.search(head):
            return onnxruntime.read(source.chunks())
        found = pytorch.read(source.chunks())
        if found.operations or _TRACE.search(head):
            return found
        raise LayoutError(f"{source.name} is JSON, but no log that is known; explained are {KINDS}")
    if openvino_counters.HEADER.search(head.decode("latin-1")):
        return openvino_counters.read_csv(source.lines())
    verbose, printed = onednn.Reader(), openvino_counters.PrintedReader()
    for number, line in source.lines():
        verbose.feed(number, line)
        printed.feed(number, line)
    if verbose.found:
        return verbose.log()
    if printed.found:
        return printed.log()
    raise LayoutError(
        f"{source.name} is no log that is known: it begins with {head[:SHOWN]!r}; explained are {KINDS}"
    )
