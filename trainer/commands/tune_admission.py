"""`trimtab tune admission`: the most permissive threshold of a rule that keeps a cluster's promise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from agent.kernel.text import columns
from domain.errors import BadInput
from domain.units import HOURS_PER_YEAR
from trainer.commands.options import Bounds, PlayersOption, PlayOnRayOption, YearsOption, epilog
from trainer.commands.verb import Answer, Verb

if TYPE_CHECKING:
    from trainer.admission.table import Cell, Runs
    from trainer.admission.tuning import Choice


@dataclass(frozen=True, kw_only=True)
class TuneAdmission(Verb):
    """Search for the threshold that fills the cluster most within its promise, by halving, on runs that all share.

    Two answers: `safe`, where the upper end of the one-sided 90 % interval keeps the promise, and `average`, where the
    mean does. Seeds are apart from those of `evaluate admission`: compare there.
    """

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

    policy: Annotated[str, "POLICY", "Rule to tune, see below."] = "second"
    preset: Annotated[str, "T|H|K|FILE", "Cluster and population."] = "K"
    sla: Annotated[float | None, "SHARE", "Scale-outs that may be refused; else the cluster's promise."] = None
    metric: Annotated[str, "primary|pooled", "Mean of months, or all together."] = "primary"
    observations: Annotated[int, "N", "Prior observations of each arrival.", Bounds(min=0)] = 0
    runs: Annotated[int, "N", "Runs to begin with.", Bounds(min=2)] = 40
    final_runs: Annotated[int, "N", "Runs that the result is held to.", Bounds(min=2)] = 500
    bracket: Annotated[str | None, "LOW,HIGH", "Thresholds to search between, else all."] = None
    years: YearsOption = 3.0
    out: Annotated[Path | None, "FOLDER", "Folder of runs; a run that it holds is not played again."] = None
    workers: PlayersOption = 2
    ray: PlayOnRayOption = None

    def run(self) -> Answer:
        """Search for both answers."""
        from simulator.admission import cluster_of
        from trainer.admission.fronts import Metric
        from trainer.admission.table import Cell, Crew, Store, configuration_of, run_cells
        from trainer.admission.tuning import scale_of, tune
        from trainer.kit.progress import bars

        hours, level = self.years * HOURS_PER_YEAR, cluster_of(self.preset).sla if self.sla is None else self.sla
        scale = scale_of(self.policy, self.preset, _bracket(self.bracket))
        store, crew = Store(self.out, configuration_of([self.preset], hours)), Crew(self.workers, self.ray)
        start = Cell(self.preset, scale.text(0), self.observations, hours=hours)
        counts: dict[str, Any] = {"metric": Metric(self.metric), "runs": self.runs, "final_runs": self.final_runs}
        with bars(self.as_json) as shown:
            task = shown.add_task("runs", total=None)

            def play(cell: Cell, seeds: Sequence[int]) -> Runs:
                shown.update(task, description=cell.policy)
                return run_cells(store, [cell], seeds, crew, lambda cell, count: shown.advance(task, count))[cell]

            choices = [tune(start, scale, level, play, wanted=wanted, **counts) for wanted in ("safe", "average")]
        about = {"sla": level, "metric": self.metric, "scale": asdict(scale), "choices": list(map(_as_data, choices))}
        return Answer({**about, **store.configuration}, _lines(choices, level))


def _as_data(choice: Choice) -> dict[str, Any]:
    from trainer.admission.figures import result_data

    return {
        "wanted": choice.wanted,
        "policy": choice.policy,
        "upper_90": None if choice.policy is None else choice.upper,
        "standing": None if choice.result is None else result_data(choice.result),
        "tried": [{"policy": policy, "runs": runs, "kept": kept} for policy, runs, kept in choice.tried],
    }


def _bracket(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        raise BadInput("--bracket", text, "give two numbers with a comma, the lower one first, such as 1,4") from None
    return low, high


def _lines(choices: Sequence[Choice], level: float) -> list[str]:
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
    return [f"at most {level:g} of the scale-outs refused", *columns(rows)]
