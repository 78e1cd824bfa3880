"""What the axes of a primitive's arguments must mean.

A primitive indexes by position: a convolution takes axis 1 of its source as the channels. A descriptor that
knows its axes to be something else (one of ``NHWC4@nhwc`` is indexed n, h, w, c; a view of a tensor may have
been permuted) would be taken for another tensor, without a word. So it is refused, and the message says which
permutation is meant. Descriptors without roles are taken as they are.
"""

from __future__ import annotations

from collections.abc import Mapping

from relayout.errors import LayoutError
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.roles import correspondence, data_roles, weights_roles

__all__ = ["check_alike", "check_data", "check_weights"]


def check_data(kind: str, name: str, desc: MemoryDesc | None) -> None:
    """Refuse data that is known to be indexed otherwise than batch, channels, spatial axes.

    >>> import relayout as rl
    >>> check_data("pooling", "src", rl.MemoryDesc((1, 4, 4, 3), "f32", "NHWC4@nhwc"))
    Traceback (most recent call last):
    relayout.errors.LayoutError: pooling: src f32:NHWC4@nhwc:1x4x4x3 is indexed n, h, w, c; it must be ...
    """
    if desc is not None and 2 <= desc.rank <= 5:
        _check(kind, name, desc, data_roles(desc.rank - 2))


def check_weights(kind: str, name: str, desc: MemoryDesc, spatial: int) -> None:
    """Refuse weights that are known to be indexed otherwise than (groups,) outputs, inputs, spatial axes."""
    if desc.rank - 2 - spatial in (0, 1):
        _check(kind, name, desc, weights_roles(spatial, groups=desc.rank > spatial + 2))


def check_alike(kind: str, descs: Mapping[str, MemoryDesc]) -> None:
    """Refuse operands of an element-wise operation that are known to be indexed in different orders."""
    first = next((roles for roles in map(_roles, descs.values()) if roles is not None), ())
    for name, desc in descs.items():
        roles = _roles(desc)
        if roles is not None and set(roles) == set(first):
            _check(kind, name, desc, first)


def _check(kind: str, name: str, desc: MemoryDesc, wanted: tuple[str, ...]) -> None:
    roles = _roles(desc)
    if roles is None or roles == wanted or len(roles) != len(wanted):
        return
    try:
        places = correspondence(wanted, roles)
    except LayoutError:
        raise LayoutError(
            f"{kind}: {name} {desc} has the axes {', '.join(roles)}, where {', '.join(wanted)} are wanted; "
            "if they stand for these, give it without their meaning (Layout.with_roles)"
        ) from None
    if places is not None:
        raise LayoutError(
            f"{kind}: {name} {desc} is indexed {', '.join(roles)}; it must be indexed {', '.join(wanted)}: "
            f"permute{places}"
        )


def _roles(desc: MemoryDesc) -> tuple[str, ...] | None:
    return desc.layout.roles if desc.layout is not None else None
