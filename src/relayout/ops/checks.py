"""What every operation refuses: arguments that are no descriptors, destinations that can't be written."""

from __future__ import annotations

from collections.abc import Mapping

from relayout.errors import LayoutError, type_name
from relayout.layout.descriptor import MemoryDesc

__all__ = ["alike", "check_descs", "check_written"]


def check_descs(kind: str, needed: Mapping[str, object], optional: Mapping[str, object]) -> None:
    """Refuse arguments that are no descriptors; those that are optional may be None."""
    for name, desc in (*needed.items(), *optional.items()):
        if not isinstance(desc, MemoryDesc) and (desc is not None or name in needed):
            how = "; rl.tensor(x).desc is its descriptor" if hasattr(desc, "shape") else ""
            raise LayoutError(f"{kind}: {name} must be a MemoryDesc, not {type_name(desc)}{how}")


def check_written(kind: str, desc: MemoryDesc, name: str = "dst") -> None:
    """Refuse an output whose elements or padding share places."""
    layout = desc.layout
    if layout is None or 0 in desc.dims:
        return
    if not layout.is_injective():
        raise LayoutError(f"{kind}: {name} {desc} has several elements in one place, so it can't be written")
    if layout.has_padding and not layout.room().is_injective():
        raise LayoutError(f"{kind}: padding of {name} {desc} shares places with its elements")


def alike(one: MemoryDesc, two: MemoryDesc) -> bool:
    """Whether a buffer of the one is a buffer of the other."""
    if one == two:
        return True
    if one.dims != two.dims or one.dtype != two.dtype or one.layout is None or two.layout is None:
        return False
    return one.layout.same_bytes(two.layout)
