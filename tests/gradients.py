"""Gradients held against PyTorch's, in double precision, for as many random configurations as one likes.

Each subject has a module ``gradients_SUBJECT`` beside this one with a table ``CASES``: for each kind of
backward primitive a function that draws one configuration (sizes, formats, data types, attributes) from a
``random.Random`` and returns a :class:`Case`: the primitive, its inputs as logical arrays, and what PyTorch
says of it. The tests try some; the whole is one command::

    python tests/gradients.py --count 10000 --seed 1

What PyTorch is given are the inputs as the data types of the primitive hold them, so that only the rounding
of results and of sums is left to differ.
"""

from __future__ import annotations

import argparse
import importlib
import random
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import relayout as rl
from relayout.convert import convert
from relayout.dtypes import dtype
from relayout.primitives.primitive import Primitive

STEP = {"f64": 2.0**-52, "f32": 2.0**-23, "bf16": 2.0**-7, "f16": 2.0**-10}
"""The distance of 1 to the next number of a data type."""
SMALLEST = {"f16": 2.0**-24}
"""The least number of a data type, where results come near it."""


@dataclass
class Case:
    """One configuration.

    Attributes
    ----------
    primitive : Primitive
        The backward primitive.
    inputs : mapping of str to ndarray
        Its inputs by name, logical, as :func:`held` returns them.
    expected : mapping of str to ndarray
        Its outputs by name, logical, in double precision: what PyTorch says.
    terms : mapping of str to ndarray or float
        For each output the sum of the magnitudes of what is added up for an element, or a bound of it: errors
        of sums in f32 are relative to that, not to a result that may be 0.
    """

    primitive: Primitive
    inputs: Mapping[str, np.ndarray]
    expected: Mapping[str, np.ndarray]
    terms: Mapping[str, np.ndarray | float]

    def check(self) -> None:
        """The primitive computes what PyTorch does.

        Raises
        ------
        AssertionError
            It does not; the message has the primitive.
        """
        made = self.primitive
        given = [rl.tensor(self.inputs[name], made.descs[name].layout, dtype=made.descs[name].dtype)
                 for name in made.inputs]  # fmt: skip
        found = made(*given)
        for name, one in zip(made.outputs, (found,) if len(made.outputs) == 1 else found, strict=True):
            kind = one.desc.dtype.name
            got, wanted = one.numpy().astype(np.float64), self.expected[name]
            assert got.shape == wanted.shape, f"{name} of {made!r}"
            sums = 64 * STEP["f32"] * np.asarray(self.terms[name])
            bound = STEP.get(kind, 1.0) * np.abs(wanted) + sums + SMALLEST.get(kind, 1e-37)
            wrong = ~(np.abs(got - wanted) <= bound) & ~(np.isnan(got) & np.isnan(wanted))
            if wrong.any():
                at = tuple(int(k) for k in np.argwhere(wrong)[0])
                raise AssertionError(
                    f"{name}{list(at)} of {made!r} ({made.implementation}) is {got[at]!r}, "
                    f"PyTorch says {wanted[at]!r}; "
                    f"{wrong.sum()} of {wrong.size} differ"
                )


def held(rng: random.Random, dims: tuple[int, ...], kind: str) -> np.ndarray:
    """Normally distributed numbers, as a data type holds them, in double precision."""
    numbers = np.random.default_rng(rng.getrandbits(32)).standard_normal(dims)
    return np.asarray(convert(numbers, dtype(kind))).astype(np.float64)


def subjects() -> dict[str, Callable[[random.Random], Case]]:
    """What draws a configuration, by kind, of all modules beside this one."""
    here = Path(__file__).parent
    sys.path[:0] = [] if str(here) in sys.path else [str(here)]
    found: dict[str, Callable[[random.Random], Case]] = {}
    for path in sorted(here.glob("gradients_*.py")):
        found |= importlib.import_module(path.stem).CASES
    return found


def main() -> None:
    """Try so many configurations, the kinds in turn, and say how many failed."""
    parser = argparse.ArgumentParser(description="Hold gradients against PyTorch's.")
    parser.add_argument("--count", type=int, default=10000, help="how many configurations (10000)")
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers (0)")
    parser.add_argument("--only", default="", help="kinds whose name contains this")
    options = parser.parse_args()
    known = {name: draw for name, draw in subjects().items() if options.only in name}
    if not known:
        parser.error(f"there is no kind {options.only!r}")
    failed: dict[str, int] = dict.fromkeys(known, 0)
    tried, shown, started = dict.fromkeys(known, 0), 0, time.monotonic()
    for number in range(options.count):
        name = list(known)[number % len(known)]
        tried[name] += 1
        try:
            known[name](random.Random(f"{name} {options.seed} {number}")).check()
        except Exception as error:
            failed[name] += 1
            print(f"\r{name}, number {number}: {type(error).__name__}: {error}")
        if time.monotonic() - started > shown:
            shown += 5
            print(f"\r{number + 1} of {options.count}, {sum(failed.values())} failed", end="", flush=True)
    print()
    for name in known:
        print(f"{name:40} {tried[name]:6} tried {failed[name]:6} failed")
    sys.exit(any(failed.values()))


if __name__ == "__main__":
    main()
