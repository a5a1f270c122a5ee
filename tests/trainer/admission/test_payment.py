"""The price of uncertainty: total variance, caps, labels, and prices that follow what is seen."""

import contextlib
import io
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import BadInput
from domain.rules.admission.population import POPULATIONS, Statistics, fresh
from trainer.admission.payment import (
    Tariff,
    hourly_price,
    predicted_variance,
)

TARIFF = Tariff(0.05, 0.002)
KINDS = st.lists(st.tuples(st.floats(0.01, 1.0), st.floats(0.0, 1e4), st.floats(0.0, 1e8)), min_size=1, max_size=6)


def columns(kinds: list[tuple[float, float, float]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    weights, mean, variance = (np.array(column) for column in zip(*kinds, strict=True))
    return weights / weights.sum(), mean, variance


def test_an_hour_costs_its_cores_and_its_variance() -> None:
    assert hourly_price(TARIFF, 12, 40.0) == pytest.approx(12 * 0.05 + 40 * 0.002)
    assert hourly_price(TARIFF, [0, 1], [0.0, 5.0]).tolist() == pytest.approx([0.0, 0.06])


def test_no_hour_costs_more_than_the_cap() -> None:
    capped = replace(TARIFF, cap_per_hour=0.5)
    assert hourly_price(capped, [4, 4, 40], [10.0, 1e6, 0.0]).tolist() == pytest.approx([0.22, 0.5, 0.5])


@given(KINDS, st.integers(1, 1000), st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.floats(0.0, 1e5))
def test_labelling_never_raises_the_bill(
    kinds: list[tuple[float, float, float]], cores: int, per_core: float, per_variance: float, cap: float
) -> None:
    weights, mean, variance = columns(kinds)
    for tariff in (Tariff(per_core, per_variance), Tariff(per_core, per_variance, cap_per_hour=cap)):
        mixed = float(weights @ (variance + (mean - weights @ mean) ** 2))
        unlabelled = float(hourly_price(tariff, cores, mixed))
        labelled = float(weights @ hourly_price(tariff, cores, variance))
        assert labelled <= unlabelled * (1.0 + 1e-12) + 1e-12


def test_who_is_known_pays_for_less_variance_than_who_is_new() -> None:
    population = POPULATIONS["T"]
    known = Statistics(8, 50, 40_000, 50, 0, 20_000, 260, 51)
    assert predicted_variance(TARIFF, population, known) == pytest.approx(1.674**2, rel=0.03)
    assert predicted_variance(TARIFF, population, fresh(4)) == pytest.approx(7.067**2, rel=0.03)
    longer = replace(TARIFF, horizon_h=720.0)
    assert predicted_variance(longer, population, fresh(4)) == pytest.approx(6.248**2, rel=0.03)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"per_core_hour": -1.0}, "per_core_hour"),
        ({"per_variance_hour": math.nan}, "per_variance_hour"),
        ({"horizon_h": 0.0}, "horizon_h"),
        ({"horizon_h": math.inf}, "horizon_h"),
        ({"cap_per_hour": -0.1}, "cap_per_hour"),
        ({"cap_per_hour": math.nan}, "cap_per_hour"),
    ],
)
def test_a_wrong_tariff_is_refused_by_field(fields: dict[str, float], named: str) -> None:
    with pytest.raises(BadInput, match=f"^{named} is "):
        Tariff(**{"per_core_hour": 0.05, "per_variance_hour": 0.002, **fields})


def test_a_wrong_hour_is_refused_by_field() -> None:
    with pytest.raises(BadInput, match=r"^variance is "):
        hourly_price(TARIFF, 1, -1.0)
    with pytest.raises(BadInput, match=r"^cores is "):
        hourly_price(TARIFF, math.nan, 1.0)


def test_the_users_page_shows_what_its_lines_print() -> None:
    page = (Path(__file__).parents[3] / "docs" / "decide" / "admission-payment.md").read_text("utf-8")
    ((code, printed),) = re.findall(r"^```python\n(.*?)^```.*?^```text\n(.*?)^```", page, re.M | re.S)
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(compile(code, "admission-payment.md", "exec"), {})
    assert shown.getvalue() == printed
