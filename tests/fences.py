"""Buffers between pages that can't be touched: a stray access ends the process, so that is one of its own."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

_kept = []


def arena(room):
    """A piece of memory between two protected pages: where it begins and where it ends."""
    page, libc = mmap.PAGESIZE, ctypes.CDLL(None, use_errno=True)
    memory = np.frombuffer(mmap.mmap(-1, room + 2 * page), np.uint8)
    _kept.append(memory)
    base = memory.ctypes.data
    for at in (base, base + page + room):
        assert libc.mprotect(ctypes.c_void_p(at), ctypes.c_size_t(page), 0) == 0
    return base + page, base + page + room


def run_between(made, arenas):
    """Run a primitive's program with all buffers, scratch too, at the beginning and at the end of arenas."""
    program = made._compiled()
    sizes = {name: desc.required_bytes for name, desc in made.descs.items()} | program.scratch
    program.scratch = {}
    assert len(sizes) <= len(arenas)
    for at_end in (False, True):
        print(made, made.implementation, at_end, file=sys.stderr)
        places = zip(arenas, sizes.items(), strict=False)
        program({name: end - size if at_end else start for (start, end), (name, size) in places}, 1)


def output_of(script):
    """What a script prints, which may import the tests; an error if it does not end as it should."""
    if os.name == "nt":
        pytest.skip("there is no mprotect")
    path = f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r})\n"
    command = [sys.executable, "-c", path + textwrap.dedent(script)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, (ran.returncode, ran.stderr[-2000:])
    return ran.stdout
