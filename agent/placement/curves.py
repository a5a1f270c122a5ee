"""Survival curves of a pool's applications by its containers of the last days, for people: they decide nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from agent.kernel.text import duration_text
from agent.placement.records import Cause, Ended, Reservation, Stage
from domain.rules.placement.instance import Application
from domain.rules.placement.mix import shape_class
from domain.rules.placement.survival import AGES_S, survival
from domain.units import DAY_S

CURVE_DAYS_S: Final = 30.0 * DAY_S
MOST_ENDS: Final = 20_000
"""Days of the containers that are counted, and most events of ends."""
CURVES_EVERY_S: Final = 600.0
BARS: Final = "▁▂▃▄▅▆▇█"
DRAWN: Final = 16
"""Bars of a drawing."""


@dataclass(frozen=True, slots=True)
class LifeCurve:
    """The share of an application's containers that outlive each age, to the oldest one seen in the pool.

    ended: released containers; living: running ones, and ones whose host failed. half_s: age that half of
    them outlive, None where more than half outlive all of `ages_s`.
    """

    application: str
    ended: int
    living: int
    half_s: float | None
    ages_s: tuple[float, ...]
    shares: tuple[float, ...]


def curves_of(
    over: Iterable[Ended],
    running: Iterable[Reservation],
    applications: Mapping[str, Application],
    since: float,
    now: float,
) -> dict[str, LifeCurve]:
    """Return the curves of the applications of which a container was released, by name.

    Containers that began before `since` are left out, ended or not: only the long ones of them are known.
    """
    found: list[tuple[str, float, bool]] = []
    for one in over:
        if one.began is not None and one.cause in (Cause.RELEASED, Cause.HOST_FAILED):
            ages = [one.ended - one.began] * len(one.containers)
            found += [(one.application, age, one.cause is Cause.RELEASED) for age in ages if one.began >= since]
    for held in running:
        if held.stage is Stage.CONFIRMED and held.began is not None and held.began >= since:
            found += [(held.application, now - held.began, False)] * len(held.hosts)
    # A clock that was set back makes an age negative.
    found = [one for one in found if one[0] in applications and one[1] >= 0.0]
    names = sorted({name for name, _, _ in found})
    if not names:
        return {}
    place = {name: k for k, name in enumerate(names)}
    _, kinds = np.unique([shape_class(applications[name].demand) for name in names], return_inverse=True)
    group, age_s, ended = (np.array(column) for column in zip(*((place[n], a, e) for n, a, e in found), strict=True))
    shares = survival(age_s, ended, group, kinds)
    over_by, all_by = (np.bincount(one, minlength=len(names)).tolist() for one in (group[ended], group))
    seen = AGES_S[: max(1, int(np.searchsorted(AGES_S, age_s.max(), side="right")))].tolist()
    curves = {}
    for k, name in enumerate(names):
        if over_by[k]:
            row = shares[k, : len(seen)].tolist()
            half = next((age for age, share in zip(seen, row, strict=True) if share <= 0.5), None)
            curves[name] = LifeCurve(name, over_by[k], all_by[k] - over_by[k], half, tuple(seen), tuple(row))
    return curves


def drawing(curve: LifeCurve) -> str:
    """Return a curve as text: bars over its ages, which are equally far apart in their logarithms, and its figures."""
    places = np.linspace(0, len(curve.shares) - 1, min(DRAWN, len(curve.shares))).round().astype(int).tolist()
    bars = "".join(BARS[round(curve.shares[k] * (len(BARS) - 1))] for k in places)
    half = "more than half outlive that" if curve.half_s is None else f"half outlive {duration_text(curve.half_s)}"
    ages = f"{duration_text(curve.ages_s[0])} to {duration_text(curve.ages_s[-1])}"
    return f"{bars} {ages}, {half} ({curve.ended:,} ended, {curve.living:,} living)"
