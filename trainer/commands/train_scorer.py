"""`trimtab train autoscaling --form scorer`: a scorer of whole-fleet targets, for any fleet."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from agent.kernel.text import duration_text
from domain.errors import BadInput
from trainer.commands.train import resumable
from trainer.commands.verb import Answer

if TYPE_CHECKING:
    from trainer.autoscaling.scorer import Plan
    from trainer.kit.jobs import Workers

PPO, SCORER = "ppo", "scorer"
DEFAULT, LSTM = "default", "lstm"
"""Presets of a scorer."""
_BOTH = frozenset(
    {
        *("form", "preset", "seed", "seeds", "setting", "world", "workload", "out", "resume", "as_json"),
        *("config_file", "device"),
    }
)
OF_SCORER = _BOTH | {"processes", "ray", "start"}
"""Parameters of the command that training a scorer reads."""
_SCORER_ALONE = {"processes", "start"}


def refuse_others(context: typer.Context, form: str) -> None:
    """Raise BadInput for an option that was given and that this form does not read."""
    other = SCORER if form == PPO else PPO
    for parameter in context.command.params:
        name = str(parameter.name)
        read = name in OF_SCORER if form == SCORER else name not in _SCORER_ALONE
        source = context.get_parameter_source(name)
        if not read and source is not None and source.name == "COMMANDLINE":
            option = max(parameter.opts, key=len)
            raise BadInput(option, context.params[name], f"it is for --form {other}: leave it out")


def train_scorers(
    *,
    seeds: Sequence[int],
    preset: str,
    settings: Sequence[str],
    start: str | None,
    world: str | None,
    workloads: Sequence[str],
    out: Path,
    resume: bool,
    device: str,
    workers: Workers,
    as_json: bool,
    on_checked: Callable[[Path, Mapping[str, str]], None],
) -> Answer:
    """Train a scorer per seed, each in a directory of its own.

    With workloads: for one world and these loads, from the weights that `start` names, or from nothing. on_checked:
    called with the folder and the settings before the first run.
    """
    from trainer.autoscaling import scorer
    from trainer.autoscaling.scorer import Recipe, general_plan
    from trainer.autoscaling.scorer_runs import check_run, run, shown_as
    from trainer.kit.fields import changes_of, pairs_of
    from trainer.kit.runs import RUN_FILE

    recipes = {DEFAULT: scorer.GENERAL, LSTM: scorer.LSTM}
    if preset not in recipes:
        raise BadInput("--preset", preset, f"of a scorer it is one of {', '.join(recipes)}")
    if workloads and preset == LSTM:
        raise BadInput("--preset", preset, "leave it out: with --workload give --from lstm")
    if not workloads:
        for option, given in (("--world", world), ("--from", start)):
            if given is not None:
                raise BadInput(option, given, "give the loads of that world too, by --workload")
    changes = {"device": device} | changes_of("--set", Recipe, pairs_of("--set", settings))
    if workloads:
        plans = _own_plans(out, seeds, changes, start, world or "live-like", workloads, as_json=as_json)
    else:
        plans = {out / f"seed-{seed}": general_plan(replace(recipes[preset], **changes), seed) for seed in seeds}
    for place, plan in plans.items():
        check_run(plan, place, resume=resume)
    on_checked(out, pairs_of("--set", settings))
    found: list[dict[str, Any]] = []
    with resumable(out):
        for place, plan in plans.items():
            run(plan, place, workers=workers, resume=resume, show=shown_as(as_json))
            found.append(json.loads((place / RUN_FILE).read_text("utf-8")))
    lines = []
    for place, summary in zip(plans, found, strict=True):
        lines.append(
            f"seed {summary['seed']}, {duration_text(summary['cpu_s'])} of one core: {place / summary['model']}"
        )
        lines += [f"  {line}" for line in (_own_lines(summary, start) if workloads else _general_lines(summary))]
    return Answer({"directory": str(out), "runs": found}, lines)


def _own_plans(
    out: Path,
    seeds: Sequence[int],
    changes: Mapping[str, Any],
    start: str | None,
    world: str,
    workloads: Sequence[str],
    *,
    as_json: bool,
) -> dict[Path, Plan]:
    from trainer.autoscaling.lessons import loads_of, rule_for_loads
    from trainer.autoscaling.scorer import ALONE, FINE, own_plan
    from trainer.autoscaling.scorer_runs import scorer_named
    from trainer.autoscaling.worlds import traces_of, world_of
    from trainer.kit.progress import announce

    begin = None if start is None else scorer_named(start)
    recipe = replace(ALONE if begin is None else FINE, **changes)
    home = world_of(world)
    announce("tuning the queue rule for these loads", as_json)
    loads = loads_of(traces_of(workloads, home.config))
    rule = rule_for_loads(home.config, loads, home.expected_job_core_s)
    return {out / f"seed-{seed}": own_plan(home.config, loads, rule, recipe, seed, begin) for seed in seeds}


def _general_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    figures = summary["figures"]
    yield (
        f"{figures['held_out/ratio']:.3f} of the queue rule's cost on the selection, "
        f"{figures['selection/worst']:.3f} in its worst group; margin {summary['margin']:g}"
    )


def _own_lines(summary: Mapping[str, Any], start: str | None) -> Iterator[str]:
    """Yield what was found on the windows that were left out, and what is used from now on."""
    own = {name.removeprefix("own/"): value for name, value in summary["figures"].items() if name.startswith("own/")}
    before = "the queue rule" if start is None else f"{start} before"
    kind = "cheaper" if own["gain"] >= 0.0 else "dearer"
    yield (
        f"learnt from {own['windows_learnt']:.0f} windows, judged on the {own['windows_left_out']:.0f} later ones: "
        f"{abs(own['gain']):.1%} {kind} than {before} (saved, 95 %: {own['gain_low']:.1%} to {own['gain_high']:.1%}), "
        f"{own['sure']:.0%} sure that it is cheaper at all"
    )
    rule = f"the queue rule tuned for this world (horizon_s={own['horizon_s']:g}, idle_s={own['idle_s']:g})"
    yield f"{own['ratio_before']:.3f} of the cost of {rule} before, {own['ratio_after']:.3f} after"
    if own["used"]:
        yield f"the file holds the new weights, margin {summary['margin']:g}"
    elif start is None:
        yield "that is not sure enough: use the queue rule, or train on more loads"
    else:
        yield "that is not sure enough: the file holds the weights from before"
