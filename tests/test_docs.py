"""The pages are true: code is run, pictures and tables are what the code makes, links lead somewhere."""

from __future__ import annotations

import doctest
import importlib.util
import re
import shlex
import shutil
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import relayout as rl
import small_model
from test_architecture import imports

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS

pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="the pages are not part of this distribution")

_BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<kind>[a-z]*)[^\n]*\n(?P<body>.*?)^(?P=indent)```", re.DOTALL | re.MULTILINE
)


def blocks(page: Path, kind: str) -> list[tuple[int, str]]:
    """The code blocks of a kind: their lines in the page, and their text without the block's indentation."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        if match["kind"] == kind:
            body = re.sub(rf"^{match['indent']}", "", match["body"], flags=re.MULTILINE)
            # Pages show an empty line of output as it is; doctest wants it marked.
            body = re.sub(r"\n\n(?!>>> )", "\n<BLANKLINE>\n", body) if kind == "pycon" else body
            found.append((text[: match.start()].count("\n") + 2, body))
    return found


def _write_model(page: Path, folder: Path) -> None:
    """The model or the log that a page is about."""
    code = "".join(body for kind in ("pycon", "console") for _, body in blocks(page, kind))
    if "import dask" in code:
        pytest.importorskip("dask.array")
    if "net.log" in code:
        shutil.copy(ROOT / "tests" / "logs" / "onednn-resnet.log", folder / "net.log")
    if "model.onnx" in code:
        pytest.importorskip("onnx")
        small_model.write(folder / "model.onnx")
    if any("dump.bin" in body for _, body in blocks(page, "console")):
        elements = np.random.default_rng(0).standard_normal((2, 17, 5, 4)).astype(np.float32)
        np.save(folder / "x.npy", elements)
        rl.tensor(elements, "nChw8c").buffer.tofile(folder / "dump.bin")


def name(page: Path) -> str:
    """How a page is called in the list of tests."""
    return str(page.relative_to(DOCS if DOCS in page.parents else ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_python_blocks(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks of a page are one session, as a reader would type it."""
    monkeypatch.chdir(tmp_path)
    _write_model(page, tmp_path)
    examples: list[doctest.Example] = []
    for line, body in blocks(page, "pycon"):
        if "import torch" in body and importlib.util.find_spec("torch") is None:
            break  # the rest of the page is about exchange with PyTorch
        for example in doctest.DocTestParser().get_examples(body):
            example.lineno += line - 1
            examples.append(example)
    report: list[str] = []
    test = doctest.DocTest(examples, {"__name__": "page"}, page.name, str(page), 0, None)
    doctest.DocTestRunner(optionflags=FLAGS, verbose=False).run(test, out=report.append)
    assert not report, "".join(report)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "console")], ids=name)
def test_console_blocks(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands print what the page says, however the lines are filled; ``...`` stands for anything."""
    pytest.importorskip("PIL")
    from click.testing import CliRunner

    from relayout.cli import application

    monkeypatch.chdir(tmp_path)
    _write_model(page, tmp_path)
    shutil.copy(ROOT / "examples" / "data" / "chelsea.png", tmp_path / "photo.png")
    checker = doctest.OutputChecker()
    for line, body in blocks(page, "console"):
        for command, _, wanted in (
            part.partition("\n") for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]
        ):
            words = shlex.split(command)
            assert words[0] == "relayout", f"{page.name}:{line}: only relayout itself is run here"
            result = CliRunner().invoke(application, words[1:], prog_name="relayout")
            told = f"{page.name}:{line}: $ {command}\n{result.output}"
            assert checker.check_output(wanted, result.output, FLAGS), told


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_page_is_half_merged(page: Path) -> None:
    assert not re.search(r"^(<{7}|={7}|>{7})( |$)", page.read_text(encoding="utf-8"), re.M)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_block_escapes(page: Path) -> None:
    """Python is only shown in a form that is run."""
    assert not blocks(page, "python"), "write ```pycon with >>> and what it prints"
    for line, body in blocks(page, "pycon"):
        assert body.startswith(">>> "), f"{page.name}:{line} does not begin with >>>"


def _load(script: str) -> ModuleType:
    sys.path.insert(0, str(DOCS))
    try:
        spec = importlib.util.spec_from_file_location(f"docs_{script}", DOCS / f"{script}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(DOCS))


def test_pictures_and_tables_are_what_the_code_makes() -> None:
    draw = _load("draw")
    stale = [
        path.name
        for path, text in draw.files().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    assert not stale, "run docs/draw.py"
    assert {path.stem for path in (DOCS / "pictures").glob("*.svg")} == set(draw.DRAWINGS)


def test_every_picture_is_shown_and_has_words() -> None:
    shown = set()
    for page in PAGES:
        for alt, target in re.findall(r"!\[([^\]]*)\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} shows {target}, which does not exist"
            assert len(alt) > 10, f"{page.name}: {target} has no words for who can't see it"
            shown.add(Path(target).stem)
    assert set(_load("draw").DRAWINGS) - shown == {"logo"}


def _anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    plain = [re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", head) for head in heads]
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", head).strip().lower()) for head in plain}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        assert other.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in _anchors(other), (
            f"{page.name} links to {target}; there is {sorted(_anchors(other))}"
        )


def _part(module: str) -> str:
    """The box of the diagram that a module is in."""
    name = module.split(".")[1] if "." in module else ""
    return "base" if name in ("dtypes", "convert", "errors") else name


def test_imports_point_downwards_as_the_diagram_says() -> None:
    diagrams = _load("diagrams")
    below: dict[str, set[str]] = {part: set() for part in diagrams.PARTS}
    for _ in below:
        for upper, lower, *_column in (*diagrams.ARROWS, *diagrams.ASIDE):
            below[upper] |= {lower} | below[lower]
    below["cli"] |= set(below)  # the command line may use everything
    below["draw"].add("notation")
    for part in ("layout", "tensor", "primitives", "graph"):
        below[part].add("draw")  # what notebooks show, and Plan.svg: methods that import it when called
    below["draw"].add("loops")
    below["graph"].add("files")  # a run that is saved is written by what keeps files whole
    below["networks"].add("files")  # weights, read from a file when one is given
    below["targets"].add("jit")  # what LLVM said of the host is asked of the cache before LLVM
    below["tensor"].add("reorder")  # Tensor.reorder, a method for convenience, imports it when called
    source = ROOT / "src" / "relayout"
    for path in source.rglob("*.py"):
        part = _part("relayout." + path.relative_to(source).parts[0].removesuffix(".py"))
        found = {one.module for one in imports(path)} if part in below else set()
        for imported in sorted(name for name in found if name.startswith("relayout.")):
            other = _part(imported)
            assert other == part or other not in below or other in below[part], (
                f"{path.name} imports {imported}"
            )


def test_navigation_holds_every_page() -> None:
    listed = re.findall(
        r": ([a-z/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert sorted(listed) == sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))


def test_nothing_is_fetched_from_elsewhere() -> None:
    for page in [*PAGES, DOCS / "style.css", *(DOCS / "pictures").glob("*.svg")]:
        text = page.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"<script|!\[[^\]]*\]\(https?:|@import|src=.https?:|url\(.?https?:", text), (
            page.name
        )
    assert "font: false" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_make_targets_exist(page: Path) -> None:
    targets = set(
        re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    )
    asked = set(
        re.findall(r"`make ([a-z]+)`|^make ([a-z]+)", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    )
    assert {a or b for a, b in asked} <= targets
