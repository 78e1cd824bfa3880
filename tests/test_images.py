"""Images on disk: a second process runs what the first has linked, and lowers nothing."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

import relayout as rl
from relayout import environment
from relayout.jit import cache
from relayout.jit.support import supported
from relayout.primitives import Convolution, Eltwise, Reorder, Sequence, Softmax
from relayout.primitives.primitive import Primitive
from relayout.processors import count, limited
from relayout.runtime import tuning

images = importlib.import_module("relayout.primitives.images")
pytestmark = pytest.mark.skipif(not supported(), reason="needs machine code")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A cache of its own, and source code that is known."""
    monkeypatch.setenv("RELAYOUT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "sources", lambda _: "code")
    return tmp_path / "cache"


def network(channels=8):
    """A convolution with constant weights, a function, and a softmax."""
    rng = np.random.default_rng(0)
    seq = Sequence()
    x = seq.input("x", rl.MemoryDesc((2, channels, 9, 7), "f32", "nhwc"))
    weights = rng.standard_normal((6, channels, 3, 3)).astype(np.float32)
    conv = Convolution(x.desc, rl.MemoryDesc(weights.shape, "f32", rl.any), padding=1, post_ops="relu")
    y = seq.add(conv, x, weights)
    y = seq.add(Eltwise(y.desc, "tanh"), y)
    seq.output(seq.add(Softmax(y.desc, 1), y))
    return seq


def given(channels=8):
    return np.random.default_rng(1).standard_normal((2, channels, 9, 7)).astype(np.float32)


@pytest.fixture
def lowered(monkeypatch):
    """The primitives that are lowered from now on."""
    found, own = [], Primitive._compiled
    monkeypatch.setattr(Primitive, "_compiled", lambda self: found.append(self.kind) or own(self))
    return found


def entries(folder, kind="image-"):
    return list(folder.glob(f"{kind}*"))


def test_what_is_linked_again_is_not_lowered(lowered, folder):
    first = network().compile()
    assert lowered
    assert len(entries(folder)) == 1
    lowered.clear()
    second = network().compile()
    assert lowered == []
    image = rl.tensor(given(), "nhwc")
    np.testing.assert_array_equal(first(image).numpy(), second(image).numpy())
    assert second.layers() == first.layers()
    assert second.memory == first.memory
    assert lowered == []
    np.testing.assert_allclose(
        second(rl.tensor(given(), "nhwc")).numpy(), network().reference(given()), rtol=1e-5, atol=1e-6
    )


def test_reorders_are_not_lowered_again(lowered):
    """Their code is named by its text, that of others by what is computed."""

    def made():
        seq = Sequence()
        x = seq.input("x", rl.MemoryDesc((2, 20, 9, 7), "f32", "nchw"))
        y = seq.add(Reorder(x.desc, rl.MemoryDesc(x.desc.dims, "f32", "nChw16c")), x)
        seq.output(seq.add(Eltwise(y.desc, "tanh"), y))
        return seq.compile()

    first = made()
    assert "reorder" in lowered
    lowered.clear()
    second = made()
    assert lowered == []
    image = rl.tensor(given(20), "nchw")
    np.testing.assert_array_equal(first(image).numpy(), second(image).numpy())


def test_other_primitives_have_other_images(lowered, folder):
    network().compile()
    lowered.clear()
    made = network(16).compile()
    assert lowered
    assert made(rl.tensor(given(16), "nhwc")).dims == (2, 6, 9, 7)
    network(16).compile(threads=1)
    assert len(entries(folder)) == (2 if made._schedule.threads == 1 else 3)


def test_weights_are_not_part_of_an_image(lowered):
    network().compile()
    lowered.clear()
    seq = network()
    for number, one in seq.constants.items():
        seq.constants[number] = rl.tensor(np.zeros(one.dims, np.float32))
    made = seq.compile()
    assert lowered == []
    np.testing.assert_allclose(made(rl.tensor(given(), "nhwc")).numpy(), 1 / 6, rtol=1e-6)


def test_a_choice_of_schedules_makes_images_old(lowered):
    network().compile()
    tuning.keep(tuning.Choice("a problem", 1, (("estimate", 1.0),)))
    lowered.clear()
    network().compile()
    assert lowered
    lowered.clear()
    tuning.forget()
    network().compile()
    assert lowered


def test_tuning_links_anew(lowered):
    made = network().compile()
    lowered.clear()
    made.tune()
    assert lowered
    assert made(rl.tensor(given(), "nhwc")).dims == (2, 6, 9, 7)


def test_what_is_tuned_is_linked_for_later_processes(lowered, monkeypatch):
    """The image's name says what kernels depend on under its number of threads, wherever it is asked."""
    thresholds = importlib.import_module("relayout.runtime.thresholds")
    monkeypatch.setattr(thresholds, "threshold", lambda *_, **__: count())
    made = network().compile(threads=1)
    tuning.keep(tuning.Choice("a problem", 1, (("estimate", 1.0),)))
    with limited(2):
        made.tune()
    lowered.clear()
    with limited(2):
        network().compile(threads=1)
    assert lowered == []


def test_an_image_without_its_kernels_is_none(lowered, folder, monkeypatch):
    network().compile()
    compiling = importlib.import_module("relayout.jit.compile")
    monkeypatch.setattr(compiling, "named", lambda *_: None)
    lowered.clear()
    network().compile()
    assert lowered


def test_damaged_images_are_made_again(lowered, folder):
    network().compile()
    (path,) = entries(folder)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    lowered.clear()
    network().compile()
    assert lowered


def test_settings_of_the_environment_are_part_of_the_name(lowered, monkeypatch):
    network().compile()
    for name, value in (
        ("RELAYOUT_EFFORT", "measure" if environment.effort() == "estimate" else "estimate"),
        ("RELAYOUT_SHARING", "1"),
        ("RELAYOUT_STREAMING", "1"),
    ):
        monkeypatch.setenv(name, value)
        lowered.clear()
        network().compile()
        assert lowered, name


def test_nothing_is_kept_where_the_source_code_does_not_tell(monkeypatch, folder, lowered):
    monkeypatch.setattr(cache, "sources", lambda _: None)
    network().compile()
    assert entries(folder) == []
    lowered.clear()
    network().compile()
    assert lowered
