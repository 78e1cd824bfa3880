"""Parts that an earlier process has compiled: taken where nothing has changed, and else never."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import relayout as rl  # noqa: E402
from kept_parts import compiled_anew, kept_by_itself  # noqa: E402, F401
from relayout.graph import kept as runs  # noqa: E402
from relayout.torch.compiling import kept, part  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:::torch", "ignore::DeprecationWarning")


class Small(nn.Module):
    """A convolution whose weights are folded, a view, and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        return self.out(y), y


X = torch.randn(2, 3, 9, 9, generator=torch.Generator().manual_seed(3))


def compiled(model: Any, x: Any = X, **options: Any) -> Any:
    return compiled_anew(model, x, **options)


def agree(found: Any, wanted: Any) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_later_process_translates_nothing(translations: list[Any]) -> None:
    model = Small().eval()
    first, wanted = compiled(model)
    assert len(translations) == 1
    second, found = compiled(model)
    assert len(translations) == 1
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)
        assert one.stride() == other.stride()
    (one,), (other,) = (fast.explain().graphs[0].taken for fast in (first, second))
    assert (one.operators, one.multiply_adds, one.formats) == (
        other.operators,
        other.multiply_adds,
        other.formats,
    )
    assert (one.conversions, one.weights) == (other.conversions, other.weights)
    assert str(second.explain()).startswith("graph 1: 1 part taken")


def test_inputs_in_channels_last(translations: list[Any]) -> None:
    model, x = Small().eval(), X.to(memory_format=torch.channels_last)
    compiled(model)
    for _ in range(2):
        _, found = compiled(model, x)
        agree(found, model(x))
    assert len(translations) == 2  # another format is another part


@pytest.mark.parametrize("what", ["conv.weight", "norm.running_var", "out.bias"])
def test_other_weights_are_another_part(what: str, translations: list[Any]) -> None:
    model = Small().eval()
    compiled(model)
    with torch.no_grad():
        model.state_dict()[what].mul_(1.5)
    _, found = compiled(model)
    agree(found, model(X))
    assert len(translations) == 2
    compiled(model)
    assert len(translations) == 2


def test_nothing_is_written_before_the_first_call_has_ended(
    translations: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one core, a thread that writes would take half of it."""
    seen: list[tuple[int, bool]] = []
    call = part.Part.__call__

    def watched(self: Any, *given: Any) -> Any:
        writing = any(one.name == "relayout keeps a part" for one in threading.enumerate())
        seen.append((len(kept._waiting), writing))
        return call(self, *given)

    monkeypatch.setattr(part.Part, "__call__", watched)
    model = Small().eval()
    compiled(model)
    assert seen == [(1, False)]
    compiled(model)
    assert (len(translations), seen) == (1, [(1, False), (0, False)])


def test_what_a_failing_call_has_compiled_is_kept(
    translations: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = part.Part.__call__
    monkeypatch.setattr(part.Part, "__call__", lambda *given: 1 / 0)
    model = Small().eval()
    with pytest.raises(ZeroDivisionError):
        compiled(model)
    kept.finish()
    monkeypatch.setattr(part.Part, "__call__", call)
    _, found = compiled(model)
    agree(found, model(X))
    assert len(translations) == 1


def test_weights_that_change_afterwards_are_noticed(translations: list[Any]) -> None:
    model = Small().eval()
    compiled(model)
    fast, _ = compiled(model)
    assert len(translations) == 1
    with torch.no_grad():
        model.conv.weight.add_(1)
        agree(fast(X), model(X))
        assert len(translations) == 2
    kept.finish()
    compiled(model)
    assert len(translations) == 3  # what changes is not kept


@pytest.mark.parametrize("options", [{"format": "nhwc"}, {"threads": 1}, {"precision": "bf16"}])
def test_other_options_are_another_part(options: Any, translations: list[Any]) -> None:
    model = Small().eval()
    compiled(model)
    compiled(model, **options)
    several = 1 if options == {"threads": torch.get_num_threads()} else 2
    assert len(translations) == several
    _, found = compiled(model, **options)
    assert len(translations) == several
    for one, other in zip(found, model(X), strict=True):
        torch.testing.assert_close(one, other, rtol=5e-2, atol=5e-2)


def test_other_code_is_another_part(translations: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model = Small().eval()
    compiled(model)
    monkeypatch.setattr(runs, "code", lambda: "other code")
    compiled(model)
    assert len(translations) == 2
    monkeypatch.setattr(runs, "code", lambda: None)  # it can't be told
    compiled(model)
    assert len(translations) == 3


def test_what_is_quick_is_not_kept(
    translations: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kept, "LONG", 1e9)
    for _ in range(2):
        compiled(Small().eval())
    assert len(translations) == 2
    assert not list((tmp_path / "cache").glob("part-*"))


@pytest.mark.parametrize("why", ["limit", "off"])
def test_nothing_is_kept(why: str, translations: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    name, value = ("RELAYOUT_RUNS_LIMIT", "0") if why == "limit" else ("RELAYOUT_CACHE", "off")
    monkeypatch.setenv(name, value)
    model = Small().eval()
    for count in (1, 2):
        _, found = compiled(model)
        agree(found, model(X))
        assert len(translations) == count


def test_damaged_runs_are_made_anew(translations: list[Any], tmp_path: Path) -> None:
    model = Small().eval()
    compiled(model)
    (path,) = (tmp_path / "cache" / "runs").glob("run-*")
    data = bytearray(path.read_bytes())
    data[40:60] = bytes(20)
    path.write_bytes(data)
    for count in (2, 2):
        _, found = compiled(model)
        agree(found, model(X))
        assert len(translations) == count


def test_training_keeps_no_weights(translations: list[Any]) -> None:
    model = Small().train()
    for _ in range(2):
        torch._dynamo.reset()
        fast = rl.torch.compile(model)
        loss = sum(one.sum() for one in fast(X))
        loss.backward()
        kept.finish()
    assert len(translations) >= 2
