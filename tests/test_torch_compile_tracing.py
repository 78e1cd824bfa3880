"""Dynamo's graph to ATen's in one pass: AOTAutograd's operators, and not where it would be wrong."""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import relayout as rl  # noqa: E402
from relayout.torch.compiling import Backend, calls, recording  # noqa: E402

backend = sys.modules["relayout.torch.compiling.backend"]  # the package has a function of that name

pytestmark = pytest.mark.filterwarnings("ignore:::torch", "ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """All graphs that are compiled, as they were made."""
    made: list[Any] = []

    class Noted(calls.Calls):
        def __init__(self, module: Any, weights: Any, *more: Any) -> None:
            made.append((module, tuple(weights)))
            super().__init__(module, weights, *more)

    monkeypatch.setattr(backend, "Calls", Noted)
    return made


def by_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let AOTAutograd make all graphs."""
    monkeypatch.setattr(backend, "traced", lambda *_: None)


def operators(module: Any) -> list[str]:
    """What a graph computes, in order; constants and views of them apart."""
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


def ran(model: Callable[..., Any], *inputs: Any) -> Any:
    """What a compiled model returns."""
    torch._dynamo.reset()
    with torch.no_grad():
        return torch.compile(model, backend=Backend())(*copy.deepcopy(inputs))


def agree(found: Any, wanted: Any) -> None:
    """The same tensors up to rounding, with the same strides."""
    for one, other in zip(*map(torch.utils._pytree.tree_leaves, (found, wanted)), strict=True):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: Any) -> Any:
        y = F.relu(self.norm(self.conv1(x)), inplace=True)
        y = self.conv2(y)
        y += x
        return F.relu_(y)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        made = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + self.out(made)


class Windows(nn.Module):
    """A mask that is written window by window, as in Swin: it depends on no input."""

    def forward(self, x: Any) -> Any:
        mask = x.new_zeros((8, 8))
        for k, where in enumerate((slice(0, 4), slice(4, 6), slice(6, None))):
            mask[where, where] = k
        rows = mask.view(2, 4, 2, 4).permute(0, 2, 1, 3).reshape(4, 16)
        apart = rows.unsqueeze(1) - rows.unsqueeze(2)
        apart = apart.masked_fill(apart != 0, -100.0).masked_fill(apart == 0, 0.0)
        return torch.softmax(x.view(4, 16, 1) * x.view(4, 1, 16) + apart, -1)


class Token(nn.Module):
    """Parameters that are expanded, and looked up by indices, as in ViT and Swin."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.table = nn.Parameter(torch.randn(1, 1, 32)), nn.Parameter(torch.randn(5, 32))
        self.register_buffer("places", torch.arange(17) % 5)

    def forward(self, x: Any) -> Any:
        y = torch.cat((self.token.expand(x.shape[0], -1, -1), x), 1)
        return y + self.table[self.places]


class Keyless(nn.Module):
    """A bias whose middle third is zero, as in Swin v2."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    def forward(self, x: Any) -> Any:
        bias = self.qkv.bias.clone()
        bias[32:64].zero_()
        return F.linear(x, self.qkv.weight, bias)


class Last(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.relu(x.to(memory_format=torch.channels_last))


class Shuffle(nn.Module):
    def forward(self, x: Any) -> Any:
        one, other = x.chunk(2, 1)
        return F.channel_shuffle(torch.cat((one, other.roll(1, 2)), 1), 2)


MODELS = {
    "residual": (Residual(), (1, 8, 12, 12)),
    "attention": (Attention(), (2, 16, 32)),
    "token": (Token(), (2, 16, 32)),
    "pools": (nn.Sequential(nn.MaxPool2d(3, 2, 1), nn.AdaptiveAvgPool2d(2), nn.Flatten()), (1, 8, 12, 12)),
    "last": (nn.Sequential(Last(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)), (1, 8, 12, 12)),
    "activations": (
        nn.Sequential(nn.Conv2d(8, 8, 1), nn.Hardswish(True), nn.SiLU(True), nn.GELU(), nn.ELU(inplace=True)),
        (1, 8, 12, 12),
    ),
    "encoder": (nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), (2, 16, 32)),
    "shuffle": (Shuffle(), (1, 8, 12, 12)),
    "groups": (nn.Sequential(nn.GroupNorm(2, 8), nn.Conv2d(8, 8, 3, groups=8), nn.Dropout()), (1, 8, 12, 12)),
    "transposed": (nn.Sequential(nn.ConvTranspose2d(8, 4, 2, 2), nn.Softmax(1)), (1, 8, 12, 12)),
}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_the_graph_of_autograd(
    name: str, inference: bool, graphs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, dims = MODELS[name]
    model = model.eval()
    x = torch.randn(dims)
    with torch.inference_mode(inference):
        agree(ran(model, x), model(x.clone()))
        by_autograd(monkeypatch)
        ran(model, x)
    (one, weights), (other, known) = graphs
    assert operators(one) == operators(other)
    assert sorted(weights) == sorted(known)
    metas = [
        [(tuple(node.meta["val"].shape), node.meta["val"].stride()) for node in module.graph.nodes
         if isinstance(node.meta.get("val"), torch.Tensor)]
        for module in (one, other)
    ]  # fmt: skip
    assert metas[0] == metas[1]


def test_zeros_in_a_bias_are_a_constant(graphs: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Keyless(), torch.randn(2, 16, 32)
    agree(ran(model, x), model(x))
    by_autograd(monkeypatch)
    agree(ran(model, x), model(x))
    (one, _), (other, _) = graphs
    assert {*operators(one)} < {*operators(other)}
    assert len(graphs) == 2


def test_weights_of_a_resize_are_constants(graphs: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = nn.Upsample(scale_factor=2, mode="bilinear"), torch.randn(1, 8, 12, 12)
    agree(ran(model, x), model(x))
    by_autograd(monkeypatch)
    agree(ran(model, x), model(x))
    (one, _), (other, _) = graphs
    assert len(operators(one)) < len(operators(other)) / 2


def test_constants_are_computed(graphs: list[Any]) -> None:
    x = torch.randn(8, 8)
    agree(ran(Windows(), x), Windows()(x))
    ((module, _),) = graphs
    assert not any("scatter" in one or "fill" in one or "copy" in one for one in operators(module))


def test_a_constant_is_read_as_it_is_at_that_moment(graphs: list[Any]) -> None:
    def model(x: Any) -> Any:
        numbers = torch.zeros(4)
        first = x + numbers
        numbers[1:] = 2
        second = x * numbers
        numbers += 1
        return first, second, x - numbers

    x = torch.randn(3, 4)
    agree(ran(model, x), model(x))
    assert len(graphs) == 1


def written_input(x: Any) -> Any:
    x.relu_()
    return x + 1


def returned_input(x: Any) -> Any:
    return x.view(-1), x + 1


def rounded_in_place(x: Any) -> Any:
    return (x * 2).to(torch.bfloat16).add_(x)  # keeps bf16, where the sum of both would be f32


def by_strides(x: Any) -> Any:
    y = x * 2
    y.as_strided((2, 2), (4, 1)).zero_()
    return y


def diagonal(x: Any) -> Any:
    y = x * 2
    y.diagonal().add_(1)
    return y


def constant(x: Any) -> Any:
    return x + 1, torch.ones(3)


def view_of_a_constant(x: Any) -> Any:
    return x + 1, torch.ones(3).expand(x.shape[0], 3)


@pytest.mark.parametrize(
    "model",
    [
        written_input, returned_input, rounded_in_place, by_strides, diagonal, constant, view_of_a_constant,
    ],
)  # fmt: skip
def test_what_is_left_to_autograd(model: Any, caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(4, 4)
    given = x.clone()
    wanted = model(given)
    with caplog.at_level(logging.DEBUG, "relayout.torch.compiling.tracing"):
        agree(ran(model, x), wanted)
    assert "traced by AOTAutograd" in caplog.text


def base_after_view(x: Any) -> Any:
    y = x * 2
    y.view(-1)[3:].mul_(5)
    return y + 1


def view_after_base(x: Any) -> Any:
    y = x * 2
    part = y[1:]
    y.add_(1)
    return part * 3, y


def both_in_turns(x: Any) -> Any:
    y = x * 2
    one, other = y.chunk(2, 1)
    one.add_(1)
    y.mul_(3)
    other.sub_(x[:, :2])
    return y + 1, one * 2, other * 2


def columns_and_rows(x: Any) -> Any:
    y = x * 2
    y.t()[1].fill_(3)
    y.transpose(0, 1)[:, 2].relu_()
    y.unsqueeze(0)[..., 3:].squeeze(2).neg_()
    y.permute(1, 0).unbind(1)[3].copy_(x[0])
    return y


def every_second(x: Any) -> Any:
    y = (x * 2).view(2, 8)
    y[:, 1::2] = x.view(2, 8)[:, ::2]
    y[1] = 7
    return y.view(4, 4) * x


def split_in_three(x: Any) -> Any:
    y = x * 2
    first, second, third = y.split((1, 2, 1))
    second.exp_()
    third.zero_()
    return y - x, first + second[:1]


def all_zero(x: Any) -> Any:
    y = x * 2
    y.zero_()
    return y


def copied(x: Any) -> Any:
    y = x * 2
    y.copy_(x)
    return y


def views_that_share(x: Any) -> Any:
    y = x * 2
    part = y[1:]
    part.mul_(5)
    return y, part


WRITES = (
    base_after_view, view_after_base, both_in_turns, columns_and_rows, every_second, split_in_three, all_zero,
    copied, views_that_share,
)  # fmt: skip


@pytest.mark.parametrize("model", WRITES)
def test_writes_through_views(model: Any, graphs: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, 4)
    given = x.clone()
    wanted = model(given)
    again = []
    for way in (lambda: None, lambda: by_autograd(monkeypatch)):
        way()
        again.append(ran(model, x))
        agree(again[-1], wanted)
    assert len(graphs) == 2
    for one, other in zip(*map(torch.utils._pytree.tree_leaves, again), strict=True):
        assert torch.equal(one, other)


def test_results_of_writes_are_new() -> None:
    for model in (all_zero, copied):
        torch._dynamo.reset()
        fast, x = torch.compile(model, backend=Backend()), torch.randn(4, 4)
        with torch.no_grad():
            first = fast(x)
            first.fill_(9)
            agree(fast(x), model(x))
            assert not bool((x == 9).any())


def test_a_view_of_what_was_written_shares_its_memory() -> None:
    with torch.no_grad():
        y, part = torch.compile(views_that_share, backend=Backend())(torch.randn(4, 4))
    y.fill_(7)
    assert part.unique().tolist() == [7]


def test_inputs_are_written() -> None:
    x = torch.randn(4, 4)
    y = x.clone()
    with torch.no_grad():
        agree(torch.compile(written_input, backend=Backend())(x), written_input(y))
    agree(x, y)


def test_random_numbers_are_those_of_eager_pytorch() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Dropout()).train(), torch.randn(2, 8)
    torch.manual_seed(3)
    with torch.no_grad():
        wanted = model(x)
    torch.manual_seed(3)
    agree(ran(model, x), wanted)


def test_results_that_share_memory_share_it() -> None:
    def model(x: Any) -> Any:
        y = x * 2
        return y, y[1:], y.view(-1)

    with torch.no_grad():
        y, part, flat = torch.compile(model, backend=Backend())(torch.randn(4, 4))
    y.fill_(7)
    assert part.unique().tolist() == flat.unique().tolist() == [7]


def test_results_are_new_each_time() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()).eval(), torch.randn(1, 3, 4, 4)
    fast = rl.torch.compile(model)
    with torch.inference_mode():
        first = fast(x)
        kept = first.clone()
        fast(x + 1)
        agree(first, kept)


def test_autocast_open_sizes_and_subclasses() -> None:
    model, x = nn.Linear(8, 8), torch.randn(4, 8)
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            wanted = model(x)
            agree(torch.compile(model, backend=Backend())(x), wanted)
        torch._dynamo.reset()
        fast = torch.compile(model, backend=Backend(), dynamic=True)
        for n in (2, 3, 5):
            agree(fast(x[:2].repeat(n, 1)), model(x[:2].repeat(n, 1)))


def test_gradients_in_a_graph_without_them() -> None:
    def model(x: Any) -> Any:
        with torch.enable_grad():
            y = (x * weight).sum()
        return y.detach() + 1

    weight, x = torch.ones(4, requires_grad=True), torch.randn(3, 4)
    agree(ran(model, x), model(x).detach())


def test_notes_of_what_is_used(graphs: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    """torchvision's functions begin with one."""

    def model(x: Any) -> Any:
        torch._C._log_api_usage_once("relayout.tests")
        return x * 2

    x = torch.randn(4, 4)
    with caplog.at_level(logging.DEBUG, "relayout.torch.compiling.tracing"):
        agree(ran(model, x), x * 2)
    assert "traced by AOTAutograd" not in caplog.text


def test_operators_of_others_are_called_each_time() -> None:
    """One that is given numbers alone may count, or read a camera: it makes no constant."""
    counted = 0

    @torch.library.custom_op("relayout_test::tick", mutates_args=())
    def tick(step: int) -> torch.Tensor:
        nonlocal counted
        counted += step
        return torch.full((4,), float(counted))

    @tick.register_fake
    def _(step: int) -> torch.Tensor:
        return torch.empty(4)

    fast = torch.compile(lambda x: x + tick(2), backend=Backend())
    with torch.no_grad():
        assert [float(fast(torch.zeros(3, 4))[0, 0]) for _ in range(3)] == [2, 4, 6]


def test_sizes_that_operators_of_others_decide() -> None:
    """The attempt in one pass leaves no size behind that AOTAutograd would look for."""

    @torch.library.custom_op("relayout_test::positive", mutates_args=())
    def positive(x: torch.Tensor) -> torch.Tensor:
        return x[x[:, 0] > 0].clone()

    @positive.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return x.new_empty(torch.library.get_ctx().new_dynamic_size(), x.shape[1])

    def model(x: Any) -> Any:
        return positive(x) @ x

    x = torch.randn(8, 8)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        agree(ran(model, x), model(x))


def test_an_input_that_begins_elsewhere() -> None:
    x = torch.randn(3, 6, 8)[1:, :, 2:]
    model = nn.Linear(6, 4)
    with torch.no_grad():
        agree(torch.compile(model, backend=Backend())(x), model(x))


def facts(node: Any) -> list[Any]:
    """Sizes, strides and data types of what a node returns."""
    value = node.meta.get("val")
    several = value if isinstance(value, (list, tuple)) else [value]
    return [(one.shape, one.stride(), one.dtype) for one in several if one is not None]


NORMALIZED = [(1, 8, 5, 7), (2, 8, 1, 1), (2, 1, 4, 4), (1, 1, 1, 1), (3, 4, 1, 5), (2, 6), (2, 6, 9)]


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("dims", NORMALIZED)
@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
def test_normalizations_are_written_down_as_they_are_taken_apart(
    graphs: list[Any], monkeypatch: pytest.MonkeyPatch, dims: tuple[int, ...], affine: bool, format: Any
) -> None:
    if format is torch.channels_last and len(dims) != 4:
        pytest.skip("images only")
    layer = (nn.BatchNorm2d if len(dims) == 4 else nn.BatchNorm1d)(dims[1], affine=affine).eval()
    x = torch.rand(dims).to(memory_format=format)
    found = []
    for direct in (True, False):
        if not direct:
            monkeypatch.setattr(recording.Recorder, "_normalized", lambda *_: None)
        graphs.clear()
        with torch.inference_mode():
            ran(lambda x: layer(x * 2) + 1, x)
        ((module, _),) = graphs
        found.append(
            [(node.name, str(node.target), str(node.args), facts(node)) for node in module.graph.nodes]
        )
    assert found[0] == found[1]


PLAIN: dict[str, Callable[..., Any]] = {
    "activations": lambda x: F.silu(F.gelu(torch.relu(x))) + F.hardswish(torch.sigmoid(x)),
    "gates": lambda x: F.hardsigmoid(x) * F.relu6(torch.tanh(x)),
    "repeated": lambda x: x * x.mean(-1, keepdim=True) + x[:1],
    "numbers": lambda x: torch.add(x * 2, x, alpha=3) + 1,
    "complex": lambda x: torch.view_as_real(x * 1j),
    "mixed": lambda x: x + x.double() * x.to(torch.int32),
    "layers": lambda x: F.layer_norm(x, x.shape[-1:]) + F.layer_norm(x, x.shape[1:], torch.ones(x.shape[1:])),
    "written": lambda x: (x + 1).relu_().mul_(x).add_(x),
}


@pytest.mark.parametrize(
    ("dims", "format"),
    [
        ((2, 3, 4, 5), torch.contiguous_format),
        ((2, 3, 4, 5), torch.channels_last),
        ((2, 8, 1, 1), torch.channels_last),
        ((1, 1, 5, 1), torch.contiguous_format),
        ((0, 3, 2, 2), torch.contiguous_format),
    ],
)
@pytest.mark.parametrize("name", PLAIN)
def test_what_is_as_its_arguments_are_is_what_pytorch_says(
    graphs: list[Any], monkeypatch: pytest.MonkeyPatch, name: str, dims: tuple[int, ...], format: Any
) -> None:
    x, found = torch.randn(dims).to(memory_format=format), []
    for direct in (True, False):
        if not direct:
            monkeypatch.setattr(recording.Recorder, "_alike", lambda *_: None)
        graphs.clear()
        with torch.inference_mode():
            made, wanted = ran(PLAIN[name], x), PLAIN[name](x.clone())
        torch.testing.assert_close(made, wanted, rtol=1e-4, atol=1e-4)
        found.append((made.stride(), made.dtype))
        found.append(
            [
                [(node.name, str(node.target), str(node.args), facts(node)) for node in module.graph.nodes]
                for module, _ in graphs
            ]
        )
    assert found[:2] == found[2:]
