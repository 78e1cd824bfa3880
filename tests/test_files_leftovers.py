"""What a process that was killed while it wrote leaves behind, and who removes it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

import relayout as rl
from relayout import files
from relayout.files.atomic import temporary

pytest.importorskip("fcntl", reason="without locks nobody knows whether a writer is alive")

X = rl.tensor(np.arange(6, dtype=np.float32).reshape(2, 3))


def killed(folder, body):
    """Run a script until it prints a line, and kill it with no chance to clean up."""
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(body)], cwd=folder, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"half\n"
        process.kill()


@pytest.mark.parametrize("name", ["k.npy", "k.npz", "k.safetensors", "k.bin"])
def test_the_next_writer_removes_what_a_killed_one_left(tmp_path, name):
    killed(
        tmp_path,
        f"""
        import sys, time, numpy as np, relayout as rl
        from relayout import files
        with files.create({name!r}, rl.MemoryDesc((64, 64), "f32", "ab")) as out:
            print("half", flush=True)
            time.sleep(100)
        """,
    )
    assert [p.name for p in tmp_path.iterdir() if not p.name.startswith(f".{name}.")] == []
    assert len(list(tmp_path.iterdir())) == 1
    files.write(tmp_path / name, X)
    assert not [p.name for p in tmp_path.iterdir() if p.name.endswith(".tmp")]
    assert np.array_equal(files.read(tmp_path / name).numpy(), X.numpy())


def test_another_writer_that_is_alive_is_left_alone(tmp_path):
    path = tmp_path / "k.npy"
    desc = rl.MemoryDesc((2, 3), "f32", "ab")
    with files.create(path, desc, force=True) as out:
        files.write(path, X)
        files.convert_into(rl.tensor(np.ones((2, 3), np.float32)), out)
    assert files.read(path).numpy().sum() == 6
    assert [p.name for p in tmp_path.iterdir()] == ["k.npy"]


def test_other_targets_are_left_alone(tmp_path):
    for stays in (".other.npy.0123456789ab.tmp", ".k.npy.mine.tmp", ".k.npy.bak.0123456789ab.tmp"):
        (tmp_path / stays).write_text("mine")
    (tmp_path / ".k.npy.0123456789ab.tmp").mkdir()
    files.write(tmp_path / "k.npy", X)
    assert len(list(tmp_path.iterdir())) == 5


def test_a_temporary_file_is_removed_with_its_block(tmp_path):
    with temporary(tmp_path / "x") as (part, file):
        file.write(b"abc")
        assert part.parent == tmp_path
    assert list(tmp_path.iterdir()) == []


class TestStandardStreams:
    def spooling(self, tmp_path):
        """A process that has part of its standard input in a folder, and waits for the rest."""
        process = subprocess.Popen(
            [sys.executable, "-m", "relayout", "info", "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(tmp_path)},
        )
        process.stdin.write(b"\x93NUMPY" + bytes(1000))
        process.stdin.flush()
        for _ in range(600):
            if list(tmp_path.glob("*/*/stdin*")):
                return process
            time.sleep(0.1)
        raise AssertionError("nothing was written")

    def again(self, tmp_path):
        env = {**os.environ, "TMPDIR": str(tmp_path)}
        command = [sys.executable, "-m", "relayout", "info", "-", "--in-kind", "bin"]
        subprocess.run(command, input=b"x", env=env, check=True, capture_output=True)

    def test_the_next_one_removes_what_a_killed_one_left(self, tmp_path):
        with self.spooling(tmp_path) as process:
            self.again(tmp_path)
            assert len(list(tmp_path.iterdir())) == 1  # whoever is alive keeps its folder
            process.kill()
        assert len(list(tmp_path.iterdir())) == 1
        self.again(tmp_path)
        assert list(tmp_path.iterdir()) == []

    def test_a_polite_kill_leaves_nothing(self, tmp_path):
        with self.spooling(tmp_path) as process:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 143
            assert process.stderr.read() == b"relayout: error: terminated\n"
        assert list(tmp_path.iterdir()) == []
