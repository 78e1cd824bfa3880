"""Descriptors as JSON: what the bytes of a file mean, in a form that outlives the program.

A buffer on disk is numbers without meaning. Its descriptor says the rest, and travels beside the file or
inside of it::

    {"relayout": 1, "dims": [1, 17, 2, 2], "dtype": "f32", "format": "nChw8c"}

=============  ========================================================================================
key            meaning
=============  ========================================================================================
``relayout``   the version of this form, 1
``dims``       the logical sizes
``dtype``      the data type: ``f32``, ``bf16``, ``s4``, ...
``format``     the format, in any dialect; written as a oneDNN tag where one says it, else as digits
``strides``    instead of a format: elements between neighbours of each axis
``digits``     instead of a format: every digit, ``{"axes": [1], "weight": 8, "extent": 3, "stride": 32}``
``padded``     with ``digits``: the size that each axis (or group of fused axes) has room for; without it,
               the product of its extents
``roles``      with ``strides`` or ``digits``: what the axes mean, ``["n", "c", "h", "w"]``, if that is known
``offset``     where element (0, ..., 0) lies, in elements; 0 if absent
=============  ========================================================================================

Exactly one of ``format``, ``strides`` and ``digits`` says the layout. The first is what people write; the
other two hold what has no name: rows with a pitch, parts of bigger tensors.

Files come from anywhere, so nothing in them is believed: unknown or repeated keys, wrong types, digits that
are no mixed-radix number, sizes that overflow and places in front of the buffer are refused, each with a
sentence that says which.
"""

from __future__ import annotations

import json
from typing import Any, Final

from relayout.dtypes import dtype as as_dtype
from relayout.errors import LayoutError, counted
from relayout.layout.assembly import from_digits
from relayout.layout.descriptor import MAX_RANK, MemoryDesc
from relayout.layout.format import Format
from relayout.layout.layout import MAX_ELEMENTS, Digit, Layout, check_dims

__all__ = ["descriptor_from_json", "descriptor_from_text", "descriptor_to_json", "descriptor_to_text"]

VERSION: Final = 1
LONGEST_TEXT: Final = 1 << 20
LONGEST_FORMAT: Final = 500
MOST_DIGITS: Final = 64
_KEYS: Final = frozenset(
    {"relayout", "dims", "dtype", "format", "strides", "digits", "padded", "roles", "offset"}
)


def descriptor_to_json(desc: MemoryDesc) -> dict[str, Any]:
    """Write a descriptor as a dictionary that JSON can hold.

    Raises
    ------
    LayoutError
        The format is ``any`` or ``undef``: there is nothing to write down.

    Examples
    --------
    >>> import relayout as rl
    >>> descriptor_to_json(rl.MemoryDesc((1, 17, 2, 2), "f32", "b_fs_yx_fsv8"))
    {'relayout': 1, 'dims': [1, 17, 2, 2], 'dtype': 'f32', 'format': 'nChw8c'}
    >>> descriptor_to_json(rl.MemoryDesc((2, 3), "u8", strides=(4, 1)))
    {'relayout': 1, 'dims': [2, 3], 'dtype': 'u8', 'strides': [4, 1]}
    """
    layout = desc.layout
    if layout is None:
        raise LayoutError(f"{desc} has no layout that could be written down; decide on a format first")
    made: dict[str, Any] = {"relayout": VERSION, "dims": list(desc.dims), "dtype": desc.dtype.name}
    format = desc.format
    if format is not None:
        tag = format.name("onednn")
        said = tag is not None and Format(tag).roles == format.roles
        made["format"] = tag if said else format.digits_text()
    elif layout.is_plain and layout.padded_dims == layout.dims:
        made["strides"] = list(layout.strides)
    else:
        made["digits"] = [
            {"axes": list(layout.terms[d.term]), "weight": d.weight, "extent": d.extent, "stride": d.stride}
            for d in layout.digits
        ]
        made["padded"] = list(layout.padded)
    if format is None and layout.roles is not None:
        made["roles"] = list(layout.roles)
    if layout.offset0:
        made["offset"] = layout.offset0
    return made


def descriptor_from_json(data: object) -> MemoryDesc:
    """Read what :func:`descriptor_to_json` wrote, or a person by hand.

    Raises
    ------
    LayoutError
        The data is no descriptor; the message names the key, the value and the rule.

    Examples
    --------
    >>> descriptor_from_json({"relayout": 1, "dims": [1, 17, 2, 2], "dtype": "f32", "format": "nChw8c"})
    MemoryDesc('f32:nChw8c:1x17x2x2')
    >>> descriptor_from_json({"relayout": 1, "dims": [2, -3], "dtype": "f32", "format": "ab"})
    Traceback (most recent call last):
    relayout.errors.LayoutError: descriptor: dims 2x-3: axis 1 has size -3; a size can't be negative
    """
    try:
        return _read(data)
    except LayoutError as error:
        raise type(error)(f"descriptor: {error}") from None


def descriptor_to_text(desc: MemoryDesc) -> str:
    """Write a descriptor as one line of JSON."""
    return json.dumps(descriptor_to_json(desc))


def descriptor_from_text(text: str | bytes) -> MemoryDesc:
    """Read a descriptor from JSON.

    Raises
    ------
    LayoutError
        The text is no JSON (or longer than a MiB), or no descriptor.
    """
    return descriptor_from_json(json_from_text(text))


def json_from_text(text: str | bytes, what: str = "descriptor", most: int = LONGEST_TEXT) -> object:
    """Read JSON of bounded length in which no key stands twice.

    Raises
    ------
    LayoutError
        It is longer than ``most`` bytes, or no such JSON. Messages begin with ``what`` it is.
    """
    if len(text) > most:
        raise LayoutError(f"{what}: {len(text)} bytes of JSON are more than the {most} that one may have")
    try:
        return json.loads(text, object_pairs_hook=_unrepeated)
    except LayoutError as error:
        raise LayoutError(f"{what}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise LayoutError(f"{what}: this is no JSON: {error}") from None


# -- reading, distrustfully -----------------------------------------------------------------------------


def _unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise LayoutError("a key stands twice")
    return made


def _read(data: object) -> MemoryDesc:
    if not isinstance(data, dict):
        raise LayoutError(f"an object with keys is needed, got {_shown(data)}")
    unknown = sorted(set(data) - _KEYS, key=str)
    if unknown:
        raise LayoutError(f"unknown key {_shown(unknown[0])}; the keys are {', '.join(sorted(_KEYS))}")
    for key in ("relayout", "dims", "dtype"):
        if key not in data:
            raise LayoutError(f"key {key!r} is missing")
    if data["relayout"] != VERSION or isinstance(data["relayout"], bool):
        raise LayoutError(
            f"version {_shown(data['relayout'])} is not known; this is version {VERSION} of the form"
        )
    if not isinstance(data["dtype"], str):
        raise LayoutError(f"dtype must be a name such as 'f32', got {_shown(data['dtype'])}")
    kind = as_dtype(data["dtype"][:LONGEST_FORMAT])
    dims = check_dims(_whole_numbers(data, "dims", MAX_RANK))
    desc = MemoryDesc(dims, kind, _layout(data, dims, kind.name))
    low, high = desc.layout.bounds()
    if low < 0:
        raise LayoutError(
            f"the layout reaches {counted(-low, 'element')} in front of the buffer; offset must be at least "
            f"{-low} more"
        )
    if high >= MAX_ELEMENTS // 8:
        raise LayoutError(f"the layout reaches to element {high}, which is more than any file holds")
    return desc


def _layout(data: dict[str, Any], dims: tuple[int, ...], kind: str) -> Layout:
    given = [key for key in ("format", "strides", "digits") if key in data]
    if len(given) != 1:
        raise LayoutError(
            f"exactly one of format, strides and digits is needed, got {' and '.join(given) or 'none'}"
        )
    if "padded" in data and given != ["digits"]:
        raise LayoutError("padded goes with digits only")
    if "roles" in data and given == ["format"]:
        raise LayoutError("roles go with strides or digits; a format says what its axes mean")
    offset = _whole_number(data.get("offset", 0), "offset", low=0)
    if given == ["strides"]:
        strides = _whole_numbers(data, "strides", MAX_RANK)
        return Layout(dims, strides=strides, offset=offset).with_roles(_roles(data))
    if given == ["digits"]:
        return _from_digits(data, dims, offset).with_roles(_roles(data))
    text = data["format"]
    if not isinstance(text, str) or len(text) > LONGEST_FORMAT:
        raise LayoutError(f"format must be a text of at most {LONGEST_FORMAT} letters, got {_shown(text)}")
    return Layout(dims, Format(text).resolve(len(dims), kind), offset=offset)


def _roles(data: dict[str, Any]) -> list[str] | None:
    roles = data.get("roles")
    if roles is None:
        return None
    if not isinstance(roles, list) or not all(
        isinstance(role, str) and role.isidentifier() for role in roles
    ):
        raise LayoutError(f"roles must be a list of names, one an axis, got {_shown(roles)}")
    return roles


def _from_digits(data: dict[str, Any], dims: tuple[int, ...], offset: int) -> Layout:
    listed = data["digits"]
    if not isinstance(listed, list) or len(listed) > MOST_DIGITS:
        raise LayoutError(f"digits must be a list of at most {MOST_DIGITS}, got {_shown(listed)}")
    found: list[tuple[tuple[int, ...], Digit]] = []
    for position, entry in enumerate(listed):
        if not isinstance(entry, dict) or set(entry) != {"axes", "weight", "extent", "stride"}:
            raise LayoutError(
                f"digit {position} must have the keys axes, weight, extent and stride, got {_shown(entry)}"
            )
        digit = Digit(
            _whole_number(entry["weight"], f"weight of digit {position}", low=1),
            _whole_number(entry["extent"], f"extent of digit {position}", low=0),
            _whole_number(entry["stride"], f"stride of digit {position}"),
        )
        found.append((tuple(_whole_numbers(entry, "axes", MAX_RANK)), digit))
    padded = _whole_numbers(data, "padded", MAX_RANK) if "padded" in data else None
    return from_digits(dims, found, padded, offset)


def _whole_number(value: object, what: str, low: int = -MAX_ELEMENTS) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= MAX_ELEMENTS:
        lowest = str(low) if low >= 0 else "-(2**63 - 1)"
        raise LayoutError(f"{what} must be a whole number from {lowest} to 2**63 - 1, got {_shown(value)}")
    return value


def _whole_numbers(data: dict[str, Any], key: str, most: int) -> list[int]:
    values = data[key]
    if not isinstance(values, list) or len(values) > most:
        raise LayoutError(f"{key} must be a list of at most {most} whole numbers, got {_shown(values)}")
    return [_whole_number(value, f"{key}[{k}]") for k, value in enumerate(values)]


def _shown(value: object) -> str:
    text = repr(value) if not isinstance(value, int) or abs(value) < 1 << 256 else "a huge number"
    return text if len(text) <= 60 else text[:57] + "..."
