"""The codecs of a new Zarr array: those that somebody names, or those of the array that it is made of.

Versions 2 and 3 of Zarr spell the same codecs differently, and do not have the same ones:

========  ====================================  ===================================================
codec     version 2 (numcodecs)                 version 3
========  ====================================  ===================================================
zstd      ``{"id": "zstd", "level": 3}``        ``{"name": "zstd", "configuration": {"level": 3}}``
gzip      ``{"id": "gzip", "level": 5}``        the same as ``"gzip"``
blosc     ``shuffle`` 0, 1, 2, or -1: by width  ``"noshuffle"``, ``"shuffle"``, ``"bitshuffle"``,
                                                and the width of an element, ``typesize``
crc32c    --                                    a codec behind the others
others    lz4, lzma, bz2, zlib, ...             --
========  ====================================  ===================================================

What the destination's version does not have is not kept, and :func:`chosen` says so.

Sources: the `specification of version 3 <https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html>`_
and its codecs, the `configurations of numcodecs <https://numcodecs.readthedocs.io>`_.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from relayout.errors import LayoutError
from relayout.forking import lock

__all__ = ["chosen"]

_LEVELS: Final = {"none": 0, "zstd": 22, "gzip": 9, "blosc": 9}
_SHUFFLES: Final = ("noshuffle", "shuffle", "bitshuffle")


def chosen(codecs: str, like: Any, version: int, width: int) -> tuple[Any, str]:
    """The codecs of a new array, as ``zarr.create_array`` takes them, and what there is to say about them.

    Parameters
    ----------
    codecs : str
        ``"none"``, ``"zstd:3"``, ``"blosc+crc32c"``, ... or ``"same"``: those of ``like``.
    like : zarr.Array or None
        The array whose codecs are taken. Without one ``"same"`` is zstd.
    version : int
        The version of the new array, 2 or 3.
    width : int
        Bytes of an element: blosc shuffles by that.

    Raises
    ------
    LayoutError
        There is no such codec or level.
    """
    if codecs != "same" or like is None:
        return _named("zstd" if codecs == "same" else codecs, version, width), ""
    made, left = _of(like, version, width)
    filters = [_name(one) for one in like.filters or () if _name(one) != "transpose"]
    notes = []
    if left:
        if not made and any(name != "crc32c" for name in left):
            made = [*_listed(_named("zstd", version, width))]
        kept = f"with {', '.join(map(_name, made))}" if made else "without codecs"
        notes.append(
            f"of the codecs of the source Zarr {version} does not have {', '.join(left)}; chunks are written "
            f"{kept} (--codecs)"
        )
    if filters:
        notes.append(f"filters of the source are left out: {', '.join(filters)}")
    return (tuple(made) if version == 3 else made[0] if made else None), "; ".join(notes)


def _of(like: Any, version: int, width: int) -> tuple[list[Any], list[str]]:
    """The codecs of an array in another version, and the names of those that it does not have."""
    made: list[Any] = []
    left: list[str] = []
    for codec in like.compressors:
        if like.metadata.zarr_format == version:
            made.append(_for_width(codec, width))
            continue
        found = None if version == 2 and made else _translated(codec, version, width)
        if found is None:
            left.append(_name(codec))
        else:
            made.append(found)
    return made, left


def _name(codec: Any) -> str:
    """What a codec of either version is called."""
    found = getattr(codec, "codec_id", None)
    return str(found if found is not None else codec.to_dict().get("name"))


def _for_width(codec: Any, width: int) -> Any:
    """A codec of the source for elements of so many bytes: blosc shuffles bytes by that."""
    if hasattr(codec, "typesize") and hasattr(codec, "evolve_from_array_spec"):
        return replace(codec, typesize=width)
    return codec


def _translated(codec: Any, version: int, width: int) -> Any:
    """A codec of one version as one of the other; None: that has none."""
    with lock():
        import numcodecs
        import zarr.codecs as those

    name = _name(codec)
    said = dict(codec.get_config()) if version == 3 else dict(codec.to_dict().get("configuration") or {})
    level = int(said.get("level", 0))
    if name == "zstd":
        checked = bool(said.get("checksum", False))
        made = those.ZstdCodec if version == 3 else numcodecs.Zstd
        return made(level=level, checksum=checked)
    if name == "gzip":
        return (those.GzipCodec if version == 3 else numcodecs.GZip)(level=level)
    if name != "blosc":
        return None
    same = {key: said[key] for key in ("cname", "clevel", "blocksize")}
    shuffle = said["shuffle"]
    if version == 2:
        return numcodecs.Blosc(**same, shuffle=_SHUFFLES.index(shuffle))
    if shuffle == -1:  # numcodecs: bits of elements of a byte, or else bytes
        shuffle = 2 if width == 1 else 1
    return those.BloscCodec(**same, shuffle=_SHUFFLES[shuffle], typesize=width)


def _listed(codecs: Any) -> Sequence[Any]:
    """Codecs as ``zarr.create_array`` takes them, one by one."""
    return codecs if isinstance(codecs, list) else [] if codecs is None else [codecs]


def _named(codecs: str, version: int, width: int) -> Any:
    """The codecs that somebody names."""
    with lock():
        import numcodecs
        import zarr.codecs as those

    main, plus, check = codecs.partition("+")
    name, _, level = main.partition(":")
    if (
        name not in ("none", "zstd", "gzip", "blosc")
        or (plus and check != "crc32c")
        or not re.fullmatch("[0-9]{0,3}", level)
    ):
        raise LayoutError(
            f"codecs {codecs!r} are not known; there are none, zstd, gzip and blosc, with a level as in "
            "zstd:3 and a checksum as in zstd+crc32c"
        )
    number = int(level) if level else {"gzip": 5, "blosc": 5}.get(name, 0)
    most = _LEVELS[name]
    if number > most or (level and not most):
        which = f"{name} has levels up to {most}" if most else "what is not compressed has no level"
        raise LayoutError(f"codecs {codecs!r}: {which}")
    if version == 2:
        if plus:
            raise LayoutError("checksums are written in Zarr 3; version 2 has none")
        if name == "none":
            return None
        if name == "blosc":
            return numcodecs.Blosc(cname="lz4", clevel=number, shuffle=numcodecs.Blosc.SHUFFLE)
        return numcodecs.Zstd(level=number) if name == "zstd" else numcodecs.GZip(level=number)
    made: list[Any] = []
    if name == "zstd":
        made.append(those.ZstdCodec(level=number))
    elif name == "gzip":
        made.append(those.GzipCodec(level=number))
    elif name == "blosc":
        made.append(those.BloscCodec(cname="lz4", clevel=number, shuffle="shuffle", typesize=width))
    if plus:
        made.append(those.Crc32cCodec())
    return made or None
