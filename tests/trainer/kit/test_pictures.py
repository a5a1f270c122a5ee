"""Pictures say what their axes show, have letters that can be read, and follow a page into dark mode."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from matplotlib.figure import Figure
from playwright.sync_api import Browser

from tests.agent.web.browsing import PHONE, sideways
from trainer.kit.drawing import DARK, INK, PAPER, POLICIES, SMALLEST_PT, SOFT, inlined, panel, sheet, svg, themed
from trainer.kit.report import Plot, Section, chip, document, table

Draw = Callable[[Figure], None]


def named(figure: Figure, *, x: str = "time, hours", y: str = "fleet, VMs") -> None:
    axes = figure.subplots()
    axes.plot([0, 1], [2, 3], color=INK)
    panel(axes, "Fleet", x=x, y=y)


@pytest.mark.parametrize(
    ("x", "y", "axis"), [("", "fleet, VMs", "x"), ("time", "fleet, VMs", "x"), ("t, h", "VMs", "y")]
)
def test_an_axis_without_a_name_and_a_unit_is_refused(x: str, y: str, axis: str) -> None:
    with pytest.raises(ValueError, match=rf"panel 0 \(Fleet\), {axis} axis"):
        svg((3.0, 2.0), lambda figure: named(figure, x=x, y=y))


def test_the_second_axis_of_a_panel_is_held_to_the_same() -> None:
    def twins(figure: Figure) -> None:
        named(figure)
        figure.axes[0].twinx().plot([0, 1], [5, 6])

    with pytest.raises(ValueError, match=r"panel 1 .*, y axis"):
        svg((3.0, 2.0), twins)


def test_panels_that_share_an_axis_name_it_once() -> None:
    def stacked(figure: Figure) -> None:
        above, below = figure.subplots(2, 1, sharex=True)
        panel(above, y="queue, jobs")
        panel(below, x="time, hours", y="fleet, VMs")

    assert svg((3.0, 2.0), stacked).count("time, hours") >= 1


def test_small_letters_are_refused_and_a_logarithmic_axis_has_none() -> None:
    def annotated(figure: Figure) -> None:
        named(figure)
        figure.axes[0].annotate("0.036", (0, 2), fontsize=7)

    with pytest.raises(ValueError, match=r"'0\.036' .* 7 pt, below 9"):
        svg((3.0, 2.0), annotated)

    def logarithmic(figure: Figure) -> None:
        named(figure, x="refused, share")
        figure.axes[0].set_xscale("log")
        figure.axes[0].set_xlim(1e-5, 1e-2)

    drawn = svg((3.0, 2.0), logarithmic)
    assert "1e-05" in drawn
    sizes = {float(size) for size in re.findall(r"font-size: ([0-9.]+)px", drawn)}
    assert sizes
    assert min(sizes) >= SMALLEST_PT


def test_in_a_page_every_colour_follows_it_and_no_letter_is_below_twelve_pixels() -> None:
    """432 pt are shown on 576 px at least: nine points are twelve pixels."""
    drawn = svg((6.0, 2.0), named)
    element = inlined(drawn, "fleet")
    assert element.startswith(
        '<svg role="img" aria-labelledby="fleet-caption" style="min-width: 576px; max-width: 864px"'
    )
    assert {INK, PAPER, SOFT} <= set(re.findall(r": (#[0-9a-f]{6})", drawn))
    assert re.findall(r": (#[0-9a-f]{6})", element) == []
    assert not re.search(r'\b(?:width|height)="[0-9.]+pt"', element)
    used = set(re.findall(r"var\((--c[0-9a-f]{6})\)", element))
    assert all(f"{name}:" in sheet() for name in used)
    assert themed("#d9d2c3") == "#d9d2c3", "what has no dark form stays"


@pytest.mark.needs_chromium
def test_a_page_is_as_wide_as_a_phone_and_shows_the_names_in_its_tables_whole(tmp_path: Path, browser: Browser) -> None:
    name = "knapsack on valley: not below fifo:skip in the mean"
    file = tmp_path / "report.html"
    rows = [(name, "+187.3 [+157.0, +214.0]", chip(None, "no verdict"))]
    content = table(("asked", "found", ""), rows, "What was asked") + Plot("Fleet", svg((6.0, 2.0), named)).html(
        "fleet"
    )
    file.write_text(document("Policies", [Section("one", "One", content)]), encoding="utf-8")
    for scheme in ("light", "dark"):
        context = browser.new_context(viewport=PHONE, color_scheme=scheme)  # type: ignore[arg-type]
        page = context.new_page()
        page.goto(file.as_uri())
        found = [one["id"] for one in Axe().run(page).response["violations"]]
        assert (found, sideways(page)) == ([], 0)
        cut = "all => all.filter(one => one.scrollWidth > one.clientWidth).map(one => one.textContent)"
        assert page.locator("td, th").evaluate_all(cut) == []
        context.close()


def luminance(colour: str) -> float:
    """Return the relative luminance of WCAG 2.2."""
    parts = [int(colour[at : at + 2], 16) / 255.0 for at in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def test_letters_and_lines_stand_out_from_dark_paper() -> None:
    for letters in (INK, SOFT):
        assert contrast(letters, PAPER) >= 4.5
        assert contrast(DARK[letters], DARK[PAPER]) >= 4.5
    for line in POLICIES:
        assert contrast(DARK[line], DARK[PAPER]) >= 3.0, line
    assert all(DARK[one] != DARK[other] for one, other in combinations(POLICIES, 2))
