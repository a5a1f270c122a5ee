"""`trimtab tune admission`: the most permissive threshold of a rule that keeps a cluster's promise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from agent.commands.options import JsonOption, print_json, show
from agent.kernel.text import columns
from domain.errors import BadInput
from domain.units import HOURS_PER_YEAR
from trainer.commands.options import PlayersOption, PlayOnRayOption, YearsOption, epilog

if TYPE_CHECKING:
    from trainer.admission.table import Cell, Runs
    from trainer.admission.tuning import Choice

EPILOG = epilog(
    """
Policies:
  zeroth, first         a threshold in cores, 0.3 to 1 of the capacity
  second                kappa, 40 down to 0
  a text with {}        a policy of `simulate admission`, {} for the tuned setting:
                        second:{},moments=paper or sgamma:{} or budget:{}
""",
    calls=(
        "trimtab tune admission --preset K --policy zeroth",
        'trimtab tune admission --preset H --policy "second:{},marginal=1" \\',
        "    --observations 5 --bracket 2,6 --workers 8 --out tuning",
    ),
)


def admission(
    policy: Annotated[str, Option(metavar="POLICY", help="Rule to tune, see below.")] = "second",
    preset: Annotated[str, Option(metavar="T|H|K|FILE", help="Cluster and population.")] = "K",
    sla: Annotated[
        float | None, Option(metavar="SHARE", help="Scale-outs that may be refused; else the cluster's promise.")
    ] = None,
    metric: Annotated[str, Option(metavar="primary|pooled", help="Mean of months, or all together.")] = "primary",
    observations: Annotated[int, Option(metavar="N", min=0, help="Prior observations of each arrival.")] = 0,
    runs: Annotated[int, Option(metavar="N", min=2, help="Runs to begin with.")] = 40,
    final_runs: Annotated[int, Option(metavar="N", min=2, help="Runs that the result is held to.")] = 500,
    bracket: Annotated[str | None, Option(metavar="LOW,HIGH", help="Thresholds to search between, else all.")] = None,
    years: YearsOption = 3.0,
    out: Annotated[
        Path | None, Option(metavar="FOLDER", help="Folder of runs; a run that it holds is not played again.")
    ] = None,
    workers: PlayersOption = 2,
    ray: PlayOnRayOption = None,
    as_json: JsonOption = False,
) -> None:
    """Search for the threshold that fills the cluster most within its promise, by halving, on runs that all share.

    Two answers: `safe`, where the upper end of the one-sided 90 % interval keeps the promise, and `average`, where the
    mean does. Seeds are apart from those of `evaluate admission`: compare there.
    """
    from dataclasses import asdict

    from simulator.admission import cluster_of
    from trainer.admission.figures import result_data
    from trainer.admission.fronts import Metric
    from trainer.admission.table import Cell, Crew, Store, configuration_of, run_cells
    from trainer.admission.tuning import scale_of, tune
    from trainer.kit.progress import bars

    if metric not in tuple(Metric):
        raise BadInput("--metric", metric, f"give {' or '.join(Metric)}")
    if not 0.0 < years <= 30.0:
        raise BadInput("--years", years, "give a number above 0 and up to 30")
    hours, level = years * HOURS_PER_YEAR, cluster_of(preset).sla if sla is None else sla
    scale = scale_of(policy, preset, _bracket(bracket))
    store = Store(out, configuration_of([preset], hours))
    crew = Crew(workers, ray)
    start = Cell(preset, scale.text(0), observations, hours=hours)
    with bars(as_json) as shown:
        task = shown.add_task("runs", total=None)

        def play(cell: Cell, seeds: Sequence[int]) -> Runs:
            shown.update(task, description=cell.policy)
            return run_cells(store, [cell], seeds, crew, lambda cell, count: shown.advance(task, count))[cell]

        choices = [
            tune(start, scale, level, play, wanted=wanted, metric=Metric(metric), runs=runs, final_runs=final_runs)
            for wanted in ("safe", "average")
        ]
    if not as_json:
        _show(choices, level)
        return
    data: list[dict[str, Any]] = [
        {
            "wanted": choice.wanted,
            "policy": choice.policy,
            "upper_90": None if choice.policy is None else choice.upper,
            "standing": None if choice.result is None else result_data(choice.result),
            "tried": [{"policy": p, "runs": n, "kept": kept} for p, n, kept in choice.tried],
        }
        for choice in choices
    ]
    print_json({"sla": level, "metric": metric, "scale": asdict(scale), "choices": data, **store.configuration})


def _bracket(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        raise BadInput("--bracket", text, "give two numbers with a comma, the lower one first, such as 1,4") from None
    return low, high


def _show(choices: Sequence[Choice], level: float) -> None:
    from trainer.admission.figures import ends_text

    rows: list[tuple[object, ...]] = [("kept", "policy", "utilisation", "refused", "upper 90 %", "pooled", "runs fail")]
    for choice in choices:
        found = choice.result
        if found is None:
            rows.append((choice.wanted, "none keeps it", "-", "-", "-", "-", "-"))
            continue
        rows.append(
            (
                choice.wanted,
                choice.policy,
                f"{found.utilisation.value:.3f} {ends_text(found.utilisation)}",
                f"{found.primary.value:.2g} {ends_text(found.primary, form='.2g')}",
                f"{choice.upper:.2g}",
                f"{found.pooled.value:.2g}",
                f"{found.failing_runs} of {found.runs}",
            )
        )
    show([f"at most {level:g} of the scale-outs refused", *columns(rows)])
