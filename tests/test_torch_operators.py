"""``relayout audit --operators``: verdicts on operators, the table of the pages, and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click.testing
import pytest

torch = pytest.importorskip("torch")

import relayout.torch as rt  # noqa: E402 - after the check
from relayout.cli import application  # noqa: E402
from relayout.errors import LayoutError  # noqa: E402
from relayout.torch.auditing.cases import CASES, names  # noqa: E402
from relayout.torch.auditing.coverage import VERDICTS, changed, covered, document, verdict_of  # noqa: E402

TABLES = Path(__file__).resolve().parent.parent / "docs" / "measured"
LAST = torch.channels_last


def pictures(*dims: int) -> Any:
    return torch.randn(dims).to(memory_format=LAST)


def call(*words: object, code: int = 0) -> Any:
    result = click.testing.CliRunner().invoke(
        application, [str(word) for word in words], prog_name="relayout"
    )
    assert result.exit_code == code, result.output
    return result


def test_verdicts() -> None:
    x = pictures(2, 8, 6, 6)
    assert verdict_of(x) == "keeps"
    assert verdict_of(x.contiguous()) == "loses"
    assert verdict_of(x[:, :4]) == "gaps"
    assert verdict_of(x.transpose(2, 3)) == "other"
    assert verdict_of(x[:1].reshape(1, 8, 6, 6)) == "ambiguous"
    assert verdict_of(x.mean((2, 3), keepdim=True)) == "keeps"  # both at once


def test_the_list_is_long_and_every_operator_runs() -> None:
    assert len(CASES) >= 104
    assert len({(case.operator, rank) for case in CASES for rank in case.ranks}) == sum(
        len(case.ranks) for case in CASES
    )
    found = covered()
    assert {one.operator for one in found if one.verdict == "refuses"} == set()
    assert {one.rank for one in found} == {4, 5}
    told = document(found)
    assert sum(told["counts"]["4"].values()) >= 104
    assert json.loads(json.dumps(told))["operators"][0]["operator"] == "abs"


@pytest.mark.filterwarnings("ignore:torch.searchsorted")  # PyTorch warns the first time that it copies
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.operator)
def test_a_verdict_is_what_pytorch_says_of_the_result(case: Any) -> None:
    """Asked of tensors, not of sizes and strides."""
    for rank in case.ranks:
        formats = {4: LAST, 5: torch.channels_last_3d}
        x = torch.randn(2, 8, *(6,) * (rank - 2)).to(memory_format=formats[rank])
        torch.manual_seed(0)
        with torch.no_grad():
            result = eval(case.text.replace("{d}", str(rank - 2)), names(x))
        verdict, memory_format = verdict_of(result), formats[result.dim()]
        last, plain = result.is_contiguous(memory_format=memory_format), result.is_contiguous()
        assert (verdict in ("keeps", "ambiguous")) == last
        assert (verdict == "loses") == (plain and not last)
        if verdict == "keeps" and not plain:  # PyTorch keeps the format of a tensor that it takes for it
            assert torch.empty_like(result).is_contiguous(memory_format=memory_format)


def test_the_audit_finds_what_the_table_says() -> None:
    """The verdicts of the two agree on operators of one call."""
    by_name = {(one.operator, one.rank): one for one in covered()}
    for name in (
        "softmax over channels",
        "index_select",
        "topk",
        "layer_norm",
        "relu",
        "flip",
    ):
        one = by_name[name, 4]
        found = rt.audit(lambda x, text=one.text: eval(text, names(x)), pictures(2, 8, 6, 6))
        assert (one.verdict == "loses") == bool(found.lost), name


def test_the_table_of_the_pages_for_this_version() -> None:
    version = torch.__version__.partition("+")[0]
    path = TABLES / f"torch_operators-{version.rpartition('.')[0]}.json"
    if not path.exists():
        pytest.skip(f"the pages have no table of torch {version}")
    kept = json.loads(path.read_text(encoding="utf-8"))
    if kept["torch"] != version:
        pytest.skip(f"the table is of torch {kept['torch']}")
    sample = [case for case in CASES if case.kind not in ("convolution", "pooling")]  # sizes decide there
    wanted = {(one["operator"], one["rank"]): one["verdict"] for one in kept["operators"]}
    assert {(one.operator, one.rank): one.verdict for one in covered(sample)}.items() <= wanted.items()


def test_the_command_lists_operators(tmp_path: Path) -> None:
    path = tmp_path / "operators.json"
    text = call("audit", "--operators", "--json", path).output
    assert "softmax over channels" in text
    assert "4-D: " in text
    told = json.loads(path.read_text())
    assert {one["verdict"] for one in told["operators"]} <= set(VERDICTS)
    assert "relu\t4\tkeeps" in call("audit", "--operators", "-q").output.splitlines()


def test_the_command_says_what_has_changed(tmp_path: Path) -> None:
    path, later = tmp_path / "earlier.json", tmp_path / "later.json"
    call("audit", "--operators", "--json", path)
    assert "no changes" in call("audit", "--operators", "--since", path).output
    told = json.loads(path.read_text())
    told["torch"] = "2.0.0"
    rows = {(one["operator"], one["rank"]): one for one in told["operators"]}
    rows["relu", 4]["verdict"] = "loses"
    told["operators"].remove(rows["roll", 5])
    path.write_text(json.dumps(told))
    text = call("audit", "--operators", "--since", path, "--json", later).output
    assert "since torch 2.0.0: 2 changes" in text
    assert "relu, 4-D: loses, now keeps" in text
    assert "roll, 5-D: not in the list, now keeps" in text
    made = json.loads(later.read_text())
    assert made["since"] == "2.0.0"
    assert made["changed"][0] == {
        "operator": "relu", "text": "x.relu()", "rank": 4, "before": "loses", "after": "keeps"
    }  # fmt: skip
    assert call("audit", "--operators", "--since", path, "-q").output.splitlines() == [
        "relu\t4\tloses\tkeeps",
        "roll\t5\t\tkeeps",
    ]


@pytest.mark.parametrize(("text", "said"), [("no", "is no JSON"), ("[]", "is no table of operators")])
def test_no_table(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(text)
    assert said in call("audit", "--operators", "--since", path, code=4).stderr
    with pytest.raises(LayoutError, match="this one has none"):
        changed({"operators": [{"operator": "relu"}]}, {"operators": []})


NETWORK = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3)

    def forward(self, x, flat=False):
        x = self.conv(x).softmax(1)
        return x.to(memory_format=torch.channels_last).view(2, -1) if flat else self.conv(x[:, :3])

def make():
    return Net(), torch.randn(2, 3, 9, 9)

def failing():
    return Net(), {"x": torch.randn(2, 3, 9, 9), "flat": True}

def three():
    return 1, 2, 3
"""


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "network_to_audit.py"
    path.write_text(NETWORK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    return path


def test_the_command_audits_a_model(network: Path) -> None:
    words = "audit", f"{network}:make", "--channels-last", "--json", "told.json", "--html", "page.html"
    text = call(*words).output
    assert "softmax" in text
    assert "network_to_audit.py:10" in text
    assert "the whole model, median of" in text
    told = json.loads(Path("told.json").read_text())
    assert [one["operator"] for one in told["lost"]] == ["softmax"]
    assert set(told["times"]["seconds"]) >= {"contiguous", "channels_last"}
    assert "softmax" in Path("page.html").read_text()
    said = call("audit", "network_to_audit:make", "--channels-last", "--no-compare", "-q").output
    assert said == f"softmax\t\t{network}:10\n"


def test_the_command_makes_inputs_and_trains(network: Path) -> None:
    words = "audit", f"{network}:Net", "--input", "2,3,9,9", "--channels-last", "--no-compare"
    told = json.loads(call(*words, "--train", "--json").stdout)
    assert told["train"]
    assert any(one["backward"] for one in told["operators"])


def test_a_model_that_raises_is_told_until_there(network: Path) -> None:
    result = call("audit", f"{network}:failing", "--channels-last", "--no-compare", code=4)
    assert "Raised" in result.output
    assert "reshape copies" in result.output
    assert "relayout: error: the model raised RuntimeError: view size" in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("audit",), "give MODULE:FUNCTION, or --operators"),
        (("audit", "--operators", "a:b"), "give MODULE:FUNCTION, or --operators"),
        (
            ("audit", "network_to_audit:make", "--since", "network_to_audit.py"),
            "--since goes with --operators",
        ),
        (("audit", "nothing"), "'nothing' is no MODULE:FUNCTION"),
        (("audit", "nothing_here:make"), "there is no module nothing_here"),
        (("audit", "nothing_here.py:make"), "there is no file nothing_here.py"),
        (("audit", "network_to_audit:nothing"), "network_to_audit has no nothing"),
        (("audit", "network_to_audit:Net"), "give --input DIMS"),
    ],
)
def test_misuse(words: tuple[str, ...], said: str, network: Path) -> None:
    assert said in call(*words, code=2).stderr


def test_what_is_no_model(network: Path) -> None:
    assert "returns a tuple of 3, not (model, inputs)" in call("audit", f"{network}:three", code=4).stderr
