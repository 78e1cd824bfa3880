"""Operators of older versions in terms of the newest.

A rule belongs to an operator and to the version that changed it: ``@before(13, "Squeeze")`` rewrites a
Squeeze of any version below 13 as one of version 13. Rules are applied one after the other, until the meaning
is the newest, so that each says what one version changed and nothing else: the attribute ``scales`` of
Upsample-7 becomes an input (9), Upsample-9 a Resize-10, Resize-10 a Resize-11 with another way to count
pixels. A rule returns the rewritten call, or writes nodes itself and returns None.

Most changes turn attributes into inputs. Others change defaults (the axis of Softmax), what is broadcast
(``axis`` of Add-1), or what is computed (Softmax flattened its input before 13). Where a rule must know sizes
it writes nodes that compute them, which disappear as soon as sizes are known
(:mod:`relayout.graph.inference`).

Sources: the schemas of all versions, as ``onnx.defs.get_all_schemas_with_history()`` has them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np

from relayout.errors import LayoutError, Unsupported
from relayout.graph.graph import Graph, Node, Value
from relayout.graph.operators.types import NUMBERS
from relayout.importers.onnx.building import Call, Writer
from relayout.importers.onnx.microsoft import RULES as OF_RUNTIMES

__all__ = ["NEWEST", "newest"]

NEWEST: Final[dict[str, int]] = {"": 28, "ai.onnx.ml": 5, "ai.onnx.preview.training": 1, "ai.onnx.preview": 1}
"""The last version of each domain whose meaning is known here."""

Rule: TypeAlias = Callable[[Call, Writer], "Call | None"]

RULES: Final[dict[str, list[tuple[int, Rule]]]] = {}
"""For each operator its rules, with the versions that they lead to, in ascending order."""

BINARY = ("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less")
REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")


def newest(call: Call, writer: Writer) -> Call | None:
    """A call in the newest meaning; None where nodes were written in its place.

    Parameters
    ----------
    call : Call
        An operator in the meaning of its version.
    writer : Writer
        What rules write with.

    Raises
    ------
    LayoutError
        The call is none of that version.
    relayout.errors.Unsupported
        It can't be said in newer words.
    """
    remaining: Call | None = call
    if call.operator in OF_RUNTIMES:
        OF_RUNTIMES[call.operator](call, writer)
        return None
    if call.version < 6 and "consumed_inputs" in call.attributes:  # advice about memory
        remaining = call.but("consumed_inputs")
    while remaining is not None:
        version = remaining.version
        following = next((one for one in RULES.get(remaining.operator, ()) if one[0] > version), None)
        if following is None:
            return remaining
        until, rule = following
        changed = rule(remaining, writer)
        if changed is None:
            return None
        remaining = changed.but(version=max(until, changed.version))
    return None


def before(version: int, *operators: str) -> Callable[[Rule], Rule]:
    """Enter a rule that leads to a version of some operators."""

    def enter(rule: Rule) -> Rule:
        for operator in operators:
            several = RULES.setdefault(operator, [])
            several.append((version, rule))
            several.sort(key=lambda one: one[0])
        return rule

    return enter


ALWAYS: Final = 1 << 30
"""A version that never comes: for what is to be tidied in all versions."""


# ---- attributes that became inputs


def _moved(
    call: Call, writer: Writer, name: str, place: int, dtype: Any = np.int64, default: Any = None
) -> Call:
    """A call with an attribute as a constant input."""
    value = call.get(name, default)
    if value is None or call.input(place):
        return call.but(name)
    inputs = (*call.inputs, *[""] * place)[:place]
    return call.but(name, inputs=(*inputs, writer.constant(value, dtype), *call.inputs[place + 1 :]))


@before(13, "Squeeze", "Unsqueeze", "ReduceSum")
@before(18, *(f"Reduce{name}" for name in REDUCTIONS))
def _axes(call: Call, writer: Writer) -> Call:
    return _moved(call, writer, "axes", 1)


@before(2, "Split")
def _split_1(call: Call, writer: Writer) -> Call | None:
    if call.input(1):  # sizes were an input already, as they are again in 13
        return call.but("split", version=13)
    return call


@before(13, "Split")
def _split_2(call: Call, writer: Writer) -> Call:
    return _moved(call, writer, "split", 1)


@before(18, "Split")
def _split_13(call: Call, _: Writer) -> Call:
    return call if call.input(1) else call.but(attributes={"num_outputs": len(call.outputs)})


@before(10, "Slice")
def _slice_1(call: Call, writer: Writer) -> Call:
    starts, ends, axes = call.get("starts"), call.get("ends"), call.get("axes")
    if len(starts) != len(ends):
        raise LayoutError(f"Slice has {len(starts)} starts and {len(ends)} ends")
    inputs = [call.input(0), writer.constant(starts), writer.constant(ends)]
    if axes is not None:
        inputs.append(writer.constant(axes))
    return call.but("starts", "ends", "axes", inputs=tuple(inputs))


@before(2, "Pad")
def _pad_1(call: Call, _: Writer) -> Call:
    return call.but("paddings", attributes={"pads": call.get("paddings", ())})


@before(11, "Pad")
def _pad_2(call: Call, writer: Writer) -> Call:
    value = writer.like(call.get("value", 0.0), call.input(0))
    inputs = call.input(0), writer.constant(call.get("pads", ())), value
    return call.but("pads", "value", inputs=inputs)


@before(11, "Clip")
def _clip_1(call: Call, writer: Writer) -> Call:
    """From version 6 on bounds that are left out are the largest finite numbers."""
    x, inputs = call.input(0), [call.input(0)]
    for name, sign in (("min", -1), ("max", 1)):
        value = call.get(name)
        if value is None and call.version >= 6:
            dtype = writer.dtype(x)
            limits = np.finfo(np.float32 if dtype is None or dtype.kind != "f" else dtype)
            value = sign * float(limits.max)
        inputs.append("" if value is None else writer.like(value, x))
    return call.but("min", "max", inputs=tuple(inputs))


@before(10, "TopK")
def _topk_1(call: Call, writer: Writer) -> Call:
    return _moved(call.but("k", attributes={"K": [call.get("k", 0)]}), writer, "K", 1)


@before(5, "Reshape")
def _reshape_1(call: Call, writer: Writer) -> Call:
    return _moved(call, writer, "shape", 1, default=())


@before(20, "DFT")
def _dft_17(call: Call, writer: Writer) -> Call:
    return _moved(call, writer, "axis", 2, default=1)


@before(12, "Dropout")
def _dropout_1(call: Call, writer: Writer) -> Call | None:
    """Random until version 6 unless ``is_test`` is set; never in 7 and 10, which have no training."""
    x, outputs = call.input(0), call.outputs
    inputs: tuple[str, ...] = (x, writer.constant(call.get("ratio", 0.5), np.float32))
    if call.version < 7 and not call.get("is_test", 0):
        inputs = (*inputs, writer.constant(True, np.bool_))
    call = call.but("ratio", "is_test", inputs=inputs)
    if call.version >= 10 or len(outputs) < 2 or not outputs[1]:
        return call
    made, mask = writer.add("Dropout", *inputs, count=2)  # the mask had the type of the data
    writer.add("Identity", made, into=outputs[0] or "")
    writer.add("CastLike", mask, x, into=outputs[1])
    return None


@before(6, "Tile")
def _tile_1(call: Call, writer: Writer) -> Call:
    """One number of repetitions and one axis, both inputs."""
    x, tiles, axis = (call.input(i) for i in range(3))
    one = writer.constant([1])
    shape = writer.add("Reshape", axis, one), writer.add("Reshape", tiles, one)
    where, count = (writer.add("Cast", part, to=7) for part in shape)
    ones = writer.add("Expand", one, writer.rank_of(x))
    return call.but(inputs=(x, writer.add("ScatterElements", ones, where, count)))


@before(9, "ConstantFill")
def _constant_fill(call: Call, writer: Writer) -> Call:
    """An experiment before ConstantOfShape, which exporters of recurrent layers still write."""
    dtype, value = call.get("dtype", 1), call.get("value", 0.0)
    if dtype not in NUMBERS:
        raise LayoutError(f"ConstantFill of data type {dtype!r}")
    x = call.input(0)
    if not x:
        shape = writer.constant(call.get("shape", ()))
    elif call.get("input_as_shape", 0):
        shape = writer.add("Cast", x, to=7)
    else:
        shape = writer.shape(x)
    if call.get("extra_shape"):
        shape = writer.add("Concat", shape, writer.constant(call.get("extra_shape")), axis=0)
    filling = {"value": np.full(1, value).astype(NUMBERS[dtype])}
    words = "dtype", "extra_shape", "input_as_shape", "shape"
    return call.but(*words, operator="ConstantOfShape", inputs=(shape,), attributes=filling)


# ---- broadcasting


@before(7, *BINARY)
def _binary_1(call: Call, writer: Writer) -> Call:
    """The second operand lies within the first, from ``axis`` on or at its end; or dims are equal."""
    a, b = call.input(0), call.input(1)
    axis = call.get("axis")
    call = call.but("axis", "broadcast")
    return call if axis is None else call.but(inputs=(a, _aligned(b, a, axis, writer)))


@before(7, "PRelu")
def _prelu_1(call: Call, writer: Writer) -> Call:
    """A slope for each channel."""
    x, slope = call.input(0), call.input(1)
    return call if writer.rank(slope) == 0 else call.but(inputs=(x, _aligned(slope, x, 1, writer)))


@before(7, "Gemm")
def _gemm_1(call: Call, _: Writer) -> Call:
    return call.but("broadcast")


def _aligned(b: str, a: str, axis: int, writer: Writer) -> str:
    """A tensor with axes of size 1 behind its own, so that its first one is an axis of another tensor."""
    one, other = writer.rank(a), writer.rank(b)
    if one is not None and other is not None:
        behind = one - (axis + one if axis < 0 else axis) - other
        if behind <= 0:
            return b
        return str(writer.add("Unsqueeze", b, writer.constant(range(other, other + behind))))
    first = writer.constant([axis])
    if axis < 0:
        first = writer.add("Add", first, writer.rank_of(a))
    behind_all = writer.add("Sub", writer.add("Sub", writer.rank_of(a), first), writer.rank_of(b))
    ones = writer.add("Expand", writer.constant([1]), writer.add("Max", behind_all, writer.constant([0])))
    return str(writer.add("Reshape", b, writer.add("Concat", writer.shape(b), ones, axis=0), allowzero=1))


# ---- other defaults and words


@before(4, "Concat")
def _concat_1(call: Call, _: Writer) -> Call:
    return call.but(attributes={"axis": call.get("axis", 1)})


@before(6, "Cast")
def _cast_1(call: Call, _: Writer) -> Call:
    """The type by its name."""
    to = call.get("to")
    names = {
        "float": "float32",
        "double": "float64",
        "string": "object",
    }
    wanted = str(to).lower()
    found = [n for n, dtype in NUMBERS.items() if dtype.name == names.get(wanted, wanted)]
    if isinstance(to, int):
        return call
    if not found:
        raise LayoutError(f"Cast to {to!r}, which is no data type")
    return call.but(attributes={"to": found[0]})


@before(6, "Selu")
def _selu_1(call: Call, _: Writer) -> Call:
    given = {
        "alpha": call.get("alpha", float(np.float32(1.6732))),
        "gamma": call.get("gamma", float(np.float32(1.0507))),
    }
    return call.but(attributes=given)


@before(2, "LpPool", "GlobalLpPool")
def _p_1(call: Call, _: Writer) -> Call:
    """The exponent was any number; since version 2 it is a whole one."""
    p = call.get("p", 2.0)
    if p != int(p):
        raise Unsupported(f"{call.operator} with p = {p}: only whole numbers")
    return call.but(attributes={"p": int(p)})


@before(7, "RNN", "GRU", "LSTM")
def _recurrent_1(call: Call, _: Writer) -> Call:
    """Whether there is a first output shows by its name."""
    return call.but("output_sequence")


@before(20, "GridSample")
def _grid_sample_16(call: Call, _: Writer) -> Call:
    words = {"bilinear": "linear", "bicubic": "cubic"}
    mode = call.get("mode", "bilinear")
    return call.but(attributes={"mode": words.get(mode, mode)})


@before(16, "RoiAlign")
def _roi_align_10(call: Call, _: Writer) -> Call:
    return call.but(attributes={"coordinate_transformation_mode": "output_half_pixel"})


@before(2, "ai.onnx.ml.LabelEncoder")
def _label_encoder_1(call: Call, writer: Writer) -> Call:
    """One list of texts for both directions: numbers from texts, or texts from numbers."""
    dtype, texts = writer.dtype(call.input(0)), call.get("classes_strings", ())
    if dtype is None:
        raise Unsupported("LabelEncoder-1 of a value whose data type is unknown")
    numbers = tuple(range(len(texts)))
    if dtype.kind == "O":
        given = {"keys_strings": texts, "values_int64s": numbers}
    else:
        given = {"keys_int64s": numbers, "values_strings": texts}
    return call.but("classes_strings", attributes=given)


@before(11, "Scatter")
def _scatter_9(call: Call, _: Writer) -> Call:
    return call.but(operator="ScatterElements")


@before(11, "OneHot")
def _one_hot_9(call: Call, writer: Writer) -> Call:
    """Negative indices were outside; since version 11 they count from the end."""
    indices, depth = call.input(0), call.input(1)
    data = writer.data(indices)
    if data is not None and np.all(data >= 0):
        return call
    outside = writer.add("CastLike", depth, indices)
    if writer.rank(depth) != 0:
        outside = writer.add("Reshape", outside, writer.constant([]))
    negative = writer.add("Less", indices, writer.like(0, indices))
    return call.but(inputs=(writer.add("Where", negative, outside, indices), *call.inputs[1:]))


# ---- what is computed


@before(13, "Softmax", "LogSoftmax", "Hardmax")
def _softmax_1(call: Call, writer: Writer) -> Call | None:
    """Over all axes from ``axis`` on together; since version 13 over one."""
    x, axis = call.input(0), call.get("axis", 1)
    rank = writer.rank(x)
    if axis == -1 or (rank is not None and axis % max(rank, 1) == rank - 1):
        return call.but(attributes={"axis": -1})
    flat = writer.add("Flatten", x, axis=axis)
    made = writer.add(call.operator, flat, axis=-1)
    writer.add("Reshape", made, writer.shape(x), into=call.outputs[0], allowzero=1)
    return None


@before(14, "BatchNormalization")
def _batch_normalization_1(call: Call, writer: Writer) -> Call | None:
    """Training shows by an attribute until version 6, and by further outputs until 13."""
    if call.version < 7:
        training = not call.get("is_test", 0)
    else:
        training = any(call.outputs[1:])
    spatial = call.get("spatial", 1) if call.version < 9 else 1
    call = call.but("is_test", "spatial")
    if not spatial:
        _each_place(call, training, writer)
        return None
    if not training:
        return call.but(outputs=call.outputs[:1])
    _saved(call, writer)
    return call.but(attributes={"training_mode": 1}, outputs=call.outputs[:3])


def _saved(call: Call, writer: Writer) -> None:
    """The statistics of the batch itself, the last two outputs of training until version 13."""
    names = (*call.outputs, *[""] * 5)[3:5]
    if not any(names):
        return
    x = call.input(0)
    rank = writer.rank(x)
    if rank is None:
        raise Unsupported(
            f"BatchNormalization-{call.version} with saved statistics, and an unknown number of axes"
        )
    axes = writer.constant([i for i in range(rank) if i != 1])
    _statistics(x, axes, 0, names, writer)


def _statistics(x: str, axes: str, keepdims: int, into: tuple[str, ...], writer: Writer) -> tuple[str, str]:
    """Mean and variance over some axes."""
    wide = writer.add("ReduceMean", x, axes, keepdims=1)
    off = writer.add("Sub", x, wide)
    mean = writer.add("ReduceMean", x, axes, keepdims=keepdims, into=into[0])
    variance = writer.add("ReduceMean", writer.add("Mul", off, off), axes, keepdims=keepdims, into=into[1])
    return mean, variance


def _each_place(call: Call, training: bool, writer: Writer) -> None:
    """Scale, bias and statistics for each channel and place."""
    x, scale, bias, mean, variance = (call.input(i) for i in range(5))
    if training:
        outputs = (*call.outputs, *[""] * 5)[:5]
        moving, saved = (mean, variance), outputs[3:5]
        mean, variance = _statistics(x, writer.constant([0]), 0, saved, writer)
        momentum = call.get("momentum", 0.9)
        for old, new, name in zip(moving, (mean, variance), outputs[1:3], strict=True):
            if name:
                parts = (
                    writer.add("Mul", old, writer.like(momentum, x)),
                    writer.add("Mul", new, writer.like(1 - momentum, x)),
                )
                writer.add("Add", *parts, into=name)
    spread = writer.add("Sqrt", writer.add("Add", variance, writer.like(call.get("epsilon", 1e-5), x)))
    normal = writer.add("Div", writer.add("Sub", x, mean), spread)
    writer.add("Add", writer.add("Mul", normal, scale), bias, into=call.outputs[0])


@before(21, "GroupNormalization")
def _group_normalization_18(call: Call, writer: Writer) -> Call:
    """Scale and bias for each group; since version 21 for each channel."""
    x, groups = call.input(0), call.get("num_groups", 0)
    if groups < 1:
        raise LayoutError(f"GroupNormalization of {groups} groups")
    each = writer.add("Div", writer.shape(x, 1, 2), writer.constant([groups]))
    shape = writer.add("Concat", writer.constant([groups]), each, axis=0)
    one, all_of_them = writer.constant([1]), writer.constant([-1])
    inputs = [x]
    for name in call.inputs[1:3]:
        wide = writer.add("Expand", writer.add("Unsqueeze", name, one), shape)
        inputs.append(writer.add("Reshape", wide, all_of_them))
    return call.but(inputs=tuple(inputs))


@before(7, "Upsample")
def _upsample_1(call: Call, _: Writer) -> Call:
    scales = 1.0, 1.0, call.get("height_scale", 1.0), call.get("width_scale", 1.0)
    mode = call.get("mode", "nearest")
    given = {"scales": scales, "mode": "linear" if mode == "bilinear" else mode}
    return call.but("height_scale", "width_scale", attributes=given)


@before(9, "Upsample")
def _upsample_7(call: Call, writer: Writer) -> Call:
    return _moved(call, writer, "scales", 1, np.float32, default=())


@before(10, "Upsample")
def _upsample_9(call: Call, _: Writer) -> Call:
    return call.but(operator="Resize")


@before(11, "Resize")
def _resize_10(call: Call, writer: Writer) -> Call:
    """Pixels were points at whole numbers. The nearest is that below, and above along axes that shrink.

    The cases of version 10 (``resize_downsample_nearest``) and ONNX Runtime say so.
    """
    image, scales = call.input(0), call.input(1)
    known = writer.data(scales)
    words: dict[str, Any] = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    if call.get("mode", "nearest") == "nearest" and not (known is not None and np.all(known >= 1)):
        shrinking = {**words, "mode": "nearest", "nearest_mode": "ceil"}
        if known is not None and np.all(known <= 1):
            words = shrinking
        else:
            one = writer.constant(1, np.float32)
            image = writer.add("Resize", image, "", writer.add("Min", scales, one), **shrinking)
            scales = writer.add("Max", scales, one)
    return call.but(inputs=(image, "", scales), attributes=words)


@before(13, "Resize")
def _resize_11(call: Call, _: Writer) -> Call:
    """A place that versions 11 and 12 have half a pixel further on: another rounding of that of all versions.

    It is there for the nearest pixel, and TensorFlow's models have it with ``floor``. Where no rounding says
    the same, the definition knows the place.
    """
    if call.get("coordinate_transformation_mode") != "tf_half_pixel_for_nn":
        return call
    rounding = {"floor": "round_prefer_ceil", "round_prefer_floor": "ceil"}.get(
        call.get("nearest_mode", "round_prefer_floor")
    )
    if call.get("mode", "nearest") != "nearest" or rounding is None:
        return call
    words = {"coordinate_transformation_mode": "half_pixel", "nearest_mode": rounding}
    return call.but(attributes=words)


@before(ALWAYS, "Resize")
def _resize(call: Call, writer: Writer) -> Call:
    """Inputs that are left out were empty tensors in version 11, and still are in many files."""
    roi, scales, sizes = (call.input(i) for i in (1, 2, 3))
    if call.get("coordinate_transformation_mode") != "tf_crop_and_resize":
        roi = ""
    if sizes and not writer.is_empty(sizes):
        scales = ""
    else:
        sizes = ""
    inputs = call.input(0), roi, scales, sizes
    return call.but(inputs=inputs[: max(i for i, name in enumerate(inputs) if name) + 1])


@before(9, "Scan")
def _scan_8(call: Call, writer: Writer) -> Call | None:
    """A scan of each image of a batch: since version 9 batches are scanned like anything else.

    Lengths of their own, one for each image, would make results of different sizes; padded with zeros in
    version 8.
    """
    lengths, given = call.input(0), call.inputs[1:]
    scanned = call.get("num_scan_inputs", 0)
    captured = call.get("captured", 0)
    body: Graph = call.get("body")
    directions = tuple(call.get("directions") or (0,) * scanned)
    if lengths and any(directions):
        raise Unsupported("Scan-8 backwards over sequences of different lengths")
    own, free = given[: len(given) - captured], given[len(given) - captured :]
    states = len(own) - scanned
    inner = {"body": body, "num_scan_inputs": scanned, "scan_input_directions": directions}
    if captured:
        inner["captured"] = captured
    graph = _one_of_batch(body, inner, states, len(own), bool(lengths))
    outer: dict[str, Any] = {"body": graph, "num_scan_inputs": len(own) + bool(lengths)}
    if captured:
        outer["captured"] = captured
    inputs = (*own, *([lengths] if lengths else ()), *free)
    writer.add("Scan", *inputs, into=call.outputs, **outer)
    return None


def _one_of_batch(body: Graph, inner: dict[str, Any], states: int, own: int, cut: bool) -> Graph:
    """The scan of one image, as the body of a scan over images."""
    values = [Value(f"given.{i}") for i in range(own)]
    captured = [Value(f"captured.{i}", one.dims, one.dtype) for i, one in enumerate(body.inputs[own:])]
    nodes, constants = [], {"zero": np.zeros(1, np.int64), "one": np.ones(1, np.int64)}
    read = [value.name for value in values]
    results = [f"result.{i}" for i in range(len(body.results))]
    made = list(results)
    if cut:
        nodes.append(Node("Reshape", ("length", "one"), ("end",)))
        for i in range(states, own):
            nodes.append(Node("Slice", (read[i], "zero", "end", "zero"), (f"cut.{i}",)))
            read[i] = f"cut.{i}"
    nodes.append(Node("Scan", (*read, *(value.name for value in captured)), tuple(results), inner))
    if cut and own > states:
        nodes.append(Node("Shape", (values[states].name,), ("whole",), {"end": 1}))
        nodes.append(Node("Sub", ("whole", "end"), ("rest",)))
        nodes.append(Node("Concat", ("zero", "rest"), ("pads",), {"axis": 0}))
        for i in range(states, len(results)):
            nodes.append(Node("Pad", (results[i], "pads", "", "zero"), (f"padded.{i}",)))
            made[i] = f"padded.{i}"
    lengths = [Value("length", (), np.dtype("int64"))] if cut else []
    return Graph((*values, *lengths, *captured), tuple(made), tuple(nodes), constants)
