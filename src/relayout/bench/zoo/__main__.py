"""``python -m relayout.bench.zoo NAME [BATCH [WRITER]]``: write a network as an ONNX file.

Exporting takes much memory and leaves threads behind, so whoever measures lets another process do it.
"""

from __future__ import annotations

import sys

from relayout.bench.zoo import exported
from relayout.errors import LayoutError

if __name__ == "__main__":
    name, batch, writer = (*sys.argv[1:], *("", "1", "static")[len(sys.argv) - 1 :])
    try:
        print(exported(name, int(batch), writer).model)
    except LayoutError as error:
        sys.exit(str(error))
