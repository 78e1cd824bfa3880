"""Make the logs beside this file: real programs run small models, and what they write is kept, scrubbed.

::

    python tests/logs/make.py                    # all, into this folder
    python tests/logs/make.py --into /tmp/logs onnxruntime-resnet.json

It needs PyTorch, ONNX Runtime and OpenVINO (with ``benchmark_app``) on x86-64. Times differ from run to run
and formats from processor to processor, so the tests that read these files compare them with themselves.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LARGEST = 100_000  # bytes of a file that is kept


def resnet(width: int = 16, size: int = 64) -> tuple[Any, Any]:
    """A stem, four bottleneck blocks with batch normalisation, a classifier; and a picture."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, channels: int, inner: int, stride: int) -> None:
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(channels, inner, 1, bias=False), nn.BatchNorm2d(inner)
            self.conv2 = nn.Conv2d(inner, inner, 3, stride, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(inner)
            self.conv3, self.bn3 = nn.Conv2d(inner, 4 * inner, 1, bias=False), nn.BatchNorm2d(4 * inner)
            self.down = nn.Conv2d(channels, 4 * inner, 1, stride, bias=False)

        def forward(self, x: Any) -> Any:
            y = self.bn1(self.conv1(x)).relu()
            y = self.bn2(self.conv2(y)).relu()
            return (self.bn3(self.conv3(y)) + self.down(x)).relu()

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, width, 7, 2, 3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        Block(width, width, 1),
        Block(4 * width, width, 1),
        Block(4 * width, 2 * width, 2),
        Block(8 * width, 2 * width, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8 * width, 10),
    )
    return model.eval(), torch.randn(2, 3, size, size)


def transformer(width: int = 64, heads: int = 4, length: int = 32) -> tuple[Any, Any]:
    """Two layers of self-attention and a feed-forward network, written out; and a sequence."""
    import torch
    from torch import nn

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

        def forward(self, x: Any) -> Any:
            batch, count, _ = x.shape
            q, k, v = self.qkv(self.norm1(x)).view(batch, count, 3, heads, -1).permute(2, 0, 3, 1, 4)
            scores = (q @ k.transpose(-1, -2) * (width // heads) ** -0.5).softmax(-1)
            mixed = (scores @ v).transpose(1, 2).contiguous().view(batch, count, width)
            x = x + self.out(mixed)
            return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))

    torch.manual_seed(0)
    return nn.Sequential(Layer(), Layer()).eval(), torch.randn(2, length, width)


MODELS: dict[str, Callable[[], tuple[Any, Any]]] = {"resnet": resnet, "transformer": transformer}


def exported(name: str, folder: Path) -> Path:
    """The ONNX file of a model."""
    import torch

    model, x = MODELS[name]()
    path = folder / f"{name}.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (x,), str(path), dynamo=False, opset_version=17)
    return path


def verbose(name: str, calls: int, *options: str, **environment: str) -> str:
    """What PyTorch prints while a model runs some calls with oneDNN's log on."""
    call = [sys.executable, __file__, "--run", name, "--calls", str(calls), *options]
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "ONEDNN_VERBOSE": "1", **environment}
    return subprocess.run(call, env=settings, capture_output=True, text=True, check=True).stdout


def run(name: str, calls: int, channels_last: bool, bfloat16: bool) -> None:
    """Run a model in this process, printing as programs do."""
    import torch

    model, x = MODELS[name]()
    if channels_last:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    if bfloat16:
        model, x = model.to(torch.bfloat16), x.to(torch.bfloat16)
    print(f"torch {torch.__version__}")
    with torch.no_grad():
        for call in range(calls):
            print(f"call {call}: {model(x).sum().item():.4f}", flush=True)


def onednn_resnet(folder: Path) -> str:
    return verbose("resnet", 3)


def onednn_resnet_channels_last(folder: Path) -> str:
    return verbose("resnet", 2, "--channels-last", ONEDNN_VERBOSE_TIMESTAMP="1")


def onednn_transformer(folder: Path) -> str:
    return verbose("transformer", 2, "--bfloat16")


def onnxruntime_profile(name: str, folder: Path, calls: int = 3) -> str:
    import numpy as np
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.enable_profiling = True
    options.intra_op_num_threads = 1
    options.profile_file_prefix = str(folder / "profile")
    session = ort.InferenceSession(str(exported(name, folder)), options, providers=["CPUExecutionProvider"])
    _, x = MODELS[name]()
    for _ in range(calls):
        session.run(None, {session.get_inputs()[0].name: np.asarray(x)})
    return Path(session.end_profiling()).read_text(encoding="utf-8")


def openvino_compiled(name: str, folder: Path, calls: int = 3) -> tuple[Any, Any]:
    import numpy as np
    import openvino as ov

    core = ov.Core()
    model = core.read_model(str(exported(name, folder)))
    settings = {"PERF_COUNT": True, "INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(model, "CPU", settings)
    request = compiled.create_infer_request()
    _, x = MODELS[name]()
    for _ in range(calls):
        request.infer([np.asarray(x)])
    return compiled, request


def openvino_graph(name: str, folder: Path) -> str:
    import openvino as ov

    compiled, _ = openvino_compiled(name, folder)
    ov.serialize(compiled.get_runtime_model(), str(folder / "graph.xml"), str(folder / "graph.bin"))
    return (folder / "graph.xml").read_text(encoding="utf-8")


def openvino_info(name: str, folder: Path) -> str:
    """``get_profiling_info`` as JSON, with the names that the object has."""
    _, request = openvino_compiled(name, folder)
    found = [
        {
            "node_name": one.node_name,
            "node_type": one.node_type,
            "exec_type": one.exec_type,
            "status": str(one.status).rpartition(".")[2],
            "real_time": one.real_time.total_seconds() * 1e6,
            "cpu_time": one.cpu_time.total_seconds() * 1e6,
        }
        for one in request.profiling_info
    ]
    return json.dumps(found, indent=1)


def benchmark_app(name: str, folder: Path, *more: str) -> str:
    """Run OpenVINO's ``benchmark_app``; its reports are in the folder afterwards."""
    path = exported(name, folder)
    call = [str(Path(sys.executable).with_name("benchmark_app")), "-m", str(path), "-d", "CPU", "-niter", "3"]
    call += ["-hint", "none", "-nireq", "1", "-nstreams", "1", "-nthreads", "1", "-api", "sync"]
    call += ["-infer_precision", "f32"]
    done = subprocess.run([*call, *more], capture_output=True, text=True, check=True, cwd=folder)
    return done.stdout


def openvino_report(name: str, folder: Path, kind: str) -> str:
    benchmark_app(name, folder, "-report_type", kind, "-report_folder", str(folder))
    (report,) = folder.glob("*_counters*.csv")
    return report.read_text(encoding="utf-8")


def openvino_printed(name: str, folder: Path) -> str:
    return benchmark_app(name, folder, "-pc")


def pytorch_trace(name: str, folder: Path) -> str:
    """A call under the profiler, of pictures that are decoded row by row, or of sequences."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    torch.set_num_threads(1)
    model, x = MODELS[name]()
    path = folder / "trace.json"
    with torch.no_grad():
        model(x)
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
            with record_function("preprocess"):
                if name == "resnet":
                    pictures = (x * 50).clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()
                    x = pictures.permute(0, 3, 1, 2).contiguous().float() / 255
            with record_function("call"):
                model(x).to(torch.bfloat16).float()
    profiled.export_chrome_trace(str(path))
    return path.read_text(encoding="utf-8")


LOGS: dict[str, Callable[[Path], str]] = {
    "onednn-resnet.log": onednn_resnet,
    "onednn-resnet-channels-last.log": onednn_resnet_channels_last,
    "onednn-transformer.log": onednn_transformer,
    "onnxruntime-resnet.json": lambda folder: onnxruntime_profile("resnet", folder, 2),
    "onnxruntime-transformer.json": lambda folder: onnxruntime_profile("transformer", folder, 1),
    "openvino-resnet.xml": lambda folder: openvino_graph("resnet", folder),
    "openvino-transformer.xml": lambda folder: openvino_graph("transformer", folder),
    "openvino-resnet-info.json": lambda folder: openvino_info("resnet", folder),
    "openvino-transformer-counters.csv": lambda folder: openvino_report(
        "transformer", folder, "detailed_counters"
    ),
    "openvino-resnet-counters.csv": lambda folder: openvino_report("resnet", folder, "average_counters"),
    "openvino-resnet-printed.txt": lambda folder: openvino_printed("resnet", folder),
    "pytorch-resnet.json.gz": lambda folder: pytorch_trace("resnet", folder),
    "pytorch-transformer.json": lambda folder: pytorch_trace("transformer", folder),
}


def scrubbed(text: str, folder: Path) -> str:
    """The text without what belongs to this machine: folders, processes, hosts."""
    for path in {str(folder), os.path.realpath(folder), str(Path(sys.executable).parent), str(HERE)}:
        text = text.replace(path.replace("/", "\\/"), "models").replace(path, "models")
    text = re.sub(r"/(?:tmp|home|root|work|usr)/[^\s\"',;]*", "models", text)
    text = re.sub(r"\"(trace_id|host_name)\": \"[^\"]*\"", r'"\1": ""', text)
    if text.lstrip().startswith("{") and "traceEvents" in text:  # one event a line, without blanks
        text = json.dumps(json.loads(text), separators=(",", ":")).replace('},{"ph"', '},\n{"ph"') + "\n"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="files to make; all, if none is named")
    parser.add_argument("--into", type=Path, default=HERE)
    parser.add_argument("--run", choices=list(MODELS), help=argparse.SUPPRESS)
    parser.add_argument("--calls", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--channels-last", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--bfloat16", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        run(given.run, given.calls, given.channels_last, given.bfloat16)
        return
    given.into.mkdir(parents=True, exist_ok=True)
    for name in given.names or LOGS:
        with tempfile.TemporaryDirectory() as place:
            text = scrubbed(LOGS[name](Path(place)), Path(place))
        content = text.encode()
        if name.endswith(".gz"):
            content = gzip.compress(content, mtime=0)
        (given.into / name).write_bytes(content)
        print(f"{name}: {len(content)} bytes{' TOO LARGE' if len(content) > LARGEST else ''}")


if __name__ == "__main__":
    main()
