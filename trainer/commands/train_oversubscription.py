"""`trimtab train oversubscription`: networks that set rates which save cores while machines stay cool (C2MARL)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Context, Option

from agent.commands.options import JsonOption, print_json
from agent.kernel.text import duration_text
from domain.errors import BadInput
from trainer.commands import tune_oversubscription
from trainer.commands.options import (
    AlphaOption,
    ConfigOption,
    ScenarioOption,
    StartOption,
    epilog,
    settings_of,
    write_config,
)
from trainer.commands.train_autoscaling import resumable

if TYPE_CHECKING:
    from trainer.oversubscription.configuration import VdnConfig

VDN = "vdn"
EPILOG = epilog(
    """
Method vdn: a network per subscriber, learnt together (C2MARL): --preset paper as
published, robust with the measured risk. Rates that no network sets are found by
`trimtab tune oversubscription`; --method calibrated and static still do so here.
""",
    """
Written to --out: per seed checkpoints/, curve.csv, tensorboard/, run.json
and MODEL.onnx, a policy of `trimtab simulate oversubscription`; and summary.json.
""",
    calls=(
        "trimtab train oversubscription --method vdn --preset robust --seeds 0-2",
        "trimtab train oversubscription --method vdn --set gamma=0.95 --resume",
    ),
)


def oversubscription(
    ctx: Context,
    scenario: ScenarioOption = "internal_like",
    method: Annotated[str | None, Option(metavar="NAME", help="vdn, see below.")] = None,
    start: StartOption = "cold",
    alpha: AlphaOption = 0.95,
    weeks: Annotated[str | None, Option(metavar="s0,s21,...", help="Weeks to learn from; else the first.")] = None,
    preset: Annotated[str, Option(metavar="NAME", help="paper or robust.")] = "robust",
    episodes: Annotated[
        int | None, Option(min=1, help="Episodes; else 800, with paper 1,800 cold and 1,200 warm.")
    ] = None,
    setting: Annotated[
        list[str] | None, Option("--set", metavar="FIELD=VALUE", help="Any other setting; repeatable.")
    ] = None,
    seed: Annotated[int, Option(min=0, help="Seed of networks and exploration.")] = 0,
    seeds: Annotated[str | None, Option(metavar="LIST", help="Several, such as 0-2: a run each.")] = None,
    resume: Annotated[bool, Option("--resume", help="Continue the runs in --out.")] = False,
    at_once: Annotated[int, Option("--at-once", min=1, help="Runs at once.")] = 1,
    ray: Annotated[str | None, Option(metavar="local|HOST:PORT", help="Spread the runs over a Ray cluster.")] = None,
    out: tune_oversubscription.OutOption = None,
    cap: Annotated[float | None, Option(hidden=True)] = None,
    shield: Annotated[str | None, Option(hidden=True)] = None,
    evaluations: Annotated[int, Option(min=1, hidden=True)] = tune_oversubscription.EVALUATIONS,
    config_file: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Learn rates for the subscribers of a cluster from its weeks of requests and its usage profiles.

    The same settings and seed give the same files. Exits with status 1 when no safe policy was found, 130 when stopped
    by Ctrl-C; --resume then goes on.
    """
    if method != VDN:
        typer.echo(
            "calibrated and static rates moved: use `trimtab tune oversubscription`; from the next release on "
            "`trimtab train oversubscription` learns by vdn",
            err=True,
        )
        tune_oversubscription.oversubscription(
            *(scenario, method or tune_oversubscription.CALIBRATED, start, alpha, weeks, cap, shield),
            *(evaluations, seed, out, as_json),
        )
        return
    from trainer.kit.progress import announce

    announce("train oversubscription: loading torch and the simulator", as_json)
    _, chosen, place = tune_oversubscription.checked(scenario, start, alpha, weeks, out)
    config = _config(
        scenario, preset, settings_of(ctx, setting), start=start, alpha=alpha, episodes=episodes, weeks=chosen
    )
    given = ("scenario", "start", "alpha", "seed", "weeks")
    write_config(ctx, place, {name: value for name, value in config.plain().items() if name not in given})
    _learn(config, seeds, seed, place, resume=resume, at_once=at_once, ray=ray, as_json=as_json)


def _config(scenario: str, name: str, settings: list[str], **given: Any) -> VdnConfig:
    from trainer.kit.fields import changes_of, pairs_of
    from trainer.oversubscription.configuration import VdnConfig, preset

    changes = changes_of("--set", VdnConfig, pairs_of("--set", settings))
    for field in ("scenario", "start", "alpha", "seed", "weeks"):
        if field in changes:
            raise BadInput("--set", field, f"it is an option, --{field}")
    asked = {field: value for field, value in given.items() if value}
    if name == "paper":
        asked.setdefault("episodes", changes.pop("episodes", 1_800 if given["start"] == "cold" else 1_200))
    return preset(name, scenario=scenario, **{**changes, **asked})


def _learn(
    config: VdnConfig,
    seeds: str | None,
    seed: int,
    place: Path,
    *,
    resume: bool,
    at_once: int,
    ray: str | None,
    as_json: bool,
) -> None:
    from trainer.kit.jobs import seeds_of
    from trainer.oversubscription.runs import jobs_of, train_all

    jobs = jobs_of(config, seeds_of(seeds) if seeds else [seed], place, resume=resume)
    with resumable(place):
        summary = train_all(jobs, place, at_once=at_once, ray=ray, silent=as_json)
    if as_json:
        print_json({"directory": str(place), **summary})
    else:
        figures = summary["figures"]
        typer.echo(
            f"{len(jobs)} seeds, {duration_text(sum(summary['cpu_s']))} of one core: "
            f"{figures['s_cores']['mean']:.1%} ± {figures['s_cores']['std']:.1%} saved, "
            f"{figures['c_hot_r']['mean']:.1%} ± {figures['c_hot_r']['std']:.1%} hot weeks, "
            f"{figures['peak_machines']['mean']:,.6g} machines at most"
        )
        for model, budget in zip(summary["models"], summary["shield_budgets"], strict=True):
            typer.echo(f"{place / model}: {'no shield holds' if budget is None else f'shield budget {budget:g}'}")
    if not all(summary["feasible"]):
        raise typer.Exit(1)
