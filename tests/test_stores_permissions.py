"""Conversions without permission: a clear error that names the file, and nothing that passes for complete.

The superuser may do everything, so where tests run as one, a forked child becomes somebody else first.
"""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import relayout as rl
from relayout import stores
from relayout.errors import LayoutError
from test_stores import RATES, numbers, write_folder

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="permissions of POSIX")

NOBODY = 65534


def as_nobody(function: Callable[[], Any]) -> Any:
    """What a function returns or raises, if it is called by a user without rights."""
    if os.geteuid() != 0:
        return _outcome(function)
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that other threads are not in the child
        pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            outcome = _outcome(function)
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(outcome, pipe)
        except BaseException:
            traceback.print_exc()
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    os.waitpid(pid, 0)
    return pickle.loads(told)


def _outcome(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except (OSError, LayoutError) as error:
        return error


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that anybody may write into, with a source that anybody may read."""
    folder = Path(tempfile.mkdtemp(prefix="relayout-permissions-"))
    os.chmod(folder, 0o777)
    write_folder(folder / "x.chunks", numbers(6, 10, 8, 8), "nchw", (1, 10, 8, 8))
    plan(folder, "warm.chunks").run()  # modules and kernels, which the child may not load
    shutil.rmtree(folder / "warm.chunks")
    umask = os.umask(0)
    yield folder
    os.umask(umask)
    for path, _, _ in os.walk(folder):
        os.chmod(path, 0o777)
    shutil.rmtree(folder)


def plan(place: Path, name: str = "y.chunks", **options: Any) -> stores.Plan:
    given = {"chunks": (2, 1, 8, 8, 4), "rates": RATES, "threads": 1} | options
    return stores.plan(place / "x.chunks", place / name, "nChw4c", **given)


def opened(path: Path) -> str:
    """What :func:`relayout.open` says of a destination: an error, always."""
    with pytest.raises((LayoutError, OSError)) as caught:
        rl.open(path)
    return str(caught.value)


def test_somebody_else_may_convert_what_may_be_read(place: Path) -> None:
    assert as_nobody(lambda: plan(place).run().complete) is True
    assert (rl.open(place / "y.chunks").numpy() == numbers(6, 10, 8, 8)).all()


def test_a_chunk_that_may_not_be_read(place: Path) -> None:
    chunk = place / "x.chunks" / "3.0.0.0.npy"
    chunk.chmod(0)
    error = as_nobody(lambda: plan(place).run())
    assert isinstance(error, PermissionError)
    assert str(chunk) in str(error)
    assert "1 of 3 blocks of a conversion are done" in opened(place / "y.chunks")
    chunk.chmod(0o644)
    assert as_nobody(lambda: plan(place).run(resume=True).resumed) == 1
    assert (rl.open(place / "y.chunks").numpy() == numbers(6, 10, 8, 8)).all()


def test_a_source_folder_that_may_not_be_looked_into(place: Path) -> None:
    made = plan(place)
    (place / "x.chunks").chmod(0o700 if os.geteuid() == 0 else 0)
    assert isinstance(as_nobody(lambda: rl.open(place / "x.chunks")), PermissionError | LayoutError)
    assert isinstance(as_nobody(lambda: made.run()), PermissionError | LayoutError)
    assert not (place / "y.chunks").exists()


def test_a_parent_that_may_not_be_written(place: Path) -> None:
    (place / "locked").mkdir()
    (place / "locked").chmod(0o555)
    error = as_nobody(lambda: plan(place, "locked/y.chunks").run())
    assert isinstance(error, PermissionError)
    assert str(place / "locked" / "y.chunks") in str(error)
    assert list((place / "locked").iterdir()) == []


def test_a_complete_destination_that_may_not_be_written(place: Path) -> None:
    """``force`` fails before anything is lost."""
    plan(place).run()
    target = place / "y.chunks"
    target.chmod(0o555)
    error = as_nobody(lambda: plan(place, dtype="f16").run(force=True))
    assert isinstance(error, PermissionError)
    assert str(target) in str(error)
    assert (rl.open(target).numpy() == numbers(6, 10, 8, 8)).all()


def test_an_incomplete_destination_that_may_not_be_written(place: Path) -> None:
    target = place / "y.chunks"
    with plan(place).start() as run:
        run.record([run.plan.task(0).run()])
    for path in (target / ".relayout" / "journal", target / ".relayout", target):
        path.chmod(0o555 if path.is_dir() else 0o444)
    for options in ({"resume": True}, {"force": True}):
        error = as_nobody(lambda options=options: plan(place).run(**options))
        assert isinstance(error, PermissionError)
        assert str(target) in str(error)
    assert "1 of 3 blocks of a conversion are done" in opened(target)


def test_chunks_that_may_not_be_written(place: Path) -> None:
    """The journal may be, so the conversion begins; its first chunk is refused."""
    target = place / "y.chunks"
    with plan(place).start():
        pass
    os.chmod(target / ".relayout", 0o777)
    os.chmod(target / ".relayout" / "journal", 0o666)
    target.chmod(0o555)
    error = as_nobody(lambda: plan(place).run(resume=True))
    assert isinstance(error, PermissionError)
    assert str(target) in str(error)
    assert "0 of 3 blocks" in opened(target)
    assert not list(target.glob("*.npy"))


@pytest.mark.parametrize("what", ["chunk", "folder"])
def test_an_intermediate_that_may_not_be_read(what: str, place: Path) -> None:
    target = place / "y.chunks"
    with plan(place, passes=2).start() as run:
        run.record([run.plan.task(number).run() for number in run.plan.passes[0].tasks])
        done = len(run.done)
    between = target / ".relayout" / "between"
    for path in target.rglob("*"):
        path.chmod(0o777 if path.is_dir() else 0o666)
    target.chmod(0o777)
    locked = between if what == "folder" else sorted(between.iterdir())[0]
    locked.chmod(0o700 if os.geteuid() == 0 and what == "folder" else 0)
    error = as_nobody(lambda: plan(place, passes=2).run(resume=True))
    assert isinstance(error, PermissionError)
    assert str(between) in str(error)
    assert f"{done} of " in opened(target)
    locked.chmod(0o777)
    assert as_nobody(lambda: plan(place, passes=2).run(resume=True).resumed) == done
    assert (rl.open(target).numpy() == numbers(6, 10, 8, 8)).all()


def test_zarr_stores(place: Path) -> None:
    zarr = pytest.importorskip("zarr")
    x = numbers(8, 6)
    array = zarr.create_array(place / "x.zarr", shape=x.shape, chunks=(2, 6), dtype="f4")
    array[...] = x
    for path in [place / "x.zarr", *(place / "x.zarr").rglob("*")]:
        path.chmod(0o777 if path.is_dir() else 0o666)
    made = stores.plan(place / "x.zarr", place / "y.zarr", "ba", rates=RATES, threads=1)
    made.run()
    shutil.rmtree(place / "y.zarr")
    chunk = place / "x.zarr" / "c" / "2" / "0"
    chunk.chmod(0)
    error = as_nobody(lambda: made.run())
    assert isinstance(error, PermissionError)
    assert str(chunk) in str(error)
    assert "not complete" in opened(place / "y.zarr")
    chunk.chmod(0o666)
    (place / "x.zarr" / "zarr.json").chmod(0)
    error = as_nobody(lambda: rl.open(place / "x.zarr"))
    assert isinstance(error, PermissionError | LayoutError)
