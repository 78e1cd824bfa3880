"""What a format is called in every dialect that has a name for it."""

from __future__ import annotations

from typing import Final

from relayout.errors import LayoutError
from relayout.layout.format import Format
from relayout.notation import attested as attested_by
from relayout.notation import dialects

__all__ = ["LONGEST_NAME", "by_grammar_only", "names_of"]

LONGEST_NAME: Final = 40  # characters of a format that is listed among the names of another


def names_of(format: Format) -> dict[str, str]:
    """The spelling of a format in every dialect that has one, by dialect, without the digits themselves.

    In the dialect in which it was written, a format keeps its text where no other spelling says as much:
    ``kDLA_HWC4`` depends on the data type and has no spelling as digits.

    Examples
    --------
    >>> names_of(Format("nChw16c"))["openvino"]
    'b_fs_yx_fsv16'
    >>> names_of(Format("kDLA_HWC4").resolve(4, "f16"))["tensorrt"]
    'kDLA_HWC4'
    """
    found = {}
    for name in dialects():
        if name == "digits":
            continue
        try:
            spelled = format.name(name)
        except LayoutError:
            spelled = None
        if name == format.dialect and format.text is not None and (spelled is None or format.waits_for):
            spelled = format.text
        if spelled is not None:
            found[name] = spelled
    return found


def by_grammar_only(names: dict[str, str]) -> list[str]:
    """The dialects of :func:`names_of` whose systems have no format of that name.

    Examples
    --------
    >>> "openvino" in by_grammar_only(names_of(Format("nChw24c")))
    True
    """
    return [name for name, spelled in names.items() if not attested_by(spelled, name)]
