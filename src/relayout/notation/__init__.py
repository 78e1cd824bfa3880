"""How people write formats: one module per dialect, each two functions, ``parse`` and ``render``.

Every system spells the same digits in its own way::

    n, c//16, h, w, c%16     nChw16c          oneDNN          b_fs_yx_fsv16    OpenVINO / clDNN
                             aBcd16b          (its letters)   NCHW16c          TVM, MLAS
                             aBx16b           benchdnn        kCHW16           TensorRT

So translation is parsing with one dialect and rendering with another, and a new dialect is one file. A
dialect is a module with

``TITLE: str``
    What the system calls itself: ``"oneDNN"``.
``parse(text, rank, dtype) -> Format | None``
    Read a text by grammar, never from a list of all names. None: this is not a text of the dialect. A text
    that the dialect knows but that is no layout (Winograd, images) raises
    :class:`~relayout.errors.Unsupported` with the reason; one with several readings raises
    :class:`~relayout.errors.AmbiguousFormat`. ``rank`` and ``dtype`` are None while they are unknown; a text
    that needs them gives ``Format.waiting(...)`` or a format ``.spelled(..., waits_for=...)`` and is read
    again later.
``render(format) -> str | None``
    Spell a format that has digits. The rule ``parse(render(f)) == f`` is a property test of every dialect.
``names() -> Iterable[str]``
    The texts to show in lists and to suggest after a typing error: all where the dialect is finite, the usual
    ones where it is a grammar.
``attested(name) -> bool``, optional
    Whether the system itself has a format of this name, where its grammar can spell more than it has. Without
    this function every name counts: the grammar is the list.

Which dialect a text is in is found by asking them in the order below. Texts with lower-case letters of oneDNN
come first and are final; after that all dialects are asked, and they must agree. Where they don't, the error
lists the readings, and the caller writes the dialect in front, ``"mnn:NC4HW4"``, or the reading behind,
``"NCHW44@weights"``.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from relayout.dtypes import dtype as as_dtype
from relayout.errors import AmbiguousFormat, LayoutError, UnknownFormat, checked, whole
from relayout.forking import later as _later
from relayout.forking import lock
from relayout.layout import spelling
from relayout.layout.format import Format

if TYPE_CHECKING:
    from relayout.notation import verbose as verbose
    from relayout.notation.verbose import Verbose

__all__ = ["SYNONYMS", "Dialect", "attested", "dialect", "dialects", "parse", "readings", "render"]

_ORDER: tuple[str, ...] = (
    "onednn",
    "benchdnn",
    "openvino",
    "megengine",
    "pytorch",
    "digits",
    "tvm",
    "tensorrt",
    "cudnn",
    "cublaslt",
    "xla",
    "onnxruntime",
    "executorch",
    "ncnn",
    "mnn",
    "mindspore",
    "rknn",
    "ascend",
    "qnn",
    "acl",
    "x86",
    "mx",
    "tenstorrent",
    "mlir",
    "cute",
    "triton",
    "tinygrad",
)
COLONS = 2  # at least, of a descriptor in a line that oneDNN logs (:mod:`relayout.notation.verbose`)
LONGEST = 2000  # characters of a format; what is longer is a mistake, and slow to find fault with
_FINAL = ("onednn", "benchdnn")  # a text that one of these reads is not offered to the others
SYNONYMS = {
    "mkldnn": "onednn",
    "mkl-dnn": "onednn",
    "cldnn": "openvino",
    "torch": "pytorch",
    "trt": "tensorrt",
    "ort": "onnxruntime",
    "onnx": "onnxruntime",
    "mlas": "onnxruntime",
    "mslite": "mindspore",
    "qualcomm": "qnn",
    "vnni": "x86",
    "amx": "x86",
    "iree": "mlir",
    "cutlass": "cute",
    "relayout": "digits",
}
"""Other usual names of dialects."""
_SHORT = {f"torch.{name}": name for name in ("contiguous_format", "channels_last", "channels_last_3d")}
"""How PyTorch prints its own objects, and the names under which all ways to write them print alike."""


class Dialect(Protocol):
    """What a module of this package offers."""

    TITLE: str

    def parse(self, text: str, rank: int | None, dtype: str | None) -> Format | None:
        """Read a text; None if it is none of this dialect."""

    def render(self, format: Format) -> str | None:
        """Spell a format; None if it has no spelling."""

    def names(self) -> Iterable[str]:
        """List texts to show and to suggest."""


def dialects() -> tuple[str, ...]:
    """The names of all dialects, in the order in which they are asked.

    >>> dialects()[:3]
    ('onednn', 'benchdnn', 'openvino')
    """
    return _ORDER


def dialect(name: str) -> Dialect:
    """Return the module of a dialect by name (or a usual synonym: "cldnn", "trt", "torch", ...).

    Raises
    ------
    UnknownFormat
        There is no such dialect.
    LayoutError
        It is no name.
    """
    return _dialect(checked(name, str, "a dialect", "a name"))


@lru_cache(maxsize=256)
def _dialect(name: str) -> Dialect:
    known = _known(name)
    if known is None:
        near = _near_dialects(name)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UnknownFormat(f"there is no dialect {name!r}; {hint}known are: {', '.join(_ORDER)}")
    with lock():  # a child that is forked meanwhile must not find it half imported
        return cast(Dialect, import_module(f"relayout.notation.{known}"))


def _near_dialects(name: str) -> list[str]:
    with lock():
        from difflib import get_close_matches  # only needed on the way to an error

    return get_close_matches(name.lower(), [*_ORDER, *SYNONYMS], n=1)


def _known(name: str) -> str | None:
    low = name.lower()
    return low if low in _ORDER else SYNONYMS.get(low)


def parse(
    text: str, dialect_name: str | None = None, rank: int | None = None, dtype: str | None = None
) -> Format:
    """Read a format from text.

    Parameters
    ----------
    text : str
        ``[dialect:]name[@reading]``.
    dialect_name : str, optional
        The dialect, if it is not in the text.
    rank, dtype : optional
        What is known about the tensor, for texts that depend on it.

    Raises
    ------
    UnknownFormat, AmbiguousFormat, Unsupported
    """
    if type(text) is not str or (dialect_name is not None and type(dialect_name) is not str):
        checked(text, str, "a format", "text")
        checked(dialect_name, str, "a dialect", "a name")
    if rank is not None and type(rank) is not int:
        rank = whole(rank, "the rank")
    return _parse(text, dialect_name, rank, None if dtype is None else as_dtype(dtype).name)


@lru_cache(maxsize=8192)
def _parse(text: str, dialect_name: str | None, rank: int | None, dtype: str | None) -> Format:
    if len(text) > LONGEST:
        raise UnknownFormat(
            f"a format of {len(text)} characters, {_shown(text)}; no format is longer than {LONGEST}"
        )
    bare = text.strip()
    bare = _SHORT.get(bare, bare)
    if bare.count(":") >= COLONS and dialect_name in (None, "onednn"):
        described = _logged(bare)
        if described is not None:
            return described.format
    head, colon, tail = bare.partition(":")
    if dialect_name is None and colon and _known(head):
        dialect_name, bare = head, tail.strip()
    if dialect_name is not None:
        module = dialect(dialect_name)
        found = module.parse(bare, rank, dtype)
        if found is None:
            raise UnknownFormat(
                f"{_shown(bare)} is no format of {module.TITLE}{_suggest(bare, module.names())}"
            )
        return found.spelled(bare, _known(dialect_name) or dialect_name, found.waits_for)
    found_in = _readings(bare, rank, dtype)
    if not found_in:
        if dialect_name is None and colon and _near_dialects(head):
            dialect(head)  # raises, and says which dialect was meant
        raise UnknownFormat(f"no dialect knows the format {_shown(text)}{_suggest(bare, _all_names())}")
    (name, format), *others = found_in.items()
    if not others:
        return format.spelled(bare, name, format.waits_for)
    if any(other != format for _, other in others):
        raise AmbiguousFormat(
            f"{text!r} means different layouts: "
            + "; ".join(f"in {dialect(d).TITLE} {_written(f)}" for d, f in found_in.items())
            + f". Write the dialect in front, e.g. '{name}:{bare}'"
        )
    waits = frozenset().union(*(f.waits_for for f in found_in.values()))
    return format.spelled(bare, name, waits)


def _logged(text: str) -> Verbose | None:
    """Read a descriptor in a line that oneDNN logs; None for any other text."""
    if text.count(":") < COLONS:
        return None
    with lock():
        from relayout.notation import verbose

    return verbose.read(text.strip())


def readings(text: str) -> dict[str, Format]:
    """All dialects that can read a text, with what it means there.

    >>> sorted(readings("NCHW16c"))
    ['tvm']
    """
    return _readings(checked(text, str, "a format", "text").strip(), None, None)


def _readings(text: str, rank: int | None, dtype: str | None) -> dict[str, Format]:
    found: dict[str, Format] = {}
    refused: LayoutError | None = None
    for name in _ORDER:
        try:
            format = dialect(name).parse(text, rank, dtype)
        except LayoutError as error:
            refused = refused or error
            continue
        if format is not None:
            found[name] = format
            if name in _FINAL:
                break
    if not found and refused is not None:
        raise refused
    return found


def render(format: Format, dialect_name: str) -> str | None:
    """Spell a format in a dialect; None where it has no spelling there."""
    if not isinstance(dialect_name, str):
        dialect(dialect_name)  # raises
    if checked(format, Format, "a format to spell", "a relayout.Format").rank is None:
        return format.text if format.dialect == _known(dialect_name) or not dialect(dialect_name) else None
    return dialect(dialect_name).render(format)


def attested(name: str, dialect_name: str) -> bool:
    """Whether the system itself has a format of this name, and the name does not only follow its grammar.

    :meth:`Format.name` spells by grammar: ``b_fs_yx_fsv24`` says exactly what ``nChw24c`` says, but OpenVINO
    has no such format and its programs refuse the name.

    Parameters
    ----------
    name : str
        A name that :meth:`Format.name` gave, or a text that the dialect reads.
    dialect_name : str
        The dialect.

    Raises
    ------
    LayoutError
        There is no such dialect.

    Examples
    --------
    >>> [attested(Format(text).name("openvino"), "openvino") for text in ("nChw16c", "nChw24c")]
    [True, False]
    >>> attested("NCHW24c", "tvm")  # TVM takes every layout that its grammar can spell
    True
    """
    checked(name, str, "a format's name", "text")
    told = getattr(dialect(dialect_name), "attested", None)
    return told is None or bool(told(name))


def _written(format: Format) -> str:
    return format.digits_text() if format.rank is not None else "a layout for each rank"


def _all_names() -> list[str]:
    return [name for d in _ORDER for name in dialect(d).names()]


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _suggest(text: str, names: Iterable[str]) -> str:
    with lock():
        from difflib import get_close_matches  # only needed on the way to an error

    pool: dict[str, str] = {}
    for name in names:
        pool.setdefault(name.lower(), name)  # of spellings that differ in case only, the first dialect's
    near = get_close_matches(text.lower(), pool, n=3, cutoff=0.7)
    if near:
        return "; did you mean " + " or ".join(repr(pool[n]) for n in near) + "?"
    return "; 'relayout formats' lists what there is"


spelling.install(parse, render, _logged)

if not TYPE_CHECKING:
    __getattr__, __dir__ = _later(__name__, "verbose")
