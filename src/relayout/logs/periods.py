"""How often a sequence repeats itself: calls of a network, from a log that does not say where one begins.

>>> repetitions("abcabcabc"), repetitions("abcab"), repetitions("abcd")
(3, 1, None)

The first calls may differ, since runtimes prepare things in them; then the end alone is looked at:

>>> repetitions("xyabcabcabcabc")
4
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["period", "repetitions"]

LONGEST = 1 << 18  # of a long sequence only so much of its end is looked at


def period(sequence: Sequence[object]) -> int:
    """The smallest p for which each element equals the one p places on; the length itself if there is none.

    By the prefix function of Knuth, Morris and Pratt: what is not covered by the longest proper prefix that
    is a suffix, too.

    >>> period("abab"), period("ababa"), period("abc"), period("")
    (2, 2, 3, 0)
    """
    borders = [0] * len(sequence)
    length = 0
    for k in range(1, len(sequence)):
        while length and sequence[k] != sequence[length]:
            length = borders[length - 1]
        if sequence[k] == sequence[length]:
            length += 1
        borders[k] = length
    return len(sequence) - (borders[-1] if borders else 0)


def repetitions(sequence: Sequence[object]) -> int | None:
    """How many whole times the end of a sequence repeats the same; None where it does not."""
    for part in (len(sequence), len(sequence) * 2 // 3, len(sequence) // 2):
        tail = sequence[len(sequence) - min(part, LONGEST) :]
        found = period(tail)
        if 0 < found < len(tail):
            return len(sequence) // found
    return None
