"""Normalised channels-last batches from the workers of a DataLoader, forked or spawned: see docs/pytorch.md.

A decoder gives bytes in the order height, width, colours. A network wants floats, normalised, in
``torch.channels_last``: the same order of the elements, so one pass over the bytes of a batch does it all.
:class:`relayout.torch.Collate` is that pass. The data set is a class at the top level of this file, and the
work begins under ``__main__``, since a worker that is spawned imports the file anew.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from relayout.torch import Collate

PHOTOGRAPH = Path(__file__).parent / "data" / "chelsea.png"
SIZE = 128
MEAN, SPREAD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """Square parts of a photograph, u8, (height, width, colours), each with where it begins."""

    def __init__(self) -> None:
        self.photograph: torch.Tensor | None = None

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.photograph is None:  # each worker decodes it once
            self.photograph = torch.from_numpy(np.array(Image.open(PHOTOGRAPH).convert("RGB")))
        left = 32 * index
        return self.photograph[:SIZE, left : left + SIZE], left


def main() -> None:
    """Load batches in two processes that are spawned, and compare them with what PyTorch computes."""
    pictures = Pictures()
    loader = DataLoader(
        pictures,
        batch_size=4,
        collate_fn=Collate(MEAN, SPREAD),
        num_workers=2,
        multiprocessing_context="spawn",
    )
    mean, spread = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, SPREAD))
    first = 0
    for batch, lefts in loader:
        expected = torch.stack([pictures[first + k][0] for k in range(len(batch))]).permute(0, 3, 1, 2)
        torch.testing.assert_close(batch, (expected / 255 - mean) / spread)
        channels_last = batch.is_contiguous(memory_format=torch.channels_last)
        print(f"{tuple(batch.shape)}, channels_last: {channels_last}, from {lefts.tolist()}")
        first += len(batch)


if __name__ == "__main__":
    main()
