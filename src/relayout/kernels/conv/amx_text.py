"""The text of a direct convolution whose tiles are those of AMX.

Tasks, packing and unpacking are those of the other tile (:mod:`.convolution`). Two things are added.

**Configuration**, a state of the thread: tiles of different sizes want different ones, and to change it takes
200 cycles. So pixels that are left over are computed with some that have been computed before, which needs no
other configuration. Where one is needed (fewer output channels, say) it is set: the kernel notes which one
is, none at first, compares before each tile, and releases it behind the last task, whoever has called it.

**Epilogues one tile late.** Products of 2 x 2 tiles take 64 cycles for each 64 bytes of channels, and what
becomes of their 1024 sums about three times as long: 64 vectors, each with six operations and more. Products
have a unit of their own, so both could go on at once. But a processor takes instructions up in their order,
and those of an epilogue that wait for sums fill its queues: nothing behind them is seen before the sums are
there. So the epilogue of a tile comes behind the products of the next one, which are few instructions and
wait for nothing. It finds its own sums in memory, and is done while the products go on::

    current = pending = none
    for each task ... for each tile of pixels:
        if current is not that of this tile:   configure, and note it
        products of this tile                  in tiles
        finish(pending)                        the epilogue of the tile before, from memory
        sums of this tile                      from tiles to memory
        pending = this tile                    which it is, and the pointers of its epilogue
    finish(pending)
    release

Where results are read again (rows that are unpacked), or what the epilogue reads is about to be written, that
is finished first (:meth:`~.convolution.DirectModule.settle`): where sums begin with offsets of zero points,
at the end of each group. Interleaving both is what Intel's optimization manual recommends in its chapter on
AMX; how much it gains has not been measured here.
"""

from __future__ import annotations

from collections.abc import Sequence

from relayout.ir.amx import STATE, Shape, Tiles, configuration, emulation
from relayout.ir.builder import Function
from relayout.ir.types import I64, PTR, Value, constant
from relayout.kernels.conv.amx import (
    SUMS,
    finishing_function,
    products_function,
    shapes_of,
    storing_function,
)
from relayout.kernels.conv.convolution import DirectModule, Rows
from relayout.kernels.conv.direct import Block, Direct
from relayout.kernels.conv.epilogue import Epilogue
from relayout.kernels.conv.tile import Emit, Tile
from relayout.targets.machine import LINE

__all__ = ["amx_module"]

NONE = -1  # the number of no configuration, and of no tile
FINISH = "finish"  # the function that writes the results of the tile that is pending


def amx_module(nest: Direct, rows: Rows, epilogue: Epilogue) -> str:
    """The text of all functions."""
    return _Module(nest, rows, epilogue).text()


class _Module(DirectModule):
    """Writes the tasks of a plan, and the tiles."""

    def __init__(self, nest: Direct, rows: Rows, epilogue: Epilogue) -> None:
        super().__init__(nest, rows, epilogue)
        self.configurations: dict[tuple[Shape, ...], int] = {}
        self.wants: dict[str, int] = {}  # the configuration of each tile
        self.emulated = "amx-tile" in nest.machine.emulates

    def text(self) -> str:
        """With configurations, what does instead of instructions, and the choice of the epilogue."""
        text = super().text()
        sizes = [configuration(f"tiles{number}", one) for one, number in self.configurations.items()]
        others = [emulation(self.nest.machine) if self.emulated else "", self._finish_text()]
        return "\n".join([*sizes, *others, text])

    @property
    def noted(self) -> int:
        """How many pointers the epilogue of a tile wants: where its results go, and the further ones."""
        return 1 + len(self.extra)

    def all_tasks(self, first: Value, end: Value) -> None:
        """No configuration is left behind, and no sums."""
        b = self.b
        self.current = b.alloca(I64.bytes, I64.bytes)
        self.pending = b.alloca(I64.bytes * (1 + self.noted), I64.bytes)
        self.room = b.alloca(SUMS, LINE)
        self.state = [b.alloca(STATE, LINE)] if self.emulated else []
        b.store(constant(I64, NONE), self.current)
        b.store(constant(I64, NONE), self.pending)
        super().all_tasks(first, end)
        self.settle()
        Tiles(b, *self.state).release()

    def settle(self) -> None:
        """Write the results of the tile that is pending, if one is."""
        self.b.call(FINISH, self.pending, self.room)

    def call(
        self, name: str, pointers: Sequence[Value], channel: Value, target: Value, counts: Sequence[Value]
    ) -> None:
        """Compute a tile, and write the results of the one before."""
        assert not counts, "taps fall outside of rows that are not packed"
        b, wanted = self.b, self.wants[name]

        def configure() -> None:
            Tiles(b, *self.state).configure(Value(f"@tiles{wanted}", PTR))
            b.store(constant(I64, wanted), self.current)

        b.when(b.icmp("ne", b.load(I64, self.current), wanted), configure)
        source, weights, *others = pointers
        b.call(name, source, weights, *self.state)
        self.settle()
        b.call(_sums(name), self.room, *self.state)
        others += self.epilogue.pointers(b, self.operands, channel, target)
        b.store(constant(I64, [*self.wants].index(name)), self.pending)
        for k, pointer in enumerate(others, 1):
            b.store(pointer, b.gep(self.pending, k * I64.bytes))

    def _finish_text(self) -> str:
        """The epilogue of whichever tile is pending; none is behind it."""
        f = Function(FINISH, {"pending": PTR, "room": PTR}, self.nest.machine, "internal", "noinline")
        number = f.load(I64, f["pending"])
        for k, name in enumerate(self.wants):

            def results(name: str = name) -> None:
                noted = [f.load(PTR, f.gep(f["pending"], at * I64.bytes)) for at in range(1, 1 + self.noted)]
                f.call(_results(name), f["room"], *noted)

            f.when(f.icmp("eq", number, k), results)
        f.store(constant(I64, NONE), f["pending"])
        return f.text()

    def computed(self, rows: int, columns: int) -> Block:
        """A tile of what is left over computes as many pixels as others, and stores the last ones.

        So it takes no other configuration. Rows that a task has not packed can't be computed again.
        """
        nest, (tall, wide) = self.nest, self.nest.block
        last = nest.dims[2].extent % nest.rows or nest.rows  # rows of the last task, the only one with a rest
        here = rows == tall or not nest.packs or last >= tall
        return Block(tall, wide) if here and nest.dims[2].extent >= tall else Block(rows, columns)

    def tile_text(self, name: str, tile: Tile, epilogue: Emit) -> str:
        """The three functions of a tile of AMX."""
        self.wants[name] = self.configurations.setdefault(shapes_of(tile), len(self.configurations))
        machine = self.nest.machine
        return "\n".join(
            [
                products_function(name, tile, machine, self.emulated),
                storing_function(_sums(name), tile, machine, self.emulated),
                finishing_function(_results(name), tile, machine, self.extra, epilogue),
            ]
        )


def _sums(name: str) -> str:
    """The function that brings the sums of a tile to memory."""
    return f"{name}.sums"


def _results(name: str) -> str:
    """The function that makes results of them."""
    return f"{name}.results"
