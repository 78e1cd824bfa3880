"""Recurrent layers in training, and their gradients: one primitive each, with weights in its order of gates.

Weights are read in the formats that the kernels like, which are others in both directions: blocks of units
forward, blocks of both backward. The planner sees the reorders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from relayout import primitives
from relayout.graph.lowering.case import Case, Operand, label, row_major
from relayout.graph.lowering.recurrent import DIRECTIONS, FUNCTIONS
from relayout.graph.lowering.ways import Way, rule
from relayout.layout.descriptor import MemoryDesc, any_format
from relayout.ops.functions import Function

if TYPE_CHECKING:
    from relayout.graph.lowering.emission import Site
    from relayout.primitives.primitive import Primitive
    from relayout.primitives.values import Value

__all__: list[str] = []

CELLS = {"rnn": "VanillaRNN", "lstm": "LSTM", "gru": "GRU", "lbr_gru": "LBRGRU"}
"""The names of the primitives' classes."""
READ = ("src_layer", "weights_layer", "weights_iter", "bias", "src_iter", "src_iter_c", "weights_peephole")
"""The inputs of ``relayout.RecurrentTraining``, as the primitives call them."""
KEPT = ("src_layer", "weights_layer", "weights_iter", "weights_peephole", "workspace",
        "diff_dst_layer", "diff_dst_iter", "diff_dst_iter_c")  # fmt: skip
"""Those of ``relayout.RecurrentGrad``."""
MADE = ("src_layer", "weights_layer", "weights_iter", "bias", "weights_peephole", "src_iter", "src_iter_c")
"""What it gives the gradients of."""
SOURCES = ("tnc", "ntc")
USUAL = {"src_iter": "ldnc", "src_iter_c": "ldnc", "dst_iter": "ldnc", "dst_iter_c": "ldnc"}


def _named(names: tuple[str, ...], operands: tuple[Operand | None, ...]) -> dict[str, Operand]:
    """Operands by the primitives' names, without those that are left out."""
    return {name: one for name, one in zip(names, operands, strict=False) if one is not None and one.name}


def _possible(case: Case, given: Mapping[str, Operand]) -> bool:
    src, workspace = given["src_layer"], [one for one in case.outputs if one.name]
    every = [one for one in (*given.values(), *workspace) if len(one.dims) > 1]
    return (
        src.data is None
        and case.floats_of(*every)
        and not any(0 in one.dims for one in every)
        and all(name in FUNCTIONS for name in case.attributes["activations"])
    )


def _forward(case: Case, src: MemoryDesc, dims: Mapping[str, tuple[int, ...]], results: Any) -> Any:
    """The primitive for data in a format; all else is as it likes."""
    a, cell = case.attributes, case.attributes["cell"]
    descs = {name: MemoryDesc(size, src.dtype, USUAL.get(name, any_format)) for name, size in dims.items()}
    given = zip(a["activations"], a["alphas"], a["betas"], strict=True)
    functions = [Function(FUNCTIONS[name], *numbers) for name, *numbers in given]
    more: dict[str, Any] = {name: MemoryDesc(size, src.dtype, "ldnc") for name, size in results.items()}
    more |= {"activation": functions[0]} if cell == "rnn" else {"activations": functions}
    made = getattr(primitives, CELLS[cell])
    return made(src, **descs, **more, direction=DIRECTIONS[a["direction"]], workspace=True)


@rule("relayout.RecurrentTraining")
def recurrent_training(case: Case) -> Iterator[Way] | None:
    """In the order of steps and rows that the data has."""
    given = _named(READ, case.inputs)
    results = _named(("dst_layer", "workspace", "dst_iter", "dst_iter_c"), case.outputs)
    if not _possible(case, given):
        return None
    src, dims = given["src_layer"], {name: one.dims for name, one in given.items() if name != "src_layer"}
    last = {name: one.dims for name, one in results.items() if name.startswith("dst_iter")}

    def again(desc: MemoryDesc) -> Any:
        return _forward(case, desc, dims, last)

    def ways() -> Iterator[Way]:
        for text in SOURCES:
            made = again(MemoryDesc(src.dims, src.dtype, text))
            yield _way(case, made, given, results, text, again)

    return ways()


@rule("relayout.RecurrentGrad")
def recurrent_grad(case: Case) -> Iterator[Way] | None:
    """With gradients in the order of steps and rows that the data has."""
    given, wanted = _named(KEPT, case.inputs), _named(MADE, case.outputs)
    results = {f"diff_{name}": one for name, one in wanted.items()}
    if not _possible(case, given):
        return None
    src, a = given["src_layer"], case.attributes
    directions, units = given["weights_iter"].dims[1], given["weights_iter"].dims[-1]
    state = (1, directions, src.dims[1], units)
    dims = {name: one.dims for name, one in given.items() if name.startswith("weights")}
    dims |= {name: one.dims for name, one in wanted.items() if name != "src_layer"}
    coming = {name: state for name in ("dst_iter", "dst_iter_c") if f"diff_{name}" in given}

    def backward(desc: MemoryDesc) -> Any:
        forward = _forward(case, desc, dims, coming)
        descs: dict[str, Any] = {}
        for name in ("weights_layer", "weights_iter", "weights_peephole"):
            if name in given:
                descs[name] = any_format
                descs[f"diff_{name}"] = any_format if name in wanted else False
        for name in ("src_layer", "bias", "src_iter", "src_iter_c"):
            if name in forward.descs and name not in wanted:
                descs[f"diff_{name}"] = False
        if "diff_dst_layer" not in given:
            descs["diff_dst_layer"] = False
        return getattr(primitives, f"{CELLS[a['cell']]}Backward")(forward, **descs)

    def ways() -> Iterator[Way]:
        for text in SOURCES:
            made = backward(MemoryDesc(src.dims, src.dtype, text))
            yield _way(case, made, given, results, text, backward)

    return ways()


def _way(
    case: Case,
    made: Primitive,
    given: Mapping[str, Operand],
    results: Mapping[str, Operand],
    text: str,
    again: Callable[[MemoryDesc], Primitive],
) -> Way:
    """The way of a primitive; ``again`` makes it for data as they really come."""
    src = given["src_layer"]

    def make(site: Site) -> tuple[Value, ...]:
        values = {name: site.value(one) for name, one in given.items()}
        primitive = again(values["src_layer"].desc)
        found = site.add_several(primitive, **{name: values[name] for name in primitive.inputs})
        named = dict(zip(primitive.outputs, found, strict=True))
        names = {one.name: named[name] for name, one in results.items()}
        return tuple(names.get(one.name, found[0]) for one in case.outputs)

    read = {one.name: label(made.descs[name]) for name, one in given.items() if one.data is None}
    read[src.name] = label(MemoryDesc(src.dims, src.dtype, text))
    formats = {one.name: label(made.descs[name]) for name, one in results.items()}
    outputs = tuple(formats.get(one.name) or row_major(one.dims, one.dtype) for one in case.outputs)
    return Way(read, outputs, made.candidates()[0].cost, make, text)
