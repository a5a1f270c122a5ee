"""`trimtab train oversubscription`: rates that save cores while machines stay cool, searched, calibrated or learned."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent.commands.options import JsonOption, duration_text, examples, print_json
from domain.errors import BadInput

if TYPE_CHECKING:
    from simulator.oversubscription.scenario import Scenario
    from trainer.oversubscription.configuration import VdnConfig

INTERRUPTED = 130
METHODS = ("calibrated", "static", "vdn")
EPILOG = "\n\n".join(
    (
        "\n".join(
            (
                "\b",
                "Methods:",
                "  calibrated  one rate per subscriber, safe in every known week with room to",
                "              spare, held to redrawn weeks: the one to use (--shield adds a guard)",
                "  static      one rate per subscriber, the best of one week, no reserve",
                "  vdn         a network per subscriber, learnt together (C2MARL):",
                "              --preset paper as published, robust with the measured risk",
            )
        ),
        "\n".join(
            (
                "\b",
                "What is written to --out: rates.json; with vdn, per seed, checkpoints/,",
                "curve.csv, tensorboard/, run.json and MODEL.onnx, and summary.json for all.",
                "Both kinds of file are policies of `trimtab simulate oversubscription`.",
            )
        ),
        examples(
            "trimtab train oversubscription --scenario azure_like",
            "trimtab train oversubscription --scenario FOLDER --start warm --shield auto",
            "trimtab train oversubscription --method vdn --preset robust --seeds 0-2",
            "trimtab train oversubscription --method vdn --set gamma=0.95 --resume",
        ),
    )
)


def oversubscription(
    scenario: Annotated[
        str, typer.Option(metavar="NAME|FOLDER", help="internal_like, azure_like, or a folder of yours.")
    ] = "internal_like",
    method: Annotated[str, typer.Option(metavar="NAME", help="How the rates are found, see below.")] = "calibrated",
    start: Annotated[str, typer.Option(metavar="cold|warm", help="Empty, or with the VMs of hour 0.")] = "cold",
    alpha: Annotated[float, typer.Option(help="Required chance of a week with fewer hot hours than promised.")] = 0.95,
    weeks: Annotated[
        str | None,
        typer.Option(metavar="s0,s21,...", help="Weeks to learn from; else all, and the first for static and vdn."),
    ] = None,
    cap: Annotated[
        float | None, typer.Option(metavar="SHARE", help="calibrated: largest risk of a known week.")
    ] = None,
    shield: Annotated[
        str | None,
        typer.Option(metavar="HOURS|auto", help="calibrated: raise rates above so many hot hours a machine and day."),
    ] = None,
    evaluations: Annotated[int, typer.Option(min=1, help="Weeks assessed by a search.")] = 4_000,
    preset: Annotated[str, typer.Option(metavar="NAME", help="vdn: paper or robust.")] = "robust",
    episodes: Annotated[
        int | None, typer.Option(min=1, help="vdn: episodes; else 800, with paper 1,800 cold and 1,200 warm.")
    ] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="vdn: any other setting; repeatable.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the search, or of networks and exploration.")] = 0,
    seeds: Annotated[str | None, typer.Option(metavar="LIST", help="vdn: several, such as 0-2: a run each.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="vdn: go on with the runs in --out.")] = False,
    at_once: Annotated[int, typer.Option("--at-once", min=1, help="vdn: runs at once.")] = 1,
    ray: Annotated[
        str | None, typer.Option(metavar="local|HOST:PORT", help="vdn: spread the runs over a Ray cluster.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where to write; else .trimtab/oversubscription/SCENARIO.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Find rates for the subscribers of a cluster from its weeks of requests and its usage profiles.

    The same settings and seed give the same file. Exits with status 1 when nothing safe was found, 130 when stopped by
    Ctrl-C; --resume then goes on.
    """
    from simulator.oversubscription.scenario import scenario_of
    from simulator.oversubscription.weekly import check_start

    if method not in METHODS:
        raise BadInput("--method", method, f"choose one of {', '.join(METHODS)}")
    if not 0.0 < alpha < 1.0:
        raise BadInput("--alpha", alpha, "give a probability between 0 and 1, such as 0.95")
    check_start(start)
    cluster = scenario_of(scenario)
    chosen = tuple(part.strip() for part in weeks.split(",")) if weeks else ()
    for name in chosen:
        cluster.week(name)
    place = out or Path(".trimtab/oversubscription") / cluster.name
    if method == "vdn":
        config = _config(scenario, preset, setting or [], start=start, alpha=alpha, episodes=episodes, weeks=chosen)
        _learn(config, seeds, seed, place, resume=resume, at_once=at_once, ray=ray, as_json=as_json)
        return
    options = {"start": start, "alpha": alpha, "evaluations": evaluations, "seed": seed}
    place.mkdir(parents=True, exist_ok=True)
    data = _search(cluster, method, chosen, options, cap, _shield(shield), place / "rates.json", quiet=as_json)
    if as_json:
        print_json(data | {"file": str(place / "rates.json")})
    else:
        _show(data, place / "rates.json")
    if not data["feasible"]:
        raise typer.Exit(1)


def _shield(text: str | None) -> float | str | None:
    from trainer.oversubscription.calibration import AUTO

    try:
        return text if text in (None, AUTO) else float(text)
    except ValueError:
        raise BadInput(
            "--shield", text, "give expected hot hours of a machine and day, such as 0.01, or auto"
        ) from None


def _search(
    cluster: Scenario,
    method: str,
    weeks: tuple[str, ...],
    options: dict[str, Any],
    cap: float | None,
    shield: float | str | None,
    path: Path,
    *,
    quiet: bool,
) -> dict[str, Any]:
    from domain.rules.oversubscription.guards import SHIELD, RateGuard
    from trainer.commands.simulate_oversubscription import _progress
    from trainer.kit.checkpoint import package_versions
    from trainer.oversubscription.calibration import calibrate, fit_static
    from trainer.oversubscription.rates_file import RatesFile, scenario_sha256, write_rates

    with _progress(quiet) as (said, _):
        if method == "static":
            if len(weeks) > 1 or shield is not None or cap is not None:
                raise BadInput("--method", method, "give it one week, and --cap and --shield to calibrated")
            found = fit_static(cluster, weeks[0] if weeks else cluster.weeks[0], told=said, **options)
        else:
            found = calibrate(cluster, weeks=weeks, cap=cap, shield=shield, told=said, **options)
    rates = RatesFile(
        name=str(path),
        scenario=cluster.name,
        scenario_sha256=scenario_sha256(cluster),
        start=options["start"],
        alpha=options["alpha"],
        actions=cluster.actions,
        subscribers=tuple(str(n) for n in range(cluster.subscribers)),
        rates=tuple(found.rates.tolist()),
        guard=None if found.budget is None else RateGuard(SHIELD, found.budget),
        calibration={"method": method, "seed": options["seed"], **found.facts},
        packages=package_versions(),
    )
    write_rates(rates, path)
    return rates.as_data() | {"feasible": found.feasible}


def _show(data: dict[str, Any], path: Path) -> None:
    from agent.commands.output import columns, show

    made = data["calibration"]
    rows: list[tuple[object, ...]] = [("week", "cores saved", "hot weeks, assessed")]
    rows += [(week, f"{made['s_cores'][week]:.1%}", f"{risk:.1%}") for week, risk in made["c_hot_r_assessed"].items()]
    told = [" ".join(f"{rate:g}" for rate in data["rates"]), "", *columns(rows)]
    if "held_out" in made:
        held = made["held_out"]
        told.append(
            f"{held['weeks']} redrawn weeks: {max(held['c_hot_r']):.1%} hot in the worst, "
            f"at most {held['c_hot_r_upper_95']:.1%} together (95 %), {made['raised']} rates raised for it"
        )
    told.append(str(path) if data["feasible"] else f"not safe: nothing keeps the promise here ({path})")
    show(told)


def _config(scenario: str, name: str, settings: list[str], **given: Any) -> VdnConfig:
    from trainer.kit.fields import pairs_of
    from trainer.oversubscription.configuration import changes_of, preset

    changes = changes_of("--set", pairs_of("--set", settings))
    for field in ("scenario", "start", "alpha", "seed", "weeks"):
        if field in changes:
            raise BadInput("--set", field, f"it is an option of its own, --{field}")
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
    import sys

    from trainer.kit.progress import BAR, LINES, SILENT
    from trainer.kit.sweeps import seeds_of
    from trainer.oversubscription.runs import jobs_of, train_all

    jobs = jobs_of(config, seeds_of(seeds) if seeds else [seed], place, resume=resume)
    show = SILENT if as_json else BAR if sys.stderr.isatty() else LINES
    try:
        summary = train_all(jobs, place, at_once=at_once, ray=ray, show=show)
    except KeyboardInterrupt:
        typer.echo(f"stopped; go on with the same command and --resume (in {place})", err=True)
        raise typer.Exit(INTERRUPTED) from None
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
