"""LLVM IR as text, written through a thin typed builder.

=============  ==============================================================================================
``types``      types, values that know theirs, and constants
``builder``    instructions, control flow, functions; a wrong type is an error where it is written
``vectors``    vectors loaded, stored and put together in pieces
=============  ==============================================================================================
"""
