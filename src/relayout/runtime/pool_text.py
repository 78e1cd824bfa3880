"""What the native threads of a pool do, as text LLVM IR; :mod:`.pool` has them made and called.

Who writes what, and when. All of it is in one block of memory, each row on cache lines of its own:

========  ==============================  ==========================================================
field     written by                      rule
========  ==============================  ==========================================================
owner     callers                         0 to 1 by compare-and-swap: this caller owns the pool. Who
                                          finds 1 does all of its parts itself, now. No queue, so no
                                          deadlock
job       the owner                       while the gate is closed and nobody is inside
next      the owner; who is inside        set to 0 with the job; an atomic add takes a part
gate      all, atomically                 ``waiting | open slots | threads inside`` in one word
sleepers  workers, holding the mutex      how many are asleep, or about to be
workers   whoever hires, one at a time    entries behind the last are written, then they are counted; at
                                          last ``here`` is forgotten, so that the next owner tells them, too
here      owners; whoever hires           the processor that all who were counted have been kept off
========  ==============================  ==========================================================

The gate keeps regions apart. A worker *checks in* with a compare-and-swap that takes an open slot and counts
it inside, in one step, and reads the job only after that. The owner closes the gate (no slots), waits until
nobody is inside, and gives up ownership only then, so that the job can't change under a worker that is in.
Regions have no numbers: a worker that is late for one region either fails to check in, or checks in to the
next and then reads the next one's job. Whoever finds no part left closes the gate, since there is nothing to
come in for.

Nobody misses a call. The owner opens the gate, *then* looks for sleepers; a worker counts itself among the
sleepers, *then* looks at the gate. These four are sequentially consistent, so at least one of the two sees
the other; and since a worker does its part holding the mutex, a signal can't come between its look and its
sleep. An owner that has waited in vain for a while sets ``waiting`` in the gate and sleeps too; the last
worker to leave sees the mark in the word that it changes. Whoever wakes wakes two more if there are slots, so
that many threads are awake after a few steps. Everything else is acquire and release on the gate: what was
written before ``run`` is seen by the workers, and what they wrote is seen after it. (Streaming stores of x86
are not ordered by a release alone, but every leaving is a locked instruction, which is.)

Traps:

* To wake a sleeping thread takes 40 microseconds on a virtual processor, and more where its host has gone to
  sleep as well. So a worker spins for a while before it sleeps (:data:`SPIN`). If it is woken soon after that
  (:data:`AWAKE`) it should not have slept, and waits for so long behind each region, until that was in vain.
  A worker that comes too late for a region waits as well: one that went back to sleep would be late for the
  next one, too, and for each that follows. There is no waiting where more threads than processors take part.
* Who waits for longer than :data:`SPIN` gives its processor away in every turn (``sched_yield``). Otherwise
  a thread of another library that the system has put there would wait for the end of a time slice. To wait
  for milliseconds does harm even so: a thread that has been woken goes first, one that waits has to wait.
* The threads of OpenMP spin behind their regions, for 3 milliseconds and more. A worker that is woken on such
  a processor would come at the end of a time slice, when the caller has done all parts. So workers ask for
  short slices, which go first when they are woken (Linux 6.12 and later).
* Linux may put a woken thread behind the one that wakes it, which goes on working and does not yield. With
  another processor idle all the time it took three milliseconds there until one of them moved. So workers are
  kept off the owner's processor (``apart`` in the code). They are told when a region begins on another
  processor than the one before, and when an owner has slept, which may have been woken where a worker is; the
  rest of the time it costs one look at the number of the processor.
* Wakeups are sent holding the mutex, and to all where one must not be lost: implementations of condition
  variables (glibc until 2.41, macOS) are known to lose others.
"""

from __future__ import annotations

import time
from string import Template

from relayout.processors import MOST
from relayout.runtime.limits import AWAKE, SPIN

__all__ = ["FIELDS", "SIZE", "SYMBOLS", "ir"]

TURNS = 16  # pauses between two looks at the clock; a power of two
SLICE = 1e-4  # seconds of a turn on the processor that workers ask for: the shortest that Linux grants
STACK = 1 << 20  # bytes of a worker's stack

LINE_PAIR = 128  # bytes between fields: two cache lines, since processors fetch lines in pairs
FIELDS = {
    "OWNER": 0,
    "PROCESSORS": 8,
    "HIRED": 16,  # how many workers there are
    "HERE": 24,  # the processor that workers were last kept off; -1: none
    "GATE": LINE_PAIR,
    "NEXT": 2 * LINE_PAIR,
    "JOB": 3 * LINE_PAIR,  # kernel, source, target, operands, parts, nanoseconds to wait: 8 bytes each
    "SLEEPERS": 4 * LINE_PAIR,
    "MUTEX": 5 * LINE_PAIR,  # the largest known takes 64 bytes
    "WORK": 6 * LINE_PAIR,  # condition variables: there are slots, nobody is inside
    "DONE": 7 * LINE_PAIR,
    "WORKERS": 8 * LINE_PAIR,  # what the system calls them, 8 bytes each
}
SIZE = 8 * LINE_PAIR + 8 * MOST
PROCESSORS = 1024  # that a mask of the C library has bits for

SLOT = 1 << 32  # the gate: threads inside in the lower half, open slots above
SLOTS = ((1 << 30) - 1) * SLOT
INSIDE = SLOT - 1
WAITING = 1 << 62

PAUSES = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.isb(i32)", "call void @llvm.aarch64.isb(i32 15)"),
}
"""What makes a spinning thread wait a little: on Arm a barrier, since ``yield`` does nothing there."""

SYMBOLS = (
    "calloc",
    "clock_gettime",
    "pthread_attr_destroy",
    "pthread_attr_init",
    "pthread_attr_setstacksize",
    "pthread_cond_broadcast",
    "pthread_cond_init",
    "pthread_cond_signal",
    "pthread_cond_wait",
    "pthread_create",
    "pthread_detach",
    "pthread_mutex_init",
    "pthread_mutex_lock",
    "pthread_mutex_unlock",
    "sched_yield",
)
"""What the code calls of the system."""

CODE = Template("""
declare ptr @calloc(i64, i64)
declare i32 @pthread_attr_destroy(ptr)
declare i32 @pthread_attr_init(ptr)
declare i32 @pthread_attr_setstacksize(ptr, i64)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_cond_signal(ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)
declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @clock_gettime(i32, ptr)
declare i32 @sched_yield()
declare i64 @llvm.smin.i64(i64, i64)
$DECLARE_PAUSE
$APART_CODE
$SLICE_CODE

; Nanoseconds of a clock that only goes forward.
define internal i64 @now() {
entry:
  %time = alloca [2 x i64]
  %e = call i32 @clock_gettime(i32 $CLOCK, ptr %time)
  %part.at = getelementptr i64, ptr %time, i64 1
  %seconds = load i64, ptr %time
  %part = load i64, ptr %part.at
  %whole = mul i64 %seconds, 1000000000
  %result = add i64 %whole, %part
  ret i64 %result
}

; One turn of waiting, which is number %i and began at %since: whether to wait on. Nobody else wants the
; processor of a thread that has waited for long, or gets it now.
define internal i1 @wait(i64 %i, i64 %since, i64 %time) {
entry:
  $PAUSE
  %turn = and i64 %i, $TURNS
  %look = icmp eq i64 %turn, $TURNS
  br i1 %look, label %ask, label %on
ask:
  %now = call i64 @now()
  %waited = sub i64 %now, %since
  %long = icmp sgt i64 %waited, $SPIN
  br i1 %long, label %yield, label %told
yield:
  %e = call i32 @sched_yield()
  br label %told
told:
  %more = icmp slt i64 %waited, %time
  ret i1 %more
on:
  ret i1 true
}

; A new block, all zeros but for what is set here; null without memory.
define ptr @pool_block(i64 %processors) {
entry:
  %raw = call ptr @calloc(i64 1, i64 $ROOM)
  %none = icmp eq ptr %raw, null
  br i1 %none, label %out, label %make
make:
  %number = ptrtoint ptr %raw to i64
  %odd = sub i64 0, %number
  %skip = and i64 %odd, $ALIGN
  %pool = getelementptr i8, ptr %raw, i64 %skip
  %processors.at = getelementptr i8, ptr %pool, i64 $PROCESSORS
  store i64 %processors, ptr %processors.at
  %here.at = getelementptr i8, ptr %pool, i64 $HERE
  store i64 -1, ptr %here.at
  %mutex = getelementptr i8, ptr %pool, i64 $MUTEX
  %work = getelementptr i8, ptr %pool, i64 $WORK
  %done = getelementptr i8, ptr %pool, i64 $DONE
  %e1 = call i32 @pthread_mutex_init(ptr %mutex, ptr null)
  %e2 = call i32 @pthread_cond_init(ptr %work, ptr null)
  %e3 = call i32 @pthread_cond_init(ptr %done, ptr null)
  ret ptr %pool
out:
  ret ptr null
}

; One more worker; 0, or the system's error. Which processor it is to be kept off is asked anew after that.
define i32 @pool_hire(ptr %pool) {
entry:
  %attributes = alloca [128 x i8], align 16
  %hired.at = getelementptr i8, ptr %pool, i64 $HIRED
  %hired = load i64, ptr %hired.at
  %workers = getelementptr i8, ptr %pool, i64 $WORKERS
  %thread = getelementptr i64, ptr %workers, i64 %hired
  %e1 = call i32 @pthread_attr_init(ptr %attributes)
  %e2 = call i32 @pthread_attr_setstacksize(ptr %attributes, i64 $STACK)
  %error = call i32 @pthread_create(ptr %thread, ptr %attributes, ptr @worker, ptr %pool)
  %e3 = call i32 @pthread_attr_destroy(ptr %attributes)
  %made = icmp eq i32 %error, 0
  br i1 %made, label %detach, label %out
detach:
  %id = load i64, ptr %thread
  %e4 = call i32 @pthread_detach(i64 %id)
  %more = add i64 %hired, 1
  store atomic i64 %more, ptr %hired.at seq_cst, align 8
  %here.at = getelementptr i8, ptr %pool, i64 $HERE
  store atomic i64 -1, ptr %here.at seq_cst, align 8
  br label %out
out:
  ret i32 %error
}

; All parts on this thread.
define internal void @alone(ptr %kernel, ptr %source, ptr %target, ptr %operands, i64 %parts) {
entry:
  br label %head
head:
  %part = phi i64 [0, %entry], [%next, %call]
  %more = icmp slt i64 %part, %parts
  br i1 %more, label %call, label %out
call:
  call void %kernel(ptr %source, ptr %target, ptr %operands, i64 %part, i64 %parts)
  %next = add i64 %part, 1
  br label %head
out:
  ret void
}

; Parts of the job, one after the other, until none is left. Only for those who are in.
define internal void @take(ptr %pool) {
entry:
  %next = getelementptr i8, ptr %pool, i64 $NEXT
  %job = getelementptr i8, ptr %pool, i64 $JOB
  %source.at = getelementptr i8, ptr %job, i64 8
  %target.at = getelementptr i8, ptr %job, i64 16
  %operands.at = getelementptr i8, ptr %job, i64 24
  %parts.at = getelementptr i8, ptr %job, i64 32
  %kernel = load ptr, ptr %job
  %source = load ptr, ptr %source.at
  %target = load ptr, ptr %target.at
  %operands = load ptr, ptr %operands.at
  %parts = load i64, ptr %parts.at
  br label %head
head:
  %part = atomicrmw add ptr %next, i64 1 monotonic
  %more = icmp slt i64 %part, %parts
  br i1 %more, label %call, label %out
call:
  call void %kernel(ptr %source, ptr %target, ptr %operands, i64 %part, i64 %parts)
  br label %head
out:
  ret void
}

; Wake up to two sleepers, if there are slots for them.
define internal void @wake(ptr %pool, i64 %slots) {
entry:
  %any = icmp sgt i64 %slots, 0
  br i1 %any, label %look, label %out
look:
  %sleepers.at = getelementptr i8, ptr %pool, i64 $SLEEPERS
  %sleepers = load atomic i64, ptr %sleepers.at seq_cst, align 8
  %asleep = icmp sgt i64 %sleepers, 0
  br i1 %asleep, label %one, label %out
one:
  %mutex = getelementptr i8, ptr %pool, i64 $MUTEX
  %work = getelementptr i8, ptr %pool, i64 $WORK
  %e1 = call i32 @pthread_mutex_lock(ptr %mutex)
  %e2 = call i32 @pthread_cond_signal(ptr %work)
  %slots.two = icmp sgt i64 %slots, 1
  %sleepers.two = icmp sgt i64 %sleepers, 1
  %both = and i1 %slots.two, %sleepers.two
  br i1 %both, label %two, label %unlock
two:
  %e3 = call i32 @pthread_cond_signal(ptr %work)
  br label %unlock
unlock:
  %e4 = call i32 @pthread_mutex_unlock(ptr %mutex)
  br label %out
out:
  ret void
}

; Check in: the number of slots that were open, or 0 for those who stay outside.
define internal i64 @enter(ptr %pool) {
entry:
  %gate = getelementptr i8, ptr %pool, i64 $GATE
  %first = load atomic i64, ptr %gate acquire, align 8
  br label %look
look:
  %seen = phi i64 [%first, %entry], [%now, %swap]
  %open = and i64 %seen, $SLOTS
  %closed = icmp eq i64 %open, 0
  br i1 %closed, label %out, label %swap
swap:
  %new = add i64 %seen, $ENTER
  %result = cmpxchg ptr %gate, i64 %seen, i64 %new acq_rel acquire, align 8
  %now = extractvalue {i64, i1} %result, 0
  %won = extractvalue {i64, i1} %result, 1
  br i1 %won, label %in, label %look
in:
  %slots = lshr i64 %open, 32
  ret i64 %slots
out:
  ret i64 0
}

; Close the gate and leave, in one step; the last one wakes an owner that sleeps.
define internal void @leave(ptr %pool) {
entry:
  %gate = getelementptr i8, ptr %pool, i64 $GATE
  %first = load atomic i64, ptr %gate monotonic, align 8
  br label %swap
swap:
  %seen = phi i64 [%first, %entry], [%now, %swap]
  %less = sub i64 %seen, 1
  %new = and i64 %less, $CLOSE
  %result = cmpxchg ptr %gate, i64 %seen, i64 %new acq_rel monotonic, align 8
  %now = extractvalue {i64, i1} %result, 0
  %won = extractvalue {i64, i1} %result, 1
  br i1 %won, label %left, label %swap
left:
  %awaited = icmp eq i64 %new, $WAITING
  br i1 %awaited, label %tell, label %out
tell:
  %mutex = getelementptr i8, ptr %pool, i64 $MUTEX
  %done = getelementptr i8, ptr %pool, i64 $DONE
  %e1 = call i32 @pthread_mutex_lock(ptr %mutex)
  %e2 = call i32 @pthread_cond_broadcast(ptr %done)
  %e3 = call i32 @pthread_mutex_unlock(ptr %mutex)
  br label %out
out:
  ret void
}

; The owner closes the gate and waits until nobody is inside. If it has slept it may be elsewhere.
define internal void @finish(ptr %pool, i64 %time) {
entry:
  %gate = getelementptr i8, ptr %pool, i64 $GATE
  %closed = atomicrmw and ptr %gate, i64 $CLOSE acq_rel
  %left = and i64 %closed, $INSIDE
  %alone = icmp eq i64 %left, 0
  br i1 %alone, label %out, label %begin
begin:
  %since = call i64 @now()
  %crowd = icmp eq i64 %time, 0
  br i1 %crowd, label %sleep, label %look
look:
  %i = phi i64 [0, %begin], [%next, %more]
  %seen = load atomic i64, ptr %gate acquire, align 8
  %inside = and i64 %seen, $INSIDE
  %empty = icmp eq i64 %inside, 0
  br i1 %empty, label %out, label %more
more:
  %next = add i64 %i, 1
  %again = call i1 @wait(i64 %i, i64 %since, i64 %time)
  br i1 %again, label %look, label %sleep
sleep:
  %mutex = getelementptr i8, ptr %pool, i64 $MUTEX
  %done = getelementptr i8, ptr %pool, i64 $DONE
  %e1 = call i32 @pthread_mutex_lock(ptr %mutex)
  %marked = atomicrmw or ptr %gate, i64 $WAITING acq_rel
  br label %check
check:
  %seen.asleep = load atomic i64, ptr %gate acquire, align 8
  %inside.asleep = and i64 %seen.asleep, $INSIDE
  %empty.asleep = icmp eq i64 %inside.asleep, 0
  br i1 %empty.asleep, label %unlock, label %wait
wait:
  %e2 = call i32 @pthread_cond_wait(ptr %done, ptr %mutex)
  br label %check
unlock:
  %e3 = call i32 @pthread_mutex_unlock(ptr %mutex)
  $KEEP_APART
  br label %out
out:
  ret void
}

; A region. With one thread or one part there is nothing to share.
define void @pool_region(
    ptr %pool, ptr %kernel, ptr %source, ptr %target, ptr %operands, i64 %parts, i64 %threads) {
entry:
  %fewer = icmp slt i64 %parts, %threads
  %wanted = select i1 %fewer, i64 %parts, i64 %threads
  %most = call i64 @llvm.smin.i64(i64 %wanted, i64 $MOST)
  %helpers = sub i64 %most, 1
  %shared = icmp sgt i64 %helpers, 0
  br i1 %shared, label %own, label %single
own:
  %owner = getelementptr i8, ptr %pool, i64 $OWNER
  %result = cmpxchg ptr %owner, i64 0, i64 1 acquire monotonic, align 8
  %won = extractvalue {i64, i1} %result, 1
  br i1 %won, label %open, label %single
single:
  call void @alone(ptr %kernel, ptr %source, ptr %target, ptr %operands, i64 %parts)
  ret void
open:
  $KEEP_APART
  %processors.at = getelementptr i8, ptr %pool, i64 $PROCESSORS
  %processors = load i64, ptr %processors.at
  %crowd = icmp sge i64 %helpers, %processors
  %time = select i1 %crowd, i64 0, i64 $AWAKE
  %job = getelementptr i8, ptr %pool, i64 $JOB
  store ptr %kernel, ptr %job
  %source.at = getelementptr i8, ptr %job, i64 8
  store ptr %source, ptr %source.at
  %target.at = getelementptr i8, ptr %job, i64 16
  store ptr %target, ptr %target.at
  %operands.at = getelementptr i8, ptr %job, i64 24
  store ptr %operands, ptr %operands.at
  %parts.at = getelementptr i8, ptr %job, i64 32
  store i64 %parts, ptr %parts.at
  %time.at = getelementptr i8, ptr %job, i64 40
  store atomic i64 %time, ptr %time.at monotonic, align 8
  %next = getelementptr i8, ptr %pool, i64 $NEXT
  store atomic i64 0, ptr %next monotonic, align 8
  %gate = getelementptr i8, ptr %pool, i64 $GATE
  %slots = shl i64 %helpers, 32
  store atomic i64 %slots, ptr %gate seq_cst, align 8
  call void @wake(ptr %pool, i64 %helpers)
  call void @take(ptr %pool)
  call void @finish(ptr %pool, i64 %time)
  store atomic i64 0, ptr %owner release, align 8
  ret void
}

; The life of a worker: look for a way in, for as long as the last region allows and the one before made seem
; worth it; then sleep.
define internal ptr @worker(ptr %pool) {
entry:
  %gate = getelementptr i8, ptr %pool, i64 $GATE
  %sleepers = getelementptr i8, ptr %pool, i64 $SLEEPERS
  %mutex = getelementptr i8, ptr %pool, i64 $MUTEX
  %work = getelementptr i8, ptr %pool, i64 $WORK
  %job = getelementptr i8, ptr %pool, i64 $JOB
  %time.at = getelementptr i8, ptr %job, i64 40
  $ASK_SLICE
  br label %idle
idle:
  %soon = phi i1 [0, %entry], [%soon, %in], [%early, %up]
  %since = call i64 @now()
  %most = load atomic i64, ptr %time.at monotonic, align 8
  %short = call i64 @llvm.smin.i64(i64 %most, i64 $SPIN)
  %time = select i1 %soon, i64 %most, i64 %short
  br label %look
look:
  %i = phi i64 [0, %idle], [%next, %more]
  %slots = call i64 @enter(ptr %pool)
  %entered = icmp sgt i64 %slots, 0
  br i1 %entered, label %in, label %stay
stay:
  %crowd = icmp eq i64 %time, 0
  br i1 %crowd, label %sleep, label %more
more:
  %next = add i64 %i, 1
  %again = call i1 @wait(i64 %i, i64 %since, i64 %time)
  br i1 %again, label %look, label %sleep
in:
  %others = sub i64 %slots, 1
  call void @wake(ptr %pool, i64 %others)
  call void @take(ptr %pool)
  call void @leave(ptr %pool)
  br label %idle
sleep:
  %e1 = call i32 @pthread_mutex_lock(ptr %mutex)
  %before = atomicrmw add ptr %sleepers, i64 1 seq_cst
  %seen = load atomic i64, ptr %gate seq_cst, align 8
  %open = and i64 %seen, $SLOTS
  %closed = icmp eq i64 %open, 0
  br i1 %closed, label %rest, label %up
rest:
  %e2 = call i32 @pthread_cond_wait(ptr %work, ptr %mutex)
  br label %up
up:
  %after = atomicrmw sub ptr %sleepers, i64 1 seq_cst
  %e3 = call i32 @pthread_mutex_unlock(ptr %mutex)
  %now = call i64 @now()
  %idled = sub i64 %now, %since
  %early = icmp slt i64 %idled, $AWAKE
  br label %idle
}
""")


APART_CODE = Template("""
declare i32 @sched_getcpu()
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @pthread_setaffinity_np(i64, i64, ptr)

; Keep workers off the processor that this thread runs on. Only for the owner. Where there is no other one the
; system refuses, and they stay where they are.
define internal void @apart(ptr %pool) {
entry:
  %mask = alloca [$BYTES x i8], align 16
  %here.at = getelementptr i8, ptr %pool, i64 $HERE
  %before = load atomic i64, ptr %here.at monotonic, align 8
  %cpu = call i32 @sched_getcpu()
  %here = zext i32 %cpu to i64
  %same = icmp eq i64 %here, %before
  %odd = icmp uge i64 %here, $PROCESSORS
  %nothing = or i1 %same, %odd
  br i1 %nothing, label %out, label %moved
moved:
  store atomic i64 %here, ptr %here.at seq_cst, align 8
  %error = call i32 @sched_getaffinity(i32 0, i64 $BYTES, ptr %mask)
  %unknown = icmp ne i32 %error, 0
  br i1 %unknown, label %out, label %known
known:
  %word = lshr i64 %here, 6
  %word.at = getelementptr i64, ptr %mask, i64 %word
  %number = and i64 %here, 63
  %bit = shl i64 1, %number
  %others = xor i64 %bit, -1
  %bits = load i64, ptr %word.at
  %left = and i64 %bits, %others
  store i64 %left, ptr %word.at
  %hired.at = getelementptr i8, ptr %pool, i64 $HIRED
  %hired = load atomic i64, ptr %hired.at seq_cst, align 8
  br label %head
head:
  %i = phi i64 [0, %known], [%next, %bind]
  %more = icmp slt i64 %i, %hired
  br i1 %more, label %bind, label %out
bind:
  %workers = getelementptr i8, ptr %pool, i64 $WORKERS
  %worker.at = getelementptr i64, ptr %workers, i64 %i
  %worker = load i64, ptr %worker.at
  %refused = call i32 @pthread_setaffinity_np(i64 %worker, i64 $BYTES, ptr %mask)
  %next = add i64 %i, 1
  br label %head
out:
  ret void
}
""")
"""Where the system tells on which processor a thread runs."""


SLICE_CODE = Template("""
declare i64 @syscall(i64, ...)
declare i32 @getpriority(i32, i32)

; Ask for short turns on the processor, and keep the rest: sched_setattr, which no C library of today has.
; Systems that know no such thing refuse, or do nothing.
define internal void @slice() {
entry:
  %attributes = alloca [6 x i64]
  %flags.at = getelementptr i64, ptr %attributes, i64 1
  %nice.at = getelementptr i64, ptr %attributes, i64 2
  %slice.at = getelementptr i64, ptr %attributes, i64 3
  %deadline.at = getelementptr i64, ptr %attributes, i64 4
  %period.at = getelementptr i64, ptr %attributes, i64 5
  %own = call i32 @getpriority(i32 0, i32 0)
  %nice = zext i32 %own to i64
  store i64 48, ptr %attributes ; the size, and a policy that is ignored
  store i64 8, ptr %flags.at ; SCHED_FLAG_KEEP_POLICY
  store i64 %nice, ptr %nice.at
  store i64 $SLICE, ptr %slice.at
  store i64 0, ptr %deadline.at
  store i64 0, ptr %period.at
  %e = call i64 (i64, ...) @syscall(i64 $NUMBER, i64 0, ptr %attributes, i64 0)
  ret void
}
""")
SETATTR = {"x86_64": 314, "aarch64": 274}
"""The number of ``sched_setattr`` on Linux, by processor; on both the low half of a word comes first."""


def ir(triple: str, asks: bool = False) -> str:
    """The pool's code for a processor, as text LLVM IR; ``asks``: the system tells where a thread runs.

    >>> "llvm.aarch64.isb" in ir("aarch64-unknown-linux-gnu")
    True
    """
    family = triple.split("-")[0].replace("arm64", "aarch64")
    declaration, pause = PAUSES.get(family, ("", ""))
    number = SETATTR.get(family) if "linux" in triple else None
    slice = SLICE_CODE.substitute(NUMBER=number, SLICE=round(SLICE * 1e9)) if number else ""
    apart = APART_CODE.substitute(FIELDS, PROCESSORS=PROCESSORS, BYTES=PROCESSORS // 8)
    return CODE.substitute(
        FIELDS,
        APART_CODE=apart if asks else "",
        KEEP_APART="call void @apart(ptr %pool)" if asks else "",
        SLICE_CODE=slice,
        ASK_SLICE="call void @slice()" if number else "",
        DECLARE_PAUSE=declaration,
        PAUSE=pause,
        CLOCK=getattr(time, "CLOCK_MONOTONIC", 1),
        TURNS=TURNS - 1,
        SPIN=round(SPIN * 1e9),
        AWAKE=round(AWAKE * 1e9),
        ROOM=SIZE + LINE_PAIR,
        ALIGN=LINE_PAIR - 1,
        MOST=MOST,
        STACK=STACK,
        SLOTS=SLOTS,
        INSIDE=INSIDE,
        WAITING=WAITING,
        CLOSE=-SLOTS - 1,
        ENTER=1 - SLOT,
    )
