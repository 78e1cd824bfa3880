"""Operators of all versions against the reference evaluator, ONNX Runtime, and formulas.

Each case is a model of one node, in one version of its operator. Three may know the answer: the ``onnx``
package's reference evaluator, ONNX Runtime (from version 7 on), and a formula in NumPy taken from the text of
that version. At least one must, and all that do must agree.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from relayout.errors import LayoutError, Unsupported
from relayout.graph.inference import inferred

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, defs, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

from relayout.importers.onnx import read  # noqa: E402
from relayout.importers.onnx.versions import RULES  # noqa: E402

Array = np.ndarray[Any, Any]
RANDOM = np.random.default_rng(12)
F32 = np.float32


def real(*dims: int) -> Array:
    return RANDOM.standard_normal(dims).astype(F32)


def positive(*dims: int) -> Array:
    return (RANDOM.random(dims) + 0.5).astype(F32)


def whole(*dims: int, low: int = -5, high: int = 5) -> Array:
    return RANDOM.integers(low, high, dims)


@dataclass(frozen=True, eq=False)
class Case:
    """A node of some versions of an operator.

    ``formula`` computes the outputs from the inputs. ``peers`` leaves out those that are known to answer for
    another version than the one asked for.
    """

    operator: str
    versions: tuple[int, ...]
    inputs: tuple[Array, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    formula: Callable[..., Any] | None = None
    peers: tuple[str, ...] = ("reference", "runtime")

    def __post_init__(self) -> None:
        arrays = tuple(None if one is None else np.asarray(one) for one in self.inputs)
        object.__setattr__(self, "inputs", arrays)

    def models(self) -> Iterator[tuple[int, Any]]:
        for version in self.versions:
            yield version, model(self.operator, version, self.inputs, self.attributes, self.outputs)


def model(
    operator: str, version: int, inputs: tuple[Array, ...], attributes: dict[str, Any], outputs: int
) -> Any:
    names = [f"x{i}" if one is not None else "" for i, one in enumerate(inputs)]
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(operator, names, results, "the_node", **attributes)
    graph = helper.make_graph(
        [node],
        "one",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(one.dtype), one.shape)
            for name, one in zip(names, inputs, strict=True)
            if name
        ],
        [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in results],
    )
    for result in graph.output:
        result.ClearField("type")
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)])
    made.ir_version = 8 if version < 21 else 10
    return made


def by_reference(proto: Any, inputs: tuple[Array, ...]) -> list[Any]:
    feeds = {f"x{i}": one for i, one in enumerate(inputs) if one is not None}
    return list(ReferenceEvaluator(proto).run(None, feeds))


def by_runtime(proto: Any, inputs: tuple[Array, ...]) -> list[Any]:
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    session = runtime.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
    return list(session.run(None, {f"x{i}": one for i, one in enumerate(inputs) if one is not None}))


PEERS = {"reference": by_reference, "runtime": by_runtime}


def answers(case: Case, proto: Any, version: int) -> Iterator[tuple[str, list[Any]]]:
    """What peers say, where they say anything."""
    if case.formula is not None:
        made = case.formula(*(one for one in case.inputs if one is not None))
        yield "formula", list(made) if isinstance(made, tuple) else [made]
    for name in case.peers:
        if name == "runtime" and version < 7:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield name, PEERS[name](proto, case.inputs)
        except Exception:
            continue


def binary(operator: str, function: Callable[..., Any], kind: Callable[..., Array] = real) -> Iterator[Case]:
    """Operators of two operands, whose broadcasting version 7 changed."""
    a = kind(2, 3, 4, 5)
    yield Case(operator, (1, 6), (a, kind(2, 3, 4, 5)), formula=function)
    for b, axis in ((kind(3, 4), 1), (kind(2), 0), (kind(4), -2), (kind(3, 1, 1), 1)):
        behind = 4 - axis % 4 - b.ndim
        yield Case(
            operator,
            (1, 6),
            (a, b),
            {"broadcast": 1, "axis": axis},
            formula=lambda x, y, n=behind: function(x, y.reshape(*y.shape, *(1,) * n)),
            peers=(),
        )
    yield Case(operator, (1, 6), (a, kind(4, 5)), {"broadcast": 1}, formula=function)
    yield Case(operator, (1, 6), (a, kind(1, 1)), {"broadcast": 1}, formula=function)
    yield Case(operator, (7,), (a, kind(3, 1, 5)), formula=function)


def flattened(function: Callable[[Array], Array], axis: int) -> Callable[[Array], Array]:
    def of(x: Array) -> Array:
        start = axis % x.ndim
        return function(x.reshape(int(np.prod(x.shape[:start])), -1)).reshape(x.shape)

    return of


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def hardmax(x: Array) -> Array:
    return (np.arange(x.shape[-1]) == x.argmax(-1)[:, None]).astype(x.dtype)


def normal(x: Array, scale: Array, bias: Array, mean: Array, var: Array) -> Array:
    wide = [one.reshape(-1, *(1,) * (x.ndim - 2)) for one in (scale, bias, mean, var)]
    return ((x - wide[2]) / np.sqrt(wide[3] + F32(1e-5)) * wide[0] + wide[1]).astype(x.dtype)


def trained(x: Array, scale: Array, bias: Array, mean: Array, var: Array) -> tuple[Array, ...]:
    axes = tuple(i for i in range(x.ndim) if i != 1)
    own = x.mean(axes), x.var(axes)
    moved = [old * F32(0.9) + new * F32(0.1) for old, new in zip((mean, var), own, strict=True)]
    return (normal(x, scale, bias, *own), *moved, *own)


def each_place(x: Array, scale: Array, bias: Array, mean: Array, var: Array) -> Array:
    return ((x - mean) / np.sqrt(var + F32(1e-5)) * scale + bias).astype(x.dtype)


def of_groups(x: Array, scale: Array, bias: Array, groups: int = 2) -> Array:
    parts = x.reshape(x.shape[0], groups, -1)
    made = (parts - parts.mean(-1, keepdims=True)) / np.sqrt(parts.var(-1, keepdims=True) + F32(1e-5))
    each = x.shape[1] // groups
    wide = [np.repeat(one, each).reshape(-1, *(1,) * (x.ndim - 2)) for one in (scale, bias)]
    return (made.reshape(x.shape) * wide[0] + wide[1]).astype(x.dtype)


def linear(x: Array, scale: float) -> Array:
    """Rows of an image between their neighbours, pixels as points at whole numbers."""
    size = int(x.shape[-1] * scale)
    at = np.arange(size) / scale
    low = np.minimum(at.astype(int), x.shape[-1] - 1)
    high = np.minimum(low + 1, x.shape[-1] - 1)
    return (x[..., low] * (1 - (at - low)) + x[..., high] * (at - low)).astype(x.dtype)


def reductions() -> Iterator[Case]:
    functions = {
        "ReduceSum": np.sum,
        "ReduceMean": np.mean,
        "ReduceMax": np.max,
        "ReduceMin": np.min,
        "ReduceProd": np.prod,
        "ReduceL1": lambda x, axis=None, keepdims=False: np.abs(x).sum(axis, keepdims=keepdims),
        "ReduceL2": lambda x, axis=None, keepdims=False: np.sqrt((x * x).sum(axis, keepdims=keepdims)),
        "ReduceLogSum": lambda x, axis=None, keepdims=False: np.log(x.sum(axis, keepdims=keepdims)),
        "ReduceLogSumExp": lambda x, axis=None, keepdims=False: np.log(
            np.exp(x).sum(axis, keepdims=keepdims)
        ),
        "ReduceSumSquare": lambda x, axis=None, keepdims=False: (x * x).sum(axis, keepdims=keepdims),
    }
    x = positive(2, 3, 4)
    for name, function in functions.items():
        last = 11 if name == "ReduceSum" else 13
        yield Case(name, (1, 11, last), (x,), formula=lambda x, f=function: f(x, keepdims=True))
        for axes, keep in (([1], 0), ([0, 2], 1)):
            yield Case(
                name,
                (1, 11, last),
                (x,),
                {"axes": axes, "keepdims": keep},
                formula=lambda x, f=function, a=tuple(axes), k=bool(keep): f(x, axis=a, keepdims=k),
            )
        yield Case(
            name, (11, last), (x,), {"axes": [-1]}, formula=lambda x, f=function: f(x, axis=-1, keepdims=True)
        )


def cases() -> Iterator[Case]:
    for name, function in {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}.items():
        yield from binary(name, function)
    yield from binary("Pow", np.power, positive)
    for name, function in {"And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor}.items():
        yield from binary(name, function, lambda *dims: whole(*dims) > 0)
    for name, function in {"Greater": np.greater, "Less": np.less}.items():
        yield from binary(name, function)
    yield from binary("Equal", np.equal, lambda *dims: whole(*dims, low=0, high=2))
    yield from reductions()
    # attributes that became inputs
    x = real(2, 1, 3, 1)
    yield Case("Squeeze", (1, 11), (x,), formula=np.squeeze)
    yield Case("Squeeze", (1, 11), (x,), {"axes": [1]}, formula=lambda x: x.squeeze(1))
    yield Case("Squeeze", (11,), (x,), {"axes": [-1]}, formula=lambda x: x.squeeze(-1))
    yield Case("Unsqueeze", (1, 11), (real(2, 3),), {"axes": [0, 3]}, formula=lambda x: x[None, :, :, None])
    yield Case("Split", (2, 11), (real(2, 6),), {"axis": 1, "split": [1, 2, 3]}, 3)
    yield Case("Split", (1, 2, 11), (real(6, 2),), {"axis": 0}, 3, lambda x: tuple(np.split(x, 3)))
    yield Case("Split", (1, 2), (real(4, 6),), {}, 2, lambda x: tuple(np.split(x, 2)))
    yield Case("Split", (1,), (real(6), np.int64([1, 5])), {}, 2, lambda x, s: (x[:1], x[1:]), ())
    yield Case("Split", (13,), (real(2, 6),), {"axis": 1}, 3)
    yield Case("Slice", (1,), (real(4, 5),), {"starts": [1, 0], "ends": [3, 1000]}, 1, lambda x: x[1:3])
    yield Case(
        "Slice", (1,), (real(4, 5),), {"starts": [-3], "ends": [-1], "axes": [1]}, 1, lambda x: x[:, -3:-1]
    )
    yield Case("Slice", (10,), (real(4, 5), np.int64([4]), np.int64([0]), np.int64([1]), np.int64([-2])))
    pads = {"mode": "constant", "value": 2.5}
    padded = lambda x: np.pad(x, ((1, 0), (0, 2)), constant_values=2.5)  # noqa: E731
    yield Case("Pad", (1,), (real(2, 3),), {"paddings": [1, 0, 0, 2], **pads}, formula=padded)
    yield Case("Pad", (2,), (real(2, 3),), {"pads": [1, 0, 0, 2], **pads}, formula=padded)
    yield Case("Pad", (2,), (real(4, 4),), {"pads": [0, -1, 0, -2]}, formula=lambda x: x[:, 1:-2])
    for mode in ("reflect", "edge"):
        yield Case(
            "Pad",
            (2,),
            (real(3, 4),),
            {"pads": [1, 2, 1, 0], "mode": mode},
            formula=lambda x, m=mode: np.pad(x, ((1, 1), (2, 0)), mode=m),
        )
    yield Case("Clip", (1, 6), (real(9),), {"min": -0.5, "max": 0.5}, formula=lambda x: x.clip(-0.5, 0.5))
    yield Case("Clip", (1, 6), (real(9),), {"min": 0.25}, formula=lambda x: np.maximum(x, F32(0.25)))
    huge = np.float32([np.inf, -np.inf, 1])
    yield Case("Clip", (1,), (huge,), formula=lambda x: x)
    yield Case("Clip", (6,), (huge,), formula=lambda x: x.clip(-np.finfo(F32).max, np.finfo(F32).max))
    yield Case("Clip", (6,), (real(9).astype(np.float16),), {"max": 0.5})
    yield Case("TopK", (1,), (real(3, 7),), {"k": 3, "axis": 1}, 2)
    yield Case("TopK", (1,), (real(3, 7),), {"k": 2}, 2)
    yield Case("TopK", (10,), (real(3, 7), np.int64([3])), {"axis": 0}, 2)
    yield Case("Reshape", (1,), (real(2, 3, 4),), {"shape": [0, -1]}, formula=lambda x: x.reshape(2, 12))
    yield Case("Reshape", (5, 13), (real(2, 3, 4), np.int64([4, -1, 0][:2])))
    yield Case("DFT", (17,), (real(1, 8, 2),), {"axis": 1})
    yield Case("DFT", (17,), (real(2, 6, 1),), {"onesided": 1})
    yield Case(
        "Tile", (1,), (real(2, 3), np.float32(2), np.float32(1)), {}, 1, lambda x, *_: np.tile(x, (1, 2)), ()
    )
    filled = lambda *_: np.full((2, 3), F32(2.5))  # noqa: E731
    fill = {"value": 2.5, "dtype": 1}
    yield Case("ConstantFill", (7,), (np.int64([2, 3]),), {**fill, "input_as_shape": 1}, 1, filled, ())
    yield Case("ConstantFill", (8,), (real(2),), {**fill, "extra_shape": [3]}, 1, filled, ())
    yield Case("ConstantFill", (1,), (), {**fill, "shape": [2, 3]}, 1, filled, ())
    yield Case("Tile", (6,), (real(2, 3), np.int64([2, 1])))
    # defaults and words
    yield Case("Concat", (1,), (real(2, 3), real(2, 1)), {}, 1, lambda a, b: np.concatenate([a, b], 1), ())
    yield Case("Concat", (4, 11), (real(2, 3), real(1, 3)), {"axis": 0})
    for to, kind in (
        ("DOUBLE", np.float64),
        ("INT32", np.int32),
        ("FLOAT16", np.float16),
        ("BOOL", np.bool_),
    ):
        yield Case("Cast", (1,), (real(5),), {"to": to}, 1, lambda x, k=kind: x.astype(k), ())
    yield Case(
        "Cast", (6, 9, 13), (real(5) * 3,), {"to": TensorProto.INT64}, formula=lambda x: x.astype(np.int64)
    )
    alpha, gamma = F32(1.6732), F32(1.0507)
    yield Case(
        "Selu", (1,), (real(9),), {}, 1, lambda x: gamma * np.where(x > 0, x, alpha * np.exp(x) - alpha), ()
    )
    yield Case("Selu", (6,), (real(9),))
    for name in (
        "Elu",
        "LeakyRelu",
        "HardSigmoid",
        "Relu",
        "Sigmoid",
        "Tanh",
        "Exp",
        "Abs",
        "Neg",
        "Floor",
        "Ceil",
    ):
        yield Case(name, (1, 6), (real(9),))
        yield Case(name, (1,), (real(9),), {"consumed_inputs": [0]}, peers=("newest",))
    yield Case(
        "PRelu",
        (1, 6),
        (real(2, 3, 4, 5), positive(3)),
        {},
        1,
        lambda x, s: np.where(x < 0, x * s[:, None, None], x),
        (),
    )
    yield Case("PRelu", (1, 6), (real(2, 3), positive(1)), {}, 1, lambda x, s: np.where(x < 0, x * s, x))
    yield Case("PRelu", (7, 9), (real(2, 3, 4), positive(3, 1)))
    c = real(4)
    gemm = lambda a, b, c: F32(0.5) * a.T @ b + F32(2) * c  # noqa: E731
    options = {"alpha": 0.5, "beta": 2.0, "transA": 1}
    yield Case("Gemm", (1, 6), (real(3, 2), real(3, 4), c), {**options, "broadcast": 1}, 1, gemm)
    yield Case("Gemm", (1, 6), (real(3, 2), real(3, 4), real(2, 4)), options, 1, gemm, ())
    yield Case("Gemm", (7, 9, 11), (real(3, 2), real(3, 4), c), options, 1, gemm)
    pool = lambda x: np.sqrt((x * x).reshape(1, 2, 2, 2, 2, 2).sum((3, 5)))  # noqa: E731
    yield Case(
        "LpPool",
        (1,),
        (real(1, 2, 4, 4),),
        {"p": 2.0, "kernel_shape": [2, 2], "strides": [2, 2]},
        1,
        pool,
        (),
    )
    yield Case(
        "LpPool", (2, 11), (real(1, 2, 4, 4),), {"p": 2, "kernel_shape": [2, 2], "strides": [2, 2]}, 1, pool
    )
    norm = lambda x: np.sqrt((x * x).sum((2, 3), keepdims=True))  # noqa: E731
    yield Case("GlobalLpPool", (1,), (real(1, 2, 4, 4),), {"p": 2.0}, 1, norm, ())
    yield Case("GlobalLpPool", (2,), (real(1, 2, 4, 4),), {"p": 2}, 1, norm)
    grid = (RANDOM.random((1, 3, 3, 2)) * 2 - 1).astype(F32)
    for mode in ("bilinear", "nearest", "bicubic"):
        yield Case("GridSample", (16,), (real(1, 2, 5, 5), grid), {"mode": mode}, peers=("runtime",))
    rois = np.float32([[1, 1, 6, 6], [0, 2, 5, 7]])
    shape = {"output_height": 2, "output_width": 3, "sampling_ratio": 2}
    yield Case("RoiAlign", (10,), (real(1, 2, 8, 8), rois, np.int64([0, 0])), shape, peers=("runtime",))
    yield Case("RoiAlign", (16,), (real(1, 2, 8, 8), rois, np.int64([0, 0])), shape)
    places, updates = np.int64([[1, 0, 2], [0, 2, 1]]), real(2, 3)
    yield Case("Scatter", (9,), (real(3, 3), places, updates), {"axis": 0}, peers=("runtime",))
    yield Case("ScatterElements", (11, 13), (real(3, 3), places, updates), {"axis": 1})
    off_on = np.float32([2, 5])
    hot = lambda i, d, v: np.where(i[..., None] == np.arange(3), v[1], v[0])  # noqa: E731
    yield Case("OneHot", (9,), (np.int64([0, -1, 2, 3]), np.int64(3), off_on), {}, 1, hot, ())
    yield Case("OneHot", (9,), (np.float32([0, -1, 2]), np.float32([3]), off_on), {}, 1, hot, ())
    yield Case("OneHot", (11,), (np.int64([0, -1, 2, 3]), np.int64(3), off_on))
    # what is computed
    for name, function in {
        "Softmax": softmax,
        "LogSoftmax": lambda x: np.log(softmax(x)),
        "Hardmax": hardmax,
    }.items():
        for axis in (0, 1, 2):
            yield Case(
                name, (1, 11), (real(2, 3, 4),), {"axis": axis}, 1, flattened(function, axis), ("runtime",)
            )
        yield Case(name, (11,), (real(2, 3, 4),), {"axis": -2}, 1, flattened(function, -2), ("runtime",))
        yield Case(name, (1, 11), (real(2, 3, 4),), {}, 1, flattened(function, 1), ("runtime",))
        yield Case(name, (13,), (real(2, 3, 4),), {"axis": 1})
    x, four = real(2, 3, 4, 4), (positive(3), real(3), real(3), positive(3))
    yield Case("BatchNormalization", (1, 6), (x, *four), {"is_test": 1}, 1, normal)
    yield Case("BatchNormalization", (1, 6), (x, *four), {}, 5, trained, ())
    yield Case("BatchNormalization", (1, 6), (x, *four), {}, 1, lambda *a: trained(*a)[0], ())
    yield Case("BatchNormalization", (7, 9, 14, 15), (x, *four), {}, 1, normal, ("runtime",))
    yield Case("BatchNormalization", (7, 9), (x, *four), {}, 5, trained, ())
    yield Case("BatchNormalization", (14, 15), (x, *four), {"training_mode": 1}, 3)
    places_of = (positive(3, 4, 4), real(3, 4, 4), real(3, 4, 4), positive(3, 4, 4))
    yield Case("BatchNormalization", (7,), (x, *places_of), {"spatial": 0}, 1, each_place, ("runtime",))
    yield Case("BatchNormalization", (6,), (x, *places_of), {"spatial": 0, "is_test": 1}, 1, each_place, ())
    yield Case(
        "GroupNormalization",
        (18,),
        (real(2, 6, 4), positive(2), real(2)),
        {"num_groups": 2},
        1,
        of_groups,
        (),
    )
    yield Case("GroupNormalization", (21,), (real(2, 6, 4), positive(6), real(6)), {"num_groups": 2})
    yield Case("Dropout", (1, 6), (real(3, 4),), {"is_test": 1}, 1, lambda x: x)
    yield Case("Dropout", (1, 6), (real(3, 4),), {"is_test": 1}, 2, lambda x: (x, np.ones_like(x)), ())
    yield Case("Dropout", (7,), (real(3, 4),), {"ratio": 0.9}, 2, lambda x: (x, np.ones_like(x)), ())
    yield Case(
        "Dropout", (10, 12), (real(3, 4),), {}, 2, lambda x: (x, np.ones(x.shape, bool)), ("reference",)
    )
    image = real(1, 2, 3, 4)
    doubled = lambda x, *_: x.repeat(2, 2).repeat(3, 3)  # noqa: E731
    yield Case("Upsample", (1,), (image,), {"height_scale": 2.0, "width_scale": 3.0}, 1, doubled, ())
    yield Case("Upsample", (7,), (image,), {"scales": [1.0, 1.0, 2.0, 3.0]}, 1, doubled)
    scales = np.float32([1, 1, 2, 3])
    yield Case("Upsample", (9,), (image, scales), {}, 1, doubled)
    wide = np.float32([1, 1, 1, 2.5])
    between = lambda x, *_: linear(x, 2.5)  # noqa: E731
    yield Case(
        "Upsample",
        (1,),
        (image,),
        {"height_scale": 1.0, "width_scale": 2.5, "mode": "bilinear"},
        1,
        between,
        (),
    )
    yield Case("Upsample", (7,), (image,), {"scales": list(wide.astype(float)), "mode": "linear"}, 1, between)
    yield Case("Upsample", (9,), (image, wide), {"mode": "linear"}, 1, between)
    for mode in ("nearest", "linear"):
        for factors in ((1, 1, 2, 3), (1, 1, 0.6, 0.5), (1, 1, 1.7, 2.5)):
            yield Case("Resize", (10,), (image, np.float32(factors)), {"mode": mode}, peers=("runtime",))
    wide = real(1, 2, 5, 7)
    for factors in ((1, 1, 0.6, 0.6), (1, 1, 2.5, 0.7), (1, 1, 0.35, 1.3)):
        yield Case("Resize", (10,), (wide, np.float32(factors)), peers=("runtime",))
    none = np.zeros(0, F32)
    for mode in ("nearest", "linear", "cubic"):
        for where in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"):
            options = {"mode": mode, "coordinate_transformation_mode": where}
            yield Case("Resize", (11, 13, 18), (image, none, np.float32([1, 1, 2, 2])), options)
            yield Case(
                "Resize", (11,), (image, none, none, np.int64([1, 2, 5, 7])), options, peers=("runtime",)
            )
    for options in (
        *({"nearest_mode": one} for one in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")),
        {"mode": "linear"},
        {"mode": "cubic"},
    ):
        options["coordinate_transformation_mode"] = "tf_half_pixel_for_nn"
        for factors in ((1, 1, 2, 3), (1, 1, 0.7, 1.5)):
            wanted = (wide, none, np.float32(factors))
            yield Case("Resize", (11,), wanted, options, peers=("runtime",))
    weights = real(1, 3 * 4, 5), real(1, 3 * 4, 4)
    for version, attributes in ((1, {"output_sequence": 1}), (3, {}), (7, {}), (14, {})):
        yield Case(
            "GRU",
            (version,),
            (real(3, 2, 5), *weights),
            {"hidden_size": 4, **attributes},
            2,
            peers=("newest",),
        )
    weights = real(1, 4 * 4, 5), real(1, 4 * 4, 4)
    yield Case(
        "LSTM",
        (1,),
        (real(3, 2, 5), *weights),
        {"hidden_size": 4, "output_sequence": 1},
        3,
        peers=("newest",),
    )
    yield Case("LSTM", (7, 14), (real(3, 2, 5), *weights), {"hidden_size": 4}, 3, peers=("runtime",))
    yield Case(
        "RNN", (1,), (real(3, 2, 5), real(1, 4, 5), real(1, 4, 4)), {"hidden_size": 4}, 2, peers=("newest",)
    )
    # unchanged in words, and still read
    window = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    for name, versions in {"AveragePool": (7, 10, 11, 19), "MaxPool": (1, 8, 10, 11, 12)}.items():
        yield Case(name, versions, (real(1, 2, 7, 7),), window)
    yield Case("AveragePool", (1,), (real(1, 2, 7, 7),), window, peers=("newest",))
    yield Case("AveragePool", (7, 10, 11, 19), (real(1, 2, 7, 7),), {**window, "count_include_pad": 1})
    yield Case("AveragePool", (10, 11, 19), (real(1, 2, 6, 6),), {**window, "ceil_mode": 1})
    yield Case("Conv", (1, 11), (real(1, 2, 6, 6), real(4, 2, 3, 3), real(4)), {"pads": [1, 1, 1, 1]})
    for name in ("Max", "Min", "Sum", "Mean"):
        yield Case(name, (1, 6, 8), (real(2, 3), real(2, 3), real(2, 3)))
    yield Case("Gather", (1, 11), (real(3, 4), np.int64([[0, 2]])), {"axis": 1})
    yield Case("ArgMax", (1, 11, 12), (real(3, 4),), {"axis": 1, "keepdims": 0})
    yield Case("Flatten", (1, 9, 11), (real(2, 3, 4),), {"axis": 2})
    yield Case("LRN", (7, 13), (real(1, 5, 2, 2),), {"size": 3}, peers=("runtime",))
    yield Case("InstanceNormalization", (1, 6), (real(2, 3, 4), positive(3), real(3)))
    yield Case("QuantizeLinear", (10, 13), (real(5) * 9, F32(0.5), np.uint8(3)))
    yield Case("DequantizeLinear", (10, 13), (whole(5, low=0).astype(np.uint8), F32(0.5), np.uint8(3)))
    yield Case("Shape", (1, 13), (real(2, 3),))
    yield Case("DepthToSpace", (1,), (real(1, 8, 2, 3),), {"blocksize": 2})


ALL = list(cases())


@pytest.mark.parametrize("case", ALL, ids=lambda case: f"{case.operator}-{','.join(map(str, case.versions))}")
def test_each_version_has_its_own_meaning(case: Case) -> None:
    for version, proto in case.models():
        got = read(proto).evaluate(*(one for one in case.inputs if one is not None))
        assert len(got) == case.outputs
        several = (
            dict(answers(case, proto, version)) if "newest" not in case.peers else {"": later(case, got)}
        )
        assert several, f"nobody knows {case.operator}-{version}"
        for peer, expected in several.items():
            for one, other in zip(got, expected, strict=False):
                where = f"{case.operator}-{version} by {peer}"
                np.testing.assert_allclose(
                    np.asarray(one, float), np.asarray(other, float), 1e-4, 1e-5, err_msg=where
                )
                assert one.dtype == np.asarray(other).dtype or peer == "formula", where


def later(case: Case, got: tuple[Any, ...]) -> list[Any]:
    """The answer in the version of the newest schema, for attributes that only older ones have."""
    newest = defs.get_schema(case.operator).since_version
    kept = {k: v for k, v in case.attributes.items() if k not in ("output_sequence", "consumed_inputs")}
    proto = model(case.operator, newest, case.inputs, kept, case.outputs)
    return by_reference(proto, case.inputs)


@pytest.mark.parametrize("case", ALL, ids=lambda case: f"{case.operator}-{','.join(map(str, case.versions))}")
def test_without_ranks_the_meaning_is_the_same(case: Case) -> None:
    """A rule that does not know how many axes there are says the same in more nodes; inference folds them."""
    for _, proto in case.models():
        given = tuple(one for one in case.inputs if one is not None)
        expected = read(proto).evaluate(*given)
        vague = type(proto).FromString(proto.SerializeToString())
        for value in vague.graph.input:
            value.type.tensor_type.ClearField("shape")
        try:
            graph = read(vague)
        except Unsupported as error:
            assert "unknown" in str(error)  # noqa: PT017
            continue
        dims = {value.name: one.shape for value, one in zip(graph.inputs, given, strict=True)}
        for one in (graph, inferred(graph, dims)):
            for a, b in zip(one.evaluate(*given), expected, strict=True):
                np.testing.assert_allclose(np.asarray(a, float), np.asarray(b, float), 1e-5, 1e-6)


def test_each_rule_has_a_case() -> None:
    have = {case.operator: min(case.versions) for case in ALL}
    for case in ALL:
        have[case.operator] = min(have[case.operator], *case.versions)
    missing = {
        operator
        for operator, rules in RULES.items()
        if operator not in ("Scan", "ai.onnx.ml.LabelEncoder")
        and have.get(operator, 99) >= min(version for version, _ in rules)
    }
    assert missing == set()


def test_dropout_until_version_6() -> None:
    """Dropout trains until version 6 unless it is told not to."""
    x = np.ones((100, 100), F32)
    (proto,) = (one for _, one in Case("Dropout", (6,), (x,), {"ratio": 0.25}, 2).models())
    y, mask = read(proto).evaluate(x)
    assert 0.6 < mask.mean() < 0.9
    assert mask.dtype == F32
    np.testing.assert_allclose(y, mask / 0.75, 1e-6)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (np.array(["b", "c", "a"], object), [1, -1, 0]),
        (np.int64([1, 5, 0]), ["b", "?", "a"]),
    ],
)
def test_labels_of_version_1_go_both_ways(data: Array, expected: list[Any]) -> None:
    node = helper.make_node(
        "LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", classes_strings=["a", "b"], default_string="?"
    )
    kinds = [TensorProto.STRING, TensorProto.INT64]
    of, to = kinds if data.dtype == object else kinds[::-1]
    info = helper.make_tensor_value_info
    graph = helper.make_graph([node], "labels", [info("x", of, [3])], [info("y", to, [3])])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("ai.onnx.ml", 1)])
    assert read(proto).evaluate(data)[0].tolist() == expected


def scan_8(lengths: Array | None) -> Any:
    """Running sums of each image of a batch."""
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "x"], ["t"]), helper.make_node("Identity", ["t"], ["row"])],
        "body",
        [info("s", TensorProto.FLOAT, [2]), info("x", TensorProto.FLOAT, [2])],
        [info("t", TensorProto.FLOAT, [2]), info("row", TensorProto.FLOAT, [2])],
    )
    node = helper.make_node(
        "Scan", ["" if lengths is None else "n", "s0", "xs"], ["last", "rows"], num_scan_inputs=1, body=body
    )
    inputs = [info("s0", TensorProto.FLOAT, [3, 2]), info("xs", TensorProto.FLOAT, [3, 4, 2])]
    if lengths is not None:
        inputs.insert(0, info("n", TensorProto.INT64, [3]))
    graph = helper.make_graph(
        [node],
        "scan",
        inputs,
        [info("last", TensorProto.FLOAT, [3, 2]), info("rows", TensorProto.FLOAT, [3, 4, 2])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)])


@pytest.mark.parametrize("lengths", [None, np.int64([4, 1, 3])])
def test_scan_of_version_8_goes_over_batches(lengths: Array | None) -> None:
    start, rows = real(3, 2), real(3, 4, 2)
    given = (start, rows) if lengths is None else (lengths, start, rows)
    last, sums = read(scan_8(lengths)).evaluate(*given)
    expected = start[:, None] + rows.cumsum(1)
    for i, length in enumerate([4, 4, 4] if lengths is None else lengths):
        np.testing.assert_allclose(last[i], expected[i, length - 1], 1e-5)
        np.testing.assert_allclose(sums[i, :length], expected[i, :length], 1e-5)
        assert not sums[i, length:].any()


@pytest.mark.parametrize(
    ("operator", "version", "attributes", "why"),
    [
        ("Unsqueeze", 11, {}, "needs the attribute 'axes'"),
        ("Slice", 1, {"starts": [0]}, "needs the attribute 'ends'"),
        ("Slice", 1, {"starts": [0], "ends": [1, 2]}, "1 starts and 2 ends"),
        ("Slice", 1, {"starts": [0], "ends": [1.5]}, "'ends' must be INTS"),
        ("Concat", 4, {"axis": "x"}, "'axis' must be INT, got str 'x'"),
        ("Cast", 1, {"to": "nothing"}, "'nothing', which is no data type"),
        ("LpPool", 1, {"p": 1.5, "kernel_shape": [1]}, "p = 1.5"),
        ("Relu", 29, {}, "versions 1 to 28"),
        ("Relu", 13, {"slope": 1.0}, "no attribute 'slope'"),
    ],
)
def test_calls_that_are_none(operator: str, version: int, attributes: dict[str, Any], why: str) -> None:
    proto = model(operator, version, (real(1, 1, 2),), attributes, 1)
    with pytest.raises(LayoutError, match=why):
        read(proto)


def test_an_input_with_a_value_in_the_file_is_a_constant() -> None:
    data = real(2, 2)
    proto = model("Add", 13, (data, data), {}, 1)
    proto.graph.initializer.append(numpy_helper.from_array(data, "x1"))
    (got,) = read(proto).evaluate(data)
    np.testing.assert_allclose(got, 2 * data)
