"""Large conversions beside other programs: small ones here, and whether everything is looked at."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from relayout.bench import rechunking
from relayout.bench.rechunking import Contestant
from relayout.cli.app import application

zarr = pytest.importorskip("zarr")

ROWS, PICTURES, _ = rechunking.problems(1 << 20, 1 << 17)


@pytest.mark.parametrize("problem", [ROWS, PICTURES])
def test_definitions_are_those_of_the_whole_array(problem: rechunking.Problem, tmp_path: Path) -> None:
    rechunking.write_source(problem, tmp_path / "x.zarr", "zstd")
    source = zarr.open_array(tmp_path / "x.zarr")
    whole = np.arange(source.size, dtype=np.int64).reshape(problem.dims).astype(np.float32)
    assert np.array_equal(source[:], whole)
    assert source.chunks == problem.source_chunks
    result = whole if problem.axes is None else whole.transpose(problem.axes)
    same = {"chunks": problem.chunks, "zarr_format": 2, "compressors": source.compressors}
    zarr.create_array(tmp_path / "y.zarr", data=result, **same)
    assert rechunking.check(problem, tmp_path / "y.zarr", tmp_path / "x.zarr") == ""
    made = zarr.open_array(tmp_path / "y.zarr", mode="r+")
    made[(-1,) * len(problem.dims)] = 7
    assert rechunking.check(problem, tmp_path / "y.zarr", tmp_path / "x.zarr").startswith(
        "wrong elements in the chunk at"
    )
    assert rechunking.check(
        ROWS._replace(chunks=(3, 3)), tmp_path / "y.zarr", tmp_path / "x.zarr"
    ).startswith("an array of")
    assert rechunking.check(problem, tmp_path / "z.zarr", tmp_path / "x.zarr").startswith("no array")
    zarr.create_array(tmp_path / "w.zarr", data=result, **{**same, "compressors": None})
    found = rechunking.check(problem, tmp_path / "w.zarr", tmp_path / "x.zarr")
    assert found == "chunks compressed by nothing, those of the source by (Zstd(level=1),)"


def test_who_fails_gets_more_memory_until_it_ends(tmp_path: Path) -> None:
    rechunking.write_source(ROWS, tmp_path / "x.zarr")
    script = tmp_path / "script.py"
    script.write_text(
        "import json, sys\ntask = json.loads(sys.argv[1])\n"
        "if task['memory'] < 350: raise MemoryError('too little')\n"
        "import shutil\nshutil.copytree(task['source'], task['target'])\n"
        "x = bytearray(50 << 20)\nx[::4096] = x[1::4096]\nimport time\ntime.sleep(0.3)\n"
        "print(json.dumps({'seconds': 2.0, 'versions': {}}))\n"
    )
    contestant = Contestant("x", str(script), {}, True, copies="source")
    outcome = rechunking.compete(
        ROWS, contestant, tmp_path / "x.zarr", tmp_path / "work", memory=100, workers=1
    )
    assert outcome.error == ""
    assert outcome.given == 400
    assert outcome.seconds >= 2
    assert outcome.memory > 50 << 20 or not Path("/proc/self/status").exists()
    outcome = rechunking.compete(
        ROWS, contestant, tmp_path / "x.zarr", tmp_path / "work", memory=10, workers=1, tries=2
    )
    assert (outcome.given, outcome.error) == (20, "MemoryError: too little")
    assert not (tmp_path / "work").exists()


def test_the_command_compares_who_is_there(tmp_path: Path) -> None:
    words = ["--size", "1MB", "--chunk", "128KB", "--folder", str(tmp_path), "--tries", "1"]
    words += ["--contestant", "copy", "--contestant", "Relayout", "--contestant", "rechunker", "--json"]
    done = CliRunner().invoke(application, ["bench", "large", *words, str(tmp_path / "x.json")])
    assert done.exit_code == 0, done.output
    told = json.loads((tmp_path / "x.json").read_text())
    errors = {one["contestant"]: one["error"] for one in told["figures"]}
    assert errors["copy of files"] == errors["copy by codecs"] == errors["Relayout"] == ""
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]
    wrong = CliRunner().invoke(application, ["bench", "large", "--contestant", "nobody"])
    assert wrong.exit_code == 2
    assert "no contestant has that in its name: copy of files, copy by codecs, copy of" in wrong.output


@pytest.mark.parametrize(
    ("script", "options"), [("with_dask.py", {"method": "tasks"}), ("with_relayout.py", {"engine": "dask"})]
)
def test_scripts_run_alone(script: str, options: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    rechunking.write_source(PICTURES, tmp_path / "x.zarr", "zstd")
    outcome = rechunking.compete(
        PICTURES,
        Contestant("x", script, options, True),
        tmp_path / "x.zarr",
        tmp_path / "work",
        memory=1 << 30,
        workers=1,
        tries=1,
    )
    assert outcome.error == ""


def test_scripts_of_peers_import_nothing_of_relayout() -> None:
    for path in rechunking.SCRIPTS.glob("with_*.py"):
        if path.name not in ("with_relayout.py", "with_copy.py"):
            assert "relayout" not in path.read_text().replace("Relayout", ""), path


def test_scaling_is_told_for_each_number_of_workers(tmp_path: Path) -> None:
    """Scheduler, workers and client are processes of their own; every result is looked at."""
    pytest.importorskip("distributed")
    words = [
        "--size",
        "1MB",
        "--chunk",
        "128KB",
        "--folder",
        str(tmp_path),
        "--engine",
        "dask",
        "--workers",
        "1,2",
    ]
    words += ["--case", "in place", "--batch", "2", "--memory", "2GB", "--json", str(tmp_path / "x.json")]
    done = CliRunner().invoke(application, ["bench", "large", *words])
    assert done.exit_code == 0, done.output
    told = json.loads((tmp_path / "x.json").read_text())
    assert [one["workers"] for one in told["figures"]] == [1, 2]
    for one in told["figures"]:
        assert one["error"] == ""
        assert one["tasks"] == -(-one["blocks"] // 2)
        assert 500 < one["task_bytes"] < 8192
        assert one["seconds"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_misuse_of_workers() -> None:
    for words in (["--workers", "1,2"], ["--workers", "0"], ["--workers", "1,0", "--engine", "dask"]):
        done = CliRunner().invoke(application, ["bench", "large", *words])
        assert done.exit_code == 2
        assert "--workers is a number of 1 or more" in " ".join(done.output.split())


def test_a_scaling_goes_on_where_workers_have_no_room(tmp_path: Path) -> None:
    """One process's own memory is more than 50 MB, so no count of workers gets a block."""
    pytest.importorskip("distributed")
    words = ["--engine", "dask", "--workers", "1", "--memory", "50MB", "--size", "1MB", "--case", "in place"]
    done = CliRunner().invoke(application, ["bench", "large", *words, "--json", str(tmp_path / "x.json")])
    if "did not start" not in done.output:  # Dask's own process may be too large for that, too
        assert done.exit_code == 0, done.output
        (one,) = json.loads((tmp_path / "x.json").read_text())["figures"]
        assert (one["seconds"], one["blocks"]) == (0, 0)
        assert "too little" in one["error"] or "fewer workers" in one["error"]
