"""`trimtab evaluate oversubscription`: policies against each other on a cluster's weeks and on redrawn ones."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from domain.errors import BadInput
from trainer.commands.options import CSV, TEXT, Bounds, Check, PageOption, Rows, ScenarioOption, epilog, labelled
from trainer.commands.verb import Answer, ParallelVerb, TableVerb

if TYPE_CHECKING:
    from trainer.oversubscription.evaluation import Contender, Evaluation

RESULTS = "results.jsonl"


@dataclass(frozen=True, kw_only=True)
class EvaluateOversubscription(TableVerb, ParallelVerb):
    """Play policies on a cluster's weeks and on redrawn ones, and hold them to the acceptance figures.

    The same options give the same figures, for any number of workers. Misses come first. With --out each result is
    stored when it is computed: after an interruption --resume repeats a result only where an option or the program has
    changed.
    """

    EPILOG = epilog(
        """
Always compared: Grid-0.2, -0.4, -0.6, no oversubscription, MA, SL, static
optima at 0.75, 0.85 and 0.95, calibrated rates, a shield, a risk filter, and
the rules for each request that ship.
Others: any policy of `trimtab simulate oversubscription`, also FILE.json
and FILE.onnx; a LABEL that is given twice is one method with two seeds.
""",
        calls=(
            "trimtab evaluate oversubscription --out evidence",
            "trimtab evaluate oversubscription --start both --workers 8 --out evidence --resume",
            "trimtab evaluate oversubscription --scenario azure_like --start warm --json",
            'trimtab evaluate oversubscription --runs "C2MARL 0.95=FOLDER" --out evidence',
            'trimtab evaluate oversubscription --policies "mine=rates.json" --short',
        ),
    )

    scenario: ScenarioOption = "internal_like"
    start: Annotated[str, "cold|warm|both", "Empty, or with the VMs of hour 0."] = "cold"
    policies: Annotated[list[str] | None, "LABEL=POLICY", "One more; repeatable."] = None
    runs: Annotated[list[str] | None, "LABEL=FOLDER", "Models or a rule of `train oversubscription`; repeatable."] = (
        None
    )
    episodes: Annotated[int, "Weeks of usage drawn.", Bounds(min=1)] = 300
    long_episodes: Annotated[int, "On the scenario's week, for policies that promise 0.95.", Bounds(min=1)] = 2_000
    unseen: Annotated[int, "Redrawn weeks of requests.", Bounds(min=0)] = 4
    persistent: Annotated[int, "Weeks of VMs that keep their level.", Bounds(min=1)] = 60
    points: Annotated[int, "Rates whose risk is predicted and sampled.", Bounds(min=0)] = 16
    evaluations: Annotated[int, "Weeks assessed by each search.", Bounds(min=1)] = 1_500
    measured: Annotated[
        list[Path] | None,
        "FILE",
        "VM-days of yours to hold predicted risk to; repeatable.",
        Check(Path.is_file, "name a file of VM-days"),
    ] = None
    short: Annotated[bool, "Little of everything, to see that it runs."] = False
    out: PageOption = None

    def run(self) -> Answer:
        """Play the weeks from each start."""
        from simulator.oversubscription.scenario import scenario_of
        from trainer.kit.jobs import in_turn
        from trainer.kit.progress import phases
        from trainer.oversubscription.evaluation import Extent, ResultsFile, checks_of, evaluate
        from trainer.oversubscription.report import write

        cluster = scenario_of(self.scenario)
        extra, folders = _extra(self.policies or [], self.runs or [])
        extent = Extent(
            self.episodes, self.long_episodes, self.unseen, 1, self.persistent, self.points, self.evaluations
        )
        if self.short:
            extent = Extent(60, 60, unseen=1, shifted=0, persistent=2, points=4, evaluations=60, left_out=False)
        starts = ("cold", "warm") if self.start == "both" else (self.start,)
        with phases(self.as_json) as on_phase:
            results = ResultsFile(None if self.out is None else self.out / RESULTS, resume=self.resume or self.plan)
            options: dict[str, Any] = {"extent": extent, "measured": self.measured or (), "results": results}
            options |= {"workers": self.crew, "on_progress": on_phase}
            found = in_turn(lambda one: evaluate(cluster, one, extra, **options), starts)
        files = [] if self.out is None else [str(file) for file in write(self.out, found, folders)]
        data = [done.as_data() | {"checks": [check.as_data("passed") for check in checks_of(done)]} for done in found]
        notes = [f"report: {file}" for file in files[:1]]
        return Answer({"evaluations": data, "files": files}, notes, tables=_tables(found, self.form))


def _extra(policies: list[str], runs: list[str]) -> tuple[list[Contender], dict[str, list[Path]]]:
    from trainer.kit.runs import SUMMARY_FILE
    from trainer.oversubscription.evaluation import Contender

    texts: dict[str, list[str]] = {}
    folders: dict[str, list[Path]] = {}
    for label, text in labelled("--policies", policies, "LABEL=POLICY, such as mine=rates.json"):
        texts.setdefault(label, []).append(text)
    for label, name in labelled("--runs", runs, "LABEL=FOLDER"):
        folder = Path(name)
        try:
            summary = json.loads((folder / SUMMARY_FILE).read_text("utf-8"))
            models = [folder / model for model in summary.get("models") or [summary["rule"]]]
            seeds = [folder / f"seed-{seed}" for seed in summary["seeds"]]
        except (OSError, ValueError, KeyError) as error:
            remedy = f"name the --out of a finished training: {error}"
            raise BadInput("--runs", f"{label}={name}", remedy) from None
        texts.setdefault(label, []).extend(map(str, models))
        folders.setdefault(label, []).extend(seeds)
    return [Contender(label, tuple(own)) for label, own in texts.items()], folders


def _tables(found: list[Evaluation], form: str) -> list[tuple[str, Rows]]:
    from trainer.oversubscription.evaluation import OWN, UNSEEN, checks_of

    words = {True: "yes", False: "NO", None: "no verdict"}
    tables: list[tuple[str, Rows]] = []
    for done in found:
        weeks = {OWN: f"week {done.rows[0]['week']}", UNSEEN: "unseen weeks"}
        tables += [
            (f"{done.scenario}, {done.start} start, {title}", figures)
            for kind, title in weeks.items()
            if len(figures := _policies(done, kind, plain=form == CSV)) > 1
        ]
        if form != TEXT:
            continue
        checks = checks_of(done)
        missed = sum(check.kept is False for check in checks)
        rows: list[tuple[object, ...]] = [("kept", "", "asked", "found")]
        rows += [(words[check.kept], check.key, check.asked, check.found) for check in checks]
        tables.append((f"acceptance figures: {missed} of {len(checks)} missed", rows))
    return tables


def _policies(done: Evaluation, kind: str, *, plain: bool) -> Rows:
    """Return the figures of each policy on weeks of a kind, in the mean; plain: numbers without units, for CSV."""
    titles = ("policy", "cores saved", "core-hours", "machines", "hot weeks", "at most (95 %)", "weeks", "episodes")
    rows: list[tuple[object, ...]] = [titles]
    for label in dict.fromkeys(row["label"] for row in done.rows if row["kind"] == kind):
        own = done.of(label, kind)
        figures = (
            *(_mean([row[name] for row in own]) for name in ("s_cores", "s_core_hours")),
            sum(row["peak_machines"] for row in own) / len(own),
            sum(row["c_hot_r"] for row in own) / len(own),
            max(row["c_hot_r_upper_95"] for row in own),
        )
        forms = ("{}",) * 5 if plain else ("{:.1%}", "{:.1%}", "{:.4g}", "{:.1%}", "{:.1%}")
        cells = ("-" if value is None else form.format(value) for form, value in zip(forms, figures, strict=True))
        rows.append((label, *cells, len(own), own[0]["episodes"]))
    return rows


def _mean(values: list[float | None]) -> float | None:
    """Return the mean of the values that there are, None without any."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
