"""benchdnn's tags for any rank: ``abx``, ``axb``, ``aBx16b``.

oneDNN's test driver writes one tag for tensors of every rank: ``x`` stands for all axes that are not named,
in order. ``abx`` is row-major (``abc``, ``abcd``, ``abcde``, ...), ``axb`` is channels-last, ``aBx16b`` is
``aBcd16b`` at rank 4. The format is known once the rank is.
"""

from __future__ import annotations

import re

from relayout.errors import LayoutError, counted
from relayout.layout.format import Format, letters
from relayout.notation import onednn

TITLE = "benchdnn (oneDNN)"

__all__ = ["TITLE", "attested", "names", "parse", "render"]

_TAG = re.compile(r"([a-lA-L]*x[a-lA-L]*)(?:[0-9]{1,9}[a-l])*")


def parse(text: str, rank: int | None = None, dtype: str | None = None) -> Format | None:
    """Read a tag with ``x``; it waits for the rank.

    >>> parse("aBx16b", rank=4) == Format("aBcd16b")
    True
    """
    match = _TAG.fullmatch(text)
    if match is None:
        return None
    named = sorted(set(match[1].lower()) - {"x"})
    if not named or tuple(named) != letters(len(named)):
        return None
    if onednn.parse(text.replace("x", letters(len(named) + 1)[-1])) is None:
        return None
    if rank is None:
        return Format.waiting(text, "benchdnn", ("rank",))
    if rank < len(named):
        raise LayoutError(f"tag {text!r} names {counted(len(named), 'axis')}, but there are only {rank}")
    return onednn.parse(text.replace("x", "".join(letters(rank)[len(named) :])))


def render(format: Format) -> str | None:
    """Spell a format with ``x`` for its last axes, if they stand together, in order and not blocked.

    >>> render(Format("nhwc")), render(Format("nChw16c"))
    ('axb', 'aBx16b')
    """
    tag = onednn.render(format.with_roles(None))
    if tag is None or format.rank is None:
        return None
    names = "".join(letters(format.rank))
    blocked = {axis for axis, size in enumerate(format.blocks) if size != 1}
    for named in range(min(2, format.rank), format.rank):
        rest = names[named:]
        if rest in tag and not blocked.intersection(range(named, format.rank)):
            return tag.replace(rest, "x")
    return None


def names() -> tuple[str, ...]:
    """The usual tags."""
    return (
        "abx", "axb", "xba", "bax", "bxa", "aBx4b", "aBx8b", "aBx16b", "aBx32b",
        "ABx16a16b", "ABx32a32b", "ABx16b16a", "ABx4b16a4b",
    )  # fmt: skip


def attested(name: str) -> bool:
    """Whether the text stands for a tag of oneDNN's enumeration at any rank.

    >>> attested("aBx16b"), attested("aBx24b")
    (True, False)
    """
    named = len(set(name.partition("x")[0].lower() + name.partition("x")[2].lower()) & set(letters(12)))
    tags = (parse(name, rank) for rank in range(named, 13))
    return any(tag is not None and onednn.attested(onednn.render(tag) or "") for tag in tags)
