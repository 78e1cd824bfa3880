"""Convolution formats of MegEngine: one word for source, weights and destination of a convolution.

MegEngine's operations take a ``format`` parameter, and ``NCHW44`` there is not one layout but a *set*: it
says how the source lies, how the weights lie (which differs between dense, group and channel-wise
convolutions) and how the destination lies. The words follow rules:

=====================  ==================  ==================================================================
convolution format     data                weights: dense; group; channel-wise
=====================  ==================  ==================================================================
``NCHW``               ``NCHW``            ``KCRS``; ``GKCRS``; ``C11RS``
``NHWC``               ``NHWC``            ``KRSC``
``NCHW4``              ``NCHWc4``          ``KCRSc4``; ``GKCRSc4``; ``C11RSc4``
``NCHW8 32 64``        ``NCHWc8`` ...      ``KCRSc8`` ...
``NCHW44``, ``88``     ``NCHWc4``, ``c8``  ``KCRSc4k4``; ``GKCRSc4k4``; ``C11RSc4`` (with 8: c8k8, c8)
``NCHW44_DOT``         ``NCHWc4``          ``KCRSk4c4``; ``GKCRSk4c4``
``CHWN4``              ``CHWNc4``          ``CRSKc4``
``NHWCD4``             ``NHCWc4``          ``KRSCk4``; ``GKRSCk4``; ``C1RSc4`` (quantized: k4c4 for k4)
=====================  ==================  ==================================================================

So one number means that channels are blocked, two that the weights are blocked by input *and* output
channels: ``NCHW44``'s weights are ``[K//4, C//4, R, S, C%4, K%4]``. ``_DOT`` swaps the two blocks, as
dot-product instructions want four input channels side by side. ``_HYBRID`` is the first layer of a network:
it reads ``NCHW`` with few channels and writes blocks. ``A_B`` reads A and writes B. ``NHWC_NCHW`` and
``NHWC_NCHW4_IC_SMALL`` resample images, so there are no weights. Winograd formats keep *transformed values*
and are no layouts.

The table is what MegEngine's global layout selection uses; the names on its right are tensor formats, which
:mod:`relayout.notation.megengine` reads.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from relayout.errors import UnknownFormat, Unsupported

__all__ = ["ConvolutionFormats", "convolution_formats", "convolution_names", "data_format"]

_DATA = re.compile(r"(?:NCHW|NHWC|NHWCD4|CHWN4)|NCHW(4|8|32|64|44|88)")
_UNLIKE_THEIR_NAME = {"NHWCD4": "NHCWc4", "CHWN4": "CHWNc4"}
_ONE = re.compile(r"(NCHW44|NCHW88)(_HYBRID)?|(NCHW44)_DOT(_HYBRID)?|(NCHW(?:4|8|32|64)?|NHWC|NHWCD4|CHWN4)")
_PAIR = re.compile(r"(NCHW4)_(NCHW32|NCHW|NHWC)|(NCHW32)_(NCHW4)|(NHWC)_(NCHW)|(NCHW|NHWC)_(NCHW4)_IC_SMALL")
_WINOGRAD = re.compile(r"NCHW(44|88)?_WINOGRAD")


class ConvolutionFormats(NamedTuple):
    """The tensor formats of one convolution format, by name; None where MegEngine has none."""

    src: str
    """The source data."""
    weights: str | None
    """The weights of a dense convolution."""
    group: str | None
    """The weights of a group convolution."""
    channelwise: str | None
    """The weights of a channel-wise (depthwise) convolution: as many groups as channels."""
    dst: str
    """The destination data."""


def data_format(name: str) -> str | None:
    """Return the tensor format of *data* in a convolution format of one word, or None if it is none.

    Examples
    --------
    >>> data_format("NCHW32"), data_format("NCHW88"), data_format("NHWCD4"), data_format("NCHW16")
    ('NCHWc32', 'NCHWc8', 'NHCWc4', None)
    """
    match = _DATA.fullmatch(name)
    if match is None:
        return None
    block = match[1]
    return f"NCHWc{_channel_block(block)}" if block else _UNLIKE_THEIR_NAME.get(name, name)


def _channel_block(written: str) -> str:
    """44 and 88 write the block twice, for input and output channels."""
    return written[0] if written in ("44", "88") else written


def convolution_formats(name: str, quantized: bool = False) -> ConvolutionFormats:
    """Return the source, weights and destination formats that a convolution format stands for.

    Parameters
    ----------
    name : str
        A value of MegEngine's ``Convolution.Format`` (or of a layout configuration: ``NCHW44_HYBRID``).
    quantized : bool
        Whether the elements are 8-bit quantized. Only ``NHWCD4`` cares: its weights are then blocked for
        dot products.

    Returns
    -------
    ConvolutionFormats
        Names of tensor formats, each of which ``Format`` reads.

    Raises
    ------
    Unsupported
        A Winograd format: the weights are transformed, not laid out.
    UnknownFormat
        MegEngine has no such convolution format.

    Examples
    --------
    >>> convolution_formats("NCHW44")
    ConvolutionFormats(src='NCHWc4', weights='KCRSc4k4', group='GKCRSc4k4', channelwise='C11RSc4',
    dst='NCHWc4')
    >>> convolution_formats("NCHW4_NCHW32").weights, convolution_formats("NHWCD4", quantized=True).weights
    ('KCRSc4', 'KRSCk4c4')
    """
    if _WINOGRAD.fullmatch(name):
        raise Unsupported(
            f"{name!r} is no layout: Winograd weights hold transformed values. "
            f"The data of this convolution is {data_format(name.partition('_')[0])}"
        )
    found = _of_pair(name) or _of_one(name, quantized)
    if found is None:
        raise UnknownFormat(
            f"{name!r} is no convolution format of MegEngine; there are {', '.join(convolution_names())}"
        )
    return found


def _of_pair(name: str) -> ConvolutionFormats | None:
    match = _PAIR.fullmatch(name)
    if match is None:
        return None
    first, second = (part for part in match.groups() if part)
    resampling = first == "NHWC"
    read_as = (
        second if first == "NCHW" else first
    )  # few channels (IC_SMALL) are padded to a block while they are read
    weights = None if resampling else _of_one(read_as, False)
    return ConvolutionFormats(
        data_format(first) or first,
        weights.weights if weights else None,
        None,
        None,
        data_format(second) or second,
    )


def _of_one(name: str, quantized: bool) -> ConvolutionFormats | None:
    match = _ONE.fullmatch(name)
    if match is None:
        return None
    doubled, hybrid, dotted, dotted_hybrid, simple = match.groups()
    data = data_format(doubled or dotted or simple) or name
    if hybrid or dotted_hybrid:
        return ConvolutionFormats("NCHW", f"KRSC{_blocks(data, 'k')}", None, None, data)
    if doubled:
        dense = f"KCRS{_blocks(data, 'ck')}"
        return ConvolutionFormats(data, dense, f"G{dense}", f"C11RS{_blocks(data, 'c')}", data)
    if dotted:
        return ConvolutionFormats(data, "KCRSk4c4", "GKCRSk4c4", None, data)
    if name == "NHWCD4":
        dense = "KRSCk4c4" if quantized else "KRSCk4"
        return ConvolutionFormats(data, dense, f"G{dense}", "C1RSc4", data)
    # What is left treats weights as data: output channels in the place of the batch.
    dense = data.translate(str.maketrans("NHW", "KRS"))
    if name in ("NCHW", "NCHW4"):
        return ConvolutionFormats(data, dense, f"G{dense}", f"C11RS{_blocks(data, 'c')}", data)
    return ConvolutionFormats(data, dense, None, None, data)


def _blocks(data: str, letters: str) -> str:
    """The blocks of weights, as large as those of the data: ``c4k4``; none where the data has none."""
    _, c, size = data.partition("c")
    return "".join(letter + size for letter in letters) if c else ""


def convolution_names() -> tuple[str, ...]:
    """List the convolution formats that are layouts (or sets of them).

    >>> len(convolution_names())
    21
    """
    return (
        "NCHW", "NHWC", "NHWCD4", "NCHW4", "NCHW8", "NCHW32", "NCHW64", "CHWN4", "NCHW44", "NCHW88",
        "NCHW44_DOT", "NCHW44_HYBRID", "NCHW88_HYBRID", "NCHW44_DOT_HYBRID", "NCHW4_NCHW32", "NCHW4_NCHW",
        "NCHW4_NHWC", "NCHW32_NCHW4", "NHWC_NCHW", "NHWC_NCHW4_IC_SMALL", "NCHW_NCHW4_IC_SMALL",
    )  # fmt: skip
