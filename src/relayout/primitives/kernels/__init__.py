"""Compute kernels: what primitives are lowered to, as text LLVM IR.

==================  =========================================================================================
``geometry``        the numbers of a convolution, without formats
``arithmetic``      in which numbers it is computed
``sides``           where a layout puts images, rows, pixels and channels
``weights``         where it puts vectors of weights, and the format that is read fastest
``nest``            the loop nest around the tile, as plain data
``planning``        formats to a nest
``cost``            how large tiles and tasks are
``tile``            the building block: a register tile that adds up products
``finish``          what becomes of a sum before it is stored
``convolution``     nest to text
==================  =========================================================================================
"""
