"""Who may say ``any`` for what, and what it becomes: the table of oneDNN's specification."""

from __future__ import annotations

import pytest

import relayout as rl
from relayout import primitives as p
from relayout.errors import LayoutError

DIMS = (2, 32, 8, 8)
FORMATS = ("nchw", "nhwc", "nChw8c", "CHWN4")


def f32(dims, format):
    return rl.MemoryDesc(dims, "f32", format)


COMPUTE = {
    "Convolution": lambda src, w: p.Convolution(src, f32((16, 32, 3, 3), w), f32((16,), "a"), padding=1),
    "Deconvolution": lambda src, w: p.Deconvolution(src, f32((16, 32, 3, 3), w), f32((16,), "a"), strides=2),
    "InnerProduct": lambda src, w: p.InnerProduct(src, f32((16, 32, 8, 8), w), f32((16,), "a")),
}
"""Kinds that choose formats; of source and weights."""

FOLLOW = {
    "BatchNormalization": lambda src, dst: p.BatchNormalization(src, dst, use_global_stats=False),
    "Eltwise": lambda src, dst: p.Eltwise(src, "relu", dst=dst),
    "GroupNormalization": lambda src, dst: p.GroupNormalization(src, dst=dst, groups=4, statistics=True),
    "LRN": lambda src, dst: p.LRN(src, dst),
    "LayerNormalization": lambda src, dst: p.LayerNormalization(src, dst=dst, statistics=True),
    "PReLU": lambda src, dst: p.PReLU(src, f32((1, 32, 1, 1), "nchw"), dst),
    "Pooling": lambda src, dst: p.Pooling(src, "max", 1, dst=dst, workspace=True),
    "Resampling": lambda src, dst: p.Resampling(src, "nearest", dst),
    "Shuffle": lambda src, dst: p.Shuffle(src, 1, 4, dst),
    "Softmax": lambda src, dst: p.Softmax(src, 1, dst=dst),
}
"""Kinds that take what was written; all as wide as their source here."""

ALONE = {
    "Binary": lambda src, dst: p.Binary("add", src, f32(DIMS, "nchw"), dst),
    "Concat": lambda src, dst: p.Concat([src], 1, dst),
    "Reduction": lambda src, dst: p.Reduction(src, "sum", (), dst=dst),
    "Reorder": lambda src, dst: p.Reorder(src, f32(DIMS, "nhwc") if dst is None else dst),
    "Sum": lambda src, dst: p.Sum([src], dst=dst),
}
"""Kinds without a backward primitive."""


def backwards(kind):
    """The classes of a kind's backward primitives."""
    return [getattr(p, name) for name in p.__all__ if name.startswith(f"{kind}Backward")]


def tensors(made):
    """The tensors whose formats callers of a backward primitive may say."""
    return [name for name in type(made).__signature__.parameters if name in made.descs]


@pytest.mark.parametrize("kind", COMPUTE)
@pytest.mark.parametrize("src", [*FORMATS, rl.any])
@pytest.mark.parametrize("weights", ["oihw", rl.any])
def test_what_computes_chooses_formats_forward(kind, src, weights):
    made = COMPUTE[kind](f32(DIMS, src), weights)
    assert all(desc.layout is not None for desc in made.descs.values())
    if src is not rl.any:
        assert made.src == f32(DIMS, src)


@pytest.mark.parametrize("kind", COMPUTE)
@pytest.mark.parametrize("src", FORMATS)
def test_what_computes_may_choose_others_backward(kind, src):
    forward = COMPUTE[kind](f32(DIMS, src), "oihw")
    assert backwards(kind)
    for made_of in backwards(kind):
        usual = made_of(forward)
        for name in tensors(usual):
            like = forward.descs[name.removeprefix("diff_")]
            assert usual.descs[name] == like, f"{name} of {made_of.__name__}, nothing said"
            free = made_of(forward, **{name: rl.any})
            assert free.descs[name].layout is not None
            given = made_of(forward, **{name: rl.MemoryDesc(like.dims, "f32", rl.any)})
            assert given.descs == free.descs, "any with a data type, and without"
            others = {one: free.descs[one] for one in tensors(usual) if one != name}
            assert others == {one: usual.descs[one] for one in others}, "what was not any is as it was"
        made_of(forward, **dict.fromkeys(tensors(usual), rl.any))


@pytest.mark.parametrize("kind", [*FOLLOW, *ALONE])
@pytest.mark.parametrize("src", FORMATS)
def test_what_follows_takes_the_source_as_it_was_written(kind, src):
    make = (FOLLOW | ALONE)[kind]
    made = make(f32(DIMS, src), rl.MemoryDesc(DIMS, "f32", rl.any) if kind != "Reorder" else None)
    if kind not in ("Reorder",):
        assert made.dst == f32(DIMS, src)
    with pytest.raises(LayoutError):
        make(f32(DIMS, rl.any), None)


@pytest.mark.parametrize("kind", FOLLOW)
@pytest.mark.parametrize("src", FORMATS)
@pytest.mark.parametrize("dst", FORMATS)
def test_gradients_follow(kind, src, dst):
    forward = FOLLOW[kind](f32(DIMS, src), f32(DIMS, dst))
    (made_of,) = backwards(kind)
    usual = made_of(forward)
    assert usual.diff_src == forward.src
    assert usual.diff_dst == forward.dst
    free = made_of(forward, **dict.fromkeys(tensors(usual), rl.any))
    near = next((forward.descs[name] for name in ("src", "dst") if name in usual.inputs), forward.dst)
    assert free.diff_dst == free.diff_src == near, "as what is read besides lies, or as what comes in"
    for name in ("diff_src", "diff_dst"):
        own = f32(DIMS, "nchw")
        assert made_of(forward, **{name: own}).descs[name] == own


@pytest.mark.parametrize("kind", ALONE)
def test_what_only_moves_has_no_backward_pass(kind):
    assert backwards(kind) == []


def test_every_backward_primitive_is_in_the_table():
    # The formats of these are tested in tests/test_backward_recurrent.py.
    recurrent = ("VanillaRNN", "LSTM", "GRU", "LBRGRU", "AUGRU", "LBRAUGRU")
    known = {made_of.__name__ for kind in (*COMPUTE, *FOLLOW, *recurrent) for made_of in backwards(kind)}
    assert {name for name in p.__all__ if "Backward" in name} == known
