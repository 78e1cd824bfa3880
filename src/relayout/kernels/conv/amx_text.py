"""The text of a direct convolution whose tiles are those of AMX.

Tasks, packing and unpacking are those of the other tile (:mod:`.convolution`). What is added is the
configuration, a state of the thread: tiles of different sizes want different ones, and to change it takes 200
cycles. So pixels that are left over are computed with some that have been computed before, which needs no
other configuration. Where one is needed (fewer output channels, say) it is set: the kernel notes which one
is, none at first, compares before each tile, and releases it behind the last task, whoever has called it::

    current = none
    for each task ... for each tile of pixels:
        if current is not that of this tile:   configure, and note it
        call the tile
    release
"""

from __future__ import annotations

from collections.abc import Sequence

from relayout.ir.amx import STATE, Shape, Tiles, configuration, emulation
from relayout.ir.types import I64, PTR, Value, constant
from relayout.kernels.conv.amx import EMULATED, amx_function, shapes_of
from relayout.kernels.conv.convolution import DirectModule, Rows
from relayout.kernels.conv.direct import Block, Direct
from relayout.kernels.conv.epilogue import Epilogue
from relayout.kernels.conv.tile import Emit, Tile
from relayout.targets.machine import LINE

__all__ = ["amx_module"]

NONE = -1  # the number of no configuration


def amx_module(nest: Direct, rows: Rows, epilogue: Epilogue) -> str:
    """The text of all functions."""
    return _Module(nest, rows, epilogue).text()


class _Module(DirectModule):
    """Writes the tasks of a plan, and the tiles."""

    def __init__(self, nest: Direct, rows: Rows, epilogue: Epilogue) -> None:
        super().__init__(nest, rows, epilogue)
        self.configurations: dict[tuple[Shape, ...], int] = {}
        self.wants: dict[str, int] = {}  # the configuration of each tile function
        self.emulated = "amx-tile" in nest.machine.emulates

    def text(self) -> str:
        """With configurations, and what does instead of instructions."""
        text = super().text()
        sizes = [configuration(f"tiles{number}", one) for one, number in self.configurations.items()]
        return "\n".join([*sizes, emulation(self.nest.machine) if self.emulated else "", text])

    def all_tasks(self, first: Value, end: Value) -> None:
        """No configuration is left behind."""
        b = self.b
        self.current = b.alloca(I64.bytes, I64.bytes)
        self.state = b.alloca(STATE, LINE) if self.emulated else None
        b.store(constant(I64, NONE), self.current)
        super().all_tasks(first, end)
        Tiles(b, self.state).release()

    def call(
        self, name: str, pointers: Sequence[Value], channel: Value, target: Value, counts: Sequence[Value]
    ) -> None:
        """Configure tiles as this function wants them, and call it."""
        b, number = self.b, self.wants[name]

        def configure() -> None:
            Tiles(b, self.state).configure(Value(f"@tiles{number}", PTR))
            b.store(constant(I64, number), self.current)

        b.when(b.icmp("ne", b.load(I64, self.current), number), configure)
        further = [] if self.state is None else [self.state]
        super().call(name, pointers, channel, target, [*counts, *further])

    def computed(self, rows: int, columns: int) -> Block:
        """A tile of what is left over computes as many pixels as others, and stores the last ones.

        So it takes no other configuration. Rows that a task has not packed can't be computed again.
        """
        nest, (tall, wide) = self.nest, self.nest.block
        last = nest.dims[2].extent % nest.rows or nest.rows  # rows of the last task, the only one with a rest
        here = rows == tall or not nest.packs or last >= tall
        return Block(tall, wide) if here and nest.dims[2].extent >= tall else Block(rows, columns)

    def tile_text(self, name: str, tile: Tile, extra: Sequence[str], epilogue: Emit) -> str:
        """That of a tile of AMX."""
        self.wants[name] = self.configurations.setdefault(shapes_of(tile), len(self.configurations))
        extra = (*extra, EMULATED) if self.emulated else extra
        return amx_function(name, tile, self.nest.machine, extra, epilogue)
