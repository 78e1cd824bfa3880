"""What every operation refuses: arguments that are no descriptors, destinations that can't be written."""

from __future__ import annotations

from collections.abc import Mapping

from relayout.errors import LayoutError, type_name
from relayout.layout.descriptor import MemoryDesc

__all__ = ["check_descs", "check_written"]


def check_descs(kind: str, needed: Mapping[str, object], optional: Mapping[str, object]) -> None:
    """Refuse arguments that are no descriptors; those that are optional may be None."""
    for name, desc in (*needed.items(), *optional.items()):
        if not isinstance(desc, MemoryDesc) and (desc is not None or name in needed):
            how = "; rl.tensor(x).desc is its descriptor" if hasattr(desc, "shape") else ""
            raise LayoutError(f"{kind}: {name} must be a MemoryDesc, not {type_name(desc)}{how}")


def check_written(kind: str, dst: MemoryDesc) -> None:
    """Refuse a destination whose elements or padding share places."""
    layout = dst.layout
    if layout is None or 0 in dst.dims:
        return
    if not layout.is_injective():
        raise LayoutError(f"{kind}: dst {dst} has several elements in one place, so it can't be written")
    if layout.has_padding and not layout.room().is_injective():
        raise LayoutError(f"{kind}: padding of dst {dst} shares places with its elements")
