"""``relayout.torch.audit``: losses planted in small models are found where they are, and nothing else is."""

from __future__ import annotations

import json
import linecache
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402 - after the check
from torch import nn  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402

import relayout.torch as rt  # noqa: E402
from relayout.errors import LayoutError  # noqa: E402
from relayout.torch.auditing import hidden  # noqa: E402
from relayout.torch.auditing.advice import REWRITES  # noqa: E402
from relayout.torch.auditing.seen import Seen  # noqa: E402

LAST, LAST_3D = torch.channels_last, torch.channels_last_3d
INDEX = torch.tensor([1, 0, 2, 2])


class Around(nn.Module):
    """A convolution, an operator, a convolution where the result has as many channels."""

    def __init__(self, work: Callable[[Any], Any]) -> None:
        super().__init__()
        self.before = nn.Conv2d(8, 8, 3, padding=1)
        self.work = work
        self.after = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Any) -> Any:
        x = self.work(self.before(x))
        return self.after(x) if x.dim() == 4 and x.shape[1] == 8 else x


def pictures(*dims: int) -> Any:
    dims = dims or (2, 8, 6, 6)
    return torch.randn(dims).to(memory_format=LAST if len(dims) == 4 else LAST_3D)


def audited(work: Callable[[Any], Any], **how: Any) -> Any:
    torch.manual_seed(0)
    return rt.audit(Around(work).eval().to(memory_format=LAST), pictures(), **how)


PLANTED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "softmax over channels": ("softmax", lambda x: x.softmax(1)),
    "softmax of a module": ("softmax", nn.Softmax2d()),
    "log_softmax": ("log_softmax", lambda x: F.log_softmax(x, 1)),
    "cat of mixed formats": ("cat", lambda x: torch.cat([x[:, :4], torch.zeros(2, 4, 6, 6)], 1)),
    "index_select": ("index_select", lambda x: x.index_select(1, INDEX)),
    "repeat": ("repeat", lambda x: x.repeat(1, 2, 1, 1)),
    "tile": ("tile", lambda x: x.tile(1, 2, 1, 1)),
    "repeat_interleave": ("repeat_interleave", lambda x: x.repeat_interleave(2, 1)),
    "layer_norm": ("layer_norm", nn.LayerNorm([8, 6, 6])),
    "advanced index": ("index", lambda x: x[:, [1, 0, 3]]),
    "boolean index": ("index", lambda x: x[:, torch.arange(8) > 3]),
    "flatten": ("flatten", lambda x: x.flatten(1)),
    "reshape that copies": ("reshape", lambda x: x.reshape(2, -1)),
    "shuffle of channels": ("reshape", lambda x: x.view(2, 2, 4, 6, 6).transpose(1, 2).reshape(2, 8, 6, 6)),
    "einsum": ("einsum", lambda x: torch.einsum("nchw,wv->nchv", x, torch.ones(6, 6))),
    "matmul": ("matmul", lambda x: x @ torch.ones(6, 6)),
    "attention over pixels": ("matmul", lambda x: x.flatten(2) @ x.flatten(2).mT),
    "linear over the last axis": ("linear", nn.Linear(6, 6)),
    "permute and contiguous": ("contiguous", lambda x: x.permute(0, 1, 3, 2).contiguous()),
    "contiguous without a format": ("contiguous", lambda x: x.contiguous()),
    "clone in a format": ("clone", lambda x: x.clone(memory_format=torch.contiguous_format)),
    "circular padding": ("pad", lambda x: F.pad(x, (1, 1, 1, 1), "circular")),
    "instance_norm": ("instance_norm", nn.InstanceNorm2d(8)),
    "topk": ("topk", lambda x: x.topk(4, 1)[0]),
    "cumsum": ("cumsum", lambda x: x.cumsum(1)),
    "masked_fill": ("masked_fill", lambda x: x.masked_fill(x > 0, 0.0)),
    "masked_scatter": ("masked_scatter", lambda x: x.masked_scatter(x > 0, torch.zeros(600))),
    "a plain mask first": ("mul", lambda x: torch.ones(2, 8, 6, 6) * x),
    "where with a plain tensor first": (
        "where",
        lambda x: torch.where(torch.ones(2, 8, 6, 6) > 0, torch.zeros(2, 8, 6, 6), x),
    ),
    "gather": ("gather", lambda x: x.gather(1, torch.zeros(2, 4, 6, 6, dtype=torch.long))),
    "scatter": ("scatter", lambda x: x.scatter(1, torch.zeros(2, 4, 6, 6, dtype=torch.long), 1.0)),
    "grid_sample": ("grid_sample", lambda x: F.grid_sample(x, torch.zeros(2, 6, 6, 2), align_corners=False)),
    "unfold": ("unfold", lambda x: F.unfold(x, 3)),
    "tokens in the wrong order": ("contiguous", lambda x: x.flatten(2).contiguous()),
}

KEPT: dict[str, Callable[[Any], Any]] = {
    "relu": F.relu,
    "in place": lambda x: x.relu_().add_(1),
    "pooling": lambda x: F.max_pool2d(x, 2),
    "global pooling": lambda x: F.adaptive_avg_pool2d(x, 1).relu(),
    "squeeze and excitation": lambda x: x * F.adaptive_avg_pool2d(x, 1).sigmoid(),
    "one channel": lambda x: x[:, :1].contiguous().relu(),
    "mean over channels": lambda x: x * x.mean(1, keepdim=True),
    "cat": lambda x: torch.cat([x, x], 1),
    "group_norm": nn.GroupNorm(2, 8),
    "batch_norm": nn.BatchNorm2d(8),
    "dropout": nn.Dropout2d(),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "padding": lambda x: F.pad(x, (1, 1, 1, 1)),
    "reflected": lambda x: F.pad(x, (1, 1, 1, 1), "reflect"),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "roll and flip": lambda x: x.roll(1, 2).flip(3),
    "tokens": lambda x: x.flatten(2).transpose(1, 2).softmax(-1),
    "pixels as rows": lambda x: F.layer_norm(x.permute(0, 2, 3, 1), (8,)).permute(0, 3, 1, 2),
    "the mask second": lambda x: x * torch.ones(2, 8, 6, 6),
    "a bias first": lambda x: torch.ones(1, 8, 1, 1) + x,
    "new memory": lambda x: x.new_zeros(x.shape).sum() + x,
    "flattened after pooling": lambda x: F.adaptive_avg_pool2d(x, 1).flatten(1),
    "unflattened": lambda x: x.flatten(2).unflatten(2, (6, 6)),
    "shuffled by its own operator": lambda x: F.channel_shuffle(x, 2),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_loss_is_found_at_its_operator(name: str) -> None:
    operator, work = PLANTED[name]
    found = audited(work)
    assert [one.operator for one in found.lost] == [operator]
    lost = found.lost[0]
    assert lost.module == ("work" if isinstance(work, nn.Module) else "")
    assert lost.seconds > 0
    assert lost.nbytes > 0
    if not isinstance(work, nn.Module):
        assert lost.at.file == __file__
        assert linecache.getline(__file__, lost.at.line).strip() == lost.at.text != ""
    for copy in found.copies:  # each of them is there because of the loss
        assert copy.root is lost or copy.at is lost.at
    assert lost.advice
    assert str(found)
    assert found.html()


@pytest.mark.parametrize("name", KEPT)
def test_what_keeps_the_format_is_not_reported(name: str) -> None:
    found = audited(KEPT[name])
    assert (found.lost, found.ambiguous, found.copies) == ((), (), ())
    assert found.clean
    assert "Nothing to report" in str(found)


def test_the_price_of_a_loss_is_the_next_convolutions() -> None:
    found = audited(lambda x: x.softmax(1))
    own, copy = found.copies  # softmax reads contiguous memory only
    assert (own.operator, own.dst, own.cause) == ("softmax", "contiguous", found.lost[0])
    assert (copy.operator, copy.module, copy.tensor) == ("conv2d", "after", "input")
    assert (copy.src.format, copy.dst, copy.nbytes) == ("contiguous", "channels_last", 2 * 8 * 6 * 6 * 4)
    assert copy.cause is found.lost[0]
    assert 0 < copy.seconds < 1
    (cause,) = found.causes
    assert (cause.title, cause.copies) == ("softmax", (own, copy))
    assert cause.seconds == own.seconds + copy.seconds
    assert "softmax(-1)" in cause.finding.advice
    assert "softmax" in str(found)


def test_a_loss_is_followed_through_other_operators() -> None:
    found = audited(lambda x: (x.softmax(1) + 1).relu())
    assert [one.operator for one in found.lost] == ["softmax"]
    assert found.copies[0].root.operator == "softmax"


def test_a_shuffle_of_channels_is_the_cause_of_all_that_follows() -> None:
    """Of two branches one is contiguous because of an earlier shuffle: ``cat`` is not to blame."""

    def shuffled(x: Any) -> Any:
        x = x.view(2, 2, 4, 6, 6).transpose(1, 2).contiguous().view(2, 8, 6, 6)
        first, second = x.chunk(2, 1)
        return torch.cat([first, F.conv2d(second, weight)], 1)

    weight = torch.randn(4, 4, 1, 1).to(memory_format=LAST)
    found = audited(shuffled)
    assert [one.operator for one in found.lost] == ["contiguous", "cat"]
    assert found.lost[1].cause is found.lost[0]
    assert "F.channel_shuffle(x, 2)" in found.lost[0].advice
    (cause,) = found.causes
    assert cause.finding is found.lost[0]
    assert len(cause.copies) == len(found.copies) == 3


def test_ambiguous_strides_of_issue_78611() -> None:
    found = audited(lambda x: x[:1].reshape(1, 8, 6, 6))
    (one,) = found.ambiguous
    assert (one.operator, one.src.format, one.dst) == ("reshape", "channels_last", "contiguous")
    assert f"as_strided(x.shape, {torch.empty(1, 8, 6, 6, memory_format=LAST).stride()})" in one.advice
    assert found.lost == ()


def test_an_ambiguous_input_is_converted_by_the_convolution() -> None:
    image = torch.randn(6, 6, 8).permute(2, 0, 1).unsqueeze(0)
    convolution = nn.Conv2d(8, 8, 3)
    found = rt.audit(convolution, image)
    (one,) = found.ambiguous
    assert (one.tensor, one.origin) == ("input", "the model's input")
    assert [(copy.tensor, copy.dst, copy.cause) for copy in found.copies] == [("input", "contiguous", one)]
    right = torch.randn(6, 6, 8).unsqueeze(0).permute(0, 3, 1, 2)  # as the advice says
    assert rt.audit(convolution.to(memory_format=LAST), right).clean


@pytest.mark.parametrize("name", REWRITES)
def test_what_is_advised_has_the_same_values_and_keeps_the_format(name: str) -> None:
    given = {"torch": torch, "F": F, "x": pictures(2, 8, 6, 6), "index": torch.tensor([3, 1]), "C": 8}
    given |= {"wide": torch.zeros(2, 4, 6, 6, dtype=torch.long), "part": torch.ones(2, 2, 6, 6)}
    given |= {"plain": torch.ones(2, 8, 6, 6), "w": torch.randn(4, 8)}
    before, instead = eval(REWRITES[name].before, dict(given)), eval(REWRITES[name].instead, dict(given))
    torch.testing.assert_close(before, instead)
    assert instead.is_contiguous(memory_format=LAST)
    assert not instead.is_contiguous()


# -------------------------------------------------------------------- what only kernels see


def strided(tensor: Any) -> Seen:
    return Seen(0, tuple(tensor.shape), tensor.stride(), "float32", 4, "cpu", "")


FORMATS = {"contiguous": lambda x: x.contiguous(), "last": lambda x: x.to(memory_format=LAST)}


@pytest.mark.parametrize("source", [*FORMATS, "sliced"])
@pytest.mark.parametrize("weight", FORMATS)
@pytest.mark.parametrize("transposed", [False, True])
def test_conversions_within_convolutions_are_those_that_the_profiler_sees(
    source: str, weight: str, transposed: bool
) -> None:
    x = torch.randn(4, 32, 18, 18)
    x = pictures(4, 64, 18, 18)[:, :32] if source == "sliced" else FORMATS[source](x)
    w = FORMATS[weight](torch.randn(32, 32, 3, 3))
    work = F.conv_transpose2d if transposed else F.conv2d
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
        work(x, w)
    copied = {
        {4: "input", 32: "weight"}[event.input_shapes[0][0]]
        for event in seen.events()
        if event.name == "aten::clone"
    }
    assert {one.what for one in hidden.hidden_in("aten.convolution", (strided(x), strided(w)))} == copied


READERS: dict[str, Callable[[Any], Any]] = {
    "aten.native_layer_norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "aten._softmax": lambda x: x.softmax(1),
    "aten._log_softmax": lambda x: x.log_softmax(-1),
    "aten.im2col": lambda x: F.unfold(x, 2),
    "aten.index_select": lambda x: x.index_select(1, INDEX),
    "aten.max_pool2d_with_indices": lambda x: F.max_pool2d(x, 2),
    "aten.avg_pool2d": lambda x: F.avg_pool2d(x, 2),
    "aten._adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 3),
    "aten.adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, 3),
    "aten.reflection_pad2d": lambda x: F.pad(x, (1, 1, 1, 1), "reflect"),
    "aten.replication_pad2d": lambda x: F.pad(x, (1, 1, 1, 1), "replicate"),
    "aten.pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "aten.pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2),
    "aten.channel_shuffle": lambda x: F.channel_shuffle(x, 2),
    "aten.relu": F.relu,
    "aten.roll": lambda x: x.roll(1, 2),
}


@pytest.mark.parametrize("kernel", READERS)
@pytest.mark.parametrize("source", ["contiguous", "last", "sliced"])
def test_copies_within_other_kernels_are_those_that_the_profiler_sees(kernel: str, source: str) -> None:
    x = pictures(2, 16, 6, 6)[:, :8] if source == "sliced" else FORMATS[source](pictures())
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
        READERS[kernel](x)
    cloned = [event.input_shapes[0] for event in seen.events() if event.name == "aten::clone"]
    copied = list(x.shape) in cloned
    assert bool([*hidden.hidden_in(kernel, (strided(x),))]) == copied


def test_every_rule_of_a_kernel_is_held_against_the_profiler() -> None:
    assert set(hidden.CONTIGUOUS + hidden.PACKED) <= set(READERS)


def test_weights_that_are_converted_in_every_call() -> None:
    found = rt.audit(nn.Conv2d(8, 8, 3), pictures())
    assert [(one.tensor, one.origin) for one in found.copies] == [("weight", "a parameter")]
    assert found.causes[0].title == "weights of conv2d"
    assert "model.to(memory_format=torch.channels_last)" in found.copies[0].advice


def test_a_plain_input_of_a_model_in_channels_last() -> None:
    found = rt.audit(nn.Conv2d(8, 8, 3).to(memory_format=LAST), torch.randn(2, 8, 6, 6))
    assert [(one.tensor, one.origin) for one in found.copies] == [("input", "the model's input")]
    assert found.lost == ()


# -------------------------------------------------------------------- models


class Bottleneck(nn.Module):
    def __init__(self, wide: int, inner: int, stride: int) -> None:
        super().__init__()
        out = 4 * inner
        self.conv1, self.bn1 = nn.Conv2d(wide, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = nn.Conv2d(inner, out, 1, bias=False), nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = (
            nn.Sequential(nn.Conv2d(wide, out, 1, stride, bias=False), nn.BatchNorm2d(out))
            if wide != out or stride > 1
            else nn.Identity()
        )

    def forward(self, x: Any) -> Any:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        return self.relu(self.bn3(self.conv3(y)) + self.downsample(x))


def resnet50() -> Any:
    blocks, wide = [], 64
    for inner, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for k in range(count):
            blocks.append(Bottleneck(wide, inner, stride if k == 0 else 1))
            wide = 4 * inner
    stem = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 10))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("train", [False, True])
def test_nothing_is_reported_of_resnet_50(batch: int, train: bool) -> None:
    model = resnet50().to(memory_format=LAST)
    found = rt.audit(model.eval(), pictures(batch + train, 3, 64, 64), train=train)
    assert (found.lost, found.ambiguous, found.copies) == ((), (), ())
    assert any(one.backward for one in found.operators) is train
    assert {one.operator for one in found.operators} >= {"conv2d", "batch_norm", "relu", "max_pool2d"}


def test_operators_have_a_module_and_a_line() -> None:
    found = rt.audit(resnet50().eval().to(memory_format=LAST), pictures(1, 3, 64, 64))
    one = next(one for one in found.operators if one.module == "4.conv2")
    assert (one.operator, one.kernels, one.layer) == ("conv2d", ("aten.convolution",), "Conv2d")
    assert one.text == "y = self.relu(self.bn2(self.conv2(y)))"
    assert one.file == __file__
    assert [seen.format for seen in one.outputs] == ["channels_last"]


def test_five_axes() -> None:
    model = nn.Sequential(nn.Conv3d(4, 4, 3, padding=1), nn.Softmax(1), nn.Conv3d(4, 4, 1)).eval()
    found = rt.audit(model.to(memory_format=LAST_3D), pictures(2, 4, 5, 6, 6))
    assert [(one.operator, one.module) for one in found.lost] == [("softmax", "1")]
    assert [copy.dst for copy in found.copies] == ["contiguous", "channels_last_3d"]
    assert "permute(0, 2, 3, 4, 1)" in found.lost[0].advice


def test_three_axes() -> None:
    convolution = nn.Conv1d(4, 4, 3)
    assert rt.audit(convolution, torch.randn(2, 4, 9)).clean
    found = rt.audit(convolution, torch.randn(2, 9, 4).transpose(1, 2))
    assert [(one.tensor, one.dst) for one in found.copies] == [("input", "contiguous")]


class Keyed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleDict({"one": nn.Conv2d(8, 8, 1), "two": nn.Conv2d(8, 8, 1)})

    def forward(self, pair: Any, *, extra: Any = None, scale: float = 1.0) -> Any:
        x = self.inner["one"](pair["a"]) + self.inner["two"](pair["b"][0]) * scale
        return {"sum": x, "rest": [x.softmax(1), extra]}


def test_lists_dicts_and_keywords() -> None:
    model = Keyed().to(memory_format=LAST)
    found = rt.audit(model, {"a": pictures(), "b": [pictures()]}, extra=None, scale=2.0)
    assert [one.operator for one in found.lost] == ["softmax"]
    assert set(found.output) == {"sum", "rest"}
    assert [one.operator for one in found.copies] == ["softmax"]
    assert "inner.two" in {one.module for one in found.operators}


def test_functions_are_models() -> None:
    assert [one.operator for one in rt.audit(lambda x: x.cumsum(1), pictures()).lost] == ["cumsum"]
    with pytest.raises(LayoutError, match=r"a model is a torch.nn.Module or a function, not int"):
        rt.audit(3, pictures())
    with pytest.raises(LayoutError, match="makes its parameters in the first call"):
        rt.audit(nn.LazyConv2d(4, 3), pictures())


@pytest.mark.filterwarnings("ignore:.*jit:DeprecationWarning", "ignore:.*jit:FutureWarning")  # 2.13, 2.15
def test_inference_mode_and_scripts() -> None:
    model = Around(lambda x: x.softmax(1)).eval().to(memory_format=LAST)
    with torch.inference_mode():
        found = rt.audit(model, pictures())
    assert [one.operator for one in found.lost] == ["softmax"]
    script = torch.jit.trace(nn.Sequential(nn.Conv2d(8, 8, 1), nn.Softmax(1)), pictures())
    assert any("softmax" in one.operator for one in rt.audit(script, pictures()).lost)


# -------------------------------------------------------------------- the model stays what it is


class Random(nn.Module):
    """Everything that a run changes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.drop = nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.Dropout(0.5)
        self.register_buffer("seen", torch.zeros(1))
        self.register_buffer("last", torch.zeros(1))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Any) -> Any:
        self.seen += 1
        self.last = x.detach().mean().reshape(1)
        with torch.no_grad():
            self.scale.mul_(0.5)
            x.add_(1)
        return self.drop(self.bn(self.conv(x.softmax(1)))) * self.scale


@pytest.mark.parametrize("train", [False, True])
def test_the_model_is_as_it_was_and_its_results_are_its_own(train: bool) -> None:
    torch.manual_seed(1)
    model, x = Random().to(memory_format=LAST), pictures()
    model.bn.eval()
    model.conv.weight.grad = torch.ones_like(model.conv.weight)
    before = {name: one.clone() for name, one in model.state_dict(keep_vars=False).items()}
    given, gradient, state = x.clone(), model.conv.weight.grad, torch.get_rng_state()
    buffers = dict(model.named_buffers())
    found = rt.audit(model, x, train=train, compare=True, warmup=1)
    assert found.times is not None
    assert set(found.times.seconds) >= {"as it is", "contiguous", "channels_last"}
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert all(one is buffers[name] for name, one in model.named_buffers())
    assert torch.equal(x, given)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.conv.weight.grad is gradient
    assert torch.equal(gradient, torch.ones_like(gradient))
    assert model.bn.bias.grad is None
    assert model.training
    assert not model.bn.training
    assert model.conv.weight.is_contiguous(memory_format=LAST)
    assert torch.equal(found.output, model(x))


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.resize_(2, 3),
        lambda x: x.set_(torch.ones(3)),
        lambda x: setattr(x, "data", torch.ones(3)),
        lambda x: x.squeeze_(0),
    ],
)
def test_tensors_that_are_given_other_memory(change: Any) -> None:
    model, x = nn.Conv2d(8, 8, 3).requires_grad_(False), pictures()[:1]
    weight, given = model.weight, x.clone()
    before, place = weight.detach().clone(), weight.data_ptr()

    def forward(y: Any) -> Any:
        with torch.no_grad():
            change(y)
            change(weight)
        return y

    model.forward = forward  # type: ignore[method-assign]
    with torch.no_grad():
        rt.audit(model, x)
    assert torch.equal(x, given)
    assert x.stride() == given.stride()
    assert torch.equal(weight, before)
    assert weight.data_ptr() == place


def test_the_fast_paths_of_transformers_are_those_of_the_model() -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval()
    with torch.no_grad():
        x = torch.randn(3, 5, 16)
        found = rt.audit(model, x)
        assert torch.equal(found.output, model(x))
    assert any("_transformer_encoder_layer_fwd" in one.operator for one in found.operators)


def test_what_a_model_raises_passes_through() -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(8, 8, 3)

        def forward(self, x: Any) -> Any:
            return self.conv(x).softmax(1).relu().to(memory_format=LAST).view(2, -1)

    model = Flat().to(memory_format=LAST)
    with pytest.raises(RuntimeError, match="view size is not compatible") as alone:
        model(pictures())
    with pytest.raises(RuntimeError, match="view size is not compatible") as raised:
        rt.audit(model, pictures())
    assert str(raised.value) == str(alone.value)
    found = raised.value.audit  # type: ignore[attr-defined]
    assert [one.operator for one in found.lost] == ["softmax"]
    assert found.failed.operator == "view"
    assert "reshape copies" in found.failed.advice
    assert "it raised RuntimeError" in str(found)
    assert torch.nn.modules.module._global_forward_hooks == {}


def test_a_training_step_needs_something_to_learn() -> None:
    with pytest.raises(LayoutError, match="nothing that the model returns depends on anything"):
        rt.audit(lambda x: x.relu(), pictures(), train=True)


def test_a_training_step_in_inference_mode() -> None:
    with torch.inference_mode(), pytest.raises(LayoutError, match="no gradients are made in"):
        rt.audit(nn.Conv2d(8, 8, 3), pictures(), train=True)


def test_a_loss_is_a_function() -> None:
    with pytest.raises(LayoutError, match="loss is a function of the model's outputs, not int 3"):
        rt.audit(nn.Conv2d(8, 8, 3), pictures(), train=True, loss=3)  # type: ignore[arg-type]


def test_the_backward_pass_has_modules_and_lines() -> None:
    found = audited(nn.Softmax2d(), train=True)
    (lost,) = [one for one in found.lost if one.at.backward]
    assert lost.module == "work"
    assert "softmax" in lost.operator
    (copy,) = [one for one in found.copies if one.tensor == "gradient"]
    assert (copy.module, copy.operator, copy.cause) == ("before", "convolution_backward", lost)


def test_gradients_with_other_strides_than_their_parameters() -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 16, 1))  # not in channels-last
    found = rt.audit(model, pictures(), train=True)
    (one,) = found.gradients
    assert (one.name, one.strides, one.gradient_strides) == ("1.weight", (8, 1, 1, 1), (8, 1, 8, 8))
    copies = [(copy.at.layer, copy.module) for copy in found.copies if copy.operator == "copy_"]
    assert copies == [("Parameter", "0.weight")]  # autograd brings the other gradient into shape
    assert "grad strides do not match bucket view strides" in " ".join(str(found).split())
    model.to(memory_format=LAST)  # as it is advised
    assert rt.audit(model, pictures(), train=True).gradients == ()


DISTRIBUTED = """
import sys, warnings, torch, torch.distributed
import relayout.torch as rt
torch.distributed.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
x = torch.randn(2, 8, 6, 6).to(memory_format=torch.channels_last)
for last in (False, True):
    model = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.Conv2d(8, 16, 1))
    if last:
        model.to(memory_format=torch.channels_last)
    found = rt.audit(model, x, train=True).gradients
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        wrapped(x).sum().backward()
    said = any("Grad strides do not match" in str(one.message) for one in warned)
    print(bool(found), said, flush=True)
"""


def test_distributed_training_warns_of_what_the_audit_names(tmp_path: Path) -> None:
    if not torch.distributed.is_available():
        pytest.skip("this build of PyTorch has no distributed training")
    words = [sys.executable, "-c", DISTRIBUTED, str(tmp_path / "store")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.splitlines() == ["True True", "False False"], done.stderr


# -------------------------------------------------------------------- reports


def test_reports_are_readable() -> None:
    found = audited(nn.Sequential(nn.Softmax(1), nn.LayerNorm([8, 6, 6])), train=True, compare=True)
    text = str(found)
    assert max(map(len, text.splitlines())) <= 110
    assert "What causes the copies" in text
    assert "median of" in text
    page = found.html()
    assert page.startswith("<!doctype html>")
    assert "http" not in page.replace("http://www.w3.org", "")
    assert "prefers-color-scheme: dark" in page
    assert "<script" not in page
    assert found._repr_html_().startswith("<div class=")
    document = json.loads(json.dumps(found.json()))
    assert len(document["operators"]) == len(found.operators)
    assert document["causes"][0]["seconds"] == found.causes[0].seconds
    assert [one["operator"] for one in document["lost"]] == [one.operator for one in found.lost]


def test_hostile_text_is_escaped() -> None:
    class Evil(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.softmax(1)

    Evil.__name__ = "<b>&"
    page = rt.audit(Evil(), pictures()).html()
    assert "<b>&" not in page
    assert "&lt;b&gt;&amp;" in page


@pytest.mark.parametrize("dims", [(0, 8, 6, 6), (2, 8, 0, 6), (1, 1, 1, 1)])
def test_tensors_without_elements_and_with_one(dims: tuple[int, ...]) -> None:
    found = rt.audit(lambda x: (x.softmax(1) + 1).contiguous(), torch.randn(dims).to(memory_format=LAST))
    assert found.clean
