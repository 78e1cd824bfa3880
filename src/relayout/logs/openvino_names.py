"""What the types and names of OpenVINO's layers say.

The CPU plugin names a reorder that it inserts after the layer before it, both formats and the layer behind
it:

>>> ends("input.1_abcd_acdb_/0/Conv")
Ends(producer='input.1', src='abcd', dst='acdb', consumer='/0/Conv')
>>> ends("conv_1_relu") is None
True
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

from relayout.notation.onednn_tags import is_tag

__all__ = ["KINDS", "Ends", "ends"]

KINDS: Final = {
    "reorder": "reorder",
    "transpose": "transpose",
    "permute": "transpose",
    "convert": "convert",
    "convertlike": "convert",
    "copy": "copy",
}
"""Types of layers that only convert, in lower case, as devices or models call them: kinds of events."""

_TAG = re.compile(r"[a-lA-L]{1,12}(?:[0-9]{1,4}[a-l])*")


class Ends(NamedTuple):
    """The parts of a reorder's name."""

    producer: str
    src: str
    dst: str
    consumer: str


@lru_cache(maxsize=4096)
def ends(name: str) -> Ends | None:
    """Both formats and both neighbours, from the name of a reorder; None for a name of another form."""
    words = name.split("_")
    if len(words) > 200:
        return None
    for k in range(1, len(words) - 2):
        src, dst = words[k], words[k + 1]
        if _is_tag(src) and _is_tag(dst) and _axes(src) == _axes(dst):
            return Ends("_".join(words[:k]), src, dst, "_".join(words[k + 2 :]))
    return None


def _axes(tag: str) -> list[str]:
    return sorted({letter.lower() for letter in tag if letter.isalpha()})


def _is_tag(word: str) -> bool:
    """Whether a word is a tag in letters, each axis once; one axis alone is too likely a word."""
    return len(_axes(word)) > 1 and _TAG.fullmatch(word) is not None and is_tag(word)
