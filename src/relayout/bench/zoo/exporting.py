"""Networks as ONNX files, kept for the next run.

There are several ways from PyTorch to ONNX, and each leaves other graphs: the exporter of today with all
sizes known or with the batch open, or without its optimiser, and the older one that traces TorchScript.
"""

from __future__ import annotations

import inspect
import io
import logging
import os
import tempfile
import warnings
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np

from relayout.bench.zoo.building import build
from relayout.errors import LayoutError

__all__ = ["WRITERS", "Exported", "exported", "folder", "stem"]

WRITERS: Final[dict[str, dict[str, Any]]] = {
    "static": {"dynamo": True, "opset_version": 20},
    "batch": {"dynamo": True, "opset_version": 20},
    "plain": {"dynamo": True, "opset_version": 20, "optimize": False},
    "script": {"dynamo": False, "opset_version": 17},
}
"""Ways of exporting, and the settings of ``torch.onnx.export`` for each."""

LARGEST: Final = 1_500_000_000
"""Bytes of weights from which on they go into a file of their own: a protobuf holds less than 2**31."""


@dataclass(frozen=True)
class Exported:
    """The files of a network."""

    name: str
    model: Path
    inputs: Path

    def arrays(self) -> list[Any]:
        """The inputs that it was exported with."""
        with np.load(self.inputs) as found:
            return [found[key] for key in found.files]

    def remove(self) -> None:
        """Delete what was written."""
        for path in self.model.parent.glob(self.model.stem + ".*"):
            path.unlink(missing_ok=True)


def folder() -> Path:
    """Where exported networks are kept: ``RELAYOUT_NETWORKS``, or a folder in the user's cache."""
    named = os.environ.get("RELAYOUT_NETWORKS")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    return Path(named or os.path.join(cache, "relayout", "networks")).expanduser()


def stem(name: str, batch: int, writer: str, size: int | None = None) -> str:
    """What the files of a network are called.

    >>> stem("tv/resnet50", 8, "static"), stem("extra/yolo", 1, "script"), stem("tv/vgg11", 4, "static", 64)
    ('tv_resnet50-8', 'extra_yolo-1-script', 'tv_vgg11-4-64')
    """
    parts = name.replace("/", "_"), batch, size, None if writer == "static" else writer
    return "-".join(str(part) for part in parts if part is not None)


def exported(
    name: str,
    batch: int = 1,
    writer: str = "static",
    where: Path | None = None,
    size: int | None = None,
) -> Exported:
    """The ONNX file of a network; written unless it is there.

    Parameters
    ----------
    name : str
        A network of :mod:`relayout.bench.zoo`.
    batch : int
        The first size of its inputs.
    writer : str
        One of :data:`WRITERS`.
    where : Path, optional
        The folder; :func:`folder` without it.
    size : int, optional
        Height and width of pictures, as :func:`~.building.build` takes it.

    Raises
    ------
    LayoutError
        A package is missing, or PyTorch can't export the network: the message says why.
    """
    place = where or folder()
    own = stem(name, batch, writer, size)
    found = Exported(name, place / f"{own}.onnx", place / f"{own}.npz")
    if found.model.exists() and found.inputs.exists():
        return found
    place.mkdir(parents=True, exist_ok=True)
    made = build(name, batch, size)
    torch = import_module("torch")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    settings = dict(WRITERS[writer])
    weights = sum(one.numel() * one.element_size() for one in made.module.parameters())
    if settings["dynamo"]:
        settings["external_data"] = weights > LARGEST
        if writer == "batch":
            shapes = ({0: torch.export.Dim.DYNAMIC},) * len(made.inputs)
            kinds = {one.kind for one in inspect.signature(made.module.forward).parameters.values()}
            several = inspect.Parameter.VAR_POSITIONAL in kinds  # *inputs: the shapes of that one parameter
            settings["dynamic_shapes"] = (shapes,) if several else shapes
    elif writer == "script":
        settings["input_names"] = [f"x{k}" for k in range(len(made.inputs))]
    with tempfile.TemporaryDirectory(dir=place) as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(scratch, found.model.name)
        quiet = io.StringIO()
        try:
            torch.backends.mha.set_fastpath_enabled(False)  # of which ONNX has no operator
            with torch.no_grad(), redirect_stdout(quiet), redirect_stderr(quiet):
                torch.onnx.export(made.module, made.inputs, str(path), verbose=False, **settings)
        except Exception as error:  # of any kind: it is another's program
            lines = [line for line in str(error).splitlines() if line.strip()]
            raise LayoutError(
                f"{name} can't be exported: {type(error).__name__}: {' '.join(lines)[:300]}"
            ) from error
        np.savez(found.inputs, *[one.numpy() for one in made.inputs])
        for one in sorted(Path(scratch).iterdir(), key=lambda file: file == path):  # the model last
            one.replace(place / one.name)
    return found
