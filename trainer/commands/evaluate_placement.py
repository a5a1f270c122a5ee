"""`trimtab evaluate placement`: policies on the same orders, against the bound, the optimum and best fit."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from agent.kernel.text import duration_text
from domain.errors import BadInput
from trainer.commands.options import Bounds, PageOption, Rows, epilog, labelled
from trainer.commands.verb import Answer, TableVerb

if TYPE_CHECKING:
    from domain.rules.placement.policies import Policy
    from trainer.placement.evaluation import Evaluation


@dataclass(frozen=True, kw_only=True)
class EvaluatePlacement(TableVerb):
    """Count the hosts that policies open on the same requests, in the given order and in others.

    The same options give the same figures. With --out a report is written, with the packings as pictures.
    """

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

    instance: Annotated[
        list[str] | None, "NAME|FILE", "S1, L219, stream-0, a FILE.json, ...; repeatable, else L219."
    ] = None
    policies: Annotated[list[str] | None, "LABEL=FILE", "A policy file; repeatable."] = None
    runs: Annotated[list[str] | None, "LABEL=FOLDER", "All seeds of `trimtab train placement`; repeatable."] = None
    shuffles: Annotated[int, "Orders in addition to the given one.", Bounds(min=0, max=100)] = 50
    hand: Annotated[bool, Option("--hand/--no-hand", help="Tune and compare HAND.")] = True
    out: PageOption = None

    def run(self) -> Answer:
        """Play the orders of each instance."""
        from simulator.placement.instances import instance_of
        from trainer.kit.progress import phases
        from trainer.placement.evaluation import evaluate
        from trainer.placement.report import write

        instances = [instance_of(name) for name in self.instance or ["L219"]]
        learned = _policies(self.policies or [])
        trained, seeds, about = _runs(self.runs or [])
        with phases(self.as_json) as on_phase:
            found = [
                evaluate(
                    one,
                    learned | trained,
                    shuffles=() if one.releases else range(self.shuffles),
                    hand=self.hand,
                    on_progress=on_phase,
                )
                for one in instances
            ]
        spread = [_spread(one, seeds) for one in found]
        files = [] if self.out is None else [str(file) for file in write(self.out, found, about)]
        data = [one.as_data() | {"seeds": own} for one, own in zip(found, spread, strict=True)]
        notes = [
            f"{label}: {mean:.2f} ± {deviation:.2f} hosts over its seeds"
            for own in spread
            for label, (mean, deviation) in own.items()
        ]
        notes += [f"report: {file}" for file in files[:1]]
        return Answer({"evaluations": data, "files": files}, notes, tables=[_table(one) for one in found])


def _policies(given: list[str]) -> dict[str, Policy]:
    example = "LABEL=FILE, each label once, such as mine=policy.json"
    found: dict[str, Policy] = {}
    for label, name in labelled("--policies", given, example):
        if label in found:
            raise BadInput("--policies", f"{label}={name}", f"give {example}")
        found[label] = _read(Path(name), "--policies")
    return found


def _read(path: Path, option: str) -> Policy:
    from domain.rules.placement.policies import parse_policy

    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(option, str(path), f"name a policy file that can be read: {error}") from None
    return parse_policy(document, path.name)


def _runs(given: list[str]) -> tuple[dict[str, Policy], dict[str, list[str]], dict[str, list[str]]]:
    """Return the policies of every seed; by label of the training their labels, and its description."""
    from trainer.kit.runs import SUMMARY_FILE

    policies: dict[str, Policy] = {}
    labels: dict[str, list[str]] = {}
    about: dict[str, list[str]] = {}
    form = "LABEL=FOLDER, the --out of a finished training"
    for label, name in labelled("--runs", given, form):
        try:
            summary = json.loads((Path(name) / SUMMARY_FILE).read_text("utf-8"))
            if not {"seeds", "policies", "steps", "cpu_s", "wall_s", "config"} <= set(summary):
                raise ValueError("it is not the summary of a training of placement")
        except (OSError, ValueError, TypeError) as error:
            raise BadInput("--runs", f"{label}={name}", f"give {form}: {error}") from None
        labels[label] = [f"{label} seed {seed}" for seed in summary["seeds"]]
        for own, file in zip(labels[label], summary["policies"], strict=True):
            policies[own] = _read(Path(name) / file, "--runs")
        about[label] = _training(summary)
    return policies, labels, about


def _training(summary: dict[str, Any]) -> list[str]:
    """Return the instances of a training, its method and its cost."""
    plan, seeds = summary["config"]["plan"], ", ".join(map(str, summary["seeds"]))
    cost = (
        f"{sum(summary['steps']):,} sequences, {duration_text(sum(summary['cpu_s']))} of one core, "
        f"{duration_text(sum(summary['wall_s']))} on the clock"
    )
    return [", ".join(summary["config"]["instances"]), f"{plan['method']}, {plan['family']}, seeds {seeds}", cost]


def _spread(done: Evaluation, seeds: dict[str, list[str]]) -> dict[str, tuple[float, float]]:
    """Return mean and standard deviation over seeds of the mean hosts, by label of the training."""
    import numpy as np

    means = {label: [float(done.of(own).hosts.mean()) for own in labels] for label, labels in seeds.items()}
    return {label: (float(np.mean(own)), float(np.std(own))) for label, own in means.items()}


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
