"""Runs that are kept for the networks of files: when they are taken, and when not."""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path

import numpy as np
import pytest

import relayout as rl
from relayout.errors import LayoutError
from relayout.graph import kept
from relayout.graph.graph import Graph
from relayout.jit import cache

onnx = pytest.importorskip("onnx")

EARLIER = 60 * 10**9  # nanoseconds: longer than times of files are rounded to


def model(path: Path, factor: float = 2.0, *, beside: str | None = None, default: bool = False) -> Path:
    """A file with a product, a bias and an activation; its batch is open."""
    rng = np.random.default_rng(5)
    weights = (factor * rng.standard_normal((6, 5))).astype("f4")
    real = onnx.TensorProto.FLOAT
    inputs = [onnx.helper.make_tensor_value_info("x", real, ["n", 6])]
    if default:
        inputs.append(onnx.helper.make_tensor_value_info("b", real, [5]))
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w"], ["m"]),
        onnx.helper.make_node("Add", ["m", "b"], ["s"]),
        onnx.helper.make_node("Relu", ["s"], ["y"]),
    ]
    constants = [
        onnx.numpy_helper.from_array(weights, "w"),
        onnx.numpy_helper.from_array(np.ones(5, "f4"), "b"),
    ]
    result = onnx.helper.make_tensor_value_info("y", real, ["n", 5])
    made = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "little", inputs, [result], constants),
        opset_imports=[onnx.helper.make_opsetid("", 18)],
        ir_version=10,
    )
    aside = {} if beside is None else {"save_as_external_data": True, "location": beside, "size_threshold": 1}
    onnx.save(made, path, **aside)
    return path


@pytest.fixture
def files(monkeypatch, tmp_path):
    """A folder whose files count as settled, with a cache of its own; the count of files that were read."""
    monkeypatch.setenv("RELAYOUT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("RELAYOUT_RUNS_LIMIT", "1000000")
    monkeypatch.setattr(kept.cache, "SETTLED", -EARLIER)
    monkeypatch.setattr(kept, "code", lambda: "code")
    read: list[str] = []
    from relayout.importers import loading

    original = loading._read_file
    monkeypatch.setattr(loading, "_read_file", lambda path: (read.append(path), original(path))[1])
    (tmp_path / "models").mkdir()
    return tmp_path / "models", read


def runs(folder: Path) -> list[Path]:
    return sorted((folder.parent / "cache" / "runs").glob("run-*"))


X = np.random.default_rng(0).standard_normal((3, 6)).astype("f4")


def test_a_later_load_reads_nothing(files):
    folder, read = files
    path = model(folder / "m.onnx")
    first = rl.load(path)
    wanted = first.compile(batch=3)(X)
    again = rl.load(path)
    run = again.compile(batch=3)
    assert len(read) == len(runs(folder)) == 1
    np.testing.assert_array_equal(run(X)[0], wanted[0])
    np.testing.assert_array_equal(run(x=X)[0], wanted[0])
    assert again.inputs == first.inputs
    assert again.outputs == first.outputs
    assert again.results == first.results
    assert len(read) == 1
    assert str(again) == str(first)
    assert len(read) == 2
    np.testing.assert_array_equal(again.evaluate(X)[0], first.evaluate(X)[0])
    assert again.compile(batch=3).memory == run.memory


def test_what_was_planned_is_told_when_asked(files):
    folder, read = files
    path = model(folder / "m.onnx")
    plan = rl.load(path).compile(batch=3).plan
    run = rl.load(path).compile(batch=3)
    assert len(read) == 1
    assert [str(one.case.name) for one in run.plan.chosen] == [str(one.case.name) for one in plan.chosen]
    assert len(read) == 2
    assert run.plan is run.plan


def test_other_arguments_are_other_runs(files):
    folder, read = files
    path = model(folder / "m.onnx")
    for arguments in ({"batch": 3}, {"batch": {"x": (3, 6)}}, {"batch": 2}, {"batch": 3, "threads": 1}):
        rl.load(path).compile(**arguments)
    assert len(runs(folder)) == 3  # two of them are the same sizes
    assert len(read) == 3
    with pytest.raises(LayoutError, match="threads"):
        rl.load(path).compile(batch=3, threads=-1)
    with pytest.raises(LayoutError, match="no dim and no input"):
        rl.load(path).compile(batch={"k": 3})
    with pytest.raises(LayoutError, match="3x6"):
        rl.load(path).compile(batch=3)(X[:2])


def test_open_sizes_are_compiled_when_they_come(files):
    folder, _ = files
    path = model(folder / "m.onnx")
    rl.load(path).compile(batch=3)
    run = rl.load(path).compile()
    assert run(X)[0].shape == (3, 5)
    assert run(X[:2])[0].shape == (2, 5)
    assert len(runs(folder)) == 1


def test_a_changed_file_is_another_network(files):
    folder, read = files
    path = model(folder / "m.onnx")
    first = rl.load(path).compile(batch=3)(X)[0]
    before = os.stat(path)
    model(path, -2.0)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert os.stat(path).st_size == before.st_size
    second = rl.load(path).compile(batch=3)(X)[0]
    assert not np.allclose(first, second)
    np.testing.assert_array_equal(rl.load(path).compile(batch=3)(X)[0], second)
    assert len(runs(folder)) == 1
    assert len(read) == 2


def test_a_file_that_changes_while_its_graph_is_in_use(files):
    folder, _ = files
    path = model(folder / "m.onnx")
    rl.load(path).compile(batch=3)
    graph = rl.load(path)
    model(path, -2.0)
    with pytest.raises(LayoutError, match="another file"):
        str(graph)
    gone = rl.load(path).compile(batch=3) and rl.load(path)
    path.unlink()
    with pytest.raises(LayoutError, match="another file"):
        gone.compile(batch=2)
    with pytest.raises(LayoutError, match="can't be read"):
        rl.load(path)


def test_external_data_is_part_of_it(files):
    folder, read = files
    path = model(folder / "m.onnx", beside="w.bin")
    first = rl.load(path).compile(batch=3)(X)[0]
    np.testing.assert_array_equal(rl.load(path).compile(batch=3)(X)[0], first)
    assert len(read) == 1
    data = (folder / "w.bin").read_bytes()
    (folder / "w.bin").write_bytes((-np.frombuffer(data[: 4 * 30], "f4")).tobytes() + data[4 * 30 :])
    assert not np.allclose(rl.load(path).compile(batch=3)(X)[0], first)
    (folder / "w.bin").unlink()
    with pytest.raises(LayoutError, match=r"w\.bin"):
        rl.load(path)


def test_defaults_can_be_given(files):
    folder, read = files
    path = model(folder / "m.onnx", default=True)
    first, again = (rl.load(path).compile(batch=3) for _ in range(2))
    assert len(read) == 1
    other = np.arange(5, dtype="f4")
    np.testing.assert_array_equal(first(X)[0], again(X)[0])
    np.testing.assert_allclose(again(X, b=other)[0], first(X, b=other)[0], rtol=1e-6)
    assert not np.allclose(again(X)[0], again(X, b=other)[0])


@pytest.mark.parametrize("place", [0, 20, 80, 200, -70, -1])
def test_damaged_runs_are_made_anew(files, place):
    folder, _ = files
    path = model(folder / "m.onnx")
    wanted = rl.load(path).compile(batch=3)(X)[0]
    [run] = runs(folder)
    data = bytearray(run.read_bytes())
    if place != -70:  # in the weights, which have no digest
        data[place] ^= 0xFF
        run.write_bytes(data)
    np.testing.assert_array_equal(rl.load(path).compile(batch=3)(X)[0], wanted)
    run.write_bytes(data[: len(data) // 2])
    np.testing.assert_array_equal(rl.load(path).compile(batch=3)(X)[0], wanted)
    run.write_bytes(b"")
    np.testing.assert_array_equal(rl.load(path).compile(batch=3)(X)[0], wanted)
    assert rl.load(path).compile(batch=3)(X)[0].shape == (3, 5)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"{}", b'{"version": 1, "files": [["m", [1]]]}', b"\xff"])
def test_damaged_entries_are_no_entries(files, text):
    folder, read = files
    path = model(folder / "m.onnx")
    wanted = rl.load(path).compile(batch=3)(X)[0]
    cache.save(kept._entry(str(path)), text)
    np.testing.assert_array_equal(rl.load(path).compile(batch=3)(X)[0], wanted)
    assert len(read) == 2


def test_runs_of_others_are_not_believed(files):
    folder, read = files
    path = model(folder / "m.onnx")
    rl.load(path).compile(batch=3)
    [run] = runs(folder)
    run.chmod(0o666)
    graph = rl.load(path)
    assert graph.compile(batch=3)(X)[0].shape == (3, 5)
    assert len(read) == 2
    elsewhere = folder / "elsewhere"
    run.rename(elsewhere)
    run.symlink_to(elsewhere)
    assert rl.load(path).compile(batch=3)(X)[0].shape == (3, 5)
    assert len(read) == 3


def test_other_code_makes_other_runs(files, monkeypatch):
    folder, read = files
    path = model(folder / "m.onnx")
    rl.load(path).compile(batch=3)
    monkeypatch.setattr(kept, "code", lambda: "other code")
    rl.load(path).compile(batch=3)
    assert len(read) == 2
    assert len(runs(folder)) == 1
    monkeypatch.setattr(kept, "code", lambda: None)
    assert type(rl.load(path)) is Graph


def test_young_files_are_not_kept(files, monkeypatch):
    folder, _ = files
    monkeypatch.setattr(kept.cache, "SETTLED", 2 * 10**9)
    path = model(folder / "m.onnx")
    assert type(rl.load(path)) is Graph
    rl.load(path).compile(batch=3)
    assert runs(folder) == []


def test_it_can_be_switched_off(files, monkeypatch):
    folder, _ = files
    path = model(folder / "m.onnx")
    monkeypatch.setenv("RELAYOUT_RUNS_LIMIT", "0")
    assert type(rl.load(path)) is Graph
    monkeypatch.setenv("RELAYOUT_RUNS_LIMIT", "1000000")
    monkeypatch.setenv("RELAYOUT_CACHE", "off")
    assert type(rl.load(path)) is Graph
    monkeypatch.setenv("RELAYOUT_RUNS_LIMIT", "many")
    with pytest.raises(LayoutError, match="RELAYOUT_RUNS_LIMIT='many'"):
        rl.load(path)


def test_no_more_is_kept_than_the_limit(files, monkeypatch):
    folder, _ = files
    monkeypatch.setenv("RELAYOUT_RUNS_LIMIT", "30000")  # an entry takes at least a block of the disk
    path = model(folder / "m.onnx")
    for batch in range(1, 13):
        rl.load(path).compile(batch=batch)
        time.sleep(0.002)
    assert 0 < len(runs(folder)) <= 7
    monkeypatch.setenv("RELAYOUT_RUNS_LIMIT", "100")
    other = model(folder / "o.onnx")
    rl.load(other).compile(batch=3)
    assert len(runs(folder)) <= 7
    monkeypatch.setattr(kept, "_has_room", lambda where, size: False)
    monkeypatch.setenv("RELAYOUT_RUNS_LIMIT", "1000000")
    before = runs(folder)
    assert rl.load(other).compile(batch=3)(X)[0].shape == (3, 5)
    assert runs(folder) == before


def test_a_full_disk_is_no_error(files, monkeypatch):
    folder, _ = files
    path = model(folder / "m.onnx")

    def full(run, file):
        file.write(b"some of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("relayout.graph.saving.write", full)
    assert rl.load(path).compile(batch=3)(X)[0].shape == (3, 5)
    assert list((folder.parent / "cache" / "runs").iterdir()) == []


def test_copies_are_graphs(files):
    folder, _ = files
    path = model(folder / "m.onnx")
    rl.load(path).compile(batch=3)
    graph = rl.load(path)
    assert type(graph.replaced(name="other")) is Graph
    copy = pickle.loads(pickle.dumps(graph))
    assert type(copy) is Graph
    assert str(copy) == str(graph)
    with pytest.raises(AttributeError, match="no attribute 'weights'"):
        getattr(graph, "weights")  # noqa: B009
    assert repr(graph).startswith("FileGraph(inputs=")


def test_the_code_of_the_package_is_told_apart(tmp_path, monkeypatch):
    (tmp_path / "inner").mkdir()
    for place in (tmp_path, tmp_path / "inner"):
        (place / "__init__.py").write_text("")
    monkeypatch.setattr(kept.cache, "PACKAGE", str(tmp_path))
    monkeypatch.setattr(kept, "_package", kept._package.__wrapped__)
    monkeypatch.setattr(kept.cache, "SETTLED", 2 * 10**9)
    monkeypatch.setattr(kept, "LOADED", time.time_ns() + EARLIER)
    first = kept.code()
    assert first == kept.code() is not None
    (tmp_path / "inner" / "a.py").write_text("")
    second = kept.code()
    assert second not in (None, first)
    (tmp_path / "inner" / "a.py").write_text(" ")
    assert kept.code() not in (None, first, second)
    monkeypatch.setattr(kept, "LOADED", time.time_ns())
    assert kept.code() is None  # another text may have been imported
