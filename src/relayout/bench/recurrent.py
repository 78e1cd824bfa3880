"""Recurrent layers that are measured: LSTM, and GRU with linear before reset, of one layer in one direction.

Data and state are equally wide, as in the layers of a stack. An inference gives all states; training keeps
what the backward pass needs, too; backward gives gradients of data, weights and biases, and begins with the
data as gradients of the states, which have the same dims.

>>> for layer in layers("LSTM", 16)[:4]:
...     print(layer)
lstm.512 inference t32n16c512o512
lstm.512 training t32n16c512o512
lstm.512 backward t32n16c512o512
lstm.1024 inference t32n16c1024o1024
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BATCHES", "CELLS", "GATES", "Recurrent", "layers"]

GATES = {"lstm": 4, "lbr_gru": 3}
"""The cells, and how many gates they have. This GRU is the one that PyTorch has."""
CELLS = {"LSTM": "lstm", "GRU": "lbr_gru"}
"""The cells, by the names that the bench has for them."""
WAYS = ("inference", "training", "backward")
BATCHES = (1, 16, 64)
UNITS = (512, 1024)
STEPS = 32


@dataclass(frozen=True)
class Recurrent:
    """One layer of f32, with a bias and without an initial state.

    Attributes
    ----------
    cell : str
        ``lstm`` or ``lbr_gru``.
    way : str
        ``inference``, ``training`` or ``backward``.
    batch, units, steps : int
        Rows, width of data and state, elements of a sequence.

    Examples
    --------
    >>> layer = Recurrent("lstm", "inference", 16, 512)
    >>> layer.src_dims, layer.weights_dims, layer.bias_dims, layer.flops
    ((32, 16, 512), (2, 512, 4, 512), (4, 512), 2147483648)
    """

    cell: str
    way: str
    batch: int
    units: int
    steps: int = STEPS
    count: int = 1

    @property
    def name(self) -> str:
        """Cell and width."""
        return f"{self.cell.removeprefix('lbr_')}.{self.units}"

    @property
    def src_dims(self) -> tuple[int, ...]:
        """Steps, rows, channels."""
        return self.steps, self.batch, self.units

    @property
    def weights_dims(self) -> tuple[int, ...]:
        """Those of the data and those of the state: inputs, gates, units of each."""
        return 2, self.units, GATES[self.cell], self.units

    @property
    def bias_dims(self) -> tuple[int, ...]:
        """Gates and units; with linear before reset the state has a bias of its own."""
        return GATES[self.cell] + (self.cell == "lbr_gru"), self.units

    @property
    def dst_dims(self) -> tuple[int, ...]:
        """All states."""
        return self.src_dims

    @property
    def flops(self) -> int:
        """Multiplications and additions of the products; backward each has two."""
        products = 2 * self.steps * self.batch * 2 * self.units * GATES[self.cell] * self.units
        return products * (2 if self.way == "backward" else 1)

    def __str__(self) -> str:
        return f"{self.name} {self.way} t{self.steps}n{self.batch}c{self.units}o{self.units}"


def layers(name: str, batch: int) -> list[Recurrent]:
    """All that is measured of one of :data:`CELLS`."""
    return [Recurrent(CELLS[name], way, batch, units) for units in UNITS for way in WAYS]
