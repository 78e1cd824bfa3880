"""Pictures: png and jpeg, which hold u8 ``nhwc`` data of dims (1, C, H, W).

A picture decodes to rows of pixels, each pixel its channels side by side: that *is* ``nhwc``. Grey pictures
have one channel, grey with alpha two, colour three, colour with alpha four; palettes and black and white are
decoded to these. Where a png calls one grey or one colour transparent (a colour key, its chunk tRNS), that
becomes an alpha channel, 0 there and 255 elsewhere. 16-bit grey comes as s32. The orientation that a camera
notes beside the pixels (EXIF) is applied, so H and W are those of the picture as it is seen.

What would lose something is refused: 16-bit colour, which the decoder cuts to 8 bits, 16-bit grey with a
colour key, and CMYK, four inks whose RGB depends on a colour profile.

Pillow does the decoding (``pip install pillow``).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from relayout.dtypes import dtype as as_dtype
from relayout.errors import LayoutError, Unsupported
from relayout.exchange.mapped import open_regular
from relayout.files.arrays import Given, StoredArray, physical_shape, to_tensor
from relayout.files.atomic import replacing
from relayout.files.members import Member, Opened
from relayout.files.spelling import spelled
from relayout.forking import lock
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import spell_dims
from relayout.tensor import Tensor

__all__ = ["create", "opened", "read"]

SUFFIXES: Final = (".png", ".jpg", ".jpeg")
FORMATS: Final = ("PNG", "JPEG")
MODES: Final = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
HEADER: Final = 26  # bytes of a png up to bit depth and colour type
GREY, COLOUR = 0, 2  # of the colour types of png
QUALITY: Final = 95  # of jpeg; above it files grow and nobody sees why


def read(path: Path, given: Given) -> Tensor:
    """Decode a picture."""
    image = _pillow()
    with open_regular(path) as file:
        head = file.read(HEADER)
        file.seek(0)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # big pictures are welcome; absurd ones still raise
                with image.open(file, formats=FORMATS) as picture:
                    _check_lossless(path, picture, head)
                    pixels = np.ascontiguousarray(_pixels(_upright(picture), _colour_key(picture, head)))
        except LayoutError:
            raise
        except Exception as error:  # decoders raise whatever their damaged input makes them stumble over
            unknown = type(error).__name__ == "UnidentifiedImageError"  # whose text names an open file
            what = "it is no png or jpeg, or its header is damaged" if unknown else str(error)
            raise LayoutError(
                f"{spelled(path)} can't be decoded as a picture: {what or type(error).__name__}"
            ) from None
    shape = (1, *pixels.shape) if pixels.ndim == 3 else (1, *pixels.shape, 1)
    data = pixels.reshape(-1).view(np.uint8)
    kind = pixels.dtype
    array = StoredArray(
        spelled(path), lambda: data, data.size, shape, str(kind), 8 * kind.itemsize, as_dtype(kind)
    )
    return to_tensor(array, given._replace(format=given.format or "nhwc"))


def opened(path: Path) -> Opened:
    """The one array of a picture; it is decoded."""
    tensor = read(path, Given())
    data, kind = tensor.buffer, tensor.dtype
    shape = physical_shape(tensor.desc) or ()
    array = StoredArray(spelled(path), lambda: data, data.size, shape, kind.name, kind.bits, kind)
    return Opened(path, "picture", [""], lambda _: Member("", array, lambda: tensor.desc, "the picture"))


@contextmanager
def create(path: Path, desc: MemoryDesc, name: str | None, force: bool) -> Iterator[Tensor]:
    """Make a picture for a tensor, to be filled; it gets its name when the block ends."""
    image = _pillow()
    jpeg = path.suffix.lower() != ".png"
    dims = desc.dims
    channels = (1, 3) if jpeg else tuple(MODES)
    if len(dims) != 4 or dims[0] != 1 or dims[1] not in channels or 0 in dims:
        raise LayoutError(
            f"{spelled(path)} can't hold {spell_dims(dims)}: a {'jpeg' if jpeg else 'png'} is one picture "
            f"of 1xCxHxW with {' or '.join(map(str, channels))} channels"
        )
    pixels = MemoryDesc(dims, "u8", "nhwc")
    if desc.dtype != "u8" or desc.layout is None or not desc.layout.same_bytes(pixels.layout):
        raise LayoutError(
            f"{spelled(path)} holds pixels, which are u8 in nhwc; {desc} must be converted to that "
            "(dtype u8, format nhwc)"
        )
    made = Tensor(pixels, np.zeros(pixels.nbytes, np.uint8))
    with replacing(path, force) as file:
        yield made
        _, count, height, width = dims
        picture = image.frombytes(MODES[count], (width, height), made.buffer.tobytes())
        if jpeg:
            picture.save(file, "JPEG", quality=QUALITY, subsampling=0)
        else:
            picture.save(file, "PNG")


def _check_lossless(path: Path, picture: Any, head: bytes) -> None:
    if picture.mode == "CMYK":
        raise Unsupported(
            f"{spelled(path)} is CMYK, four inks whose colours depend on a profile; convert it to RGB "
            "first, with a program that knows the profile"
        )
    if picture.format == "PNG" and head[24] == 16 and "transparency" in picture.info:
        raise Unsupported(
            f"{spelled(path)} is grey with 16 bits and calls one of its values transparent (tRNS), "
            "which would be lost; save it without transparency, or as an npy file"
        )
    # Pillow says RGB for 16 bits a channel, too, and drops the lower 8; only the file itself tells.
    if picture.format == "PNG" and head[24] == 16 and head[25] != GREY:
        raise Unsupported(
            f"{spelled(path)} has 16 bits a channel in colour or with alpha, of which the decoder would "
            "keep 8; save it with 8 bits a channel, or as an npy file"
        )


def _upright(picture: Any) -> Any:
    with lock():
        from PIL import ImageOps

    return ImageOps.exif_transpose(picture)


def _colour_key(picture: Any, head: bytes) -> tuple[int, ...] | None:
    """The grey or the colour that a png calls transparent (its chunk tRNS), in 8 bits a channel."""
    key = picture.info.get("transparency")
    if key is None or head[25] not in (GREY, COLOUR):  # of a palette it is the alpha of each entry
        return None
    highest = (1 << head[24]) - 1 if picture.mode != "1" else 255  # of black and white Pillow scales the key
    return tuple(value * 255 // highest for value in (key if isinstance(key, tuple) else (key,)))


def _pixels(picture: Any, key: tuple[int, ...] | None) -> NDArray[Any]:
    mode = picture.mode
    if mode.startswith("I;16") or mode == "I":
        return np.asarray(picture, np.int32)
    if mode in ("1", "F"):
        picture = picture.convert("L")
    elif mode in ("P", "PA"):
        picture = picture.convert("RGBA" if "transparency" in picture.info or mode == "PA" else "RGB")
    elif mode not in MODES.values():
        picture = picture.convert("RGB")
    pixels = np.asarray(picture, np.uint8)
    if key is None:
        return pixels
    channels = pixels if pixels.ndim == 3 else pixels[..., None]
    alpha = np.where(np.all(channels == np.array(key), axis=-1, keepdims=True), 0, 255)
    return np.concatenate([channels, alpha.astype(np.uint8)], axis=-1)


def _pillow() -> Any:
    try:
        with lock():
            from PIL import Image
    except ImportError:
        raise Unsupported(
            "png and jpeg files need Pillow, which is not installed: pip install pillow"
        ) from None
    return Image
