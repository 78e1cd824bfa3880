"""Recurrent primitives of oneDNN, by its C interface: what ours are held against."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from relayout.bench.peers import dnnl

CELLS = {"rnn": "vanilla_rnn", "lstm": "lstm", "gru": "gru", "lbr_gru": "lbr_gru"}
DIRECTIONS = {"left2right": 1, "right2left": 2, "bidirectional_concat": 3, "bidirectional_sum": 4}
INFERENCE, TANH = 96, 0x21
NUMBERS = {
    "src_layer": 1,
    "src_iter": 2,
    "src_iter_c": 3,
    "dst_layer": 17,
    "dst_iter": 18,
    "dst_iter_c": 19,
    "weights_layer": 33,
    "weights_iter": 34,
    "weights_peephole": 35,
    "weights_projection": 36,
    "bias": 41,
}
TAGS = {5: "abcde", 4: "abcd", 3: "abc"}
WEIGHTS = 131  # dnnl_query_weights_md


class Layer(dnnl.Primitive):
    """A layer with all its data, row-major; weights in the format that oneDNN chooses."""

    def __init__(
        self,
        library: dnnl.Library,
        cell: str,
        direction: str,
        data: Mapping[str, np.ndarray],
        dims: Mapping[str, tuple[int, ...]],
    ) -> None:
        super().__init__(library)
        library.c.dnnl_primitive_desc_query_md.restype = dnnl.Handle
        self.results = {name: np.zeros(size, np.float32) for name, size in dims.items()}
        both = {name: np.ascontiguousarray(one, np.float32) for name, one in data.items()} | self.results
        free = ("weights_layer", "weights_iter")

        def desc(name: str) -> Any:
            if name not in both:
                return None
            shape = both[name].shape
            return self.described(shape, "f32", "any" if name in free else TAGS[len(shape)])

        lstm = cell == "lstm"
        names = [
            *("src_layer", "src_iter", *["src_iter_c"] * lstm, "weights_layer", "weights_iter"),
            *["weights_peephole", "weights_projection"] * lstm,
            *("bias", "dst_layer", "dst_iter", *["dst_iter_c"] * lstm),
        ]
        given = [desc(name) for name in names]
        more = [TANH] if cell == "rnn" else []
        middle = [*given, ctypes.c_uint(0)]
        if cell == "rnn":
            middle += [ctypes.c_float(0), ctypes.c_float(0)]
        made = self.primitive_desc(
            f"{CELLS[cell]}_forward",
            library.engine,
            INFERENCE,
            *more,
            DIRECTIONS[direction],
            *middle,
            self.attributes(),
        )
        self.name = library.implementation(made)
        arguments = []
        for name, one in zip(names, given, strict=True):
            if one is None:
                continue
            buffer = both[name]
            if name in free:
                query = library.c.dnnl_primitive_desc_query_md
                chosen = dnnl.Handle(query(made, WEIGHTS, free.index(name)))
                plain = self.described(buffer.shape, "f32", TAGS[5])
                buffer = np.zeros(library.size(chosen) + 64, np.uint8)
                dnnl.Reorder(library, plain, both[name], chosen, buffer)()
                one = chosen
            arguments.append((NUMBERS[name], self.memory(one, buffer)))
        self.ready(made, arguments)


def library() -> dnnl.Library:
    """oneDNN, or the test is skipped."""
    found = dnnl.library()
    if found is None:
        pytest.skip("oneDNN is not installed")
    return found
