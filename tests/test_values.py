"""Vector code that converts values, against the definition in NumPy: every pair of types, bit by bit.

A kernel here is a loop over arrays in storage form, ``void k(source, target, operands, count)``. All pairs
of a processor are one module, so that they compile in one go.
"""

from __future__ import annotations

import ctypes
import importlib
import struct
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from covering import share
from relayout import LayoutError
from relayout.convert import arithmetic_types, convert, rescale
from relayout.dtypes import DTYPES, dtype
from relayout.ir.types import DOUBLE, FLOAT, I64, PTR, Value, integer, vector
from strategies import examples

llvm = pytest.importorskip("llvmlite.binding")
compile_ = importlib.import_module("relayout.jit.compile")
machine_ = importlib.import_module("relayout.targets.machine")
values = importlib.import_module("relayout.ir.conversions")
quotients = importlib.import_module("relayout.reorder.quotients")
builder = importlib.import_module("relayout.ir.builder")
Steps = values.Steps
STEPS = [*Steps.__match_args__]

runs_code = pytest.mark.skipif(not compile_.available(), reason="this host forbids making machine code")

NEEDS = {"x86-64-v2": "sse4.2", "x86-64-v3": "avx2", "x86-64-v4": "avx512bw"}
CPUS = ("host", "portable", *NEEDS)
"""``portable`` is code that uses nothing of x86, as other processors run it, tried on this one."""


def can_run(cpu):
    if cpu not in NEEDS:
        return True
    return llvm.get_process_triple().startswith("x86_64") and llvm.get_host_cpu_features().get(
        NEEDS[cpu], False
    )


@contextmanager
def writing_for(cpu):
    """The machine of that name, as long as code is written for it."""
    with pytest.MonkeyPatch.context() as patch:
        if cpu == "portable":
            patch.setattr(values, "_is_x86", lambda machine: False)
        yield machine_.machine(cpu) if cpu in NEEDS else machine_.host()


def storage_bits(kind):
    return max(8, kind.bits)


def stored(array, kind):
    """An array in storage form."""
    return (array.astype(np.int8) if kind.bits == 4 else array).view(f"u{storage_bits(kind) // 8}")


def unstored(bits, kind):
    return bits.view(np.int8).astype(kind.numpy) if kind.bits == 4 else bits.view(kind.numpy)


@dataclass(frozen=True)
class Case:
    """A kernel: from which type to which, with which steps, so many elements at a time.

    ``encloses``: it is given the reciprocals of the destination scale, too.
    """

    src: object
    dst: object
    count: int
    steps: object = Steps()
    encloses: bool = False

    @property
    def name(self):
        return f"k_{self.src}_{self.dst}_{self.count}_" + "".join(
            str(int(on)) for on in (*vars(self.steps).values(), self.encloses)
        )

    def text(self, machine):
        arguments = {**dict.fromkeys(("source", "target", "operands"), PTR), "count": I64}
        f, count = builder.Function(self.name, arguments, machine), self.count
        source, target, given, total = f.arguments
        from_bits, to_bits = storage_bits(self.src), storage_bits(self.dst)
        double = values.arithmetic_type(self.src, self.dst, self.steps) is DOUBLE
        kind = vector(count, DOUBLE if double else FLOAT)
        operands = {
            name: f.load(kind, f.gep(given, 64 * 8 * place))
            for place, name in enumerate((*STEPS, *values.RECIPROCALS))
            if getattr(self.steps, name, self.encloses)
        }

        def body(i):
            to = f.gep(target, i, to_bits // 8)
            x = f.load(vector(count, integer(from_bits)), f.gep(source, i, from_bits // 8), 1)
            old = f.load(vector(count, integer(to_bits)), to, 1) if self.steps.beta else None
            f.store(values.rescale(f, x, self.src, self.dst, self.steps, operands, old), to, 1)

        f.loop(0, total, count, body)
        return f.text()


def writing(kind, count=16):
    """A builder, and a vector of a data type."""
    kind = vector(count, integer(storage_bits(kind)))
    return builder.Builder(machine_.machine("x86-64-v3")), Value("%x", kind)


def module(cases, machine):
    return "".join(case.text(machine) for case in cases)


def undefined(code):
    """The names that an ELF object file wants from elsewhere."""
    start, size, count = (*struct.unpack_from("<Q", code, 0x28), *struct.unpack_from("<HH", code, 0x3A))
    sections = [struct.unpack_from("<IIQQQQIIQQ", code, start + size * k) for k in range(count)]
    found = set()
    for _, kind, _, _, at, length, link, *_ in sections:
        if kind == 2:  # symbols; the first says nothing
            for symbol in range(at + 24, at + length, 24):
                name, _, _, section = struct.unpack_from("<IBBH", code, symbol)
                where = sections[link][4] + name
                if section == 0:
                    found.add(code[where : code.index(b"\0", where)].decode())
    return found


class Kernels:
    """Cases compiled for a processor; its functions take arrays."""

    def __init__(self, cases, cpu):
        if not can_run(cpu):
            pytest.skip(f"this processor cannot run the code of {cpu}")
        with writing_for(cpu) as machine:
            code = compile_.assemble(module(cases, machine), machine)
        if code.startswith(b"\x7fELF"):
            assert undefined(code) == set()  # LLVM would end the process
        target = llvm.Target.from_triple(machine.triple).create_target_machine(
            cpu=machine.cpu, features=machine.features, opt=2, reloc="pic", codemodel="default"
        )
        self.engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target)
        self.engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self.engine.finalize_object()

    def __call__(self, case, source, old=None, operands=None):
        """Convert a whole number of vectors in storage form."""
        assert len(source) % case.count == 0
        target = np.zeros(len(source), f"u{storage_bits(case.dst) // 8}") if old is None else old.copy()
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)
        function = kind(self.engine.get_function_address(case.name))
        given = 0 if operands is None else operands.ctypes.data
        function(source.ctypes.data, target.ctypes.data, given, len(source))
        return target


def same_bits(got, expected, source, what):
    wrong = np.flatnonzero(got != expected)
    if len(wrong):
        k = wrong[0]
        bits = f"0x{source[k]:x} became 0x{got[k]:x} and not 0x{expected[k]:x}"
        raise AssertionError(f"{what}: {len(wrong)} of {len(got)} differ; {bits}")


@cache
def interesting(kind):
    """Bit patterns in storage form: all of up to 16 bits; of more, edges, their neighbours and random ones.

    Edges are the values of all shorter floating-point types and half-way between, every power of two, and the
    ends of every integer type; as numbers and as integers of the same digits.
    """
    if kind.bits == 4:
        return np.repeat(stored(np.arange(int(kind.min), int(kind.max) + 1, dtype=np.int8), dtype("s8")), 64)
    word = f"u{kind.bits // 8}"
    if kind.bits <= 16:
        return np.arange(1 << kind.bits, dtype=word)
    halves = np.arange(1 << 16, dtype=np.uint16)
    some = halves[::7]
    edges = [
        halves.view(np.float16),
        some.view(dtype("bf16").numpy),
        np.arange(1 << 8, dtype=np.uint8).view(dtype("f8_e4m3").numpy),
        np.outer(
            [1.0, -1.0, 1.5, 1 + 2.0**-8, 1 + 2.0**-23, 2 - 2.0**-24], 2.0 ** np.arange(-160, 140)
        ).ravel(),
        np.outer([1.0, -1.0], [float(t.max) for t in DTYPES] + [float(t.min) + 0.5 for t in DTYPES]).ravel(),
    ]
    bits = np.concatenate([convert(e, kind).view(word) for e in edges])
    one = bits.dtype.type(1)
    flips = [bits[::5] ^ (one << bits.dtype.type(k)) for k in range(kind.bits)]
    noise = np.random.default_rng(7).integers(0, 2**64, 1 << 14, dtype=np.uint64)
    short = noise >> (noise % 64)  # small integers as often as large ones
    found = [
        bits,
        bits + one,
        bits - one,
        *flips,
        noise.astype(word),
        short.astype(word),
        ~short.astype(word),
    ]
    whole = np.concatenate(found)
    return np.resize(whole, -(-len(whole) // 64) * 64)


@cache
def expected(src, dst):
    return stored(convert(unstored(interesting(src), src), dst), dst)


@pytest.mark.turns(2)
@runs_code
@pytest.mark.parametrize("cpu", CPUS)
def test_every_pair_gives_the_bits_of_the_definition(cpu):
    pairs = [Case(src, dst, 64) for src in DTYPES for dst in DTYPES]
    kernels = Kernels(pairs, cpu)
    for case in pairs:
        source = interesting(case.src)
        same_bits(kernels(case, source), expected(case.src, case.dst), source, case.name)


SHORT = [("host", count) for count in (1, 2, 4, 8, 16, 32)]
SHORT += [("x86-64-v2", 2), ("x86-64-v2", 8), ("x86-64-v3", 4), ("x86-64-v3", 16), ("portable", 1)]


@pytest.mark.turns(2)
@runs_code
@pytest.mark.parametrize(("cpu", "count"), SHORT)
def test_vectors_shorter_than_registers(cpu, count):
    pairs = [Case(*both, count) for both in share([*product(DTYPES, DTYPES)], SHORT.index((cpu, count)))]
    kernels = Kernels(pairs, cpu)
    for case in pairs:
        picked = np.random.default_rng(count).choice(len(interesting(case.src)), 512)
        source = interesting(case.src)[picked]
        same_bits(kernels(case, source), expected(case.src, case.dst)[picked], source, case.name)


@runs_code
@pytest.mark.parametrize("count", [32, 64])
def test_a_single_subnormal_number_is_rounded_in_any_place(count):
    """Instructions for bf16 flush them, so vectors with one take another way."""
    case = Case(dtype("f32"), dtype("bf16"), count)
    source = np.full((64, 64), 1.01, np.float32)
    np.fill_diagonal(source, 1.01 * 2.0**-130)
    got = Kernels([case], "host")(case, source.view(np.uint32).ravel())
    same_bits(got, convert(source.ravel(), "bf16").view(np.uint16), source.view(np.uint32).ravel(), case.name)


@runs_code
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("count", [8, 16, 32, 64])
@pytest.mark.parametrize("bits", [0x7F800001, 0xFFFFFFFF])
def test_a_single_nan_is_made_quiet_in_any_place(cpu, count, bits):
    """Where no instruction rounds to bf16, vectors are looked through for NaN, of which none is expected."""
    case = Case(dtype("f32"), dtype("bf16"), count)
    source = np.full((64, 64), 1.01, np.float32).view(np.uint32)
    np.fill_diagonal(source, bits)
    got = Kernels([case], cpu)(case, source.ravel())
    wanted = convert(source.ravel().view(np.float32), "bf16").view(np.uint16)
    same_bits(got, wanted, source.ravel(), case.name)


@runs_code
@pytest.mark.parametrize("count", [4, 16, 64])
def test_a_single_double_that_float_would_take_for_a_middle(count):
    """Next to the middle of two bf16, where rounding to float first would lose the side that it lies on."""
    case = Case(dtype("f64"), dtype("bf16"), count)
    source = np.full((64, 64), 1.01)
    middles = np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8, -(2.0**-133) * 1.5, 2.0**128 - 2.0**119])
    np.fill_diagonal(source, np.resize(middles, 64) * np.repeat([1, 1 + 2.0**-40, 1 - 2.0**-40, 1], 16))
    got = Kernels([case], "host")(case, source.view(np.uint64).ravel())
    same_bits(got, convert(source.ravel(), "bf16").view(np.uint16), source.view(np.uint64).ravel(), case.name)


# --- attributes --------------------------------------------------------------------------------------------

scales = st.one_of(st.sampled_from([1.0, 0.1, -2.5, 127.0]), st.floats(width=32, allow_nan=False))
zero_points = st.one_of(st.integers(-200, 300), st.integers(-(2**40), 2**40))
attributes = st.fixed_dictionaries(
    {},
    optional={
        "src_zero_point": zero_points,
        "src_scale": scales,
        "src_shift": st.one_of(st.sampled_from([0.0, 0.485, -1e-40, 2.0**60]), st.floats(-1e9, 1e9)),
        "beta": scales.filter(bool),
        "dst_scale": scales,
        "dst_zero_point": zero_points,
    },
)


def operand_table(given, src, dst):
    """64 times every operand, in the arithmetic type and in the order of the steps."""
    arithmetic, kept = arithmetic_types(src, dst, accumulate="beta" in given, shifted="src_shift" in given)
    table = np.zeros((len(STEPS), 512), np.uint8)
    for row, name in zip(table, STEPS, strict=True):
        if name in given:
            first = kept if name in ("src_scale", "dst_scale", "beta") else arithmetic
            operand = convert(convert(np.array([given[name]]), first), arithmetic)
            row[: 64 * operand.itemsize] = np.repeat(operand, 64).view(np.uint8)
    return table


@runs_code
@given(
    src=st.sampled_from(DTYPES),
    dst=st.sampled_from(DTYPES),
    given=attributes,
    cpu=st.sampled_from([cpu for cpu in CPUS if can_run(cpu)]),
    count=st.sampled_from([1, 4, 16, 64]),
    seed=st.integers(0, 2**16),
)
@examples(200)
def test_attributes(src, dst, given, cpu, count, seed):
    """Each step rounds by itself, in its place.

    Which of two NaNs an addition keeps is not defined: with beta they only need to be NaN.
    """
    case = Case(src, dst, count, Steps(**dict.fromkeys(given, True)))
    rng = np.random.default_rng(seed)
    source, old = (interesting(t)[rng.choice(len(interesting(t)), 1024)] for t in (src, dst))
    got = Kernels([case], cpu)(case, source, old, operand_table(given, src, dst))
    before = {"old": unstored(old, dst)} if "beta" in given else {}
    wanted = rescale(unstored(source, src), src, dst, **given, **before, keep_neutral=True)
    compared = np.ones(len(got), bool)
    if "beta" in given and dst.is_float:
        both = [np.isnan(x.astype(np.float64)) for x in (unstored(got, dst), wanted)]
        compared = ~(both[0] & both[1])
    same_bits(got[compared], stored(wanted, dst)[compared], source[compared], f"{case.name} {given}")


QUANTISED = ("s8", "u8", "s4", "u4")
divisors = st.one_of(
    st.sampled_from([0.7, 0.05, -0.3, 1 / 3, 0.25, 1 + 2.0**-23, 1 - 2.0**-24, 3.0, 255.0, 2.0**-99]),
    st.floats(2.0**-99, 2.0**99),
).map(lambda scale: np.float32(scale).item())


@cache
def quantising(cpu, count):
    """Kernels of f32 to small integers, without and with a zero point, that are given reciprocals."""
    steps = [Steps(dst_scale=True), Steps(dst_scale=True, dst_zero_point=True)]
    found = [Case(dtype("f32"), dtype(name), count, s, True) for name in QUANTISED for s in steps]
    return found, Kernels(found, cpu)


@runs_code
@pytest.mark.parametrize("scale", [2.0**-126, 2.0**-126 - 2.0**-149, -(2.0**-133), 2.0**-149, 0.3])
@pytest.mark.parametrize("src", ["s8", "u8", "s16"])
def test_integers_times_a_subnormal_scale_are_not_flushed(src, scale):
    """A vector is looked at by its scale alone, which no product but 0 is smaller than."""
    kinds, found = (dtype(src), dtype("bf16")), [Steps(src_scale=True)]
    cases = [Case(*kinds, 64, s) for s in (*found, Steps(src_zero_point=True, src_scale=True))]
    kernels, source = Kernels(cases, "host"), interesting(kinds[0])
    source = np.resize(source, -(-source.size // 64) * 64)
    for case in cases:
        given = {"src_scale": scale, **({"src_zero_point": 3} if case.steps.src_zero_point else {})}
        wanted = stored(rescale(unstored(source, kinds[0]), *kinds, **given, keep_neutral=True), kinds[1])
        same_bits(kernels(case, source, operands=operand_table(given, *kinds)), wanted, source, f"{given}")


def rounded(exact):
    """The nearest f32 of a fraction, ties to even."""
    near = np.float32(float(exact))
    found = [np.nextafter(near, np.float32(end)) for end in (-np.inf, np.inf)] + [near]
    return min(found, key=lambda one: (abs(Fraction(one.item()) - exact), int(one.view(np.int32)) & 1))


def product_of(x, first, rest):
    """What a kernel computes in place of x / scale."""
    added = np.float32(x) * np.float32(rest)
    return rounded(Fraction(x.item()) * Fraction(first.item()) + Fraction(added.item()))


def mantissas_near_middles(s):
    """All X below S with ``X * 2**25 = N * S + 1`` or ``- 1`` for an odd N, by trying them all."""
    x = np.arange(2**23, s, dtype=np.int64)
    n = (x << 25) // s
    found = [(x[(n % 2 == 1) & ((x << 25) - n * s == 1)]), x[(n % 2 == 0) & ((n + 1) * s - (x << 25) == 1)]]
    return sorted(np.concatenate(found).tolist())


@pytest.mark.parametrize("seed", range(6))
def test_one_number_is_next_to_a_middle(seed):
    """Which is what the proof says; and only odd scales have one."""
    s = int(np.random.default_rng(seed).integers(2**23, 2**24))
    near = mantissas_near_middles(s)
    assert len(near) <= s % 2
    inverse = pow(s, -1, 2**25) if s % 2 else 0
    n, sign = (inverse, -1) if inverse > 2**24 else (2**25 - inverse, 1)
    x = (n * s + sign) >> 25
    assert near == ([x] if s % 2 and x >= 2**23 else [])


def test_products_are_rounded_quotients_but_for_one_number():
    """With arbitrary scales and numbers, and with the one next to a middle."""
    rng = np.random.default_rng(1)
    scales = rng.integers(2**23, 2**24, 3000).astype(np.float32)
    first, rest = quotients.reciprocals(scales, np.float32(0), dtype("s8"))
    wrong, middle = quotients._rounded_wrong(scales, first, rest)
    assert 0 < wrong.sum() < 0.1 * scales.size
    for k, scale in enumerate(scales):
        odd = int(scale) % 2
        near = (int(middle[k]) * int(scale) + (1 << 24)) >> 25 if odd else 2**23
        for x in np.array([near, near + 1, *rng.integers(2**23, 2**24, 3)], np.float32):
            if not np.isnan(rest[k]) and (x.item() != near or not wrong[k]):
                assert product_of(x, first[k], rest[k]) == x / scale, (x, scale)
    assert any(
        product_of(x, first[k], rest[k]) != x / scales[k]
        for k in np.flatnonzero(wrong)
        for x in [np.float32((int(middle[k]) * int(scales[k]) + (1 << 24)) >> 25)]
    )


def test_a_scale_whose_one_number_matters_is_divided_by():
    """A zero point puts the border between two integers where the middle is."""
    rng = np.random.default_rng(2)
    scales = rng.integers(2**23, 2**24, 4000).astype(np.float32)
    wrong, middle = quotients._rounded_wrong(
        scales, *quotients.reciprocals(scales, np.float32(0), dtype("s8"))
    )
    some = np.flatnonzero(wrong)[:8]
    assert some.size == 8
    for k in some:  # the quotients are whole, and the sum -1 or 0
        point = -np.float32((int(middle[k]) + 1) // 2)
        rests = [
            quotients.reciprocals(scales[k : k + 1], p, dtype("s8"))[1]
            for p in (point, np.float32(1.5) * point)
        ]
        assert np.isnan(rests).ravel().tolist() == [True, False]


@given(scale=divisors)
def test_the_digits_of_a_reciprocal(scale):
    """Both together are within 2**-48 of it."""
    first, rest = (r.item() for r in quotients.reciprocals(np.float32(scale), np.float32(0), dtype("u8")))
    exact = 1 / Fraction(scale)
    assert rounded(exact).item() == first
    if abs(np.log2(abs(scale))) < 64 and not np.isnan(rest):
        assert abs(Fraction(first) + Fraction(rest) - exact) <= abs(exact) / 2**48
    else:
        assert np.isnan(rest)


@runs_code
@pytest.mark.parametrize(("cpu", "count"), [("host", 64), ("host", 16), ("x86-64-v3", 32), ("portable", 16)])
@examples(40)
@given(scale=divisors, zero_point=st.one_of(st.integers(-9, 300), zero_points), seed=st.integers(0, 2**16))
def test_quantising_by_reciprocals_gives_the_bits_of_a_division(cpu, count, scale, zero_point, seed):
    """Next to every tie; and anything else, NaN and infinity among it."""
    cases, kernels = quantising(cpu, count)
    f32 = dtype("f32")
    ties = np.arange(-600, 600, dtype=np.float64) / 2 - (zero_point if abs(zero_point) < 300 else 0)
    bits = (ties * np.float32(scale)).astype(np.float32).view(np.uint32)
    near = [bits + np.uint32(k) for k in (0, 1, 2)] + [bits - np.uint32(k) for k in (1, 2)]
    others = np.random.default_rng(seed).choice(interesting(f32), 912)
    source = np.resize(np.concatenate([*near, others]), 6912)
    for case in cases:
        given = {"dst_scale": scale, **({"dst_zero_point": zero_point} if case.steps.dst_zero_point else {})}
        point = np.float32(zero_point if case.steps.dst_zero_point else 0)
        reciprocals = np.array(quotients.reciprocals(np.float32(scale), point, case.dst))[:, None]
        table = operand_table(given, f32, case.dst)
        table = np.concatenate([table, np.repeat(reciprocals, 128, axis=1).view(np.uint8)])
        wanted = stored(rescale(source.view(np.float32), f32, case.dst, **given, keep_neutral=True), case.dst)
        same_bits(kernels(case, source, operands=table), wanted, source, f"{case.name} {given}")


@given(scale=st.one_of(divisors, st.floats(2.0**-999, 2.0**999)))
def test_reciprocals_in_f64_enclose_the_exact_one(scale):
    below, above = (r.item() for r in quotients.enclosing(np.array(scale, np.float64)))
    assert Fraction(below) * Fraction(scale) <= 1 <= Fraction(above) * Fraction(scale)
    assert above <= np.nextafter(np.nextafter(below, np.inf), np.inf) or scale < 0
    assert (below == above) == (abs(np.frexp(scale)[0]) == 0.5)


NORMALISED = ("f32", "f16", "bf16", "f8_e4m3", "s32", "s8", "u8")


@cache
def normalising(cpu, count):
    """Kernels with a shift and a destination scale, from bytes and from f32, that are given reciprocals."""
    steps = Steps(src_scale=True, src_shift=True, dst_scale=True, dst_zero_point=True)
    found = [Case(dtype(src), dtype(dst), count, steps, True) for src in ("u8", "f32") for dst in NORMALISED]
    return found, Kernels(found, cpu)


@runs_code
@pytest.mark.parametrize(
    ("cpu", "count"), [("host", 16), ("x86-64-v3", 8), ("x86-64-v2", 16), ("portable", 4)]
)
@examples(30)
@given(
    scale=st.one_of(divisors, st.sampled_from([0.229, 0.5, 0.1 / 3])),
    shift=st.sampled_from([0.485, 0.5, 3.25, -1e-3]),
    seed=st.integers(0, 2**16),
)
def test_normalising_by_reciprocals_gives_the_bits_of_a_division(cpu, count, scale, shift, seed):
    """All bytes, and floats whose results lie next to the middle of two values of a short type."""
    cases, kernels = normalising(cpu, count)
    rng = np.random.default_rng(seed)
    middles = np.arange(-512, 512) / 2 * scale + shift
    near = (middles.astype(np.float32).view(np.uint32) + rng.integers(-2, 3, 1024)).astype(np.uint32)
    for case in cases:
        source = np.arange(256, dtype=np.uint8).repeat(4)
        if case.src.is_float:
            source = np.concatenate([near, rng.choice(interesting(case.src), 1024)])
        given = {"src_scale": 1.0 if case.src.is_float else 1 / 255, "src_shift": shift}
        given |= {"dst_scale": scale, "dst_zero_point": 3}
        reciprocals = np.array(quotients.enclosing(np.array(scale, np.float64)))[:, None]
        table = operand_table(given, case.src, case.dst)
        table = np.concatenate([table, np.repeat(reciprocals, 64, axis=1).view(np.uint8)])
        wanted = stored(rescale(unstored(source, case.src), case.src, case.dst, **given), case.dst)
        same_bits(kernels(case, source, operands=table), wanted, source, f"{case.name} {given}")


def test_arithmetic_is_done_in_the_type_of_the_definition():
    for src, dst, beta, shift in product(DTYPES, DTYPES, (False, True), (False, True)):
        kind = arithmetic_types(src, dst, accumulate=beta, shifted=shift)[0]
        steps = Steps(beta=beta, src_shift=shift)
        assert values.arithmetic_type(src, dst, steps).bits == kind.bits


# --- the code itself ---------------------------------------------------------------------------------------


LINUX = "x86_64-unknown-linux-gnu"
TARGETS = [(cpu, LINUX) for cpu in NEEDS] + [("neoverse-n1", "aarch64-unknown-linux-gnu")]


@pytest.mark.turns(2)
@pytest.mark.parametrize(("cpu", "triple"), TARGETS)
def test_code_calls_no_library(cpu, triple):
    machine = machine_.machine(cpu, triple)
    every = Steps(*[True] * len(STEPS))
    pairs = [*product(DTYPES, DTYPES)]
    cases = [Case(*pair, n) for k, pair in enumerate(pairs) for n in share((1, 16), k + k // len(DTYPES))]
    cases += [
        Case(src, dst, 8, every) for src in DTYPES for dst in DTYPES if src.bits >= 32 or dst.bits >= 32
    ]
    assert undefined(compile_.assemble(module(cases, machine), machine)) == set()


def test_calls_of_a_library_would_be_found():
    body = "define float @f(float %x) {\n %y = call float @llvm.sin.f32(float %x)\n ret float %y\n}\n"
    code = compile_.assemble(
        body + "declare float @llvm.sin.f32(float)", machine_.machine("x86-64-v2", LINUX)
    )
    assert undefined(code) == {"sinf"}


@pytest.mark.parametrize("kind", DTYPES, ids=str)
def test_the_same_type_is_no_code(kind):
    b, x = writing(kind)
    assert values.convert(b, x, kind, kind) is x
    assert b.lines == []


def test_no_steps_are_a_plain_conversion():
    pair = (dtype("s32"), dtype("f32"))
    (plain, x), (rescaled, y) = writing(pair[0]), writing(pair[0])
    values.convert(plain, x, *pair)
    values.rescale(rescaled, y, *pair, Steps(), {})
    assert plain.lines == rescaled.lines


def test_what_is_missing_is_named():
    pair = (dtype("s8"), dtype("f32"))
    with pytest.raises(LayoutError, match=r"from s8 to f32.*src_scale, beta, old"):
        values.rescale(*writing(pair[0]), *pair, Steps(src_scale=True, beta=True), {})
    with pytest.raises(LayoutError, match=r"power of two.*not 24"):
        values.convert(*writing(pair[0], 24), *pair)
