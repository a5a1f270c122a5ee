"""`trimtab promote`: a model becomes the champion if it beats the present one; and the way back."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent.commands.options import JsonOption, examples, print_json
from domain.errors import BadInput

if TYPE_CHECKING:
    from agent.models.champions import Champion
    from trainer.autoscaling.evaluation.suite import Case, World
    from trainer.promotion.contest import Contest
    from trainer.promotion.models_directory import ModelsDirectory

REFUSED = 1

EPILOG = "\n\n".join(
    (
        "\n".join(
            (
                "\b",
                "The gate: same traces, seeds and entry states for both, mid-run states too.",
                "  cheaper in 95 % of paired bootstrap resamples, families counting alike;",
                "  no family of traces more than 5 % dearer; no run beyond the run-time limit.",
                "  Else the champion stays, and the exit status is 1.",
            )
        ),
        examples(
            "trimtab promote MODEL.onnx --fleet web --recent /var/lib/trimtab/ledger.db",
            "trimtab promote --rollback --fleet web",
        ),
    )
)


def register(app: typer.Typer) -> None:
    """Add the verb to the program."""
    app.command("promote", epilog=EPILOG)(promote)


def promote(
    challenger: Annotated[
        Path | None, typer.Argument(metavar="CHALLENGER.onnx", help="The model to put in use.", show_default=False)
    ] = None,
    models_dir: Annotated[
        Path | None,
        typer.Option(
            "--models-dir",
            "--champion-dir",
            metavar="DIR",
            help="Directory of models and champion.json; else that of the settings.",
            show_default=False,
        ),
    ] = None,
    fleet: Annotated[
        str,
        typer.Option(
            "--fleet", metavar="NAME", help="Fleet whose champion it is; else of all that have none of their own."
        ),
    ] = "",
    recent: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LEDGER|FILE", help="Replay recent production too: a ledger, a CSV or an SWF; repeatable."
        ),
    ] = None,
    traces: Annotated[str, typer.Option(metavar="T1,T2,...", help="Groups of the suite to run.")] = "T1,T2,T3,T4,T5,T6",
    short: Annotated[bool, typer.Option("--short", help="Few cases of each kind: a trial, not a release.")] = False,
    seeds: Annotated[int | None, typer.Option(metavar="N", help="At most so many cases per family.", min=1)] = None,
    world: Annotated[str, typer.Option(metavar="live-like|training", help="The world of T3, T5 and T6.")] = "live-like",
    run_time_limit: Annotated[
        float, typer.Option(metavar="FACTOR", help="Longest run time, as a multiple of the champion's.", min=1.0)
    ] = 1.5,
    key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Key that signs the report; else $PROMOTION_KEY.")
    ] = None,
    try_only: Annotated[bool, typer.Option("--try", help="Judge and report, but change nothing.")] = False,
    rollback: Annotated[bool, typer.Option("--rollback", help="Go back to the champion before.")] = False,
    status: Annotated[bool, typer.Option("--status", help="Show the champion, and check its file and report.")] = False,
    workers: Annotated[int, typer.Option(help="Processes.", min=1)] = 1,
    as_json: JsonOption = False,
) -> None:
    """Put a learned policy in use if it beats the present one on held-out traces, or go back to the one before.

    With --fleet it decides for that fleet, else for every fleet that it fits and that has no champion of its own. The
    first champion has to beat the tuned queue rule. Every trial leaves a report in the models directory, with the
    SHA-256 of models, traces and results, signed where there is a key. The agent takes up a new champion within a
    minute.
    """
    from agent.models.promotion_seal import read_key
    from agent.settings.location import models_location, promotion_key_location
    from trainer.promotion.models_directory import ModelsDirectory

    if (challenger is not None) + rollback + status != 1:
        raise BadInput("promote", "" if challenger is None else str(challenger), "give a model, --rollback or --status")
    directory = ModelsDirectory(models_dir or models_location(os.environ))
    key = read_key(key_file) or promotion_key_location(os.environ)
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if status:
        _status(directory, key, as_json)
    elif rollback:
        _rollback(directory, now, fleet, key, as_json)
    elif challenger is not None:
        _check_fleet(challenger, fleet)
        chosen = _world(world)
        cases = _cases(traces, short, seeds, chosen, recent)
        facts: dict[str, Any] = {"groups": traces, "short": short, "world": chosen.value, "recent": len(recent or ())}
        contest = _hold(
            challenger, directory, cases, run_time_limit, now, key, facts, fleet, chosen, workers, try_only, as_json
        )
        if as_json:
            quiet = {name: value for name, value in contest.report.items() if name not in ("results", "cases")}
            print_json(quiet | {"promoted": contest.promoted, "report": contest.report_name})
        else:
            _show(contest, directory, fleet, signed=key is not None)
        if not contest.judgement.passed:
            raise typer.Exit(REFUSED)


def _check_fleet(challenger: Path, fleet: str) -> None:
    """Raise BadInput when settings describe fleets and the one named is none of them, or the model does not fit it.

    Where the settings describe none, as on a machine that trains, the name is believed.
    """
    from pydantic import TypeAdapter, ValidationError

    from agent.models.card import misfit
    from agent.models.file import load_model
    from agent.settings import load_settings
    from agent.settings.kinds import Key

    if not fleet:
        return
    try:
        TypeAdapter(Key).validate_python(fleet)
    except ValidationError:
        raise BadInput("--fleet", fleet, "give the key of a fleet, as in TRIMTAB_FLEETS__<fleet>__POLICY") from None
    settings = load_settings(os.environ)
    if not settings.fleets:
        return
    if fleet not in settings.fleets:
        there = ", ".join(sorted(settings.fleets))
        raise BadInput("--fleet", fleet, f"choose one of the fleets of the settings: {there}")
    unfit = misfit(load_model(challenger).card, settings.fleet(fleet))
    if unfit:
        raise BadInput("CHALLENGER", str(challenger), f"{unfit}: train one for that fleet, or name another")


def _world(text: str) -> World:
    from trainer.autoscaling.evaluation.suite import World

    try:
        return World(text)
    except ValueError:
        raise BadInput("--world", text, f"choose one of {', '.join(World)}") from None


def _cases(traces: str, short: bool, seeds: int | None, world: World, recent: list[str] | None) -> list[Case]:
    from trainer.autoscaling.evaluation.suite import suite
    from trainer.promotion.recent import recent_cases

    groups = [group.strip() for group in traces.split(",") if group.strip()]
    cases = [*suite(groups, short=short, world=world, seeds=seeds), *recent_cases(recent or ())]
    if not cases:
        raise BadInput("--traces", traces, "name at least one group, or give --recent")
    return cases


def _hold(
    challenger: Path,
    directory: ModelsDirectory,
    cases: list[Case],
    run_time_factor: float,
    at: str,
    key: bytes | None,
    facts: dict[str, Any],
    fleet: str,
    world: World,
    workers: int,
    try_only: bool,
    quiet: bool,
) -> Contest:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from trainer.promotion.contest import hold
    from trainer.promotion.gate import Limits

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bars:
        task = bars.add_task("cases, from reset and from mid-run", total=len(cases))
        return hold(
            challenger,
            directory,
            cases,
            Limits(run_time_factor=run_time_factor),
            at=at,
            key=key,
            facts=facts,
            fleet=fleet,
            world=world,
            workers=workers,
            try_only=try_only,
            told=lambda n: bars.advance(task, n),
        )


def _show(contest: Contest, directory: ModelsDirectory, fleet: str, *, signed: bool) -> None:
    from agent.commands.output import columns, show

    judgement = contest.judgement
    against = contest.report["champion"]["sha256"] or contest.report["champion"]["label"]
    rows: list[tuple[object, ...]] = [("family", "runs", "cost", "95 %", "sure")]
    for family in judgement.families:
        r = family.comparison.relative
        sure = f"{family.comparison.probability_lower:.1%}"
        span = f"{100 * r.low:+.1f} to {100 * r.high:+.1f}"
        rows.append((family.family, family.trials, f"{100 * r.mean:+.1f} %", span, sure))
    r = judgement.overall.relative
    span, sure = f"{100 * r.low:+.1f} to {100 * r.high:+.1f}", f"{judgement.overall.probability_lower:.1%}"
    rows.append(("all, alike", sum(f.trials for f in judgement.families), f"{100 * r.mean:+.1f} %", span, sure))
    lines = [f"{contest.report['challenger']['sha256'][:12]} against {against[: 12 if len(against) == 64 else None]}:"]
    lines += columns(rows)
    if contest.promoted:
        lines.append(f"passed: it is the champion{f' of {fleet}' if fleet else ''} now")
    elif judgement.passed:
        lines.append("passed; nothing is changed (--try)")
    else:
        lines += ["not promoted, the champion stays:", *(f"  {reason}" for reason in judgement.reasons)]
    seal = "signed" if signed else "not signed: no key was given, its SHA-256 alone holds it"
    lines.append(f"report: {directory.path / contest.report_name} ({seal})")
    show(lines)


def _rollback(directory: ModelsDirectory, at: str, fleet: str, key: bytes | None, as_json: bool) -> None:
    with directory.locked():
        left = directory.champions().by_fleet.get(fleet)
        back = directory.rollback(at, fleet, key)
        stands_in = directory.champion(fleet)
    gone, of = left.model if left else "", f" of {fleet}" if fleet else ""
    if as_json:
        print_json({"fleet": fleet, "left": left.model if left else None, "model": back.model if back else None})
    elif back is not None:
        typer.echo(f"back to {back.model}, from {gone}{of}")
    elif stands_in is not None:
        typer.echo(f"{gone} is no longer the champion{of}; the champion of every fleet decides: {stands_in.model}")
    else:
        typer.echo(
            f"{gone} is no longer the champion{of}; there was none before it: a shipped model decides, or the rules"
        )


def _status(directory: ModelsDirectory, key: bytes | None, as_json: bool) -> None:
    from agent.models.champions import EVERY_FLEET

    found = {fleet: _state(directory, one, key) for fleet, one in sorted(directory.champions().by_fleet.items())}
    if as_json:
        print_json(
            {
                "directory": str(directory.path),
                "champion": found.get(EVERY_FLEET),
                "champions": found,
                "history": directory.history(),
            }
        )
        return
    if not found:
        typer.echo(f"no champion in {directory.path}: the shipped model decides, or the rules")
    for fleet, state in found.items():
        typer.echo(f"champion of {fleet or 'every fleet without one of its own'}")
        for name, value in state.items():
            typer.echo(f"{name:9} {value if value is not None else '-'}")


def _state(directory: ModelsDirectory, champion: Champion, key: bytes | None) -> dict[str, Any]:
    from agent.models.file import ModelRefused, load_model

    try:
        load_model(directory.model_path(champion.model))
        file = "sound"
    except ModelRefused as refusal:
        file = str(refusal)
    return {
        "model": champion.model,
        "previous": champion.previous,
        "at": champion.at,
        "report": champion.report,
        "file": file,
        "seal": _seal(directory, champion.report, key),
    }


def _seal(directory: ModelsDirectory, name: str | None, key: bytes | None) -> str:
    from agent.models.promotion_seal import check

    if name is None:
        return "no report"
    try:
        return str(check(directory.report(name), key))
    except BadInput as fault:
        return str(fault)
