"""Files that hold several arrays: one of them written, or many converted, while the others stay.

An npz or safetensors file is always written anew, as any file is (:mod:`relayout.files.atomic`), so arrays
that are to stay are copied: in slices, without being loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from relayout.errors import LayoutError
from relayout.files import npz
from relayout.files.arrays import Given, stored_form
from relayout.files.conversion import Normalise, convert_into
from relayout.files.members import Member, Opened
from relayout.files.outputs import Output, Writer, converted, copy, kept
from relayout.files.spelling import listed, spelled
from relayout.layout.descriptor import MemoryDesc
from relayout.tensor import Tensor

__all__ = ["Job", "create", "write_all"]


class Job(NamedTuple):
    """An array to be converted, and how."""

    member: Member
    given: Given
    name: str
    """What it is called in the new file."""
    src: MemoryDesc
    desc: MemoryDesc
    normalise: Normalise | None = None
    attributes: Mapping[str, Any] = {}


@dataclass
class _Staying:
    """What is copied from one file into another."""

    outputs: list[Output] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    carried: tuple[Path, list[str]] | None = None
    metadata: dict[str, str] = field(default_factory=dict)

    def write(self, writer: Writer) -> Iterator[int]:
        """Copy all, and tell after each array how many elements it had."""
        if self.carried is not None:
            writer.carry(*self.carried)
        for output, member in zip(self.outputs, self.members, strict=True):
            with writer.room(output) as data:
                copy(member.array, data)
            yield prod(output.shape)


@contextmanager
def create(
    module: ModuleType, path: Path, desc: MemoryDesc, name: str | None, force: bool, only: bool
) -> Iterator[Tensor]:
    """Make a file of several arrays for a tensor, to be filled, with the arrays that the file already has."""
    kind = _kind(module)
    form = stored_form(desc)
    output = converted(name or module.DEFAULT_NAME, desc, kind)
    staying = _Staying() if only or not force else _of_existing(module, path, [output.name])
    if name is None and (staying.outputs or staying.carried):
        there = [o.name for o in staying.outputs] or module.opened(path).names
        raise LayoutError(
            f"{spelled(path)} holds {listed(there)}, and what else is in it stays; say which one this is "
            "(name, --name), or that the file is to hold nothing else (only, --only)"
        )
    with module.writing(path, [*staying.outputs, output], force, staying.metadata) as writer:
        for _ in staying.write(writer):
            pass
        with writer.room(output) as data:
            yield Tensor(form.desc, data)


def write_all(
    module: ModuleType,
    path: Path,
    jobs: Sequence[Job],
    source: Opened,
    rest: Sequence[str],
    *,
    force: bool = False,
    only: bool = False,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Convert arrays into one file, and copy the ``rest`` of the source's as they are."""
    kind = _kind(module)
    names = [job.name for job in jobs] + list(rest)
    there = _Staying() if only or not force else _of_existing(module, path, names)
    staying = _of_source(module, source, rest)
    outputs = [converted(job.name, job.desc, kind) for job in jobs]
    order = {name: k for k, name in enumerate(source.names)}
    announced = sorted([*staying.outputs, *outputs], key=lambda o: order.get(o.name, -1))
    total = sum(prod(o.shape) for o in staying.outputs) + sum(prod(job.desc.dims) for job in jobs)
    done = 0

    def tell(elements: int, _: int = 0) -> None:
        if progress is not None:
            progress(done + elements, total)

    metadata = there.metadata | staying.metadata
    with module.writing(path, [*there.outputs, *announced], force, metadata) as writer:
        for _ in there.write(writer):
            pass
        for elements in staying.write(writer):
            done += elements
            tell(0)
        for job, output in zip(jobs, outputs, strict=True):
            src = job.member.tensor(job.given)
            with writer.room(output) as data:
                out = Tensor(stored_form(job.desc).desc, data)
                convert_into(
                    *(src, out), axes="position", threads=threads, progress=tell,
                    normalise=job.normalise, **job.attributes,
                )  # fmt: skip
            done += prod(job.desc.dims)


# -- workings -------------------------------------------------------------------------------------------


def _kind(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


def _of_existing(module: ModuleType, path: Path, replaced: Sequence[str]) -> _Staying:
    """What stays of the file that is written: the arrays that aren't replaced."""
    if not path.is_file() or path.stat().st_size == 0:
        return _Staying()
    try:
        there: Opened = module.opened(path)
        return _of_source(module, there, [name for name in there.names if name not in set(replaced)])
    except LayoutError as error:
        raise LayoutError(
            f"the other arrays of a file stay in it, but {error}; say that the file is to hold nothing else "
            "(only, --only)"
        ) from None


def _of_source(module: ModuleType, source: Opened, names: Sequence[str]) -> _Staying:
    kind = _kind(module)
    if source.kind == kind == "npz":
        carried = [*npz.members_of(source, list(names)), *source.others]
        return _Staying(carried=(source.path, carried) if carried else None)
    members = [source.member(name) for name in names]
    metadata = source.metadata if kind == source.kind else {}
    return _Staying([kept(member, kind) for member in members], members, None, dict(metadata))
