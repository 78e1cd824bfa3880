"""Networks of 8 bits: ONNX files that ONNX Runtime's quantiser writes, kept for the next run.

Convolutional networks are quantised with pairs of QuantizeLinear and DequantizeLinear around everything
(QDQ), their ranges taken from random inputs; transformers with weights alone, and activations by their range
in each run ("dynamic"), as ONNX Runtime advises for them.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np

from relayout.bench.zoo.exporting import Exported, exported, folder, stem
from relayout.errors import LayoutError
from relayout.targets.machine import Machine

__all__ = ["KINDS", "quantise", "quantised", "saturates", "stem_of_bytes", "usual"]

KINDS: Final[dict[str, dict[str, str]]] = {
    "qdq": {"activations": "QUInt8", "weights": "QInt8", "format": "QDQ"},
    "qdq-s8s8": {"activations": "QInt8", "weights": "QInt8", "format": "QDQ"},
    "qdq-u8u8": {"activations": "QUInt8", "weights": "QUInt8", "format": "QDQ"},
    "qoperator": {"activations": "QUInt8", "weights": "QInt8", "format": "QOperator"},
    "dynamic": {"weights": "QInt8"},
}
"""Ways of quantising: types of activations and weights, and how the file says it."""

SAMPLES: Final = 4
"""Inputs whose ranges are taken."""


def usual(name: str) -> str:
    """The way of quantising that suits a network of the zoo.

    >>> usual("tv/resnet50"), usual("hf/bert"), usual("tv/vit_b_16")
    ('qdq', 'dynamic', 'dynamic')
    """
    return "dynamic" if name.startswith("hf/") or "vit" in name or "swin" in name else "qdq"


def stem_of_bytes(name: str, batch: int) -> str:
    """What the quantised file of a network is called.

    >>> stem_of_bytes("tv/resnet50", 1), stem_of_bytes("hf/bert_base", 8)
    ('tv_resnet50-1-qdq', 'hf_bert_base-8-dynamic')
    """
    return f"{stem(name, batch, 'static')}-{usual(name)}"


def saturates(processor: Machine) -> bool:
    """Whether ONNX Runtime's sums of products of bytes saturate at 16 bits, on an x86 processor.

    Without instructions that add four products to 32 bits it adds two in 16. With weights of 8 bits most of
    its results are wrong then where many are large; ours are exact.

    >>> from relayout.targets.machine import machine
    >>> [saturates(machine(cpu)) for cpu in ("x86-64-v3", "znver4", "alderlake")]
    [True, False, False]
    """
    return not (processor.is_arm or processor.has("avx512vnni") or processor.has("avxvnni"))


def quantise(
    model: Path,
    target: Path,
    kind: str,
    samples: Sequence[Sequence[Any]],
    per_channel: bool = True,
    seven_bits: bool = False,
) -> None:
    """Quantise an ONNX file.

    Parameters
    ----------
    model, target : Path
        The file, and the one that is written.
    kind : str
        One of :data:`KINDS`.
    samples : sequence of sequence of ndarray
        Inputs of the network, in their order, whose ranges are taken.
    per_channel : bool
        Whether weights have a scale for each output channel, or one for all.
    seven_bits : bool
        Whether weights stay within 7 bits, as ONNX Runtime advises where its sums saturate
        (:func:`saturates`).

    Raises
    ------
    LayoutError
        There is no such way.
    """
    if kind not in KINDS:
        raise LayoutError(f"no way of quantising is called {kind!r}: there are {', '.join(KINDS)}")
    tools = import_module("onnxruntime.quantization")
    settings, types = KINDS[kind], tools.QuantType
    weights = getattr(types, settings["weights"])
    level = logging.getLogger().level
    logging.getLogger().setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), tempfile.TemporaryDirectory() as scratch:
            warnings.simplefilter("ignore")
            prepared = Path(scratch, "prepared.onnx")
            shapes = import_module("onnxruntime.quantization.shape_inference")
            shapes.quant_pre_process(str(model), str(prepared), skip_symbolic_shape=True)
            if kind == "dynamic":
                tools.quantize_dynamic(
                    str(prepared),
                    str(target),
                    weight_type=weights,
                    per_channel=per_channel,
                    reduce_range=seven_bits,
                )
                return
            tools.quantize_static(
                str(prepared),
                str(target),
                _reader(tools.CalibrationDataReader, prepared, samples),
                quant_format=getattr(tools.QuantFormat, settings["format"]),
                activation_type=getattr(types, settings["activations"]),
                weight_type=weights,
                per_channel=per_channel,
                reduce_range=seven_bits,
            )
    finally:
        logging.getLogger().setLevel(level)


def _reader(base: Any, model: Path, samples: Sequence[Sequence[Any]]) -> Any:
    """What hands samples to the quantiser, one by one."""
    inputs = import_module("onnx").load(str(model), load_external_data=False).graph.input
    names = [one.name for one in inputs]

    class Reader(base):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left: Iterator[Sequence[Any]] = iter(samples)

        def get_next(self) -> dict[str, Any] | None:
            found = next(self.left, None)
            return None if found is None else dict(zip(names, found, strict=False))

    return Reader()


def quantised(name: str, batch: int = 1, kind: str | None = None, where: Path | None = None) -> Exported:
    """The quantised ONNX file of a network of the zoo; written unless it is there.

    Parameters
    ----------
    name : str
        A network of :mod:`relayout.bench.zoo`.
    batch : int
        The first size of its inputs.
    kind : str, optional
        One of :data:`KINDS`; without it :func:`usual`.
    where : Path, optional
        The folder; :func:`~.exporting.folder` without it.

    Raises
    ------
    LayoutError
        The network can't be exported, or ONNX Runtime's quantiser can't do it.
    """
    kind = kind or usual(name)
    place = where or folder()
    real = exported(name, batch, where=place)
    found = Exported(name, place / f"{real.model.stem}-{kind}.onnx", real.inputs)
    if found.model.exists():
        return found
    given = real.arrays()
    rng = np.random.default_rng(1)
    samples = [given] + [
        [rng.standard_normal(one.shape).astype(one.dtype) if one.dtype.kind == "f" else one for one in given]
        for _ in range(SAMPLES - 1)
    ]
    with tempfile.TemporaryDirectory(dir=place) as scratch:
        path = Path(scratch, found.model.name)
        try:
            quantise(real.model, path, kind, samples)
        except LayoutError:
            raise
        except Exception as error:  # of any kind: it is another's program
            raise LayoutError(f"{name} can't be quantised: {type(error).__name__}: {error}"[:300]) from error
        path.replace(found.model)
    return found
