"""``relayout.torch.contiguous`` and ``to`` in compiled graphs: one graph, with the results of PyTorch."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

import relayout as rl  # noqa: E402
import relayout.torch as mine  # noqa: E402
from relayout.torch import compiling, moving  # noqa: E402
from relayout.torch.compiling import program  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:::torch", "ignore::DeprecationWarning")

PLAIN, LAST, LAST_3D = torch.contiguous_format, torch.channels_last, torch.channels_last_3d


class PyTorchs:
    """The same names, PyTorch's own."""

    contiguous = staticmethod(lambda x, memory_format=PLAIN: x.contiguous(memory_format=memory_format))
    to = staticmethod(torch.Tensor.to)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(program, "WORTH", 0)
    monkeypatch.setattr(moving, "RENT", 0)  # kernels do the first call already
    moving.problem.cache_clear()
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    moving.problem.cache_clear()
    torch._dynamo.reset()


def in_3d(f: Any, x: Any, w: Any) -> Any:
    y = f.contiguous(F.conv1d(x, w).transpose(1, 2))
    return y, f.to(y, torch.bfloat16, memory_format=PLAIN) * 2, f.to(y.mT, memory_format=PLAIN).sum(1)


def in_4d(f: Any, x: Any, w: Any) -> Any:
    y = f.contiguous(F.conv2d(x, w), LAST)
    z = f.to(F.relu(y), torch.float16, memory_format=PLAIN)
    return y, f.to(z.float() + 1, memory_format=LAST), F.conv2d(f.contiguous(y), w[:, : y.shape[1]].mT)


def in_5d(f: Any, x: Any, w: Any) -> Any:
    y = f.to(F.conv3d(x, w), memory_format=LAST_3D, copy=True)
    return f.contiguous(y * 2), f.to(y, torch.bfloat16, memory_format=LAST_3D)


def alone(f: Any, x: Any, w: Any) -> Any:
    return (
        f.contiguous(x, LAST),
        f.to(x, torch.float64, memory_format=LAST),
        f.to(x, memory_format=LAST) + w.sum(),
    )


CASES: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...]]] = {
    "3-D": (in_3d, (3, 9), (4, 3, 3)),
    "4-D": (in_4d, (3, 9, 8), (3, 3, 3, 3)),
    "5-D": (in_5d, (2, 5, 6, 4), (4, 2, 2, 2, 2)),
    "alone": (alone, (3, 9, 8), (3, 3, 3, 3)),
}

INDUCTOR = pytest.param(
    "inductor", marks=pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
)


def stepped(run: Any, x: Any, w: Any, learns: bool) -> tuple[list[Any], list[Any]]:
    """Results, and gradients of a sum in which all elements differ."""
    x, w = (one.detach().clone().requires_grad_(learns) for one in (x, w))
    made = list(run(x, w))
    if not learns:
        return made, []
    sums = [(y.double() * torch.arange(y.numel()).reshape(y.shape).cos()).sum() for y in made]
    sum(sums).backward()
    return [y.detach() for y in made], [x.grad, w.grad]


def named(backend: Any) -> str:
    """A back end in the name of a test: the same in every process, which a function's address is not."""
    return backend if isinstance(backend, str) else "relayout"


@pytest.mark.parametrize("learns", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("backend", [compiling.backend, "aot_eager", INDUCTOR], ids=named)
@pytest.mark.parametrize("name", CASES)
def test_graphs_are_whole_and_results_pytorchs(name: str, backend: Any, dynamic: bool, learns: bool) -> None:
    function, dims, weights = CASES[name]
    if backend == "inductor" and (name, dynamic) not in (("4-D", True), ("5-D", False)):
        pytest.skip("inductor takes long, and sees the same operator everywhere")
    made = torch.compile(lambda x, w: function(mine, x, w), backend=backend, dynamic=dynamic, fullgraph=True)
    w = torch.randn(weights)
    for batch in (2, 3, 5) if dynamic else (2,):
        x = torch.randn(batch, *dims)
        found, wanted = (
            stepped(made, x, w, learns),
            stepped(lambda x, w: function(PyTorchs, x, w), x, w, learns),
        )
        for one, other in zip(found[0], wanted[0], strict=True):
            assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
            torch.testing.assert_close(
                one, other, rtol=2e-2 if other.dtype.itemsize == 2 else 1e-4, atol=1e-3
            )
        for one, other in zip(found[1], wanted[1], strict=True):
            assert one.stride() == other.stride()
            torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2 * float(other.abs().max()))


@pytest.mark.parametrize("name", CASES)
def test_relayout_takes_conversions_into_its_graphs(name: str) -> None:
    function, dims, weights = CASES[name]
    made = rl.torch.compile(lambda x, w: function(mine, x, w), fullgraph=True)
    made(torch.randn(2, *dims), torch.randn(weights))
    assert "relayout.convert.default" in made.explain().taken
    assert "relayout.convert.default" not in made.explain().left
    stepped(made, torch.randn(2, *dims), torch.randn(weights), True)
    assert "relayout.convert.default" not in made.explain().left


@pytest.mark.parametrize("given", ["float64", "bfloat16", "float16", "int64", "int32", "uint8", "bool"])
@pytest.mark.parametrize("last", [False, True])
def test_conversions_of_any_type_are_pytorchs(given: str, last: bool) -> None:
    x = (torch.randn(2, 6, 5, 7) * 50).to(getattr(torch, given))
    x = x.contiguous(memory_format=LAST) if last else x

    def conversions(f: Any, x: Any) -> Any:
        return (
            f.contiguous(x, LAST), f.contiguous(x.transpose(1, 2)),
            f.to(x, torch.float32, memory_format=LAST), f.to(x, torch.bfloat16, memory_format=PLAIN),
            f.to(x, torch.int64, memory_format=LAST),
        )  # fmt: skip

    made = rl.torch.compile(lambda x: conversions(mine, x), fullgraph=True)
    for found, wanted in zip(made(x), conversions(PyTorchs, x), strict=True):
        assert (found.dtype, found.stride()) == (wanted.dtype, wanted.stride())
        assert torch.equal(found, wanted)


def test_what_has_nothing_to_do_stays_the_tensor_itself() -> None:
    def function(x: Any) -> Any:
        return mine.contiguous(x, LAST), mine.to(x, torch.float32, memory_format=LAST), x * 2

    x = torch.randn(2, 3, 4, 5).contiguous(memory_format=LAST)
    for one in torch.compile(function, backend="relayout" if _registered() else compiling.backend)(x)[:2]:
        assert one.data_ptr() == x.data_ptr()


def _registered() -> bool:
    return "relayout" in torch._dynamo.list_backends()


@pytest.mark.parametrize("backend", [compiling.backend, "aot_eager"], ids=named)
def test_a_format_of_another_rank_is_refused(backend: Any) -> None:
    made = torch.compile(lambda x: mine.contiguous(x, LAST) + 1, backend=backend)
    with pytest.raises(Exception, match="rank 4"):
        made(torch.randn(2, 3, 4))
