"""The ONNX project's own backend suite against Relayout's backend, with a count.

::

    python tests/onnx_suite.py                    all 2,033 tests
    python tests/onnx_suite.py --part 1/4         the first quarter
    python tests/onnx_suite.py resize lstm        those whose names have one of the words
    python tests/onnx_suite.py --verbose          with the error of each test that fails

A test passes if it runs and its results agree. One that raises ``unittest.SkipTest``, or the suite's own
``BackendIsNotSupposedToImplementIt``, which the suite counts as passed, is counted apart. So is one whose
numbers are *random*: a Bernoulli draws others than the suite's author did, with a seed too, as ONNX does not
say which generator it is for. Dims and data types have to agree there.

Sequences are compared array by array: the suite asks each array for its length, which one without axes does
not have, whoever computes it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import traceback
import unittest
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple


class Outcome(NamedTuple):
    """What became of a test: ``passed``, ``refused``, ``random`` or ``failed``, and why."""

    kind: str
    why: str = ""


class NotImplementedHere(Exception):
    """In the place of the exception that the suite takes for a pass."""


RANDOM = "bernoulli"
"""In the names of tests whose results are random by definition."""


def by_arrays(agree: Callable[..., None]) -> Callable[..., None]:
    """The suite's comparison of results, with the arrays of sequences in the place of these."""

    def compare(cls: type, ref_outputs: Any, outputs: Any, *tolerance: Any, **named: Any) -> None:
        wanted, got = list(ref_outputs), list(outputs)
        for place in reversed(range(len(wanted) if len(wanted) == len(got) else 0)):
            both = wanted[place], got[place]
            if all(isinstance(one, list) for one in both) and len(both[0]) == len(both[1]):
                wanted[place : place + 1], got[place : place + 1] = both
        agree(cls, wanted, got, *tolerance, **named)

    return compare


def tests() -> dict[str, Callable[[], None]]:
    """All tests of the suite for the processor, by category and name."""
    from onnx.backend.test import BackendTest, runner

    from relayout.onnx.backend import RelayoutBackend

    runner.BackendIsNotSupposedToImplementIt = NotImplementedHere  # type: ignore[attr-defined]
    own = runner.Runner.assert_similar_outputs.__func__
    if own.__name__ != "compare":
        runner.Runner.assert_similar_outputs = classmethod(by_arrays(own))  # type: ignore[assignment]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the suite makes its data by dividing by zero, too
        suite = BackendTest(RelayoutBackend, __name__)
    found: dict[str, Callable[[], None]] = {}
    for category, case in suite.test_cases.items():
        for name in dir(case):
            if name.startswith("test_") and name.endswith("_cpu"):
                found[f"{category}.{name}"] = getattr(case(name), name)
    return found


def outcome(test: Callable[[], None], name: str = "") -> Outcome:
    """Run one."""
    try:
        test()
    except (unittest.SkipTest, NotImplementedHere) as error:
        return Outcome("refused", str(error))
    except Exception as error:  # the suite asks for any
        if RANDOM in name and isinstance(error, AssertionError) and "Not equal to tolerance" in str(error):
            return Outcome("random", "numbers are random by definition; dims and data types agree")
        last = traceback.extract_tb(error.__traceback__)[-1]
        return Outcome("failed", f"{type(error).__name__} in {last.name}: {error}")
    return Outcome("passed")


def part_of(names: list[str], part: str) -> list[str]:
    """Every n-th name: ``"2/5"`` is the second of five parts."""
    number, _, of = part.partition("/")
    return names[int(number) - 1 :: int(of)]


def outcomes(names: list[str], every: dict[str, Callable[[], None]]) -> Iterator[tuple[str, Outcome, float]]:
    """Run several; the suite's downloads and copies go to a folder that is deleted afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ONNX_MODELS"] = folder
        try:
            for name in names:
                start = time.perf_counter()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    yield name, outcome(every[name], name), time.perf_counter() - start
        finally:
            del os.environ["ONNX_MODELS"]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("words", nargs="*", help="only tests whose names have one of these")
    parser.add_argument("--part", default="1/1", help="every n-th test, from the k-th on: k/n")
    parser.add_argument("--verbose", action="store_true", help="print why tests fail")
    options = parser.parse_args()
    every = tests()
    names = [name for name in every if not options.words or any(word in name for word in options.words)]
    counts = dict.fromkeys(("passed", "refused", "random", "failed"), 0)
    slowest: list[tuple[float, str]] = []
    for name, result, seconds in outcomes(part_of(names, options.part), every):
        counts[result.kind] += 1
        slowest.append((seconds, name))
        if result.kind != "passed":
            why = " ".join(result.why.split())
            print(f"{result.kind:8} {name}" + (f": {why[:300]}" if options.verbose else ""))
    print(
        f"{sum(counts.values())} tests of {len(every)}: "
        + ", ".join(f"{n} {kind}" for kind, n in counts.items())
    )
    if options.verbose:
        print("slowest: " + ", ".join(f"{name} {seconds:.1f} s" for seconds, name in sorted(slowest)[:-6:-1]))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
