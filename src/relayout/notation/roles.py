"""What axes mean: the thread that ties the letters of different dialects together.

The letters of a dialect are only letters. That oneDNN's ``nchw`` and clDNN's ``bfyx`` are one format is known
because both say what their axes *are*: batch, channel, height, width. These meanings, the *roles*, are
strings; every dialect maps its letters to them.

=============================  ==================================================================
role                           meaning
=============================  ==================================================================
``n c d h w``                  batch, channel, depth, height, width of data
``s4 s5 s6``                   further spatial axes outside of depth (clDNN's ``w u v``)
``g o i``                      group, output channel, input channel of convolution weights
``t l dir gate``               time, layer, direction, gate of recurrent cells
``row col``, ``m n k b``, ...  axes of matrices, as the dialect has them
=============================  ==================================================================

Two letters are ambiguous across domains: ``d`` is depth or direction, ``g`` is group or gate. Therefore
roles, not letters, are what a format remembers.
"""

from __future__ import annotations

__all__ = ["DATA", "DOMAINS", "SPATIAL", "WEIGHTS", "data_roles", "weights_roles"]

SPATIAL = {0: (), 1: ("w",), 2: ("h", "w"), 3: ("d", "h", "w")}


def data_roles(spatial: int) -> tuple[str, ...]:
    """The roles of activations with so many spatial axes.

    >>> data_roles(2)
    ('n', 'c', 'h', 'w')
    """
    return ("n", "c", *SPATIAL[spatial])


def weights_roles(spatial: int, groups: bool = False) -> tuple[str, ...]:
    """The roles of convolution weights with so many spatial axes.

    >>> weights_roles(2, groups=True)
    ('g', 'o', 'i', 'h', 'w')
    """
    return (*(("g",) if groups else ()), "o", "i", *SPATIAL[spatial])


DATA = tuple(data_roles(spatial) for spatial in range(4))
WEIGHTS = tuple(weights_roles(spatial, groups) for groups in (False, True) for spatial in range(4))
RECURRENT = (
    ("t", "n", "c"),
    ("t", "n"),
    ("l", "dir", "n", "c"),
    ("l", "dir", "i", "gate", "o"),
    ("l", "dir", "gate", "o"),
    ("l", "dir", "i", "o"),
)
DOMAINS = (*DATA, *WEIGHTS, *RECURRENT, ("x",))
"""The logical orders of axes that oneDNN's names imply.

The order of the dims, whatever the order of memory.
"""
