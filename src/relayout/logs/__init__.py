"""Where a runtime's time went: the conversions of formats in the logs that runtimes write.

::

    log file ──reader──> Log of Events ──judged──> Explanation ──> terminal, page, JSON
                                                        │
                                                   measured here

A *reader* knows one kind of log and nothing else. It turns what the log says of a reorder, transpose or cast
into an :class:`Event`: two sides (format, data type, :class:`~relayout.MemoryDesc` where the log says enough
for one), sizes, seconds, who made the tensor and who reads it. What the log does not say stays empty; nothing
is guessed without a note in :attr:`Log.notes`. A :class:`Log` holds the events, and the time of everything
else in the log as one number.

*Judging* is the same for all kinds: equal conversions are one row, with their share of the whole; two formats
that are the same bytes for these sizes are found by :meth:`.Layout.same_bytes`; weights that are packed anew
in each call, and tensors that go from A to B and back to A, are found by descriptor and order. An
:class:`Explanation` prints itself, as text (``str``), page (:meth:`Explanation.html`) and document
(:meth:`Explanation.json`).

======================  ======================================================================================
module                  subject
======================  ======================================================================================
``events``              the values: ``Side``, ``Event``, ``Log``
``sources``             files, gzip and pipes as chunks and lines, with progress; never whole in memory
``streams``             the elements of a large JSON document, one after the other
``spans``               nested spans of time: what encloses what, and the time of all together
``onednn``              ``ONEDNN_VERBOSE=1``: ``mkldnn_verbose``, ``dnnl_verbose``, ``onednn_verbose``
``onednn_problems``     the sizes of an operation's arguments, from ``mb2_ic3oc16_ih64...``
``periods``             how often a sequence of operations repeats itself
``onnxruntime``         profiles of ONNX Runtime
``openvino_graph``      execution graphs of OpenVINO: the XML of ``get_runtime_model``
``openvino_names``      what types and names of its layers say
``openvino_counters``   performance counters of OpenVINO: CSV, JSON, and what ``benchmark_app -pc`` prints
``pytorch``             traces of ``torch.profiler``
``sides``               one end of a conversion from what logs spell: types, tags, strides, permutations
``reading``             which reader a file needs, by its content
``judging``             rows, repetitions, round trips
``advice``              a sentence for each row
``measuring``           what ``memcpy`` and Relayout take for the same conversion on this machine
``explaining``          :func:`explain` and :class:`Explanation`
``values``              the same as plain data, and the cells of its table
``text``, ``page``      terminal and HTML
======================  ======================================================================================

>>> line = (
...     "onednn_verbose,v1,primitive,exec,cpu,reorder,jit:blk,undef,"
...     "src:f32::blocked:abcd::f0 dst:f32::blocked:aBcd16b::f0,,,2x64x56x56,0.15"
... )
>>> found = explain(line.encode())
>>> row, = found.rows
>>> str(row.src), str(row.dst), row.dims, row.nbytes, row.seconds
('abcd', 'aBcd16b', (2, 64, 56, 56), 3211264, 0.00015)
"""

from __future__ import annotations

from relayout.logs.events import Event, Log, Side
from relayout.logs.explaining import Explanation, explain
from relayout.logs.judging import RoundTrip, Row
from relayout.logs.reading import read

__all__ = ["Event", "Explanation", "Log", "RoundTrip", "Row", "Side", "explain", "read"]
