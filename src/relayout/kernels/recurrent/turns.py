"""Threads that take turns: who does which share of a step, and when a step is complete.

A step may begin when all shares of the step before are done, some microseconds later. To end a region of the
thread pool for that, and to begin another one, would take as long as the work. So the parts of one region
agree among themselves, over two words for each share::

    claimed    the last step that somebody has taken
    done       the last step that is complete

* Each part takes its own share first, step after step: the share's weights stay in its cache.
* Then it looks for shares that nobody has taken. A part that has not begun is not waited for; one that has
  gets some time first.
* Then it waits until all shares of the step are done.

Nobody waits for what nobody has taken. So it does not matter how many parts run at the same time: one alone,
or part after part, comes to the end as well. Nor do results depend on it, since shares are fixed.
"""

from __future__ import annotations

from relayout.targets.machine import Machine

__all__ = ["LINE", "functions", "room"]

LINE = 64  # bytes of a cache line: words that different threads write lie so far apart
PATIENCE = 512  # looks at a share that another part is expected to take, each a pause of 10 to 50 ns

_PAUSE = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
}


def room(shares: int) -> int:
    """Bytes of the words of so many shares, which must be zero before the first part begins.

    >>> room(2)
    384
    """
    return 3 * LINE * shares


def functions(machine: Machine, shares: int) -> str:
    """The text of what parts call; ``turns`` is the address of their words, ``step`` counts from 1.

    ``begin(turns, part)``
        A part says that it is there.
    ``take(turns, part, share, step) -> i1``
        Whether the share of this step is the caller's now.
    ``finish(turns, share, step)``
        It is done.
    ``wait(turns, step)``
        Return when all shares of a step are done.
    """
    declared, pause = _PAUSE.get(machine.triple.split("-")[0], ("", ""))
    return f"""
{declared}

define internal ptr @turn_word(ptr %turns, i64 %kind, i64 %share) alwaysinline {{
  %row = mul i64 %kind, {shares}
  %number = add i64 %row, %share
  %offset = mul i64 %number, {LINE}
  %at = getelementptr i8, ptr %turns, i64 %offset
  ret ptr %at
}}

define internal void @begin(ptr %turns, i64 %part) {{
  %at = call ptr @turn_word(ptr %turns, i64 2, i64 %part)
  store atomic i64 1, ptr %at release, align 8
  ret void
}}

define internal i1 @take(ptr %turns, i64 %part, i64 %share, i64 %step) {{
entry:
  %claimed = call ptr @turn_word(ptr %turns, i64 0, i64 %share)
  %before = sub i64 %step, 1
  %own = icmp eq i64 %part, %share
  br i1 %own, label %claim, label %expected
expected:
  %here.at = call ptr @turn_word(ptr %turns, i64 2, i64 %share)
  %here = load atomic i64, ptr %here.at acquire, align 8
  %absent = icmp eq i64 %here, 0
  br i1 %absent, label %claim, label %look
look:
  %k = phi i64 [0, %expected], [%next, %again]
  %seen = load atomic i64, ptr %claimed monotonic, align 8
  %taken = icmp sge i64 %seen, %step
  br i1 %taken, label %no, label %again
again:
  {pause}
  %next = add i64 %k, 1
  %more = icmp slt i64 %next, {PATIENCE}
  br i1 %more, label %look, label %claim
claim:
  %result = cmpxchg ptr %claimed, i64 %before, i64 %step acq_rel monotonic, align 8
  %won = extractvalue {{ i64, i1 }} %result, 1
  ret i1 %won
no:
  ret i1 false
}}

define internal void @finish(ptr %turns, i64 %share, i64 %step) {{
  %at = call ptr @turn_word(ptr %turns, i64 1, i64 %share)
  store atomic i64 %step, ptr %at release, align 8
  ret void
}}

define internal void @wait(ptr %turns, i64 %step) {{
entry:
  br label %head
head:
  %share = phi i64 [0, %entry], [%next, %complete]
  %more = icmp slt i64 %share, {shares}
  br i1 %more, label %look, label %out
look:
  %at = call ptr @turn_word(ptr %turns, i64 1, i64 %share)
  %seen = load atomic i64, ptr %at acquire, align 8
  %there = icmp sge i64 %seen, %step
  br i1 %there, label %complete, label %again
again:
  {pause}
  br label %look
complete:
  %next = add i64 %share, 1
  br label %head
out:
  ret void
}}
"""
