"""What the colours of pictures promise: they are told apart, read well, and each has its like on dark
pages."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import combinations, pairwise

import pytest

import relayout as rl
from relayout.draw import svg
from relayout.draw.colours import DARK, FILLS, INK, MUTED, PAPER, PLAIN, RAMP, STROKES, shade, steps_of

EYES = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
"""How linear RGB is seen: Machado, Oliveira and Fernandes (2009), severity 1."""


def linear(colour: str) -> list[float]:
    """Linear RGB of a colour."""
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    return [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]


def contrast(one: str, two: str) -> float:
    """The contrast ratio of WCAG."""
    dark, light = sorted(
        sum(p * q for p, q in zip((0.2126, 0.7152, 0.0722), linear(c), strict=True)) for c in (one, two)
    )
    return (light + 0.05) / (dark + 0.05)


def oklab(colour: str, eyes: str) -> tuple[float, float, float]:
    """The place of a colour, as some eyes see it, in Ottosson's OKLab, times 100."""
    rgb = linear(colour)
    r, g, b = (max(0, min(1, sum(p * q for p, q in zip(row, rgb, strict=True)))) for row in EYES[eyes])
    cones = (
        0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b,
        0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b,
        0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b,
    )
    l, m, s = (cone ** (1 / 3) for cone in cones)  # noqa: E741 - the names of the cones
    return (
        100 * (0.2104542553 * l + 0.7936177850 * m - 0.0040720468 * s),
        100 * (1.9779984951 * l - 2.4285922050 * m + 0.4505937099 * s),
        100 * (0.0259040371 * l + 0.7827717662 * m - 0.8086757660 * s),
    )


def darkened(colours: Sequence[str]) -> list[str]:
    """The same on a dark page."""
    return [DARK[colour] for colour in colours]


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("fills", [FILLS, darkened(FILLS)], ids=["light", "dark"])
def test_any_two_values_are_told_apart(fills: Sequence[str], eyes: str) -> None:
    for one, two in combinations(fills, 2):
        assert math.dist(oklab(one, eyes), oklab(two, eyes)) > 8.5


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("ramp", [RAMP, darkened(RAMP)], ids=["light", "dark"])
def test_steps_of_the_ramp_go_down(ramp: Sequence[str], eyes: str) -> None:
    """From light to dark for everybody, so that their order is seen."""
    lightness = [oklab(colour, eyes)[0] for colour in ramp]
    assert all(before - after > 2 for before, after in pairwise(lightness))
    paper = PAPER if ramp == RAMP else DARK[PAPER]  # which stands for no value
    assert all(math.dist(oklab(paper, eyes), oklab(colour, eyes)) > 5 for colour in ramp)


def test_words_have_contrast() -> None:
    """WCAG level AA asks for 4.5 to 1."""
    for fill in (*FILLS, *RAMP, PLAIN, PAPER):
        assert contrast(fill, INK) > 4.5
        assert contrast(DARK[fill], DARK[INK]) > 4.5
    for ink in (MUTED, *STROKES):
        least = 4.5 if ink == MUTED else 3  # of graphics
        assert contrast(PAPER, ink) > least
        assert contrast(DARK[PAPER], DARK[ink]) > least


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 17, 64, 1000])
def test_one_colour_means_one_run_of_values(count: int) -> None:
    steps = steps_of(count)
    assert [value for first, last in steps for value in range(first, last + 1)] == list(range(count))
    colours = [{shade(value, count) for value in range(first, last + 1)} for first, last in steps]
    assert all(len(one) == 1 for one in colours)
    assert len(set.union(*colours)) == len(steps)


def test_every_colour_has_its_like_on_dark_pages() -> None:
    layout = rl.Layout((2, 17, 2, 2), "nChw8c")
    part = rl.Layout((2, 3), strides=(8, 1))
    for picture in (svg.memory(layout), svg.logical(layout, path=True), svg.digits(layout), svg.memory(part)):
        body = re.sub("<style>.*?</style>", "", picture, flags=re.DOTALL)
        used = set(re.findall(r'(?:fill|stroke)="(#[0-9a-f]{6})"', body))
        assert used <= set(DARK)
        style = re.findall(r"<style>(.*?)</style>", picture, re.DOTALL)
        assert len(style) == 1
        assert style[0].startswith("@media screen and (prefers-color-scheme:dark){.relayout-picture{")
        assert all(f'="{colour}"]' in style[0] for colour in used)
