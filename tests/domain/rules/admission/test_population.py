"""The laws that deployments are drawn from are those of the specification, and so is how finely they are met."""

from __future__ import annotations

import re
from dataclasses import astuple, fields, replace
from pathlib import Path

import pytest

from domain.errors import BadInput
from domain.rules.admission.belief import PRODUCTION_NODES, lam_count, node_count, size_count
from domain.rules.admission.population import POPULATIONS, Population, Statistics, fresh

SPEC = (Path(__file__).parents[4] / "docs" / "spec" / "admission.md").read_text("utf-8")


@pytest.mark.parametrize("preset", sorted(POPULATIONS))
def test_a_preset_has_the_numbers_of_the_specification(preset: str) -> None:
    (row,) = re.findall(rf"^\| {preset} [a-z-]+ \|(.*)$", SPEC, re.MULTILINE)
    numbers = tuple(float(cell) for cell in row.split("|")[: len(fields(Population))])
    assert astuple(POPULATIONS[preset]) == numbers


def test_the_presets_are_three() -> None:
    assert sorted(POPULATIONS) == ["H", "K", "T"]


@pytest.mark.parametrize("name", [field.name for field in fields(Population) if field.name != "power"])
def test_every_number_of_a_law_is_above_zero(name: str) -> None:
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(BadInput, match=name):
            replace(POPULATIONS["T"], **{name: wrong})
    assert getattr(replace(POPULATIONS["T"], **{name: 1e-9}), name) == 1e-9


@pytest.mark.parametrize(("power", "fits"), [(-0.01, False), (0.0, True), (1.5, True), (1.51, False)])
def test_the_power_is_from_nothing_to_one_and_a_half(power: float, fits: bool) -> None:
    if fits:
        assert replace(POPULATIONS["T"], power=power).power == power
    else:
        with pytest.raises(BadInput, match="power"):
            replace(POPULATIONS["T"], power=power)


def test_a_deployment_that_has_just_arrived_has_drawn_its_first_size() -> None:
    assert fresh(7) == Statistics(7, 0.0, 0.0, 0.0, 0.0, 0.0, 6.0, 1.0)
    assert fresh(1).extra_cores == 0.0


@pytest.mark.parametrize(
    ("count", "steps"),
    [
        (node_count, [(1.0, PRODUCTION_NODES), (10.0, PRODUCTION_NODES), (10.1, 7), (40.0, 7), (40.1, 6), (1e6, 6)]),
        (lam_count, [(0.1, 4), (2.9, 4), (3.0, 2), (19.9, 2), (20.0, 1)]),
        (size_count, [(0.1, 3), (2.9, 3), (3.0, 2), (19.9, 2), (20.0, 1)]),
    ],
)
def test_the_better_a_belief_is_known_the_fewer_points_serve(count: object, steps: list[tuple[float, int]]) -> None:
    assert [(shape, count(shape)) for shape, _ in steps] == steps  # type: ignore[operator]
