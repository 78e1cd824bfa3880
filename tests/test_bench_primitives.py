"""Benchmarks of primitives: the networks' tables, the peak, peers that agree with each other, and a run."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from relayout.bench import peak, plot, primitives
from relayout.bench.measure import OURS, Spread
from relayout.bench.networks import (
    TYPES,
    BackwardData,
    BackwardWeights,
    Conv,
    Forward,
    Product,
    convolutions,
    mobilenet,
    products,
    resnet,
)
from relayout.bench.operands import TOLERANCE, difference, operands, tolerance
from relayout.bench.ours import FORMATS, Ours
from relayout.bench.peers.dnnl import Refused
from relayout.bench.peers.primitives import all_peers
from relayout.bench.peers.primitives.contestant import Computation
from relayout.bench.primitives import NETWORKS, PEAK, QUICK, Result, Task, measured, tasks
from relayout.bench.primitives_report import Report, as_json
from relayout.bench.zoo.quantising import saturates
from relayout.cli import application
from relayout.ir.dots import INSTRUCTIONS
from relayout.jit.compile import _target, assemble, available
from relayout.kernels.conv.amx import KINDS
from relayout.targets.machine import host, llvm, machine
from strategies import examples

RESIDUAL = {"ResNet-50": {}, "ResNeXt-101": {"depths": (3, 4, 23, 3), "groups": 32, "width": 128}}


class TestNetworks:
    """The tables of the papers give the numbers of the papers, to the last parameter."""

    @pytest.mark.parametrize(
        ("network", "inputs", "macs", "parameters"),
        [
            ("ResNet-50", 2048, 4.09, 25_557_032),
            ("ResNeXt-101", 2048, 7.97, 44_177_704),
            ("MobileNetV2", 1280, 0.30, 3_504_872),
        ],
    )
    def test_convolutional(self, network, inputs, macs, parameters):
        classifier = Product("classifier", 1, inputs, 1000)
        layers = [*convolutions(network), classifier]
        assert sum(x.count * x.flops for x in layers) / 2e9 == pytest.approx(macs, abs=0.005)
        assert sum(x.count * x.parameters for x in layers) == parameters

    def test_transformer(self):
        layers = products()
        assert sum(x.count * x.flops for x in layers) / 2e9 == pytest.approx(17.56, abs=0.005)
        tokens, norms = 768 + 197 * 768, 25 * 2 * 768  # the class, positions; layer normalisations
        assert sum(x.count * x.parameters for x in layers) + tokens + norms == 86_567_656

    @pytest.mark.parametrize("name", RESIDUAL)
    def test_what_a_block_writes_the_next_one_reads(self, name):
        network = resnet(2, **RESIDUAL[name])
        dims = (2, network.stem.oc, network.stem.oh // 2, network.stem.ow // 2)
        for block in network.blocks:
            assert block.reduce.src_dims == dims
            assert block.middle.src_dims == block.reduce.dst_dims
            assert block.expand.src_dims == block.middle.dst_dims
            if block.shortcut is not None:
                assert (block.shortcut.src_dims, block.shortcut.dst_dims) == (dims, block.expand.dst_dims)
            else:
                assert block.expand.dst_dims == dims
            dims = block.expand.dst_dims
        assert network.classifier.k == dims[1]

    def test_a_layer_of_mobilenet_reads_what_the_one_before_writes(self):
        layers = [layer for layer in mobilenet(2) if isinstance(layer, Conv)]
        for before, after in pairwise(layers):
            assert after.src_dims == before.dst_dims

    @pytest.mark.parametrize("network", ["ResNet-50", "ResNeXt-101", "MobileNetV2"])
    def test_a_batch_is_that_many_pictures(self, network):
        for one, eight in zip(convolutions(network, 1), convolutions(network, 8), strict=True):
            assert (eight.flops, eight.parameters) == (8 * one.flops, one.parameters)

    def test_whole(self):
        assert Forward(1).flops / 2e9 == pytest.approx(4.09, abs=0.005)
        with pytest.raises(rl.LayoutError, match="there are ResNet-50, ResNeXt-101, MobileNetV2"):
            convolutions("AlexNet")


class TestTasks:
    def test_lines_are_well_formed(self):
        found = tasks()
        assert len(set(map(str, found))) == len(found)
        assert {task.network for task in found} == set(NETWORKS)
        gradients = {task.network for task in tasks(networks=["data", "weights"])}
        assert len(gradients) == 6
        assert {name.rpartition(" ")[2] for name in gradients} == {"data", "weights"}
        assert {task.batch for task in found} == {1, 8, 16, 64}

    def test_a_quick_run_has_every_name(self):
        assert {task.work.name for task in tasks(quick=True)} == set(QUICK)

    def test_chosen(self):
        for task in tasks(networks=["ResNet-50"], batches=[2], texts=["middle", "conv1"]):
            assert task.group == "ResNet-50, batch 2"
            assert task.work.batch == 2
            assert "middle" in str(task) or "conv1" in str(task)
        with pytest.raises(rl.LayoutError, match="the networks are ResNet-50, "):
            tasks(networks=["resnet"])
        with pytest.raises(rl.LayoutError, match=r"none of \d+ layers has 'nothing' in it"):
            tasks(texts=["nothing"])

    @pytest.mark.parametrize("kind", TYPES)
    def test_data_types(self, kind):
        found = tasks(texts=["stage1.1.", "attention"], batches=[1], dtype=kind)
        assert {task.dtype for task in found} == {kind}
        if kind != "f32":
            assert {type(task.work) for task in found} == {Conv, Product}
            assert all(kind in task.group and f"--dt={kind}" in str(task) for task in found)
            assert len(set(map(str, found))) == len(found)


class TestPeak:
    @pytest.mark.parametrize(
        ("cpu", "triple"),
        [
            *((f"x86-64-v{level}", "x86_64-unknown-linux-gnu") for level in (2, 3, 4)),
            ("generic", "aarch64-unknown-linux-gnu"),
        ],
    )
    def test_calls_no_library(self, cpu, triple):
        target = machine(cpu, triple)
        assert b"fma" not in assemble(peak.ir(target), target)  # as a symbol's name

    @pytest.mark.parametrize("instruction", peak.INSTRUCTIONS)
    def test_is_of_its_instruction(self, instruction):
        others = {"vpdpbssd": "arrowlake", **dict.fromkeys(KINDS, "sapphirerapids")}
        arm = instruction in INSTRUCTIONS and INSTRUCTIONS[instruction].arm
        triple = f"{'aarch64' if arm else 'x86_64'}-unknown-linux-gnu"
        target = machine("neoverse-v1" if arm else others.get(instruction, "znver4"), triple)
        code = _target(target, 2).emit_assembly(llvm().parse_assembly(peak.ir(target, instruction)))
        chains = 4 if instruction in KINDS else peak.chains(target)
        assert code.count({"fma": "vfmadd"}.get(instruction, instruction)) == chains
        assert not re.search(r"zmm\d+, -?\d*\(%rsp\)", code)

    def test_does_what_it_counts(self, monkeypatch):
        """Sums of all chains approach 1, so the total is their number; a share does the same as all."""
        if not available():
            pytest.skip("this host forbids machine code")
        kept = []
        monkeypatch.setattr(peak, "aligned", lambda size: kept.append(np.zeros(size, np.uint8)) or kept[0])
        for threads in (1, 2):
            kept.clear()
            work = peak.yardstick(threads)
            work.run()
            totals = kept[0].view(np.float32).reshape(-1, peak.STEP // 4)
            chains = peak.chains(host())
            lanes = work.flops // (2 * chains * peak.TURNS * len(totals))
            assert totals[:, :lanes] == pytest.approx(chains, rel=1e-3)
        assert peak.peak(1, rounds=2).median > 0


@st.composite
def small_layers(draw):
    """Convolutions and products of all kinds, small enough to be computed in no time."""
    if draw(st.booleans()):
        m, k, n = (draw(st.integers(1, 33)) for _ in range(3))
        return Product("mine", m, k, n, weights=draw(st.sampled_from(["any", "ab", "ba"])))
    groups = draw(st.sampled_from([1, 1, 2, 5]))
    inner, outer = (groups * draw(st.integers(1, most)) for most in (9, 17))
    size, filters = draw(st.integers(3, 9)), draw(st.integers(1, 3))
    stride, padding = draw(st.integers(1, 2)), draw(st.integers(0, filters - 1))
    kind = draw(st.sampled_from([Conv, Conv, BackwardData, BackwardWeights]))
    return kind("mine", 2, inner, size, size, outer, filters, filters, stride, padding, groups)


def by_definition(work, given):
    """The result in double precision, tap by tap."""
    src, weights = given.src.astype(np.float64), given.weights.astype(np.float64)
    bias = 0.0 if given.bias is None else given.bias.astype(np.float64)
    if isinstance(work, Product):
        return (src @ weights + bias).astype(np.float32)
    outer, inner, side = work.oc // work.groups, work.ic // work.groups, work.padding
    padded = np.zeros((work.batch, work.groups, inner, work.ih + 2 * side, work.iw + 2 * side))
    middle = padded[..., side : side + work.ih, side : side + work.iw]
    filters = np.zeros((work.groups, outer, inner, work.kh, work.kw))
    total = np.zeros((work.batch, work.groups, outer, work.oh, work.ow))
    if isinstance(work, BackwardData):
        total[...], filters[...] = src.reshape(total.shape), weights.reshape(filters.shape)
    elif isinstance(work, BackwardWeights):
        middle[...], total[...] = src.reshape(middle.shape), weights.reshape(total.shape)
    else:
        middle[...], filters[...] = src.reshape(middle.shape), weights.reshape(filters.shape)
    for y in range(work.kh):
        for x in range(work.kw):
            rows = slice(y, y + (work.oh - 1) * work.stride + 1, work.stride)
            columns = slice(x, x + (work.ow - 1) * work.stride + 1, work.stride)
            part, tap = padded[..., rows, columns], filters[..., y, x]
            if isinstance(work, BackwardData):
                part += np.einsum("ngohw,goi->ngihw", total, tap)
            elif isinstance(work, BackwardWeights):
                tap += np.einsum("ngihw,ngohw->goi", part, total)
            else:
                total += np.einsum("ngihw,goi->ngohw", part, tap)
    if isinstance(work, BackwardData | BackwardWeights):
        found = middle if isinstance(work, BackwardData) else filters
        return found.reshape(work.dst_dims).astype(np.float32)
    return (total.reshape(work.dst_dims) + np.reshape(bias, (-1, 1, 1))).astype(np.float32)


class TestPeers:
    @pytest.mark.parametrize("name", ["oneDNN", "PyTorch"])
    @examples(25)
    @given(work=small_layers())
    def test_compute_the_definition(self, name, work):
        contestants = [peer for peer in all_peers() if peer.name.startswith(name)]
        if contestants[0].available() is None:
            pytest.skip(f"{name} is not installed")
        given = operands(work)
        expected = by_definition(work, given)
        made = [peer.prepare(work, given, 1) for peer in contestants if peer.available() is not None]
        assert any(made)
        for computation in filter(None, made):
            computation.run()
            assert difference(expected, computation.result()) is None, computation.implementation

    @pytest.mark.parametrize("kind", [kind for kind in TYPES if kind != "f32"])
    def test_agree_in_narrow_types(self, kind):
        peers = [peer for peer in all_peers() if peer.name == "oneDNN" and peer.available() is not None]
        if saturates(host()) and kind.endswith("s8"):  # sums of two products, as those of oneDNN do
            peers = []
        for work in (
            Conv("mine", 2, 20, 7, 6, 24, 3, 3, 1, 1, dtype=kind),
            Product("mine", 9, 64, 40, dtype=kind),
        ):
            given = operands(work)
            made = [Ours().prepare(work, given, 1)]
            with suppress(Refused):  # f16, where the processor has no instructions for it
                made += [one.prepare(work, given, 1) for one in peers]
            for computation in made:
                computation.run()
                assert difference(made[0].result(), computation.result(), tolerance(work)) is None
            assert np.unique(made[0].result()).size > 20  # most of what a byte holds

    @examples(15)
    @given(work=small_layers())
    def test_so_does_relayout(self, work):
        given = operands(work)
        made = Ours().prepare(work, given, 1)
        made.run()
        assert difference(by_definition(work, given), made.result()) is None, made.implementation

    def test_and_with_fewer_products_where_that_is_another_sum(self):
        auto, work = Ours(algorithm="auto"), Conv("mine", 1, 64, 28, 28, 64, 3, 3, 1, 1)
        given = operands(work)
        made = auto.prepare(work, given, 1)
        made.run()
        assert difference(by_definition(work, given), made.result()) is None, made.implementation
        assert auto.prepare(Product("mine", 2, 3, 4), None, 1) is None
        assert auto.prepare(Conv("mine", 1, 64, 28, 28, 64, 3, 3, 1, 1, dtype="u8s8"), None, 1) is None
        assert auto.name != Ours().name

    def test_a_deviation_is_noticed_from_the_tolerance_on(self):
        values = np.linspace(-2, 1, 7, dtype=np.float32)
        for factor, noticed in ((0.5, False), (2, True)):
            for place in range(values.size):
                other = values.copy()
                other[place] += np.float32(factor * TOLERANCE * 2)
                assert (difference(values, other) is not None) == noticed
        assert "nan" in difference(values, np.full_like(values, np.nan))
        assert "shape" in difference(values, values[1:])


class Fake:
    """A contestant that does as it is told."""

    def __init__(self, name, result=1.0):
        self.name, self.value = name, result

    def available(self):
        return "1"

    def prepare(self, work, operands, threads):
        if isinstance(self.value, Exception):
            raise self.value
        if self.value is None:
            return None
        return Computation(lambda: None, lambda: np.full(2, self.value, np.float32), "fake")


TASK = Task("ResNet-50", 1, Conv("mine", 1, 4, 5, 5, 4, 3, 3, count=2))


@pytest.fixture
def no_peak(monkeypatch):
    """The peak is not measured, so that hosts without machine code can run the tests, and fast."""
    monkeypatch.setattr(primitives, "yardstick", lambda *_: peak.Yardstick(lambda: None, 1000))


class TestMeasuring:
    def test_everybody_with_every_number_of_threads(self, no_peak):
        contestants = [Fake(OURS), Fake("same"), Fake("other", 2.0), Fake("unable", None)]
        contestants.append(Fake("broken", ValueError("no such thing\nat all")))
        found = list(measured(TASK, [1, 2], 3, 5.0, contestants))
        assert [r.threads for r in found] == [1, 2]
        for r in found:
            assert set(r.seconds) == {PEAK, OURS, "same", "other"}
            assert set(r.ratios) == {OURS, "same", "other"}
            assert set(r.behind) == {"same", "other"}
            assert set(r.rounds.values()) == {3}
            assert r.notes["other"].startswith("differs by 1 of the largest value")
            assert r.notes["broken"] == "left out: ValueError: no such thing"
            assert r.peak > 0

    def test_peers_are_measured_where_relayout_is_missing(self, no_peak):
        [r] = measured(TASK, [1], 2, 5.0, [Fake(OURS, rl.LayoutError("none")), Fake("other")])
        assert (set(r.ratios), r.behind) == ({"other"}, {})

    def test_relayout_with_a_format(self):
        with pytest.raises(rl.LayoutError, match="nope"):
            Ours("nope")
        assert all(Ours(format).prepare(Product("mine", 2, 3, 4), None, 1) is None for format in FORMATS)


def result(count, flops_side, **ratios):
    work = Conv("mine", 1, 1, flops_side, 1, 1, 1, 1, count=count)
    spreads = {name: Spread(value, value, value) for name, value in ratios.items()}
    seconds = {PEAK: Spread(1.0, 1.0, 1.0), **spreads}
    how = dict.fromkeys(ratios, "test")
    return Result(Task("mine", 1, work), 1, seconds, spreads, {}, dict.fromkeys(seconds, 1), how)


class TestReport:
    def report(self, *results):
        return Report({}, {"one": "1", "two": "2"}, {}, list(results))

    def test_sums_are_weighted_by_size_and_count(self):
        made = self.report(
            result(3, 10, Relayout=2.0, one=1.0),
            result(1, 30, Relayout=4.0, one=2.0, two=8.0),
        )
        assert made.sum("mine, batch 1", OURS, OURS, 1) == (3.0, 1.0, 2)
        assert made.sum("mine, batch 1", "one", OURS, 1) == (1.5, 0.5, 2)
        assert made.sum("mine, batch 1", "two", OURS, 1) == (8.0, 2.0, 1)
        assert made.sum("mine, batch 1", "three", OURS, 1) is None

    def test_what_others_disturbed_is_left_out(self):
        quiet = result(1, 10, Relayout=2.0)
        busy = replace(result(1, 10, Relayout=50.0), others=float(os.cpu_count()))
        assert self.report(quiet, busy).sum("mine, batch 1", OURS, OURS, 1) == (2.0, 1.0, 1)
        assert self.report(busy).sum("mine, batch 1", OURS, OURS, 1) is None
        assert json.loads(as_json(self.report(busy)))["sums"] == []

    def test_picture(self, tmp_path):
        pytest.importorskip("matplotlib")
        plot.draw(self.report(result(1, 10, Relayout=2.0, one=3.0)), tmp_path / "p.svg", "title", "axis")
        text = (tmp_path / "p.svg").read_text()
        assert "<!-- title -->" in text
        assert "<!-- axis -->" in text


def run(*words, code=0):
    result = CliRunner().invoke(application, ["bench", "primitives", *map(str, words)], prog_name="relayout")
    assert result.exit_code == code, result.output
    return result


class TestCommand:
    @pytest.fixture
    def alone(self, monkeypatch, no_peak):
        """Contestants that take no time."""
        monkeypatch.setattr(
            "relayout.bench.peers.primitives.all_peers", lambda: (Fake("one"), Fake("two", 2))
        )
        ours = (Fake(OURS), Fake(f"{OURS} nhwc"), Fake(f"{OURS} nChw16c"))
        monkeypatch.setattr("relayout.bench.ours.all_ours", lambda formats: ours)

    def test_a_run_leaves_json_and_tables(self, alone, tmp_path):
        path = tmp_path / "found.json"
        words = ("--network", "ResNet-50", "--case", "stage4", "--batch", 2, "--threads", 1, "--rounds", 2)
        shown = run(*words, "--json", path).stdout
        found = json.loads(path.read_text())
        assert found["peers"] == {"one": "1", "two": "1"}
        assert found["settings"]["formats"] == list(FORMATS)
        assert len(found["results"]) == len(tasks(networks=["ResNet-50"], batches=[2], texts=["stage4"]))
        for row in found["results"]:
            assert set(row["contestants"]) == {OURS, f"{OURS} nhwc", f"{OURS} nChw16c", "one", "two"}
            assert row["contestants"]["one"]["behind"].keys() == {"median", "low", "high"}
            assert list(row["notes"]) == ["two"]
        if not any(row["disturbed"] for row in found["results"]):
            assert {row["contestant"] for row in found["sums"]} == set(row["contestants"])
            assert "share of the peak, 1 thread" in shown
            assert "nChw16c, b_fs_yx_fsv16" in shown
        assert "stage4.2.middle x2" in shown
        assert "two: differs by 1 of the largest value" in shown

    def test_a_run_that_is_ended_leaves_what_it_has_measured(self, alone, monkeypatch, tmp_path):
        """The file is there before the next network begins, whatever ends the process then."""
        path, seen = tmp_path / "found.json", []

        def some(task, *rest):
            there = json.loads(path.read_text())["results"] if path.exists() else []
            seen.append((task.network, len(there)))
            return measured(task, *rest)

        monkeypatch.setattr(primitives, "measured", some)
        words = ("--only", "data", "--case", "stage2.1.middle", "--case", "block2.1.d", "--batch", 1)
        run(*words, "--threads", 1, "--rounds", 1, "--json", path)
        assert seen == [("ResNet-50 data", 0), ("ResNeXt-101 data", 1), ("MobileNetV2 data", 2)]

    def test_list_measures_nothing(self, monkeypatch):
        monkeypatch.setattr(primitives, "measured", None)
        lines = run("--list", "--batch", 8).stdout.splitlines()
        assert len(lines) == len(tasks(batches=[8]))
        assert lines[0].startswith("ResNet-50, batch 8 ")

    @pytest.mark.parametrize(
        ("words", "told"),
        [
            ("--network resnet", "there is no network 'resnet'"),
            ("--case nothing", "--list prints them"),
            ("--threads 0", "--threads takes numbers from 1 to"),
            ("--batch 0", "--batch takes numbers from 1 on"),
            ("--format nope", "nope"),
            ("--plot picture.txt", "a plot is written as .svg"),
        ],
    )
    def test_refused_before_anything_is_measured(self, monkeypatch, words, told):
        monkeypatch.setattr(primitives, "measured", None)
        error = run(*words.split(), code=2).stderr
        assert error.startswith("relayout: error: ")
        assert told in error
