"""Plans, primitives, sequences and runs go to other processes, and are copied, as what they were made of."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

import relayout as rl
from processes import is_done
from relayout import MemoryDesc, primitives
from relayout.ops.expressions import Expression
from relayout.ops.indexing import points, taken
from relayout.ops.post_ops import BinaryOp
from relayout.ops.post_ops import Sum as Added
from relayout.primitives import (
    AUGRU,
    GRU,
    LBRAUGRU,
    LBRGRU,
    LSTM,
    BatchNormalization,
    Binary,
    Concat,
    Convolution,
    Custom,
    Eltwise,
    Gather,
    GroupNormalization,
    InnerProduct,
    LayerNormalization,
    Matmul,
    MatmulNBits,
    Pointwise,
    Pooling,
    Reduction,
    Scatter,
    Sequence,
    Softmax,
    Split,
    Sum,
    VanillaRNN,
)
from relayout.primitives import Reorder as Move
from relayout.primitives.calling import OFTEN

CALLS = 40  # by then there is a function in machine code
WAYS = {"pickled": lambda one: pickle.loads(pickle.dumps(one)), "copied": copy.copy, "deep": copy.deepcopy}


def f32(*dims, format="nhwc"):
    return MemoryDesc(dims, "f32", format)


SRC, WEIGHTS, SCALES = f32(2, 8, 6, 5), f32(8, 8, 3, 3, format="oihw"), f32(8, format="a")
ONE = BinaryOp("mul", f32(1, 8, 1, 1, format="nchw"))
LESS = Expression.of(("f32", "f32"), [("lt", "bool", (0, 1))])
PLACES = MemoryDesc((4,), "s64", "a")
LISTED = f32(3, 20, format="ab"), MemoryDesc((4, 1), "s32", "ab")
DATA = f32(3, 2, 4, format="tnc")
ATTENTION = f32(3, 2, 1, format="tnc")


def gates(count, directions=1):
    """Weights of a recurrent layer of four units, of the data and of the state."""
    return [MemoryDesc((1, directions, 4, count, 4), "f32", rl.any)] * 2


CONVOLUTION = Convolution(SRC, f32(6, 8, 3, 3, format=rl.any), f32(6, format="a"), strides=2, padding=1)
DECONVOLUTION = primitives.Deconvolution(SRC, f32(6, 8, 3, 3, format="oihw"), f32(6, format="a"), strides=2)
INNER = InnerProduct(SRC, f32(7, 8, 6, 5, format=rl.any), f32(7, format="a"))
PRELU = primitives.PReLU(SRC, f32(1, 8, 1, 1))
KEPT = {"workspace": True}

MAKERS = {
    "recurrent layer": lambda: VanillaRNN(DATA, *gates(1), activation="relu"),
    "LSTM": lambda: LSTM(DATA, *gates(4), dst_iter=True, dst_iter_c=True),
    "GRU": lambda: GRU(DATA, *gates(3, 2), direction="bidirectional_sum"),
    "LBR GRU": lambda: LBRGRU(DATA, *gates(3)),
    "AUGRU": lambda: AUGRU(DATA, ATTENTION, *gates(3)),
    "LBR AUGRU": lambda: LBRAUGRU(DATA, ATTENTION, *gates(3), dst_iter=True),
    "convolution": lambda: Convolution(
        SRC, WEIGHTS, SCALES, scale=SCALES, strides=2, padding=1, post_ops=("relu", ONE)
    ),
    "convolution that adds": lambda: Convolution(
        SRC, f32(8, 8, 3, 3, format=rl.any), padding=1, post_ops=(Added(0.5), ONE, "tanh")
    ),
    "grouped convolution": lambda: Convolution(SRC, f32(4, 2, 2, 3, 3, format="goihw")),
    "inner product": lambda: InnerProduct(SRC, f32(7, 8, 6, 5, format=rl.any)),
    "few bits": lambda: MatmulNBits(
        f32(3, 32, format="ab"), MemoryDesc((5, 32), "u4", rl.any), None, True, block=16
    ),
    "matrix product": lambda: Matmul(f32(3, 5, 6, format="abc"), f32(1, 6, 7, format=rl.any)),
    "pooling": lambda: Pooling(SRC, "average_exclude_padding", 3, 2, 1, post_ops=("exp", ONE)),
    "reduction": lambda: Reduction(SRC, "mean", (2, 3), post_ops=("exp",)),
    "softmax": lambda: Softmax(SRC, axis=2, log=True),
    "layer normalisation": lambda: LayerNormalization(SRC, True, axes=2, rms=True, post_ops="relu"),
    "group normalisation": lambda: GroupNormalization(SRC, True, True, groups=2, statistics=True),
    "given statistics": lambda: GroupNormalization(SRC, True, groups=2, use_global_stats=True),
    "gradient of layer normalisation": lambda: primitives.LayerNormalizationBackward(
        LayerNormalization(SRC, True, statistics=True), diff_dst=f32(2, 8, 6, 5, format="nchw")
    ),
    "gradient of group normalisation": lambda: primitives.GroupNormalizationBackward(
        GroupNormalization(SRC, True, True, groups=2, statistics=True)
    ),
    "gradient of batch normalisation": lambda: primitives.BatchNormalizationBackward(
        BatchNormalization(SRC, use_shift=True, use_global_stats=False, fuse_relu=True, workspace=True)
    ),
    "gradient of softmax": lambda: primitives.SoftmaxBackward(Softmax(SRC, axis=2, log=True)),
    "local response normalisation": lambda: primitives.LRN(SRC, size=3),
    "gradient of it": lambda: primitives.LRNBackward(primitives.LRN(SRC, algorithm="within_channel", size=2)),
    "gradients of convolution": lambda: primitives.ConvolutionBackwardData(CONVOLUTION, weights=rl.any),
    "gradients of its weights": lambda: primitives.ConvolutionBackwardWeights(CONVOLUTION),
    "deconvolution": lambda: DECONVOLUTION,
    "gradients of deconvolution": lambda: primitives.DeconvolutionBackwardData(DECONVOLUTION),
    "gradients of filters": lambda: primitives.DeconvolutionBackwardWeights(DECONVOLUTION),
    "gradients of inner product": lambda: primitives.InnerProductBackwardData(INNER),
    "gradients of a matrix": lambda: primitives.InnerProductBackwardWeights(INNER),
    "gradients of pooling": lambda: primitives.PoolingBackward(Pooling(SRC, "max", 2, workspace=True)),
    "gradients of a function": lambda: primitives.EltwiseBackward(Eltwise(SRC, "elu"), use_dst=True),
    "prelu": lambda: PRELU,
    "gradients of prelu": lambda: primitives.PReLUBackward(PRELU),
    "resampling": lambda: primitives.Resampling(SRC, "linear", factors=2),
    "gradients of it": lambda: primitives.ResamplingBackward(
        primitives.Resampling(SRC, "nearest", factors=2)
    ),
    "shuffle": lambda: primitives.Shuffle(SRC, 1, 2),
    "gradients of shuffle": lambda: primitives.ShuffleBackward(primitives.Shuffle(SRC, 1, 4)),
    "gradients of a layer": lambda: primitives.VanillaRNNBackward(VanillaRNN(DATA, *gates(1), **KEPT)),
    "gradients of LSTM": lambda: primitives.LSTMBackward(LSTM(DATA, *gates(4), **KEPT), diff_dst_iter=False),
    "gradients of GRU": lambda: primitives.GRUBackward(GRU(DATA, *gates(3), **KEPT)),
    "gradients of LBR GRU": lambda: primitives.LBRGRUBackward(LBRGRU(DATA, *gates(3), **KEPT)),
    "gradients of AUGRU": lambda: primitives.AUGRUBackward(AUGRU(DATA, ATTENTION, *gates(3), **KEPT)),
    "gradients of LBR AUGRU": lambda: primitives.LBRAUGRUBackward(
        LBRAUGRU(DATA, ATTENTION, *gates(3), **KEPT), diff_attention=False
    ),
    "custom": lambda: Custom(partial(np.cumsum, axis=1), {"src": SRC}, {"dst": SRC}),
    "elementwise": lambda: Eltwise(SRC, "gelu_erf"),
    "sum": lambda: Sum([SRC, SRC], [1, -2]),
    "batch normalisation": lambda: BatchNormalization(SRC),
    "binary": lambda: Binary("div", SRC, f32(1, 8, 1, 1)),
    "concat": lambda: Concat([SRC, SRC], axis=1),
    "concat of uneven blocks": lambda: Concat([f32(1, 5, 2, 2, format="nChw8c")] * 2, axis=1),
    "split": lambda: Split(SRC, axis=1, sizes=(3, 5)),
    "pointwise": lambda: Pointwise(LESS, [SRC, SRC], dst=MemoryDesc(SRC.dims, "u8", "nhwc")),
    "gather": lambda: Gather(taken(2, 1, 0), f32(3, 20, format="ab"), PLACES),
    "scatter": lambda: Scatter(points(2, 2, 1), *LISTED, f32(4, 20, format="ab"), adds=True),
    "reorder": lambda: Move(SRC, MemoryDesc(SRC.dims, "s8", "nChw16c")),
}


def arguments(primitive):
    rng = np.random.default_rng(0)
    tensors = {
        name: rl.tensor((1 + rng.random(desc.dims)).astype(np.float32)).reorder(desc)
        for name, desc in primitive.descs.items()
    }
    return [tensors[name] for name in primitive.inputs], {name: tensors[name] for name in primitive.outputs}


def result(primitive, given, out):
    """What a call writes, whose destination may take part."""
    target = copy.deepcopy(out)
    primitive(*given, out=target)
    return b"".join(one.buffer.tobytes() for one in target.values())


@pytest.mark.turns(3)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MAKERS)
def test_primitives_new_and_often_called(name, way):
    primitive = MAKERS[name]()
    given, out = arguments(primitive)
    early = WAYS[way](primitive)
    expected = result(primitive, given, out)
    for _ in range(OFTEN + 4):
        result(primitive, given, out)
    late = WAYS[way](primitive)
    for made in (early, late):
        assert type(made) is type(primitive)
        assert repr(made) == repr(primitive)
        assert {result(made, given, out) for _ in range(OFTEN + 4)} == {expected}
        assert made.implementation == primitive.implementation
        assert (made.descs, made.flops) == (primitive.descs, primitive.flops)
    assert late.__getstate__().keys() == MAKERS[name]().__getstate__().keys()


def test_every_kind_is_among_them():
    kinds = {type(make()).__name__ for make in MAKERS.values()}
    assert kinds == set(primitives.__all__) - {"Sequence"}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"src_scale": 0.5, "threads": 2},
        {"src_zero_point": ([1, 2, 3], 1), "src_scale": ([0.1, 0.2, 0.3], 1), "dst_zero_point": 4},
        {"beta": 1.0},
    ],
)
def test_plans_new_and_often_called(how, way):
    src, dst = MemoryDesc((2, 3, 5, 4), "u8", "nhwc"), MemoryDesc((2, 3, 5, 4), "f32", "nChw8c")
    plan = rl.Reorder(src, dst, **how)
    data = np.arange(120, dtype=np.uint8)

    def result(made):
        out = np.ones(dst.nbytes // 4, np.float32)
        made(data, out)
        return out.tobytes()

    early, expected = WAYS[way](plan), result(plan)
    for _ in range(100):
        result(plan)
    late = WAYS[way](plan)
    for made in (early, late):
        assert {result(made) for _ in range(100)} == {expected}
        assert (made.src, made.dst, made.threads, made.attributes) == (
            src,
            dst,
            plan.threads,
            plan.attributes,
        )
        assert repr(made) == repr(plan)


def network(threads=None):
    """Two layers, a constant that is reordered, two outputs."""
    sequence = Sequence()
    x = sequence.input("x", SRC)
    conv = Convolution(SRC, f32(8, 8, 3, 3, format=rl.any), padding=1, post_ops="relu")
    weights = np.random.default_rng(0).random((8, 8, 3, 3)).astype(np.float32)
    y = sequence.add(conv, x, weights, name="conv")
    sequence.output(y)
    sequence.output(sequence.add(Softmax(conv.dst), y), MemoryDesc(conv.dst.dims, "f32", "nchw"))
    return sequence, sequence.compile(threads)


@pytest.mark.parametrize("way", WAYS)
def test_sequences_and_runs(way):
    sequence, run = network(threads=2)
    x = rl.tensor(np.random.default_rng(1).random(SRC.dims).astype(np.float32), "nhwc")
    expected = [one.numpy() for one in run(x)]
    other = WAYS[way](run)
    again = WAYS[way](sequence)
    for made in (other, again.compile(2)):
        for found, was in zip(made(x), expected, strict=True):
            np.testing.assert_array_equal(found.numpy(), was)
        assert [layer.name for layer in made.layers()] == [layer.name for layer in run.layers()]
        assert made.memory == run.memory
        assert repr(made) == repr(run)
    again.output(again.add(Eltwise(SRC, "exp"), again.inputs[0]))  # values are known by who they are
    if way != "copied":  # a shallow copy shares its lists, as copies do
        assert len(sequence.outputs) == 2


def test_sequences_and_runs_say_what_they_are():
    sequence, run = network(threads=1)
    sides = "x f32:nhwc:2x8x6x5 -> conv f32:nhwc:2x8x6x5, softmax2.reorder f32:nchw:2x8x6x5"
    assert repr(sequence) == f"Sequence({sides}, steps: 3)"
    assert repr(run) == f"Run({sides}, steps: 3, threads: 1)"
    assert repr(Sequence()) == "Sequence(nothing -> nothing, steps: 0)"


def test_hashes_of_another_process_are_not_brought_along():
    """They differ: those of text and bytes are drawn anew by each process."""
    code = (
        "import pickle, sys\n"
        "import relayout as rl\n"
        "desc = rl.MemoryDesc((3, 4), 'f32', 'ab')\n"
        "plan = rl.Reorder(desc, desc, src_scale=([1.0, 2.0, 3.0], 0))\n"
        "known = {plan.src: 1, plan.attributes: 2}\n"
        "if len(sys.argv) > 1:\n"
        "    sys.stdout.buffer.write(pickle.dumps(plan))\n"
        "else:\n"
        "    made = pickle.load(sys.stdin.buffer)\n"
        "    print(known.get(made.src), known.get(made.attributes))\n"
    )
    one = subprocess.run([sys.executable, "-c", code, "write"], capture_output=True, check=True)
    two = subprocess.run([sys.executable, "-c", code], input=one.stdout, capture_output=True, check=True)
    assert two.stdout.split() == [b"1", b"2"]


@pytest.mark.parametrize("start", ["spawn", "fork"])
def test_worker_processes(tmp_path, start):
    """As those of a DataLoader: what the parent has called often is sent to them, and called there."""
    import multiprocessing

    if start not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {start} here")
    is_done(
        tmp_path,
        f"""
        import multiprocessing, os, sys, warnings
        warnings.simplefilter("ignore")
        import numpy as np
        import relayout as rl
        from relayout import MemoryDesc
        from relayout.primitives import Convolution, Eltwise, Sequence

        SRC = MemoryDesc((1, 3, 8, 8), "u8", "nhwc")
        DST = MemoryDesc((1, 3, 8, 8), "f32", "nchw")

        class Dataset:
            def __init__(self):
                self.plan = rl.Reorder(SRC, DST, src_scale=1 / 255)
                self.conv = Convolution(DST, MemoryDesc((4, 3, 3, 3), "f32", "oihw"), post_ops="relu")
                sequence = Sequence()
                x = sequence.input("x", DST)
                sequence.output(sequence.add(Eltwise(DST, "exp"), x))
                self.run = sequence.compile()
                self.weights = rl.tensor(np.ones((4, 3, 3, 3), np.float32))

            def __getitem__(self, k):
                image = rl.tensor(np.empty(DST.dims, np.float32))
                self.plan(np.full(192, k, np.uint8), image)
                return self.conv(image, self.weights).numpy().sum(), self.run(image).numpy().sum()

        if __name__ == "__main__":
            data = Dataset()
            expected = [data[k] for k in range(40)]
            with multiprocessing.get_context({start!r}).Pool(2) as pool:
                assert pool.map(data.__getitem__, range(40)) == expected
            print("done")
        """,
    )
