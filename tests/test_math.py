"""Vector functions of f32 against NumPy in double, over the whole range, on every processor this one can be.

A kernel here is a loop over arrays, ``void k(source, target, count)``. All functions of a processor are one
module, so that they compile in one go.
"""

from __future__ import annotations

import ctypes
import importlib
import math
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from relayout.ir.types import FLOAT, I64, PTR, vector
from test_values import NEEDS, can_run, undefined

llvm = pytest.importorskip("llvmlite.binding")
compile_ = importlib.import_module("relayout.jit.compile")
machine_ = importlib.import_module("relayout.targets.machine")
values = importlib.import_module("relayout.ir.conversions")
vectors = importlib.import_module("relayout.ir.math")
builder = importlib.import_module("relayout.ir.builder")

runs_code = pytest.mark.skipif(not compile_.available(), reason="this host forbids making machine code")
LARGEST = (2 - 2.0**-23) * 2.0**127
CPUS = ("host", *NEEDS)

# --- kernels -----------------------------------------------------------------------------------------------


def machine_of(cpu):
    return machine_.host() if cpu == "host" else machine_.machine(cpu)


def kernel(name, emit, machine, count):
    """The text of a loop that applies a function to ``count`` elements at a time."""
    f = builder.Function(name, {"source": PTR, "target": PTR, "count": I64}, machine)
    source, target, total = f.arguments

    def body(i):
        x = f.load(vector(count, FLOAT), f.gep(source, i, 4))
        f.store(emit(f, x), f.gep(target, i, 4))

    f.loop(0, total, count, body)
    return f.text()


class Kernels:
    """Functions compiled for a processor, by name; each takes and gives an array of f32."""

    def __init__(self, emits, cpu, count):
        if not can_run(cpu):
            pytest.skip(f"this processor cannot run the code of {cpu}")
        self.count, machine = count, machine_of(cpu)
        text = "".join(kernel(name, emit, machine, count) for name, emit in emits.items())
        code = compile_.assemble(text, machine)
        if code.startswith(b"\x7fELF"):
            assert undefined(code) == set()  # LLVM would end the process
        target = llvm.Target.from_triple(machine.triple).create_target_machine(reloc="pic")
        self.engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target)
        self.engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self.engine.finalize_object()

    def __call__(self, name, x):
        assert x.flags.c_contiguous
        assert len(x) % self.count == 0
        y = np.empty_like(x)
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        kind(self.engine.get_function_address(name))(x.ctypes.data, y.ctypes.data, len(x))
        return y


# --- errors ------------------------------------------------------------------------------------------------


@cache
def sweep(step=1 << 12):
    """One f32 of every ``step`` bit patterns, with random last bits, and what is special."""
    low = np.random.default_rng(5).integers(0, step, (1 << 32) // step, dtype=np.uint64)
    swept = (np.arange(0, 1 << 32, step, dtype=np.uint64) + low).astype(np.uint32).view(np.float32)
    whole = np.arange(-300, 301, dtype=np.float32)
    edges = np.float32([0, 2**-149, 2**-126, 2.0**127, LARGEST, 1, 0.5, 3.95, 88.72284, math.inf])
    near = np.concatenate(
        [edges, np.nextafter(edges, np.float32(1)), np.nextafter(edges[:-2], np.float32(100))]
    )
    found = np.concatenate([swept, whole / 4, near, -near, np.float32([math.nan])])
    return np.resize(found, -(-len(found) // 64) * 64)  # whole vectors


def doubles(x):
    with np.errstate(invalid="ignore"):  # signalling NaN
        return x.astype(np.float64)


class Expected:
    """What should come out, in double, and how errors of it are counted.

    They are counted in units in the last place (of f32) of the value, or of ``size`` where that is larger; a
    unit is at least ``least``. Infinity counts as 2**128, which it is for rounding.
    """

    def __init__(self, exact, size=0.0, least=2.0**-149):
        self.exact = exact
        self.is_nan = np.isnan(exact)
        self.bounded = np.clip(np.nan_to_num(exact, posinf=math.inf, neginf=-math.inf), -(2.0**128), 2.0**128)
        larger = np.minimum(np.fmax(np.abs(self.bounded), size), LARGEST)
        self.unit = np.ldexp(1.0, np.maximum(np.frexp(larger)[1] - 24, math.frexp(least)[1] - 1))

    def ulps(self, got):
        """The errors of an array of f32; infinite where only one of two is NaN."""
        errors = np.abs(np.clip(doubles(got), -(2.0**128), 2.0**128) - self.bounded) / self.unit
        errors[self.is_nan] = 0
        errors[np.isnan(got) != self.is_nan] = math.inf
        return errors

    def assert_close(self, x, got, bound, what):
        errors = self.ulps(got)
        k = errors.argmax()
        wrong = f"{what}: {x[k]!r} gives {got[k]!r} and not {self.exact[k]!r}, {errors[k]:.2f} ulp off"
        assert errors[k] <= bound, wrong


# --- functions ---------------------------------------------------------------------------------------------


def power(exponent):
    def definition(x):
        y = np.power(x, float(np.float32(exponent)))
        return y if float(exponent).is_integer() else np.where(x < 0, math.nan, y)

    return definition


def sigmoid(scale):
    return lambda x: 1 / (1 + np.exp(-np.float64(np.float32(scale)) * x))


def softplus(scale):
    return lambda x: np.logaddexp(0, np.float64(np.float32(scale)) * x) / np.float32(scale)


@dataclass(frozen=True)
class Case:
    """A vector function: its definition in double, and how many ulp they may be apart."""

    definition: Any
    bound: float
    emit: Any
    least: float = 2.0**-149
    """What an ulp is at least."""


erf_of_all = np.vectorize(math.erf, otypes=[float])
EXPONENTS = [-0.75, -0.5, -0.25, 0.25, 0.5, 0.75, 1.5, -1, 1, 2, 3, 4]
GENERAL = [-2, -3, 5, -7, 1.7, -0.3, 1 / 3, 1e-3, 1e4, -300.5, 2**24 + 2, 1e-30, -1e30]
CASES = {
    "exp": Case(np.exp, 1.5, vectors.exp),
    "log": Case(np.log, 1.5, vectors.log),
    "tanh": Case(np.tanh, 2.5, vectors.tanh),
    "erf": Case(erf_of_all, 2, vectors.erf),
    "sqrt": Case(np.sqrt, 0.5, vectors.sqrt),
}
for scale in (1.0, 1.702, -0.25, 1e-3, -1e30):
    emits = (partial(f, scale=scale) for f in (vectors.sigmoid, vectors.softplus))
    least = 2.0**-149 / min(1, abs(scale))  # softplus divides what may be subnormal
    CASES[f"sigmoid_{len(CASES)}"] = Case(sigmoid(scale), 2.5, next(emits))
    CASES[f"softplus_{len(CASES)}"] = Case(softplus(scale), 2.5, next(emits), least)
for exponent in EXPONENTS:
    CASES[f"pow_{len(CASES)}"] = Case(power(exponent), 3.5, partial(vectors.pow_, exponent=exponent))
for exponent in GENERAL:
    CASES[f"pow_{len(CASES)}"] = Case(power(exponent), 1.5, partial(vectors.pow_, exponent=exponent))
EMITS = {name: case.emit for name, case in CASES.items()}


def two_registers(cpu):
    return machine_of(cpu).vector // 2


@cache
def expected(name):
    with np.errstate(all="ignore"):
        return Expected(CASES[name].definition(doubles(sweep())), least=CASES[name].least)


@pytest.mark.turns(2)
@runs_code
@pytest.mark.parametrize("cpu", CPUS)
def test_errors_over_the_whole_range(cpu):
    kernels = Kernels(EMITS, cpu, two_registers(cpu))
    for name, case in CASES.items():
        expected(name).assert_close(sweep(), kernels(name, sweep()), case.bound, f"{name} on {cpu}")


@pytest.mark.turns(2)
@runs_code
@pytest.mark.parametrize("count", values.COUNTS)
def test_every_length_gives_the_same_bits(count):
    some = sweep()[: 1 << 20 : 1 << 10].copy()
    usual, others = (Kernels(EMITS, "host", n) for n in (two_registers("host"), count))
    for name in CASES:
        Expected(doubles(usual(name, some))).assert_close(some, others(name, some), 0, name)


@runs_code
@pytest.mark.parametrize("cpu", CPUS)
def test_exp_suits_softmax(cpu):
    """1 for 0, never more for what is less than 0, and hardly ever falling."""
    x = np.sort(sweep()[~np.isnan(sweep())])
    y = Kernels(EMITS, cpu, 1)("exp", x)
    assert y[x == 0].tolist() == [1] * np.count_nonzero(x == 0)
    assert y[x <= 0].max() == 1
    finite = y[np.isfinite(y)]
    assert (np.diff(finite) >= -np.spacing(finite[1:])).all()


@runs_code
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", ["tanh", "erf"])
def test_odd_functions_stay_within_one(name, cpu):
    x = sweep()[~np.isnan(sweep())]
    x = x[: len(x) // 64 * 64]
    kernels = Kernels({name: EMITS[name]}, cpu, two_registers(cpu))
    y, minus = kernels(name, x), kernels(name, -x)
    assert np.abs(y).max() == 1
    assert (y.view(np.uint32) ^ minus.view(np.uint32) == 1 << 31).all()  # -0.0 too


def test_ulps_count_floats():
    some = np.float32([1, -3, 2**-149, math.inf, math.nan, 0, 1e38])
    assert Expected(doubles(some)).ulps(some).tolist() == [0] * 7
    assert Expected(doubles(some[:3])).ulps(np.nextafter(some[:3], np.float32(9))).tolist() == [1, 1, 1]
    assert Expected(np.array([math.inf, 3e99])).ulps(np.float32([LARGEST] * 2)).tolist() == [1, 1]
    assert Expected(np.array([0, math.nan])).ulps(np.float32([math.nan, 0])).tolist() == [math.inf] * 2
    assert Expected(np.array([1.0]), size=2.0).ulps(np.float32([1 + 2**-22])).tolist() == [1]


# --- the code itself ---------------------------------------------------------------------------------------


LINUX = "x86_64-unknown-linux-gnu"
TARGETS = [(cpu, LINUX) for cpu in NEEDS] + [("neoverse-n1", "aarch64-unknown-linux-gnu")]


@pytest.mark.parametrize(("cpu", "triple"), TARGETS)
def test_code_calls_no_library(cpu, triple):
    machine = machine_.machine(cpu, triple)
    text = "".join(
        kernel(f"{name}_{count}", emit, machine, count) for name, emit in EMITS.items() for count in (1, 8)
    )
    assert undefined(compile_.assemble(text, machine)) == set()


@pytest.mark.parametrize(("cpu", "triple"), TARGETS)
def test_multiplications_are_fused_where_the_processor_can(cpu, triple):
    machine = machine_.machine(cpu, triple)
    module = llvm.parse_assembly(kernel("f", vectors.exp, machine, 8))
    assembly = compile_._target(machine, 2).emit_assembly(module)
    assert ("fmadd" in assembly or "fmla" in assembly) == (cpu != "x86-64-v2")
