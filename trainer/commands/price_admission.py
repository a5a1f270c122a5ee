"""`trimtab price admission`: what an hour of a deployment costs, and how much of it is for its uncertain future."""

from __future__ import annotations

import math
from typing import Annotated, Any

from typer import Option

from agent.commands.options import JsonOption, print_json, show
from agent.decisions.text import columns, duration_text
from domain.units import HOUR_S
from trainer.commands.admission import hours_of, population_of
from trainer.commands.options import epilog

EPILOG = epilog(
    """
An hour costs (--core CORES) + (--variance VARIANCE), at most --cap: VARIANCE is that
of the size predicted --ahead hours from now, in cores squared. It is agreed once, when
the deployment comes (a priori), or predicted anew by all that was seen until --at
(a posteriori; shown for one that holds still).
""",
    calls=(
        "trimtab price admission --size 4 --core 0.05 --variance 0.002",
        "trimtab price admission --size 4 --preset mine.toml --at 24,168,720 --cap 2 --json",
    ),
)


def admission(
    size: Annotated[int, Option(min=1, metavar="CORES", help="Cores of the deployment.")],
    preset: Annotated[str, Option(metavar="T|H|K|FILE", help="Population that it comes from.")] = "T",
    core: Annotated[float, Option(metavar="PRICE", min=0.0, help="Of a core and hour.")] = 0.05,
    variance: Annotated[
        float, Option(metavar="PRICE", min=0.0, help="Of a core squared of variance and hour.")
    ] = 0.002,
    ahead: Annotated[float, Option(metavar="HOURS", help="How far ahead the variance is predicted.")] = 24.0,
    cap: Annotated[float | None, Option(metavar="PRICE", help="No hour costs more.")] = None,
    at: Annotated[str, Option(metavar="HOURS,...", help="Hours after it came.")] = "1,24,168,720",
    moments: Annotated[str, Option(metavar="NAME", help="As for `admission moments`.")] = "ab",
    as_json: JsonOption = False,
) -> None:
    """Show the price of an hour of a deployment, and the share of it that uncertainty costs.

    Formulas: admission specification §8. Prices are in your own currency; nothing here sends a bill.
    """
    import numpy as np

    from domain.rules.admission.payment import Tariff, hourly_price, predicted_variance
    from domain.rules.admission.population import Statistics, fresh

    tariff = Tariff(core, variance, ahead, math.inf if cap is None else cap)
    population = population_of(preset)
    seen = {0.0: fresh(size)}
    seen |= {hour: Statistics(size, core_hours=size * hour, hours=hour, extra_cores=size - 1) for hour in hours_of(at)}
    rows: list[dict[str, Any]] = []
    for hour, statistics in seen.items():
        predicted = predicted_variance(tariff, population, statistics, moments)
        price = float(hourly_price(tariff, size, predicted))
        cores = min(core * size, price)
        rows.append(
            {
                "hours": hour,
                "variance": predicted,
                "price": price,
                "for_cores": cores,
                "for_uncertainty": price - cores,
                "share": float(np.divide(price - cores, price)) if price else 0.0,
            }
        )
    if as_json:
        print_json({"preset": preset, "size": size, "moments": moments, "ahead_h": ahead, "cap": cap, "hours": rows})
        return
    table: list[tuple[object, ...]] = [("after", "standard deviation", "an hour costs", "of it for uncertainty")]
    for row in rows:
        after = duration_text(row["hours"] * HOUR_S) if row["hours"] else "it came"
        uncertain = f"{row['for_uncertainty']:.4g} ({row['share']:.0%})"
        table.append((after, f"{row['variance'] ** 0.5:.4g} cores", f"{row['price']:.4g}", uncertain))
    show([f"{size} cores of preset {preset}, variance predicted {ahead:g} h ahead", "", *columns(table)])
