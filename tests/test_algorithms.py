"""Functions, binary operations and reductions: an entry of a table is all that one takes.

What ONNX has, too, is compared with its reference implementation; and one of each is added, and then used as
any other.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import relayout as rl
from relayout import LayoutError
from relayout.jit.support import supported
from relayout.ops import binary
from relayout.ops.functions import FUNCTIONS, Algorithm, Function
from relayout.ops.post_ops import BinaryOp
from relayout.ops.reductions import REDUCTIONS, Reduction
from relayout.primitives import Binary, Eltwise
from relayout.primitives import Reduction as Reduce

X = np.concatenate([np.linspace(-9, 9, 61), [0.0, -0.0, 0.5, 1.5, 2.5, 1e-30]])
Y = np.concatenate([np.linspace(7, -5, 61), [0.5, 2.0, 0.5, -1.5, 2.5, 1e-3]])


def of_onnx(operator, *arrays, **attributes):
    """What ONNX's reference makes of doubles."""
    onnx = pytest.importorskip("onnx")
    from onnx.reference import ReferenceEvaluator

    names = [f"x{k}" for k in range(len(arrays))]
    node = onnx.helper.make_node(operator, names, ["y"], **attributes)
    sides = [
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.DOUBLE, None) for name in several]
        for several in (names, ["y"])
    ]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", *sides))
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(model).run(None, dict(zip(names, arrays, strict=True)))[0]


@pytest.mark.parametrize("name", [name for name, one in FUNCTIONS.items() if one.onnx])
def test_functions_are_those_of_onnx(name):
    operator, *names = FUNCTIONS[name].onnx
    numbers = next(iter(FUNCTIONS[name].error))
    x = np.abs(X) if name in ("sqrt", "log") else X
    wanted = of_onnx(operator, x, **dict(zip(names, numbers, strict=False)))
    np.testing.assert_allclose(
        Function(name, *numbers).definition(x), wanted, rtol=1e-7, atol=1e-7
    )  # erf is in f32


@pytest.mark.parametrize("name", [name for name, one in binary.OPERATIONS.items() if one.onnx])
def test_binary_operations_are_those_of_onnx(name):
    wanted = of_onnx(binary.OPERATIONS[name].onnx, X, Y).astype(np.float64)
    np.testing.assert_array_equal(binary.defined(name, X, Y), wanted)


@pytest.mark.parametrize("name", [name for name, one in REDUCTIONS.items() if one.onnx])
def test_reductions_are_those_of_onnx(name):
    found = REDUCTIONS[name].define.reduce(X[:12].reshape(3, 4), (0, 1), keepdims=True)
    np.testing.assert_allclose(found, of_onnx(REDUCTIONS[name].onnx, X[:12].reshape(3, 4)), rtol=1e-12)


@pytest.fixture
def softsign(monkeypatch):
    """``x / (1 + abs(x))``. Code on disk is found by name, so the cache is off while one is tried."""
    monkeypatch.setenv("RELAYOUT_CACHE", "off")

    def code(b, x):
        return b.fdiv(x, b.fadd(b.intrinsic("fabs", x), 1.0))

    entry = Algorithm(0, lambda x: x / (1 + np.abs(x)), code, {(): 1.5}, ("Softsign",), cheap=True)
    monkeypatch.setitem(FUNCTIONS, "softsign", entry)


@pytest.fixture
def mean_square(monkeypatch):
    """``(x^2 + y^2) / 2``, where two zeros remain zero."""
    monkeypatch.setenv("RELAYOUT_CACHE", "off")

    def code(b, x, y):
        return b.fmul(b.fadd(b.fmul(x, x), b.fmul(y, y)), 0.5)

    entry = binary.Algorithm(lambda x, y: (x * x + y * y) / 2, code, "", 1.5)
    monkeypatch.setitem(binary.OPERATIONS, "mean_square", entry)


@pytest.fixture
def hypotenuse(monkeypatch):
    """The root of the sum of squares, of what is already combined and one more."""
    monkeypatch.setenv("RELAYOUT_CACHE", "off")

    def code(v, first, others):
        for other in others:
            first = v.b.intrinsic("sqrt", v.b.fadd(v.b.fmul(first, first), v.b.fmul(other, other)))
        return first

    monkeypatch.setitem(REDUCTIONS, "hypotenuse", Reduction("hypotenuse", 0.0, np.hypot, code))


def ulps(found, wanted):
    return float(np.max(np.abs(found - wanted) / np.spacing(np.abs(wanted).astype(np.float32))))


@pytest.mark.parametrize("format", ["nchw", "nChw8c"])
def test_a_function_is_added(softsign, format):
    x = rl.tensor(np.linspace(-8, 8, 1 * 12 * 3 * 5).reshape(1, 12, 3, 5).astype("f4"), format)
    wanted = of_onnx("Softsign", x.numpy().astype(np.float64))
    for made in (Eltwise(x.desc, "softsign"), Eltwise(x.desc, "linear", alpha=1, post_ops="softsign")):
        assert ulps(made(x).numpy(), wanted) <= FUNCTIONS["softsign"].error[()]
        assert made.implementation.startswith("machine code") == supported()
        np.testing.assert_array_equal(made.reference(x), wanted)


def test_a_binary_operation_is_added(mean_square):
    rng = np.random.default_rng(0)
    x, y = (rl.tensor(rng.standard_normal((4, 9)).astype("f4"), one) for one in ("ab", "ba"))
    wanted = binary.defined("mean_square", *(one.numpy().astype(np.float64) for one in (x, y)))
    most = binary.OPERATIONS["mean_square"].error
    assert ulps(Binary("mean_square", x.desc, y.desc)(x, y).numpy(), wanted) <= most
    after = Eltwise(x.desc, "abs", post_ops=BinaryOp("mean_square", y.desc))
    assert ulps(after(x, y).numpy(), wanted) <= most


@pytest.mark.parametrize("axes", [(1,), (2, 3), (0, 1, 2, 3)])
def test_a_reduction_is_added(hypotenuse, axes):
    x = rl.tensor(np.linspace(-3, 4, 2 * 9 * 5 * 7).reshape(2, 9, 5, 7).astype("f4"), "nhwc")
    made = Reduce(x.desc, "hypotenuse", axes)
    assert made.implementation.startswith("machine code") == supported()
    wanted = np.sqrt((x.numpy().astype(np.float64) ** 2).sum(axes, keepdims=True))
    np.testing.assert_allclose(made(x).numpy(), wanted, rtol=2e-6)
    np.testing.assert_allclose(made.reference(x), wanted, rtol=1e-12)


def test_what_is_not_there_is_refused_with_what_is(softsign):
    with pytest.raises(LayoutError, match=r"there are relu, .*, softsign"):
        Function("softplus")
    assert math.isclose(Function("softsign").definition(np.array([1.0]))[0], 0.5)
