"""Conversions that plans leave, beside those that ONNX Runtime and OpenVINO leave in the same networks.

::

    python tests/conversions.py runtime_conversions.json MODELS           all that can be made
    python tests/conversions.py runtime_conversions.json MODELS swin vit  those whose names have a word

The file has the runtimes' numbers; MODELS is a folder with the networks as ONNX files, such as
``tv_resnet18.onnx``, or where they are written: torchvision and timm make them, if they are installed.
Those whose names begin with ``nhwc_`` are made of the others, as converters from NHWC leave them: a Transpose
before and behind every operator that ONNX defines in NCHW; all else, inputs and outputs too, is NHWC.

What is counted is what a run executes, not what the planner says: every reorder, with the bytes that it reads
and writes, as the runtimes' are. Apart are copies, which the runtimes' numbers do not have either: parts that
are brought to their places in a concatenation, padding, repeated elements; and operands of matrix products
that are packed in a call.
"""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path
from typing import Any, NamedTuple


class Count(NamedTuple):
    """How many, and megabytes read and written."""

    number: int
    megabytes: float

    def __str__(self) -> str:
        return f"{self.number:4d} {self.megabytes:7.2f}"


def counted(descs: list[tuple[Any, ...]]) -> Count:
    """What becomes of tensors that are converted."""
    return Count(len(descs), sum(desc.nbytes for several in descs for desc in several) / 1e6)


def ours(path: Path) -> tuple[Count, Count, Count]:
    """Conversions, copies, and packed operands of a network's run."""
    import relayout as rl

    run = rl.load(str(path)).compile(threads=1)
    if run.steps is None:
        raise ValueError(run.why)
    layers = run.steps.layers()
    moved = [layer for layer in layers if layer.kind == "reorder"]
    converted = [layer for layer in moved if layer.name.endswith(".reorder")]
    copied = [layer for layer in moved if not layer.name.endswith(".reorder")]
    packed = [layer for layer in layers if "weights reordered" in layer.implementation]
    moves = [counted([tuple(one.descs.values()) for one in several]) for several in (converted, copied)]
    return moves[0], moves[1], counted([2 * (one.descs["weights"],) for one in packed])


def theirs(facts: dict[str, Any]) -> Count:
    """Reorders and transposes that a runtime executes."""
    number = sum(facts.get(key, 0) for key in ("reorder", "reorder_input", "reorder_output", "transpose"))
    return Count(number, facts["reorder_MB"] + facts["transpose_MB"])


SAME = (
    "Relu",
    "Sigmoid",
    "Clip",
    "HardSwish",
    "HardSigmoid",
    "Tanh",
    "Elu",
    "LeakyRelu",
    "Identity",
    "Dropout",
)
BOTH = ("Add", "Sub", "Mul", "Div")


def channels_last(model: Any) -> Any:
    """A model as a converter from NHWC leaves it: images are NHWC, but for what ONNX defines in NCHW."""
    import onnx
    from onnx import helper, numpy_helper

    graph = onnx.shape_inference.infer_shapes(model).graph
    constants = {one.name: one for one in graph.initializer}
    ranks = {one.name: len(one.dims) for one in graph.initializer}
    for one in (*graph.input, *graph.value_info, *graph.output):
        ranks.setdefault(one.name, len(one.type.tensor_type.shape.dim))
    there, back = (0, 3, 1, 2), (0, 2, 3, 1)

    def is_image(name: str) -> bool:
        return ranks.get(name) == 4 and name not in constants

    nodes, turned = [], set()
    for k, node in enumerate(graph.node):
        images = [name for name in (*node.input, *node.output) if is_image(name)]
        others = [name for name in node.input if name and not is_image(name)]
        alike = node.op_type in (*SAME, "Concat") or (
            node.op_type in BOTH and all(name in constants and ranks[name] in (0, 4) for name in others)
        )
        if images and alike and not (node.op_type == "Concat" and others):
            if node.op_type == "Concat":
                axis = next(one for one in node.attribute if one.name == "axis")
                axis.i = back.index(axis.i % 4)
            for name in others:
                if ranks[name] == 4 and name not in turned:
                    data = numpy_helper.to_array(constants[name]).transpose(back)
                    constants[name].CopyFrom(numpy_helper.from_array(data.copy(), name))
                    turned.add(name)
            nodes.append(node)
            continue
        behind = []
        for place, name in enumerate(node.input):
            if is_image(name):
                node.input[place] = f"{name}/nchw{k}.{place}"
                nodes.append(helper.make_node("Transpose", [name], [node.input[place]], perm=there))
        for place, name in enumerate(node.output):
            if is_image(name):
                node.output[place] = f"{name}/nchw"
                behind.append(helper.make_node("Transpose", [node.output[place]], [name], perm=back))
        nodes += [node, *behind]
    for one in (*graph.input, *graph.output):
        dims = one.type.tensor_type.shape.dim
        if len(dims) == 4 and one.name not in constants:
            sizes = [dims[axis].dim_value for axis in back]
            for dim, size in zip(dims, sizes, strict=True):
                dim.dim_value = size
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)
    made = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    onnx.checker.check_model(made)
    return made


def made(name: str, path: Path) -> None:
    """Export a network of torchvision or timm with random weights."""
    if name.startswith("nhwc_"):
        import onnx

        source = path.with_name(path.name.removeprefix("nhwc_"))
        if not source.exists():
            made(name.removeprefix("nhwc_"), source)
        onnx.save(channels_last(onnx.load(source)), path)
        return
    import torch

    package, model = name.split("/")
    size: tuple[int, ...] = (3, 224, 224)
    torch.manual_seed(0)
    if package == "timm":
        network = importlib.import_module("timm").create_model(model, pretrained=False)
        size = network.default_cfg.get("input_size", size)
    elif package == "tv":
        options: dict[str, Any] = {"weights": None}
        if model == "inception_v3":
            options, size = {**options, "init_weights": False, "aux_logits": True}, (3, 299, 299)
        if model == "efficientnet_v2_s":
            size = (3, 384, 384)
        network = getattr(importlib.import_module("torchvision.models"), model)(**options)
    elif package == "tv-seg":
        models = importlib.import_module("torchvision.models.segmentation")
        network, size = getattr(models, model)(weights=None, weights_backbone=None), (3, 520, 520)
    else:
        raise ValueError(f"{name} is no network of torchvision or timm")
    network.eval()
    with torch.no_grad():
        image = torch.randn((1, *size))
        torch.onnx.export(network, (image,), str(path), dynamo=True, external_data=False, opset_version=20)


def main() -> None:
    """Compare, and print a line for each network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("facts", type=Path)
    parser.add_argument("models", type=Path)
    parser.add_argument("words", nargs="*")
    given = parser.parse_args()
    known = json.loads(given.facts.read_text())["models"]
    print(f"{'':32s} {'ONNX Runtime':>12s} {'OpenVINO':>12s} {'ours':>12s} {'copies':>12s} {'packed':>12s}")
    totals: dict[bool, list[list[Count]]] = {True: [], False: []}
    for facts in known:
        name, path = facts["model"], given.models / (facts["model"].replace("/", "_") + ".onnx")
        if given.words and not any(word in name for word in given.words):
            continue
        try:
            if not path.exists():
                made(name, path)
            counts = [theirs(facts["onnxruntime"]), theirs(facts["openvino"]), *ours(path)]
        except Exception as error:
            print(f"{name:32s} {type(error).__name__}: {error}"[:110], flush=True)
            continue
        print(f"{name:32s}", *counts, flush=True)
        totals[bool(facts["source_transposes"])].append(counts)
    for transposes, rows in totals.items():
        if rows:
            columns = zip(*rows, strict=True)
            sums = [Count(sum(n for n, _ in column), sum(m for _, m in column)) for column in columns]
            print(f"{len(rows)} with{'' if transposes else 'out'} transposes".ljust(32), *sums)


if __name__ == "__main__":
    main()
