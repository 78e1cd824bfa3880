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

The order of the logical axes
=============================

A program indexes a tensor as ``x[n, c, h, w]``, wherever memory keeps what; dims, strides and ``offset()``
follow that order. A name such as ``NHWC8`` spells the order of *memory*. There is one rule for what the
logical order is, in all dialects:

1. A name that spells roles with letters is indexed in the order of their *domain* (:data:`DOMAINS`):
   ``n c d h w``, ``g o i d h w``, ``t n c``, ``l dir i gate o``. So ``NHWC``, ``NHWC4``, ``NHWC8`` and
   ``b_fs_yx_fsv16`` take dims n, c, h, w; ``OHWIo4``, ``HWIO`` and ``OIhw16i16o`` take o, i, h, w.
2. A text that *states* an order of index is taken at its word: digits behind an arrow (``nhwc -> n, h, w,
   c//4, c%4``), readings (``NHWC4@nhwc``), and systems that number the axes of a shape (QNN's
   ``ChunkedMemoryLayout<4, 0,0, 1,0, ...>`` has n, h, w, c; Hexagon's ``nhwc-8h2w32c2w``; tinygrad's images).
3. Letters without a meaning (``a, b, c``; ``row_major``; strides) are numbered by position.

Conversion goes from role to role
=================================

:func:`correspondence` says which axis of one side is which of the other; every conversion asks it.

* Both sides have the same roles: by role, whatever their orders.
* One side has none: by position. The other side says what its axes are.
* Weights under a format of data, or data under one of weights: o is n and i is c, by position, as PyTorch's
  ``channels_last`` and cuDNN's filters have it.
* ``row`` and ``col`` against any other two roles: by position, since every matrix has two axes. Against
  each other they are matched by role as all are.
* Anything else is refused, with both readings. To read h as c can be meant, but it has to be said.
"""

from __future__ import annotations

from collections.abc import Sequence

from relayout.errors import LayoutError, counted, described, listed

__all__ = [
    "DATA",
    "DOMAINS",
    "SPATIAL",
    "WEIGHTS",
    "axis_names",
    "check_roles",
    "correspondence",
    "data_roles",
    "domain_order",
    "weights_roles",
]

Roles = tuple[str, ...]

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
"""The logical orders of axes that names of letters imply.

The order of the dims, whatever the order of memory.
"""
_WIDEST = (("n", "c", "s6", "s5", "s4", "d", "h", "w"), weights_roles(3, groups=True), *RECURRENT)
_AS_DATA = {"o": "n", "i": "c"}
_MATRIX = {"row", "col"}


def domain_order(roles: Sequence[str]) -> Roles:
    """Sort roles into the logical order of their domain; roles of no one domain stay as they are.

    >>> domain_order("nhwc"), domain_order(("o", "h", "w", "i")), domain_order(("h", "w", "c"))
    (('n', 'c', 'h', 'w'), ('o', 'i', 'h', 'w'), ('c', 'h', 'w'))
    """
    for order in (*DOMAINS, *_WIDEST):
        if set(roles) <= set(order):
            return tuple(role for role in order if role in roles)
    return tuple(roles)


def correspondence(
    src: Roles | None, dst: Roles | None, what: tuple[str, str] = ("source", "destination")
) -> tuple[int, ...] | None:
    """For each axis of ``src`` the axis of ``dst`` with the same meaning, by the rules above.

    Parameters
    ----------
    src, dst : tuple of str or None
        The roles of the axes in logical order; None where the axes have no meaning. Their number is the same
        (sizes are somebody else's to compare).
    what : (str, str)
        How the error calls the two sides.

    Returns
    -------
    tuple of int or None
        None: by position.

    Raises
    ------
    LayoutError
        The meanings contradict each other; the message has the reading by position.

    Examples
    --------
    >>> correspondence(("o", "i", "h", "w"), ("o", "h", "w", "i"))
    (0, 3, 1, 2)
    >>> correspondence(("o", "i", "h", "w"), ("n", "c", "h", "w"))  # by position
    >>> correspondence(("col", "row"), ("row", "col")), correspondence(("col", "row"), ("n", "c"))
    ((1, 0), None)
    >>> correspondence(("t", "n", "c"), ("n", "c", "w"))
    Traceback (most recent call last):
    relayout.errors.LayoutError: the source has the axes t, n, c and the destination n, c, w: they mean ...
    """
    if src is None or dst is None or src == dst or len(src) != len(dst) or len(src) < 2:
        return None
    for one, two in ((src, dst), (_as_data(src), _as_data(dst))):
        if set(one) == set(two):
            places = tuple(two.index(role) for role in one)
            return None if places == tuple(range(len(places))) else places
    if _MATRIX in (set(src), set(dst)):
        return None
    renamed = ", ".join(f"{a} as {b}" for a, b in zip(src, dst, strict=True) if a != b)
    raise LayoutError(
        f"the {what[0]} has the axes {', '.join(src)} and the {what[1]} {', '.join(dst)}: they mean "
        f"different things. By position it would take {renamed}; if that is meant, say axes='position'"
    )


def axis_names(given: object) -> Roles:
    """Names of axes: text of one letter each, or a sequence of texts."""
    wanted = "names, as in 'nchw' or ['row', 'col']"
    names = listed(given, "axes", wanted)
    if not all(isinstance(name, str) for name in names):
        raise LayoutError(f"axes must be {wanted}, got {described(given)}")
    return names


def check_roles(given: Sequence[str], rank: int, what: str) -> Roles:
    """Return roles, after checking that there is one for each axis, each another."""
    roles = axis_names(given)
    if len(roles) != rank:
        raise LayoutError(f"{what} has {counted(rank, 'axis')}, {len(roles)} roles were given: {list(roles)}")
    if len(set(roles)) != len(roles):
        raise LayoutError(f"each axis needs a role of its own, got {list(roles)}")
    return roles


def _as_data(roles: Roles) -> Roles:
    """Roles of weights as those of data: o as n, i as c."""
    return (
        tuple(_AS_DATA.get(role, role) for role in roles) if "g" not in roles and "l" not in roles else roles
    )
