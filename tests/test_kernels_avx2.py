"""Kernels that only processors with AVX2 get: the definition's bytes, and nothing read or written outside."""

from __future__ import annotations

import pytest

import relayout as rl
from covering import share
from fences import output_of
from relayout.kernels.copy.candidates import candidates
from relayout.kernels.copy.problem import moves, simplified
from relayout.targets.machine import host, machine
from test_kernels import compare, compile_, x86

pytestmark = pytest.mark.skipif(not compile_.available(), reason="this host forbids making machine code")

BYTES_TO_FLOATS = [
    (source, "f32", one, "nchw", dims, given)
    for source in ("s8", "u8", "bf16")
    for one, dims in (
        ("nChw16c", (2, 32, 9, 9)),
        ("nChw16c", (1, 40, 28, 28)),
        ("nhwc", (2, 48, 20, 9)),
        ("nhwc", (1, 41, 13, 13)),
        ("nhwc", (1, 16, 2, 4)),
    )
    for given in (
        {},
        {"src_scale": ([0.25 + k for k in range(dims[1])], 1), "src_zero_point": 3},
        {"beta": 1.0},
    )
]
NARROWED = [
    ("f32", narrow, "nchw", "nChw16c", dims, given)
    for narrow in ("bf16", "f16")
    for dims in ((2, 32, 28, 28), (1, 16, 5, 41))
    for given in ({}, {"dst_scale": 0.5})
]
FEW_ROWS = [
    (dtype, dtype, "nChw8c", wide, (2, 48, *size), {})
    for dtype in ("bf16", "f32", "s8")
    for wide in ("nChw16c", "nChw24c", "nhwc")
    for size in ((9, 5), (1, 1), (8, 8))
]
WHOLE_LINES = [
    ("f32", "f32", "nhwc", "nChw8c", (1, 1024, 7, 7), {}),
    ("bf16", "bf16", "nhwc", "nChw8c", (9, 2048, 7, 6), {}),
    ("s8", "s8", "nhwc", "nChw16c", (1, 4096, 6, 6), {}),
]
TAKEN_APART = [
    (dtype, dtype, f"OI{taps}{words}", f"oi{taps}", (32, 32, *size), {})
    for dtype, words in (("s8", "4i16o4i"), ("s8", "16i16o4i"), ("bf16", "8i16o2i"), ("u8", "4i8o4i"))
    for taps, size in (("hw", (3, 3)), ("hw", (2, 3)), ("w", (4,)), ("hw", (1, 7)), ("hw", (4, 2)))
]
TAKEN_APART += [("s8", "s8", "OIhw4i24o4i", "oihw", (48, 32, 3, 3), {})]  # outputs that are no whole lines
PUT_TOGETHER = [(source, target, two, one, dims, {}) for source, target, one, two, dims, _ in TAKEN_APART]
PUT_TOGETHER += [("s8", "s8", "oihw", "OIhw4i16o4i", (16, 16, 5, size), {}) for size in (2, 3, 5)]
SHORT_PLANES = [
    ("s8", "s8", "nchw", blocked, (3, 48, *size), {})
    for blocked in ("nChw4c", "nChw8c", "nChw16c")
    for size in ((7, 7), (5, 7), (1, 63), (4, 8))
]
PAGES = [
    ("bf16", "bf16", "ab", "BA16a64b2a", (64, 192), {}),
    ("s8", "s8", "ab", "BA16a64b4a", (130, 270), {}),
    ("bf16", "bf16", "ab", "BA16a16b2a", (160, 300), {}),
    ("f32", "s8", "ab", "BA16a64b4a", (128, 192), {"dst_scale": 0.5}),
]
"""Matrices of which pages are filled before the source is read on, and whose rows are planes."""
PROBLEMS = [*BYTES_TO_FLOATS, *NARROWED, *FEW_ROWS, *WHOLE_LINES, *TAKEN_APART, *PUT_TOGETHER, *SHORT_PLANES]
PROBLEMS += PAGES


AVX = "x86-64-v3", "znver4"


def small(cpu):
    """A processor with an L2 cache of 512 KiB, whatever this host has: it says what is far."""
    return machine(cpu)._replace(l2=512 << 10)


def descriptors(source, target, one, two, dims):
    return rl.MemoryDesc(dims, source, one), rl.MemoryDesc(dims, target, two)


@pytest.mark.turns(3)
@pytest.mark.parametrize("number", range(len(PROBLEMS)))
def test_they_write_what_the_definition_says(number):
    *problem, given = PROBLEMS[number]
    avx2, runs_here = x86("x86-64-v3")
    ways = ({"cpu": avx2}, {"streaming": False}) if runs_here else ({"streaming": False},)
    for way in share(ways, number) if runs_here and host().vector == avx2.vector else ways:
        compare(*descriptors(*problem), given=given, **way)


@pytest.mark.parametrize("number", range(len(WHOLE_LINES)))
def test_lines_are_read_as_a_whole_where_rows_collide(number):
    *problem, _ = WHOLE_LINES[number]
    src, dst = descriptors(*problem)
    (nest,) = moves(src, dst)
    offered = candidates(simplified(nest), machine("x86-64-v3"))
    assert "whole lines" in offered[0].words
    wish = next(", ".join(plan.words) for plan in offered if plan.kind == "lines" and plan.beside is None)
    if x86("x86-64-v3")[1]:
        compare(src, dst, cpu=machine("x86-64-v3"), wish=wish)
    assert all("whole lines" not in plan.words for plan in candidates(simplified(nest), machine("znver4")))


@pytest.mark.parametrize(("problems", "kind"), [(TAKEN_APART, "apart"), (PUT_TOGETHER, "together")])
def test_packed_filters_are_taken_apart_and_put_together(problems, kind):
    for *problem, _ in problems:
        src, dst = descriptors(*problem)
        *_, nest = moves(src, dst)  # behind zeros
        assert kind in {plan.kind for plan in candidates(simplified(nest), machine("x86-64-v3"))}
        assert kind not in {plan.kind for plan in candidates(simplified(nest), machine("znver4"))}
        if x86("x86-64-v3")[1]:
            compare(src, dst, cpu=machine("x86-64-v3"), wish=kind)
            compare(src, dst, cpu=machine("x86-64-v3"), wish=f"{kind}, prefetched")


def test_rows_of_large_filters_ask_for_what_follows():
    for size, asks in ((32, False), (512, True)):
        (nest,) = moves(*descriptors("bf16", "bf16", "oihw", "OIhw8i16o2i", (size, size, 3, 3)))
        first = candidates(simplified(nest), machine("x86-64-v3"))[0]
        assert (first.kind, "prefetched" in first.words) == ("together", asks)


@pytest.mark.parametrize("number", range(len(SHORT_PLANES)))
def test_planes_that_are_no_line_are_interleaved(number):
    *problem, _ = SHORT_PLANES[number]
    (nest,) = moves(*descriptors(*problem))
    for cpu in AVX:
        assert candidates(simplified(nest), machine(cpu))[0].kind == "interleave"


@pytest.mark.parametrize("number", range(len(PAGES)))
def test_pages_of_packed_matrices_are_filled_one_after_the_other(number):
    *problem, given = PAGES[number]
    src, dst = descriptors(*problem)
    shape = tuple((name, None) for name in given)
    found = [candidates(simplified(nest), machine("x86-64-v3")) for nest in moves(src, dst, shape)]
    assert any("page by page" in plan.words for offered in found for plan in offered)
    assert all("page by page" not in offered[0].words for offered in found)
    if x86("x86-64-v3")[1]:
        compare(src, dst, given=given, cpu=machine("x86-64-v3"), wish="page by page")


def test_large_matrices_are_packed_page_by_page_by_estimate():
    (nest,) = moves(*descriptors("bf16", "bf16", "ab", "BA16a64b2a", (1024, 3072)))
    first, other = (candidates(simplified(nest), small(cpu)) for cpu in AVX)
    assert "page by page" in first[0].words
    assert all("page by page" not in plan.words for plan in other)


LONG_ROWS = [
    ("f32", "s8", "oihw", "OIhw4i16o4i", (32, 96, 3, 3), {"dst_scale": ([k / 99 for k in range(1, 33)], 0)}),
    ("f32", "u8", "oihw", "OIhw16i16o4i", (48, 128, 3, 2), {"dst_scale": 0.02}),
    ("f32", "s8", "oihw", "OIhw4i16o4i", (16, 704, 3, 5), {}),  # of which a quarter of L2 holds no whole row
]
HALVED = [
    (source, target, one, two, (4, 48, 20, 14), {"src_scale": 0.5})
    for source, target in (("f32", "bf16"), ("f32", "f16"), ("bf16", "s8"), ("f64", "f32"))
    for one, two in (("nchw", "nhwc"), ("nhwc", "nchw"), ("nchw", "nChw16c"))
]
LONG_RUNS = HALVED + [
    ("f32", "s8", one, two, dims, given)
    for one, two in (("nchw", "nhwc"), ("nhwc", "nchw"), ("nchw", "nChw16c"), ("nChw16c", "nchw"))
    for dims in ((4, 32, 9, 9), (5, 48, 20, 14), (4, 160, 30, 30))
    for given in ({"dst_scale": ([k / 99 for k in range(1, dims[1] + 1)], 1), "dst_zero_point": 3}, {})
]


def test_what_lies_beside_nothing_is_converted_otherwise():
    """Elements of which no two neighbour each other in the destination, or all are one in the source."""
    sides = rl.MemoryDesc((40, 24), "f32", "ab"), rl.MemoryDesc((40, 24), "bf16", strides=(2, 160))
    compare(*sides, cpu=machine("x86-64-v3") if x86("x86-64-v3")[1] else None)
    sides = rl.MemoryDesc((40, 24), "f32", strides=(0, 0)), rl.MemoryDesc((40, 24), "s8", "ba")
    compare(*sides, cpu=machine("x86-64-v3") if x86("x86-64-v3")[1] else None)


@pytest.mark.turns(2)
@pytest.mark.parametrize("number", range(len(LONG_ROWS) + len(LONG_RUNS)))
def test_rows_are_converted_from_end_to_end(number):
    *problem, given = [*LONG_ROWS, *LONG_RUNS][number]
    src, dst = descriptors(*problem)
    shape = tuple((name, value[1] if isinstance(value, tuple) else None) for name, value in given.items())
    (nest,) = moves(src, dst, shape)
    offered, other = (candidates(simplified(nest), machine(cpu)) for cpu in AVX)
    assert "long rows" in offered[0].words or number >= len(LONG_ROWS)
    assert any("long rows" in plan.words for plan in offered)
    assert all("long rows" not in plan.words for plan in other)
    if x86("x86-64-v3")[1]:
        for wish in ("long rows", "not prefetched"):
            compare(src, dst, given=given, cpu=machine("x86-64-v3"), wish=wish)


@pytest.mark.parametrize(("images", "far"), [(1, False), (32, True)])
def test_blocks_of_rows_that_are_far_ask_for_the_next_one(images, far):
    """As a candidate everywhere with AVX2, and by estimate where tensors are larger than what is at hand."""
    problem = "bf16", "bf16", "nChw8c", "nhwc", (images, 2048, 7, 7)
    (nest,) = moves(*descriptors(*problem))
    avx2, other = (candidates(simplified(nest), small(cpu)) for cpu in AVX)
    assert avx2[0].kind == "lines"
    assert ("prefetched" in avx2[0].words) == far
    assert all("prefetched" not in plan.words for plan in other)
    wish = next(", ".join(plan.words) for plan in avx2 if plan.kind == "lines" and "prefetched" in plan.words)
    if not far and x86("x86-64-v3")[1]:
        compare(*descriptors(*problem), cpu=machine("x86-64-v3"), wish=wish)


def test_nothing_outside_of_both_buffers_is_touched():
    """Half of the problems, others each time."""
    code = """
        import random
        from covering import share
        from fences import arena
        from test_kernels_avx2 import PROBLEMS, descriptors
        from relayout.kernels.copy.problem import moves
        from relayout.reorder.native import Native
        from relayout.targets.machine import host, machine
        here = host() if host().is_avx2 or host().vector < 32 else machine("x86-64-v3")
        room = 4 << 20
        one, two = arena(room), arena(room)
        for *problem, given in share(PROBLEMS, random.randrange(2)):
            if given:
                continue
            src, dst = descriptors(*problem)
            for streaming in (False, True):
                made = Native(src, dst, moves(src, dst), here, streaming)
                for at in (0, 1):
                    print(src, dst, at, flush=True)
                    sizes = [at * desc.required_bytes for desc in (src, dst)]
                    places = one[at] - sizes[0], two[at] - sizes[1]
                    for kernel in made.kernels:
                        for part in range(3):
                            kernel(*places, 0, part, 3)
        print("done")
        """
    if host().is_arm:
        pytest.skip("machine code for another family")
    assert output_of(code).endswith("done\n")


@pytest.mark.parametrize("cpu", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("turns", [1, 6, 8])
@pytest.mark.parametrize("pitch", [0, 256])
def test_loops_of_tiles_hide_how_they_go_on(cpu, turns, pitch):
    """Where that was measured. What is asked for goes on as pixels do: no address is computed anew."""
    from relayout.kernels.conv.arithmetic import FLOATS
    from relayout.kernels.conv.tile import Tile, tile_function
    from relayout.loops.nest import Loop

    class Stored:
        def __call__(self, b, x, pixel, number):
            return x

        def store(self, b, sums):
            for k, (x, _, _) in enumerate(sums):
                b.store(x, b.gep(b["dst"], 32 * k), 4)

    made, name = machine(cpu), "f32"
    pixels = (0, 256, 512)
    tile = Tile(FLOATS, name, pixels, pixels, (0,), ((),), 8, (Loop(turns, (4, 32)),), pitch=pitch)
    text = tile_function("tile", tile, made, (), Stored())
    hidden = text.count("@llvm.launder.invariant.group.p0(")
    assert hidden == (made.is_avx2 and turns > 1) * (2 + (pitch > 0))
    assert ("ptrtoint" in text) == (not made.is_avx2 and turns > 1 and pitch > 0)


def test_no_instructions_without_an_avx_form_are_asked_for():
    """Those of SSE4A are slow between others, and LLVM would take them on AMD's processors."""
    assert "+sse4a" not in host().features
