"""Networks: what they compute in any format, what their layers are called, where weights come from."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from relayout import LayoutError, Unsupported
from relayout.networks import NETWORKS, Architecture, build, from_file, random
from relayout.networks.parameters import EPSILON, folded
from relayout.ops.products import convolved as by_taps
from strategies import examples

SMALL = Architecture((2, 1), groups=2, width=12, channels=10)
FORMATS = ("any", "nchw", "nhwc", "nChw8c", "nChw16c", "NCHW4", "CHWN4", "b_fs_yx_fsv32")


def pictures(batch, size, seed=0):
    return np.random.default_rng(seed).standard_normal((batch, 3, size, size)).astype(np.float32)


def close(found, wanted):
    assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max()


def normalised(parameters, name, x):
    """Batch normalisation, as its paper has it."""
    gamma, beta, mean, variance = (
        parameters(f"{name}.{what}", x.shape[1:2]).astype(float).reshape(1, -1, 1, 1)
        for what in ("weight", "bias", "running_mean", "running_var")
    )
    return gamma * (x - mean) / np.sqrt(variance + EPSILON) + beta


def scores(parameters, architecture, x, classes):
    """The network once more, in NumPy, with its normalisations as layers of their own."""

    def layer(x, name, norm, outputs, kernel, stride=1, groups=1):
        weights = parameters(f"{name}.weight", (outputs, x.shape[1] // groups, kernel, kernel))
        weights = weights.reshape(groups, outputs // groups, *weights.shape[1:])
        pads = ((kernel // 2, kernel // 2),) * 2
        y = by_taps(x, weights.astype(float), (stride,) * 2, (1, 1), pads, True)
        return normalised(parameters, norm, y)

    x = np.maximum(layer(x, "conv1", "bn1", architecture.channels, 7, 2), 0)
    x = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)], constant_values=-np.inf)
    x = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))[:, :, ::2, ::2].max((-1, -2))
    for stage, depth in enumerate(architecture.depths):
        inner, outer = architecture.width << stage, 4 * architecture.channels << stage
        for k in range(depth):
            name, stride = f"layer{stage + 1}.{k}", 2 if stage and not k else 1
            y = np.maximum(layer(x, f"{name}.conv1", f"{name}.bn1", inner, 1), 0)
            y = layer(y, f"{name}.conv2", f"{name}.bn2", inner, 3, stride, architecture.groups)
            y = layer(np.maximum(y, 0), f"{name}.conv3", f"{name}.bn3", outer, 1)
            if k == 0:
                x = layer(x, f"{name}.downsample.0", f"{name}.downsample.1", outer, 1, stride)
            x = np.maximum(x + y, 0)
    x = x.mean((2, 3))
    return x @ parameters("fc.weight", (classes, x.shape[1])).T + parameters("fc.bias", (classes,))


@pytest.mark.turns(2)
@pytest.mark.parametrize("format", FORMATS)
def test_a_small_network_in_any_format(format):
    parameters, data = random(3), pictures(3, 37)
    seq = build(SMALL, 3, format, parameters, size=37, classes=5)
    wanted = scores(parameters, SMALL, data.astype(float), 5)
    np.testing.assert_allclose(seq.reference(data), wanted, rtol=1e-4)  # weights are folded to f32
    found = seq.compile(2)(rl.tensor(data, seq.inputs[0].desc))
    assert found.desc == rl.MemoryDesc((3, 5), "f32", "nc")
    close(found.numpy(), wanted)


@pytest.mark.slow
def test_resnet50_in_every_format():
    data, parameters = pictures(1, 64), random()
    wanted = None
    for format in ("any", "nchw", "nhwc", "nChw16c"):
        seq = build("resnet50", 1, format, parameters, size=64)
        wanted = seq.reference(data) if wanted is None else wanted
        run = seq.compile()
        close(run(rl.tensor(data, seq.inputs[0].desc)).numpy(), wanted)
        assert run.memory.peak <= 1.25 * run.memory.bound
        formats = {str(layer.descs["dst"].format) for layer in run.layers() if layer.name.startswith("layer")}
        assert len(formats) == 1
        assert format == "any" or formats == {format}
    assert 0.1 < wanted.std() < 100  # activations have neither vanished nor exploded


@pytest.mark.parametrize("format", ["any", "nchw", "nChw8c"])
def test_reorders_are_only_where_formats_differ(format):
    seq = build(SMALL, 1, format, size=32)
    names = [node.name for node in seq.nodes]
    assert [name for name in names if "reorder" in name] == (["data.reorder"] if format == "any" else [])
    assert names[-6:] == [f"layer2.0.{name}" for name in ("conv1", "conv2", "downsample.0", "conv3")] + [
        "avgpool",
        "fc",
    ]


@pytest.mark.parametrize(
    ("name", "blocks", "learned"),
    [
        ("resnet50", 16, 25_557_032),
        ("resnet101", 33, 44_549_160),
        ("resnet152", 50, 60_192_808),
        ("resnext101_32x4d", 33, 44_177_704),
    ],
)
def test_parameters_are_those_of_pytorchs_networks(name, blocks, learned):
    asked = {}

    def nothing(what, dims):
        asked[what] = int(np.prod(dims))
        return np.broadcast_to(np.float32(0), dims)

    assert set(NETWORKS) >= {name}
    build(name, parameters=nothing, size=32)
    convolutions = 1 + 3 * blocks + 4
    assert len(asked) == 5 * convolutions + 2
    assert sum(size for what, size in asked.items() if ".running_" not in what) == learned
    assert {"conv1.weight", "bn1.running_var", "layer4.0.downsample.1.bias", "fc.bias"} <= set(asked)


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 2**32 - 1))
@examples(20)
def test_folding_is_convolution_and_normalisation(outputs, inputs, seed):
    parameters = random(seed)
    x = np.random.default_rng(seed).standard_normal((2, inputs, 4, 4))
    dims = (outputs, inputs, 3, 3)

    def convolved(weights, bias=None):
        y = by_taps(x, weights.astype(float), (1, 1), (1, 1), ((1, 1), (1, 1)))
        return y if bias is None else y + bias.reshape(-1, 1, 1)

    weights, bias = folded(parameters, "conv", "bn", dims)
    wanted = normalised(parameters, "bn", convolved(parameters("conv.weight", dims)))
    np.testing.assert_allclose(convolved(weights, bias), wanted, rtol=1e-4, atol=1e-5)


def write_safetensors(path, arrays):
    """A file as other programs write it."""
    header, at = {}, 0
    for name, array in arrays.items():
        header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    body = b"".join(array.tobytes() for array in arrays.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def test_weights_of_a_file(tmp_path):
    made, asked = random(5), {}

    def noted(name, dims):
        asked[name] = made(name, dims)
        return asked[name]

    data = pictures(2, 32)
    wanted = build(SMALL, 2, parameters=noted, size=32, classes=7).compile()(data).numpy()
    write_safetensors(tmp_path / "w.safetensors", asked)
    np.savez(tmp_path / "w.npz", **asked)
    for name in ("w.safetensors", "w.npz"):
        seq = build(SMALL, 2, parameters=from_file(tmp_path / name), size=32, classes=7)
        np.testing.assert_array_equal(seq.compile()(data).numpy(), wanted)
    with pytest.raises(LayoutError, match=r"w.npz: fc.weight is 7x80, but the network has 1000x80"):
        build(SMALL, parameters=from_file(tmp_path / "w.npz"), size=32)
    with pytest.raises(LayoutError, match=r"layer2\.1\.conv1\.weight"):
        build(SMALL._replace(depths=(2, 2)), parameters=from_file(tmp_path / "w.safetensors"), size=32)


def test_other_data_types():
    data = pictures(1, 32)
    seq = build(SMALL, dtype="bf16", size=32, format="nhwc")
    assert {str(node.primitive.descs["dst"].dtype) for node in seq.nodes[1:-1]} == {"bf16"}
    found, wanted = seq.compile()(rl.tensor(data, "nhwc")).numpy(), seq.reference(data)
    assert found.dtype == np.float32
    assert np.abs(found - wanted).max() <= 0.05 * np.abs(wanted).max()


def test_bad_input_is_refused():
    with pytest.raises(LayoutError, match="no network 'resnet51'; there are resnet50"):
        build("resnet51")
    with pytest.raises(LayoutError, match="batch must be at least 1, got 0"):
        build("resnet50", 0)
    with pytest.raises(Unsupported, match="f32, bf16, f16, not in s8"):
        build(SMALL, dtype="s8")
    with pytest.raises(LayoutError, match="nwc"):
        build(SMALL, format="nwc")
    with pytest.raises(LayoutError, match="nchx"):
        build(SMALL, format="nchx")
