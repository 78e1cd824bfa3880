"""Thresholds: where they come from, where they are kept, what overrules them."""

from __future__ import annotations

import ctypes
import importlib
import subprocess
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from relayout.cli.app import application
from relayout.errors import LayoutError
from relayout.runtime.thresholds import calibrated, shares, streams, threshold
from relayout.targets.machine import Machine, Thresholds, derived, host, machine
from relayout.tensor import aligned
from strategies import examples

compile_ = pytest.importorskip("relayout.jit.compile")
calibration = importlib.import_module("relayout.runtime.calibration")
cache = importlib.import_module("relayout.jit.cache")
thresholds = importlib.import_module("relayout.runtime.thresholds")
threads = importlib.import_module("relayout.runtime.threads")
native = importlib.import_module("relayout.reorder.native")
tuning = importlib.import_module("relayout.runtime.tuning")
problem = importlib.import_module("relayout.kernels.copy.problem")

BOTH = ("streaming", "sharing")
ASKS = {"streaming": streams, "sharing": shares}
needs_code = pytest.mark.skipif(not compile_.available(), reason="this host forbids making machine code")


@pytest.fixture(autouse=True)
def _afresh(monkeypatch, tmp_path):
    """No test knows what another has measured, and the user's choices don't count."""
    monkeypatch.setattr(thresholds, "_known", {})
    monkeypatch.setenv("RELAYOUT_CACHE", str(tmp_path / "kernels"))
    monkeypatch.setenv("RELAYOUT_THREADS", "2")
    monkeypatch.setenv("RELAYOUT_EFFORT", "measure")
    for name in ("RELAYOUT_STREAMING", "RELAYOUT_SHARING", "RELAYOUT_CPU"):
        monkeypatch.delenv(name, raising=False)
    host.cache_clear()
    yield
    host.cache_clear()


@pytest.fixture
def here():
    """This host, with nothing known of it."""
    return host()._replace(thresholds=None)


@pytest.fixture
def invented(monkeypatch):
    """Measuring takes no time and finds that the second size wins; the sizes of what was measured."""
    asked = []

    def figures(what, given):
        asked.append(what)
        tried = given.sizes(what)
        return tuple(calibration.Figure(size, 1.0, 0.5 if k else 2.0) for k, size in enumerate(tried))

    monkeypatch.setattr(calibration, "_streaming", lambda given: figures("streaming", given))
    monkeypatch.setattr(calibration, "_sharing", lambda given: figures("sharing", given))
    monkeypatch.setattr(compile_, "available", lambda: True)
    return asked


def second(what, given):
    return given.sizes(what)[1]


def forget(monkeypatch):
    """As if another process began."""
    monkeypatch.setattr(thresholds, "_known", {})


# -- values that are given ----------------------------------------------------------------------------------


@pytest.mark.parametrize("what", BOTH)
@given(sizes=st.lists(st.integers(0, 1 << 40), min_size=2, max_size=2))
@examples(40)
def test_thresholds_that_are_given_decide(what, sizes):
    limit, size = sizes
    made = Machine("x86_64-unknown-linux-gnu", "x86-64-v3", "", 32, 1, 1, 1, Thresholds(limit, limit))
    assert threshold(what, made) == limit
    assert ASKS[what](made, size) == (size >= limit)


@pytest.mark.parametrize("what", BOTH)
@pytest.mark.parametrize("size", [0, 1, 12345, 1 << 40])
def test_the_environment_overrules_everything(monkeypatch, here, invented, what, size):
    monkeypatch.setenv(f"RELAYOUT_{what.upper()}", str(size))
    for made in (here, machine("x86-64-v3"), here._replace(thresholds=Thresholds(7, 7))):
        asks = partial(ASKS[what], made)
        assert threshold(what, made) == size
        assert asks(size)
        assert size == 0 or not asks(size - 1)
    assert invented == []


@pytest.mark.parametrize("text", ["2M", "-1", "1.5", "²", " "])
def test_what_is_no_number_of_bytes_is_refused(monkeypatch, here, text):
    monkeypatch.setenv("RELAYOUT_STREAMING", text)
    with pytest.raises(LayoutError, match=r"RELAYOUT_STREAMING=.* is no number of bytes"):
        streams(here, 1 << 20)


def test_several_threads_write_through_a_cache_that_holds_both_sides(monkeypatch, here):
    own, others = here._replace(l3=32 << 20), here._replace(l3=480 << 20)
    assert streams(own, 20 << 20)
    assert not streams(own, 20 << 20, 2)
    assert streams(own, 32 << 20, 2)
    assert streams(others, 40 << 20, 2)
    monkeypatch.setenv("RELAYOUT_STREAMING", str(8 << 20))
    assert streams(own, 20 << 20, 2)


@needs_code
def test_a_plan_asks_for_as_many_threads_as_it_has(monkeypatch):
    """What one thread writes best around the caches, several may write best through the last of them."""
    import relayout as rl
    from relayout.reorder import native
    from relayout.runtime import thresholds

    sides = [rl.MemoryDesc((2, 160, 64, 64), "f32", format) for format in ("nchw", "nhwc")]
    monkeypatch.setattr(thresholds, "streams", lambda machine, size, many=1: many == 1)
    assert {many: native.native(*sides, many=many)._plans[0].stream for many in (1, 2)} == {1: True, 2: False}


def test_other_processors_are_guessed(monkeypatch, invented):
    other = machine("x86-64-v3")
    assert other.thresholds == derived(other.l2, other.l3)
    monkeypatch.setenv("RELAYOUT_CPU", "x86-64-v2")
    assert host().thresholds == other.thresholds
    assert threshold("streaming", host()) + threshold("sharing", host()) > 0
    assert invented == []


def test_where_code_is_forbidden_thresholds_are_guessed(monkeypatch, here, invented):
    monkeypatch.setattr(compile_, "available", lambda: False)
    assert Thresholds(threshold("streaming", here), threshold("sharing", here)) == derived(here.l2, here.l3)
    assert invented == []


def test_one_thread_shares_with_nobody(monkeypatch, here, invented):
    monkeypatch.setenv("RELAYOUT_THREADS", "1")
    assert threshold("sharing", here) == derived(here.l2, here.l3).sharing
    assert invented == []


# -- when it is measured, and what is kept ------------------------------------------------------------------


@pytest.mark.parametrize("what", BOTH)
def test_sizes_with_a_plain_answer_need_no_threshold(monkeypatch, here, what):
    monkeypatch.setattr(thresholds, "threshold", None)
    least, most = here.bounds(what)
    asks = partial(ASKS[what], here)
    assert not asks(0)
    assert not asks(least - 1)
    assert asks(most)


@pytest.mark.parametrize("what", BOTH)
def test_what_nobody_has_measured_is_guessed_or_measured(monkeypatch, here, invented, what):
    """Guesses are not kept; answers go by what was measured as soon as it is there."""
    asks = partial(ASKS[what], here, **({"measure": False} if what == "sharing" else {}))
    guess, found = getattr(derived(here.l2, here.l3), what), second(what, here)
    assert threshold(what, here, measure=False) == guess
    assert asks(guess)
    assert not asks(guess - 1)
    assert invented == []
    assert threshold(what, here) == found
    for _ in range(2):
        assert asks(found)
        assert not asks(found - 1)
        forget(monkeypatch)
    assert invented == [what]


@needs_code
def test_first_calls_measure_nothing_and_contests_do(monkeypatch, here, invented):
    """Of a plan whose size is within the bounds of both thresholds."""
    side = max(here.bounds("streaming")[0], here.bounds("sharing")[0])
    sides = [rl.MemoryDesc((side >> 8, 256), "u8", name) for name in ("ab", "ba")]
    plan, source, target = rl.Reorder(*sides), aligned(side), aligned(side)
    for _ in range(tuning.BEGIN):
        plan(source, target)
    assert invented == []
    plan(source, target)
    assert invented == ["sharing"]


@pytest.mark.parametrize("what", BOTH)
def test_the_next_process_reads_what_was_kept(monkeypatch, here, invented, what):
    for _ in range(3):
        forget(monkeypatch)
        assert threshold(what, here) == second(what, here)
    assert invented == [what]


@pytest.mark.parametrize("what", BOTH)
def test_without_a_cache_a_process_measures_once(monkeypatch, here, invented, what):
    monkeypatch.setenv("RELAYOUT_CACHE", "off")
    assert threshold(what, here) == threshold(what, here) == second(what, here)
    assert invented == [what]
    forget(monkeypatch)
    assert threshold(what, here) == second(what, here)
    assert invented == [what, what]


def spoiled_bytes(entry):
    yield b""
    yield entry[:-1]
    yield entry[:40] + b"?" + entry[41:]


@pytest.mark.parametrize("way", range(3))
def test_a_damaged_file_is_measured_again(monkeypatch, here, invented, way):
    assert threshold("streaming", here) == second("streaming", here)
    (path,) = Path(cache.folder()).iterdir()
    path.write_bytes(list(spoiled_bytes(path.read_bytes()))[way])
    forget(monkeypatch)
    assert threshold("streaming", here) == second("streaming", here)
    assert invented == ["streaming", "streaming"]


OTHERS = [b"", b"?", b"-1", b"1", b"%d" % (1 << 50), b"8388608.0", b" 8388608", b"[]", "\u00b2".encode()]


@pytest.mark.parametrize("found", [*OTHERS, None])
def test_what_can_not_be_true_is_measured_again(monkeypatch, here, invented, found):
    """Whole files with a right digest, but of something else; None: of another threshold."""
    assert threshold("streaming", here) == second("streaming", here)
    (path,) = Path(cache.folder()).iterdir()
    text = cache.load(path.name)
    head, number = text.rsplit(b"\n", 1)
    assert int(number) == second("streaming", here)
    cache.save(path.name, text.replace(b"streaming", b"sharing") if found is None else head + b"\n" + found)
    forget(monkeypatch)
    assert threshold("streaming", here) == second("streaming", here)
    assert invented == ["streaming", "streaming"]


def test_each_machine_has_a_file_of_its_own(monkeypatch, here, invented):
    others = [here._replace(**{name: "other"}) for name in ("triple", "cpu", "features")]
    others += [here._replace(**{name: 2 * getattr(here, name)}) for name in ("l1", "l2", "l3")]
    for made in (here, *others):
        assert threshold("streaming", made) == second("streaming", made)
    assert invented == ["streaming"] * 7
    monkeypatch.setenv("RELAYOUT_THREADS", "3")
    assert threshold("streaming", here) == second("streaming", here)
    assert len(list(Path(cache.folder()).iterdir())) == len(invented) == 8


def test_where_threads_never_win_others_are_busy(monkeypatch, here, invented):
    monkeypatch.setattr(calibration, "_sharing", lambda given: (calibration.Figure(1 << 20, 1.0, 1.2),))
    assert threshold("sharing", here) == derived(here.l2, here.l3).sharing
    assert not list(Path(cache.folder()).iterdir())


def test_where_streaming_never_wins_only_the_largest_are_streamed(monkeypatch, here, invented):
    monkeypatch.setattr(calibration, "_streaming", lambda given: ())
    assert threshold("streaming", here) == here.bounds("streaming")[1]


def test_importing_measures_nothing():
    code = "import sys, relayout.jit.compile; print('relayout.runtime.calibration' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# -- what it is read off ------------------------------------------------------------------------------------


times = st.floats(0.01, 100)


@given(st.lists(st.tuples(times, times), max_size=8))
@examples(200)
def test_the_crossover_is_the_first_win_after_the_last_loss(pairs):
    figures = [calibration.Figure(1 << k, *pair) for k, pair in enumerate(pairs)]
    lost = [f.size for f in figures if f.with_it > calibration.LOSES * f.without]
    won = [f.size for f in figures if f.with_it < calibration.WINS * f.without]
    expected = min((size for size in won if size > max(lost, default=0)), default=None)
    assert calibration.crossover(figures) == expected


@given(st.integers(10, 30), st.integers(10, 34), st.booleans())
@examples(100)
def test_bounds_hold_whatever_the_caches(l2, l3, odd):
    given = Machine("", "", "", 64, 1 << 10, (3 if odd else 2) << l2, 1 << l3)
    for what in BOTH:
        least, most = given.bounds(what)
        tried = given.sizes(what)
        assert least == tried[0] < tried[-1] <= most
        assert all(2 * one == two for one, two in pairwise(tried))
        assert getattr(derived(given.l2, given.l3), what) > 0


# -- for real -----------------------------------------------------------------------------------------------


@needs_code
@pytest.mark.parametrize("what", BOTH)
def test_measuring_this_machine(here, what):
    found = calibrated(what, here)
    least, most = here.bounds(what)
    assert least <= found.threshold <= most
    assert [f.size for f in found.figures] == here.sizes(what)[: len(found.figures)]
    assert all(0 < t < 10 for f in found.figures for t in (f.without, f.with_it))
    if what == "streaming":
        assert here.l1 < found.threshold <= 4 * max(4 * here.l2, here.l3)


@needs_code
@pytest.mark.parametrize("name", ["plain", "plain_and_read", "streamed_and_read"])
@pytest.mark.parametrize("parts", [1, 3, 50])
def test_what_is_timed_does_copy(here, name, parts):
    buffers = calibration._Buffers(1 << 14)
    source, target, operands = buffers.of(1 << 13)
    data = bytes(range(256)) * 16
    ctypes.memmove(source, data, len(data))
    for part in range(parts):
        calibration._kernels(here, name)[name](source, target, operands, part, parts)
    assert ctypes.string_at(target, len(data) + 1) == data + b"\1"  # and no more than that


@needs_code
def test_the_command_measures_and_keeps(invented, here):
    result = CliRunner().invoke(application, ["bench", "calibrate"], prog_name="relayout")
    assert result.exit_code == 0, result.output
    for what in BOTH:
        assert f"{what}: from {second(what, here) / 2**20:g} MiB on\n" in result.output
    assert invented == ["streaming", "sharing"]
    assert (threshold("streaming", here), threshold("sharing", here)) == (
        second("streaming", here),
        second("sharing", here),
    )
    assert invented == ["streaming", "sharing"]


@needs_code
def test_reorders_do_the_same_whatever_the_thresholds(monkeypatch):
    src, dst = rl.MemoryDesc((3, 16, 8, 8), "f32", "nchw"), rl.MemoryDesc((3, 16, 8, 8), "f32", "nhwc")
    source = np.arange(3 * 16 * 8 * 8, dtype="f4")
    results = []
    for bytes_ in ("0", str(1 << 40)):
        monkeypatch.setenv("RELAYOUT_STREAMING", bytes_)
        monkeypatch.setenv("RELAYOUT_SHARING", bytes_)
        target = aligned(dst.nbytes)
        native.Native(src, dst, problem.moves(src, dst))(source.ctypes.data, target.ctypes.data)
        results.append(target.view("f4").copy())
    expected = source.reshape(3, 16, 8, 8).transpose(0, 2, 3, 1).ravel()
    assert all(np.array_equal(result, expected) for result in results)
