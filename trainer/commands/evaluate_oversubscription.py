"""`trimtab evaluate oversubscription`: policies on the same weeks, known and unseen, held to what was asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from agent.commands.options import JsonOption, print_json
from domain.errors import BadInput
from trainer.commands.options import CSV, TEXT, FormatOption, Rows, ScenarioOption, epilog, show_tables

if TYPE_CHECKING:
    from trainer.oversubscription.evaluation import Evaluation
    from trainer.oversubscription.trials import Contender

RESULTS = "results.jsonl"
EPILOG = epilog(
    """
Always compared: Grid-0.2, -0.4, -0.6, no oversubscription, MA, SL, static
optima at 0.75, 0.85 and 0.95, calibrated rates, a shield, a risk filter.
Others: any policy of `trimtab simulate oversubscription`, also FILE.json
and FILE.onnx; a LABEL that is given twice is one method with two seeds.
""",
    calls=(
        "trimtab evaluate oversubscription --out evidence",
        "trimtab evaluate oversubscription --start both --out evidence --resume",
        "trimtab evaluate oversubscription --scenario azure_like --start warm --json",
        'trimtab evaluate oversubscription --runs "C2MARL robust=FOLDER" --out evidence',
        'trimtab evaluate oversubscription --policies "mine=rates.json" --short',
    ),
)


def oversubscription(
    scenario: ScenarioOption = "internal_like",
    start: Annotated[str, Option(metavar="cold|warm|both", help="Empty, or with the VMs of hour 0.")] = "cold",
    policies: Annotated[
        list[str] | None, Option("--policies", metavar="LABEL=POLICY", help="One more; repeatable.")
    ] = None,
    runs: Annotated[
        list[str] | None,
        Option(metavar="LABEL=FOLDER", help="Models of `train oversubscription --method vdn`; repeatable."),
    ] = None,
    episodes: Annotated[int, Option(min=1, help="Weeks of usage drawn.")] = 300,
    long_episodes: Annotated[
        int, Option(min=1, help="On the scenario's week, for policies that promise 0.95.")
    ] = 2_000,
    unseen: Annotated[int, Option(min=0, help="Redrawn weeks of requests.")] = 4,
    persistent: Annotated[int, Option(min=1, help="Weeks of VMs that keep their level.")] = 60,
    points: Annotated[int, Option(min=0, help="Rates whose risk is predicted and sampled.")] = 16,
    evaluations: Annotated[int, Option(min=1, help="Weeks assessed by each search.")] = 1_500,
    measured: Annotated[
        list[Path] | None, Option(metavar="FILE", help="VM-days of yours to hold predicted risk to; repeatable.")
    ] = None,
    resume: Annotated[bool, Option("--resume", help="Continue with the results in --out.")] = False,
    short: Annotated[bool, Option("--short", help="Little of everything, to see that it runs.")] = False,
    out: Annotated[Path | None, Option(metavar="FOLDER", help="Write report.html and its numbers here.")] = None,
    form: FormatOption = TEXT,
    as_json: JsonOption = False,
) -> None:
    """Play policies on a cluster's weeks and on redrawn ones, and hold them to the acceptance figures.

    The same options give the same figures. Misses stand first. With --out each result is kept as soon as it is there:
    after an interruption --resume goes on, and makes anew only what other options or another program ask for.
    """
    from simulator.oversubscription.scenario import scenario_of
    from trainer.kit.progress import phases
    from trainer.oversubscription.evaluation import checks_of, evaluate
    from trainer.oversubscription.report import write
    from trainer.oversubscription.trials import Extent, Kept

    if start not in ("cold", "warm", "both"):
        raise BadInput("--start", start, "choose cold, warm or both")
    if out is not None and out.exists() and not out.is_dir():
        raise BadInput("--out", str(out), "name a folder")
    if resume and out is None:
        raise BadInput("--resume", "without --out", "name the folder to continue")
    for path in measured or ():
        if not path.is_file():
            raise BadInput("--measured", str(path), "name a file of VM-days")
    cluster = scenario_of(scenario)
    extra, folders = _extra(policies or [], runs or [])
    extent = (
        Extent(60, 60, unseen=1, shifted=0, persistent=2, points=4, evaluations=60, left_out=False)
        if short
        else Extent(episodes, long_episodes, unseen, 1, persistent, points, evaluations)
    )
    starts = ("cold", "warm") if start == "both" else (start,)
    with phases(as_json) as on_phase:
        kept = Kept(None if out is None else out / RESULTS, resume=resume)
        options: dict[str, Any] = {"extent": extent, "measured": measured or (), "kept": kept, "on_progress": on_phase}
        found = [evaluate(cluster, one, extra, **options) for one in starts]
    files = [] if out is None else write(out, found, folders)
    if as_json:
        data = [done.as_data() | {"checks": [check.as_data() for check in checks_of(done)]} for done in found]
        print_json({"evaluations": data, "files": [str(file) for file in files]})
    else:
        _show(found, files, form)


def _extra(policies: list[str], runs: list[str]) -> tuple[list[Contender], dict[str, list[Path]]]:
    from trainer.kit.runs import SUMMARY_FILE
    from trainer.oversubscription.trials import Contender

    texts: dict[str, list[str]] = {}
    folders: dict[str, list[Path]] = {}
    for given in policies:
        label, equals, text = given.partition("=")
        if not equals or not label or not text:
            raise BadInput("--policies", given, "give LABEL=POLICY, such as mine=rates.json")
        texts.setdefault(label, []).append(text)
    for given in runs:
        label, equals, name = given.partition("=")
        folder = Path(name)
        if not equals or not label:
            raise BadInput("--runs", given, "give LABEL=FOLDER")
        try:
            summary = json.loads((folder / SUMMARY_FILE).read_text("utf-8"))
            models = [folder / model for model in summary["models"]]
        except (OSError, ValueError, KeyError) as error:
            raise BadInput("--runs", given, f"name the --out of a finished training: {error}") from None
        texts.setdefault(label, []).extend(map(str, models))
        folders.setdefault(label, []).extend(model.parent for model in models)
    return [Contender(label, tuple(own)) for label, own in texts.items()], folders


def _show(found: list[Evaluation], files: list[Path], form: str) -> None:
    from trainer.oversubscription.evaluation import checks_of
    from trainer.oversubscription.trials import OWN, UNSEEN

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
        missed = sum(check.passed is False for check in checks)
        rows: list[tuple[object, ...]] = [("kept", "", "asked", "found")]
        rows += [(words[check.passed], check.key, check.asked, check.found) for check in checks]
        tables.append((f"acceptance figures: {missed} of {len(checks)} missed", rows))
    show_tables(tables, [f"report: {file}" for file in files[:1]], form)


def _policies(done: Evaluation, kind: str, *, plain: bool) -> Rows:
    """Return the figures of each policy on weeks of a kind, in the mean; plain: numbers without units, for CSV."""
    titles = ("policy", "cores saved", "machines", "hot weeks", "at most (95 %)", "weeks", "episodes")
    rows: list[tuple[object, ...]] = [titles]
    for label in dict.fromkeys(row["label"] for row in done.rows if row["kind"] == kind):
        own = done.of(label, kind)
        saved = [row["s_cores"] for row in own if row["s_cores"] is not None]
        figures = (
            sum(saved) / len(saved) if saved else None,
            sum(row["peak_machines"] for row in own) / len(own),
            sum(row["c_hot_r"] for row in own) / len(own),
            max(row["c_hot_r_upper_95"] for row in own),
        )
        forms = ("{}",) * 4 if plain else ("{:.1%}", "{:.4g}", "{:.1%}", "{:.1%}")
        cells = ("-" if value is None else form.format(value) for form, value in zip(forms, figures, strict=True))
        rows.append((label, *cells, len(own), own[0]["episodes"]))
    return rows
