"""Weights that a part only moves: read where they lie, exchanged by other ones, never mixed up."""

from __future__ import annotations

import ctypes
import gc
import mmap
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import relayout as rl  # noqa: E402
from kept_parts import compiled_anew, kept_by_itself  # noqa: E402, F401
from relayout.errors import LayoutError  # noqa: E402
from relayout.graph import saving  # noqa: E402
from relayout.primitives import storages  # noqa: E402
from relayout.primitives.lent import Array, Loan, lent  # noqa: E402
from relayout.targets import machine as processors  # noqa: E402
from relayout.torch.compiling import kept, part  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:::torch", "ignore::DeprecationWarning")


class Net(nn.Module):
    """Filters, two matrices for a few rows, one for many."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(16, 128, 3)
        self.norm = nn.BatchNorm2d(128) if norm else nn.Identity()
        self.one, self.two = nn.Linear(128, 600), nn.Linear(600, 600)
        self.many = nn.Linear(128, 192)

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.norm(self.conv(x)))
        return self.two(torch.relu(self.one(y.mean((2, 3))))), self.many(
            y.flatten(2).transpose(1, 2).reshape(-1, 128)
        )


X = torch.randn(2, 16, 9, 9, generator=torch.Generator().manual_seed(3))


def compiled(model: Any, x: Any = X, **options: Any) -> Any:
    return compiled_anew(model, x, **options)


def agree(found: Any, wanted: Any) -> None:
    several = zip(found, wanted, strict=True) if isinstance(found, tuple) else [(found, wanted)]
    for one, other in several:
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4 * float(other.detach().abs().max()))


def new(seed: int = 0, norm: bool = False) -> Any:
    torch.manual_seed(seed)
    return Net(norm).eval()


def small_as(model: Any, other: Any) -> Any:
    """A model with the small weights of another one, which are compared by their contents."""
    with torch.no_grad():
        for one, two in zip(model.parameters(), other.parameters(), strict=True):
            if one.ndim < 2:
                one.copy_(two)
    return model


def runs_in(folder: Path) -> list[Path]:
    return list((folder / "cache" / "runs").glob("run-*"))


def test_other_weights_take_the_same_part(translations: list[Any], tmp_path: Path) -> None:
    first = new()
    compiled(first)
    (path,) = runs_in(tmp_path)
    assert path.stat().st_size < 100_000  # 2 MB of weights are not in it
    for seed in (0, 1, 2):
        model = small_as(new(seed), first)
        _, found = compiled(model)
        agree(found, model(X))
        assert len(translations) == 1
    _, found = compiled(model, format="nhwc")
    agree(found, model(X))


def test_the_bits_are_those_of_a_part_that_is_compiled(
    translations: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = new(5)
    compiled(small_as(new(), model))
    _, taken = compiled(model)
    assert len(translations) == 1
    monkeypatch.setenv("RELAYOUT_RUNS_LIMIT", "0")
    _, made = compiled(model)
    assert len(translations) == 2
    for one, other in zip(taken, made, strict=True):
        assert torch.equal(one, other)


def test_a_single_value(translations: list[Any]) -> None:
    model = new()
    compiled(model)
    for weight in (model.conv.weight, model.one.weight, model.many.weight):
        with torch.no_grad():
            weight.view(-1)[17] = 100.0
        _, found = compiled(model)
        agree(found, model(X))
    assert len(translations) == 1


@pytest.mark.parametrize("what", ["norm.running_mean", "norm.running_var", "norm.weight", "conv.weight"])
def test_what_is_folded_is_compared(what: str, translations: list[Any]) -> None:
    model = new(norm=True)
    compiled(model)
    with torch.no_grad():
        model.state_dict()[what].mul_(1.5).add_(0.1)
    _, found = compiled(model)
    agree(found, model(X))
    assert len(translations) == 2
    with torch.no_grad():
        model.many.weight.mul_(2)  # of this one nothing is folded
    _, found = compiled(model)
    agree(found, model(X))
    assert len(translations) == 2


def test_what_could_not_be_folded(translations: list[Any]) -> None:
    """Filters that would overflow are moved, and so have no values: other ones must be right, too."""
    model, plain = new(norm=True), new(norm=True)
    with torch.no_grad():
        model.norm.weight.fill_(1e30)
        plain.norm.weight.fill_(1e30)
        model.conv.weight.fill_(1e10)
    compiled(model, torch.zeros_like(X))
    for x in (X * 1e-3, X):
        _, found = compiled(plain, x)
        agree(found, plain(x))


class Shared(nn.Module):
    """Two layers, with one matrix or with two."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(256, 256), nn.Linear(256, 256)
        if tied:
            self.two.weight = self.one.weight

    def forward(self, x: Any) -> Any:
        return self.two(torch.relu(self.one(x)))


@pytest.mark.parametrize("order", [(True, False), (False, True), (True, True)])
def test_a_matrix_of_two_layers(order: tuple[bool, bool], translations: list[Any]) -> None:
    x = torch.randn(3, 256)
    for k, tied in enumerate(order):
        torch.manual_seed(k)
        model = Shared(tied).eval()
        _, found = compiled(model, x)
        agree(found, model(x))


@pytest.mark.parametrize("rows", [3, 40])
def test_equal_matrices_are_not_taken_for_one(rows: int, translations: list[Any]) -> None:
    """They are equal in the process that keeps the part, and in no other one."""
    x, model = torch.randn(rows, 256), Shared(False).eval()
    with torch.no_grad():
        model.two.weight.copy_(model.one.weight)
        model.two.bias.copy_(model.one.bias)
    _, found = compiled(model, x)
    agree(found, model(x))
    with torch.no_grad():
        model.two.weight.normal_()
    _, found = compiled(model, x)
    agree(found, model(x))
    assert len(translations) == 1


class Views(nn.Module):
    """Matrices that are parts of larger memory, side by side or one over another."""

    def __init__(self, step: int, turned: bool = False) -> None:
        super().__init__()
        whole = torch.randn(700, 256)
        self.turned = turned
        self.register_buffer("one", whole[: 300 if not turned else 256])
        self.register_buffer("two", whole[step : step + 300])

    def forward(self, x: Any) -> Any:
        y = x @ (self.one if self.turned else self.one.t()[:, :256])
        return y @ self.two.t()


@pytest.mark.parametrize("step", [0, 200, 300, 400])
@pytest.mark.parametrize("turned", [False, True])
def test_weights_that_are_views(step: int, turned: bool, translations: list[Any]) -> None:
    x = torch.randn(2, 256)
    models = [Views(step, turned).eval() for _ in range(2)]
    for model in (*models, Views(400, turned).eval(), Views(0, turned).eval()):
        _, found = compiled(model, x)
        agree(found, model(x))


def test_weights_in_other_orders(translations: list[Any]) -> None:
    """Transposed in memory, with channels last, and each with its own values."""
    for seed in range(2):
        model = new(seed)
        model.conv.to(memory_format=torch.channels_last)
        model.many.weight = nn.Parameter(model.many.weight.detach().t().contiguous().t())
        _, found = compiled(model)
        agree(found, model(X))


class Twice(nn.Module):
    """A table that is read by row, and as a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(300, 64)

    def forward(self, x: Any) -> Any:
        return self.table(x).cumsum(1) @ self.table.weight.t()


def test_what_is_read_twice_is_compared(translations: list[Any]) -> None:
    x = torch.arange(40).reshape(2, 20)
    for seed in range(2):
        torch.manual_seed(seed)
        model = Twice().eval()
        _, found = compiled(model, x)
        agree(found, model(x))


SCRIPT = """
import sys, torch, relayout as rl
from relayout.graph import kept as runs
from relayout.torch.compiling import kept, part
runs.code, kept.LONG = lambda: "code", 0.0
seed, expected = int(sys.argv[1]), int(sys.argv[2])
made, original = [], part.translated
part.translated = lambda parts: (made.append(parts), original(parts))[1]
torch.manual_seed(seed)
model = torch.nn.Sequential(torch.nn.Linear(640, 640, bias=False), torch.nn.ReLU(),
                            torch.nn.Linear(640, 200, bias=False)).eval()
x = torch.ones(2, 640)
with torch.no_grad():
    torch.testing.assert_close(rl.torch.compile(model)(x), model(x), rtol=1e-4, atol=1e-5)
kept.finish()
assert len(made) == expected, len(made)
"""


def test_in_other_processes(translations: list[Any]) -> None:
    for seed, expected in ((0, 1), (1, 0)):
        subprocess.run([sys.executable, "-c", SCRIPT, str(seed), str(expected)], check=True)


# -- read where they lie ------------------------------------------------------------------------------------


def test_a_large_matrix_for_few_rows_is_not_copied(
    translations: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[Any] = []
    original = part._part
    monkeypatch.setattr(part, "_part", lambda *given: (parts.append(original(*given)), parts[-1])[1])
    small = processors.host()._replace(l2=1 << 20)  # beside which the matrix is large
    monkeypatch.setattr(processors, "host", lambda: small)
    model = new()
    for count in (1, 2):
        fast, _ = compiled(model)
        assert len(parts) == count
        held = parts[-1].steps._schedule.constants.values()
        places = {one.__array_interface__["data"][0] for one in held}
        assert model.two.weight.data_ptr() in places  # 1.4 MB
        assert model.one.weight.data_ptr() not in places  # small
    with torch.no_grad():
        model.two.weight.data[3, 5] += 50  # PyTorch does not count it
        agree(fast(X), model(X))
        model.two.weight.mul_(0.5)
        model.one.weight.mul_(0.5)
        agree(fast(X), model(X))
        model.two.weight.data = torch.randn_like(model.two.weight)
        agree(fast(X), model(X))


def test_memory_goes_with_its_weight(translations: list[Any]) -> None:
    model = new()
    fast, _ = compiled(model)
    memory = mmap.mmap(-1, model.two.weight.nbytes)
    own = torch.frombuffer(memory, dtype=torch.float32).view(600, 600)
    model.two.weight = nn.Parameter(own, requires_grad=False)
    del own
    with torch.no_grad():
        agree(fast(X), model(X))
        model.two.weight = nn.Parameter(torch.randn(600, 600), requires_grad=False)
        agree(fast(X), model(X))
    kept.finish()
    del fast
    torch._dynamo.reset()
    gc.collect()
    memory.close()  # refused while somebody has memory of it


def test_a_storage_may_be_resized(translations: list[Any]) -> None:
    """PyTorch refuses that for memory which NumPy holds."""
    model = new()
    fast, _ = compiled(model)
    keep = model.two.weight.detach().clone()
    storage = model.two.weight.untyped_storage()
    size = storage.nbytes()
    storage.resize_(0)
    storage.resize_(size)
    with torch.no_grad():
        model.two.weight.copy_(keep)
        agree(fast(X), model(X))


# -- values are not looked at -------------------------------------------------------------------------------


def _resident(memory: mmap.mmap, start: int) -> bool:
    """Whether any page of a map was ever looked at."""
    pages = -(-len(memory) // mmap.PAGESIZE)
    found = (ctypes.c_ubyte * pages)()
    made = ctypes.CDLL(None, use_errno=True).mincore(
        ctypes.c_void_p(start), ctypes.c_size_t(len(memory)), found
    )
    assert made == 0
    return any(found)


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux which pages were read")
@pytest.mark.parametrize("norm", [False, True])
def test_nobody_looks_at_values(norm: bool, translations: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are in memory that was never read, until constants are moved: no choice depends on them."""
    model = new(norm=norm)
    maps: dict[str, tuple[mmap.mmap, int]] = {}
    names = ["one", "two", "many"] if norm else ["conv", "one", "two", "many"]
    for name in names:
        layer = getattr(model, name)
        memory = mmap.mmap(-1, layer.weight.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        own = torch.frombuffer(memory, dtype=torch.float32).view(layer.weight.shape)
        layer.weight = nn.Parameter(own, requires_grad=False)
        maps[name] = memory, own.data_ptr()
    seen: list[dict[str, bool]] = []
    original = storages.moved_constants

    def watched(*given: Any) -> Any:
        seen.append({name: _resident(*one) for name, one in maps.items()})
        return original(*given)

    monkeypatch.setattr(storages, "moved_constants", watched)
    _, found = compiled(model)
    assert seen == [dict.fromkeys(names, False)]
    agree(found, model(X))
    assert all(_resident(*one) for one in maps.values())


# -- what is written ----------------------------------------------------------------------------------------


def test_a_run_without_weights_needs_some(translations: list[Any], tmp_path: Path) -> None:
    compiled(new())
    (path,) = runs_in(tmp_path)
    data = np.frombuffer(path.read_bytes(), np.uint8)[:-32]
    with pytest.raises(LayoutError, match="nobody has lent"):
        saving.loaded(data)
    few = [Array(np.zeros(64, np.uint8), False, True) for _ in range(20)]
    with lent(few), pytest.raises(LayoutError, match="nobody has lent"):
        saving.loaded(data)


def test_places_are_within_their_arrays() -> None:
    data = np.arange(64, dtype=np.uint8)
    made = Loan([Array(data, True, True)])
    given = rl.tensor(data[:32].view("f4").reshape(2, 4))
    moved = made.moved(given, given.desc)
    assert moved is not None
    assert made.place(data[63:]) == (0, 63)
    found = made.tensor(moved)
    assert found is not None
    assert np.array_equal(found.numpy(), given.numpy())
    for array, at in ((1, 0), (-1, 0), (0, -4), (0, 36), (0, 64)):
        assert made.tensor(moved._replace(array=array, at=at)) is None


@pytest.mark.parametrize("left", [0, 4096])
@pytest.mark.parametrize("weight", [True, False])
def test_memory_that_was_freed_is_an_error_and_no_crash(weight: bool, left: int) -> None:
    """As who shards weights frees them between calls."""
    x, layer = torch.randn(3, 256), nn.Linear(256, 256)
    compiled = torch.compile(layer if weight else nn.functional.linear, backend="relayout")
    given = (x,) if weight else (x, layer.weight.detach())
    with torch.no_grad():
        compiled(*given)
        storage = layer.weight.untyped_storage()
        room = storage.nbytes()
        storage.resize_(left)
        with pytest.raises(RuntimeError, match="memory was freed"):
            compiled(*given)
        storage.resize_(room)
        layer.weight.data.fill_(1)
        torch.testing.assert_close(compiled(*given)[:, 0] - compiled(0 * x, *given[1:])[:, 0], x.sum(1))
