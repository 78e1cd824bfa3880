"""Kernels of reorders: nests of loops as LLVM IR.

================  ===========================================================================================
``problem``       what is moved: nests in bits, with what becomes of a value
``candidates``    all plans for a nest, the cheapest first: nest -> plans
``plan``          what all plans have in common: :class:`~.plan.Plan`
``cost``          what a plan costs, from facts of the processor
``base``          what all kernels have in common: loops, addresses, loads and stores with conversion
``rows``          runs that are contiguous on both sides
``lines``         short ones that are neighbours in the destination, put together to lines
``blocks``        blocks of channels that become larger or smaller
``tiling``        the ways to transpose
``tiles``         transposition in registers
``patches``       transposition along lines of the source before it goes down the rows
``squares``       transposition of squares by whole lines
``zeros``         transposition of short rows that end with padding
``network``       the shuffles of a transposition, and of interleaving
``nibbles``       4-bit elements of rows, to and from words, with AVX2
``padded``        pixels of few channels that get zeros behind them
``pixels``        pixels of few channels: what taking them apart and putting them together have in common
``deinterleave``  pixels to planes
``interleave``    planes to pixels: a few channels, or a few rows of a matrix
``packing``       conversion, then transposition, with a buffer between them
``words``         packed filters written line by line
``apart``         packed filters with AVX2: words transposed, then bytes, to rows
``together``      the reverse of that
``picking``       what both have in common: bytes picked within lanes
``regroup``       packed filters: words transposed, and bytes put in order in registers
``elements``      all else, an element at a time
``blocking``      rows of words into blocks of eight, of any sizes: weights
``module``        all kernels of a reorder as one function: plans -> text
================  ===========================================================================================

Which kernels can take a nest depends on where it is contiguous. Call the loop that walks through neighbouring
elements of the source I (columns), and that of the destination O (rows).

``rows``
    I is O: whole runs are copied in the widest vectors; zeros likewise.
``lines``
    The same for short rows that neighbour each other in the destination only: they are put together to whole
    lines before they are stored; or, where they are converted, before that.
``blocks``
    The same for pieces of 16 or 32 bytes in another order of two loops, ``nChw8c`` to ``nChw16c``: a register
    holds a line of each block, and lines are put together by shuffles.
``padded``
    The same for pixels of few channels with zeros behind them, several at a time: they are loaded and
    converted densely, and spread over their lines by a shuffle for each.
``transpose``
    I is not O. A tile of one cache line of the destination by 16 bytes of the source is transposed in
    registers::

        rows of the source, 16 bytes each          columns, one cache line each
        r0: a0 a1 a2 a3                            a0 b0 c0 d0 ...
        r1: b0 b1 b2 b3     -> unpacking ->        a1 b1 c1 d1 ...
        r2: c0 c1 c2 c3                            a2 b2 c2 d2 ...
        r3: d0 d1 d2 d3                            a3 b3 c3 d3 ...

    Each 128-bit lane of a register takes one row, so that all shuffles stay within lanes (cheap on every
    processor), and a line of the destination is completed in one go, which streaming stores need.
``staged``
    The same, but lines of the source are first copied to a buffer of a few KiB, the *stage*. That pays where
    it costs less than conflict misses in the L1 cache, and a TLB miss for each row of each strip; and where
    values become narrower, since whole vectors can then be converted.
``patched``
    The same as ``transpose``, a line of the source by a tile at a time. That pays where tensors fit the L2
    cache and columns are no whole lines: those that two tiles share are still in the L1 cache.
``squares``
    The same by tiles that are a line either way: each line is loaded and stored once, whole. That takes two
    more shuffles for a line, and nothing has to stay in the L1 cache.
``deinterleave``
    I is short and O continues it: pixels of 2 to 8 channels. Vectors are loaded whole, and elements picked
    by shuffles.
``interleave``
    The reverse: planes to pixels. The planes may be 2, 4, 8 or (of bytes) 16 rows of a matrix that are pages
    apart, and a few of their columns one line of the destination, as in ``BA16a16b4a`` for matrix
    instructions::

        4 rows, 16 bytes of each, in one register      a line of the destination
        a0 .. a15 | b0 .. b15 | c0 .. c15 | d0 .. d15  ->  a0 b0 c0 d0 a1 b1 c1 d1 ... a15 b15 c15 d15

    The next columns go elsewhere, but they are read next: a line of the source is used up at once.
``converted``
    Short runs that become narrower, f32 ``oihw`` to s8 ``OIhw4i16o4i``: longer ones are converted on their
    way into a buffer, and transposed from there by another kernel. With AVX2 also whole rows of the source,
    however long its runs are, f32 ``nchw`` to s8 ``nhwc``: they are read from end to end.
``regrouped``
    Filters packed in pairs or fours of channels, s8 ``oihw`` to ``OIhw4i16o4i``: a few channels of all taps
    lie together on both sides. A shuffle of a register puts them in order, and whole words are transposed.
``words``
    The same where words of the destination make whole lines: those of two rows are put together by one
    shuffle, and squares of such pairs are turned over in registers, without a buffer.
``apart``
    Packed filters where AVX2 is all there is: words are transposed within lanes, and 16 bytes of a row are
    picked out of a few of them.
``together``
    The reverse: words are picked out of 16 bytes of a row, or of two times 16, and transposed within lanes.
``elements``
    All else, an element at a time.

Apart from these stand ``indexed``, rows by index, what gathers read and scatters write; and ``blocking``,
which is told sizes when it is called, as most weights of a network are moved once.

Values are converted where they are fewest bits wide to be moved about: a kernel that narrows (f32 to s8)
converts behind its loads and shuffles bytes; one that widens (u8 to f32) shuffles bytes and converts before
its stores. 4-bit elements are unpacked to bytes by loads and packed by stores.

Destinations that are dense but don't come in whole lines (100 channels of two bytes) pass through a buffer in
the L1 cache: stores that straddle two lines are slow. So do short rows and pixels when streaming, which
needs whole lines.
Where the columns of a transpose do not begin on lines (planes of 41x41 bytes), all stores straddle two. These
are in the L1 cache by then: each tile asks for the lines that the next one writes.

Tails are done in one tile that steps back, or in smaller ones: it overlaps the one before it and writes
the same values again. Only a kernel that adds to the destination can't do that; its nests are cut so that
nothing is left over. Nothing outside of the two tensors is read or written, ever.
"""

ESTIMATE = "estimate"
"""The wish for the plans that cost least by estimate: a word that no plan has."""
