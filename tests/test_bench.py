"""Benchmarks: well-formed cases, the rule of the 57 transpositions, peers that do what we do, and a run."""

from __future__ import annotations

import io
import json
import math
import os
import time
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import relayout as rl
from relayout.bench import measure, pieces, plot
from relayout.bench.drawn import drawn
from relayout.bench.measure import COPY, OURS, Result, Spread, measured, spread
from relayout.bench.overhead import Overhead, overheads
from relayout.bench.particulars import particulars
from relayout.bench.peers import all_peers, onednn, pytorch
from relayout.bench.report import Report, Summary, as_json, show
from relayout.bench.suite import GROUPS, Case, cases
from relayout.bench.transposition import MIB, PERMUTATIONS, transpositions
from relayout.cli import application
from relayout.reorder.attributes import Attributes
from relayout.reorder.reference import reorder_by_definition
from relayout.tensor import allocate
from strategies import examples

TINY = Case("small", (1, 16, 8, 8), "nchw", "nhwc", "f32", "f32")
PEERS = {peer.name: peer for peer in all_peers()}


def run(*words, code=0):
    result = CliRunner().invoke(application, ["bench", "reorder", *map(str, words)], prog_name="relayout")
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def alone(monkeypatch):
    """No peer but NumPy is installed, and what calls cost is not measured."""
    monkeypatch.setattr(onednn, "_library", lambda: None)
    monkeypatch.setattr(pytorch, "find_spec", lambda name: None)
    figure = Overhead("a call", "us", spread([1.0]))
    monkeypatch.setattr("relayout.bench.overhead.overheads", lambda rounds: iter([figure]))


class TestSuite:
    @pytest.mark.parametrize("quick", [True, False])
    def test_cases_are_well_formed(self, quick):
        found = cases(quick)
        assert max(Counter(map(str, found)).values()) == 1
        assert {case.group for case in found} == set(GROUPS)
        for case in found:
            assert case.source.tag is not None, case
            assert case.target.tag is not None, case
            assert 0 < case.bytes < 256 * MIB, case
            made = Attributes.make(case.dims, **case.attribute_values())
            taking_part = made.taking_part(case.source.dtype, case.target.dtype).shape
            assert {name for name, _ in taking_part} == {name for name, _ in case.attributes}, case

    def test_every_data_type_and_layout_of_interest_is_measured(self):
        found = cases()
        assert {c.src_dtype for c in found} >= {"f32", "bf16", "f16", "s8", "u8", "s4"}
        formats = {c.dst for c in found}
        assert formats >= {"hwio", "OIhw8i8o", "OIhw16i16o", "OIhw4i16o4i", "BA16a64b4a", "nChw48c"}

    def test_chosen_by_group_type_and_text(self):
        for case in cases(groups=["weights", "images"], dtypes=["s8", "u8"], texts=["3x3", "nchw"]):
            assert case.group in ("weights", "images")
            assert {case.src_dtype, case.dst_dtype} & {"s8", "u8"}
            assert "3x3" in str(case) or "nchw" in str(case)
        with pytest.raises(rl.LayoutError, match="the groups are ResNet-50, "):
            cases(groups=["resnet"])
        with pytest.raises(rl.LayoutError, match=r"none of \d+ cases has 'nothing'"):
            cases(texts=["nothing"])


class TestDrawn:
    def test_cases_are_well_formed_and_all_different(self):
        found = drawn(200, seed=3)
        assert len({str(case) for case in found}) == 200
        for case in found:
            assert 1 << 14 < case.bytes < 1 << 27, case
            made = Attributes.make(case.dims, **case.attribute_values())
            taking_part = made.taking_part(case.source.dtype, case.target.dtype).shape
            assert {name for name, _ in taking_part} == {name for name, _ in case.attributes}, case
        assert {case.src_dtype for case in found} >= {"f32", "bf16", "s8", "u8", "f16"}

    def test_the_seed_says_which(self):
        assert drawn(20, seed=1) == drawn(30, seed=1)[:20]
        assert drawn(20, seed=1) != drawn(20, seed=2)

    def test_they_take_the_place_of_the_suite(self):
        lines = run("--list", "--random", "5", "--seed", "1", "--dtype", "s8").stdout.splitlines()
        wanted = [case for case in drawn(5, seed=1) if "s8" in (case.src_dtype, case.dst_dtype)]
        assert [line.partition("drawn")[2].strip() for line in lines] == [str(case) for case in wanted]


class TestTranspositions:
    def test_what_is_published(self):
        found = list(transpositions())
        assert Counter(len(case.sizes) for case in found) == {2: 3, 3: 9, 4: 15, 5: 15, 6: 15}
        assert len(set(PERMUTATIONS)) == 19
        for case in found:
            assert sorted(case.permutation) == list(range(len(case.sizes)))
            assert all(b != a + 1 for a, b in pairwise(case.permutation)), "two axes could be fused"
            assert 190 * MIB < 4 * math.prod(case.sizes) < 232 * MIB
            assert case.sizes[0] % 16 == case.sizes[case.permutation[0]] % 16 == 0

    def test_the_list_of_others(self, vectors):
        """All of it but the first case, where the list departs from the rule."""
        table = vectors("transposition_57")
        for width, name in ((4, "cases_float32"), (8, "cases_float64")):
            for case, known in list(zip(transpositions(width=width), table[name], strict=True))[1:]:
                assert [list(case.permutation), list(case.sizes)] == [known["perm"], known["size"]]

    def test_formats_mean_the_permutation(self):
        """Axis i of the destination, from the innermost, is axis ``permutation[i]`` of the source."""
        for case in transpositions():
            src, dst = (rl.MemoryDesc(case.dims, "f32", format) for format in case.formats)
            assert src.tag == "abcdef"[: src.rank]
            inner_to_outer = sorted(range(dst.rank), key=lambda axis: dst.strides[axis])
            assert tuple(dst.rank - 1 - axis for axis in inner_to_outer) == case.permutation


@st.composite
def small_cases(draw):
    """Reorders of every kind that peers may be able to do."""
    formats = ("nchw", "nhwc", "nChw4c", "nChw8c", "nChw16c", "nChw12c", "hwcn")
    dims = tuple(draw(st.integers(1, most)) for most in (2, 33, 3, 2))
    src, dst = draw(st.sampled_from(formats)), draw(st.sampled_from(formats))
    kinds = st.sampled_from(("f32", "bf16", "f16", "s8", "u8"))
    one, two = draw(kinds), draw(kinds)
    names = ["src_scale", "dst_scale"]
    names += ["src_zero_point"] * (one in ("s8", "u8")) + ["dst_zero_point"] * (two in ("s8", "u8"))
    axes = st.sampled_from((None, 1))
    attributes = tuple((name, draw(axes)) for name in names if draw(st.booleans()))
    return Case("mine", dims, src, dst, one, two, attributes)


class TestPeers:
    @pytest.mark.parametrize("name", ["PyTorch", "NumPy"])
    @examples(40)
    @given(case=small_cases())
    def test_compute_what_the_definition_says(self, name, case):
        if PEERS[name].available() is None:
            pytest.skip(f"{name} is not installed")
        source, ours, theirs = allocate(case.source), allocate(case.target), allocate(case.target)
        measure._fill(source, case.source_part())
        theirs[:] = 0xA5
        action = PEERS[name].prepare(case, source, theirs, 1)
        if action is None:
            return
        attributes = Attributes.make(case.dims, **case.attribute_values())
        attributes = attributes.taking_part(case.source.dtype, case.target.dtype)
        reorder_by_definition(case.source, source, case.target, ours, attributes)
        action()
        assert measure._difference(case.target, ours, theirs) is None

    @examples(30)
    @given(case=small_cases())
    def test_onednn_moves_the_same_bytes(self, case):
        """Plain moves only: the attributes of some versions depart, see ``relayout.convert``."""
        if PEERS["oneDNN"].available() is None:
            pytest.skip("oneDNN is not installed")
        case = Case("mine", case.dims, case.src, case.dst, case.src_dtype, case.src_dtype)
        source, ours, theirs = allocate(case.source), allocate(case.target), allocate(case.target)
        measure._fill(source, case.source_part())
        theirs[:] = 0xA5
        action = PEERS["oneDNN"].prepare(case, source, theirs, 1)
        assert action is not None
        rl.Reorder(case.source, case.target)(source, ours)
        action()
        assert np.array_equal(ours, theirs)

    def test_what_they_can_not_do_is_left_to_others(self):
        nibbles = Case("mine", (4, 8), "ab", "ba", "s4", "s4")
        for name in ("PyTorch", "NumPy"):
            assert PEERS[name].prepare(nibbles, allocate(nibbles.source), allocate(nibbles.target), 1) is None


class Fake:
    """A peer that does as it is told."""

    def __init__(self, name, action):
        self.name, self.action = name, action

    def available(self):
        return "1"

    def prepare(self, case, source, target, threads):
        return (lambda: self.action(target)) if self.action else None


class TestMeasuring:
    @examples(50)
    @given(values=st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=9))
    def test_spread_is_in_order_and_within(self, values):
        low, middle, high = (spread(values).low, spread(values).median, spread(values).high)
        slack = 1 + 1e-9
        assert min(values) <= low * slack
        assert low <= middle * slack
        assert middle <= high * slack
        assert high <= max(values) * slack

    def test_everybody_is_measured_with_every_number_of_threads(self):
        peers = [Fake("quick", lambda target: None), Fake("unable", None)]
        found = list(measured(TINY, [1, 2], 3, 10.0, peers))
        assert [r.threads for r in found] == [1, 2]
        for r in found:
            assert r.rounds == {COPY: 3, OURS: 3, "quick": 3}
            assert set(r.ratios) == {OURS, "quick"}
            assert set(r.behind) == {"quick"}
            assert all(s.low <= s.median <= s.high for s in (*r.seconds.values(), *r.ratios.values()))

    def test_a_peer_that_computes_something_else_is_found_out(self):
        [r] = measured(TINY, [1], 1, 1.0, [Fake("lazy", lambda target: None)])
        assert "1024 of 1024 elements differ, first at 0" in r.notes["lazy"]
        [r] = measured(TINY, [1], 1, 1.0, [PEERS["NumPy"]])
        assert r.notes == {}

    def test_who_is_slow_drops_out_but_takes_part_once(self):
        [r] = measured(TINY, [1], 4, 0.03, [Fake("slow", lambda target: time.sleep(0.02))])
        assert r.rounds["slow"] == 1
        assert r.rounds[OURS] == r.rounds[COPY] >= 1

    def test_a_copy_copies_everything(self):
        for size, threads in ((0, 1), (4097, 2), (3 * MIB + 5, 1), (3 * MIB + 5, 2), (3 * MIB + 5, 3)):
            source = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
            target = np.zeros(size + 1, np.uint8)
            measure.copier(target.ctypes.data, source.ctypes.data, size, threads)()
            assert np.array_equal(target[:size], source)
            assert target[size] == 0

    def test_calls(self):
        found = list(overheads(1))
        assert len(found) == 8
        assert all(o.spread.median > 0 and o.unit in ("us", "ms") for o in found)


def result(case, ratio, **peers):
    """A result with a ratio of ours, and the ratios of peers."""
    ratios = {OURS: ratio, **peers}
    times = {COPY: Spread(1.0, 1.0, 1.0)} | {name: Spread(v, v, v) for name, v in ratios.items()}
    behind = {name: Spread(v / ratio, 0, 9) for name, v in peers.items()}
    spreads = {name: Spread(v, v, v) for name, v in ratios.items()}
    return Result(case, 1, "test", times, spreads, behind, dict.fromkeys(times, 1))


def shown(report):
    """What is printed of a report."""
    out = io.StringIO()
    show(report, Console(file=out, width=200))
    return out.getvalue()


class TestReport:
    BIG = Case("big", (512, 1024), "ab", "ba", "f32", "f32")
    MIDDLE = Case("middle", (128, 256), "ab", "ba", "f32", "f32")
    SMALL = Case("small", (16, 16), "ab", "ba", "f32", "f32")
    NIBBLES = Case("4-bit", (4096, 4096), "ab", "ba", "s4", "s4")

    def test_summary_counts_what_it_says(self):
        slow = [result(case, 4.0, other=2.0) for case in (self.BIG, self.MIDDLE, self.SMALL, self.NIBBLES)]
        made = Summary.of([*slow, result(self.BIG, 1.0, other=2.0)], 1)
        assert made.cases == 5
        assert made.mean == pytest.approx(4 ** (4 / 5))
        assert made.within == pytest.approx(1 / 5)
        assert made.slow == [str(self.BIG), str(self.MIDDLE)]  # small tensors and 4-bit types are excused
        assert made.counted == 3
        assert made.counted_mean == pytest.approx(4 ** (2 / 3))
        assert made.counted_within == pytest.approx(1 / 3)
        won, ties, of, factor = made.wins["other"]
        assert (won, ties, of) == (1, 0, 3)  # BIG twice, NIBBLES; the others are under 256 KiB
        assert factor == pytest.approx((0.5 * 0.5 * 2.0) ** (1 / 3))

    def test_a_peer_that_is_faster_by_five_percent_is_as_fast(self):
        found = [result(self.BIG, 1.0, other=time) for time in (0.94, 0.95, 1.0, 1.01)]
        assert Summary.of(found, 1).wins["other"][:3] == (1, 2, 4)

    def test_cases_that_others_disturbed_are_not_compared(self):
        quiet = result(self.BIG, 1.0, other=2.0)
        busy = replace(result(self.BIG, 1.0, other=9.0), others=float(os.cpu_count()))
        made = Summary.of([quiet, busy], 1)
        assert (made.cases, made.disturbed) == (1, 1)
        assert made.wins["other"] == (1, 0, 1, pytest.approx(2.0))
        assert "DISTURBED: 1 case left out" in "\n".join(made.lines())

    def test_figures_count_the_same_cases_everywhere(self):
        """Disturbed cases count in none, neither in tables nor in the summary, and are there all the same."""
        busy = replace(result(self.BIG, 9.0, NumPy=1.0), others=float(os.cpu_count()))
        for found in ([busy], [busy, result(self.MIDDLE, 2.0, NumPy=4.0)]):
            report = Report({}, {"NumPy": "2"}, {}, found)
            made = Summary.of(found, 1)
            assert made.cases == len(report.ratios(None, OURS, 1)) == len(found) - 1
            printed = shown(report)
            assert "9.00 *" in printed
            assert ("2.00 (1)" in printed) == ("geometric mean 2.00" in printed) == (len(found) == 2)
            assert ("no case was undisturbed" in printed) == (len(found) == 1)
            mean = json.loads(as_json(report))["summary"][0]["geometric_mean"]
            assert mean == (None if len(found) == 1 else pytest.approx(2.0))

    def test_what_is_missing_is_told(self):
        for planned in (1, 2):
            report = Report({}, {}, {}, [result(self.BIG, 1.0)], planned=planned)
            assert ("INTERRUPTED: 1 of 2 results" in shown(report)) == (planned == 2)
            assert json.loads(as_json(report))["complete"] == (planned == 1)

    def test_picture(self, tmp_path):
        pytest.importorskip("matplotlib")
        found = [result(self.BIG, 1.0, NumPy=2.0), result(self.SMALL, 3.0)]
        report = Report(particulars("numpy"), {"NumPy": "2"}, {}, found)
        plot.draw(report, tmp_path / "picture.svg")
        assert "<svg" in (tmp_path / "picture.svg").read_text()


class TestPieces:
    def test_results_are_read_as_they_were_written(self, tmp_path):
        file = tmp_path / "found.jsonl"
        case = Case("mine", (2, 3), "ab", "ba", "u8", "f32", (("src_scale", 1), ("src_zero_point", None)))
        some = [
            replace(result(case, 2.0, other=3.0), notes={"other": "differs"}, others=0.25),
            result(TINY, 1),
        ]
        for one in some:
            pieces.write(one, file)
        assert list(pieces.read(file).values()) == some

    def test_the_last_result_of_a_case_counts(self, tmp_path):
        file = tmp_path / "found.jsonl"
        for ratio in (2.0, 1.0):
            pieces.write(result(TINY, ratio), file)
        assert pieces.read(file) == {(str(TINY), 1): result(TINY, 1.0)}


class TestCommand:
    def test_a_run_leaves_json(self, alone, tmp_path):
        path = tmp_path / "found.json"
        words = ("--case", str(TINY), "--threads", "1,2", "--rounds", 2, "--seconds", 1, "--json", path)
        shown = run(*words).stdout
        assert "oneDNN: not installed" in shown
        assert "PyTorch: not installed" in shown
        assert f"written to {path}" in shown
        found = json.loads(path.read_text())
        assert found["peers"] == {"oneDNN": None, "PyTorch": None, "NumPy": np.__version__}
        assert found["machine"].keys() >= {"processor", "cores", "python", "numpy", "llvmlite", "relayout"}
        assert found["settings"] == {"quick": False, "threads": [1, 2], "rounds": 2, "seconds": 1.0}
        assert [row["threads"] for row in found["summary"]] == [1, 2]
        assert found["overheads"] == [{"name": "a call", "unit": "us", "median": 1, "low": 1, "high": 1}]
        for row in found["results"]:
            assert (row["case"], row["bytes"]) == (str(TINY), 4096)
            assert set(row["contestants"]) == {COPY, OURS, "NumPy"}
            assert row["contestants"]["NumPy"]["ratio"]["median"] > 0
            assert row["contestants"]["NumPy"]["behind"].keys() == {"median", "low", "high"}
            assert row["contestants"][OURS]["rounds"] == 2

    def test_list_measures_nothing(self, monkeypatch):
        monkeypatch.setattr(measure, "measured", None)
        lines = run("--list", "--quick").stdout.splitlines()
        assert [line.partition(" ")[0] for line in lines[:2]] == ["ResNet-50", "ResNet-50"]
        assert len(lines) == len(cases(quick=True))

    def test_what_is_listed_is_what_would_run(self, alone, monkeypatch):
        asked = []
        monkeypatch.setattr(
            measure, "measured", lambda case, threads, *rest: asked.append((case, threads)) or []
        )
        words = ("--group", "4-bit", "--dtype", "u4", "--case", "f32", "--quick", "--threads", "1,3")
        listed = run("--list", *words)
        assert asked == []
        run(*words)
        assert listed.stdout.splitlines() == [f"{case.group:<14} {case}" for case, _ in asked]
        assert all(threads == [1, 3] for _, threads in asked)
        assert listed.stderr.startswith(f"cases: {len(asked)}; threads: 1 and 3; ")

    def test_what_was_measured_before_an_interruption_is_kept(self, alone, tmp_path, monkeypatch):
        real, path = measure.measured, tmp_path / "found.json"

        def interrupted(case, *rest):
            if case != TINY:
                raise KeyboardInterrupt
            return real(case, *rest)

        monkeypatch.setattr(measure, "measured", interrupted)
        words = ("--group", "small", "--quick", "--threads", 1, "--rounds", 1, "--json", path)
        assert run(*words, code=130).stderr.endswith("relayout: error: interrupted\n")
        found = json.loads(path.read_text())
        assert [row["case"] for row in found["results"]] == [str(TINY)]
        assert not found["complete"]

    def test_nothing_is_left_of_a_run_without_results(self, alone, tmp_path, monkeypatch):
        def interrupted(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(measure, "measured", interrupted)
        kept = tmp_path / "kept.json"
        kept.write_text("{}")
        for path in (tmp_path / "new.json", kept):
            run("--quick", "--group", "small", "--json", path, code=130)
        assert [path.name for path in tmp_path.iterdir()] == ["kept.json"]
        assert kept.read_text() == "{}"

    def test_a_run_goes_on_where_another_one_has_stopped(self, alone, tmp_path):
        """Limits of time end it; what others disturbed is measured again; all is summed up in the end."""
        file, path = tmp_path / "found.jsonl", tmp_path / "found.json"
        words = ("--group", "small", "--quick", "--threads", 1, "--rounds", 1, "--results", file)
        several = cases(quick=True, groups=["small"])
        assert "INTERRUPTED" not in run(*words, "--minutes", 0, "--json", path).stdout  # nothing to tell
        assert not file.exists()
        busy = replace(result(several[0], 1.0), others=float(os.cpu_count()))
        pieces.write(busy, file)
        pieces.write(result(several[1], 3.0), file)
        with file.open("a") as cut:
            cut.write('{"case": "')
        listed = [str(case) for case in several if case != several[1]]
        assert [line.split(" ", 1)[1].strip() for line in run("--list", *words).stdout.splitlines()] == listed
        assert f"INTERRUPTED: 2 of {len(several)} results" in run(*words, "--minutes", 0).stdout
        run(*words, "--json", path)
        found = json.loads(path.read_text())
        assert found["complete"]
        assert [row["case"] for row in found["results"]] == [str(case) for case in several]
        assert found["results"][1]["engine"] == "test"
        assert found["overheads"] == []

    @examples(30)
    @given(count=st.integers(1, 700))
    def test_cases_are_spread_out(self, count):
        order = pieces.spread_out(range(count))
        assert sorted(order) == list(range(count))
        fifth = sorted(order[: max(8, count // 5)])
        assert max((b - a for a, b in pairwise([0, *fifth, count])), default=1) <= max(4, count / 3)

    @pytest.mark.parametrize(
        ("words", "code", "told"),
        [
            ("--minutes nan", 2, "nan is no length of time"),
            ("--results no/such/folder.jsonl", 5, "no/such/folder.jsonl"),
            ("--group resnet", 2, "there is no group 'resnet'"),
            ("--case nothing", 2, "--list prints them"),
            ("--threads 0", 2, "--threads takes numbers from 1 to 256"),
            ("--threads 1,257", 2, "--threads takes numbers from 1 to 256"),
            ("--seconds nan", 2, "nan is no length of time"),
            ("--seconds inf", 2, "inf is no length of time"),
            ("--seconds -1", 2, "-1.0 is not in the range x>0"),
            ("--list --json no/such/folder.json", 5, "no/such/folder.json"),
            ("--dtype f31", 2, "f31"),
            ("--json no/such/folder.json", 5, "no/such/folder.json"),
            ("--plot picture.txt", 2, "a plot is written as .svg"),
            ("--plot picture.svg", 2, "a plot needs matplotlib"),
        ],
    )
    def test_refused_before_anything_is_measured(self, monkeypatch, words, code, told):
        monkeypatch.setattr(measure, "measured", None)
        monkeypatch.setattr(plot, "find_spec", lambda name: None)
        error = run(*words.split(), code=code).stderr
        assert error.startswith("relayout: error: ")
        assert told in error
        assert error.count("\n") == 1
