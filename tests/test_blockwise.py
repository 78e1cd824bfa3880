"""Matrix products by weights of 4 and 8 bits in blocks, compared with their definition."""

from __future__ import annotations

import ctypes
import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import relayout as rl
from covering import covering
from relayout.cli import application
from relayout.errors import LayoutError, Unsupported
from relayout.graph.graph import Graph, Node, Value
from relayout.graph.passes.blockwise import with_blockwise_products
from relayout.jit.compile import assemble, compiled
from relayout.kernels.blockwise.plan import LIMBS, Plan, lines_of, side_of, weights_text
from relayout.kernels.blockwise.product import PRODUCT, product_text
from relayout.kernels.blockwise.source import SOURCE, source_text
from relayout.ops.post_ops import BinaryOp
from relayout.primitives import MatmulNBits
from relayout.targets.machine import host, machine
from strategies import tried

F32 = np.float32
BOUND = 2.0**-21  # of the sum of |x| |w|, where neighbours are about as large as each other


def problem(seed: int, m: int, k: int, n: int, bits: int, block: int) -> tuple[Any, Any, Any, Any]:
    random = np.random.default_rng(seed)
    x = random.standard_normal((m, k)).astype(F32)
    codes = random.integers(0, 1 << bits, (n, k)).astype(np.uint8)
    shape = n, -(-k // block)
    return (
        x,
        codes,
        (random.random(shape) + 0.5).astype(F32),
        random.integers(0, 1 << bits, shape).astype("u1"),
    )


def meant(codes: Any, scale: Any, zeros: Any, bits: int, block: int) -> Any:
    """The weights as they are meant, in double precision."""
    zeros = np.full(scale.shape, 1 << (bits - 1)) if zeros is None else zeros.astype(float)
    k = codes.shape[1]
    scale, zeros = (np.repeat(one, block, axis=1)[:, :k] for one in (scale.astype(float), zeros))
    return (codes - zeros) * scale


@settings(deadline=None, max_examples=tried(60))
@given(
    seed=st.integers(0, 1 << 30),
    m=st.integers(1, 9),
    k=st.integers(1, 300),
    n=st.one_of(st.integers(1, 70), st.sampled_from([64, 100, 128, 250, 256])),
    bits=st.sampled_from([4, 8]),
    block=st.sampled_from([8, 16, 24, 32, 128, 256, 0]),
    zeros=st.booleans(),
    bias=st.booleans(),
    kind=st.sampled_from(["f32", "bf16", "f16"]),
    scaled=st.sampled_from(["f32", "f32", "bf16", "f16"]),
    source_bits=st.sampled_from([8, 24]),
)
def test_agrees_with_the_definition(
    seed: int,
    m: int,
    k: int,
    n: int,
    bits: int,
    block: int,
    zeros: bool,
    bias: bool,
    kind: str,
    scaled: str,
    source_bits: int,
) -> None:
    block = block or k
    x, codes, scale, points = problem(seed, m, k, n, bits, block)
    source = rl.tensor(x, "ab", kind)
    free = rl.MemoryDesc((n, k), f"u{bits}", rl.any)
    added = rl.MemoryDesc((n,), "f32", "a") if bias else None
    scales = rl.MemoryDesc(scale.shape, scaled, rl.any)
    made = MatmulNBits(source.desc, free, scales, zeros, added, block=block, source_bits=source_bits)
    vector = np.random.default_rng(seed).standard_normal(n).astype(F32)
    tables = [rl.tensor(scale, made.scale.tag, scaled)]
    scale = tables[0].numpy().astype(F32)
    if zeros:
        tables.append(rl.tensor(points, made.zero_points.tag))
    given = [
        source,
        rl.tensor(codes, made.weights.tag, f"u{bits}"),
        *tables,
        *([rl.tensor(vector, "a")] if bias else []),
    ]
    found = made(*given)
    exact = made.reference(*given)
    assert "machine code" in made.implementation
    real = meant(codes, scale, points if zeros else None, bits, block)
    read = np.abs(source.numpy().astype(float))
    np.testing.assert_allclose(exact, source.numpy().astype(float) @ real.T + (vector if bias else 0))
    largest = read.max() if source_bits == 24 else read.max() * 2**14
    off = BOUND * (read @ np.abs(real).T + largest * np.abs(real).sum(axis=1)) + 2e-7 * np.abs(exact)
    rounding = {"f32": 1e-6, "f16": 1e-3, "bf16": 8e-3}[kind]
    assert (np.abs(found.numpy().astype(float) - exact) <= off + rounding * np.abs(exact) + 1e-6).all()


@pytest.mark.parametrize("bits", [4, 8])
def test_whole_numbers_are_exact(bits: int) -> None:
    random = np.random.default_rng(bits)
    x = random.integers(-500, 500, (5, 256)).astype(F32)
    codes = random.integers(0, 1 << bits, (40, 256)).astype(np.uint8)
    made = MatmulNBits(
        rl.MemoryDesc((5, 256), "f32", "ab"), rl.MemoryDesc((40, 256), f"u{bits}", "ab"), block=32
    )
    scale = np.full((40, 8), 0.5, F32)
    found = made(rl.tensor(x), rl.tensor(codes, "ab", f"u{bits}"), rl.tensor(scale, made.scale.tag))
    np.testing.assert_array_equal(found.numpy(), (x @ (codes.astype(F32) - (1 << (bits - 1))).T) * F32(0.5))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("block", [32, 128, 8])
@pytest.mark.parametrize("sign", [-1, 1])
def test_extremes_are_exact(bits: int, block: int, sign: int) -> None:
    """All limbs -128 (or 127) times the largest weights: sums of 16 bits on the way hold them."""
    limb = -128 if sign < 0 else 127
    q = limb + 256 * limb + 65536 * (limb // 4)  # 2**21 and more, so that all chunks have the exponent 0
    x = np.full((3, 256), q / 2**22, F32)
    codes = np.full((40, 256), (1 << bits) - 1, np.uint8)
    weights = rl.MemoryDesc((40, 256), f"u{bits}", "ab")
    made = MatmulNBits(rl.MemoryDesc((3, 256), "f32", "ab"), weights, block=block)
    scale = np.full((40, 256 // block), 0.5, F32)
    found = made(rl.tensor(x), rl.tensor(codes, "ab", f"u{bits}"), rl.tensor(scale, made.scale.tag))
    exact = 256 * ((1 << bits - 1) - 1) * 0.5 * q / 2**22
    rounding = 2.0**-23 * abs(exact)  # of sums of chunks, in f32
    assert np.abs(found.numpy() - exact).max() <= 2 * (256 // min(block, 128)) * rounding


@pytest.mark.parametrize(
    ("cpu", "bits", "limbs", "rows"),
    covering(
        ["x86-64-v2", "x86-64-v3", "x86-64-v4", "host"],
        [4, 8],
        [1, LIMBS],
        [(3, 1), (1, 4), (6, 4), (1, 2)],
    ),
)
def test_all_instructions_have_the_same_sums(cpu: str, bits: int, limbs: int, rows: tuple[int, int]) -> None:
    """Sums of bytes are exact, and f32 are added in one order: only roundings of products can differ."""
    m, side = rows
    k, n, block = 72, 37 if side == 1 else 150, 24
    x, codes, scale, points = problem(7, m, k, n, bits, block)
    codes[:8], x[0] = (1 << bits) - 1, 2.0  # the largest sums
    if not host().triple.startswith("x86_64") or host().vector < (64 if cpu == "x86-64-v4" else 32):
        pytest.skip(f"no {cpu} here")
    results = []
    both = (machine("x86-64-v3"), 1), (host() if cpu == "host" else machine(cpu), side)
    for where, many in both:
        kinds, steps = ("f32", "f32"), ((0, 4 * k), (0, 4 * n))
        plan = Plan(where, m, k, n, bits, block, limbs, *kinds, *steps, True, False, "f32", many)
        kernels = compiled(source_text(plan) + product_text(plan), [SOURCE, PRODUCT], where)
        lanes = lines_of(where, many, 2)
        weights = rl.tensor(codes, weights_text(bits, where, many), f"u{bits}")
        tables = [rl.tensor(scale, lanes), rl.tensor(points, lanes)]
        room, result = np.zeros(plan.room, np.uint8), np.zeros((m, n), F32)
        listed = (ctypes.c_uint64 * 3)(*(one.buffer.ctypes.data for one in (weights, *tables)))
        kernels[SOURCE](x.ctypes.data, room.ctypes.data, 0, 0, 1)
        for part in range(2):
            kernels[PRODUCT](room.ctypes.data, result.ctypes.data, ctypes.addressof(listed), part, 2)
        results.append(result)
    if cpu != "x86-64-v2":
        np.testing.assert_array_equal(*results)
    else:
        np.testing.assert_allclose(*results, 1e-5, 1e-2)


@pytest.mark.parametrize("triple", ["aarch64-unknown-linux-gnu"])
@pytest.mark.parametrize("features", ["", "+dotprod"])
def test_other_processors_are_assembled(triple: str, features: str) -> None:
    arm = host()._replace(triple=triple, cpu="generic", features=features, vector=16)
    plan = Plan(arm, 5, 100, 20, 4, 32, LIMBS, "f32", "f32", (0, 400), (0, 80), True, True)
    code = assemble(source_text(plan) + product_text(plan), arm)
    assert len(code) > 1000
    assert ("sdot" in product_text(plan)) == bool(features)


@pytest.mark.parametrize(
    ("cpu", "lines", "far"),
    [
        ("znver4", 1 + 1, 8 << 10),  # a line of the weights in a turn, and of the scales
        ("znver3", 4 + 1, 4 << 10),  # all lines of two words by two registers, and one of the scales
        ("znver5", 2 * 4 + 4, 8 << 10),  # all lines of two words by four registers, and of the scales
    ],
)
def test_what_a_row_asks_for_in_advance(cpu: str, lines: int, far: int) -> None:
    where = machine(cpu, "x86_64-unknown-linux-gnu")
    side = side_of(4096, where)
    plan = Plan(
        where, 1, 4096, 4096, 4, 32, LIMBS, "f32", "f32", (0, 16384), (0, 16384), False, False, "f32", side
    )
    text = product_text(plan)
    assert text.count("call void @llvm.prefetch") == lines
    assert f", {far}" in text or f" {far}\n" in text


@pytest.mark.parametrize(
    ("cpu", "bits", "name"),
    [
        ("alderlake", 4, "vpdpbusd.256"),
        ("alderlake", 8, "vpdpbusd.256"),
        ("x86-64-v3", 4, "avx2.pmadd.ub.sw"),
        ("x86-64-v3", 8, "avx2.pmadd.wd"),
        ("x86-64-v4", 4, "avx512.pmaddubs.w.512"),
        ("znver4", 4, "vpdpbusd.512"),
    ],
)
def test_instructions_of_x86(cpu: str, bits: int, name: str) -> None:
    where = machine(cpu, "x86_64-unknown-linux-gnu")
    plan = Plan(where, 3, 96, 40, bits, 32, LIMBS, "f32", "f32", (0, 384), (0, 160), True, False)
    text = product_text(plan)
    assert f"@llvm.x86.{name}(" in text.replace("avx512.vpdpbusd", "vpdpbusd")
    assert len(assemble(text, where)) > 1000


@pytest.mark.parametrize("m", [1, 7])
def test_any_number_of_threads_has_the_same_bits(m: int) -> None:
    x, codes, scale, _ = problem(3, m, 512, 1000, 4, 32)
    made = MatmulNBits(
        rl.MemoryDesc((m, 512), "f32", "ab"), rl.MemoryDesc((1000, 512), "u4", rl.any), block=32
    )
    given = rl.tensor(x), rl.tensor(codes, made.weights.tag, "u4"), rl.tensor(scale, made.scale.tag)
    np.testing.assert_array_equal(made(*given, threads=1).numpy(), made(*given, threads=2).numpy())


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_of_all_widths_are_read_as_they_are(bits: int) -> None:
    """Registers of outputs side by side: one, two or four. The bits of results do not depend on it."""
    x, codes, scale, points = problem(9, 1, 96, 256, bits, 32)
    results = []
    for side in (1, 2, 4):
        form = weights_text(bits, host(), side)
        weights = rl.MemoryDesc(codes.shape, f"u{bits}", form)
        made = MatmulNBits(rl.MemoryDesc(x.shape, "f32", "ab"), weights, None, True, block=32)
        assert made.weights.tag == form
        assert made.scale.tag == made.zero_points.tag == lines_of(host(), side, 2)
        given = [rl.tensor(x), rl.tensor(codes, form, f"u{bits}")]
        given += [rl.tensor(scale, made.scale.tag), rl.tensor(points, made.zero_points.tag)]
        assert "in order" not in str(made._compiled())
        results.append(made(*given).numpy())
    free = MatmulNBits(
        rl.MemoryDesc(x.shape, "f32", "ab"), rl.MemoryDesc(codes.shape, f"u{bits}", rl.any), block=32
    )
    assert free.weights.tag == weights_text(bits, host(), side_of(256, host()))
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_numbers_that_are_none() -> None:
    x, codes, scale, _ = problem(1, 4, 64, 20, 4, 32)
    x[0, 3], x[1, 40], x[2] = np.nan, np.inf, 0
    x[3] = 1e-30
    made = MatmulNBits(rl.MemoryDesc((4, 64), "f32", "ab"), rl.MemoryDesc((20, 64), "u4", "ab"), block=32)
    found = made(rl.tensor(x), rl.tensor(codes, "ab", "u4"), rl.tensor(scale, made.scale.tag)).numpy()
    assert np.isnan(found[:2]).all()
    assert (found[2] == 0).all()
    np.testing.assert_allclose(found[3], 1e-30 * meant(codes, scale, None, 4, 32).sum(axis=1), 1e-5, 1e-35)


def test_post_ops_and_formats() -> None:
    x, codes, scale, _ = problem(5, 6, 64, 30, 4, 16)
    other = np.random.default_rng(2).standard_normal((6, 30)).astype(F32)
    ops = [BinaryOp("add", rl.MemoryDesc((6, 30), "f32", "ab")), "relu"]
    dst = rl.MemoryDesc((6, 30), "f32", "ba")
    made = MatmulNBits(
        rl.MemoryDesc((6, 64), "f32", "ba"),
        rl.MemoryDesc((30, 64), "u4", "ba"),
        rl.MemoryDesc((30, 4), "f32", "ba"),
        dst=dst,
        block=16,
        post_ops=ops,
    )
    given = rl.tensor(x, "ba"), rl.tensor(codes, "ba", "u4"), rl.tensor(scale, "ba"), rl.tensor(other)
    found = made(*given)
    assert found.desc == dst
    np.testing.assert_allclose(found.numpy(), made.reference(*given), 1e-4, 1e-5)


@pytest.mark.parametrize(
    ("arguments", "named", "error", "words"),
    [
        (((1, 64), (8, 32)), {"block": 32}, LayoutError, "as many elements"),
        (((1, 64), (8, 64)), {"block": 20}, LayoutError, "multiple of 8"),
        (((1, 64), (8, 64)), {"block": 32, "source_bits": 16}, LayoutError, "8 or 24"),
        (((1, 64), (8, 64)), {"block": 32, "scale": rl.MemoryDesc((8, 3), "f32", "ab")}, LayoutError, "8x2"),
    ],
)
def test_what_is_refused(arguments: Any, named: Any, error: Any, words: str) -> None:
    src, weights = (
        rl.MemoryDesc(dims, kind, "ab") for dims, kind in zip(arguments, ("f32", "u4"), strict=True)
    )
    with pytest.raises(error, match=words):
        MatmulNBits(src, weights, **named)


def test_signed_weights_are_refused_with_advice() -> None:
    src, weights = rl.MemoryDesc((1, 64), "f32", "ab"), rl.MemoryDesc((8, 64), "s4", "ab")
    with pytest.raises(Unsupported, match="plus 8 or 128"):
        MatmulNBits(src, weights, block=32)


# -- networks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "form", "zeros"),
    covering(
        ["int4", "uint4", "int8", "uint8"],
        ["inputs first", "transposed", "gemm", "by output"],
        [False, True],
    ),
)
def test_dequantised_weights_of_a_graph(kind: str, form: str, zeros: bool) -> None:
    random = np.random.default_rng(11)
    k, n, block = 96, 40, 32
    dtype = np.dtype(getattr(ml_dtypes, kind, kind))
    info = ml_dtypes.iinfo(dtype)
    outputs_first = form in ("transposed", "gemm")
    dims = (n, k) if outputs_first else (k, n)
    whole = form == "by output"
    shape = (n,) if whole else (n, k // block) if outputs_first else (k // block, n)
    constants = {
        "w": random.integers(info.min, info.max + 1, dims).astype(dtype),
        "s": (random.random(shape) * 0.1).astype(F32),
        "z": random.integers(info.min, info.max + 1, shape).astype(dtype),
        "c": random.standard_normal(n).astype(F32),
    }
    attributes = {"axis": 1 if outputs_first or whole else 0, "block_size": 0 if whole else block}
    nodes = [Node("DequantizeLinear", ("w", "s", *(["z"] * zeros)), ("real",), attributes)]
    if form == "transposed":
        nodes.append(Node("Transpose", ("real",), ("r",), {"perm": (1, 0)}))
    right = "r" if form == "transposed" else "real"
    if form == "gemm":
        nodes.append(Node("Gemm", ("x", right, "c"), ("p",), {"transB": 1}))
    else:
        nodes += [Node("MatMul", ("x", right), ("q",)), Node("Add", ("q", "c"), ("p",))]
    nodes.append(Node("Sigmoid", ("p",), ("y",)))
    x = Value("x", (5, k) if form == "gemm" else (1, 5, k), np.dtype(F32))
    graph = Graph((x,), ("y",), tuple(nodes), constants)
    given = random.standard_normal(x.dims).astype(F32)
    plan = graph.plan()
    operators = {one.case.operator for one in plan.chosen}
    assert operators == ({"relayout.MatMulNBits"} if "4" in kind or not whole else operators)
    expected = graph.evaluate(given)[0]
    np.testing.assert_allclose(graph.compile()(given)[0], expected, 1e-3, 1e-5)
    np.testing.assert_allclose(with_blockwise_products(graph).evaluate(given)[0], expected, 1e-4, 1e-6)


def test_the_bench_measures_all(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = pytest.importorskip("relayout.bench.blockwise")
    monkeypatch.setattr(bench, "CASES", (bench.Product(1, 64, 64), bench.Product(3, 64, 64, bits=8)))
    command = ["bench", "few-bits", "--rounds", "1", "--threads", "1", "--json", "-"]
    result = CliRunner().invoke(application, command, prog_name="relayout")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)["figures"]
    assert [one["bytes"] for one in told] == [64 * (32 + 8), 64 * (64 + 8)]
    assert all("Relayout" in one["ratios"] for one in told)
