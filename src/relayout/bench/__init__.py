"""Benchmarks: how fast reorders are, beside ``memcpy``, oneDNN, PyTorch and NumPy; and primitives.

Absolute times mean little. Machines are shared and clocks change, so every figure is a *ratio*, and both of
its sides are measured in turn, within one round of one run::

    round 1   memcpy  Relayout  oneDNN  PyTorch  NumPy
    round 2   memcpy  Relayout  oneDNN  PyTorch  NumPy         ratio = time / time of memcpy in the same round
    ...                                                        figure = median of the ratios, with quartiles

What is divided by is a copy of as many bytes as the reorder moves, with as many threads. A reorder whose two
sides differ in size (f32 to s8, channels that are padded) is held against a copy of half their sum.

Convolutions and matrix products are held against the processor's peak instead, in the same way.

=====================  ==================================================================================
module                 what it has
=====================  ==================================================================================
``suite``              the cases: which tensors go from which format to which
``transposition``      the public 57-case benchmark of tensor transpositions, by its rule
``peers``              the others, one file each; what is not installed is left out
``measure``            buffers, ``memcpy``, rounds, ratios
``load``               what other processes use meanwhile
``threads``            what a region, a wakeup and a millisecond of work cost on several threads
``overhead``           what a call costs besides moving bytes, and the first call
``pieces``             a long run in pieces: results in a file that later runs go on with
``report``, ``plot``   tables, JSON, a picture
``networks``           the layers of networks, as data
``models``             whole networks from files, beside other runtimes
``training``           steps of training, beside PyTorch; ``steps`` are its contestants
``conversions``        PyTorch's tensors and batches of pictures, beside PyTorch's own operations
``operands``           what primitives are fed with, and how results are compared
``peak``               the processor's peak: multiplications and additions in registers
``primitives``         which layers are measured, and how
``ours``               Relayout's primitives; the others are in ``peers.primitives``
``primitives_report``  tables and JSON for primitives
``blockwise``          products by weights of few bits, beside the speed of reading
``formats``            one convolution in the right and the wrong format
=====================  ==================================================================================

From a shell it is ``relayout bench reorder``, ``primitives``, ``networks``,
``training`` and ``torch``. From Python:

>>> from relayout.bench.measure import measured
>>> from relayout.bench.suite import Case
>>> case = Case("mine", (1, 16, 8, 8), "nchw", "nChw16c", "f32", "f32")
>>> [result] = measured(case, [1], rounds=2, seconds=1, peers=())
>>> result.ratios["Relayout"].median > 0
True

Traps of measuring
==================

* Memory that was never written to is not there yet: all buffers are written before anything is timed.
* Thread pools of OpenMP spin for a while when they are done. On a machine whose cores are all in use they
  slow down whoever is measured next, so with several threads everybody waits until those of others sleep.
* The first calls after such a rest are slow for everybody: processors have slept, and others' data are in the
  caches. A layer of a millisecond needs two or three until it is as fast as it stays.
* Other processes disturb whoever splits work into equal shares and spins. Cases during which they took cores
  are marked, and not compared with peers.
* A cold first call is no part of the ratio where tensors fit the caches; a tensor that does not fit is cold
  in each call, for everybody.
* Whoever computes something else must not be compared. The bytes that a peer leaves are compared with ours,
  and differences are reported.
"""
