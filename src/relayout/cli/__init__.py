"""The command ``relayout``: formats shown, translated and converted from a shell.

::

    relayout show nChw8c 1,17,2,2                              what lies where
    relayout offset OIhw4i16o4i 32,16,3,3 17,5,0,2             where one element lies
    relayout translate nChw16c                                 the same format in every notation
    relayout formats openvino                                  what there is
    relayout convert cat.png cat.npy --to nChw16c --dtype f32  files, of any size
    relayout strides 8,64,7,7 3136,1,448,64                    what strides mean to PyTorch

Results go to standard output, and the first line of those that scripts use (``offset``, ``translate --to``)
is the bare answer. Errors are one line on standard error. What exit codes say is in
:class:`relayout.cli.options.Exit`.

One module for each command; ``app`` holds them together, and loads the one that is asked for.
"""

from __future__ import annotations

from relayout.cli.app import application

__all__ = ["application", "main"]


def main() -> None:
    """Run the command line; the entry point of the script ``relayout``."""
    application(prog_name="relayout")
