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
    from trainer.evaluation.suite import Case, World
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
            "trimtab promote MODEL.onnx --recent /var/lib/trimtab/ledger.db",
            "trimtab promote --rollback",
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

    The first champion has to beat the tuned queue rule. Every trial leaves a report in the models directory, with the
    SHA-256 of models, traces and results, signed where there is a key. The agent takes up a new champion within a
    minute.
    """
    from trainer.promotion.models_directory import ModelsDirectory
    from trainer.promotion.seal import read_key

    if (challenger is not None) + rollback + status != 1:
        raise BadInput("promote", "" if challenger is None else str(challenger), "give a model, --rollback or --status")
    directory = ModelsDirectory(models_dir or _directory_of_settings())
    key = read_key(key_file)
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if status:
        _status(directory, key, as_json)
    elif rollback:
        _rollback(directory, now, as_json)
    elif challenger is not None:
        chosen = _world(world)
        cases = _cases(traces, short, seeds, chosen, recent)
        facts: dict[str, Any] = {"groups": traces, "short": short, "world": chosen.value, "recent": len(recent or ())}
        contest = _hold(
            challenger, directory, cases, run_time_limit, now, key, facts, chosen, workers, try_only, as_json
        )
        if as_json:
            quiet = {name: value for name, value in contest.report.items() if name not in ("results", "cases")}
            print_json(quiet | {"promoted": contest.promoted, "report": contest.report_name})
        else:
            _show(contest, directory, signed=key is not None)
        if not contest.judgement.passed:
            raise typer.Exit(REFUSED)


def _directory_of_settings() -> Path:
    """Read the environment alone, so that a mistake in another setting does not keep anybody from a rollback."""
    from agent.settings.location import DEFAULT_STATE_DIRECTORY

    found = {name.lower(): value for name, value in os.environ.items() if value}
    named = found.get("trimtab_learned__models_dir")
    return Path(named or Path(found.get("trimtab_state_directory", DEFAULT_STATE_DIRECTORY)) / "models")


def _world(text: str) -> World:
    from trainer.evaluation.suite import World

    try:
        return World(text)
    except ValueError:
        raise BadInput("--world", text, f"choose one of {', '.join(World)}") from None


def _cases(traces: str, short: bool, seeds: int | None, world: World, recent: list[str] | None) -> list[Case]:
    from trainer.evaluation.suite import suite
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
            world=world,
            workers=workers,
            try_only=try_only,
            told=lambda n: bars.advance(task, n),
        )


def _show(contest: Contest, directory: ModelsDirectory, *, signed: bool) -> None:
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
        lines.append("passed: it is the champion now")
    elif judgement.passed:
        lines.append("passed; nothing is changed (--try)")
    else:
        lines += ["not promoted, the champion stays:", *(f"  {reason}" for reason in judgement.reasons)]
    seal = "signed" if signed else "not signed: no key was given, its SHA-256 alone holds it"
    lines.append(f"report: {directory.path / contest.report_name} ({seal})")
    show(lines)


def _rollback(directory: ModelsDirectory, at: str, as_json: bool) -> None:
    with directory.locked():
        left = directory.champion()
        back = directory.rollback(at)
    if as_json:
        print_json({"left": left.model if left else None, "model": back.model if back else None})
    elif back is None:
        gone = left.model if left else ""
        typer.echo(f"{gone} is no longer the champion; there was none before it: a shipped model decides, or the rules")
    else:
        typer.echo(f"back to {back.model}, from {left.model if left else ''}")


def _status(directory: ModelsDirectory, key: bytes | None, as_json: bool) -> None:
    from agent.models import ModelRefused, load_model

    champion = directory.champion()
    data: dict[str, Any] = {"directory": str(directory.path), "champion": None, "history": directory.history()}
    if champion is not None:
        try:
            load_model(directory.model_path(champion.model))
            file = "sound"
        except ModelRefused as refusal:
            file = str(refusal)
        seal = _seal(directory, champion.report, key)
        data["champion"] = {
            "model": champion.model,
            "previous": champion.previous,
            "at": champion.at,
            "report": champion.report,
            "file": file,
            "seal": seal,
        }
    if as_json:
        print_json(data)
        return
    if champion is None:
        typer.echo(f"no champion in {directory.path}: the shipped model decides, or the rules")
        return
    for name, value in data["champion"].items():
        typer.echo(f"{name:9} {value if value is not None else '-'}")


def _seal(directory: ModelsDirectory, name: str | None, key: bytes | None) -> str:
    from trainer.promotion.seal import check

    if name is None:
        return "no report"
    try:
        return str(check(directory.report(name), key))
    except BadInput as fault:
        return str(fault)
