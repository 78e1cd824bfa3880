"""What a .pt2 file may contain, looked through before PyTorch reads it.

``torch.export.save`` writes a zip archive: the program as JSON, the weights as plain bytes. But reading one
may unpickle, which runs whatever the file says: inputs that the model was exported with, tensors of
subclasses, objects. The program's JSON is no mere data either. Sizes are expressions that SymPy evaluates as
Python, operators are looked up in PyTorch by name, and names of values become Python source.

So a file is refused if

* anything is pickled but the sample inputs, or these can't be loaded with ``weights_only=True``;
* a size is anything but arithmetic on symbols, an operator is outside of ``torch.ops``, or a name is none;
* it holds compiled code, or two members of one name (readers differ in which they take).

A file that another program changes between the look and the reading is beyond this.
"""

from __future__ import annotations

import ast
import io
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from relayout.errors import LayoutError, Unsupported

__all__ = ["check"]

MOST_BYTES: Final = 1 << 28
"""The largest member that is read whole; only weights, which are not read here, are larger."""

PAYLOAD: Final = re.compile(r"(weight|tensor)_\w+")
NAME: Final = re.compile(r"\w*")
OPERATOR: Final = re.compile(
    r"torch\.ops\.[a-z]\w*\.\w+(\.\w+)?|_operator\.[a-z]\w*|math\.[a-z]\w*|torch\.sym_\w+"
)
SYMBOL: Final = re.compile(r"[a-z]+\d+")
_NAMES: Final = """
    Symbol Integer Float Rational Add Mul Pow Max Min Mod Abs Piecewise ExprCondPair And Or Not Equality Eq
    Unequality Ne GreaterThan Ge StrictGreaterThan Gt LessThan Le StrictLessThan Lt PythonMod FloorDiv
    CleanDiv CeilDiv CeilToInt FloorToInt TruncToInt TruncToFloat RoundToInt RoundDecimal Where IntTrueDiv
    FloatTrueDiv ToFloat ModularIndexing PowByNatural FloatPow Identity LShift RShift
"""
FUNCTIONS: Final = frozenset(_NAMES.split())
"""What sizes are computed by, as SymPy and PyTorch call it."""
VALUES: Final = frozenset(["true", "false", "int_oo", "oo"])
LONGEST: Final = 10_000
"""Sizes are a few characters long; this many are no size."""


def check(path: Path, torch: Any) -> None:
    """Look through a file.

    Raises
    ------
    LayoutError
        It can't be read, or is no archive of a program.
    Unsupported
        Reading it might run code.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            _members(path, archive, torch)
    except OSError as error:
        raise LayoutError(f"{str(path)!r} can't be read: {error.strerror or error}") from None
    except (zipfile.BadZipFile, zipfile.LargeZipFile, RuntimeError, NotImplementedError) as error:
        raise LayoutError(
            f"{path} is no .pt2 file, a zip archive written by torch.export.save: {error}"
        ) from error


def _members(path: Path, archive: zipfile.ZipFile, torch: Any) -> None:
    names = archive.namelist()
    if len({name.lower() for name in names}) != len(names):
        raise Unsupported(f"{path}: two members of the archive have one name")
    if len({name.partition("/")[0] for name in names}) > 1:
        raise Unsupported(
            f"{path}: an archive of an older PyTorch, or of none; export and save the model again"
        )
    programs = 0
    for name in names:
        member = name.partition("/")[2]
        if member.startswith("models/"):
            programs += 1
            _program(path, member, _json(path, archive, name))
        elif member.endswith("_config.json"):
            _payloads(path, member, _json(path, archive, name))
        elif member.startswith("data/sample_inputs/"):
            _inputs(path, _read(path, archive, name), torch)
        elif member.startswith("data/aotinductor/") or re.match(r"data/(weights|constants)/.*\.pt$", member):
            raise Unsupported(f"{path}: {member} is compiled code or pickled, which would have to be trusted")
    if programs != 1:
        raise LayoutError(
            f"{path} holds {programs} programs; one is read, that torch.export.save has written"
        )


def _read(path: Path, archive: zipfile.ZipFile, name: str) -> bytes:
    if archive.getinfo(name).file_size > MOST_BYTES:
        raise LayoutError(
            f"{path}: {name} has {archive.getinfo(name).file_size} bytes, more than {MOST_BYTES}"
        )
    return archive.read(name)


def _json(path: Path, archive: zipfile.ZipFile, name: str) -> Any:
    try:
        return json.loads(_read(path, archive, name))
    except (ValueError, RecursionError) as error:
        raise LayoutError(f"{path}: {name} is damaged: {error}") from error


def _payloads(path: Path, member: str, config: Any) -> None:
    """Weights and constants: bytes, not pickles."""
    for key, one in _items(config):
        if key == "use_pickle" and one:
            raise Unsupported(
                f"{path}: {member} has a pickled tensor or object; unpickling it could run any code"
            )
        if key == "path_name" and not PAYLOAD.fullmatch(str(one)):
            raise Unsupported(f"{path}: {member} has an object, {one!r}; unpickling it could run any code")


def _inputs(path: Path, data: bytes, torch: Any) -> None:
    """The inputs that the model was exported with: PyTorch unpickles them without limits if it must."""
    try:
        torch.load(io.BytesIO(data), weights_only=True)
    except Exception as error:
        raise Unsupported(
            f"{path}: the inputs that the model was exported with can't be loaded safely, and "
            f"unpickling them could run any code ({str(error).partition(chr(10))[0]})"
        ) from error


def _program(path: Path, member: str, program: Any) -> None:
    """Names, operators and sizes of a program are what they should be."""
    for key, one in _items(program):
        if not isinstance(one, str):
            continue
        if key == "expr_str" and not _is_arithmetic(one):
            raise Unsupported(
                f"{path}: {member} has the size {one!r:.80}, which is not arithmetic on symbols"
            )
        if key == "target" and not OPERATOR.fullmatch(one):
            raise Unsupported(
                f"{path}: {member} has the operator {one!r:.80}; only those of torch.ops are read"
            )
        if key in ("name", "as_name") and not NAME.fullmatch(one):
            raise Unsupported(f"{path}: {member} has the name {one!r:.80}, which is none")


def _is_arithmetic(text: str) -> bool:
    """Whether a text is an expression of numbers, symbols and the functions above, and nothing else."""
    try:
        return len(text) <= LONGEST and _is_value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _is_value(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=bool() | int() | float()):
            return True
        case ast.Name(id=name):
            return name in VALUES or bool(SYMBOL.fullmatch(name))
        case ast.UnaryOp(operand=inner):
            return _is_value(inner)
        case ast.BinOp(left=left, right=right):
            return _is_value(left) and _is_value(right)
        case ast.Compare(left=left, comparators=others):
            return _is_value(left) and all(map(_is_value, others))
        case ast.Call(func=ast.Name(id="Symbol"), args=[ast.Constant(value=str() as name)], keywords=said):
            return bool(SYMBOL.fullmatch(name)) and all(_is_flag(one) for one in said)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return name in FUNCTIONS and all(map(_is_value, args))
    return False


def _is_flag(keyword: ast.keyword) -> bool:
    return isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, bool)


def _items(tree: Any) -> Iterator[tuple[str, Any]]:
    """All pairs of key and value in nested data."""
    left = [tree]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            yield from one.items()
            left.extend(one.values())
        elif isinstance(one, list):
            left.extend(one)
