"""ImageDecoder: pictures from the bytes of their files, where Pillow is installed."""

from __future__ import annotations

from io import BytesIO

import numpy as np

from relayout.errors import LayoutError, Unsupported
from relayout.forking import locked
from relayout.graph.operators.registry import Array, Fact, operator

__all__: list[str] = []


def _infer(x: Fact, /, *, pixel_format: str = "RGB") -> Fact:
    return Fact((None, None, 1 if pixel_format == "Grayscale" else 3), np.dtype(np.uint8))


@operator("ImageDecoder", infer=_infer)
def image_decoder(encoded_stream: Array, /, *, pixel_format: str = "RGB") -> Array:
    """Height x width x channels, from a file of any format that Pillow reads; nothing from what it can't."""
    channels = {"RGB": 3, "BGR": 3, "Grayscale": 1}.get(pixel_format)
    if channels is None:
        raise LayoutError(f"pixel_format {pixel_format!r} is none of RGB, BGR, Grayscale")
    picture = _opened(encoded_stream.astype(np.uint8).tobytes(), "L" if channels == 1 else "RGB")
    if picture is None:
        return np.zeros((0, 0, channels), np.uint8)
    made = picture.reshape(*picture.shape[:2], channels)
    return np.ascontiguousarray(made[:, :, ::-1]) if pixel_format == "BGR" else made


@locked
def _opened(file: bytes, mode: str) -> Array | None:
    try:
        from PIL import Image
    except ImportError:
        raise Unsupported("pictures are read by Pillow, which is not installed") from None
    try:
        return np.array(Image.open(BytesIO(file)).convert(mode), np.uint8)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None
