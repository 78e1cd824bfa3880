"""The .pt2 files of torch.export.save: read as they are written, refused before anything of theirs runs."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from relayout.errors import LayoutError, Unsupported
from relayout.importers.torch import load
from relayout.importers.torch.archive import _is_arithmetic
from test_importers_torch import MODELS, assert_agrees, exported

Change = Callable[[dict[str, bytes], Path], None]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("programs") / "model.pt2"
    batch = torch.export.Dim("batch", min=2, max=64)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(64, 2))
    torch.export.save(exported(model, torch.randn(2, 3, 6, 6), dims=({0: batch},)), path)
    return path


@pytest.mark.parametrize(
    "name", ["residual", "writes", "indices", "attention", "lstm 2 True", "made of numbers"]
)
def test_a_file_computes_what_its_program_computes(name: str, tmp_path: Path) -> None:
    model, inputs = MODELS[name]
    torch.export.save(exported(model, *inputs), tmp_path / "model.pt2")
    for path in (tmp_path / "model.pt2", str(tmp_path / "model.pt2")):
        graph = load(path)
    assert_agrees(graph, model, *inputs)


def test_symbolic_sizes_are_read(saved: Path):
    dims = load(saved).inputs[0].dims
    assert dims is not None
    assert isinstance(dims[0], str)
    assert dims[1:] == (3, 6, 6)


class Dangerous:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def pickled_inputs(members: dict[str, bytes], mark: Path) -> None:
    buffer = io.BytesIO()
    torch.save(Dangerous(mark), buffer)
    members["data/sample_inputs/model.pt"] = buffer.getvalue()


def pickled_weight(members: dict[str, bytes], mark: Path) -> None:
    config = json.loads(members["data/weights/model_weights_config.json"])
    first = next(iter(config["config"].values()))
    buffer = io.BytesIO()
    torch.save(Dangerous(mark), buffer)
    first["use_pickle"], members[f"data/weights/{first['path_name']}"] = True, buffer.getvalue()
    members["data/weights/model_weights_config.json"] = json.dumps(config).encode()


def pickled_object(members: dict[str, bytes], mark: Path) -> None:
    member = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": False, "tensor_meta": None}
    members["data/constants/model_constants_config.json"] = json.dumps({"config": {"x": member}}).encode()
    members["data/constants/opaque_obj_0"] = pickle.dumps(Dangerous(mark))


def old_weights(members: dict[str, bytes], mark: Path) -> None:
    members["data/weights/model.pt"] = pickle.dumps(Dangerous(mark))


def in_program(key: str, new: str) -> Change:
    def change(members: dict[str, bytes], mark: Path) -> None:
        program = json.loads(members["models/model.json"])
        found = [one for one in nested(program) if isinstance(one, dict) and isinstance(one.get(key), str)]
        assert found
        found[-1][key] = new.replace("MARK", str(mark))
        members["models/model.json"] = json.dumps(program).encode()

    return change


def nested(tree: Any) -> list[Any]:
    inner = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return [tree, *(found for one in inner for found in nested(one))]


RUN = "__import__('os').mkdir('MARK')"
ATTACKS: dict[str, tuple[Change, str]] = {
    "pickled inputs": (pickled_inputs, "can't be loaded safely"),
    "pickled weight": (pickled_weight, "pickled tensor"),
    "pickled object": (pickled_object, "an object, 'opaque_obj_0'"),
    "weights of old": (old_weights, "compiled code or pickled"),
    "operator": (in_program("target", "torch.os.mkdir"), "the operator 'torch.os.mkdir'"),
    "name": (in_program("name", f"x = {RUN}"), "which is none"),
    "size": (in_program("expr_str", RUN), "not arithmetic on symbols"),
    "compiled": (
        lambda members, _: members.update({"data/aotinductor/model/a.so": b""}), "compiled code or pickled",
    ),
}  # fmt: skip


def written(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(f"model/{name}", data)
    return path


def read(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def test_a_file_written_anew_is_read(saved: Path, tmp_path: Path):
    """What the attacks start from is whole: it is what they change that is refused."""
    assert load(written(tmp_path / "model.pt2", read(saved))).nodes


@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_of_a_file_runs(name: str, saved: Path, tmp_path: Path) -> None:
    change, told = ATTACKS[name]
    members = read(saved)
    change(members, tmp_path / "mark")
    with pytest.raises(Unsupported, match=told):
        load(written(tmp_path / "model.pt2", members))
    assert not (tmp_path / "mark").exists()


def test_two_members_of_one_name_are_refused(saved: Path, tmp_path: Path):
    path = written(tmp_path / "model.pt2", read(saved))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("model/models/MODEL.json", b"{}")
    with pytest.raises(Unsupported, match="one name"):
        load(path)


@pytest.mark.parametrize(
    ("text", "is_size"),
    [
        ("s28", True),
        ("Mul(Integer(16), Symbol('s28', positive=True, integer=True))", True),
        ("Max(1, s0 // 2) + u3 * -2", True),
        ("Symbol('x.y')", False),
        ("Symbol('s1', positive=f())", False),
        ("s28.__class__", False),
        ("open('x')", False),
        ("[s28 for s28 in (1,)]", False),
        ("lambda: 1", False),
        ("(" * 9000, False),
        ("1+" * 6000 + "1", False),
        ("", False),
        ("'text'", False),
    ],
)
def test_sizes_are_arithmetic(text: str, is_size: bool) -> None:
    assert _is_arithmetic(text) == is_size


def test_damaged_files_are_told_from_others(saved: Path, tmp_path: Path):
    data = saved.read_bytes()
    path = tmp_path / "model.pt2"
    for wrong in (b"", b"PK\x03\x04", data[: len(data) // 2], b"\0" * 100):
        path.write_bytes(wrong)
        with pytest.raises(LayoutError, match=r"model\.pt2 is no \.pt2 file"):
            load(path)
    for missing in (tmp_path / "none.pt2", tmp_path):
        with pytest.raises(LayoutError, match=r"can't be read: (No such file|Is a directory)"):
            load(missing)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data/weights/x", b"")
    with pytest.raises(LayoutError, match="holds 0 programs"):
        load(path)


def test_every_damaged_member_is_an_error_and_no_crash(saved: Path, tmp_path: Path):
    members = read(saved)
    for name in members:
        for wrong in (b"", b"{}", members[name][: len(members[name]) // 2]):
            path = written(tmp_path / "model.pt2", members | {name: wrong})
            try:
                load(path)  # some members say nothing that is needed
            except LayoutError as error:
                assert str(path) in str(error)  # noqa: PT017 (it need not be raised)


def test_a_program_without_a_member_is_refused(saved: Path, tmp_path: Path):
    members = read(saved)
    del members["models/model.json"]
    with pytest.raises(LayoutError, match="0 programs"):
        load(written(tmp_path / "model.pt2", members))
