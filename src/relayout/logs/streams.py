r"""The elements of a large JSON document, one after the other, without the document in memory.

A trace is one array of small objects, possibly gigabytes of them, within an object or alone. So this is all
that is needed of a streaming parser: go into the outermost object and into the arrays directly within it, and
have :class:`json.JSONDecoder` read each value whole, as fast as it does.

>>> document = b'{"version": 1, "events": [{"name": "a"}, {"name": "b"}]}'
>>> list(Elements([document[:30], document[30:]]))
[('version', 1), ('events', {'name': 'a'}), ('events', {'name': 'b'})]

Damage does not end it. Behind a value that can't be read the next one is looked for that begins as events do,
and :attr:`Elements.problems` says what was left out; so it does if the document ends too early.

>>> cut = Elements([b'[{"name": "a"}, {"name": "b', b'\xff\x00'])
>>> list(cut), cut.problems
([('', {'name': 'a'})], ['it ends in the middle of element 2'])
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["Elements"]

LARGEST = 1 << 26  # characters of one value: events have thousands at most
SURE = (
    64  # characters: an error that far from the end of what was read is damage, not a piece that is missing
)
MOST_PROBLEMS = 5  # that are told one by one

_BLANK = re.compile(r"[ \t\r\n]*")
_EVENT = re.compile(r',\s*(?=\{\s*"(?:ph|cat|name|node_name|layerName)"\s*:)')
"""Where the next event begins: behind a comma, with a key that events begin with."""


_ENDS = frozenset(",]} \t\r\n:")
"""What may follow a number."""


class _Ends(Exception):
    """The document ends where more was expected."""


class _Damaged(Exception):
    """Something stands there that is no JSON."""


class Elements:
    """Pairs of the outermost key and a value; values of arrays one by one, under the key of the array.

    Parameters
    ----------
    chunks : iterable of bytes
        The document in UTF-8.
    """

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self.problems: list[str] = []
        """What could not be read, in words."""
        self.count = 0
        """How many values have been read."""
        self._chunks = iter(chunks)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._read = json.JSONDecoder().raw_decode
        self._text, self._at, self._gone, self._done = "", 0, 0, False
        self._more()
        if self._text.startswith("\ufeff"):
            self._at = 1

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        try:
            first = self._peek()
            if first == "[":
                self._at += 1
                yield from self._array("")
            elif first == "{":
                self._at += 1
                yield from self._object()
            else:
                self.count += 1
                yield "", self._value()
        except _Ends:
            self.problems.append(
                f"it ends in the middle of element {self.count + 1}" if self.count else "it ends too early"
            )
        except _Damaged as damage:
            self.problems.append(f"it is damaged {damage}, and what follows is not read")

    def _object(self) -> Iterator[tuple[str, Any]]:
        while True:
            sign = self._peek()
            if sign == "}":
                return
            if sign == ",":
                self._at += 1
                continue
            key = self._value()
            if not isinstance(key, str) or self._peek() != ":":
                raise _Damaged(self._place())
            self._at += 1
            if self._peek() == "[":
                self._at += 1
                yield from self._array(key)
            else:
                value = self._value()
                yield key, value

    def _array(self, key: str) -> Iterator[tuple[str, Any]]:
        while True:
            sign = self._peek()
            if sign == "]":
                self._at += 1
                return
            if sign == ",":
                self._at += 1
                continue
            try:
                value = self._value()
            except _Damaged as damage:
                self._skip(damage)
                continue
            self.count += 1
            yield key, value

    def _value(self) -> Any:
        """The value that begins here, read whole."""
        while True:
            read = self._try()
            if read is not None and self._is_whole(*read):
                self._at = read[1]
                return read[0]

    def _is_whole(self, value: Any, end: int) -> bool:
        """Whether a value ends there; a number may go on in the next piece, which is then read."""
        if not isinstance(value, (int, float)) or self._text[end : end + 1] in _ENDS:
            return True
        if len(self._text) - end > SURE:
            raise _Damaged(self._place(end))
        if self._done:
            return True
        self._more()
        return False

    def _try(self) -> tuple[Any, int] | None:
        """The value that begins here, and where it ends; None where more has to be read first."""
        try:
            return self._read(self._text, self._at)
        except json.JSONDecodeError as error:
            open_text = error.msg.startswith("Unterminated string")
            if not open_text and error.pos < len(self._text) - SURE:
                raise _Damaged(self._place(error.pos)) from None
            if len(self._text) - self._at > LARGEST:
                raise _Damaged(self._place()) from None
            if not self._more():
                raise _Ends from None
            return None
        except (RecursionError, ValueError):  # nested too deeply; a number of thousands of digits
            raise _Damaged(self._place()) from None

    def _skip(self, damage: _Damaged) -> None:
        """Go to the next event, and note what was left out."""
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(f"an event is damaged {damage}, and was left out")
        elif len(self.problems) == MOST_PROBLEMS:
            self.problems.append("more events are damaged, and were left out")
        self._at += 1
        while True:
            found = _EVENT.search(self._text, self._at)
            if found is not None:
                self._at = found.end()
                return
            self._at = max(self._at, len(self._text) - SURE)
            if not self._more():
                raise _Ends

    def _peek(self) -> str:
        """The next sign that is no blank."""
        while True:
            self._at = _BLANK.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                raise _Ends

    def _more(self) -> bool:
        """Read on: as much again as is left over, so that a long value is tried few times."""
        wanted = len(self._text) - self._at
        parts, length = [self._text[self._at :]], 0
        while not self._done and (length == 0 or length < wanted):
            chunk = next(self._chunks, None)
            piece = self._decoder.decode(chunk or b"", final=chunk is None)
            self._done = chunk is None
            parts.append(piece)
            length += len(piece)
        self._gone += self._at
        self._text, self._at = "".join(parts), 0
        return length > 0

    def _place(self, at: int | None = None) -> str:
        return f"at character {self._gone + (self._at if at is None else at) + 1}"
