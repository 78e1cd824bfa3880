"""A sentence for each row: what to do about these conversions.

The first rule that holds speaks. What it says is how the waste is avoided where it arises, in the words of
the system that wrote the log; nothing is promised that the log does not show.
"""

from __future__ import annotations

from relayout.logs.events import Log
from relayout.logs.judging import Row

__all__ = ["LITTLE", "advice"]

LITTLE = 0.002  # of the time: below that nothing is worth a change

_PACK = {
    "onednn": (
        "make the primitive with format 'any' and reorder its weights once (PyTorch: torch.compile with "
        "freezing, or relayout.torch.compile)"
    ),
    "openvino_graph": "store the constant in that format, so that nothing is left to convert",
    "pytorch": "convert the parameter once, when the model is loaded",
}
_KEEP = {
    "onednn": "keep it in {kept} (PyTorch: model and input in channels-last, or a compiled model)",
    "onnxruntime": "look which operator in between has no kernel for {kept}, and replace or fuse it",
    "openvino_graph": "look which layer in between does not take {kept}, and replace or fuse it",
    "pytorch": "keep it in {kept}, which what runs in between should preserve (relayout audit finds where)",
}
_AGREE = "let both use one format (PyTorch: model and input in channels-last, or a compiled model)"
_VIEW = {
    "pytorch": "take a view, or leave .contiguous(), .clone() or .to() out",
    "onnxruntime": "a Reshape, which moves nothing, does the same",
    "openvino_graph": "a Reshape, which moves nothing, does the same",
}


def advice(row: Row, log: Log) -> str:
    """What to do about a row; one sentence."""
    said = _advice(row, log)
    if row.share < LITTLE and log.seconds:
        return f"Leave it: less than {LITTLE:.1%} of the time is to be gained."
    return said


def _advice(row: Row, log: Log) -> str:
    src, dst = row.src.format or "its format", row.dst.format or "another one"
    if row.operation == "copy" or row.same_bytes:
        how = _VIEW.get(log.kind, "hand the buffer on under the other name")
        what = (
            "It copies without changing anything"
            if row.operation == "copy"
            else f"{src} and {dst} are the same bytes for these sizes"
        )
        return f"{what}: {how}."
    if row.weights:
        how = _PACK.get(log.kind, "convert them once, ahead of time, and keep them")
        if row.uses is not None and row.uses > row.count:
            return "Weights are packed less often than they are read, so somebody keeps them: nothing to do."
        often = "while the network runs"
        if row.for_each_use or row.in_each_call:
            often = "anew each time they are used, and not kept" if row.for_each_use else "in every call"
        return f"Weights are packed {often}: {how}."
    if row.returning:
        return _undone(row, log, src, dst)
    return _single(row, log, src, dst)


def _undone(row: Row, log: Log, src: str, dst: str) -> str:
    """What to say of round trips: the format to keep is the one that they begin and end in."""
    outwards = 2 * row.going >= row.returning
    some = "There and back again" if row.returning == row.count else f"{row.returning} go there and back"
    if row.operation == "convert":
        outer, inner = (row.src.dtype, row.dst.dtype) if outwards else (row.dst.dtype, row.src.dtype)
        return (
            f"{some}, {outer} to {inner} to {outer}: let what runs in between take {outer}, or its "
            f"neighbours {inner}."
        )
    kept, other = (src, dst) if outwards else (dst, src)
    how = _KEEP.get(log.kind, "keep it in {kept}").format(kept=kept)
    return f"{some}, {kept} to {other} to {kept}: {how}."


def _single(row: Row, log: Log, src: str, dst: str) -> str:
    """What to say of a conversion that is neither needless by itself nor undone."""
    ends = f"{row.producers[:1]}{row.consumers[:1]}"
    if row.operation == "convert":
        made = f"{row.src.dtype or 'one type'} to {row.dst.dtype or 'another'}"
        return (
            f"Only the data type changes, {made}: let the operator in front write {row.dst.dtype or 'it'}, "
            "or convert in the same pass as a reorder."
        )
    if row.operation == "transpose":
        return (
            "Fold the transpose into the product or reshape beside it, which reads any strides, or write the "
            "producer's result in that order."
        )
    if "Parameter" in ends or "Input " in ends:
        return f"It stands at the network's input: hand the network {dst} data, and it is not needed."
    if "Result" in ends or "Output" in ends:
        return f"It stands at the network's output: read the result as {src}, and it is not needed."
    if log.kind == "pytorch":
        if row.consumers and row.consumers[0].startswith("within"):
            within = row.consumers[0]
            return f"Called {within}: give it {dst} to begin with, or an operator that reads strides."
        return f"The program asks for {dst}: keep {src} if what follows reads strides, or make {dst} earlier."
    if log.kind == "onednn" and not (row.producers and row.consumers):
        whose = f"hands {src} to oneDNN, which wants" if row.consumers else f"takes {dst}, and oneDNN has"
        return f"The program {whose} {dst if row.consumers else src}: {_AGREE}."
    if row.operation == "reorder" and row.src.format and row.dst.format:
        return f"Producer and consumer disagree: let one of them take the other's format, {src} or {dst}."
    return "Look at its neighbours: one of them wants another format than the other one makes."
