"""Signals: Fourier transforms, windows and mel filters.

A complex number is two elements along the last axis, real and imaginary; a real one is one element.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.operators.registry import Array, Fact, operator
from relayout.graph.operators.types import narrow, numpy_type, wide
from relayout.graph.operators.windows import Size

__all__: list[str] = []


def _scalar(given: Any, what: str) -> int:
    array = np.asarray(given)
    if array.size != 1:
        raise LayoutError(f"{what} must be a scalar, got {array.shape}")
    return int(array.reshape(()))


def _signal(x: Array) -> Array:
    """Numbers of a tensor whose last axis holds their parts."""
    if not x.ndim or x.shape[-1] not in (1, 2):
        raise LayoutError(f"the last axis of {x.shape} must be 1 (real) or 2 (complex)")
    data = wide(x)
    return data[..., 0] if x.shape[-1] == 1 else data[..., 0] + 1j * data[..., 1]


def _parts(x: Array, dtype: np.dtype[Any]) -> Array:
    """Complex numbers as pairs."""
    return narrow(np.stack([x.real, x.imag], axis=-1), dtype)


def _axis(axis: Any, rank: int) -> int:
    number = -2 if axis is None else _scalar(axis, "axis")
    if not -rank <= number < rank or number % rank == rank - 1:
        raise LayoutError(f"axis {number} of {rank} axes, of which the last holds parts of numbers")
    return number % rank


def _length(size: Size, given: int | None, inverse: int, onesided: int) -> int | None:
    """How long the whole signal is."""
    if given is not None or not isinstance(size, int):
        return given
    return 2 * (size - 1) if inverse and onesided else size


def _infer_dft(
    x: Fact,
    dft_length: Fact | None = None,
    axis: Fact | None = None,
    /,
    *,
    inverse: int = 0,
    onesided: int = 0,
) -> Fact:
    if x.dims is None:
        return Fact(None, x.dtype)
    rank = len(x.dims)
    last = 1 if inverse and onesided else 2
    if axis is not None and axis.data is None:
        return Fact((*(None,) * (rank - 1), last), x.dtype)
    along = _axis(None if axis is None else axis.data, rank)
    size = x.dims[along]
    if dft_length is None:
        length: Size = _length(size, None, inverse, onesided)
        length = size if length is None and not onesided else length
    else:
        length = None if dft_length.data is None else _scalar(dft_length.data, "dft_length")
    if onesided and not inverse:
        length = length // 2 + 1 if isinstance(length, int) else None
    return Fact((*x.dims[:along], length, *x.dims[along + 1 : -1], last), x.dtype)


@operator("DFT", infer=_infer_dft)
def dft(
    x: Array,
    dft_length: Array | None = None,
    axis: Array | None = None,
    /,
    *,
    inverse: int = 0,
    onesided: int = 0,
) -> Array:
    """The discrete Fourier transform along an axis, or its inverse; one half of it for real signals."""
    along = _axis(axis, x.ndim)
    data = _signal(x)
    given = None if dft_length is None else _scalar(dft_length, "dft_length")
    length = _length(x.shape[along], given, inverse, onesided)
    if length is None or length < 1:
        raise LayoutError(f"a transform of length {length}; it must be 1 or more")
    if inverse and onesided:
        return narrow(np.fft.irfft(data, length, axis=along)[..., None], x.dtype)
    if onesided and np.iscomplexobj(data):
        raise LayoutError("onesided=1 is for real signals, and this one is complex")
    transform = np.fft.ifft if inverse else np.fft.rfft if onesided else np.fft.fft
    return _parts(transform(data, length, axis=along), x.dtype)


def _known(fact: Fact | None) -> int | None:
    return None if fact is None or fact.data is None else _scalar(fact.data, "a length")


def _infer_stft(
    x: Fact,
    frame_step: Fact,
    window: Fact | None = None,
    frame_length: Fact | None = None,
    /,
    *,
    onesided: int = 1,
) -> Fact:
    size = None if x.dims is None else x.dims[1]
    batch = None if x.dims is None else x.dims[0]
    length: Size = _known(frame_length)
    if frame_length is None:
        length = size if window is None else None if window.dims is None else window.dims[0]
    step, frames = _known(frame_step), None
    if isinstance(size, int) and isinstance(length, int) and step:
        frames = (size - length) // step + 1
    bins = None if not isinstance(length, int) else length // 2 + 1 if onesided else length
    return Fact((batch, frames, bins, 2), x.dtype)


@operator("STFT", infer=_infer_stft)
def stft(
    signal: Array,
    frame_step: Array,
    window: Array | None = None,
    frame_length: Array | None = None,
    /,
    *,
    onesided: int = 1,
) -> Array:
    """Fourier transforms of frames of a signal, each weighed by a window."""
    if signal.ndim != 3 or (window is not None and window.ndim != 1):
        raise LayoutError(f"a signal of {signal.shape}; it must be batch x length x parts, a window a vector")
    data = _signal(signal)
    step = _scalar(frame_step, "frame_step")
    length = data.shape[1] if window is None else window.shape[0]
    if frame_length is not None:
        length = _scalar(frame_length, "frame_length")
    if step < 1 or not 1 <= length <= data.shape[1] or (window is not None and window.shape != (length,)):
        raise LayoutError(f"frames of {length} every {step} elements of {data.shape[1]}, window: {window}")
    frames = np.lib.stride_tricks.sliding_window_view(data, length, axis=1)[:, ::step]
    if window is not None:
        frames = frames * wide(window)
    if onesided and np.iscomplexobj(frames):
        raise LayoutError("onesided=1 is for real signals, and this one is complex")
    return _parts((np.fft.rfft if onesided else np.fft.fft)(frames, axis=2), signal.dtype)


def _infer_window(size: Fact, /, *, output_datatype: int = 1, **_: object) -> Fact:
    return Fact((_known(size),), numpy_type(output_datatype))


def _window(coefficients: tuple[float, ...], size: Array, periodic: int, output_datatype: int) -> Array:
    """A sum of cosines of multiples of the angle, with alternating signs."""
    count = _scalar(size, "size")
    if count < 0:
        raise LayoutError(f"a window of {count} elements; there must be 0 or more")
    angle = np.arange(count) * (2 * np.pi / max(1, count if periodic else count - 1))
    made = np.zeros(count)
    for multiple, coefficient in enumerate(coefficients):
        made += (-1) ** multiple * coefficient * np.cos(multiple * angle)
    return narrow(made, numpy_type(output_datatype))


def _enter(name: str, coefficients: tuple[float, ...]) -> Callable[..., Array]:
    @operator(name, infer=_infer_window)
    def window(size: Array, /, *, output_datatype: int = 1, periodic: int = 1) -> Array:
        return _window(coefficients, size, periodic, output_datatype)

    return window


hann_window = _enter("HannWindow", (0.5, 0.5))
hamming_window = _enter("HammingWindow", (25 / 46, 21 / 46))
blackman_window = _enter("BlackmanWindow", (0.42, 0.5, 0.08))


def _infer_mel(bins: Fact, length: Fact, *_: Fact, output_datatype: int = 1) -> Fact:
    known = _known(length)
    return Fact((None if known is None else known // 2 + 1, _known(bins)), numpy_type(output_datatype))


@operator("MelWeightMatrix", infer=_infer_mel)
def mel_weight_matrix(
    num_mel_bins: Array,
    dft_length: Array,
    sample_rate: Array,
    lower_edge_hertz: Array,
    upper_edge_hertz: Array,
    /,
    *,
    output_datatype: int = 1,
) -> Array:
    """Triangles, evenly spaced on the mel scale, that gather a spectrum into bins."""
    bins, length, rate = (_scalar(n, "a count") for n in (num_mel_bins, dft_length, sample_rate))
    low, high = (
        2595 * np.log10(1 + float(np.asarray(edge).reshape(())) / 700)
        for edge in (lower_edge_hertz, upper_edge_hertz)
    )
    mels = low + np.arange(bins + 2) * ((high - low) / (bins + 2))
    edges = np.floor((length + 1) * (700 * (10 ** (mels / 2595) - 1)) / rate)
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    line = np.arange(length // 2 + 1)[:, None]
    rising = np.where(centre > left, (line - left) / np.maximum(centre - left, 1), line >= centre)
    falling = (right - line) / np.maximum(right - centre, 1)
    made = np.where(line <= centre, rising, np.where(line < right, falling, 0))
    return narrow(np.where(line < left, 0, made), numpy_type(output_datatype))
