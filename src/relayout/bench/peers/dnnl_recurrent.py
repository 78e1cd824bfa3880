"""Recurrent primitives of oneDNN, by its C interface: what ours are held against.

Data are row-major; weights and their gradients have the formats that oneDNN chooses. Arguments are called as
those of :mod:`relayout.primitives.recurrent`, and have the same dims.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relayout.bench.peers import dnnl
from relayout.ops.recurrent import ATTENTIVE

__all__ = ["Backward", "Layer"]

Arrays = Mapping[str, NDArray[Any]]

CELLS = {
    "rnn": "vanilla_rnn",
    "lstm": "lstm",
    "gru": "gru",
    "lbr_gru": "lbr_gru",
    "augru": "augru",
    "lbr_augru": "lbr_augru",
}
DIRECTIONS = {"left2right": 1, "right2left": 2, "bidirectional_concat": 3, "bidirectional_sum": 4}
TRAINING, INFERENCE, BACKWARD, TANH = 64, 96, 128, 0x21
OVERWRITE = 1  # of what backward primitives do with gradients of weights: not added to what is there
NUMBERS = {
    "src_layer": 1,
    "src_iter": 2,
    "src_iter_c": 3,
    "attention": 4,
    "dst_layer": 17,
    "dst_iter": 18,
    "dst_iter_c": 19,
    "weights_layer": 33,
    "weights_iter": 34,
    "weights_peephole": 35,
    "weights_projection": 36,
    "bias": 41,
    "workspace": 64,
}
NUMBERS |= {f"diff_{name}": number + 128 for name, number in NUMBERS.items()}
TAGS = {5: "abcde", 4: "abcd", 3: "abc"}
FREE = {"weights_layer": 0, "weights_iter": 1}  # oneDNN chooses their formats; and their places in questions
WEIGHTS, DIFF_WEIGHTS, WORKSPACE = 131, 132, 135  # dnnl_query_weights_md and so on


def arguments_of(cell: str) -> tuple[list[str], list[str]]:
    """What a primitive is made of: what the forward pass reads, and its results, in oneDNN's order."""
    lstm = cell == "lstm"
    read = [
        *("src_layer", "src_iter", *["src_iter_c"] * lstm, *["attention"] * (cell in ATTENTIVE)),
        *("weights_layer", "weights_iter"),
        *["weights_peephole", "weights_projection"] * lstm,
        "bias",
    ]
    return read, ["dst_layer", "dst_iter", *["dst_iter_c"] * lstm]


class _Recurrent(dnnl.Primitive):
    """What both directions share: all data row-major; weights in the format that oneDNN chooses."""

    def __init__(self, library: dnnl.Library, cell: str, direction: str) -> None:
        super().__init__(library)
        library.c.dnnl_primitive_desc_query_md.restype = dnnl.Handle
        self.cell, self.direction = cell, direction

    def described_as(self, name: str, data: Arrays) -> Any:
        if name not in data:
            return None
        shape = data[name].shape
        free = name.removeprefix("diff_") in FREE
        return self.described(shape, "f32", "any" if free else TAGS[len(shape)])

    def made(self, way: str, kind: int, descs: list[Any], flags: int, *more: Any) -> dnnl.Handle:
        rnn = self.cell == "rnn"
        middle = [ctypes.c_float(0), ctypes.c_float(0)] if rnn else []
        return self.primitive_desc(
            f"{CELLS[self.cell]}_{way}",
            self.library.engine,
            kind,
            *[TANH] * rnn,
            DIRECTIONS[self.direction],
            *descs,
            ctypes.c_uint(flags),
            *middle,
            *more,
            self.attributes(),
        )

    def asked(self, made: dnnl.Handle, question: int, number: int = 0) -> dnnl.Handle:
        return dnnl.Handle(self.library.c.dnnl_primitive_desc_query_md(made, question, number))

    def empty(self, desc: dnnl.Handle) -> NDArray[Any]:
        return np.zeros(self.library.size(desc) + 64, np.uint8)

    def given(self, made: dnnl.Handle, name: str, data: NDArray[Any], desc: Any) -> tuple[int, dnnl.Handle]:
        """An argument that is read."""
        if name in FREE:
            desc, plain = self.asked(made, WEIGHTS, FREE[name]), self.described(data.shape, "f32", TAGS[5])
            buffer = self.empty(desc)
            dnnl.Reorder(self.library, plain, data, desc, buffer)()
            data = buffer
        return NUMBERS[name], self.memory(desc, data)


class Layer(_Recurrent):
    """A layer with all its data; in training with a workspace."""

    def __init__(
        self,
        library: dnnl.Library,
        cell: str,
        direction: str,
        data: Arrays,
        dims: Mapping[str, tuple[int, ...]],
        training: bool = False,
    ) -> None:
        super().__init__(library, cell, direction)
        self.data = {name: np.ascontiguousarray(one, np.float32) for name, one in data.items()}
        self.results = {name: np.zeros(size, np.float32) for name, size in dims.items()}
        both = self.data | self.results
        names = [name for side in arguments_of(cell) for name in side]
        descs = [self.described_as(name, both) for name in names]
        self.desc = self.made("forward", TRAINING if training else INFERENCE, descs, 0)
        self.name = library.implementation(self.desc)
        arguments = [
            self.given(self.desc, name, both[name], one)
            for name, one in zip(names, descs, strict=True)
            if one is not None
        ]
        if training:
            desc = self.asked(self.desc, WORKSPACE)
            self.workspace = self.empty(desc)
            arguments.append((NUMBERS["workspace"], self.memory(desc, self.workspace)))
        self.ready(self.desc, arguments)


class Backward(_Recurrent):
    """The backward pass through a layer, with gradients of its results."""

    def __init__(self, forward: Layer, diffs: Arrays) -> None:
        super().__init__(forward.library, forward.cell, forward.direction)
        read, written = arguments_of(forward.cell)
        data = forward.data | forward.results
        data |= {name: np.ascontiguousarray(one, np.float32) for name, one in diffs.items()}
        self.results = {f"diff_{n}": np.zeros(one.shape, np.float32) for n, one in forward.data.items()}
        data |= self.results
        names = [*read, *written, *(f"diff_{name}" for name in (*read, *written))]
        descs = [self.described_as(name, data) for name in names]
        made = self.made("backward", BACKWARD, descs, OVERWRITE, forward.desc)
        self.name = self.library.implementation(made)
        arguments, self.back = [], []
        for name, one in zip(names, descs, strict=True):
            if one is None:
                continue
            which = name.removeprefix("diff_")
            if which != name and which in FREE:
                chosen = self.asked(made, DIFF_WEIGHTS, FREE[which])
                buffer, plain = self.empty(chosen), self.described(data[name].shape, "f32", TAGS[5])
                self.back.append(dnnl.Reorder(self.library, chosen, buffer, plain, data[name]))
                arguments.append((NUMBERS[name], self.memory(chosen, buffer)))
            else:
                arguments.append(self.given(made, name, data[name], one))
        workspace = self.memory(self.asked(forward.desc, WORKSPACE), forward.workspace)
        self.ready(made, [*arguments, (NUMBERS["workspace"], workspace)])

    def gradients(self) -> dict[str, NDArray[Any]]:
        """What the last call has made."""
        for one in self.back:
            one()
        return self.results
