"""`trimtab admission moments`: how many cores a deployment will hold, by what was seen of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from agent.commands.options import JsonOption, print_json, show
from agent.kernel.text import columns, duration_text
from domain.errors import BadInput
from domain.units import HOUR_S
from trainer.commands.options import epilog

if TYPE_CHECKING:
    from domain.rules.admission.population import Population

OPTIONS = frozenset(
    ("deaths", "core_hours", "scale_outs", "hours", "gap_hours", "extra_cores", "size_draws", "preset", "moments")
)
"""Fields of what is asked that are options of the command."""


def register(app: typer.Typer) -> None:
    """Add the verbs to the program."""
    admission = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        help="Admission control: the expected growth of a new deployment.",
    )
    # With a callback `moments` stays a word of its own, however few verbs there are.
    admission.callback()(lambda: None)
    admission.command(
        epilog=epilog(
            """
Moments (--moments):
  ab        death at zero cores by a hazard closure; the usual choice
  ab_fast   the same, with mean scale-out rate and size in the closure
  na        death at zero ignored: never too low
  paper     as published: all factors independent
  volterra  nearly exact, takes seconds
""",
            calls=(
                "trimtab admission moments --size 4 --at 24,720",
                "trimtab admission moments --size 4 --preset mine.toml",
                "trimtab admission moments --preset T --size 4 --deaths 5 --core-hours 60 \\",
                "    --scale-outs 3 --hours 20 --extra-cores 7 --size-draws 4 --at 1,24 --json",
            ),
        )
    )(moments)
    app.add_typer(admission, name="admission")


def moments(
    size: Annotated[int, Option(min=1, metavar="CORES", help="Cores now.")],
    at: Annotated[str, Option(metavar="HOURS,...", help="Hours from now.")] = "1,24,168,730,8760,26280",
    preset: Annotated[str, Option(metavar="T|H|K|FILE", help="Population of deployments.")] = "T",
    moments: Annotated[str, Option(metavar="NAME", help="How they are computed, see below.")] = "ab",
    deaths: Annotated[float, Option(help="Cores that ended, one by one.")] = 0.0,
    core_hours: Annotated[float, Option(help="Hours that all its cores ran, together.")] = 0.0,
    scale_outs: Annotated[float, Option(help="Requests for more cores, refused ones too.")] = 0.0,
    hours: Annotated[float, Option(help="Hours in the cluster.")] = 0.0,
    gap_hours: Annotated[float, Option(help="Hours of gaps between scale-outs seen before it came.")] = 0.0,
    extra_cores: Annotated[
        float | None, Option(help="Sum of (cores - 1) over the sizes drawn, the first too; else size - 1.")
    ] = None,
    size_draws: Annotated[float, Option(help="Sizes drawn, the first too.")] = 1.0,
    as_json: JsonOption = False,
) -> None:
    """Print mean and variance of a deployment's cores at times to come.

    Data: E and V, lists in the order of --at; third, the third central moment, or null where it is not known. A
    deployment that is gone counts as 0 cores. Nothing is asked of a cluster: this is the belief that an admission is
    decided by.
    """
    import numpy as np

    from domain.rules.admission.population import Statistics
    from trainer.admission.volterra import curve_of

    wanted = hours_of(at)
    extra = float(size - 1) if extra_cores is None else extra_cores
    horizons_h, order = np.unique(np.array(wanted), return_inverse=True)
    try:
        statistics = Statistics(size, deaths, core_hours, scale_outs, hours, gap_hours, extra, size_draws)
        curve = curve_of(population_of(preset), statistics, horizons_h, moments)
    except BadInput as error:
        if error.field == "horizons_h":
            raise BadInput("--at", at, "give hours above 0 with commas between them, such as 1,24,720") from None
        option = f"--{error.field.replace('_', '-')}"
        raise BadInput(option if error.field in OPTIONS else error.field, error.value, error.remedy) from None
    mean, variance = curve.mean[order].tolist(), curve.variance[order].tolist()
    if as_json:
        third = None if curve.third is None else curve.third[order].tolist()
        print_json({"preset": preset, "moments": moments, "at": wanted, "E": mean, "V": variance, "third": third})
        return
    rows: list[tuple[object, ...]] = [("in", "mean cores", "standard deviation")]
    for at_h, e, v in zip(wanted, mean, variance, strict=True):
        rows.append((duration_text(at_h * HOUR_S), f"{e:.4g}", f"{v**0.5:.4g}"))
    show(columns(rows))


def population_of(preset: str) -> Population:
    """Return a preset's population, or that of a cluster in a file; BadInput for neither."""
    from domain.rules.admission.population import POPULATIONS

    if preset in POPULATIONS:
        return POPULATIONS[preset]
    # The simulator takes a second to load, which a preset need not wait for.
    from simulator.admission import cluster_of

    return cluster_of(preset).population


def hours_of(text: str) -> list[float]:
    """Return the hours of `1,24,720`; BadInput otherwise."""
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise BadInput("--at", text, "give hours with commas between them, such as 1,24,720") from None
