"""`trimtab price admission`: what an hour of a deployment costs, and how much of it is for its uncertain future."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from agent.commands.options import LedgerOption
from agent.kernel.text import columns, duration_text
from domain.errors import BadInput
from domain.units import HOUR_S
from trainer.commands.admission_moments import hours_of, population_of
from trainer.commands.options import Bounds, epilog
from trainer.commands.verb import Answer, Verb

if TYPE_CHECKING:
    from agent.admission.records import NamedLaw
    from domain.rules.admission.population import Population


@dataclass(frozen=True, kw_only=True)
class PriceAdmission(Verb):
    """Show the price of an hour of a deployment, and the share of it that uncertainty costs.

    Formulas: admission specification §8. Prices are in your own currency; nothing here sends a bill.
    """

    EPILOG = epilog(
        """
An hour costs (--core CORES) + (--variance VARIANCE), at most --cap: VARIANCE is that
of the size predicted --ahead hours from now, in cores squared. It is agreed once, when
the deployment comes (a priori), or predicted again from observations until --at
(a posteriori; shown for one that holds still).

With --label or --owner it is one of these names in a cluster of the settings: from
the observations in its ledger, and the price without names is shown too.
""",
        calls=(
            "trimtab price admission --size 4 --core 0.05 --variance 0.002",
            "trimtab price admission --size 4 --preset mine.toml --at 24,168,720 --cap 2 --json",
            "trimtab price admission --size 4 --label nightly-batch --owner ada --cluster main",
        ),
    )

    size: Annotated[int, "CORES", "Cores of the deployment.", Bounds(min=1)]
    preset: Annotated[str | None, "T|H|K|FILE", "Population that it comes from, T unless a name is given."] = None
    core: Annotated[float, "PRICE", "Of a core and hour.", Bounds(min=0.0)] = 0.05
    variance: Annotated[float, "PRICE", "Of a core squared of variance and hour.", Bounds(min=0.0)] = 0.002
    ahead: Annotated[float, "HOURS", "How far ahead the variance is predicted."] = 24.0
    cap: Annotated[float | None, "PRICE", "No hour costs more."] = None
    at: Annotated[str, "HOURS,...", "Hours after it came."] = "1,24,168,720"
    moments: Annotated[str, "NAME", "As for `admission moments`."] = "ab"
    label: Annotated[str, "NAME", "Its label, with the cluster's record of it."] = ""
    owner: Annotated[str, "NAME", "Its owner."] = ""
    cluster: Annotated[str | None, "NAME", "Cluster of the names; not needed when there is one."] = None
    ledger: LedgerOption = None

    def run(self) -> Answer:
        """Predict the variance at each time, and price it."""
        import numpy as np

        from domain.rules.admission.population import Statistics, fresh
        from trainer.admission.payment import Tariff, hourly_price
        from trainer.admission.volterra import curve_of

        size, cap = self.size, self.cap
        tariff = Tariff(self.core, self.variance, self.ahead, math.inf if cap is None else cap)

        def predicted(law: Population, statistics: Statistics) -> float:
            return float(curve_of(law, statistics, np.array([self.ahead]), self.moments).variance[0])

        named, population = None, population_of(self.preset or "T")
        if self.label or self.owner:
            if self.preset is not None:
                remedy = "leave it out: with --label or --owner it is the cluster's population"
                raise BadInput("--preset", self.preset, remedy)
            named, population = _learnt(self.ledger, self.cluster, self.owner, self.label)
        seen = {0.0: fresh(size)}
        for hour in hours_of(self.at):
            seen[hour] = Statistics(size, core_hours=size * hour, hours=hour, extra_cores=size - 1)
        rows: list[dict[str, Any]] = []
        for hour, statistics in seen.items():
            expected = predicted(named.law if named else population, statistics)
            price = float(hourly_price(tariff, size, expected))
            cores = min(self.core * size, price)
            share = float(np.divide(price - cores, price)) if price else 0.0
            row = {"hours": hour, "variance": expected, "price": price, "for_cores": cores}
            rows.append({**row, "for_uncertainty": price - cores, "share": share})
            if named is not None:
                rows[-1]["price_without_names"] = float(hourly_price(tariff, size, predicted(population, statistics)))
        given: dict[str, Any] = {"preset": self.preset or "T"}
        whose = f"preset {self.preset or 'T'}"
        if named is not None:
            of = {"of_label": named.of_label, "of_owner": named.of_owner}
            given = {"label": self.label, "owner": self.owner, **of}
            words = [f"label {self.label} ({named.of_label:,.1f} deployments before it)"] if self.label else []
            whose = ", ".join(words + ([f"owner {self.owner} ({named.of_owner:,.1f})"] if self.owner else []))
        about = {"size": size, "moments": self.moments, "ahead_h": self.ahead, "cap": cap, "hours": rows}
        heading = f"{size} cores of {whose}, variance predicted {self.ahead:g} h ahead"
        return Answer(given | about, [heading, "", *columns(_table(rows))])


def _table(hours: list[dict[str, Any]]) -> list[tuple[object, ...]]:
    heads = ["after", "standard deviation", "an hour costs", "of it for uncertainty", "without names"]
    named = "price_without_names" in hours[0]
    table: list[tuple[object, ...]] = [tuple(heads if named else heads[:-1])]
    for row in hours:
        after = duration_text(row["hours"] * HOUR_S) if row["hours"] else "it came"
        uncertain = f"{row['for_uncertainty']:.4g} ({row['share']:.0%})"
        line = (after, f"{row['variance'] ** 0.5:.4g} cores", f"{row['price']:.4g}", uncertain)
        table.append((*line, f"{row['price_without_names']:.4g}") if named else line)
    return table


def _learnt(ledger: str | None, cluster: str | None, owner: str, label: str) -> tuple[NamedLaw, Population]:
    """Return what a cluster's ledger has gathered of these names, and the cluster's population."""
    from agent.admission.cluster import clusters_of
    from agent.commands.ledger import open_ledger
    from agent.settings import load_settings
    from domain.clock import WallClock

    with open_ledger(ledger) as opened:
        service = clusters_of(load_settings(os.environ), opened, WallClock()).one(cluster)
        named = service.prior_of(owner, label).named
    assert named is not None, "there is a name"
    return named, service.rules.population
