"""What docs/cluster.md says of other engines runs as it stands there, on engines that only look like them.

The fakes have the calls of Ray and Beam that are used, and what matters of them: functions and arguments are
pickled and run in fresh processes, in any order, and some run twice.
"""

from __future__ import annotations

import json
import multiprocessing
import pickle
import random
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor
from concurrent.futures import wait as wait_for
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from large import files, planned, source
from relayout import stores

DOCUMENT = Path(__file__).parents[1] / "docs" / "cluster.md"

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # processes that are forked beside threads


def documented(word: str) -> str:
    """The block of code with a word in it."""
    section = DOCUMENT.read_text(encoding="utf-8").partition("## Other engines")[2].partition("\n## ")[0]
    (block,) = [
        text for text in re.findall(r"```(?:text|python)\n(.*?)```", section, re.DOTALL) if word in text
    ]
    return block


def _called(pickled: bytes) -> bytes:
    function, argument = pickle.loads(pickled)
    return pickle.dumps(function(argument))


class Pool:
    """Fresh processes."""

    def __init__(self) -> None:
        self.processes = ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"))

    def submit(self, function: Callable[[Any], Any], argument: Any) -> Future[bytes]:
        return self.processes.submit(_called, pickle.dumps((function, argument)))


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made = Pool()
    with made.processes:
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    source(tmp_path)
    planned(tmp_path, "expected.chunks", passes=2).run(threads=1)
    return tmp_path


def run_documented(word: str, folder: Path, **names: Any) -> None:
    plan = planned(folder, "y.chunks", passes=2)
    exec(
        compile(documented(word), str(DOCUMENT), "exec"),
        {"plan": plan, "stores": stores, "json": json, **names},
    )
    assert files(folder / "y.chunks") == files(folder / "expected.chunks")


def test_processes_of_this_machine(folder: Path) -> None:
    run_documented("ProcessPoolExecutor", folder)


class Ray:
    """``ray.remote``, ``ray.wait``, ``ray.get``."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def remote(self, function: Callable[[Any], Any]) -> Any:
        return SimpleNamespace(remote=lambda argument: self.pool.submit(function, argument))

    def wait(self, several: list[Any], num_returns: int = 1) -> tuple[list[Any], list[Any]]:
        assert isinstance(several, list)
        assert len(set(map(id, several))) == len(several)
        ended = wait_for(several, return_when=FIRST_COMPLETED).done
        ready = [one for one in several if one in ended][:num_returns]
        return ready, [one for one in several if one not in ready]

    def get(self, several: list[Any]) -> list[Any]:
        assert isinstance(several, list)
        return [pickle.loads(one.result()) for one in several]


def test_ray(folder: Path, pool: Pool) -> None:
    run_documented("ray.remote", folder, ray=Ray(pool))


class Transform:
    """A step of a pipeline: from elements to elements."""

    def __init__(self, step: Callable[[list[Any], Pool], list[Any]]) -> None:
        self.step = step


class Elements:
    """What flows between two steps; ``|`` adds one."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    def __or__(self, transform: Transform) -> Elements:
        self.pipeline.steps.append(transform)
        return self


class Pipeline:
    """``beam.Pipeline``, which runs when its block ends."""

    pool: Pool

    def __init__(self) -> None:
        self.steps: list[Transform] = []

    def __enter__(self) -> Pipeline:
        return self

    def __or__(self, transform: Transform) -> Elements:
        return Elements(self) | transform

    def __exit__(self, kind: Any, *error: object) -> None:
        if kind is None:
            elements: list[Any] = []
            for one in self.steps:
                elements = one.step(elements, self.pool)


def beam(pool: Pool) -> SimpleNamespace:
    """The transforms that are used."""

    def create(values: Iterable[Any]) -> Transform:
        return Transform(lambda _, pool: list(values))

    def reshuffle() -> Transform:
        return Transform(lambda elements, pool: random.sample(elements, len(elements)))

    def mapped(function: Callable[[Any], Any]) -> Transform:
        def step(elements: list[Any], pool: Pool) -> list[Any]:
            again = [pool.submit(function, element) for element in elements[::3]]  # a runner may do so
            answers = [pool.submit(function, element) for element in elements]
            for one in again:
                one.result()
            return [pickle.loads(one.result()) for one in answers]

        return Transform(step)

    def write(prefix: str) -> Transform:
        def step(elements: list[Any], pool: Pool) -> list[Any]:
            for shard in range(2):
                lines = [f"{text}\n" for text in elements[shard::2]]
                Path(f"{prefix}-{shard:05}-of-00002").write_text("".join(lines))
            return []

        return Transform(step)

    Pipeline.pool = pool
    return SimpleNamespace(
        Pipeline=Pipeline,
        Create=create,
        Reshuffle=reshuffle,
        Map=mapped,
        io=SimpleNamespace(WriteToText=write),
    )


def test_beam(folder: Path, pool: Pool) -> None:
    run_documented("beam.Pipeline", folder, beam=beam(pool))
