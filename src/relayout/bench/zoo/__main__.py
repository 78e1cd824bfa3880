"""``python -m relayout.bench.zoo NAME [BATCH [WRITER|int8]]``: write a network as an ONNX file.

Exporting takes much memory and leaves threads behind, so whoever measures lets another process do it.
"""

from __future__ import annotations

import sys

from relayout.bench.zoo import exported
from relayout.bench.zoo.quantising import quantised
from relayout.errors import LayoutError

if __name__ == "__main__":
    name, batch, writer = (*sys.argv[1:], *("", "1", "static")[len(sys.argv) - 1 :])
    try:
        found = quantised(name, int(batch)) if writer == "int8" else exported(name, int(batch), writer)
        print(found.model)
    except LayoutError as error:
        sys.exit(str(error))
