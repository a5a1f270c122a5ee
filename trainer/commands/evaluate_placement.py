"""`trimtab evaluate placement`: policies on the same orders, against the bound, the optimum and best fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from agent.commands.options import JsonOption, print_json
from agent.kernel.text import duration_text
from domain.errors import BadInput
from trainer.commands.options import TEXT, FormatOption, Rows, epilog, show_tables

if TYPE_CHECKING:
    from domain.rules.placement.policies import Policy
    from trainer.placement.evaluation import Evaluation

EPILOG = epilog(
    """
Always compared: FF, BF, BF-cpu, DP, WF, RESERVE(100, 8, 10), and HAND: weights
tuned on the given order alone. Others: --policies and --runs. All play the
given order and the shuffles 0, 1, ... of each instance, which no training sees.
""",
    """
Each packing passes an independent checker before a figure of it is shown. In
addition: the lower bound, and the fewest hosts known with full knowledge.
""",
    calls=(
        "trimtab evaluate placement --instance S1",
        "trimtab evaluate placement --instance L219 --instance L157 --out evidence",
        "trimtab evaluate placement --instance L219 --policies mine=policy.json --json",
        "trimtab evaluate placement --instance L157 --runs L219=FOLDER --shuffles 100",
    ),
)


def placement(
    instance: Annotated[
        list[str] | None,
        Option(metavar="NAME|FILE", help="S1, L219, stream-0, a FILE.json, ...; repeatable, else L219."),
    ] = None,
    policies: Annotated[
        list[str] | None, Option("--policies", metavar="LABEL=FILE", help="A policy file; repeatable.")
    ] = None,
    runs: Annotated[
        list[str] | None, Option(metavar="LABEL=FOLDER", help="All seeds of `trimtab train placement`; repeatable.")
    ] = None,
    shuffles: Annotated[int, Option(min=0, max=100, help="Orders in addition to the given one.")] = 50,
    hand: Annotated[bool, Option("--hand/--no-hand", help="Tune and compare HAND.")] = True,
    out: Annotated[Path | None, Option(metavar="FOLDER", help="Write report.html and its numbers here.")] = None,
    form: FormatOption = TEXT,
    as_json: JsonOption = False,
) -> None:
    """Count the hosts that policies open on the same requests, in the given order and in others.

    The same options give the same figures. With --out a report is written, with the packings as pictures.
    """
    from simulator.placement.instances import instance_of
    from trainer.kit.progress import phases
    from trainer.placement.evaluation import evaluate
    from trainer.placement.report import write

    if out is not None and out.exists() and not out.is_dir():
        raise BadInput("--out", str(out), "name a folder")
    instances = [instance_of(name) for name in instance or ["L219"]]
    learned = _policies(policies or [])
    trained, seeds = _runs(runs or [])
    with phases(as_json) as on_phase:
        found = [
            evaluate(
                one,
                learned | trained,
                shuffles=() if one.releases else range(shuffles),
                hand=hand,
                on_progress=on_phase,
            )
            for one in instances
        ]
    spread = {one.instance.name: _spread(one, seeds) for one in found}
    files = [] if out is None else write(out, found, _training(runs or []))
    if as_json:
        print_json(
            {
                "evaluations": [one.as_data() | {"seeds": spread[one.instance.name]} for one in found],
                "files": [str(file) for file in files],
            }
        )
        return
    notes = [_sentence(label, *own) for one in found for label, own in spread[one.instance.name].items()]
    show_tables([_table(one) for one in found], [*notes, *(f"report: {file}" for file in files[:1])], form)


def _policies(given: list[str]) -> dict[str, Policy]:
    found = {}
    for text in given:
        label, equals, name = text.partition("=")
        if not equals or not label or not name or label in found:
            raise BadInput("--policies", text, "give LABEL=FILE, each label once, such as mine=policy.json")
        found[label] = _read(Path(name), "--policies")
    return found


def _read(path: Path, option: str) -> Policy:
    from domain.rules.placement.policies import parse_policy

    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(option, str(path), f"name a policy file that can be read: {error}") from None
    return parse_policy(document, path.name)


def _runs(given: list[str]) -> tuple[dict[str, Policy], dict[str, list[str]]]:
    """Return the policies of every seed, and their labels by that of the training."""
    found: dict[str, Policy] = {}
    labels: dict[str, list[str]] = {}
    for text in given:
        label, _, name = text.partition("=")
        folder, summary = Path(name), _summary(text)
        labels[label] = [f"{label} seed {seed}" for seed in summary["seeds"]]
        for own, file in zip(labels[label], summary["policies"], strict=True):
            found[own] = _read(folder / file, "--runs")
    return found, labels


def _summary(text: str) -> dict[str, Any]:
    from trainer.kit.runs import SUMMARY_FILE

    label, equals, name = text.partition("=")
    try:
        if not equals or not label:
            raise ValueError("no label")
        summary: dict[str, Any] = json.loads((Path(name) / SUMMARY_FILE).read_text("utf-8"))
        if not {"seeds", "policies", "steps", "cpu_s", "wall_s", "config"} <= set(summary):
            raise ValueError("it is not the summary of a training of placement")
    except (OSError, ValueError, TypeError) as error:
        raise BadInput("--runs", text, f"give LABEL=FOLDER, the --out of a finished training: {error}") from None
    return summary


def _spread(done: Evaluation, seeds: dict[str, list[str]]) -> dict[str, tuple[float, float]]:
    """Return mean and standard deviation over seeds of the mean hosts, by label of the training."""
    import numpy as np

    means = {label: [float(done.of(own).hosts.mean()) for own in labels] for label, labels in seeds.items()}
    return {label: (float(np.mean(own)), float(np.std(own))) for label, own in means.items()}


def _training(given: list[str]) -> dict[str, list[str]]:
    found = {}
    for text in given:
        summary, label = _summary(text), text.partition("=")[0]
        config = summary["config"]
        plan = config["plan"]
        cost = (
            f"{sum(summary['steps']):,} sequences, {duration_text(sum(summary['cpu_s']))} of one core, "
            f"{duration_text(sum(summary['wall_s']))} on the clock"
        )
        names = ", ".join(config["instances"])
        method = f"{plan['method']}, {plan['family']}, seeds {', '.join(map(str, summary['seeds']))}"
        found[label] = [names, method, cost]
    return found


def _sentence(label: str, mean: float, spread: float) -> str:
    return f"{label}: {mean:.2f} ± {spread:.2f} hosts over its seeds"


def _table(done: Evaluation) -> tuple[str, Rows]:
    best = done.optimum
    known = (
        "" if best is None else f", {best.hosts} with full knowledge ({'optimal' if best.optimal else 'not proven'})"
    )
    rows: list[tuple[object, ...]] = [
        ("policy", "given", "mean", "s.e.", "p5", "p95", "range", "cores", "rejected", "against BF", "over bound")
    ]
    for one in done.figures:
        data = one.as_data()
        error, versus = data["standard_error"], data["to_best_fit"]
        rows.append(
            (
                one.policy,
                data["nominal"],
                f"{data['mean']:.2f}",
                "" if error is None else f"{error:.2f}",
                *(f"{data[name]:.0f}" for name in ("p5", "p95", "range")),
                f"{data['rates']['cores']:.2%}" if data["rates"] else "",
                data["rejected"],
                f"{versus['mean']:+.2f} [{versus['low']:+.2f}, {versus['high']:+.2f}]",
                f"{data['gap']:+.2%}",
            )
        )
    head = f"{done.instance.name}: {len(done.shuffles)} orders, at least {done.bound.hosts} hosts{known}"
    return head, rows
