"""What PyTorch's exporter writes for layers of all kinds, in several versions, against ONNX Runtime."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from relayout.graph.inference import inferred

pytest.importorskip("onnx")
torch = pytest.importorskip("torch")
runtime = pytest.importorskip("onnxruntime")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from relayout.importers.onnx import read  # noqa: E402


class Layer(nn.Module):  # type: ignore[misc]
    """A function as a layer."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: Any) -> Any:
        return self.function(*given)


def network() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1),
        nn.BatchNorm2d(8),
        nn.ReLU6(),
        nn.MaxPool2d(3, 2, 1, ceil_mode=True),
        nn.Conv2d(8, 8, 3, groups=8, padding=1),
        nn.Hardswish(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
        nn.Softmax(1),
    )


def image(*dims: int) -> Any:
    return torch.randn(*dims, generator=torch.Generator().manual_seed(1))


LAYERS: dict[str, tuple[Callable[[], Any], tuple[Any, ...]]] = {
    "network": (network, (image(2, 3, 17, 17),)),
    "lstm": (lambda: nn.LSTM(5, 7, 2, bidirectional=True, batch_first=True), (image(2, 4, 5),)),
    "gru": (lambda: nn.GRU(5, 7), (image(4, 2, 5),)),
    "encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (image(2, 5, 8),)),
    "groups": (lambda: nn.GroupNorm(2, 8), (image(2, 8, 5),)),
    "nearest": (lambda: Layer(lambda x: F.interpolate(x, scale_factor=2)), (image(1, 2, 5, 6),)),
    "bilinear": (
        lambda: Layer(lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear")),
        (image(1, 2, 5, 6),),
    ),
    "shuffle": (lambda: nn.PixelShuffle(2), (image(1, 8, 3, 3),)),
    "slices": (lambda: Layer(lambda x: x[:, [0, 2], 1:] + x[..., -1:, 1:]), (image(2, 3, 4),)),
    "topk": (lambda: Layer(lambda x: torch.topk(x, 2, 1)), (image(2, 5),)),
    "pad": (lambda: nn.Sequential(nn.ReflectionPad2d(1), nn.ConstantPad2d(1, 2.0)), (image(1, 2, 3, 3),)),
    "split": (lambda: Layer(lambda x: torch.cat(x.split([1, 2, 3], 1)[::-1], 1)), (image(2, 6),)),
    "clamp": (lambda: Layer(lambda x: x.clamp(min=-0.5).clamp(-2.0, 0.3)), (image(9),)),
    "reduce": (
        lambda: Layer(lambda x: (x.mean((1, 2)), x.sum(), x.amax(1), x.logsumexp(2))),
        (image(2, 3, 4),),
    ),
    "softmax": (lambda: Layer(lambda x: (F.softmax(x, 1), F.log_softmax(x, -1))), (image(2, 3, 4),)),
    "prelu": (lambda: nn.PReLU(3), (image(2, 3, 4, 4),)),
    "deconv": (lambda: nn.ConvTranspose2d(3, 4, 3, 2, 1, 1), (image(1, 3, 5, 5),)),
    "view": (lambda: Layer(lambda x: x.view(x.shape[0], -1).t().reshape(-1, 2)), (image(2, 3, 4),)),
    "labels": (lambda: Layer(lambda x: F.one_hot(x, 5)), (torch.tensor([[1, 0, 4]]),)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("opset", [9, 12, 17])
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, opset: int) -> None:
    make, given = LAYERS[name]
    torch.manual_seed(0)
    file = io.BytesIO()
    names = [f"x{i}" for i in range(len(given))]
    try:
        torch.onnx.export(
            make().eval(),
            given,
            file,
            opset_version=opset,
            dynamo=False,
            do_constant_folding=False,
            input_names=names,
            dynamic_axes={one: {0: "n"} for one in names},
        )
    except Exception as error:
        pytest.skip(f"the exporter has no {name} in version {opset}: {type(error).__name__}")
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    session = runtime.InferenceSession(file.getvalue(), options, ["CPUExecutionProvider"])
    wanted = {value.name for value in session.get_inputs()}
    feeds = {one: x.numpy() for one, x in zip(names, given, strict=True) if one in wanted}
    expected = session.run(None, feeds)
    graph = read(file.getvalue())
    small = inferred(graph, {one: x.shape for one, x in feeds.items()})
    assert not {"Shape", "Size", "ConstantOfShape", "If", "Range"} & {node.operator for node in small.nodes}
    assert all(small.value(one).known for one in small.results)
    for one in (graph, small):
        for got, other in zip(one.evaluate(*(feeds[v.name] for v in one.inputs)), expected, strict=True):
            assert (got.shape, got.dtype) == (other.shape, other.dtype)
            np.testing.assert_allclose(got, other, 1e-3, 1e-4)
