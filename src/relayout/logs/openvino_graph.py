"""Execution graphs of OpenVINO: the XML of ``compiled_model.get_runtime_model()``, or ``-exec_graph_path``.

A layer has a type, sizes of its ports, and what the device has chosen: ``outputLayouts`` (oneDNN's tags on
CPUs, names such as ``b_fs_yx_fsv16`` on GPUs), ``outputPrecisions``, ``execTimeMcs``, the average of all
calls in microseconds, or ``not_executed``. Edges follow the layers, so who made and who reads a tensor is
exact. A layer says its output's format; its input's is that of whoever feeds it.

Layers that did not run are left out: a transpose of weights is folded when the model is compiled, a reorder
that moves nothing is skipped.

The file is read by a parser that forgets what it has seen, and document types are refused: no runtime writes
them, and they are how a few lines of XML fill a memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from xml.parsers import expat

from relayout.errors import LayoutError
from relayout.logs.events import Event, Log, Side
from relayout.logs.openvino_names import KINDS, ends
from relayout.logs.sides import in_order, named_type, permutation, tagged

__all__ = ["read"]


@dataclass
class _Layer:
    """A layer, while and after its element is read."""

    name: str
    type: str
    line: int
    layouts: list[str] = field(default_factory=list)
    precisions: list[str] = field(default_factory=list)
    seconds: float | None = None
    originals: str = ""
    inputs: list[tuple[str, str, tuple[int, ...]]] = field(default_factory=list)
    """Port, precision, sizes."""
    outputs: list[tuple[str, str, tuple[int, ...]]] = field(default_factory=list)


class _Parser:
    """Layers by their id, and edges, of a document that comes in pieces."""

    def __init__(self) -> None:
        self.layers: dict[str, _Layer] = {}
        self.feeds: dict[tuple[str, str], tuple[str, str]] = {}
        self.readers: dict[str, list[str]] = {}
        self.root = ""
        self.problem = ""
        self._layer: _Layer | None = None
        self._ports: list[tuple[str, str, tuple[int, ...]]] | None = None
        self._port = ("", "")
        self._dims: list[int] = []
        self._text: list[str] | None = None
        self._expat = expat.ParserCreate()
        self._expat.StartElementHandler = self._start
        self._expat.EndElementHandler = self._end
        self._expat.CharacterDataHandler = self._data
        self._expat.StartDoctypeDeclHandler = self._doctype

    def read(self, chunks: Iterable[bytes]) -> None:
        """Parse until the end, or until something is wrong."""
        try:
            for chunk in chunks:
                self._expat.Parse(chunk, False)
            self._expat.Parse(b"", True)
        except expat.ExpatError as error:
            what = expat.ErrorString(error.code)
            cut = error.code in (3, 5)  # no element found, unclosed token: the document ends
            self.problem = (
                f"it ends too early, at line {error.lineno}" if cut else f"line {error.lineno}: {what}"
            )

    def _doctype(self, *_: object) -> None:
        raise LayoutError("this XML declares a document type, as no runtime writes; it is not read")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self.root = self.root or name
        if name == "layer":
            self._layer = _Layer(
                attributes.get("name", ""), attributes.get("type", ""), self._expat.CurrentLineNumber
            )
            self.layers.setdefault(attributes.get("id", ""), self._layer)
        elif name == "edge":
            source, target = attributes.get("from-layer", ""), attributes.get("to-layer", "")
            self.feeds[target, attributes.get("to-port", "")] = source, attributes.get("from-port", "")
            self.readers.setdefault(source, []).append(target)
        elif self._layer is not None:
            self._inside(name, attributes, self._layer)

    def _inside(self, name: str, attributes: dict[str, str], layer: _Layer) -> None:
        if name == "data":
            layer.layouts = attributes.get("outputLayouts", "").split(",")
            layer.precisions = attributes.get("outputPrecisions", "").split(",")
            layer.originals = attributes.get("originalLayersNames", "")
            layer.type = attributes.get("layerType", "") or layer.type
            layer.seconds = _microseconds(attributes.get("execTimeMcs", ""))
        elif name in ("input", "output"):
            self._ports = layer.inputs if name == "input" else layer.outputs
        elif name == "port":
            self._port, self._dims = (attributes.get("id", ""), attributes.get("precision", "")), []
        elif name == "dim":
            self._text = []

    def _data(self, text: str) -> None:
        if self._text is not None:
            self._text.append(text)

    def _end(self, name: str) -> None:
        if name == "layer":
            self._layer = self._ports = None
        elif name == "dim" and self._text is not None:
            digits = "".join(self._text).strip()
            plain = digits.isascii() and digits.isdigit() and len(digits) < 19
            self._dims.append(int(digits) if plain else -1)
            self._text = None
        elif name == "port" and self._ports is not None:
            self._ports.append((*self._port, tuple(self._dims)))


def _microseconds(text: str) -> float | None:
    """Seconds; None for a layer that did not run."""
    try:
        value = float(text) * 1e-6
    except ValueError:
        return None
    return value if 0 <= value < 1e12 else None


def read(chunks: Iterable[bytes]) -> Log:
    """The log of an execution graph, from pieces of the file.

    Raises
    ------
    LayoutError
        It is XML, but no network; or it declares a document type.
    """
    parser = _Parser()
    parser.read(chunks)
    if parser.root != "net" and (parser.root or not parser.problem):
        raise LayoutError(
            f"this XML is no execution graph of OpenVINO: its root is <{parser.root}>, not <net>"
        )
    timed = {key: one for key, one in parser.layers.items() if one.seconds is not None}
    events = [
        event
        for key, layer in timed.items()
        if KINDS.get(layer.type.lower()) and (event := _event(parser, key, layer)) is not None
    ]
    fused = [one for one in timed.values() if one.type == "Subgraph" and "Transpose" in one.originals]
    notes = []
    if not timed:
        plain = not any(any(one.layouts) for one in parser.layers.values())
        notes.append(
            "a model, not an execution graph: get_runtime_model() of the compiled model has formats and times"
            if plain
            else "no layer has a time: compile with PERF_COUNT, and run before get_runtime_model()"
        )
    if fused:
        seconds = sum(one.seconds or 0.0 for one in fused) * 1e6
        notes.append(
            f"{len(fused)} layers of type Subgraph ({seconds:.0f} us) transpose among other things; the "
            "part of that is not in the log"
        )
    return Log(
        "openvino_graph",
        "execution graph of OpenVINO",
        tuple(events),
        sum(one.seconds or 0.0 for one in timed.values()),
        len(timed),
        1 if timed else None,
        problems=(parser.problem,) if parser.problem else (),
        notes=tuple(notes),
    )


def _event(parser: _Parser, key: str, layer: _Layer) -> Event | None:
    """A conversion, with the layers around it."""
    maker, port = parser.feeds.get((key, layer.inputs[0][0]), ("", "")) if layer.inputs else ("", "")
    source = parser.layers.get(maker)
    precision, dims = layer.inputs[0][1:] if layer.inputs else ("", ())
    known = bool(layer.inputs) and -1 not in dims
    result = layer.outputs[0][2] if layer.outputs else ()
    made = layer.precisions[0] or (layer.outputs[0][1] if layer.outputs else "")
    layout = layer.layouts[0] if layer.layouts else ""
    before = _layout_of(source, port) if source is not None else ""
    if not before:
        named = ends(layer.name)
        before = named.src if named else ""
    sizes = dims if known else None
    src, dst = tagged(before, precision, sizes), tagged(layout, made, sizes)
    kind = KINDS[layer.type.lower()]
    if kind == "transpose":
        perm = permutation(dims, result) if known else None
        letters = "abcdefghijkl"[: len(dims)]
        if perm is not None and before in ("", letters) and layout in ("", letters):
            src, dst = tagged(letters, precision, sizes), in_order(dims, perm, made)
        else:
            dst = Side("", named_type(made))
    readers = [parser.layers[one].name for one in parser.readers.get(key, ()) if one in parser.layers]
    return Event(
        _kind(kind, src, dst),
        layer.name,
        src,
        dst,
        sizes,
        layer.seconds or 0.0,
        f"{source.type} {source.name}" if source is not None else "",
        ", ".join(readers[:3]) + (", ..." if len(readers) > 3 else ""),
        source is not None and source.type.lower() in ("const", "constant"),
        layer.line,
    )


def _kind(kind: str, src: Side, dst: Side) -> str:
    """A reorder that only changes the data type is a conversion."""
    if kind == "reorder" and src.format and src.format == dst.format:
        return "convert" if src.dtype != dst.dtype else "copy"
    return kind


def _layout_of(layer: _Layer, port: str) -> str:
    """The format of an output port of a layer."""
    place = next((k for k, one in enumerate(layer.outputs) if one[0] == port), 0)
    return layer.layouts[place] if place < len(layer.layouts) else ""
