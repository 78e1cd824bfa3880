"""The bench of training: PyTorch is given the same network, and results are told."""

from __future__ import annotations

import io

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from relayout import networks
from relayout.bench.measure import Spread
from relayout.bench.models import Result
from relayout.bench.steps import resnet
from relayout.bench.training import CONTESTANTS, show
from relayout.cli import application
from relayout.networks.resnet import Architecture
from relayout.training import SGD, Trainer

SMALL = Architecture((1, 2), groups=2, width=8, channels=8)


def test_pytorch_computes_the_same_network():
    torch = pytest.importorskip("torch")
    graph = networks.graph(SMALL, size=32, classes=5)
    x = np.random.default_rng(0).standard_normal((4, 3, 32, 32), dtype=np.float32)
    labels = np.array([0, 3, 4, 1])
    known = {name: torch.tensor(data) for name, data in graph.constants.items() if data.ndim}
    scores = resnet(torch, SMALL, known, torch.tensor(x))
    loss = torch.nn.functional.cross_entropy(scores, torch.tensor(labels)).item()
    trainer = Trainer(graph, "cross_entropy", SGD(0.1), batch=4)
    assert trainer.step(x, labels) == pytest.approx(loss, rel=1e-5)


def test_results_are_told():
    names = [name for name in CONTESTANTS if name != "torch.compile"]
    one = Result("resnet50", 2, 8, conversions=3, difference=1e-7, peak=dict.fromkeys(names, 10**9))
    one.seconds = {name: Spread(2.0, 1.9, 2.1) for name in names}
    one.behind = {name: Spread(1.25, 1.2, 1.3) for name in names[1:]}
    one.refused = {"torch.compile": "no compiler"}
    text = io.StringIO()
    show([one], Console(file=text, width=100))
    for part in ("resnet50", "1.25", "1e-07", "1000/1000", "torch.compile can't: no compiler"):
        assert part in text.getvalue()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--network", "alexnet"], "--network takes resnet50, resnext101_32x4d"),
        (["--without", "JAX"], "--without takes Relayout"),
        (["--batch", "0"], "--batch takes numbers from 1 on"),
    ],
)
def test_bad_options(given, said):
    found = CliRunner().invoke(application, ["bench", "training", *given], prog_name="relayout")
    assert found.exit_code == 2
    assert said in " ".join(found.output.split())
