"""``torch.compile(model, backend="relayout")``: the results of eager PyTorch, whatever it is given."""

from __future__ import annotations

import copy
import gc
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import relayout as rl  # noqa: E402
from relayout.graph import inference  # noqa: E402
from relayout.torch import compiling  # noqa: E402
from relayout.torch.compiling import calls, part, partition, program, weights  # noqa: E402
from relayout.torch.compiling.part import order_of  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:::torch", "ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def leaves(made: Any) -> list[Any]:
    return list(torch.utils._pytree.tree_leaves(made))


def agree(found: Any, wanted: Any, tolerance: float = 1e-4) -> None:
    """The same structure, types and strides; numbers up to rounding."""
    assert torch.utils._pytree.tree_structure(found) == torch.utils._pytree.tree_structure(wanted)
    for one, other in zip(leaves(found), leaves(wanted), strict=True):
        assert type(one) is type(other)
        if not isinstance(other, torch.Tensor):
            assert one == other
            continue
        assert (one.dtype, one.shape, one.requires_grad) == (other.dtype, other.shape, other.requires_grad)
        assert one.stride() == other.stride()
        if one.dtype.is_floating_point:
            scale = max(1e-30, float(other.abs().nan_to_num(0, 0, 0).max())) if other.numel() else 1.0
            torch.testing.assert_close(
                one.double(), other.double(), rtol=0, atol=tolerance * scale, equal_nan=True
            )
        else:
            assert torch.equal(one, other)


def compared(model: Any, *inputs: Any, tolerance: float = 1e-4, **named: Any) -> Any:
    """The compiled model, after it was compared with the model itself."""
    made = rl.torch.compile(model)
    with torch.no_grad():
        wanted = model(*copy.deepcopy(inputs), **copy.deepcopy(named))
        for _ in range(2):
            agree(made(*copy.deepcopy(inputs), **copy.deepcopy(named)), wanted, tolerance)
    return made


def image(*dims: int) -> Any:
    return torch.randn(dims or (1, 3, 16, 16))


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = (
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.conv2, self.bn2 = (
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.relu = nn.ReLU(inplace=True)
        for norm in (self.bn1, self.bn2):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)

    def forward(self, x: Any) -> Any:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += x
        return self.relu(y)


def resnet() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.MaxPool2d(3, 2, 1), Block(16), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, 10),
    ).eval()  # fmt: skip


def mobilenet() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.Hardswish(), nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.BatchNorm2d(8),
        nn.ReLU6(), nn.Conv2d(8, 16, 1), nn.Hardsigmoid(), nn.AvgPool2d(2), nn.SiLU(),
    ).eval()  # fmt: skip


class Unet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(8, 8, 2, 2), nn.Conv2d(11, 2, 1)

    def forward(self, x: Any) -> Any:
        y = F.gelu(self.deep(F.relu(self.down(x))))
        y = torch.cat([self.up(y), x], dim=1)
        return F.interpolate(self.out(y), scale_factor=2, mode="bilinear", align_corners=False)


class Attention(nn.Module):
    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)
        self.causal = causal

    def forward(self, x: Any, mask: Any = None) -> Any:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=self.causal)
        return x + self.out(y.transpose(1, 2).flatten(2))


NETWORKS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "resnet": (resnet, (2, 3, 32, 32)),
    "mobilenet": (mobilenet, (1, 3, 17, 19)),
    "unet": (Unet, (1, 3, 16, 16)),
    "attention": (Attention, (2, 7, 32)),
    "causal": (lambda: Attention(True), (2, 7, 32)),
    "encoder": (lambda: nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval(), (2, 7, 32)),
    "encoder, norm first": (
        lambda: nn.TransformerEncoderLayer(
            32, 4, 64, activation="gelu", norm_first=True, batch_first=True
        ).eval(),
        (2, 7, 32),
    ),
    "groups": (
        lambda: nn.Sequential(nn.Conv2d(4, 8, 3), nn.GroupNorm(2, 8), nn.InstanceNorm2d(8)),
        (2, 4, 9, 9),
    ),
    "1d": (lambda: nn.Sequential(nn.Conv1d(3, 8, 5), nn.BatchNorm1d(8), nn.ELU()).eval(), (2, 3, 21)),
    "3d": (lambda: nn.Sequential(nn.Conv3d(2, 4, 3), nn.MaxPool3d(2)), (1, 2, 8, 8, 8)),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("last", [False, True])
def test_networks_agree_with_eager(name: str, last: bool) -> None:
    build, dims = NETWORKS[name]
    x = image(*dims)
    if last and x.dim() == 4:
        x = x.to(memory_format=torch.channels_last)
    model = build().requires_grad_(False)
    made = compared(model, x)
    report = made.explain()
    assert sum(len(one.taken) for one in report.graphs) >= 1


@pytest.mark.parametrize("name", ["resnet", "mobilenet", "attention"])
def test_all_of_a_network_is_one_part(name: str) -> None:
    build, dims = NETWORKS[name]
    report = rl.torch.explain(build(), image(*dims))
    assert [len(one.taken) for one in report.graphs] == [1]
    assert report.left == {}
    assert report.seconds > 0
    assert "1 part taken" in str(report)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("kind", ["causal", "added", "padding", "both", "everything"])
def test_layers_of_encoders_with_masks(kind: str, first: bool) -> None:
    """Without gradients PyTorch calls one operator for a layer; its masks hide, whatever they are made of."""
    causal = torch.triu(torch.ones(7, 7, dtype=torch.bool), 1)
    padding = torch.arange(7) > torch.tensor([[6], [3]])
    masks = {
        "causal": {"src_mask": causal},
        "added": {"src_mask": torch.zeros(7, 7).masked_fill(causal, -float("inf"))},
        "padding": {"src_key_padding_mask": padding},
        "both": {"src_mask": causal, "src_key_padding_mask": padding},
        "everything": {"src_key_padding_mask": padding | torch.tensor([[False], [True]])},
    }[kind]
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=first)
    model, x = layer.eval().requires_grad_(False), image(2, 7, 32)
    expected = model(x, **masks)
    assert bool(expected.isnan().any()) == (kind == "everything")
    compiled = torch.compile(model, backend=(backend := compiling.Backend()))
    torch.testing.assert_close(compiled(x, **masks), expected, equal_nan=True)
    assert backend.report.left == {}


@pytest.mark.parametrize("batch", [2, 3])
def test_attention_repeats_no_weights(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tokens come first within, so that the rows of several images don't lie as one."""
    monkeypatch.setattr(inference, "FOLDED_BYTES", 1 << 12)  # as if the weights were those of ViT-B/16

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(64, 2, batch_first=True)

        def forward(self, x: Any) -> Any:
            return x + self.attention(x, x, x, need_weights=False)[0]

    model, x = Layer().eval().requires_grad_(False), image(batch, 50, 64)
    report = compared(model, x).explain()
    assert [len(one.taken) for one in report.graphs] == [1]
    assert report.left == {}


def test_an_input_in_channels_last_is_read_as_it_is() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
    report = rl.torch.explain(model, image(1, 3, 16, 16).to(memory_format=torch.channels_last))
    assert [part.conversions for graph in report.graphs for part in graph.taken] == [()]


class Outputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x: Any, *, scale: float = 2.0, extra: Any = None, steps: int = 2) -> Any:
        y = self.conv(x)
        for _ in range(steps):
            y = y * scale
        found = {"y": y, "pair": (y.mean(), [y.argmax(dim=1), None, steps]), "mask": y > 0}
        if extra is not None:
            found["extra"] = extra + 1
        return found


def test_structures_keywords_and_what_is_no_tensor() -> None:
    compared(Outputs(), image())
    compared(Outputs(), image(), scale=0.5, extra=torch.arange(3), steps=3)


class Broken(nn.Module):
    """Control flow that depends on data, and an operator of PyTorch's alone."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)

    def forward(self, x: Any) -> Any:
        y = self.one(x)
        y = torch.special.bessel_j0(y)
        if y.sum() > 0:
            y = -y
        return self.two(y)


def test_graph_breaks_and_foreign_operators() -> None:
    for sign in (1, -1):
        compared(Broken(), sign * image())
    report = rl.torch.explain(Broken(), image())
    assert len(report.graphs) == 2
    assert sum(report.breaks.values()) >= 1
    assert "aten.special_bessel_j0.default" in report.left
    assert report.taken["aten.convolution.default"] == 2
    (left,) = [one for graph in report.graphs for one in graph.left if "bessel" in one.operator]
    assert left.reason == "no translation"


def test_what_is_left_says_where_it_stands() -> None:
    class Inner(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.special.bessel_j0(x)

    report = rl.torch.explain(nn.Sequential(nn.Conv2d(3, 4, 1), Inner()), image())
    (left,) = [one for graph in report.graphs for one in graph.left if "bessel" in one.operator]
    assert left.modules == ("1",)


class Written(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x: Any) -> Any:
        self.count += 1
        y = self.conv(x)
        x.add_(y)
        return x[:, 1:], y.view(-1), self.count * 1


def test_inputs_and_buffers_that_are_written() -> None:
    one, other = Written(), Written()
    other.load_state_dict(one.state_dict())
    made = rl.torch.compile(one)
    x = image()
    y = x.clone()
    with torch.no_grad():
        for _ in range(3):
            agree(made(x), other(y))
            agree(x, y)
            agree(one.count, other.count)


def test_views_of_inputs_stay_views() -> None:
    def views(x: Any) -> Any:
        return x, x.transpose(0, 1), x[1:], (x @ x).t()

    made = rl.torch.compile(views)
    x = torch.randn(64, 64)
    agree(made(x), views(x))
    for one in made(x)[:3]:
        assert one.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_results_have_memory_of_their_own() -> None:
    made = rl.torch.compile(nn.Conv2d(3, 4, 3))
    x = image()
    with torch.no_grad():
        first = made(x)
        kept = first.clone()
        made(-x)
    assert torch.equal(first, kept)


def _halves(x: Any) -> Any:
    return F.relu(x @ x).chunk(2, 1)


def _views_of_one(x: Any) -> Any:
    y = F.relu(x @ x)
    return y, y[0], [y.t(), {"flat": y.view(-1)}], x, x[1:]


def _read_inside_too(x: Any) -> Any:
    y = torch.special.bessel_j0(x @ x)
    view = y.view(-1, 32)
    return view @ x[:32], view, y


def _several_results(x: Any) -> Any:
    values, places = (x @ x).max(1)
    return values, places, values[:3]


@pytest.mark.parametrize("function", [_halves, _views_of_one, _read_inside_too, _several_results])
def test_results_that_share_memory(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in eager PyTorch: who writes to one of them changes the others."""

    def shared(made: Any) -> list[list[bool]]:
        places = [one.untyped_storage().data_ptr() for one in leaves(made)]
        return [[one == other for other in places] for one in places]

    monkeypatch.setattr(program, "WORTH", 0)
    made = rl.torch.compile(function)
    x = torch.randn(64, 32) @ torch.randn(32, 64)
    agree(made(x), function(x))
    assert shared(made(x)) == shared(function(x))
    found, wanted = made(x), function(x)
    leaves(found)[-1].zero_(), leaves(wanted)[-1].zero_()
    agree(found, wanted)
    assert "aten.mm.default" in made.explain().taken


CHANNELS_LAST: dict[str, tuple[Callable[[Any], Any], int]] = {
    "roll": (lambda x: torch.roll(x, 1, 2), 4),
    "roll by nothing": (lambda x: torch.roll(x, (3, 0), (2, 1)), 4),
    "roll of several axes": (lambda x: torch.roll(x, (-1, 2), (2, 3)).relu(), 4),
    "roll of all": (lambda x: torch.roll(x, 5), 4),
    "channel_shuffle": (lambda x: F.channel_shuffle(x, 2), 4),
    "channel_shuffle, 3-D": (lambda x: F.channel_shuffle(x, 2), 5),
    "reflect, 3-D": (lambda x: F.pad(x, (1,) * 6, "reflect"), 5),
    "replicate, 3-D": (lambda x: F.pad(x, (1,) * 6, "replicate"), 5),
    "max_unpool": (lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), 4),
}


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("name", CHANNELS_LAST)
def test_strides_that_traces_tell_wrongly(name: str, last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    function, axes = CHANNELS_LAST[name]
    x = torch.randn(2, 8, *(6,) * (axes - 2))
    if last:
        x = x.to(memory_format=torch.channels_last if axes == 4 else torch.channels_last_3d)
    monkeypatch.setattr(program, "WORTH", 0)
    compared(function, x)


@pytest.mark.parametrize("axes", [3, 4, 5])
@pytest.mark.parametrize("training", [False, True])
def test_a_batch_normalisation_of_what_is_in_neither_format(
    axes: int, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its result is contiguous."""
    monkeypatch.setattr(program, "WORTH", 0)
    x = torch.randn(2, 3, *(6, 5, 4)[: axes - 2]).transpose(1, -1).contiguous().transpose(1, -1)
    mean, variance = torch.zeros(3), torch.ones(3)
    if axes > 3:
        x = x.transpose(-1, -2).contiguous().transpose(-1, -2)
    made = compared(lambda x: F.batch_norm(x, mean.clone(), variance.clone(), training=training).relu(), x)
    assert made.explain().taken


def test_a_rolled_batch_of_open_size() -> None:
    made = rl.torch.compile(lambda x: torch.roll(x, 1, 0) @ torch.ones(16, 16), dynamic=True)
    for n in (2, 3, 5):
        x = torch.randn(n, 16)
        agree(made(x), torch.roll(x, 1, 0) @ torch.ones(16, 16))


@pytest.mark.parametrize("kind", ["float64", "bfloat16", "float16"])
def test_data_types(kind: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5)).to(
        getattr(torch, kind)
    )
    tolerance = {"float64": 1e-10, "bfloat16": 3e-2, "float16": 3e-3}[kind]
    compared(model, image(2, 3, 8, 8).to(getattr(torch, kind)), tolerance=tolerance)


def test_promotion_and_integers() -> None:
    def mixed(x: Any, i: Any, b: Any) -> Any:
        y = x @ x
        return y + i, i // 3, i % 3, b & (i > 1), torch.where(b, y, i), i.float() / 3, y.double() + b, ~b

    x, i = torch.randn(32, 32), torch.arange(-512, 512).reshape(32, 32)
    compared(mixed, x, i, i % 2 == 0)


def test_masks_that_hide_everything() -> None:
    mask = torch.rand(2, 1, 7, 7) > 0.5
    mask[0, 0, 3] = False
    compared(Attention(), image(2, 7, 32), mask)
    compared(Attention(), image(2, 7, 32), torch.zeros(7, 7).masked_fill(mask[0, 0], -float("inf")))


def test_what_is_no_number_stays_so_behind_a_mask() -> None:
    mask = torch.ones(7, 7, dtype=torch.bool)
    mask[3], mask[:, 2] = False, False
    for k in (0, 2):
        given = [torch.randn(2, 4, 7, 8) for _ in range(3)]
        given[k][0, 1, 5, 3] = float("nan")
        compared(F.scaled_dot_product_attention, *given, mask)
        compared(F.scaled_dot_product_attention, *given, torch.zeros(7, 7).masked_fill(~mask, -float("inf")))


def test_embeddings_and_an_index_that_names_nothing() -> None:
    model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 8))
    made = compared(model, torch.randint(0, 50, (4, 9)))
    with torch.no_grad(), pytest.raises(IndexError):
        made(torch.full((4, 9), 50))


def test_empty_batches() -> None:
    compared(resnet(), image(0, 3, 32, 32))
    compared(nn.Linear(3, 4), torch.zeros(0, 3))


def test_strided_inputs() -> None:
    model = nn.Conv2d(3, 8, 3)
    wide = image(2, 6, 20, 20)
    for x in (
        wide[:, ::2],
        wide[:, :3, 1:, 2:],
        wide[:1, :1].expand(2, 3, 20, 20),
        wide[:, :3].transpose(2, 3),
    ):
        compared(model, x)
        torch._dynamo.reset()


def test_results_in_channels_last_have_its_strides() -> None:
    model = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
    made = rl.torch.compile(model)
    x = image(2, 3, 9, 9)
    with torch.no_grad():
        assert made(x).stride() == model(x).stride()
        assert made(x).is_contiguous(memory_format=torch.channels_last)


# -- gradients ----------------------------------------


def test_where_gradients_are_wanted_pytorch_does_it_if_told_so() -> None:
    model = resnet()
    made = rl.torch.compile(model, training=False)
    x = image(2, 3, 32, 32)
    y = made(x)
    assert y.requires_grad
    y.sum().backward()
    found = [one.grad.clone() for one in model.parameters()]
    model.zero_grad()
    model(x).sum().backward()
    for one, other in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(one, other.grad)
    assert "gradients are wanted" in str(made.explain())
    with torch.inference_mode():
        agree(made(x), model(x))
    assert any(one.taken for one in made.explain().graphs)


def test_training_in_between() -> None:
    model = resnet()
    made = rl.torch.compile(model)
    x = image(2, 3, 32, 32)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        model.eval()
        with torch.no_grad():
            agree(made(x), model(x))
        model.train()
        optimizer.zero_grad()
        made(x).square().mean().backward()
        optimizer.step()
    model.train()
    twin = copy.deepcopy(model)
    with torch.no_grad():  # statistics of the batch, and those that are kept
        agree(made(x), twin(x))
    for one, other in zip(model.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(one, other)


# -- weights ----------------------------------------


def _by_optimizer(model: Any) -> None:
    with torch.no_grad():
        for one in model.parameters():
            one.mul_(1.5)


def _by_state(model: Any) -> None:
    model.load_state_dict({name: 2 * one for name, one in model.state_dict().items()})


def _by_assignment(model: Any) -> None:
    model.load_state_dict({name: 3 * one for name, one in model.state_dict().items()}, assign=True)


def _by_data(model: Any) -> None:
    for one in model.parameters():
        one.data.mul_(1.5)


def _by_other_data(model: Any) -> None:
    for one in model.parameters():
        one.data = one.data * 1.5


def _by_other_parameter(model: Any) -> None:
    model[0].weight = nn.Parameter(torch.randn_like(model[0].weight))


def _by_statistics(model: Any) -> None:
    model[1].running_mean += 1


@pytest.mark.parametrize(
    "change",
    [_by_optimizer, _by_state, _by_assignment, _by_data, _by_other_data, _by_other_parameter, _by_statistics],
)
def test_weights_that_change(change: Callable[[Any], None]) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval()
    made = rl.torch.compile(model)
    x = image()
    with torch.no_grad():
        before = made(x)
        agree(before, model(x))
    change(model)
    with torch.no_grad():
        agree(made(x), model(x))
        assert not torch.equal(made(x), before)


def test_weights_that_change_all_the_time_are_read_each_time() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    made = rl.torch.compile(model)
    x = torch.randn(5, 16)
    with torch.no_grad():
        for _ in range(calls.HASTY + 3):
            agree(made(x), model(x))
            model[0].weight += 0.1
    assert len(made.explain().graphs) <= calls.HASTY + 2


@pytest.mark.parametrize("name", ["resnet", "attention"])
def test_weights_that_are_not_frozen(name: str) -> None:
    build, dims = NETWORKS[name]
    model = build()
    made = rl.torch.compile(model, freeze=False)
    x = image(*dims)
    with torch.no_grad():
        agree(made(x), model(x))
        for one in model.parameters():
            one.data.flatten()[0] += 1  # nobody could see that
        agree(made(x), model(x))


def test_weights_made_in_inference_mode() -> None:
    with torch.inference_mode():
        model = nn.Conv2d(3, 4, 3)
        made = rl.torch.compile(model)
        x = image()
        agree(made(x), model(x))
        model.weight.mul_(2)
        agree(made(x), model(x))


class Rotated(nn.Module):
    """Positions as turns of pairs, by complex numbers, as language models have them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.register_buffer("turns", torch.polar(torch.ones(9, 8), torch.arange(72.0).reshape(9, 8)))

    def forward(self, x: Any) -> Any:
        pairs = torch.view_as_complex(self.first(x).unflatten(-1, (8, 2)))
        return self.second(torch.view_as_real(pairs * self.turns).flatten(-2))


def test_a_buffer_that_cannot_be_watched_leaves_the_others_packed() -> None:
    model = Rotated()
    made = compared(model, torch.randn(2, 9, 16))
    assert made.explain().taken["aten.addmm.default"] == 2
    assert sum(part.weights for part in made.explain().graphs[0].taken) > 0
    with torch.no_grad():
        x = torch.randn(2, 9, 16)
        for change in (model.turns.conj_physical_, model.second.weight.neg_):
            change()
            agree(made(x), model(x))


def test_a_model_without_memory() -> None:
    made = rl.torch.compile(nn.Conv2d(3, 4, 3, device="meta"))
    with torch.no_grad():
        assert made(torch.empty(1, 3, 8, 8, device="meta")).shape == (1, 4, 6, 6)
    assert {one.reason for graph in made.explain().graphs for one in graph.left} == {"on the device meta"}


def test_what_cannot_be_compiled_is_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A mistake of ours is logged, and costs speed alone."""

    def mistaken(*_: Any) -> Any:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr(part, "translated", mistaken)
    made = compared(nn.Conv2d(3, 4, 3), image())
    (left,) = made.explain().graphs[0].left
    assert left.reason == "ZeroDivisionError while it was compiled: by nothing"
    assert "1 operator left to PyTorch: ZeroDivisionError" in caplog.text


def test_layers_that_share_a_graph() -> None:
    """Dynamo compiles a class once; each layer has weights of its own."""
    layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(12))

    def layer(one: Any, x: Any) -> Any:
        return F.relu(one(x))

    made = rl.torch.compile(layer)
    x = torch.randn(3, 8)
    with torch.no_grad():
        for _ in range(3):
            for one in layers:
                agree(made(one, x), layer(one, x))
    assert len(made.explain().graphs) <= len(layers)


def test_programs_go_with_their_weights() -> None:
    def layer(one: Any, x: Any) -> Any:
        return one(x)

    backend = compiling.Backend()
    found: list[Any] = []
    made = torch.compile(layer, backend=backend)
    original = calls.Calls.__init__

    def noted(self: Any, *given: Any) -> None:
        original(self, *given)
        found.append(self)

    x = torch.randn(3, 8)
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(calls.Calls, "__init__", noted)
        one = nn.Linear(8, 8)
        made(one, x)
        (graph,) = found
        assert len(graph._entries) == 1
        del one
        gc.collect()
        assert len(graph._entries) == 0


def test_samples_are_spread_over_a_weight() -> None:
    for dims in ((), (1,), (7,), (64, 3, 7, 7), (0, 3)):
        data = torch.randn(dims)
        sample = weights._sample(data)
        assert sample.size <= weights.SAMPLES
        assert bool(sample.size) == bool(data.numel())
        assert np.shares_memory(sample, data.numpy()) or not data.numel()


# -- sizes ----------------------------------------


def test_batches_that_change() -> None:
    model = resnet()
    made = rl.torch.compile(model, dynamic=True, kept=3)
    with torch.no_grad():
        for batch in (2, 3, 2, 4, 5, 6, 7, 5, 5, 2, 1, 0):
            x = image(batch, 3, 32, 32)
            agree(made(x), model(x))
    sizes = [one for one in made.explain().graphs if one.taken]
    assert 3 <= len(sizes) <= 8


def test_a_marked_size() -> None:
    model = Attention()
    made = rl.torch.compile(model)
    with torch.no_grad():
        for length in (5, 6, 9):
            x = image(2, length, 32)
            torch._dynamo.mark_dynamic(x, 1)
            agree(made(x), model(x))


def test_other_numbers_of_threads() -> None:
    model, x = nn.Conv2d(3, 8, 3), image()
    made = rl.torch.compile(model)
    before = torch.get_num_threads()
    try:
        with torch.no_grad():
            for count in (1, 2):
                torch.set_num_threads(count)
                agree(made(x), model(x))
    finally:
        torch.set_num_threads(before)
    assert len(made.explain().graphs) == 2


# -- around it ----------------------------------------


def test_copies_and_modes() -> None:
    model = resnet()
    made = rl.torch.compile(model)
    x = image(2, 3, 32, 32)
    with torch.no_grad():
        agree(made(x), model(x))
        other = copy.deepcopy(made)
        for one in other.parameters():
            one.mul_(2)
        agree(other(x), copy.deepcopy(other._orig_mod)(x))
        agree(made(x), model(x))


def test_compiled_within_compiled() -> None:
    inner = torch.compile(nn.Conv2d(3, 8, 3), backend=compiling.backend)
    model = nn.Sequential(inner, nn.ReLU())
    made = rl.torch.compile(model)
    x = image()
    with torch.no_grad():
        agree(made(x), F.relu(inner._orig_mod(x)))


def test_several_threads() -> None:
    model = resnet()
    made = rl.torch.compile(model)
    several = [image(2, 3, 32, 32) for _ in range(4)]
    with torch.no_grad():
        wanted = [model(x) for x in several]
    wrong: list[BaseException] = []

    def work(k: int) -> None:
        try:
            with torch.no_grad():
                for _ in range(20):
                    agree(made(several[k]), wanted[k])
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert wrong == []


def test_random_numbers_are_pytorchs() -> None:
    def noisy(x: Any) -> Any:
        return F.dropout(x @ x, 0.5) + torch.rand_like(x)

    made = rl.torch.compile(noisy)
    x = torch.randn(64, 64)
    found = []
    for call in (made, noisy):
        torch.manual_seed(3)
        found.append(call(x))
    agree(*found)


def test_autocast() -> None:
    model, x = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 8)), torch.randn(4, 32)
    made = rl.torch.compile(model)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        agree(made(x), model(x), 3e-2)


def test_the_entry_point(tmp_path: Path) -> None:
    """The name in pyproject.toml is that of the back end, and dynamo finds it without an import of ours."""
    text = (Path(__file__).parent.parent / "pyproject.toml").read_text()
    assert '[project.entry-points."torch_dynamo_backends"]\nrelayout = "relayout.torch.comp' in text
    point = EntryPoint("relayout", "relayout.torch.compiling.backend:backend", "torch_dynamo_backends")
    assert point.load() is compiling.backend
    installed = tmp_path / "relayout-0.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: relayout\nVersion: 0.0\n")
    (installed / "entry_points.txt").write_text(
        "[torch_dynamo_backends]\nrelayout = relayout.torch.compiling.backend:backend\n"
    )
    code = (
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nimport torch\n"
        "model = torch.nn.Conv2d(3, 4, 3)\nx = torch.ones(1, 3, 8, 8)\n"
        "made = torch.compile(model, backend='relayout', options={'format': 'nhwc'})\n"
        "with torch.inference_mode():\n    assert torch.allclose(made(x), model(x), atol=1e-5)\n"
        "assert 'relayout.torch.compiling' in sys.modules\nprint('found')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "found\n", done.stderr


def test_options_are_checked() -> None:
    with pytest.raises(rl.LayoutError, match="no option 'fromat'; did you mean 'format'"):
        rl.torch.compile(nn.ReLU(), fromat="nhwc")
    with pytest.raises(rl.LayoutError, match="kept is a number"):
        rl.torch.compile(nn.ReLU(), kept=0)
    with pytest.raises(rl.LayoutError, match="freeze is True or False"):
        rl.torch.compile(nn.ReLU(), freeze=1)


# -- its parts ----------------------------------------


@pytest.mark.parametrize(
    ("dims", "strides", "order"),
    [
        ((2, 3, 4, 5), (60, 20, 5, 1), (0, 1, 2, 3)),
        ((2, 3, 4, 5), (60, 1, 15, 3), (0, 2, 3, 1)),
        ((1, 3, 1, 1), (3, 1, 3, 3), (0, 1, 2, 3)),
        ((2, 2), (1, 2), (1, 0)),
        ((2, 2), (2, 2), None),
        ((2, 2), (4, 1), None),
        ((2, 2), (0, 1), None),
        ((), (), ()),
    ],
)
def test_the_order_of_axes_in_memory(dims: Any, strides: Any, order: Any) -> None:
    assert order_of(dims, strides) == order


def test_parts_have_no_way_back_into_them() -> None:
    """For random graphs: what is run in this order finds all that it reads, and no part waits for itself."""
    random = np.random.default_rng(0)
    for _ in range(50):
        graph = torch.fx.Graph()
        nodes = [graph.placeholder("x")]
        for _ in range(30):
            given = random.choice(len(nodes), 2)
            target = torch.ops.aten.add_.Tensor if random.random() < 0.1 else torch.ops.aten.add.Tensor
            nodes.append(graph.call_function(target, tuple(nodes[k] for k in given)))
        taken = {node for node in nodes if random.random() < 0.6 and node.target is torch.ops.aten.add.Tensor}
        groups, steps = partition.grouped(nodes[1:], taken.__contains__)
        assert sorted(node.name for group in groups for node in group) == sorted(node.name for node in taken)
        known, written = {nodes[0]}, []
        for step in steps:
            inside = set(step) if isinstance(step, tuple) else {step}
            for node in step if isinstance(step, tuple) else (step,):
                assert all(one in known or one in inside for one in node.all_input_nodes)
                if node.target is torch.ops.aten.add_.Tensor:
                    written.append(nodes.index(node))
                    assert {nodes.index(one) for one in known} >= set(range(1, nodes.index(node)))
            known |= inside
        assert written == sorted(written)


def test_small_parts_are_left() -> None:
    report = rl.torch.explain(lambda x: (x + 1).relu(), torch.ones(8))
    assert report.taken == {}
    assert report.left == {"aten.add.Tensor": 1, "aten.relu.default": 1}
    many = program.WORTH // 4
    assert rl.torch.explain(lambda x: (x + 1).relu(), torch.ones(many)).left == {}


def test_memory_beside_a_view() -> None:
    """``as_strided`` counts from the beginning of the memory, whichever view of it is given."""

    def function(x: Any) -> Any:
        y = x @ x
        below, part = y[1:], y.split(2)[1]
        return below.as_strided((2, 2), (1, 1), 0), part.as_strided((4, 4), (4, 1), 0) + y

    compared(function, torch.randn(4, 4))


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "int32", "int64"])
def test_floats_that_are_out_of_range_become_integers(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "WORTH", 0)
    dtype = getattr(torch, kind)
    numbers = torch.tensor([1.5, -1.5, 127.6, 128.2, 256.3, -300, 4e4, 3e9, 1e19, float("nan")])
    compared(lambda x: (x.to(dtype), torch.zeros(40, dtype=dtype).copy_(x), x * 2), numbers.repeat(4))
    compared(lambda x: x.to(dtype), torch.tensor([0, 1, -1, 127, 300, -40000]))


def test_memory_is_on_the_cpu_whatever_the_default() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval(), image()
    fast, slices = rl.torch.compile(model), rl.torch.compile(lambda y: F.relu(y @ y.new_ones(8, 8)))
    with torch.no_grad():
        agree(fast(x), model(x))
        with torch.device("meta"):
            agree(fast(x), model(x))
            agree(slices(x[..., ::2]), F.relu(x[..., ::2] @ torch.ones(8, 8, device="cpu")))


def test_rounded_quotients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "WORTH", 0)
    x = torch.tensor([1.0, -1.0, 0.3, 1e10, 7.5, float("inf")]).repeat(8)
    compared(lambda x: (x // 0.1, x % 0.1, x.div(0.1, rounding_mode="floor"), x % -3.0, x * 2), x)
    whole = torch.tensor([-128, 127, -7, 7], dtype=torch.int8).repeat(12)
    compared(lambda x: (x // 3, x // -3, x % 3, x + 1), whole)
