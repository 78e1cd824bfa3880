"""``relayout convert`` and ``relayout show`` for stores."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

import relayout as rl
from relayout.cli import application
from relayout.cli.options import Exit
from relayout.files.descriptor import descriptor_to_json
from relayout.stores.rates import measured
from relayout.stores.task import Task
from test_stores import numbers, write_folder


def run(*words: object) -> Result:
    return CliRunner().invoke(application, [str(word) for word in words], prog_name="relayout")


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "x.chunks", numbers(6, 20, 8, 8), "nchw", (1, 20, 8, 8))
    return Path("x.chunks")


def test_a_plan_is_printed_and_nothing_is_done(source: Path) -> None:
    done = run(
        "convert", source, "y.chunks", "--to", "nChw16c", "--memory", "1GB", "--dry-run", "--threads", 1
    )
    assert done.exit_code == 0, done.output
    assert "in one pass: 6 blocks of 1x32x8x8" in done.output
    assert not Path("y.chunks").exists()
    told = json.loads(run("convert", source, "y.chunks", "--to", "nhwc", "--dry-run", "--json").output)
    assert told["done"] is False
    assert told["passes"][0]["bytes_read"] == 6 * 20 * 8 * 8 * 4
    told = json.loads(run("convert", source, "y.chunks", "--to", "nhwc", "--json").output)
    assert told["done"] is True
    assert told["seconds"] > 0
    assert told["predicted_seconds"] > 0
    assert told["resident"] is None or told["resident"] > 10 << 20


def test_plans_do_not_number_all_chunks(tmp_path: Path) -> None:
    """The rates are measured on three chunks; a set of all numbers would take gigabytes."""
    desc = rl.MemoryDesc((10**9, 4), "u8", "ab")
    told = {"relayout": 1, "descriptor": descriptor_to_json(desc), "chunks": [10, 4], "files": "npy"}
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "relayout.json").write_text(json.dumps(told))
    lazy = rl.open(tmp_path / "x")
    tracemalloc.start()
    try:
        measured(lazy.stored, lazy.stored, tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_conversion_with_values(source: Path) -> None:
    words = ["--to", "nhwc", "--dtype", "f16", "--src-scale", "0.5", "--chunks", "2,-1,4,20"]
    done = run("convert", source, "y.chunks", *words)
    assert done.exit_code == 0, done.output
    assert "y.chunks  f16:nhwc:6x20x8x8, 6 chunks of [2, 8, 4, 20]" in done.output
    assert (rl.open("y.chunks").numpy() == (numbers(6, 20, 8, 8) / 2).astype(np.float16)).all()
    again = run("convert", source, "y.chunks", *words)
    assert again.exit_code == Exit.SYSTEM
    assert "--force" in again.output
    assert run("convert", source, "y.chunks", *words, "--force").exit_code == 0


def test_interrupted_and_resumed(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory and threads are those of the beginning, if nothing else is said."""
    words = ["convert", source, "y.chunks", "--to", "nchw", "--chunks", "1,20,8,8"]
    with monkeypatch.context() as patched:
        real = Task.run

        def failing(self: Task) -> object:
            if self.number == 4:
                raise OSError(28, "No space left on device", "y.chunks/4")
            return real(self)

        patched.setattr(Task, "run", failing)
        done = run(*words, "--memory", "700MB", "--threads", 1)
        assert done.exit_code == Exit.SYSTEM
        assert "No space left on device" in done.output
    shown = run("show", "y.chunks")
    assert shown.exit_code == Exit.BAD_DATA
    assert "4 of 6 blocks of a conversion are done" in shown.output
    done = run(*words, "--resume")
    assert done.exit_code == 0, done.output
    assert "4 of 6 blocks had been done before" in done.output
    assert (rl.open("y.chunks").numpy() == numbers(6, 20, 8, 8)).all()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["x.chunks", "y.npy"], "a store is converted into a store"),
        (["x.chunks", "y.chunks", "--resume", "--force"], "goes without --force"),
        (["x.chunks", "y.chunks", "--scheduler", "here:1"], "--engine dask"),
        (["x.chunks", "y.chunks", "--name", "a*"], "one array is converted at a time"),
        (["x.npy", "y.npy", "--chunks", "1,2"], "--chunks is for stores"),
        (["x.npy", "y.npy", "--dry-run"], "--dry-run is for stores"),
    ],
)
def test_misuse(words: list[str], said: str, source: Path) -> None:
    np.save("x.npy", np.zeros((2, 3), np.float32))
    done = run("convert", *words)
    assert done.exit_code == Exit.MISUSE
    assert said in " ".join(done.output.split())


def test_chunks_are_shown_as_digits(source: Path) -> None:
    done = run("show", source)
    assert done.exit_code == 0, done.output
    lines = [" ".join(line.split()) for line in done.output.splitlines()]
    assert "in the name n 1 6" in lines
    assert "in the chunk c 1 20" in lines
    assert "in chunks 6 of [1, 20, 8, 8], 5.0 KiB each, 6x1x1x1 of them" in lines
    told = json.loads(run("show", source, "--json").output)
    assert [digit["name"] for digit in told["digits"] if digit["in_name"]] == ["n"]
    drawn = run("show", source, "--svg", "-")
    assert "in the name of a chunk" in drawn.output
    assert run("show", source, "--html", "a.html").exit_code == Exit.MISUSE
    assert run("show", "nchw", "1,2,3,4", "--name", "x").exit_code == Exit.MISUSE
    assert run("show", source, "nchw", "more").exit_code == Exit.MISUSE


def test_one_array_of_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("w").mkdir()
    for name in "ab":
        np.save(f"w/{name}.npy", numbers(4, 6))
    done = run("convert", "w", "y.chunks", "--to", "ba")
    assert done.exit_code == Exit.BAD_DATA
    assert "say which by its name: a, b" in " ".join(done.output.split())
    done = run("convert", "w", "y.chunks", "--to", "ba", "--name", "b")
    assert done.exit_code == 0, done.output
    assert (rl.open("y.chunks").numpy() == numbers(4, 6)).all()
