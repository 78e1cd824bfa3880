"""Elementwise functions: the definition against values known otherwise, and the machine code against it."""

from __future__ import annotations

import importlib
import math
import subprocess
import sys
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relayout import LayoutError
from relayout.ops.functions import ALGORITHMS, FUNCTIONS, Function
from strategies import examples
from test_math import CPUS, Expected, Kernels, doubles, kernel, runs_code, sweep, two_registers
from test_values import NEEDS, undefined

compile_ = importlib.import_module("relayout.jit.compile")
machine_ = importlib.import_module("relayout.targets.machine")

# --- the machine code --------------------------------------------------------------------------------------

SIXTH = 1 / 6


def written(function):
    """What writes it."""
    return lambda b, x: function.emit(b, x)


def terms(function, x):
    """The size of the terms of alpha x + beta, which may cancel."""
    return np.abs(function.alpha * x) + abs(function.beta)


BOUNDS = {
    Function(name, *numbers): ulp for name, one in FUNCTIONS.items() for numbers, ulp in one.error.items()
}
"""How many ulp the code of a function may be off."""

SIZES = {
    "linear": terms,
    "hardsigmoid": lambda f, x: np.minimum(terms(f, x), 2),
    "hardswish": lambda f, x: np.abs(x) * np.minimum(terms(f, x), 2),
}
"""What errors are measured by where terms cancel, besides the result."""

LEAST = dict.fromkeys(["gelu_tanh", "gelu_erf", "swish", "mish"], 2.0**-143)
"""Their factors may be subnormal, and are rounded then before x takes part."""


@cache
def expected(function):
    x = doubles(sweep())
    with np.errstate(all="ignore"):
        size = SIZES.get(function.algorithm, lambda f, x: 0.0)(function, x)
    return Expected(function.definition(x), size, LEAST.get(function.algorithm, 2.0**-149))


def kernels_of(cpu, count):
    return Kernels({f"f{k}": written(f) for k, f in enumerate(BOUNDS)}, cpu, count)


def test_every_algorithm_is_tried():
    assert {function.algorithm for function in BOUNDS} == set(ALGORITHMS)


@pytest.mark.turns(2)
@runs_code
@pytest.mark.parametrize("cpu", CPUS)
def test_code_against_definition_over_the_whole_range(cpu):
    kernels = kernels_of(cpu, two_registers(cpu))
    for k, (function, bound) in enumerate(BOUNDS.items()):
        expected(function).assert_close(sweep(), kernels(f"f{k}", sweep()), bound, f"{function} on {cpu}")


@runs_code
@pytest.mark.parametrize("cpu", CPUS)
def test_zero_bytes_stay_zero_bytes_where_zero_stays_zero(cpu):
    kernels, zeros = kernels_of(cpu, 1), np.zeros(1, np.float32)
    for k, function in enumerate(BOUNDS):
        got = kernels(f"f{k}", zeros)
        assert got == pytest.approx(np.float32(function.at_zero), rel=1e-6), function
        assert not (function.at_zero == 0 and got.view(np.uint32)[0]), function


KEEPS_THE_SIGN_OF_ZERO = [
    Function("relu"),
    Function("relu", 0.5),
    Function("linear", 2),
    Function("linear", 1),
]


@runs_code
@pytest.mark.parametrize("cpu", CPUS)
def test_signs_of_zeros(cpu):
    every = [*KEEPS_THE_SIGN_OF_ZERO, Function("abs")]
    kernels = Kernels({f"f{k}": written(f) for k, f in enumerate(every)}, cpu, 1)
    got = [np.signbit(kernels(f"f{k}", np.float32([-0.0, 0.0]))).tolist() for k in range(len(every))]
    assert got == [[True, False]] * len(KEEPS_THE_SIGN_OF_ZERO) + [[False, False]]


numbers = st.floats(-4, 4, width=32).filter(lambda n: n == 0 or abs(n) > 2**-10)


@st.composite
def functions(draw):
    """Any function, with any numbers it takes."""
    algorithm = draw(st.sampled_from(ALGORITHMS))
    alpha, beta = sorted(draw(st.tuples(numbers, numbers)))
    takes = FUNCTIONS[algorithm].takes
    return Function(algorithm, *((alpha or 1,) if takes == 1 else (alpha, beta)[:takes]))


@runs_code
@given(functions(), st.sampled_from((1, 4, 32)))
@examples(60)
def test_any_numbers(function, count):
    """Where terms cancel, or what is divided by alpha is subnormal, an absolute error is all one can ask."""
    x = sweep()[: 1 << 20 : 1 << 8].copy()
    exact = function.definition(doubles(x))
    with np.errstate(all="ignore"):
        size = terms(function, doubles(x))
        size = np.where(
            np.isnan(size), 0, np.abs(doubles(x)) * size if function.algorithm == "hardswish" else size
        )
    exact = Expected(exact, size if function.algorithm in SIZES else 0.0, least=2.0**-120)
    exact.assert_close(x, Kernels({"f": written(function)}, "host", count)("f", x), 4, repr(function))


LINUX = "x86_64-unknown-linux-gnu"
TARGETS = [(cpu, LINUX) for cpu in NEEDS] + [("neoverse-n1", "aarch64-unknown-linux-gnu")]


@pytest.mark.parametrize(("cpu", "triple"), TARGETS)
def test_code_calls_no_library(cpu, triple):
    machine = machine_.machine(cpu, triple)
    text = "".join(kernel(f"f{k}_{n}", written(f), machine, n) for k, f in enumerate(BOUNDS) for n in (1, 16))
    code = compile_.assemble(text, machine)
    assert undefined(code) == set()


# --- the definition ----------------------------------------------------------------------------------------

KNOWN = [
    (Function("relu", 0.5), [(-4, -2), (0, 0), (3, 3)]),
    (Function("relu"), [(-math.inf, 0)]),
    (Function("elu", 2), [(-math.log(2), -1), (-math.inf, -2), (1, 1)]),
    (Function("soft_relu", 1), [(0, math.log(2)), (-800, 0), (800, 800)]),
    (Function("soft_relu", -1), [(0, -math.log(2)), (800, 0), (-800, -800)]),
    (Function("soft_relu", 2), [(0, math.log(2) / 2), (3, math.log1p(math.exp(6)) / 2)]),
    (Function("hardsigmoid", 0.25, 0.5), [(0, 0.5), (1, 0.75), (9, 1), (-9, 0)]),
    (Function("hardswish", 0.25, 0.5), [(1, 0.75), (9, 9), (-9, 0), (-math.inf, 0), (math.inf, math.inf)]),
    (Function("logistic"), [(0, 0.5), (math.log(3), 0.75), (-800, 0), (800, 1)]),
    (Function("gelu_erf"), [(1, 0.8413447460685429), (-1, -0.15865525393145707), (-math.inf, 0), (50, 50)]),
    (Function("gelu_tanh"), [(1, 0.8411919906082768), (-1, -0.15880800939172324), (-math.inf, 0), (50, 50)]),
    (Function("erf"), [(0, 0), (1, 0.8427007929497149), (-0.5, -0.5204998778130465), (-math.inf, -1)]),
    (Function("swish", 1), [(math.log(3), 0.75 * math.log(3)), (-math.inf, 0)]),
    (Function("swish", -1), [(-math.log(3), -0.75 * math.log(3)), (math.inf, 0)]),
    (Function("log"), [(1, 0), (0, -math.inf), (-1, math.nan)]),
    (Function("clip", -1, 6), [(-2, -1), (0.5, 0.5), (7, 6)]),
    (Function("pow", 3, 2), [(-2, 12)]),
    (Function("pow", 3, -0.5), [(4, 1.5), (-4, math.nan), (0, math.inf), (-math.inf, math.nan)]),
    (Function("pow", 3, 0), [(math.nan, 3)]),
    (Function("round"), [(0.5, 0), (1.5, 2), (-2.5, -2), (-0.7, -1)]),
    (Function("mish"), [(0, 0), (1, 0.8650983882673103), (-math.inf, 0), (100, 100)]),
    (Function("linear", 2, -1), [(3, 5)]),
]


@pytest.mark.parametrize(("function", "points"), KNOWN, ids=repr)
def test_known_values(function, points):
    x, y = np.array(points, float).T
    assert function.definition(x) == pytest.approx(y, rel=1e-12, abs=1e-300, nan_ok=True)


@pytest.mark.parametrize("function", [f for f in BOUNDS if f != Function("pow", 7, 0)], ids=repr)
def test_not_a_number_stays_so(function):
    assert np.isnan(function.definition(np.array([math.nan]))).all()


@given(functions())
@examples(50)
def test_definition_keeps_the_shape_and_the_argument(function):
    x = np.linspace(-3, 3, 6, dtype=np.float32).reshape(2, 1, 3)
    before = x.copy()
    y = function.definition(x)
    assert (y.shape, y.dtype) == (x.shape, np.float64)
    assert (x == before).all()


# --- the value ---------------------------------------------------------------------------------------------


@given(functions())
@examples(100)
def test_a_function_is_what_it_prints(function):
    again = eval(repr(function), {"Function": Function, "inf": math.inf})
    assert again == function
    assert hash(again) == hash(function)


def test_printing():
    assert [str(f) for f in (Function("tanh"), Function("relu", 0.1), Function("clip", 0, 6))] == [
        "tanh",
        "relu(0.1)",
        "clip(0, 6)",
    ]


def test_numbers_are_f32():
    assert Function("relu", 0.1).alpha == float(np.float32(0.1))
    assert math.copysign(1, Function("linear", 1, -0.0).beta) == 1


WRONG = [
    (("gelu",), r"'gelu'.*relu, tanh.*gelu_tanh"),
    (("tanh", 1), r"tanh takes neither alpha nor beta, but alpha is 1"),
    (("relu", 0.1, 2), r"relu takes alpha, but no beta, but beta is 2"),
    (("soft_relu",), r"divides by alpha, which is 0"),
    (("clip", 2, 1), r"beta 1 is less than alpha 2"),
    (("linear", math.nan), r"alpha of linear is a finite number, not nan"),
    (("linear", 1, math.inf), r"beta of linear is a finite number, not inf"),
    (("linear", 1e40), r"alpha of linear.*f32 can hold, not 1e\+40"),
    (("linear", "1"), r"alpha of linear.*not '1'"),
]


@pytest.mark.parametrize(("given", "message"), WRONG, ids=str)
def test_what_is_wrong_is_named(given, message):
    with pytest.raises(LayoutError, match=message):
        Function(*given)


def test_importing_loads_no_compiler():
    code = "import sys, relayout.ops.functions; print('llvmlite' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
