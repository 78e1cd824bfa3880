"""Programs of torch.export as graphs: every network computes what PyTorch computes."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree

import relayout
from relayout.errors import LayoutError, Unsupported
from relayout.graph.backward import trainable
from relayout.graph.evaluate import evaluate
from relayout.graph.graph import Graph, Value
from relayout.graph.inference import inferred
from relayout.graph.operators import OPERATORS
from relayout.graph.passes import optimized
from relayout.importers.torch import load
from relayout.importers.torch.operators import TABLE
from strategies import tried
from torch_models import Function, models

MODELS = models()


def exported(model: Any, *inputs: Any, dims: Any = None) -> Any:
    """The program of a model; warnings that PyTorch gives at its own code are not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(model.eval(), inputs, dynamic_shapes=dims)


def tensors(results: Any) -> list[Any]:
    return [one for one in _pytree.tree_flatten(results)[0] if one is not None]


def assert_agrees(graph: Graph, model: Any, *inputs: Any) -> None:
    """The graph's outputs are those of the model, in order, within 1e-5 of the largest element."""
    with torch.no_grad():
        wanted = tensors(model(*inputs))
    given = [one.numpy() for one in tensors(inputs)]
    with np.errstate(all="ignore"):
        made = evaluate(graph, *given)
    assert len(made) == len(wanted)
    for name, array, tensor in zip(graph.results, made, wanted, strict=True):
        right = tensor.detach()
        assert array.shape == tuple(right.shape), name
        assert str(array.dtype) == str(right.dtype).removeprefix("torch."), name
        right = right.double().numpy() if right.is_floating_point() else right.numpy()
        finite = np.abs(right[np.isfinite(right)], dtype=float)
        largest = finite.max(initial=0)
        np.testing.assert_allclose(
            array.astype(right.dtype), right, rtol=0, atol=1e-5 * largest, err_msg=name
        )


def assert_well_formed(graph: Graph) -> None:
    """Each name is given once, and before it is read; outputs are different values that nodes compute."""
    known = ["", *(value.name for value in graph.inputs), *graph.constants]
    for node in graph.nodes:
        assert set(node.inputs) <= set(known)
        known += node.outputs
    assert len(known) == len(set(known))
    assert set(graph.constants) <= {name for node in graph.nodes for name in node.inputs}
    assert len(set(graph.results)) == len(graph.results)
    assert set(graph.results) <= {name for node in graph.nodes for name in node.outputs}


@pytest.mark.parametrize("name", MODELS)
def test_a_network_computes_what_pytorch_computes(name: str) -> None:
    model, inputs = MODELS[name]
    graph = load(exported(model, *inputs))
    assert_agrees(graph, model, *inputs)
    for node in graph.nodes:
        OPERATORS[node.operator].check(len(node.inputs), node.attributes)
    for value in graph.values.values():
        assert value.known
    assert_well_formed(graph)


def test_facts_of_values_are_those_of_the_run():
    model, inputs = MODELS["vit"]
    graph = load(exported(model, *inputs))
    made = evaluate(graph.replaced(results=tuple(graph.values)), *(one.numpy() for one in inputs))
    for value, array in zip(graph.values.values(), made, strict=True):
        assert (value.dims, value.dtype) == (array.shape, array.dtype)


def test_names_are_those_of_the_program_and_the_state_dict():
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 2)
            self.norm = nn.BatchNorm1d(2)
            self.register_buffer("table", torch.arange(2.0), persistent=False)

        def forward(self, first: Any, pair: dict[str, Any]) -> Any:
            return {"b": self.norm(self.fc(first)), "a": pair["y"] + pair["x"] * self.table}

    x, y = torch.randn(4, 2), torch.randn(4, 2)
    model = Named()
    graph = load(exported(model, torch.randn(4, 3), {"y": y, "x": x}))
    assert [value.name for value in graph.inputs] == ["first", "pair_y", "pair_x"]
    assert set(graph.constants) == {
        "fc.weight", "fc.bias", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var", "table",
    }  # fmt: skip
    assert graph.results == ("b", "a")
    assert graph.value("a") == Value("a", (4, 2), np.dtype("float32"))


def test_weights_share_memory_and_are_read_only():
    model = nn.Sequential(nn.Linear(3, 2), nn.Conv1d(4, 2, 1))
    graph = load(exported(model, torch.randn(2, 4, 3)))
    for name, address in (("0.weight", model[0].weight), ("1.weight", model[1].weight)):
        constant = graph.constants[name]
        assert constant.ctypes.data == address.data_ptr()
        assert not constant.flags.writeable


def test_what_is_learned_are_parameters_that_are_not_frozen():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 4), nn.LSTM(4, 5, bidirectional=True)
            self.register_buffer("table", torch.ones(4))
            self.scale = nn.Parameter(torch.tensor(2.0))
            self.first.bias.requires_grad_(False)

        def forward(self, x: Any) -> Any:
            return self.last(self.first(x) * self.table)[0] * self.scale

    model = Model()
    graph = load(exported(model, torch.randn(6, 2, 3)))
    wanted = {name for name, one in model.named_parameters() if one.requires_grad}
    assert set(graph.parameters) == set(trainable(graph)) == wanted
    assert {"table", "first.bias"} <= set(graph.constants)


def test_half_precision_needs_no_copy():
    model = nn.Linear(3, 2).to(torch.bfloat16)
    graph = load(exported(model, torch.ones(4, 3, dtype=torch.bfloat16)))
    assert str(graph.inputs[0].dtype) == str(graph.constants["weight"].dtype) == "bfloat16"
    assert graph.constants["weight"].ctypes.data == model.weight.data_ptr()


def test_a_weight_that_two_layers_share_is_one_constant():
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    graph = load(exported(nn.Sequential(first, second), torch.randn(2, 3)))
    used = {node.inputs[1] for node in graph.nodes}
    assert len({graph.constants[name].ctypes.data for name in used}) == 1


def test_a_name_of_a_node_gives_way_to_no_other():
    class Clash(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add = nn.Parameter(torch.ones(2))
            self.x = nn.Parameter(torch.full((2,), 3.0))

        def forward(self, x: Any) -> Any:
            return x + self.add * self.x

    inputs = (torch.randn(2),)
    assert_agrees(load(exported(Clash(), *inputs)), Clash(), *inputs)


def test_composites_stay_whole():
    lstm, inputs = MODELS["lstm 1 False"]
    graph = optimized(inferred(load(exported(lstm, *inputs))))
    assert [node.operator for node in graph.nodes] == ["LSTM", "Squeeze"]
    block, inputs = MODELS["vit"]
    assert [node.operator for node in load(exported(block, *inputs)).nodes].count("Attention") == 1


def test_results_that_nobody_reads_cost_nothing():
    graph = load(
        exported(Function(lambda x: x.max(1)[0] + (x * 2).sum(1) * 0 + x.sort(1)[0][:, 0]), torch.randn(2, 3))
    )
    assert "ArgMax" not in [node.operator for node in graph.nodes]


SIZES = {
    "convolutions": (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                      nn.Linear(4, 2)),
        lambda batch, length: (torch.randn(batch, 3, 8, length + 4),),
        ({0: "batch", 3: "width"},),
    ),
    "attention": (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 1,
                              enable_nested_tensor=False),
        lambda batch, length: (torch.randn(batch, length, 8),),
        ({0: "batch", 1: "length"},),
    ),
    "lstm": (
        nn.LSTM(5, 4, 2, batch_first=True, bidirectional=True),
        lambda batch, length: (torch.randn(batch, 7, 5),),
        ({0: "batch"},),
    ),
    "arithmetic of sizes": (
        Function(lambda x: (
            x.reshape(x.shape[0] * x.shape[1], -1), x[:, : x.shape[1] - 1], x.mean(1) * x.shape[1],
            torch.arange(x.shape[1]) + 0.5, torch.zeros(x.shape[0], x.shape[1] + 1), x.expand(2, *x.shape),
            F.pad(x, (0, 0, 1, x.shape[1] - 1)), x.roll(1, 1), x.sort(1)[0], x.softmax(1),
            x.unsqueeze(1).repeat(1, 2, 1, 1), x / (x.shape[1] ** 0.5), x[:, -1], x.masked_select(x > 0),
        )),
        lambda batch, length: (torch.randn(batch, length, 4),),
        (({0: "batch", 1: "length"},),),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SIZES)
def test_sizes_that_are_not_known_stay_text(name: str) -> None:
    model, made, dims = SIZES[name]
    sizes = {text: torch.export.Dim(text, min=4, max=64) for text in ("batch", "length", "width")}
    named = _pytree.tree_map_only(str, sizes.__getitem__, dims)
    graph = load(exported(model, *made(5, 6), dims=named))
    assert isinstance(graph.inputs[0].dims[0], str)
    for batch, length in ((5, 6), (4, 9)):
        assert_agrees(graph, model, *made(batch, length))


@settings(max_examples=tried(12), deadline=None)
@given(data=st.data())
def test_windows_slices_and_paddings_of_any_numbers(data: st.DataObject) -> None:
    """What has corner cases: windows that begin in the padding, steps, negative bounds, uneven parts."""

    def number(low: int, high: int) -> int:
        return data.draw(st.integers(low, high))

    x = torch.randn(1, 2, number(5, 9), number(5, 9))
    kernel, stride, ceil = number(2, 4), number(1, 4), data.draw(st.booleans())
    padding = number(0, kernel // 2)
    start, end, step = number(-12, 12), number(-12, 12), number(1, 3)
    pads = [number(-2, 3) for _ in range(4)]
    shift, parts, sizes = number(-9, 9), number(1, 9), (number(1, 9), number(1, 9))
    model = Function(lambda x: (
        F.max_pool2d(x, kernel, stride, padding, ceil_mode=ceil), x[..., start:end:step], F.pad(x, pads),
        F.avg_pool2d(x, kernel, stride, padding, ceil, False), F.avg_pool2d(x, kernel, stride, padding, ceil),
        x.chunk(parts, 3), x.split(parts, 2), F.adaptive_avg_pool2d(x, sizes),
        x.roll((shift, -shift), (2, 3)),
        F.adaptive_max_pool2d(x, sizes), F.interpolate(x, sizes, mode="bilinear"), F.interpolate(x, sizes),
    ))  # fmt: skip
    assert_agrees(load(exported(model, x)), model, x)


def test_everything_unknown_is_named_at_once():
    def hard(x: Any) -> Any:
        return torch.linalg.inv(x), torch.linalg.det(x), torch.linalg.inv(x + 1), positions(x)

    def positions(x: Any) -> Any:
        return F.max_pool2d(x[None], 2, return_indices=True)[1]

    with pytest.raises(Unsupported) as caught:
        load(exported(Function(hard), torch.eye(4)))
    told = str(caught.value)
    assert re.search(r"aten\.linalg_inv_ex\.default at linalg_inv\w*, linalg_inv\w*;", told)
    assert "aten._linalg_det.default at" in told
    assert "the positions that max pooling returns" in told


def test_a_program_that_writes_to_its_inputs_or_buffers_is_refused():
    with pytest.raises(Unsupported, match=r"writes to inputs_0; export the model after model\.eval\(\)"):
        load(exported(Function(lambda x: x.add_(1)), torch.ones(2)))
    model = nn.BatchNorm1d(2).train()
    program = torch.export.export(model, (torch.randn(3, 2),))
    with pytest.raises(Unsupported, match="running_mean; it writes to running_var;"):
        load(program)


def test_what_pytorch_can_not_take_apart_is_refused():
    hard = Function(lambda x: (torch.polar(x, x).real, torch.view_as_real(torch.complex(x, x))))
    with pytest.raises(Unsupported):
        load(exported(hard, torch.ones(2, 2)))


def test_a_branch_is_refused_by_name():
    branch = Function(lambda x: torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,)))
    with pytest.raises(Unsupported, match=r"translated: torch\.cond at cond$"):
        load(exported(branch, torch.ones(2)))


def test_arguments_that_are_no_tensors_are_part_of_the_program():
    model = Function(lambda x, times, nothing: (x * times, None, x + 1))
    graph = load(exported(model, torch.ones(2), 3, None))
    assert [value.name for value in graph.inputs] == ["inputs_0"]
    made = evaluate(graph, np.float32([1, 2]))
    assert [one.tolist() for one in made] == [[3, 6], [2, 3]]


def test_sizes_that_data_decides():
    model = Function(lambda x: (x[x > 0], x.nonzero(), x[x[:, 0] > 0]))
    for seed in range(2):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))
        assert_agrees(load(exported(model, torch.ones(4, 3))), model, x)


def test_values_without_axes_and_without_elements():
    model = Function(lambda x: (
        x.sum().softmax(0), x.sum()[None], x.sum().expand(3), x.sum().max(), torch.stack([x.sum(), x.mean()]),
        x.sum().reshape(1, 1), x.sum().cumsum(0), x[:0] @ x, x[:0].sum(0), torch.cat([x[:0], x]), x[:, 4:],
        x[:0].reshape(0, 2, 2),
    ))  # fmt: skip
    x = torch.randn(4, 4)
    assert_agrees(load(exported(model, x)), model, x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_networks_of_other_types(dtype: Any) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.SiLU(), nn.Flatten(), nn.Linear(64, 2)
    ).to(dtype)
    x = torch.randn(2, 3, 6, 6).to(dtype)
    graph = load(exported(model, x))
    given = x.view(torch.int16).numpy().view(graph.inputs[0].dtype) if dtype.itemsize == 2 else x.numpy()
    (made,) = evaluate(graph, given)
    assert made.dtype == graph.inputs[0].dtype
    right = model(x).detach().double().numpy()
    np.testing.assert_allclose(
        made.astype(float), right, atol=4 * torch.finfo(dtype).eps * np.abs(right).max()
    )


def test_dropout_in_training_is_refused():
    program = torch.export.export(nn.Dropout(0.5).train(), (torch.ones(2),))
    with pytest.raises(Unsupported, match="dropout in training"):
        load(program)


@pytest.mark.parametrize("wrong", [None, 3, nn.Linear(2, 2), torch.ones(2)])
def test_anything_else_is_no_program(wrong: Any) -> None:
    with pytest.raises(LayoutError, match=r"must be a torch\.export\.ExportedProgram.*got"):
        load(wrong)


def test_lists_of_what_is_translated_name_operators_of_pytorch():
    for name in TABLE:
        namespace, operator, *overload = name.split(".")
        if namespace == "aten" and hasattr(torch.ops.aten, operator):
            assert hasattr(getattr(torch.ops.aten, operator), overload[0]), name


def test_importing_the_importer_does_not_import_pytorch():
    code = (
        "import sys, relayout.importers.torch as t; assert 'torch' not in sys.modules; print(t.load.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "load\n"
    assert relayout is not None
