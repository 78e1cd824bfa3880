"""ONNX Runtime and OpenVINO: the whole of ResNet-50, from an ONNX file that PyTorch writes.

Both get the network as PyTorch exports it, with batch normalisations, which they fold into the convolutions.
OpenVINO computes in bf16 where the processor can, unless it is told not to; here it is.

Neither may disturb whoever is measured next: threads of the one stop spinning when a run ends, and the other
does not tie threads to processors.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import cache
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from relayout.bench.networks import Forward
from relayout.bench.operands import Operands, Work
from relayout.bench.peers.primitives import pytorch
from relayout.bench.peers.primitives.contestant import Computation

__all__ = ["OnnxRuntime", "OpenVINO"]

EXPORTS = ("torch", "onnx", "onnxscript")  # what writing the file takes


class OnnxRuntime:
    """ONNX Runtime's CPU provider."""

    name = "ONNX Runtime"

    def available(self) -> str | None:
        """Its version."""
        return _version("onnxruntime")

    def prepare(self, work: Work, operands: Operands, threads: int) -> Computation | None:
        """Make a session with so many threads."""
        if not isinstance(work, Forward):
            return None
        runtime = import_module("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.add_session_config_entry("session.force_spinning_stop", "1")
        session = runtime.InferenceSession(_exported(work), options, providers=["CPUExecutionProvider"])
        given = {session.get_inputs()[0].name: operands.src}
        return _computation(lambda: session.run(None, given)[0], "CPUExecutionProvider")


class OpenVINO:
    """OpenVINO's CPU plugin, in f32."""

    name = "OpenVINO"

    def available(self) -> str | None:
        """Its version."""
        return _version("openvino")

    def prepare(self, work: Work, operands: Operands, threads: int) -> Computation | None:
        """Compile the model for so many threads."""
        if not isinstance(work, Forward):
            return None
        core = import_module("openvino").Core()
        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            "ENABLE_CPU_PINNING": False,
        }
        request = core.compile_model(core.read_model(_exported(work)), "CPU", settings).create_infer_request()
        request.set_input_tensor(import_module("openvino").Tensor(operands.src, shared_memory=True))

        def infer() -> Any:
            request.infer()
            return request.get_output_tensor().data

        return _computation(infer, "CPU, f32")


def _computation(action: Callable[[], Any], implementation: str) -> Computation:
    return Computation(action, lambda: np.array(action(), np.float32), implementation)


def _version(name: str) -> str | None:
    """The version of a package, if the file for it can be written as well."""
    return version(name) if all(find_spec(needed) for needed in (name, *EXPORTS)) else None


@cache
def _exported(work: Forward) -> bytes:
    """The network as ONNX."""
    torch = import_module("torch")
    example = torch.zeros(work.src_dims)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), redirect_stdout(StringIO()):
        warnings.simplefilter("ignore")
        path = Path(folder, "network.onnx")
        torch.onnx.export(pytorch.network(work), (example,), path, external_data=False, dynamo=True)
        return path.read_bytes()
