"""``torch.compile(model, backend="relayout")`` with gradients: losses and gradients of eager PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import relayout as rl  # noqa: E402
from relayout.torch.compiling import program  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:::torch", "ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(program, "WORTH", 0)  # small parts, too
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def largest(several: Any) -> float:
    return max((float(one.abs().max()) for one in several if one is not None and one.numel()), default=0.0)


def near(found: Any, wanted: Any, of: float, tolerance: float) -> None:
    """The same dims, strides and data type; numbers up to a share of the largest gradient."""
    assert (found is None) == (wanted is None)
    if wanted is not None:
        assert (found.shape, found.stride(), found.dtype) == (wanted.shape, wanted.stride(), wanted.dtype)
        torch.testing.assert_close(found, wanted, rtol=0, atol=tolerance * max(of, 1e-30))


def weighed(y: Any) -> Any:
    """A loss in which all elements differ: sums and squares of normalised rows have no gradient."""
    return (y * torch.arange(y.numel()).reshape(y.shape).cos().to(y.dtype)).sum() + y.square().mean()


def trained(
    model: Any,
    *inputs: Any,
    loss: Callable[[Any], Any] = weighed,
    steps: int = 3,
    tolerance: float = 1e-4,
    **options: Any,
) -> Any:
    """The compiled model after some steps of gradient descent, each compared with one of eager PyTorch.

    Every step begins with the parameters of eager PyTorch: what is compared is a step, not how errors grow.
    """
    eager, own = copy.deepcopy(model), copy.deepcopy(model)
    made = rl.torch.compile(own, **options)
    optimizer = torch.optim.SGD([*eager.parameters()] or [torch.zeros(1)], 0.05, momentum=0.9)
    for step in range(steps):
        values, passed = [], []
        for run in (eager, made):
            run.zero_grad()
            torch.manual_seed(step)
            each = [x.detach().clone(memory_format=torch.preserve_format) for x in inputs]
            for x in each:
                x.requires_grad_(x.is_floating_point())
            value = loss(run(*each))
            value.backward()
            values.append(float(value.detach()))
            passed.append([x.grad for x in each])
        assert values[1] == pytest.approx(values[0], rel=1e-4, abs=1e-6)
        wanted = [*passed[0], *(p.grad for p in eager.parameters())]
        found = [*passed[1], *(p.grad for p in own.parameters())]
        for one, other in zip(found, wanted, strict=True):
            near(one, other, largest(wanted), tolerance)
        for one, other in zip(own.buffers(), eager.buffers(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        optimizer.step()
        own.load_state_dict(eager.state_dict())
    return made


def left_in(made: Any) -> set[str]:
    """What PyTorch computes: writes to running statistics, and views that are returned, apart."""
    return set(made.explain().left) - {"aten.copy_.default", "aten.view.default"}


# -- networks -----------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, channels, 3, stride, 1, bias=False), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels)
        self.down = nn.Sequential(
            nn.Conv2d(inputs, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
        )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Any) -> Any:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += self.down(x)
        return self.relu(y)


def resnet() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        Block(16, 16, 1), Block(16, 24, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10),
    )  # fmt: skip


class Squeeze(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, 4, 1), nn.Conv2d(4, channels, 1)

    def forward(self, x: Any) -> Any:
        return x * F.hardsigmoid(self.up(F.relu(self.down(F.adaptive_avg_pool2d(x, 1)))))


def mobilenet() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.Hardswish(),
        nn.Conv2d(8, 8, 3, 1, 1, groups=8, bias=False), nn.BatchNorm2d(8), nn.ReLU6(), Squeeze(8),
        nn.Conv2d(8, 16, 1), nn.SiLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(256, 10), nn.LogSoftmax(1),
    )  # fmt: skip


def perceptron() -> Any:
    return nn.Sequential(
        nn.Linear(20, 32), nn.GELU(), nn.Linear(32, 32), nn.Tanh(), nn.LayerNorm(32), nn.Linear(32, 8),
        nn.Sigmoid(),
    )  # fmt: skip


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(11, 8, 3, padding=1)
        self.up = nn.ConvTranspose2d(19, 4, 3, 2, 1, output_padding=1)

    def forward(self, x: Any) -> Any:
        x = torch.cat([x, F.leaky_relu(self.first(x), 0.1)], 1)
        x = torch.cat([x, F.elu(self.second(x))], 1)
        return self.up(x)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.qkv, self.out = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)
        self.norm2, self.mlp = (
            nn.LayerNorm(32),
            nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)),
        )

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


NETWORKS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "resnet": (resnet, (4, 3, 32, 32)),
    "mobilenet": (mobilenet, (4, 3, 16, 16)),
    "perceptron": (perceptron, (6, 20)),
    "dense": (Dense, (2, 3, 10, 12)),
    "attention": (Attention, (2, 7, 32)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_steps_agree_with_those_of_eager_pytorch(name: str) -> None:
    make, dims = NETWORKS[name]
    made = trained(make(), torch.randn(dims))
    kinds = [one.kind for one in made.explain().graphs]
    assert set(kinds) == {"forward", "backward"}
    assert all(one.taken for one in made.explain().graphs)


@pytest.mark.parametrize("name", ["resnet", "mobilenet", "perceptron", "dense"])
def test_both_passes_are_one_part(name: str) -> None:
    make, dims = NETWORKS[name]
    made = trained(make(), torch.randn(dims), steps=1)
    assert left_in(made) == set()
    assert [len(one.taken) for one in made.explain().graphs] == [1, 1]


def test_models_in_channels_last() -> None:
    model = resnet().to(memory_format=torch.channels_last)
    trained(model, torch.randn(4, 3, 32, 32).contiguous(memory_format=torch.channels_last))


def test_the_loss_in_the_graph() -> None:
    class Learner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.loss = resnet(), nn.CrossEntropyLoss(label_smoothing=0.1, ignore_index=3)

        def forward(self, x: Any, target: Any) -> Any:
            return self.loss(self.model(x), target)

    made = trained(Learner(), torch.randn(4, 3, 32, 32), torch.tensor([1, 3, 0, 9]), loss=lambda y: y)
    assert "aten.nll_loss_forward.default" in made.explain().taken
    assert "aten.nll_loss_backward.default" in made.explain().taken


def test_images_that_are_kept_lie_in_channels_last() -> None:
    model = resnet()
    made = rl.torch.compile(model)
    kept: list[Any] = []

    def pack(x: Any) -> Any:
        kept.append(x)
        return x

    x = torch.randn(4, 3, 32, 32)
    own = {one.data_ptr() for one in (x, *model.parameters())}
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        made(x).square().mean().backward()
    images = [one for one in kept if one.dim() == 4 and one.data_ptr() not in own]
    assert len(images) > 10
    assert all(one.is_contiguous(memory_format=torch.channels_last) for one in images)
    assert not any(one.dtype is torch.int64 and one.dim() == 4 for one in kept)  # positions of maxima


class Around(nn.Module):
    """Between what Relayout takes PyTorch computes with images that are kept, and with views of them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Any) -> Any:
        y = torch.special.bessel_j0(F.relu(self.conv1(x)).detach()) + torch.erfinv(self.conv1(x).tanh() * 0.5)
        return self.conv2(y.reshape(2, 8, -1).view(y.shape)), torch.sinc(self.conv1(y[:, :3])).reshape(2, -1)


@pytest.mark.parametrize("last", [False, True])
def test_strides_of_what_pytorch_computes_in_between(last: bool) -> None:
    x = torch.randn(2, 3, 6, 5)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    made = trained(Around(), x, loss=lambda ys: sum(weighed(y) for y in ys))
    assert "aten.erfinv.default" in made.explain().left


# -- operators ----------------------------------------------------------------------------------------------

LAYERS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, 2, 1), (2, 4, 9)),
    "conv3d": (lambda: nn.Conv3d(2, 4, 2), (2, 2, 4, 5, 6)),
    "grouped": (lambda: nn.Conv2d(8, 12, 3, 1, (2, 1), (2, 1), groups=4), (2, 8, 9, 7)),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2, bias=False), (2, 4, 5, 6)),
    "eval": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).eval(), (2, 3, 6, 6)),
    "batch_norm_1d": (lambda: nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8, affine=False)), (6, 5)),
    "no_statistics": (lambda: nn.BatchNorm2d(3, track_running_stats=False), (4, 3, 5, 5)),
    "group_norm": (lambda: nn.GroupNorm(2, 6), (3, 6, 4, 5)),
    "layer_norm": (lambda: nn.LayerNorm((4, 5)), (3, 2, 4, 5)),
    "layer_norm_plain": (lambda: nn.LayerNorm(5, elementwise_affine=False), (3, 5)),
    "max_pool": (lambda: nn.MaxPool2d(3, 2, 1, ceil_mode=True), (2, 3, 8, 9)),
    "avg_pool": (lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False), (2, 3, 8, 9)),
    "adaptive": (lambda: nn.AdaptiveAvgPool2d(2), (2, 3, 6, 8)),
    "softplus": (nn.Softplus, (4, 5)),
    "mish": (nn.Mish, (4, 5)),
    "gelu_tanh": (lambda: nn.GELU("tanh"), (4, 5)),
    "softmax": (lambda: nn.Softmax(1), (4, 5, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_layers_agree_with_those_of_eager_pytorch(name: str) -> None:
    make, dims = LAYERS[name]
    made = trained(nn.Sequential(make(), nn.Flatten()), torch.randn(dims), steps=2)
    assert left_in(made) == set()


@pytest.mark.parametrize(
    "function", [F.relu, F.relu6, F.hardswish, F.hardsigmoid, F.leaky_relu, F.elu, F.gelu, F.silu, F.hardtanh]
)
def test_functions_where_they_bend(function: Any) -> None:
    x = torch.tensor([-4.0, -3.0, -1.0, -0.0, 0.0, 1.0, 3.0, 6.0, 7.0])
    found = []
    for run in (function, rl.torch.compile(lambda x: function(x))):
        each = x.clone().requires_grad_()
        run(each).backward(torch.arange(1.0, 10.0))
        found.append(each.grad)
    torch.testing.assert_close(found[1], found[0])


def test_equal_maxima_and_nan() -> None:
    x = torch.randint(0, 3, (2, 4, 9, 9)).float()
    x[0, 0, 4, 4] = float("nan")
    found = []
    for run in (F.max_pool2d, rl.torch.compile(F.max_pool2d)):
        each = x.clone().requires_grad_()
        run(each, 3, 2, 1).nan_to_num(5).square().sum().backward()
        found.append(each.grad)
    assert torch.equal(found[0], found[1])


# -- what PyTorch lets one do -------------------------------------------------------------------------------


def test_double_precision_is_pytorchs() -> None:
    made = trained(resnet().double(), torch.randn(4, 3, 32, 32).double(), tolerance=1e-12)
    assert "aten.convolution_backward.default" in made.explain().left


def test_dropout_draws_the_numbers_of_eager_pytorch() -> None:
    model = nn.Sequential(
        nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 16), nn.Dropout(0.2), nn.Linear(16, 4)
    )
    made = trained(model, torch.randn(5, 8))
    assert made.explain().left["aten.native_dropout.default"] == 2


def test_a_graph_that_is_kept() -> None:
    model = resnet()
    made = rl.torch.compile(model)
    loss = made(torch.randn(2, 3, 32, 32)).square().mean()
    loss.backward(retain_graph=True)
    once = [one.grad.clone() for one in model.parameters()]
    loss.backward()
    for one, before in zip(model.parameters(), once, strict=True):
        torch.testing.assert_close(one.grad, 2 * before)


def test_parameters_that_are_not_learned() -> None:
    model = resnet()
    for one in model[0].parameters():
        one.requires_grad_(False)
    made = trained(model, torch.randn(2, 3, 32, 32), steps=2)
    assert all(one.taken for one in made.explain().graphs)


def test_results_that_are_saved_and_returned() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x: Any) -> Any:
            y = torch.tanh(self.conv(x))
            return y, y.mean((2, 3)), y.flatten(1)

    trained(Both(), torch.randn(2, 3, 6, 6), loss=lambda ys: sum(y.square().sum() for y in ys))


def test_constants_among_the_inputs() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)

        def forward(self, x: Any) -> Any:
            return self.second(self.first(x).tanh() * torch.tensor([0.5, 2.0] * 4))

    assert "aten.addmm.default" not in trained(Shifted(), torch.randn(3, 4)).explain().left


def test_gradients_of_gradients_are_refused_or_left_to_pytorch() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def second(run: Any) -> Any:
        (slope,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), x)[0]

    with pytest.raises(RuntimeError, match="double backward"):
        second(rl.torch.compile(model))
    torch._dynamo.reset()
    torch.testing.assert_close(second(rl.torch.compile(model, training=False)), second(model))


def test_batches_that_change() -> None:
    torch.manual_seed(1)
    model = resnet()
    twin = copy.deepcopy(model)
    made = rl.torch.compile(model)
    for count in (2, 4, 3, 4):
        x = torch.randn(count, 3, 32, 32)
        for run in (twin, made):
            run.zero_grad()
            run(x).square().mean().backward()
        wanted = [one.grad for one in twin.parameters()]
        for one, other in zip(model.parameters(), wanted, strict=True):
            near(one.grad, other, largest(wanted), 1e-4)


def test_autocast() -> None:
    model = resnet()
    x = torch.randn(4, 3, 32, 32)
    found = []
    for run in (copy.deepcopy(model), rl.torch.compile(model)):
        with torch.autocast("cpu", torch.bfloat16):
            loss = run(x).float().square().mean()
        loss.backward()
        found.append([one.grad for one in run.parameters()])
    for one, other in zip(*found, strict=True):
        near(one, other, largest(found[0]), 0.05)


def test_what_the_report_says() -> None:
    made = trained(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), torch.randn(2, 3, 8, 8), steps=1)
    text = str(made.explain())
    assert "graph 1: forward, 1 part taken" in text
    assert "graph 2: backward, 1 part taken" in text
    assert "aten.convolution_backward.default" in made.explain().taken


def test_a_step_is_explained() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    report = rl.torch.explain(model, torch.randn(2, 3, 8, 8), backward=True)
    assert [one.kind for one in report.graphs] == ["forward", "backward"]
    assert report.taken["aten.threshold_backward.default"] == 1
    assert all(one.grad is None for one in model.parameters())
