"""The shuffles of a tile: what they give, and how many registers they need."""

import pytest

from relayout.kernels.copy import network
from relayout.kernels.copy.network import Network

TILES = [
    (bits, columns, elements)
    for bits in (8, 16, 32, 64)
    for columns in (1, 2, 4, 8, 16)
    for elements in (1, 2, 4, 8, 16, 32)
    if columns <= min(elements, 128 // bits) and elements * bits <= 256
]


@pytest.mark.parametrize(("bits", "columns", "elements"), TILES)
def test_columns_come_one_after_the_other(monkeypatch, bits, columns, elements):
    """The right ones, and while they do, no more values are kept than there are columns, and one."""
    net = Network(bits, columns, elements)
    alive, most = set(), 0
    values = {}

    def keep(value):
        nonlocal most
        name = len(values)
        values[name] = value
        alive.add(name)
        most = max(most, len(alive))
        return name

    def unpack(_, one, two, unit, upper):
        per = unit // bits
        x, y, made = values[one], values[two], []
        places = min(128 // bits, elements)
        for lane in range(0, elements, places):
            for k in range(lane + upper * places // 2, lane + (1 + upper) * places // 2, per):
                made += x[k : k + per] + y[k : k + per]
        if upper:
            alive.difference_update((one, two))
        return keep(made)

    monkeypatch.setattr(network, "_unpacked", unpack)

    def load(number):
        return keep([(row, column) for row in net.rows[number] for column in range(columns)])

    whole = net.transposed(None, load)
    assert [values[name] for name in whole] == [[(r, c) for r in range(elements)] for c in range(columns)]
    alive.clear()
    most = 0
    found = {}
    for column, name in net.in_depth(None, load):
        found[column] = values[name]
        alive.discard(name)
    assert [found[column] for column in range(columns)] == [values[name] for name in whole]
    assert most <= columns + 1 or columns == 1
