"""Gradients of graphs: each rule against finite differences in double precision, and against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs import Building
from relayout.errors import LayoutError
from relayout.graph.backward import backward, trainable
from relayout.graph.gradients import RULES
from relayout.graph.graph import Graph, Node, Value
from relayout.graph.inference import inferred
from relayout.graph.operators import OPERATORS
from relayout.graph.training_form import STEP, training_form
from strategies import tried

F64 = np.dtype("float64")
STEP_SIZE = 1e-5


def checked(graph: Graph, *arrays: np.ndarray, of: tuple[str, ...] = (), directions: int = 3) -> None:
    """Gradients of all inputs and parameters are what differences along random directions say."""
    names = of or (*(v.name for v in graph.inputs if v.dtype == F64), *trainable(graph))
    joint = backward(graph, graph.results[0], names).verify()
    made = joint.evaluate(*arrays)
    gradients = dict(zip(names, made[len(graph.results) :], strict=True))
    inputs = {v.name: np.asarray(a) for v, a in zip(graph.inputs, arrays, strict=True)}
    rng = np.random.default_rng(7)
    known = {**inputs, **graph.constants}
    for name in names:
        gradient = gradients[name]
        assert gradient.shape == known[name].shape, name
        assert gradient.dtype == known[name].dtype, name
        for _ in range(directions):
            along = rng.standard_normal(known[name].shape)
            ends = []
            for sign in (1, -1):
                moved = known[name] + sign * STEP_SIZE * along
                given_ = [moved if v.name == name else inputs[v.name] for v in graph.inputs]
                constants = {**graph.constants, name: moved} if name in graph.constants else graph.constants
                ends.append(float(graph.replaced(constants=constants).evaluate(*given_)[0].reshape(())))
            expected = (ends[0] - ends[1]) / (2 * STEP_SIZE)
            found = float((gradient * along).sum())
            scale = max(1.0, float(np.abs(gradient * along).sum()))
            assert abs(found - expected) <= 2e-6 * scale, f"{name}: {found} for {expected}"


MODE = "coordinate_transformation_mode"


def lossy(operator: str, *inputs: Any, outputs: int = 1, place: int = 0, **attributes: Any) -> Graph:
    """A graph of one operator whose result is weighed by random numbers and summed; arrays are constants."""
    rng = np.random.default_rng(3)
    constants: dict[str, np.ndarray] = {}
    names, values = [], []
    for k, one in enumerate(inputs):
        if one is None:
            names.append("")
            continue
        names.append(f"x{k}")
        if isinstance(one, tuple):
            values.append(Value(f"x{k}", one, F64))
        else:
            constants[f"x{k}"] = np.asarray(one)
    made = tuple(f"y{k}" for k in range(outputs))
    node = Node(operator, tuple(names), made, attributes)
    y = made[place]
    first = inferred(Graph(tuple(values), (y,), (node,), constants))
    dims = first.value(y).dims if first.nodes else np.shape(first.constants[y])
    constants["weighing"] = np.asarray(rng.standard_normal(dims))  # type: ignore[arg-type]
    nodes = [
        node,
        Node("Mul", (y, "weighing"), ("weighed",)),
        Node("ReduceSum", ("weighed",), ("loss",), {"keepdims": 0}),
    ]
    return Graph(tuple(values), ("loss",), tuple(nodes), constants)


def inputs_of(graph: Graph, seed: int = 1, low: float = -2.0, high: float = 2.0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.uniform(low, high, v.dims)) for v in graph.inputs]  # type: ignore[arg-type]


FUNCTIONS = {
    **dict.fromkeys(
        (
            "Exp",
            "Sin",
            "Cos",
            "Sinh",
            "Cosh",
            "Abs",
            "Tanh",
            "Sigmoid",
            "Atan",
            "Asinh",
            "Erf",
            "Neg",
            "Identity",
        ),
        (-2.0, 2.0),
    ),
    **dict.fromkeys(("Reciprocal", "Log", "Sqrt"), (0.5, 2.0)),
    **dict.fromkeys(("Tan", "Atanh", "Asin", "Acos"), (-0.9, 0.9)),
    "Acosh": (1.2, 3.0),
    **dict.fromkeys(
        ("Relu", "LeakyRelu", "Elu", "Selu", "Celu", "Softplus", "Softsign", "HardSigmoid"), (-4, 4)
    ),
    **dict.fromkeys(("HardSwish", "Swish", "Mish", "Gelu", "ThresholdedRelu"), (-4.0, 4.0)),
    **dict.fromkeys(("Floor", "Ceil", "Round", "Sign"), (-3.0, 3.0)),
}


@pytest.mark.parametrize("operator", sorted(FUNCTIONS))
@pytest.mark.parametrize("dims", [(), (1,), (3, 4), (0, 2)])
def test_functions(operator: str, dims: tuple[int, ...]) -> None:
    graph = lossy(operator, dims)
    checked(graph, *inputs_of(graph, 5, *FUNCTIONS[operator]))


SHAPES = [((3, 4), (3, 4)), ((3, 4), (4,)), ((3, 1), (2, 1, 4)), ((), (2, 3)), ((1,), (1, 1)), ((2, 0), (1,))]


@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean", "Pow"])
@pytest.mark.parametrize("dims", SHAPES)
def test_two_operands(operator: str, dims: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    graph = lossy(operator, *dims)
    checked(graph, *inputs_of(graph, 2, 0.5, 2.0))


F = np.float64
RNG = np.random.default_rng(11)
CASES: dict[str, Callable[[], Graph]] = {
    "elu alpha": lambda: lossy("Elu", (4, 5), alpha=0.3),
    "leaky": lambda: lossy("LeakyRelu", (4, 5), alpha=0.3),
    "gelu tanh": lambda: lossy("Gelu", (4, 5), approximate="tanh"),
    "swish alpha": lambda: lossy("Swish", (4, 5), alpha=1.7),
    "prelu": lambda: lossy("PRelu", (2, 3, 4), (3, 1)),
    "clip": lambda: lossy("Clip", (4, 5), np.asarray(-1.0), np.asarray(0.7)),
    "where": lambda: lossy("Where", RNG.random((3, 4)) > 0.5, (4,), (2, 3, 4)),
    "sum of three": lambda: lossy("Sum", (2, 3), (3,), (1, 1)),
    "reshape": lambda: lossy("Reshape", (2, 6), np.array([3, 4])),
    "flatten": lambda: lossy("Flatten", (2, 3, 2)),
    "squeeze": lambda: lossy("Squeeze", (2, 1, 3), np.array([1])),
    "unsqueeze": lambda: lossy("Unsqueeze", (2, 3), np.array([0, 3])),
    "transpose": lambda: lossy("Transpose", (2, 3, 4), perm=(1, 2, 0)),
    "transpose all": lambda: lossy("Transpose", (2, 3, 4)),
    "expand": lambda: lossy("Expand", (3, 1), np.array([2, 3, 4])),
    "tile": lambda: lossy("Tile", (2, 3), np.array([2, 3])),
    "concat": lambda: lossy("Concat", (2, 3), (2, 1), (2, 2), axis=-1),
    "split one of": lambda: lossy("Split", (2, 7), np.array([3, 4]), outputs=2, place=1, axis=1),
    "slice": lambda: lossy("Slice", (5, 6), np.array([1]), np.array([4])),
    "slice steps": lambda: lossy(
        "Slice", (5, 7), np.array([1, -6]), np.array([5, 99]), np.array([0, 1]), np.array([2, 3])
    ),
    "slice backwards": lambda: lossy(
        "Slice", (5, 7), np.array([-1, 5]), np.array([-99, 0]), np.array([0, 1]), np.array([-1, -2])
    ),
    "slice nothing backwards": lambda: lossy(
        "Slice", (5, 7), np.array([1]), np.array([3]), np.array([0]), np.array([-1])
    ),
    "pad and cut": lambda: lossy("Pad", (4, 5), np.array([-1, 2, 1, -3])),
    **{
        f"pad {mode}": lambda mode=mode: lossy("Pad", (4, 3, 5), np.array([1, 0, 2, 0, -1, 3]), mode=mode)
        for mode in ("reflect", "edge", "wrap")
    },
    **{
        f"einsum {equation}": lambda equation=equation, dims=dims: lossy("Einsum", *dims, equation=equation)
        for equation, *dims in (
            ("bij,jk->bik", (2, 3, 4), (4, 5)),
            ("ij,jk", (3, 4), (4, 5)),
            ("ijx,j->i", (3, 4, 2), (4,)),
            ("i,j,k->kji", (2,), (3,), (4,)),
            ("abc->cb", (2, 3, 4)),
        )
    },
    "pad": lambda: lossy("Pad", (2, 3), np.array([1, 0, 0, 2])),
    "pad axes": lambda: lossy("Pad", (2, 3), np.array([1, 2]), None, np.array([-1])),
    **{
        f"resize {k}": (
            lambda given=given: lossy("Resize", (2, 2, 4, 5), None, *given[0], **given[1])  # type: ignore[misc]
        )
        for k, given in enumerate(
            (
                ((np.array([1, 1, 2, 2], np.float32),), {"mode": "linear"}),
                ((np.array([1, 1, 1.5, 0.6], np.float32),), {"mode": "nearest", MODE: "asymmetric"}),
                ((None, np.array([7, 3])), {"mode": "linear", "axes": (2, -1)}),
                ((None, np.array([2, 2, 3, 9])), {"mode": "cubic", MODE: "align_corners"}),
                ((None, np.array([2, 2, 2, 2])), {"mode": "linear", "antialias": 1, "exclude_outside": 1}),
            )
        )
    },
    "resize part": lambda: lossy(
        "Resize",
        (3, 6),
        np.array([0.2, -0.5, 0.9, 1]),
        None,
        np.array([4, 5]),
        mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize",
        extrapolation_value=2.0,
    ),
    "depth to space by columns": lambda: lossy("DepthToSpace", (2, 8, 2, 3), blocksize=2, mode="CRD"),
    "rotary": lambda: lossy(
        "RotaryEmbedding", (2, 3, 4, 6), RNG.random((2, 4, 2)), RNG.random((2, 4, 2)), rotary_embedding_dim=4
    ),
    "swiglu": lambda: lossy("SwiGLU", (3, 4), (3, 4), alpha=1.3),
    "mod": lambda: lossy("Mod", (3, 4), np.array([5.0]), fmod=1),
    "global norm": lambda: lossy("GlobalLpPool", (2, 3, 4, 2)),
    "global norm 3": lambda: lossy("GlobalLpPool", (2, 3, 4), p=3),
    "global norm 1": lambda: lossy("GlobalLpPool", (2, 3, 4), p=1),
    "center": lambda: lossy("CenterCropPad", (3, 6, 5), np.array([6, 3]), axes=(1, 2)),
    "center odd": lambda: lossy("CenterCropPad", (3, 6, 5), np.array([6, 3, 8])),
    "trilu": lambda: lossy("Trilu", (2, 3, 4), np.array(1), upper=0),
    "reverse sequence": lambda: lossy("ReverseSequence", (4, 3), np.array([2, 4, 1])),
    "top": lambda: lossy("TopK", (3, 6), np.array([2]), outputs=2),
    "shrink": lambda: lossy("Shrink", (4, 5), lambd=0.6, bias=0.2),
    "norm 1": lambda: lossy("LpNormalization", (2, 3, 4), p=1, axis=1),
    "norm 2": lambda: lossy("LpNormalization", (2, 3, 4)),
    "mean variance": lambda: lossy("MeanVarianceNormalization", (2, 3, 4, 2)),
    **{
        f"resize {mode} {how} {scales}": (
            lambda mode=mode, how=how, scales=scales: lossy(  # type: ignore[misc]
                "Resize",
                (1, 2, 4, 3),
                None,
                np.array([1, 1, *scales], np.float32),
                mode=mode,
                coordinate_transformation_mode=how,
            )
        )
        for mode in ("nearest", "linear", "cubic")
        for how in ("half_pixel", "asymmetric", "align_corners")
        for scales in ((2, 3), (1.5, 0.7))
    },
    "resize sizes": lambda: lossy(
        "Resize", (2, 3, 4), None, None, np.array([5, 2]), axes=[0, 1], mode="linear", antialias=1
    ),
    "depth to space": lambda: lossy("DepthToSpace", (1, 8, 2, 3), blocksize=2),
    "space to depth": lambda: lossy("SpaceToDepth", (1, 2, 4, 6), blocksize=2),
    "gather": lambda: lossy("Gather", (5, 3), np.array([[0, 4], [4, -1]])),
    "gather axis": lambda: lossy("Gather", (2, 5, 3), np.array([[0, 4], [4, 1]]), axis=1),
    "gather number": lambda: lossy("Gather", (2, 5), np.array(3), axis=1),
    "gather elements": lambda: lossy("GatherElements", (3, 3), np.array([[1, 1, 0], [2, 0, 0]]), axis=0),
    "gather nd of batches": lambda: lossy(
        "GatherND", (2, 3, 4, 2), np.array([[[1], [0]], [[2], [2]]]), batch_dims=1
    ),
    "gather nd of two batches": lambda: lossy(
        "GatherND", (2, 2, 4), np.array([[[1], [3]], [[2], [0]]]), batch_dims=2
    ),
    "norm pool": lambda: lossy(
        "LpPool", (2, 3, 6, 5), kernel_shape=(3, 2), strides=(2, 1), pads=(1, 0, 1, 1), p=3
    ),
    "norm pool ceil": lambda: lossy(
        "LpPool", (1, 2, 7), kernel_shape=(2,), strides=(2,), ceil_mode=1, dilations=(2,)
    ),
    "norm pool 1": lambda: lossy("LpPool", (1, 2, 7), kernel_shape=(3,), auto_pad="SAME_UPPER", p=1),
    "unpool": lambda: lossy(
        "MaxUnpool",
        (1, 2, 2, 2),
        np.array([[[[0, 3], [9, 10]], [[21, 18], [24, 27]]]]),
        kernel_shape=(2, 2),
        strides=(2, 2),
    ),
    "unpool larger": lambda: lossy(
        "MaxUnpool",
        (1, 1, 2, 2),
        np.array([[[[0, 3], [9, 10]]]]),
        np.array([1, 1, 5, 6]),
        kernel_shape=(2, 2),
        strides=(2, 2),
    ),
    **{
        f"columns {k}": lambda given=given: lossy("Col2Im", given[0], *given[1], **given[2])  # type: ignore[misc]
        for k, given in enumerate(
            (
                ((1, 10, 4), (np.array([5, 3]), np.array([2, 1])), {"strides": (3, 2)}),
                (
                    (2, 12, 9),
                    (np.array([5, 5]), np.array([2, 2])),
                    {"pads": (1, 0, 0, 1), "dilations": (3, 3)},
                ),
                ((1, 6, 4), (np.array([6]), np.array([3])), {}),
            )
        )
    },
    **{
        f"running product {k}": lambda given=given: lossy("CumProd", given[0], np.array(given[1]), **given[2])
        for k, given in enumerate(
            (
                ((3, 4), 1, {}),
                ((3, 4, 2), 1, {"exclusive": 1}),
                ((5, 2), 0, {"reverse": 1}),
                ((2, 5), -1, {"reverse": 1, "exclusive": 1}),
                ((1,), 0, {}),
            )
        )
    },
    **{
        f"grid {mode} {padding} {corners}": (
            lambda mode=mode, padding=padding, corners=corners: lossy(
                "GridSample",
                (2, 3, 4, 5),
                (2, 3, 2, 2),
                mode=mode,
                padding_mode=padding,
                align_corners=corners,
            )
        )
        for mode in ("linear", "nearest", "cubic")
        for padding in ("zeros", "border", "reflection")
        for corners in (0, 1)
    },
    "grid of volumes": lambda: lossy("GridSample", (1, 2, 3, 4, 2), (1, 2, 3, 2, 3)),
    **{
        f"regions {how} {ratio}": lambda how=how, ratio=ratio: lossy(
            "RoiAlign",
            (2, 3, 6, 7),
            np.array([[0.2, 0.5, 5.1, 4.0], [1, 1, 3, 3], [-2, 0, 9, 2.5]]),
            np.array([1, 0, 1]),
            coordinate_transformation_mode=how,
            output_height=2,
            output_width=3,
            sampling_ratio=ratio,
            spatial_scale=0.8,
        )
        for how in ("half_pixel", "output_half_pixel")
        for ratio in (0, 2)
    },
    **{
        f"deconvolution {auto}": lambda auto=auto: lossy(
            "ConvTranspose", (1, 2, 4, 3), (2, 3, 3, 4), strides=(2, 3), auto_pad=auto
        )
        for auto in ("SAME_UPPER", "SAME_LOWER", "VALID")
    },
    "deconvolution of a size": lambda: lossy(
        "ConvTranspose", (1, 2, 4, 3), (2, 3, 3, 4), strides=(2, 3), output_shape=(8, 9)
    ),
    "affine grid": lambda: lossy("AffineGrid", (2, 2, 3), np.array([2, 1, 3, 4])),
    "affine grid of volumes": lambda: lossy(
        "AffineGrid", (1, 3, 4), np.array([1, 1, 2, 3, 4]), align_corners=1
    ),
    "gather nd": lambda: lossy("GatherND", (3, 4, 2), np.array([[0, 1], [2, 3], [0, 1]])),
    **{
        f"scatter {how}": (
            lambda how=how: lossy(  # type: ignore[misc]
                "ScatterND", (4, 3), np.array([[1], [3]]), (2, 3), reduction=how
            )
        )
        for how in ("none", "add")
    },
    "scatter elements": lambda: lossy(
        "ScatterElements", (3, 3), np.array([[1, 0, 2], [0, 2, 1]]), (2, 3), axis=0
    ),
    "attention": lambda: lossy("Attention", (2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 3), outputs=4),
    "attention causal": lambda: lossy(
        "Attention", (1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4), outputs=4, is_causal=1, scale=0.3
    ),
    "attention hidden": lambda: lossy(
        "Attention",
        (1, 2, 3, 4),
        (1, 2, 2, 4),
        (1, 2, 2, 4),
        np.array([[1, 0], [1, 1], [0, 0]], bool),
        outputs=4,
    ),
    "attention added": lambda: lossy(
        "Attention", (1, 2, 3, 4), (1, 2, 2, 4), (1, 2, 2, 4), (2, 1, 2), outputs=4
    ),
    "matmul": lambda: lossy("MatMul", (3, 4), (4, 5)),
    "matmul batched": lambda: lossy("MatMul", (2, 3, 4), (2, 4, 5)),
    "matmul broadcast": lambda: lossy("MatMul", (2, 1, 3, 4), (3, 4, 2)),
    "matmul one for all": lambda: lossy("MatMul", (2, 3, 4), (4, 5)),
    "matmul vectors": lambda: lossy("MatMul", (4,), (4,)),
    "matmul vector left": lambda: lossy("MatMul", (4,), (2, 4, 3)),
    "matmul vector right": lambda: lossy("MatMul", (2, 3, 4), (4,)),
    "matmul empty": lambda: lossy("MatMul", (0, 4), (4, 5)),
    **{
        f"gemm {a}{b}": (
            lambda a=a, b=b: lossy(  # type: ignore[misc]
                "Gemm",
                (4, 3) if a else (3, 4),
                (5, 4) if b else (4, 5),
                (5,),
                transA=a,
                transB=b,
                alpha=0.5,
                beta=2.0,
            )
        )
        for a in (0, 1)
        for b in (0, 1)
    },
    "conv": lambda: lossy("Conv", (2, 4, 6, 5), (6, 4, 3, 3), (6,), pads=(1, 1, 1, 1)),
    "conv strides": lambda: lossy(
        "Conv", (2, 4, 7, 5), (6, 2, 3, 2), strides=(2, 2), group=2, pads=(1, 0, 2, 1)
    ),
    "conv dilated": lambda: lossy("Conv", (1, 2, 9), (3, 2, 3), dilations=(2,), strides=(3,)),
    "conv depthwise": lambda: lossy(
        "Conv", (1, 3, 5, 5), (3, 1, 3, 3), group=3, auto_pad="SAME_UPPER", strides=(2, 2)
    ),
    "conv 3d": lambda: lossy("Conv", (1, 2, 3, 4, 3), (2, 2, 2, 3, 1)),
    "deconvolution": lambda: lossy(
        "ConvTranspose", (2, 4, 4, 3), (4, 3, 3, 2), (3,), strides=(2, 1), pads=(1, 0, 0, 1)
    ),
    "deconvolution more": lambda: lossy(
        "ConvTranspose", (1, 4, 4), (4, 2, 3), strides=(3,), group=2, output_padding=(1,), dilations=(2,)
    ),
    "max pool": lambda: lossy(
        "MaxPool", (2, 3, 6, 5), kernel_shape=(3, 2), strides=(2, 1), pads=(1, 0, 1, 1)
    ),
    "max pool ceil": lambda: lossy(
        "MaxPool", (1, 2, 7), kernel_shape=(2,), strides=(2,), ceil_mode=1, dilations=(2,)
    ),
    "average pool": lambda: lossy(
        "AveragePool", (2, 3, 6, 5), kernel_shape=(3, 2), strides=(2, 1), pads=(1, 0, 1, 1)
    ),
    "average pool counted": lambda: lossy(
        "AveragePool", (1, 2, 7), kernel_shape=(3,), strides=(2,), pads=(1, 1), count_include_pad=1
    ),
    "global average": lambda: lossy("GlobalAveragePool", (2, 3, 4, 5)),
    "global max": lambda: lossy("GlobalMaxPool", (2, 3, 4, 5)),
    "batch normalization": lambda: lossy(
        "BatchNormalization", (3, 4, 2), (4,), (4,), RNG.random(4), RNG.random(4) + 1
    ),
    "batch normalization training": lambda: lossy(
        "relayout.BatchNormalizationTraining", (3, 4, 2), (4,), (4,), outputs=3
    ),
    "layer": lambda: lossy("LayerNormalization", (2, 3, 4), (4,), (4,), outputs=3, stash_type=11),
    "layer axis": lambda: lossy("LayerNormalization", (2, 3, 4), (3, 4), (1, 4), axis=1, stash_type=11),
    "rms": lambda: lossy("RMSNormalization", (2, 3, 4), (4,), stash_type=11),
    "instance": lambda: lossy("InstanceNormalization", (2, 3, 4, 2), (3,), (3,)),
    "group": lambda: lossy("GroupNormalization", (2, 6, 4), (6,), (6,), num_groups=3, stash_type=11),
    "layer double": lambda: lossy(
        "LayerNormalization", (2, 3, 4), (1, 1, 4), (1,), outputs=3, stash_type=11, axis=1
    ),
    "kept layer": lambda: lossy("relayout.LayerNormalizationTraining", (2, 3), (3,), outputs=3, axis=1),
    "kept groups": lambda: lossy(
        "relayout.GroupNormalizationTraining", (2, 4, 3), (4,), (4,), outputs=3, num_groups=2
    ),
    "response": lambda: lossy("LRN", (2, 7, 3), size=4, alpha=0.7, beta=0.6, bias=1.5),
    "response of more": lambda: lossy("LRN", (1, 2, 1, 2), size=5, alpha=2.0),
    "cross entropy weighed sum": lambda: lossy(
        "SoftmaxCrossEntropyLoss", (4, 3), np.array([0, 2, 1, 1]), RNG.random(3) + 1, reduction="sum"
    ),
    "cross entropy each but": lambda: lossy(
        "SoftmaxCrossEntropyLoss", (4, 3), np.array([0, -1, 1, 1]), reduction="none", ignore_index=-1
    ),
    "softmax": lambda: lossy("Softmax", (2, 3, 4), axis=1),
    "log softmax": lambda: lossy("LogSoftmax", (2, 3, 4)),
    "cumsum": lambda: lossy("CumSum", (2, 3), np.array(1), exclusive=1),
    "cumsum reverse": lambda: lossy("CumSum", (2, 3), np.array(0), reverse=1),
    "cross entropy": lambda: lossy("SoftmaxCrossEntropyLoss", (4, 3), np.array([0, 2, 1, 1])),
    "cross entropy two": lambda: lossy(
        "SoftmaxCrossEntropyLoss", (4, 3), np.array([0, 2, 1, 1]), outputs=2, reduction="sum"
    ),
    "cross entropy weighed": lambda: lossy(
        "SoftmaxCrossEntropyLoss", (2, 3, 4), RNG.integers(0, 3, (2, 4)), RNG.random(3) + 1, ignore_index=1
    ),
    "cross entropy each": lambda: lossy(
        "SoftmaxCrossEntropyLoss", (4, 3), np.array([0, 2, 1, 1]), reduction="none"
    ),
    "likelihood": lambda: lossy(
        "NegativeLogLikelihoodLoss", (4, 3), np.array([0, 2, 1, 1]), RNG.random(3) + 1
    ),
    **{
        f"{name} {axes}": (
            lambda name=name, axes=axes: lossy(  # type: ignore[misc]
                name, (2, 3, 4), None if axes is None else np.array(axes), keepdims=int(axes == [1])
            )
        )
        for name in (
            "ReduceSum",
            "ReduceMean",
            "ReduceSumSquare",
            "ReduceL1",
            "ReduceL2",
            "ReduceLogSum",
            "ReduceLogSumExp",
            "ReduceProd",
            "ReduceMax",
            "ReduceMin",
        )
        for axes in (None, [1], [0, -1])
    },
}
POSITIVE = ("ReduceLogSum",)


@pytest.mark.parametrize("name", CASES)
def test_against_finite_differences(name: str) -> None:
    graph = CASES[name]()
    low = 0.2 if name.startswith(POSITIVE) else -2.0
    fixed = {"x3", "x4", "weighing"} if name == "batch normalization" else {"weighing"}
    if name == "mod" or name.startswith("regions"):
        fixed |= {"x1"}
    if "weighed" in name or name == "likelihood":
        fixed |= {"x2"}
    of = tuple(v.name for v in graph.inputs) + tuple(
        k for k in trainable(graph) if k not in fixed and not name.startswith("clip")
    )
    checked(graph, *inputs_of(graph, 3, low, 2.0), of=of)


def test_running_products_of_zeros() -> None:
    """Nothing is divided by an element."""
    torch = pytest.importorskip("torch")
    graph = lossy("CumProd", (3, 5), np.array(1))
    x = np.array([[1.0, 0, 3, 0, 2], [0, 2, 3, 4, 5], [1, 2, 3, 4, 0]])
    made = backward(graph, "loss", ["x0"]).evaluate(x)[1]
    of = torch.tensor(x, requires_grad=True)
    (of.cumprod(1) * torch.tensor(graph.constants["weighing"])).sum().backward()
    np.testing.assert_allclose(made, of.grad.numpy(), rtol=1e-12)


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("corners", [False, True])
def test_samples_of_a_grid_have_pytorchs_gradients(mode: str, padding: str, corners: bool) -> None:
    if (mode, padding) == ("bicubic", "border"):
        pytest.skip("ONNX moves places to the border, PyTorch their neighbours")
    torch = pytest.importorskip("torch")
    name = {"bilinear": "linear", "nearest": "nearest", "bicubic": "cubic"}[mode]
    graph = lossy("GridSample", (2, 3, 4, 5), (2, 6, 7, 2), mode=name, padding_mode=padding,
                  align_corners=int(corners))  # fmt: skip
    given = inputs_of(graph, 9)
    made = backward(graph, "loss", ["x0", "x1"]).evaluate(*given)[1:]
    tensors = [torch.tensor(one, requires_grad=True) for one in given]
    y = torch.nn.functional.grid_sample(*tensors, mode=mode, padding_mode=padding, align_corners=corners)
    (y * torch.tensor(graph.constants["weighing"])).sum().backward()
    for one, tensor in zip(made, tensors, strict=True):
        np.testing.assert_allclose(one, tensor.grad.numpy(), rtol=1e-9, atol=1e-9)


def test_every_rule_is_tried() -> None:
    """A rule without a test would be one that nobody has seen right."""
    tried = {CASES[name]().nodes[0].operator for name in CASES} | set(FUNCTIONS)
    tried |= {"Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean", "Pow", "Cast", "CastLike", "Dropout"}
    tried |= {"LSTM", "GRU", "RNN", "relayout.RecurrentTraining"}  # test_backward_recurrent_networks.py
    assert set(RULES) - tried == set()
    assert set(RULES) <= set(OPERATORS)


def test_values_read_several_times_get_the_sum() -> None:
    b = Building((3, 4))
    b.inputs = (Value("x0", (3, 4), F64),)
    a = b("Tanh", "x0")
    c = b("Mul", a, a)
    d = b("Add", c, a)
    b("ReduceSum", b("Mul", d, b("Exp", a)), keepdims=0)
    graph = b.graph()
    checked(graph, *inputs_of(graph))


def test_cast_goes_back() -> None:
    graph = Graph(
        (Value("x", (3,), F64),),
        ("loss",),
        (
            Node("Cast", ("x",), ("a",), {"to": 1}),
            Node("Mul", ("a", "a"), ("b",)),
            Node("ReduceSum", ("b",), ("loss",), {"keepdims": 0}),
        ),
    )
    _, gradient = backward(graph, "loss", ["x"]).evaluate(np.array([1.0, 2, 3]))
    assert gradient.dtype == F64
    assert gradient.tolist() == [2, 4, 6]


@pytest.mark.parametrize(
    ("node", "x", "expected"),
    [
        (Node("ReduceProd", ("x",), ("y",), {"keepdims": 0}), [0, 2, 3], [6, 0, 0]),
        (Node("ReduceProd", ("x",), ("y",), {"keepdims": 0}), [0, 2, 0], [0, 0, 0]),
        (Node("ReduceL2", ("x",), ("y",), {"keepdims": 0}), [0, 0, 0], [0, 0, 0]),
        (Node("Pow", ("x", "e"), ("y",)), [0, 2, 3], [0, 1, 6]),
        (Node("Relu", ("x",), ("y",)), [0, np.nan, 1], [0, 1, 1]),
    ],
)
def test_gradients_where_a_formula_divides_by_0(node: Node, x: list[float], expected: list[float]) -> None:
    """As PyTorch has them."""
    total = Node("ReduceSum", ("y",), ("loss",), {"keepdims": 0})
    constants = {"e": np.array([0.0, 1, 2], np.float32)} if "e" in node.inputs else {}
    graph = Graph((Value("x", (3,), np.dtype("f4")),), ("loss",), (node, total), constants)
    joint = backward(graph, "loss", ["x"])
    for found in (joint.evaluate(np.array(x, np.float32)), joint.compile()(np.array(x, np.float32))):
        assert found[1].tolist() == expected


def test_a_parameter_without_influence_has_zeros() -> None:
    graph = lossy("Mul", (3,), np.array([1.0, 2, 3]))
    graph = graph.replaced(constants={**graph.constants, "aside": np.ones((2, 2))})
    made = backward(graph, "loss", ["aside", "x0"]).evaluate(np.ones(3))
    assert made[1].tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize(
    ("nodes", "of", "message"),
    [
        ((Node("Det", ("x",), ("loss",)),), ["x"], r"node 'loss' \(Det\): there is no gradient of Det"),
        ((Node("Relu", ("x",), ("loss",)),), ["x"], "a loss is one number of floating point"),
        ((Node("ReduceSum", ("x",), ("loss",), {"keepdims": 0}),), ["w"], "no constant 'w'"),
        ((Node("ReduceSum", ("x",), ("loss",), {"keepdims": 0}),), [], "does not depend"),
    ],
)
def test_errors(nodes: tuple[Node, ...], of: list[str], message: str) -> None:
    graph = Graph((Value("x", (2, 2), F64),), ("loss",), nodes)
    with pytest.raises(LayoutError, match=message):
        backward(graph, "loss", of)


def test_open_dims_are_an_error_that_says_what_to_give() -> None:
    graph = Graph(
        (Value("x", ("batch", 2), F64),), ("loss",), (Node("ReduceMean", ("x",), ("loss",), {"keepdims": 0}),)
    )
    with pytest.raises(LayoutError, match="batch="):
        graph.backward("loss", ["x"])
    assert graph.backward("loss", ["x"], batch=3).outputs[1].dims == (3, 2)


# -- against PyTorch ----------------------------------------------------------------------------------------


@settings(max_examples=tried(25), deadline=None)
@given(st.integers(0, 10**6))
def test_small_networks_against_pytorch(seed: int) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(seed)
    channels, size, batch = int(rng.integers(1, 5)), int(rng.integers(4, 8)), int(rng.integers(2, 4))
    x = torch.tensor(rng.standard_normal((batch, channels, size, size)), requires_grad=True)
    labels = torch.tensor(rng.integers(0, 3, batch))
    nodes: list[Node] = []
    constants: dict[str, Any] = {"labels": labels.numpy()}
    leaves = {"x": x}
    value, name = x, "x"

    def parameter(*dims: int) -> tuple[str, Any]:
        made = torch.tensor(rng.standard_normal(dims) * 0.5, requires_grad=True)
        key = f"p{len(constants)}"
        constants[key] = made.detach().numpy()
        leaves[key] = made
        return key, made

    def node(operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        made = tuple(f"v{len(nodes)}_{k}" for k in range(outputs))
        nodes.append(Node(operator, inputs, made, attributes))
        return made[0]

    f = torch.nn.functional
    for _ in range(int(rng.integers(1, 4))):
        kind = int(rng.integers(0, 6))
        wide = value.shape[1]
        if kind == 0:
            outer, stride = int(rng.integers(1, 5)), int(rng.integers(1, 3))
            (w, weight), (b, bias) = parameter(outer, wide, 3, 3), parameter(outer)
            value = f.conv2d(value, weight, bias, stride, 1)
            name = node("Conv", name, w, b, strides=(stride, stride), pads=(1, 1, 1, 1))
        elif kind == 1:
            (w, weight), (b, bias) = parameter(wide), parameter(wide)
            value = f.batch_norm(value, None, None, weight, bias, True)
            name = node("relayout.BatchNormalizationTraining", name, w, b, outputs=3)
            if rng.integers(2):
                value, name = f.relu(value), node("Relu", name)
        elif kind == 2 and value.shape[2] >= 2:
            value = f.max_pool2d(value, 3, 2, 1)
            name = node("MaxPool", name, kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
        elif kind == 3 and value.shape[2] >= 2:
            value = f.avg_pool2d(value, 2, 2)
            name = node("AveragePool", name, kernel_shape=(2, 2), strides=(2, 2))
        elif kind == 4:
            value = value + f.relu(value)
            name = node("Add", name, node("Relu", name))
        else:
            value = f.gelu(value)
            name = node("Gelu", name)
    value = value.mean((2, 3))
    name = node("Flatten", node("GlobalAveragePool", name))
    (w, weight), (b, bias) = parameter(3, value.shape[1]), parameter(3)
    loss = f.cross_entropy(f.linear(value, weight, bias), labels)
    name = node("SoftmaxCrossEntropyLoss", node("Gemm", name, w, b, transB=1), "labels")
    loss.backward()
    graph = Graph((Value("x", tuple(x.shape), F64),), (name,), tuple(nodes), constants)
    made = graph.backward(name, list(leaves)).evaluate(x.detach().numpy())
    np.testing.assert_allclose(made[0], loss.item(), rtol=1e-9)
    for key, gradient in zip(leaves, made[1:], strict=True):
        expected = leaves[key].grad.numpy()
        np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-9, err_msg=key)


@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize("format", ["nchw", "nhwc", "nChw16c"])
def test_a_relu_behind_a_batch_normalization_becomes_part_of_it(dtype: str, format: str) -> None:
    rng = np.random.default_rng(11)
    dims = (4, 19, 9, 7)
    x = Value("x", dims, np.dtype(dtype))
    nodes = (
        Node("relayout.BatchNormalizationTraining", ("x", "s", "b"), ("z", "m", "v")),
        Node("Relu", ("z",), ("y",)),
        Node("Mul", ("y", "c"), ("p",)),
        Node("ReduceSumSquare", ("p",), ("loss",), {"keepdims": 0}),
    )
    constants = {name: rng.standard_normal(19).astype("f4") for name in "sb"}
    constants["s"][3] = constants["b"][3] = 0  # all results are 0, and nothing passes
    constants["c"] = rng.standard_normal(dims).astype(dtype)
    given = rng.standard_normal(dims).astype(dtype)
    of = ["x", "s", "b"]
    joined = Graph((x,), ("loss",), nodes, constants).backward("loss", of)
    apart = Graph((x,), ("loss", "z"), nodes, constants).backward("loss", of)
    assert "relayout.ReluGrad" not in [node.operator for node in joined.nodes]
    assert "relayout.ReluGrad" in [node.operator for node in apart.nodes]
    loss, *found = joined.evaluate(given)
    whole, _, *expected = apart.evaluate(given)
    assert loss == whole
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    run, other = joined.compile(format=format), apart.compile(format=format)
    assert run.steps is not None
    own = [layer for layer in run.steps.layers() if layer.kind.startswith("batch_normalization")]
    assert len(own) == 2
    assert all("workspace" in layer.descs for layer in own)
    assert all("machine code" in layer.implementation for layer in own)
    loss, *found = run(given)
    whole, _, *expected = other(given)
    assert loss == whole
    for one, same in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, same)
    assert not found[1][3]
    assert not found[2][3]


# -- training form ------------------------------------------------------------------------------------------


def test_running_statistics_are_pytorchs() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(2)
    layer = torch.nn.BatchNorm2d(3, momentum=0.2).double()
    x = rng.standard_normal((4, 3, 2, 5))
    names = {"w": layer.weight, "b": layer.bias, "m": layer.running_mean, "v": layer.running_var}
    constants = {key: one.detach().numpy().copy() for key, one in names.items()}
    nodes = (Node("BatchNormalization", ("x", "w", "b", "m", "v"), ("y",), {"momentum": 0.8}),)
    form = training_form(Graph((Value("x", x.shape, F64),), ("y",), nodes, constants))
    y, mean, variance = form.graph.verify().evaluate(x)
    np.testing.assert_allclose(y, layer(torch.tensor(x)).detach().numpy(), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(mean, layer.running_mean.numpy(), rtol=1e-9)
    np.testing.assert_allclose(variance, layer.running_var.numpy(), rtol=1e-9)
    assert list(form.updates) == ["m", "v"]


def test_a_layer_that_is_used_twice_updates_its_statistics_twice() -> None:
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(2).standard_normal((4, 3, 2, 5))
    constants = {"w": np.ones(3), "b": np.zeros(3), "m": np.zeros(3), "v": np.ones(3), "two": np.array(2.0)}
    nodes = (
        Node("BatchNormalization", ("x", *"wbmv"), ("y",)),
        Node("Mul", ("y", "two"), ("z",)),
        Node("BatchNormalization", ("z", *"wbmv"), ("out",)),
    )
    form = training_form(Graph((Value("x", x.shape, F64),), ("out",), nodes, constants))
    _, mean, variance = form.graph.verify().evaluate(x)
    layer = torch.nn.BatchNorm2d(3).double()
    layer(layer(torch.tensor(x)) * 2)
    np.testing.assert_allclose(mean, layer.running_mean.numpy(), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(variance, layer.running_var.numpy(), rtol=1e-7)


@pytest.mark.parametrize("twice", [False, True])
def test_a_momentum_of_one_is_pytorchs_none(twice: bool) -> None:
    """All batches count the same; those of a layer that is used twice one after the other."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(2)
    layer = torch.nn.BatchNorm2d(3, momentum=None).double()
    constants = {"w": np.ones(3), "b": np.zeros(3), "m": np.zeros(3), "v": np.ones(3)}
    first = Node("BatchNormalization", ("x", *"wbmv"), ("y",), {"momentum": 1.0})
    nodes = (first, Node("BatchNormalization", ("y", *"wbmv"), ("z",), {"momentum": 1.0}))
    graph = Graph((Value("x", (4, 3, 2, 5), F64),), ("yz"[twice],), nodes[: 1 + twice], constants)
    form = training_form(graph).graph.verify()
    assert [value.name for value in form.inputs] == ["x", "training/step"]
    for step in range(4):
        x = rng.standard_normal((4, 3, 2, 5))
        out, mean, variance = form.replaced(constants={**form.constants, **constants}).evaluate(
            x, np.array([step])
        )
        wanted = layer(torch.tensor(x))
        wanted = layer(wanted) if twice else wanted
        np.testing.assert_allclose(out, wanted.detach().numpy(), rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(mean, layer.running_mean.numpy(), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(variance, layer.running_var.numpy(), rtol=1e-9)
        constants |= {"m": mean, "v": variance}


def test_the_row_for_padding_has_no_gradient() -> None:
    torch = pytest.importorskip("torch")
    index = np.array([[0, 2, 1], [2, 3, 0]])
    for axis, padding in ((0, 2), (0, 0), (1, 2), (0, 3)):
        table = Value("table", (4, 5), F64)
        nodes = (
            Node("Gather", ("table", "index"), ("rows",), {"axis": axis, "padding_idx": padding}),
            Node("Mul", ("rows", "rows"), ("square",)),
            Node("ReduceSum", ("square",), ("loss",), {"keepdims": 0}),
        )
        graph = backward(Graph((table,), ("loss",), nodes, {"index": index}), "loss", ["table"])
        data = np.random.default_rng(1).standard_normal((4, 5))
        of = torch.tensor(data if axis == 0 else data.T.copy(), requires_grad=True)
        torch.nn.functional.embedding(torch.tensor(index), of, padding).square().sum().backward()
        wanted = of.grad.numpy() if axis == 0 else of.grad.numpy().T
        np.testing.assert_allclose(graph.evaluate(data)[1], wanted, rtol=1e-12)


def test_a_batch_of_one_element_has_no_variance() -> None:
    ones = {key: np.ones(3) for key in "wbmv"}
    graph = Graph(
        (Value("x", (1, 3), F64),), ("y",), (Node("BatchNormalization", ("x", *"wbmv"), ("y",)),), ones
    )
    with pytest.raises(LayoutError, match="statistics need two"):
        training_form(graph)


def test_dropout_is_a_mask_of_each_step() -> None:
    nodes = (Node("Dropout", ("x", "ratio"), ("y",)), Node("ReduceSum", ("y",), ("loss",), {"keepdims": 0}))
    graph = Graph((Value("x", (50, 40), F64),), ("y", "loss"), nodes, {"ratio": np.asarray(0.25)})
    form = training_form(graph, seed=3).graph
    assert [value.name for value in form.inputs] == ["x", STEP]
    joint = form.backward("loss", ["x"])
    x = np.ones((50, 40))
    y, _, gradient = joint.evaluate(x, np.array([1]))
    again, _, _ = joint.evaluate(x, np.array([1]))
    other, _, _ = joint.evaluate(x, np.array([2]))
    assert np.array_equal(y, again)
    assert not np.array_equal(y, other)
    assert np.array_equal(y, gradient)
    assert set(np.unique(y)) == {0.0, 1 / 0.75}
    assert abs((y == 0).mean() - 0.25) < 0.04
