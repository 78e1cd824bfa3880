"""Attention in compiled graphs with gradients: taken as a whole, with the results of eager PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import relayout as rl  # noqa: E402
from relayout.torch.compiling import support  # noqa: E402
from test_torch_training import _fresh, largest, left_in, near, trained  # noqa: E402, F401

pytestmark = pytest.mark.filterwarnings("ignore:::torch", "ignore::DeprecationWarning")

FORWARD, BACKWARD = (
    "aten._scaled_dot_product_flash_attention_for_cpu.default",
    "relayout.attention_backward.default",
)


class Attention(nn.Module):
    """Self-attention of a transformer; the mask is a buffer."""

    def __init__(self, causal: bool = False, mask: Any = None, scale: float | None = None) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)
        self.causal, self.scale = causal, scale
        self.register_buffer("mask", mask)

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, self.mask, is_causal=self.causal, scale=self.scale)
        return x + self.out(y.transpose(1, 2).flatten(2))


def seen(*dims: int, blind: bool = False) -> Any:
    """A mask of truth values; ``blind``: one query sees nothing."""
    mask = torch.rand(dims, generator=torch.Generator().manual_seed(1)) > 0.4
    mask[..., 0] = True
    if blind:
        mask[..., 3, :] = False
    return mask


MASKS = {
    "none": lambda: Attention(),
    "causal": lambda: Attention(causal=True),
    "scale": lambda: Attention(scale=0.3),
    "seen or not": lambda: Attention(mask=seen(7, 7)),
    "of each sequence": lambda: Attention(mask=seen(2, 1, 7, 7)),
    "of each key": lambda: Attention(mask=seen(2, 1, 1, 7)),
    "added": lambda: Attention(mask=torch.linspace(-2, 2, 49).reshape(7, 7)),
    "one sees nothing": lambda: Attention(mask=seen(7, 7, blind=True)),
}


@pytest.mark.parametrize("name", MASKS)
def test_attention_learns_as_in_eager_pytorch(name: str) -> None:
    made = trained(MASKS[name](), torch.randn(2, 7, 32))
    report = made.explain()
    assert not left_in(made)
    assert (report.taken[FORWARD], report.taken[BACKWARD]) == (1, 1)


def test_neither_results_nor_sums_of_attention_are_kept() -> None:
    model = Attention()
    made = rl.torch.compile(model)
    kept: list[Any] = []

    def pack(x: Any) -> Any:
        kept.append(tuple(x.shape))
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        made(torch.randn(2, 7, 32)).sum().backward()
    assert (2, 4, 7) not in kept
    assert (2, 4, 7, 7) not in kept


@pytest.mark.parametrize("dims", [(2, 4, 5, 9), (1, 1, 1, 6), (3, 2, 9, 9)])
def test_other_numbers_of_keys(dims: tuple[int, ...]) -> None:
    """Queries, keys and values as inputs, each with a gradient; values have other sizes than keys."""
    batch, heads, queries, keys = dims
    given = [torch.randn(batch, heads, n, 16) for n in (queries, keys, keys)]

    class Alone(nn.Module):
        def forward(self, q: Any, k: Any, v: Any) -> Any:
            return F.scaled_dot_product_attention(q, k, v)

    made = trained(Alone(), *given)
    assert made.explain().taken[BACKWARD] == 1


@pytest.mark.parametrize("frozen", [(0,), (1, 2), (2,), (0, 1)])
def test_only_some_of_them_learn(frozen: tuple[int, ...]) -> None:
    given = [torch.randn(2, 4, 7, 16, requires_grad=k not in frozen) for k in range(3)]
    found = []
    for run in (F.scaled_dot_product_attention, rl.torch.compile(F.scaled_dot_product_attention)):
        y = run(*given)
        found.append(torch.autograd.grad(y.sin().sum(), [one for one in given if one.requires_grad]))
    for one, other in zip(found[1], found[0], strict=True):
        near(one, other, largest(found[0]), 1e-4)


def test_dropout_is_pytorchs() -> None:
    class Dropping(nn.Module):
        def forward(self, q: Any, k: Any, v: Any) -> Any:
            return F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)

    trained(Dropping(), *(torch.randn(2, 4, 7, 16) for _ in range(3)))


def test_double_precision_is_pytorchs() -> None:
    made = trained(Attention().double(), torch.randn(2, 7, 32).double(), tolerance=1e-10)
    assert BACKWARD not in made.explain().taken


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits(dtype: str) -> None:
    kind = getattr(torch, dtype)
    given = [torch.randn(2, 4, 33, 16).to(kind).requires_grad_() for _ in range(3)]
    found = []
    for run in (F.scaled_dot_product_attention, rl.torch.compile(F.scaled_dot_product_attention)):
        y = run(*given)
        found.append([y.detach(), *torch.autograd.grad(y.float().sin().sum(), given)])
    for one, other in zip(found[1], found[0], strict=True):
        near(one, other, float(other.abs().max()), 3e-2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("hidden", ["-inf", "least"])
@pytest.mark.parametrize("dims", [(2, 4, 7, 16), (1, 2, 33, 32)])
def test_queries_that_see_nothing(dims: tuple[int, ...], hidden: str, dtype: str) -> None:
    """Zeros where all is minus infinity; where it is the lowest number, what PyTorch's sums in f32 give."""
    kind, n = getattr(torch, dtype), dims[2]
    given = [torch.randn(dims).to(kind) for _ in range(3)]
    least = float("-inf") if hidden == "-inf" else torch.finfo(kind).min
    mask = torch.where(seen(n, n, blind=True), 0.0, least).to(kind)
    with torch.no_grad():
        wanted = F.scaled_dot_product_attention(*given, mask)
        made = rl.torch.compile(F.scaled_dot_product_attention)
        found = made(*given, mask)
    assert FORWARD in made.explain().taken
    torch.testing.assert_close(found, wanted, rtol=3e-2, atol=3e-2 if dtype == "bfloat16" else 4e-3)


def test_long_sequences_are_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores that take more memory than they may."""
    monkeypatch.setattr(support, "SCORES", 2 * 4 * 7 * 7 * 4 - 1)
    made = trained(Attention(), torch.randn(2, 7, 32))
    assert FORWARD in made.explain().left
    assert {BACKWARD, FORWARD}.isdisjoint(made.explain().taken)
    (left,) = [one for graph in made.explain().graphs for one in graph.left if one.operator == FORWARD]
    assert left.reason == "the scores of 7 queries by 7 keys take 0 MiB"


def test_lengths_that_change() -> None:
    model = Attention(causal=True)
    twin = Attention(causal=True)
    twin.load_state_dict(model.state_dict())
    made = rl.torch.compile(model, dynamic=True)
    for length in (5, 8, 6):
        x = torch.randn(2, length, 32)
        for run in (twin, made):
            run.zero_grad()
            run(x).square().mean().backward()
        wanted = [one.grad for one in twin.parameters()]
        for one, other in zip(model.parameters(), wanted, strict=True):
            near(one.grad, other, largest(wanted), 1e-4)
