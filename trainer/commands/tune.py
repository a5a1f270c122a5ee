"""`trimtab tune autoscaling`: the best setting of a rule for a workload, found on some seeds and reported on others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent.commands.options import JsonOption, examples, print_json
from domain.errors import BadInput
from trainer.commands import tune_admission

if TYPE_CHECKING:
    from domain.workload import Trace
    from simulator.autoscaling.reference import Measures, SimulationConfig
    from trainer.autoscaling.baselines.tuning import Tuned

CONSTANT, BOUND = "constant", "bound"
SEEDED = ("train-rand", "coevolution")
EPILOG = "\n\n".join(
    (
        "\n".join(
            (
                "\b",
                "Policies:",
                "  queue-rule, queue-rule-single            any number of VMs a minute, or one (act-7)",
                "  threshold, target-tracking               one step per group, a size per group",
                "  fixed-ramp, fixed-ramp-single            to a fixed fleet, which stays",
                "  constant                                 the best constant fleet, by trying all",
                "  bound                                    what no policy beats (traces to 300 minutes)",
            )
        ),
        examples(
            "trimtab tune autoscaling --workload train-fit --policy queue-rule",
            "trimtab tune autoscaling --workload coevolution --preset paper-live --minute-price 0.03",
        ),
    )
)


def register(app: typer.Typer) -> None:
    """Add the verb to the program."""
    tune = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        help="Find the best setting of a rule, honestly: tuned on some seeds, reported on others.",
    )
    tune.command("autoscaling", epilog=EPILOG)(autoscaling)
    tune.command("admission", epilog=tune_admission.EPILOG)(tune_admission.admission)
    app.add_typer(tune, name="tune")


def autoscaling(
    workload: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="Jobs, as for `simulate`; train-rand and coevolution vary by seed.")
    ] = "train-text",
    policy: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Rule to tune, see below; repeatable. Else all rules.")
    ] = None,
    seeds: Annotated[int, typer.Option(metavar="N", min=1, help="Seeds to tune on, from 500000 on.")] = 8,
    report_seeds: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="Seeds to report, from 0 on.")] = 8,
    minute_price: Annotated[
        float,
        typer.Option(
            metavar="DOLLARS", min=0.0, help="Tune rent + DOLLARS per minute of run time, not rent + waiting."
        ),
    ] = 0.0,
    preset: Annotated[str, typer.Option(metavar="NAME", help="The world, as for `simulate`.")] = "exact",
    prices: Annotated[str | None, typer.Option(metavar="train|m5a", help="Price table, else the preset's.")] = None,
    boot: Annotated[
        str | None, typer.Option(metavar="const:S|uniform:LOW,HIGH", help="Boot time, else uniform:45,97 seconds.")
    ] = None,
    cooldown: Annotated[float | None, typer.Option(metavar="SECONDS", help="Cool-down, else the preset's.")] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Any other field of the world; repeatable.")
    ] = None,
    time_limit: Annotated[float, typer.Option(metavar="SECONDS", min=1.0, help="For each bound.")] = 60.0,
    workers: Annotated[int, typer.Option(metavar="N", min=1, help="Processes.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Search the grid of a rule for the setting that costs least, and report it on seeds that it was not tuned on.

    The setting that is printed can be given to `simulate` and `evaluate` as it stands.
    """
    from trainer.autoscaling.baselines.grids import GRIDS
    from trainer.autoscaling.baselines.tuning import TUNING_SEED, Objective, cases_of, tune
    from trainer.autoscaling.worlds import world_of

    names = list(policy or GRIDS)
    for name in names:
        if name not in (*GRIDS, CONSTANT, BOUND):
            raise BadInput("--policy", name, f"choose from: {', '.join((*GRIDS, CONSTANT, BOUND))}")
    config = world_of(preset, prices=prices, boot=boot, changes=setting or (), cooldown_s=cooldown)
    trace_of = _traces(workload, config)
    tuning = cases_of(config, trace_of, TUNING_SEED, seeds)
    reporting = cases_of(config, trace_of, 0, report_seeds)
    found: list[dict[str, Any]] = []
    with _progress(as_json) as told_of:
        for name in names:
            if name == CONSTANT:
                found.append(_constant(config, tuning.traces, reporting.traces, told_of(name)))
            elif name == BOUND:
                found += [_bound(config, reporting.traces[0], single, time_limit) for single in (False, True)]
            else:
                objective = Objective(minute_price)
                tuned = tune(name, tuning, reporting, objective=objective, workers=workers, on_run=told_of(name))
                found.append(_as_data(name, tuned))
    if as_json:
        print_json({"workload": workload, "preset": preset, "minute_price": minute_price, "policies": found})
    else:
        _show(found)


def _traces(workload: str, config: SimulationConfig) -> Callable[[int], Trace]:
    """Return the trace of a seed: a new one for the workloads that vary by seed, else always the same."""
    from simulator.workloads.named import workload_of

    widest = max(config.cores)
    if workload in SEEDED:
        return lambda seed: workload_of(f"{workload}:{seed}", widest)
    trace = workload_of(workload, widest)
    return lambda seed: trace


def _constant(
    config: SimulationConfig,
    tuning: tuple[Trace, ...],
    reporting: tuple[Trace, ...],
    told: Callable[[int, int], None],
) -> dict[str, Any]:
    from trainer.autoscaling.baselines.constant import best_constant
    from trainer.autoscaling.episodes import run_many

    distinct = list({trace.digest: trace for trace in tuning}.values())
    best = best_constant(config, distinct, told)
    text = f"constant:{','.join(map(str, best.sizes))}"
    runs = run_many(text, config, reporting, range(len(reporting)))
    return {"name": CONSTANT, "policy": text, "settings": best.fleets, "tuned_objective": best.cost, **_figures(runs)}


def _bound(config: SimulationConfig, trace: Trace, single: bool, time_limit_s: float) -> dict[str, Any]:
    from trainer.autoscaling.baselines.availability import Unavailable
    from trainer.autoscaling.baselines.clairvoyant import solve

    name = f"{BOUND}{'-single' if single else ''}"
    try:
        return {"name": name, "cost": solve(config, trace, single=single, time_limit_s=time_limit_s).bound}
    except Unavailable as reason:
        return {"name": name, "unavailable": reason.remedy}


def _as_data(name: str, tuned: Tuned) -> dict[str, Any]:
    return {
        "name": name,
        "policy": tuned.policy,
        "settings": tuned.settings,
        "tuned_objective": tuned.objective,
        **_figures(tuned.runs),
        "finalists": [asdict(tried) for tried in tuned.finalists],
    }


def _figures(runs: tuple[Measures, ...] | list[Measures]) -> dict[str, float]:
    names = ("cost", "rent", "penalty", "run_time_s", "mean_wait_s", "utilisation", "interruptions")
    return {name: fmean(float(getattr(run, name)) for run in runs) for name in names}


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[str], Callable[[int, int], None]]]:
    """Show a bar of runs per rule on standard error while it is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bars:

        def told_of(name: str) -> Callable[[int, int], None]:
            bar = bars.add_task(name, total=None)
            return lambda done, total: bars.update(bar, completed=done, total=total)

        yield told_of


def _show(found: list[dict[str, Any]]) -> None:
    from agent.commands.output import columns, show

    rows: list[tuple[object, ...]] = [("cost", "rent", "waiting", "run time", "busy", "settings", "policy")]
    for one in found:
        if "unavailable" in one:
            rows.append(("-", "-", "-", "-", "-", "-", f"{one['name']}: {one['unavailable']}"))
        elif "policy" not in one:
            rows.append((f"{one['cost']:,.3f} $", "-", "-", "-", "-", "-", f"{one['name']}: no policy costs less"))
        else:
            money = (f"{one[key]:,.3f} $" for key in ("cost", "rent", "penalty"))
            minutes, busy = f"{one['run_time_s'] / 60:,.1f} min", f"{one['utilisation']:.1%}"
            rows.append((*money, minutes, busy, one["settings"], one["policy"]))
    show(columns(rows))
