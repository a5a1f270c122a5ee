"""`trimtab evaluate deferral`: policies on the same episodes, against the optimum and FIFO that skips."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from agent.kernel.text import columns
from trainer.commands.options import PageOption, Rows, WorkersOption, epilog, labelled
from trainer.commands.verb import Answer, TableVerb

if TYPE_CHECKING:
    from trainer.deferral.evaluation import Evaluation

SUFFIX = ".toml"
KEPT = {True: "yes", False: "NO", None: "no verdict"}


@dataclass(frozen=True, kw_only=True)
class EvaluateDeferral(TableVerb):
    """Play policies on the same weeks of deferrable jobs, and hold them to the optimum and to what was asked.

    The same options give the same figures, for any number of workers. With --out a report is written, with the
    tables of the paper beside ours, and the day as a picture.
    """

    EPILOG = epilog(
        """
Always compared: FIFO, SJF and Tetris, FIFO and SJF that skip jobs without room,
earliest latest start, the per-step knapsack, the rolling plan, the optimum.
Others: any policy of `trimtab simulate deferral`, also rolling:quantile=0.2 and
FILE.onnx; a LABEL that is given twice is one method with two seeds.
""",
        """
The rolling plan reads a forecast that is fitted to the training seeds of the
scenario. Each schedule passes an independent check before a figure is shown.
""",
        calls=(
            "trimtab evaluate deferral --scenario sched_drop --seeds 0-7",
            "trimtab evaluate deferral --scenario all --seeds 0-99 --workers 8 --out evidence",
            "trimtab evaluate deferral --scenario mine.toml --policies low=rolling:quantile=0.1",
            "trimtab evaluate deferral --runs FOLDER --seeds 0-99 --out evidence",
            "trimtab evaluate deferral --trace azure_like,LOG.swf.gz --seeds 0-7 --json",
        ),
    )

    scenario: Annotated[
        list[str] | None, "NAME|FILE|all", "valley, sched_drop, ..., a FILE.toml, or all; repeatable, else valley."
    ] = None
    trace: Annotated[
        list[str] | None, "SCENARIO,LOG", "Load of an oversubscription scenario, jobs of a log; repeatable."
    ] = None
    seeds: Annotated[str, "SEEDS", "Episodes, such as 0-99 or 1,3,8-9."] = "0-9"
    policies: Annotated[list[str] | None, "LABEL=POLICY", "One more; repeatable."] = None
    runs: Annotated[
        list[str] | None, "FOLDER", "An --out of `trimtab train deferral`, every method and seed; repeatable."
    ] = None
    workers: WorkersOption = 1
    out: PageOption = None

    def run(self) -> Answer:
        """Play the episodes of each scenario."""
        from trainer.deferral.evaluation import checks_of, contenders_of, evaluate, subjects_of
        from trainer.deferral.report import trained_in, write
        from trainer.kit.jobs import seeds_of
        from trainer.kit.progress import phases

        numbers = seeds_of(self.seeds)
        trained, recorded = trained_in(self.runs or [])
        given = labelled("--policies", self.policies, "LABEL=POLICY, such as low=rolling:quantile=0.1")
        contenders = contenders_of([*given, *trained])
        subjects = subjects_of(self.scenario or ([] if self.trace else ["valley"]), self.trace or [])
        with phases(self.as_json) as on_phase:
            done = [evaluate(one, contenders, numbers, workers=self.workers, on_progress=on_phase) for one in subjects]
        checks = checks_of(done)
        files = [] if self.out is None else [str(file) for file in write(self.out, done, recorded)]
        data = {
            "checks": [check.as_data() for check in checks],
            "evaluations": [one.as_data() for one in done],
            "files": files,
        }
        asked = [("kept", "", "asked", "found"), *((KEPT[one.kept], one.key, one.asked, one.found) for one in checks)]
        notes = [*(columns(asked) if checks else ()), *(f"report: {file}" for file in files[:1])]
        return Answer(data, notes, tables=[_table(one) for one in done])


def _table(one: Evaluation) -> tuple[str, Rows]:
    from trainer.deferral.evaluation import REFERENCE

    rows: list[tuple[object, ...]] = [
        ("policy", "total", "s.e.", "utilisation", "delay", "violation", f"against {REFERENCE}", "of optimum")
    ]
    for own in one.figures:
        data, versus = own.as_data(), own.to_reference
        error = data["standard_error"]
        rows.append(
            (
                own.label,
                f"{own.total:.1f}",
                "" if error is None else f"{error:.1f}",
                f"{data['utilisation']:.1f}",
                f"{data['delay_charge']:.1f}",
                f"{data['violation']:.2f}",
                f"{versus.mean:+.1f} [{versus.low:+.1f}, {versus.high:+.1f}]",
                "" if own.to_optimum is None else f"{own.to_optimum:.2%}",
            )
        )
    head = (
        f"{one.subject.name}: {len(one.seeds)} episodes, {one.offered:.0f} core-steps wanted of {one.capacity:.0f} left"
    )
    return head, rows
