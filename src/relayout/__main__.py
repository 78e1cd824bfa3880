"""``python -m relayout`` is the command ``relayout``."""

from relayout.cli import main

main()
