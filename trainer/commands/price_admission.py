"""`trimtab price admission`: what an hour of a deployment costs, and how much of it is for its uncertain future."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from agent.commands.options import JsonOption, LedgerOption, print_json, show
from agent.kernel.text import columns, duration_text
from domain.errors import BadInput
from domain.units import HOUR_S
from trainer.commands.admission import hours_of, population_of
from trainer.commands.options import epilog

if TYPE_CHECKING:
    from agent.admission.records import NamedLaw
    from domain.rules.admission.population import Population

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


def admission(
    size: Annotated[int, Option(min=1, metavar="CORES", help="Cores of the deployment.")],
    preset: Annotated[
        str | None, Option(metavar="T|H|K|FILE", help="Population that it comes from, T unless a name is given.")
    ] = None,
    core: Annotated[float, Option(metavar="PRICE", min=0.0, help="Of a core and hour.")] = 0.05,
    variance: Annotated[
        float, Option(metavar="PRICE", min=0.0, help="Of a core squared of variance and hour.")
    ] = 0.002,
    ahead: Annotated[float, Option(metavar="HOURS", help="How far ahead the variance is predicted.")] = 24.0,
    cap: Annotated[float | None, Option(metavar="PRICE", help="No hour costs more.")] = None,
    at: Annotated[str, Option(metavar="HOURS,...", help="Hours after it came.")] = "1,24,168,720",
    moments: Annotated[str, Option(metavar="NAME", help="As for `admission moments`.")] = "ab",
    label: Annotated[str, Option(metavar="NAME", help="Its label, with the cluster's record of it.")] = "",
    owner: Annotated[str, Option(metavar="NAME", help="Its owner.")] = "",
    cluster: Annotated[
        str | None, Option(metavar="NAME", help="Cluster of the names; not needed when there is one.")
    ] = None,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the price of an hour of a deployment, and the share of it that uncertainty costs.

    Formulas: admission specification §8. Prices are in your own currency; nothing here sends a bill.
    """
    import numpy as np

    from domain.rules.admission.population import Statistics, fresh
    from trainer.admission.payment import Tariff, hourly_price
    from trainer.admission.volterra import curve_of

    tariff = Tariff(core, variance, ahead, math.inf if cap is None else cap)

    def predicted(law: Population, statistics: Statistics) -> float:
        return float(curve_of(law, statistics, np.array([ahead]), moments).variance[0])

    named, population = None, population_of(preset or "T")
    if label or owner:
        if preset is not None:
            raise BadInput("--preset", preset, "leave it out: with --label or --owner it is the cluster's population")
        named, population = _learnt(ledger, cluster, owner, label)
    seen = {0.0: fresh(size)}
    seen |= {hour: Statistics(size, core_hours=size * hour, hours=hour, extra_cores=size - 1) for hour in hours_of(at)}
    rows: list[dict[str, Any]] = []
    for hour, statistics in seen.items():
        expected = predicted(named.law if named else population, statistics)
        price = float(hourly_price(tariff, size, expected))
        cores = min(core * size, price)
        rows.append(
            {
                "hours": hour,
                "variance": expected,
                "price": price,
                "for_cores": cores,
                "for_uncertainty": price - cores,
                "share": float(np.divide(price - cores, price)) if price else 0.0,
            }
        )
        if named is not None:
            rows[-1]["price_without_names"] = float(hourly_price(tariff, size, predicted(population, statistics)))
    if as_json:
        given: dict[str, Any] = {"preset": preset or "T"}
        if named is not None:
            given = {"label": label, "owner": owner, "of_label": named.of_label, "of_owner": named.of_owner}
        print_json(given | {"size": size, "moments": moments, "ahead_h": ahead, "cap": cap, "hours": rows})
        return
    heads = ("after", "standard deviation", "an hour costs", "of it for uncertainty", "without names")
    table: list[tuple[object, ...]] = [heads if named else heads[:-1]]
    for row in rows:
        after = duration_text(row["hours"] * HOUR_S) if row["hours"] else "it came"
        uncertain = f"{row['for_uncertainty']:.4g} ({row['share']:.0%})"
        line = (after, f"{row['variance'] ** 0.5:.4g} cores", f"{row['price']:.4g}", uncertain)
        table.append((*line, f"{row['price_without_names']:.4g}") if named else line)
    whose = f"preset {preset or 'T'}"
    if named is not None:
        words = [f"label {label} ({named.of_label:,.1f} deployments before it)"] if label else []
        words += [f"owner {owner} ({named.of_owner:,.1f})"] if owner else []
        whose = ", ".join(words)
    show([f"{size} cores of {whose}, variance predicted {ahead:g} h ahead", "", *columns(table)])


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
