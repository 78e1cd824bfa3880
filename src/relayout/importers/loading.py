"""``relayout.load``: a network of any system that there is an importer for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from relayout.errors import LayoutError, type_name
from relayout.forking import locked

if TYPE_CHECKING:
    from collections.abc import Iterable

    from relayout.graph.graph import Graph

__all__ = ["load"]


@locked
def load(source: Any) -> Any:
    """Load a network, or a run that was saved.

    Parameters
    ----------
    source : path, onnx.ModelProto or torch.export.ExportedProgram
        An ONNX file (``.onnx``, or any other name), a program that ``torch.export.save`` has written
        (``.pt2``), a run that :meth:`.Run.save` has written, or a model in memory. Data beside an ONNX file
        is read when it is used; a file whose network an earlier process has compiled, when more is asked than
        that run (:mod:`relayout.graph.kept`).

    Returns
    -------
    Graph or Run
        What it computes; :meth:`.Graph.plan` chooses formats for it, :meth:`.Graph.compile` makes it run. Of
        a file of a run, the :class:`.Run`, ready.

    Raises
    ------
    LayoutError
        There is no such file, it is damaged, or there are operators that Relayout does not know: all of them
        are named.

    Examples
    --------
    >>> import onnx  # doctest: +SKIP
    >>> graph = load("resnet50.onnx")  # doctest: +SKIP
    >>> scores, = graph.compile()(picture)  # doctest: +SKIP
    """
    if isinstance(source, (str, os.PathLike)):
        if _is_run(source):
            from relayout.graph.saving import load as of_run

            return of_run(source)
        from relayout.graph.kept import graph_of

        return graph_of(source, _read_file)
    kind = type(source)
    modules = {base.__module__.partition(".")[0] for base in kind.__mro__}
    if "torch" in modules:
        from relayout.importers.torch import load as of_torch

        return of_torch(source)
    if modules & {"onnx", "onnx_ml_pb2"} or isinstance(source, (bytes, bytearray, memoryview)):
        from relayout.importers.onnx import read

        return read(source)
    raise LayoutError(
        f"a network is a file, an onnx.ModelProto or an ExportedProgram, not {type_name(source)}"
    )


@locked
def _read_file(path: str) -> tuple[Graph, Iterable[str]]:
    """The graph in a file, and the files with its external data."""
    if path.lower().endswith(".pt2"):
        from relayout.importers.torch import load

        return load(path), ()
    from relayout.importers.onnx.reading import read_file

    return read_file(path)


@locked
def _is_run(path: str | os.PathLike[str]) -> bool:
    """Whether a file is that of a run, by what it begins with; what can't be opened is left to others."""
    from relayout.graph.plain import MAGIC

    try:
        file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
    except (OSError, ValueError):
        return False
    try:
        return os.read(file, len(MAGIC)) == MAGIC
    except OSError:  # a folder
        return False
    finally:
        os.close(file)
