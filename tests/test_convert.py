"""Conversion of values, against an exact and slow definition in whole numbers, and against answers of oneDNN.

``encode`` is that definition: it takes an exact fraction and returns the bits of the nearest value of a type.
It knows nothing of NumPy, ml_dtypes or the code under test.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from relayout import convert as module
from relayout.convert import arithmetic_types, convert, rescale, saturation_bounds
from relayout.dtypes import DTYPES, dtype
from relayout.errors import LayoutError
from strategies import tried

# The exact definition. A value is (sign, numerator, denominator), "inf" or "nan" in place of the numerator.

FORMATS = {
    "f64": (11, 52),
    "f32": (8, 23),
    "f16": (5, 10),
    "bf16": (8, 7),
    "f8_e4m3": (4, 3),
    "f8_e5m2": (5, 2),
}
RANGES = {
    "s64": (-(2**63), 2**63 - 1),
    "s32": (-(2**31), 2**31 - 1),
    "s16": (-32768, 32767),
    "s8": (-128, 127),
    "u8": (0, 255),
    "s4": (-8, 7),
    "u4": (0, 15),
}
NAMES = [*FORMATS, *RANGES]
WIDTH = {name: int("".join(filter(str.isdigit, name.partition("_")[0]))) for name in NAMES}

Value = tuple[int, Any, int]


@cache
def decode(bits: int, name: str) -> Value:
    """Return the exact value of the bits."""
    width = WIDTH[name]
    if name in RANGES:
        value = bits - (1 << width) if RANGES[name][0] < 0 and bits >> (width - 1) else bits
        return int(value < 0), abs(value), 1
    exponent_bits, mantissa_bits = FORMATS[name]
    sign, exponent = bits >> (width - 1), bits >> mantissa_bits & ((1 << exponent_bits) - 1)
    mantissa = bits & ((1 << mantissa_bits) - 1)
    if name == "f8_e4m3":
        if bits & 0x7F == 0x7F:
            return sign, "nan", 1
    elif exponent == (1 << exponent_bits) - 1:
        return sign, "nan" if mantissa else "inf", 1
    if exponent:
        mantissa += 1 << mantissa_bits
    power = max(exponent, 1) - ((1 << (exponent_bits - 1)) - 1) - mantissa_bits
    return sign, mantissa << max(power, 0), 1 << max(-power, 0)


def nearest(numerator: int, denominator: int) -> int:
    """Return the nearest whole number, the even one of two."""
    whole, rest = divmod(numerator, denominator)
    return whole + (2 * rest > denominator or (2 * rest == denominator and whole % 2))


def encode(value: Value, name: str, top: int | None = None) -> int:
    """Return the bits of the value (NaN only to integers), rounded; ``top`` replaces the largest integer."""
    sign, numerator, denominator = value
    width = WIDTH[name]
    if name in RANGES:
        low, high = RANGES[name]
        high = high if top is None else top
        if numerator == "nan":
            return 0
        if numerator == "inf":
            result = low if sign else high
        else:
            result = min(max((-1) ** sign * nearest(numerator, denominator), low), high)
        return result & ((1 << width) - 1)
    exponent_bits, mantissa_bits = FORMATS[name]
    overflow = 0x7F if name == "f8_e4m3" else ((1 << exponent_bits) - 1) << mantissa_bits
    bits = overflow
    if numerator == 0:
        bits = 0
    elif numerator != "inf":
        power = numerator.bit_length() - denominator.bit_length()
        power -= numerator << max(-power, 0) < denominator << max(power, 0)  # 2**power <= value
        bias = (1 << (exponent_bits - 1)) - 1
        unit = max(power, 1 - bias) - mantissa_bits  # exponent of the last place
        count = nearest(numerator << max(-unit, 0), denominator << max(unit, 0))
        bits = min((unit + mantissa_bits + bias - 1 << mantissa_bits) + count, overflow)
    return sign << (width - 1) | bits


def quiet(bits: int, src: str, dst: str) -> int:
    """Return what a NaN becomes: its sign, the quiet bit, and the leading bits of its payload."""
    sign = bits >> (WIDTH[src] - 1)
    if src == "bf16" and dst == "f32":
        return bits << 16
    if dst == "f8_e4m3":
        return sign << 7 | 0x7F
    payload = "" if src == "f8_e4m3" else f"{bits:0{WIDTH[src]}b}"[-FORMATS[src][1] :][1:]
    exponent_bits, mantissa_bits = FORMATS[dst]
    return int(f"{sign}{'1' * exponent_bits}1{payload:0<{mantissa_bits}}"[: WIDTH[dst]], 2)


def expected(bits: int, src: str, dst: str) -> int:
    if src == dst:
        return bits
    value = decode(bits, src)
    if value[1] == "nan" and dst in FORMATS:
        return quiet(bits, src, dst)
    top = 2147483520 if dst == "s32" and src in FORMATS and src != "f64" else None
    return encode(value, dst, top)


# From bits to arrays and back


def from_bits(bits: list[int], name: str) -> np.ndarray:
    if WIDTH[name] == 4:
        low = RANGES[name][0]
        return np.array([(b - low) % 16 + low for b in bits], np.int8).astype(dtype(name).numpy)
    return np.array(bits, f"u{WIDTH[name] // 8}").view(dtype(name).numpy)


def to_bits(array: np.ndarray) -> list[int]:
    name = str(dtype(array.dtype))
    if WIDTH[name] == 4:
        return [int(v) % 16 for v in array.astype(np.int8)]
    return array.view(f"u{WIDTH[name] // 8}").tolist()


def check(bits: list[int], src: str, dst: str) -> None:
    result = convert(from_bits(bits, src), dst)
    assert result.dtype == dtype(dst)
    got = to_bits(result)
    wanted = [expected(b, src, dst) for b in bits]
    wrong = [(hex(b), hex(g), hex(w)) for b, g, w in zip(bits, got, wanted, strict=True) if g != w]
    assert not wrong, f"{src} -> {dst}: {len(wrong)} differ; source, result, exact: {wrong[:5]}"


def neighbours(value: Fraction, name: str) -> list[int]:
    """Return the bits of the values of a type around a number, with both signs."""
    if name in RANGES:
        low, high = RANGES[name]
        near = [int(value // 1) + d for d in (-1, 0, 1, 2)]
        return [v & ((1 << WIDTH[name]) - 1) for n in near for v in (n, -n) if low <= v <= high]
    bits = encode((0, value.numerator, value.denominator), name)
    near = [b for b in (bits - 1, bits, bits + 1) if 0 <= b < 1 << (WIDTH[name] - 1)]
    return near + [b | 1 << (WIDTH[name] - 1) for b in near]


def edges(name: str) -> list[Fraction]:
    """Return the numbers at which rounding to a type is decided: values, ties, the ends of the range."""
    if name in RANGES:
        high = RANGES[name][1]
        whole = [0, 1, 2, 3, 6, 7, high - 1, high, high + 1, high // 2, high // 3, 2**31 - 128, 2**31 - 64]
        return [Fraction(w) for w in whole] + [w + Fraction(1, 2) for w in whole]
    largest = (1 << (WIDTH[name] - 1)) - 1
    mantissa_bits = FORMATS[name][1]
    samples = {0, 1, 2, 3, (1 << mantissa_bits) - 1, 1 << mantissa_bits, 0x7E}
    exponents = range(1, 1 << FORMATS[name][0], 1 + (1 << FORMATS[name][0] - 4))
    samples |= {(e << mantissa_bits) + o for e in exponents for o in (-1, 0, 1)}
    found = []
    for bits in sorted(samples):
        pair = [decode(b, name) for b in (bits, bits + 1)]
        if bits < largest and all(isinstance(p[1], int) for p in pair):
            a, b = (Fraction(p[1], p[2]) for p in pair)
            found += [a, (a + b) / 2]
    top = max(found)
    return [*found, top * 2, Fraction(464), Fraction(480), Fraction(61440), Fraction(65520)]


SPECIAL = {
    name: [0, 1 << (WIDTH[name] - 1)]
    + [
        sign << (WIDTH[name] - 1) | ((1 << e) - 1 << m) | payload
        for e, m in ([FORMATS[name]] if name in FORMATS else [])
        for sign in (0, 1)
        for payload in {0, 1, 1 << (m - 1), (1 << m) - 1, 3 << (m - 2), 1 << (m - 2)}
    ]
    for name in NAMES
}


@pytest.mark.parametrize("src", [n for n in NAMES if WIDTH[n] <= 8])
def test_all_values_of_up_to_8_bits(src: str) -> None:
    for dst in NAMES:
        check(list(range(1 << WIDTH[src])), src, dst)


@pytest.mark.turns(2)
@pytest.mark.parametrize("dst", NAMES)
@pytest.mark.parametrize("src", ["f16", "bf16", "s16"])
def test_all_values_of_16_bits(src: str, dst: str) -> None:
    check(list(range(65536)), src, dst)


@pytest.mark.parametrize("dst", NAMES)
@pytest.mark.parametrize("src", ["f64", "f32", "s64", "s32"])
def test_around_every_decision(src: str, dst: str) -> None:
    bits = SPECIAL[src] + [b for edge in edges(dst) for b in neighbours(edge, src)]
    check(bits, src, dst)


def integers_of(width: int) -> st.SearchStrategy[int]:
    """Bit patterns, also shifted, so that numbers of all magnitudes and with few or many ones come up."""
    mask = (1 << width) - 1
    shifted = st.tuples(st.integers(0, mask), st.integers(0, width)).map(lambda p: p[0] >> p[1])
    close_to_power = st.tuples(st.integers(0, width - 1), st.integers(-3, 3), st.integers(0, width - 1)).map(
        lambda p: ((1 << p[0]) + (1 << p[2]) + p[1]) & mask
    )
    return st.one_of(st.integers(0, mask), shifted, close_to_power, shifted.map(lambda b: -b & mask))


@pytest.mark.parametrize("src", ["f64", "f32", "s64", "s32"])
@settings(deadline=None, max_examples=tried(60))
@given(data=st.data())
def test_random_values_to_every_type(src: str, data: st.DataObject) -> None:
    bits = data.draw(st.lists(integers_of(WIDTH[src]), min_size=1, max_size=20))
    for dst in NAMES:
        check(bits, src, dst)


def ties(dst: str) -> st.SearchStrategy[Fraction]:
    """Numbers halfway between neighbours of a type, moved by next to nothing or not at all."""
    largest = (1 << (WIDTH[dst] - 1)) - (1 << FORMATS[dst][1]) - 3

    def move(bits: int, direction: int, power: int) -> Fraction:
        a, b = (Fraction(*decode(x, dst)[1:]) for x in (bits, bits + 1))
        return (a + b) / 2 * (1 + Fraction(direction, 1 << power))

    return st.builds(move, st.integers(0, largest), st.integers(-1, 1), st.integers(20, 52))


@pytest.mark.parametrize("dst", ["f32", "f16", "bf16", "f8_e4m3", "f8_e5m2"])
@settings(deadline=None)
@given(data=st.data())
def test_f64_next_to_ties_is_rounded_once(dst: str, data: st.DataObject) -> None:
    tie = data.draw(ties(dst))
    check([encode((0, tie.numerator, tie.denominator), "f64")], "f64", dst)


@settings(deadline=None)
@given(st.integers(12, 62), st.integers(0, 63), st.sampled_from([-1, 0, 1]), st.booleans())
def test_s64_next_to_ties_is_rounded_once(top: int, half: int, nudge: int, negative: bool) -> None:
    value = (1 << top) + (1 << half % top) + nudge
    bits = (-value if negative else value) & (1 << 64) - 1
    for dst in FORMATS:
        check([bits], "s64", dst)


def test_what_two_roundings_would_get_wrong() -> None:
    """The cases that a detour over f32 or f64 decides differently."""
    tie = 1 + 2.0**-8
    assert convert(np.array([tie + 2.0**-40]), "bf16").astype(float) == [1 + 2.0**-7]
    assert convert(np.array([tie - 2.0**-40]), "bf16").astype(float) == [1.0]
    assert convert(np.array([2.0**62 + 2.0**38]).astype(np.int64) + 1, "f32").tolist() == [2.0**62 + 2.0**39]
    assert convert(np.array([2**24 + 2**16 + 1], np.int32), "bf16").astype(float) == [2.0**24 + 2.0**17]
    assert convert(np.array([0.00097656262], np.float32), "f8_e4m3").astype(float) == [2.0**-9]


def test_16_bit_results_are_those_of_numpy_and_ml_dtypes() -> None:
    """A second opinion where those round once: f32 to all small types, f64 to f16."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2**32, 50_000, dtype=np.uint32).view(np.float32)
    x = x[~np.isnan(x)]
    for scalar in (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
        with np.errstate(all="ignore"):
            wanted = x.astype(scalar)
        assert convert(x, scalar).tobytes() == wanted.tobytes()
    y = x.astype(np.float64) * (1 + 2.0**-40)
    with np.errstate(all="ignore"):
        assert convert(y, "f16").tobytes() == y.astype(np.float16).tobytes()


# Answers of oneDNN 3.13.2, recorded by calling its reorder on x86-64 with AVX-512

ONEDNN_F32 = [
    464,
    465,
    480,
    1e9,
    np.inf,
    -np.inf,
    57344,
    61441,
    65504,
    65520,
    3.4028235e38,
    3.3961775e38,
    -1e-45,
]
ONEDNN_FLOATS = {
    "f16": "5f40 5f44 5f80 7c00 7c00 fc00 7b00 7b80 7bff 7c00 7c00 7c00 8000",
    "bf16": "43e8 43e8 43f0 4e6e 7f80 ff80 4760 4770 4780 4780 7f80 7f80 8000",
    "f8_e4m3": "7e 7f 7f 7f 7f ff 7f 7f 7f 7f 7f 7f 80",
    "f8_e5m2": "5f 5f 60 7c 7c fc 7b 7c 7c 7c 7c 7c 80",
}
ONEDNN_NANS = {
    "f16": "7e00 fe00 7e00 fe00 7f00",
    "bf16": "7fc0 ffc0 7fc0 ffc0 7fe0",
    "f8_e4m3": "7f ff 7f ff 7f",
    "f8_e5m2": "7e fe 7e fe 7f",
}
ONEDNN_INTEGERS = {
    "s32": [0, 2, 2, 0, 2147483520, -2147483648, 2147483520, -2147483648, 2147483520, 2147483520],
    "s8": [0, 2, 2, 0, 127, -128, 127, -128, 127, 127],
    "u8": [0, 2, 2, 0, 255, 0, 255, 0, 255, 255],
}


def test_conversions_of_onednn() -> None:
    values = np.array(ONEDNN_F32, np.float32)
    nans = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001, 0x7FA00000], np.uint32).view(np.float32)
    for name in ONEDNN_FLOATS:
        assert to_bits(convert(values, name)) == [int(w, 16) for w in ONEDNN_FLOATS[name].split()]
        assert to_bits(convert(nans, name)) == [int(w, 16) for w in ONEDNN_NANS[name].split()]
    whole = np.array([0.5, 1.5, 2.5, -0.5, 3e9, -3e9, np.inf, -np.inf, 2147483520, 2147483648], np.float32)
    for name, wanted in ONEDNN_INTEGERS.items():
        assert convert(whole, name).tolist() == wanted
    assert convert(np.array([2**24 + 1, 2**31 - 64, 2**31 - 65, 2147483583], np.int32), "f32").tolist() == [
        16777216.0,
        2147483648.0,
        2147483520.0,
        2147483520.0,
    ]


S8 = [113, 32, 47, 101, 20, 70, 85, -71, -114, -52, -56, 95]
U8 = [113, 9, 36, 131, 248, 119, 206, 234, 210, 161, 112, 131]
S32 = [420005, 256228, -333393, 1025423, -70820, -597041, 723700, -712588, 749625, 236012, -808005, -956423]
F32 = [2.375, 53.625, -19.75, -24.875, 19.625, 14.25, 4.25, -37.25, -1.125, 27.75, -53.75, -18.25]
OLD_U8 = [26, 49, 37, 24, 99, 1, 9, 19, 96, 69, 88, 20]
OLD_F32 = [-0.375, 37.375, -40.75, 16.125, 3.25, -36.875, 34.5, 34.5, -1.75, 44.375, 10.625, 40.375]
REQUANTISE = {"src_scale": 0.37, "dst_scale": 0.11, "src_zero_point": 2, "dst_zero_point": 7, "beta": 0.7}
ONEDNN_RESCALED: list[tuple[str, list[int], str, dict[str, float], list[Any] | None, str]] = [
    # source type, source, result type, attributes, old destination, result
    ("s8", S8, "u8", REQUANTISE, OLD_U8, "255 255 255 255 255 242 255 0 228 255 255 255"),
    (
        *("s8", S8, "s8", {"src_scale": 3.3, "src_zero_point": -5, "dst_zero_point": 7}, None),
        "127 127 127 127 90 127 127 -128 -128 -128 -128 127",
    ),
    (
        *("u8", U8, "s8", {"src_scale": 0.25, "src_zero_point": 128}, None),
        "-4 -30 -23 1 30 -2 20 26 20 8 -4 1",
    ),
    (
        *("f32", F32, "u8", {"dst_scale": 0.3, "dst_zero_point": 128}, None),
        "136 255 62 45 193 176 142 4 124 220 0 67",
    ),
    ("f32", F32, "s8", {"src_scale": 0.625}, None, "1 34 -12 -16 12 9 3 -23 -1 17 -34 -11"),
    (
        *("f32", F32, "s32", {"src_scale": 1e8}, None),
        "237500000 2147483520 -1975000064 -2147483648 1962499968 1424999936 "
        "425000000 -2147483648 -112500000 2147483520 -2147483648 -1824999936",
    ),
    (
        *("f32", F32, "s32", {"src_scale": 12345.678, "dst_zero_point": 1000}, None),
        "30321 663037 -242827 -306099 243284 176926 53469 -458876 -12889 343593 -662580 -224309",
    ),
    (
        *("f32", F32, "f32", {"src_scale": 0.37, "beta": 0.7}, OLD_F32),
        "0x1.3b8520p-1 0x1.7007aep+5 -0x1.1ea8f6p+5 0x1.0ab850p+1 0x1.3128f6p+3 -0x1.48a3d8p+4 "
        "0x1.9b8f5cp+4 0x1.4bc28ep+3 -0x1.a428f6p+0 0x1.4aa3d8p+5 -0x1.8e6668p+3 0x1.5828f4p+4",
    ),
    (
        *("u8", U8, "f32", {"src_scale": 0.0173, "src_zero_point": 121}, None),
        "-0x1.1b7176p-3 -0x1.f0068ep+0 -0x1.7872b0p+0 0x1.624dd4p-3 0x1.193a94p+1 -0x1.1b7176p-5 "
        "0x1.7872b0p+0 0x1.f47454p+0 0x1.8a29c8p+0 0x1.624dd4p-1 -0x1.3edfa4p-3 0x1.624dd4p-3",
    ),
    (
        *("s32", S32, "s8", {"src_scale": 1e-4, "dst_zero_point": 3}, None),
        "45 29 -30 106 -4 -57 75 -68 78 27 -78 -93",
    ),
    (
        *("s32", S32, "f32", {"src_scale": 1e-4}, None),
        "0x1.500106p+5 0x1.99f6fcp+4 -0x1.0ab6e2p+5 0x1.9a2b50p+6 -0x1.c53f7cp+2 -0x1.dda1fep+5 "
        "0x1.217ae0p+6 -0x1.1d0902p+6 0x1.2bd99ap+6 0x1.799e84p+4 -0x1.4333b6p+6 -0x1.7e91b6p+6",
    ),
]


@pytest.mark.parametrize("case", ONEDNN_RESCALED, ids=lambda c: f"{c[0]}-{c[2]}-{'-'.join(c[3])}")
def test_attributes_of_onednn(case: tuple[Any, ...]) -> None:
    src, values, dst, attributes, old, wanted = case
    previous = None if old is None else np.array(old, dtype(dst).numpy)
    result = rescale(np.array(values, dtype(src).numpy), src, dst, old=previous, **attributes)
    assert result.tolist() == [float.fromhex(w) if "0x" in w else int(w) for w in wanted.split()]


# The arithmetic, one rounding at a time, in fractions


def rounded(value: Fraction, name: str) -> Fraction:
    sign, top, bottom = decode(encode((int(value < 0), abs(value.numerator), value.denominator), name), name)
    return (-1) ** sign * Fraction(top, bottom)


def exact_rescale(value: Fraction, src: str, dst: str, a: dict[str, Any], old: Fraction) -> int:
    """Return the bits of the result; the comments of the module in its own words, with fractions."""
    beta = Fraction(a.get("beta", 0.0))
    if {src, dst} & {"f64", "s64"} or a.get("src_shift"):
        scales = arithmetic = "f64"
    else:
        scales = "f32"
        arithmetic = "f64" if src == "s32" or (beta and dst == "s32") else "f32"

    def op(x: Fraction) -> Fraction:
        return rounded(x, arithmetic)

    neutral = {"src_scale": 1.0, "dst_scale": 1.0, "src_zero_point": 0, "dst_zero_point": 0}
    neutral |= {"src_shift": 0.0, "beta": 0.0}
    if all(neutral[name] == given for name, given in a.items()):
        top = 2147483520 if dst == "s32" and src in FORMATS and src != "f64" else None
        return encode((int(value < 0), abs(value.numerator), value.denominator), dst, top)
    v = op(value)
    if "src_zero_point" in a:
        v = op(v - op(Fraction(a["src_zero_point"])))
    if "src_scale" in a:
        v = op(rounded(Fraction(a["src_scale"]), scales) * v)
    if "src_shift" in a:
        v = op(v - Fraction(a["src_shift"]))
    if beta:
        v = op(v + op(rounded(beta, scales) * op(old)))
    if "dst_scale" in a:
        v = op(v / rounded(Fraction(a["dst_scale"]), scales))
    if "dst_zero_point" in a:
        v = op(v + op(Fraction(a["dst_zero_point"])))
    top = 2147483520 if dst == "s32" and arithmetic == "f32" else None
    return encode((int(v < 0), abs(v.numerator), v.denominator), dst, top)


SCALES = st.floats(1e-4, 1e4).flatmap(lambda s: st.sampled_from([s, float(np.float32(s)), 1.0, -s]))
ATTRIBUTES = st.fixed_dictionaries(
    {},
    optional={
        "src_scale": SCALES,
        "dst_scale": SCALES,
        "src_zero_point": st.integers(-300, 300) | st.integers(-(2**31), 2**31 - 1),
        "dst_zero_point": st.integers(-300, 300) | st.integers(-(2**31), 2**31 - 1),
        "src_shift": st.sampled_from([0.0, 0.485, 123.675, -1e-3]) | st.floats(-1e6, 1e6),
        "beta": st.sampled_from([0.0, 1.0, -0.5, 0.7]),
    },
)


def moderate(name: str) -> st.SearchStrategy[int | float]:
    """Finite values of a type that overflow nowhere on the way."""
    if name in RANGES:
        return st.integers(*RANGES[name])
    limit = min(float(dtype(name).max), 1e6)
    return st.floats(-limit, limit).map(lambda x: float(np.array(x).astype(dtype(name).numpy)))


@settings(deadline=None, max_examples=tried(400))
@given(st.sampled_from(NAMES), st.sampled_from(NAMES), ATTRIBUTES, st.data())
def test_every_step_of_the_arithmetic(
    src: str, dst: str, attributes: dict[str, Any], data: st.DataObject
) -> None:
    values = data.draw(st.lists(moderate(src), min_size=1, max_size=4))
    olds = data.draw(st.lists(moderate(dst), min_size=len(values), max_size=len(values)))
    source, old = np.array(values, dtype(src).numpy), np.array(olds, dtype(dst).numpy)
    result = rescale(source, src, dst, old=old, **attributes)
    assert result.dtype == dtype(dst)
    wanted = [
        exact_rescale(Fraction(v), src, dst, attributes, Fraction(o))
        for v, o in zip(values, olds, strict=True)
    ]
    # The sign of zero has its own test: fractions have none
    negative_zero = 1 << (WIDTH[dst] - 1) if dst in FORMATS else None
    assert [0 if b == negative_zero else b for b in to_bits(result)] == [
        0 if b == negative_zero else b for b in wanted
    ]


@settings(deadline=None)
@given(st.sampled_from(NAMES), st.sampled_from(NAMES), st.data())
def test_neutral_attributes_change_no_bit(src: str, dst: str, data: st.DataObject) -> None:
    bits = data.draw(st.lists(integers_of(WIDTH[src]), min_size=1, max_size=8))
    source = from_bits(bits, src)
    wanted = to_bits(convert(source, dst))
    ones, zeros = np.ones(len(bits)), np.zeros(len(bits), np.int32)
    assert to_bits(rescale(source, src, dst)) == wanted
    idle = {"src_scale": 1, "dst_scale": ones, "src_zero_point": zeros, "dst_zero_point": 0.0}
    assert to_bits(rescale(source, src, dst, **idle, src_shift=-0.0)) == wanted


def test_specials_in_the_arithmetic() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 3e38, 0.0, -0.0], np.float32)
    assert rescale(x, "f32", "s8", src_scale=2).tolist() == [0, 127, -128, 127, 0, 0]
    assert rescale(x, "f32", "u8", dst_scale=0).tolist() == [0, 255, 0, 255, 0, 0]  # 0 / 0 is a NaN
    assert np.signbit(rescale(x, "f32", "f32", src_scale=2)).tolist()[1:] == [False, True, False, False, True]
    assert np.signbit(rescale(x, "f32", "f16", src_scale=-1)).tolist()[1:] == [True, False, True, True, False]
    assert rescale(x, "f32", "f32", src_scale=2.0)[3] == np.inf
    assert rescale(x, "f32", "f64", src_scale=2.0)[3] == 2 * float(np.float32(3e38))


def test_beta_zero_does_not_read_old() -> None:
    old = np.full(2, np.nan, np.float32)
    x = np.array([1, 2], np.float32)
    assert rescale(x, "f32", "f32", src_scale=2, beta=0.0, old=old).tolist() == [2, 4]
    assert np.isnan(rescale(x, "f32", "f32", beta=1.0, old=old)).all()


def test_s32_enters_the_arithmetic_exactly() -> None:
    big = np.array([2**24 + 1, 2**31 - 1, -(2**31)], np.int32)
    assert rescale(big, "s32", "s32", src_zero_point=1).tolist() == [2**24, 2**31 - 2, -(2**31)]
    one = np.ones(3, np.int8)
    assert rescale(one, "s8", "s32", beta=1, old=big).tolist() == [2**24 + 2, 2**31 - 1, 1 - 2**31]


def test_attributes_broadcast() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    scale, zero = np.array([[1.0], [10.0]]), np.array([0, 1, 2])
    assert rescale(x, "f32", "s8", src_scale=scale).tolist() == [[0, 1, 2], [30, 40, 50]]
    assert rescale(x, "f32", "s8", dst_zero_point=zero).tolist() == [[0, 2, 4], [3, 5, 7]]
    assert rescale(x, "f32", "s8", src_zero_point=zero.astype(ml_dtypes.int4)).tolist() == [
        [0, 0, 0],
        [3, 3, 3],
    ]


def test_bounds_are_the_results_of_the_largest_values() -> None:
    for src in DTYPES:
        ends = [encode((1, -int(src.min), 1), src.name), encode((0, int(src.max), 1), src.name)]
        for dst in (t for t in DTYPES if not t.is_float):
            low, high = saturation_bounds(src, dst)
            got = convert(from_bits(ends, src.name), dst).astype(np.int64).tolist()
            assert got == [max(low, int(src.min)), min(high, int(src.max))]


def test_arithmetic_types_are_those_of_the_table() -> None:
    for src in DTYPES:
        for dst in DTYPES:
            for accumulate in (False, True):
                wide = bool({src.name, dst.name} & {"f64", "s64"})
                reads_s32 = src == "s32" or (accumulate and dst == "s32")
                wanted = ("f64" if wide or reads_s32 else "f32", "f64" if wide else "f32")
                assert arithmetic_types(src, dst, accumulate=accumulate) == wanted


# Arrays: shapes, strides, blocks, out


@pytest.mark.parametrize("dst", NAMES)
@pytest.mark.parametrize("src", NAMES)
def test_any_shape_and_stride_in_blocks_of_any_size(
    src: str, dst: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bits = [(i * 2654435761) & (1 << WIDTH[src]) - 1 for i in range(4 * 5 * 6)]
    base = from_bits(bits, src)
    wanted = np.array([expected(b, src, dst) for b in bits], np.uint64)
    views = (
        lambda a: a,
        lambda a: a.reshape(4, 5, 6),
        lambda a: a.reshape(4, 5, 6).T,
        lambda a: a.reshape(8, 15)[::-3, 1::2],
    )
    for view in views:
        for block in (1 << 15, 7):
            monkeypatch.setattr(module, "BLOCK", block)
            source, target = view(base), view(np.zeros(base.size, dtype(dst).numpy))
            result = convert(source, dst, out=target)
            assert result is target
            assert to_bits(np.ascontiguousarray(result).ravel()) == view(wanted).ravel().tolist()
            fresh = convert(source, dst)
            assert fresh.flags.c_contiguous
            assert fresh.shape == source.shape
            assert to_bits(fresh.ravel()) == view(wanted).ravel().tolist()
    for shape in ((), (0,), (3, 0, 2)):
        empty = convert(np.zeros(shape, dtype(src).numpy), dst)
        assert empty.shape == shape
        assert empty.dtype == dtype(dst)


def test_rescale_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    x, old = rng.integers(-128, 128, (4, 5, 6), np.int8), rng.integers(-128, 128, (4, 5, 6), np.int8)
    attributes: dict[str, Any] = {
        "src_scale": rng.random((5, 1)),
        "dst_scale": rng.random(6) + 0.5,
        "src_zero_point": rng.integers(0, 9, (4, 1, 1)),
        "dst_zero_point": 3,
        "beta": 0.5,
    }
    whole = rescale(x, "s8", "s8", old=old, **attributes)
    for block in (50, 7, 1):
        monkeypatch.setattr(module, "BLOCK", block)
        assert np.array_equal(rescale(x, "s8", "s8", old=old, **attributes), whole)
        target = old.copy()
        assert rescale(x, "s8", "s8", old=target, out=target, **attributes) is target
        assert np.array_equal(target, whole)
        both = x.copy()
        rescale(both, "s8", "s8", old=old, out=both, **attributes)
        assert np.array_equal(both, whole)
        shared = np.concatenate([old.ravel(), [0]]).astype(np.int8)
        rescale(x.ravel(), "s8", "s8", old=shared[:-1], out=shared[1:], src_scale=0.5, beta=0.5)
        assert np.array_equal(shared[1:], rescale(x, "s8", "s8", old=old, src_scale=0.5, beta=0.5).ravel())


def test_out_may_overlap_the_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 4)
    memory = np.arange(-20, 20, dtype=np.float32)
    wanted = convert(memory[:-1] * 1.5, "s32")
    memory[:] *= 1.5
    convert(memory[:-1], "s32", out=memory.view(np.int32)[1:])
    assert np.array_equal(memory.view(np.int32)[1:], wanted)


def test_scalars_and_lists() -> None:
    assert convert(2.5, "s8") == 2
    assert convert([1.5, 2.5], "s8").tolist() == [2, 2]
    assert rescale(np.float32(2.5), "f32", "u8", dst_scale=0.5, dst_zero_point=np.int8(-1)).item() == 4
    assert convert(np.float32(7), "s8", out=np.zeros((), np.int8)).shape == ()


def refused(text: str) -> Any:
    return pytest.raises(LayoutError, match=text)


def test_refusals() -> None:
    x = np.zeros((2, 3), np.float32)
    with refused("bool"):
        convert(x > 0, "u8")
    with refused("foreign order"):
        convert(x.astype(">f4"), "u8")
    with refused("is no data type"):
        convert(x, "s7")
    with refused(r"of int8 and shape \(2, 3\), but it is of uint8 and shape \(2, 3\)"):
        convert(x, "s8", out=np.zeros((2, 3), np.uint8))
    with refused(r"of int8 and shape \(2, 3\), but it is of int8 and shape \(3, 2\)"):
        convert(x, "s8", out=np.zeros((3, 2), np.int8))
    frozen = np.zeros((2, 3), np.int8)
    frozen.flags.writeable = False
    with refused("cannot be written"):
        convert(x, "s8", out=frozen)
    with refused("announced as f16"):
        rescale(x, "f16", "s8")
    with refused(r"src_scale of shape \(2,\) does not broadcast to the shape \(2, 3\)"):
        rescale(x, "f32", "s8", src_scale=[1, 2])
    with refused(r"does not broadcast"):
        rescale(x, "f32", "s8", dst_zero_point=np.ones((4, 2, 3), np.int8))
    with refused("src_zero_point must be a whole number"):
        rescale(x, "f32", "s8", src_zero_point=0.5)
    with refused("whole number"):
        rescale(x, "f32", "s8", dst_zero_point=np.inf)
    with refused("pass it as old"):
        rescale(x, "f32", "s8", beta=1)
    with refused("old destination was announced as s8"):
        rescale(x, "f32", "s8", beta=1, old=x)
    with refused("old destination has shape"):
        rescale(x, "f32", "s8", beta=1, old=np.zeros(3, np.int8))


@example(0.0)
@given(st.floats(width=32))
def test_no_warning_is_given(x: float) -> None:
    for src in ("f32", "f64"):
        for dst in NAMES:
            convert(np.array([x, x, -x]).astype(dtype(src).numpy), dst)
            rescale(
                np.array([x]).astype(dtype(src).numpy),
                src,
                dst,
                src_scale=1e38,
                dst_scale=0.0,
                dst_zero_point=1,
            )
