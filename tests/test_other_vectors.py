"""Any primitive with vectors of other widths than this processor's: 16 bytes, as SSE4 has, and 64."""

from __future__ import annotations

from random import Random

import pytest

from elementwise import machine_code
from fences import output_of
from relayout.targets.machine import host

pytestmark = pytest.mark.skipif(
    not machine_code() or host().is_arm or host().vector < 32, reason="this host has no AVX2"
)
DRAWN = 40
"""How many primitives are drawn."""


def check_all(begin, wide):
    """Check primitives of :mod:`drawn` in a process that begins so, with vectors of so many bytes."""
    script = f"""
        {begin}
        import sys
        from random import Random
        from drawn import drawn
        from elementwise import check
        from relayout.targets.machine import host
        from test_any_primitive import slack_of

        assert host().vector == {wide}
        for k in range({DRAWN}):
            made = drawn(Random(f"{Random().getrandbits(32)} {{k}}"))
            print(repr(made), file=sys.stderr)
            check(made, k, slack=slack_of(made.kind))
            print(made.implementation)
    """
    lines = output_of(script).splitlines()
    assert len(lines) == DRAWN
    assert sum(line.startswith("machine code") for line in lines) > DRAWN // 2


@pytest.mark.skipif(machine_code() and host().vector > 32, reason="this host has such registers")
def test_64_bytes_in_halves():
    check_all("import halves; halves.widen()", 64)


def test_16_bytes(monkeypatch):
    monkeypatch.setenv("RELAYOUT_CPU", "x86-64-v2")
    check_all("", 16)
