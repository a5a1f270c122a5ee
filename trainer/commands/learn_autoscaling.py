"""`trimtab learn autoscaling`: from what a fleet's ledger recorded to what decides for it."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from agent.commands.options import JsonOption, LedgerOption, print_json, show
from agent.decisions.text import columns
from domain.errors import BadInput
from domain.units import HOUR_S, MINUTE_S
from trainer.commands.options import epilog
from trainer.commands.promote import KeyOption, TryOption

if TYPE_CHECKING:
    from trainer.learning.fidelity import Fidelity
    from trainer.learning.round import Round
    from trainer.learning.subject import Learner
    from trainer.learning.windows import Windows

REFUSED, NOT_TRUE, TOO_LITTLE, BUDGET_USED = 1, 3, 4, 5
"""Exit statuses: of the gate; of a world that does not describe the fleet; of too short a record; of the budget."""
EPILOG = epilog(
    """
Exit status:
  1  the gate refused what was learnt
  2  bad input
  3  the world file does not describe the fleet
  4  too little is recorded
  5  the time of a processor is used up: give more to go on
""",
    calls=(
        "trimtab learn autoscaling web --ledger /var/lib/trimtab/ledger.db",
        "trimtab learn autoscaling web --try --cpu-minutes 30 --out runs/learn/web",
        "trimtab learn autoscaling web --ledger /var/lib/trimtab/ledger.db --check",
        "trimtab learn autoscaling web --world my.toml --check",
        "trimtab learn autoscaling web --export web.tar",
        "trimtab learn autoscaling web --from web.tar --out runs/learn/web",
    ),
)


def autoscaling(
    fleet: Annotated[str, Argument(metavar="FLEET", help="The key of the fleet.")],
    ledger: LedgerOption = None,
    world: Annotated[
        str | None,
        Option(metavar="NAME|FILE", help="The world of its simulator; else live-like, types and boots as recorded."),
    ] = None,
    days: Annotated[float, Option(metavar="DAYS", min=0.1, help="How many of the last days are used.")] = 28.0,
    idle: Annotated[
        float | None,
        Option(metavar="SECONDS", min=0.0, help="The fleet's IDLE_S; else of the settings here, else the default."),
    ] = None,
    models_dir: Annotated[
        Path | None, Option(metavar="DIR", help="Directory of models; else that of the settings.")
    ] = None,
    check: Annotated[bool, Option("--check", help="Cut windows and check the simulator, no more.")] = False,
    out: Annotated[
        Path | None, Option(metavar="DIR", help="Folder of the round, which goes on there; else runs/learn/FLEET.")
    ] = None,
    cpu_minutes: Annotated[
        float, Option(metavar="MINUTES", min=0.01, help="Time of a processor, over all resumptions.")
    ] = 10.0,
    setting: Annotated[
        list[str] | None, Option("--set", metavar="FIELD=VALUE", help="A field of the scorer's recipe; repeatable.")
    ] = None,
    start: Annotated[
        str, Option(metavar="RUN|FILE|release", help="Scorer to go on from where no scorer decides.")
    ] = "release",
    export: Annotated[
        Path | None, Option("--export", metavar="FILE", help="Write what a round elsewhere needs, no more.")
    ] = None,
    origin: Annotated[
        Path | None, Option("--from", metavar="FILE|DIR", help="Learn from such a file in place of a ledger.")
    ] = None,
    key_file: KeyOption = None,
    try_only: TryOption = False,
    workers: Annotated[int, Option(metavar="N", min=1, help="Processes of --check.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Learn from what a fleet's ledger recorded: tune the queue rule, fine-tune a scorer, judge both, ask the gate.

    The recorded minutes are cut into windows; the latest two fifths are held out. First each is replayed under the
    policy that ran, with the fleet's own limits: the replay must cost what was recorded, within 5 %, or the quantity
    that is off is named. What is learnt on the earlier windows is judged on the held-out ones against what decides now.
    A scorer that the gate lets pass is the fleet's champion; a setting of the rule is written for you to set. A round
    that was stopped goes on with the same command.
    """
    if origin is not None and (ledger is not None or export is not None):
        raise BadInput("--from", str(origin), "give it alone, without --ledger or --export")
    if export is not None:
        _export(fleet, ledger, days, idle, models_dir, export)
        return
    source = Source(fleet, ledger, origin, world, days, idle)
    if check:
        _check(_learner(source, models_dir, None), workers, as_json)
        return
    from agent.settings.location import models_location
    from trainer.learning.state import locked, set_aside

    folder = out or OUT / fleet
    # What comes from elsewhere has a champion of its own, which must not stand in for the one in use here.
    usual = folder.with_name(f"{folder.name}-models") if origin is not None else models_location(os.environ)
    where = Where(folder, models_dir or usual, key_file, try_only)
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    with locked(where.models_dir, fleet, now):
        before = set_aside(where.out)
        if before is not None:
            typer.echo(f"the last round is over, it lies in {before}: this is a new one", err=True)
        learner = _learner(source, where.models_dir, where.out)
        _round(learner, where, now, cpu_minutes * MINUTE_S, tuple(setting or ()), start, as_json)


@dataclass(frozen=True, slots=True)
class Source:
    """The fleet, where its record comes from, and what the ledger does not know of it."""

    fleet: str
    ledger: str | None
    origin: Path | None
    world: str | None
    days: float
    idle: float | None


OUT = Path("runs/learn")


@dataclass(frozen=True, slots=True)
class Where:
    """Where a round lies and what it may change."""

    out: Path
    models_dir: Path
    key_file: Path | None
    try_only: bool


def _check(learner: Learner, workers: int, as_json: bool) -> None:
    from trainer.kit.jobs import Pool
    from trainer.learning.fidelity import called, check_fidelity

    windows = _windows(learner)
    with Pool(called, workers) as pool:
        found = check_fidelity(
            learner.loop,
            learner.config,
            windows.stretches,
            windows.replayed,
            spread=lambda work, items: pool.run([(work, item) for item in items]),
        )
    if as_json:
        print_json(_as_data(learner, windows, found))
    else:
        show(_lines(learner, windows, found))
    if not found.holds:
        raise typer.Exit(NOT_TRUE)


def _windows(learner: Learner) -> Windows:
    from trainer.learning.windows import TooLittle, windows_of

    try:
        return windows_of(learner.recorded)
    except TooLittle as end:
        typer.echo(str(end), err=True)
        raise typer.Exit(TOO_LITTLE) from None


def _round(
    learner: Learner, where: Where, now: str, cpu_s: float, settings: tuple[str, ...], start: str, as_json: bool
) -> None:
    from agent.autoscaling.policies.learned_models import ModelShelf
    from agent.models.directory import ModelsDirectory, read_key
    from agent.settings.location import promotion_key_location
    from trainer.autoscaling.scorer_tuning import FINE
    from trainer.kit.fields import changes_of, pairs_of
    from trainer.learning.round import Round, RoundSettings
    from trainer.learning.stages import BudgetUsed
    from trainer.learning.state import opened, record_digest

    recipe = replace(FINE, **changes_of("--set", type(FINE), pairs_of("--set", settings)))
    plan = RoundSettings(cpu_s=cpu_s, recipe=recipe, start=start)
    directory = ModelsDirectory(where.models_dir, read_key(where.key_file) or promotion_key_location(os.environ))
    windows = _windows(learner)
    facts = {"fleet": learner.fleet, "world": repr(learner.config), "idle_s": learner.loop.idle_s}
    facts |= {"record": record_digest(where.out), **plan.facts}
    state = opened(where.out, facts)
    round_ = Round(
        learner,
        windows,
        state,
        plan,
        directory,
        ModelShelf(where.models_dir),
        now,
        where.try_only,
        tell=lambda line: typer.echo(line, err=True),
    )
    try:
        stages = round_.go_on()
    except BudgetUsed as end:
        typer.echo(f"{end} ({where.out})", err=True)
        raise typer.Exit(BUDGET_USED) from None
    if as_json:
        print_json({"directory": str(where.out), "cpu_s": state.cpu_s, **stages})
    else:
        show(_round_lines(round_))
    if not stages["fidelity"]["holds"]:
        raise typer.Exit(NOT_TRUE)
    if stages["gate"]["passed"] is False:
        raise typer.Exit(REFUSED)


def _round_lines(round_: Round) -> list[str]:
    stages = round_.state.stages
    lines = [stages["fidelity"]["sentence"]]
    if not stages["fidelity"]["holds"]:
        return lines
    rows: list[tuple[object, ...]] = [("on the held-out windows", "cost of now", "95 %", "sure")]
    for name, found in stages["judge"]["against_now"].items():
        r = found["relative"]
        span, sure = f"{r['low']:+.1%} to {r['high']:+.1%}", f"{found['probability_lower']:.1%}"
        rows.append((name, f"{r['mean']:+.1%}", span, sure))
    gate, folder = stages["gate"], round_.state.folder
    lines += [*columns(rows), f"the rule's setting: {folder / 'rule.env'}"]
    if gate["promoted"]:
        lines.append(f"the gate: passed, {stages['scorer']['model']} is the champion of {round_.learner.fleet} now")
    elif gate["passed"]:
        lines.append("the gate: passed; nothing is changed (--try)")
    else:
        lines += ["the gate: what decides now stays", *(f"  {reason}" for reason in gate["reasons"])]
    return [*lines, f"report: {folder / 'report.html'}"]


def _learner(source: Source, models_dir: Path | None, folder: Path | None) -> Learner:
    """Return the fleet; folder: of a round, which keeps the record that it began with."""
    from agent.autoscaling.policies.learned_models import ModelShelf
    from agent.settings.location import ledger_location, models_location
    from trainer.learning.minutes import read_record
    from trainer.learning.state import kept_record
    from trainer.learning.subject import idle_s_of, learner_of
    from trainer.learning.transfer import place_models, read_export

    idle = source.idle
    place = models_dir or models_location(os.environ)
    if source.origin is not None:
        found = read_export(source.origin)
        idle = found.idle_s if idle is None else idle
        if folder is not None:
            place_models(found, place)
        recorded = kept_record(folder, lambda: found.recorded)
    else:
        url = source.ledger or ledger_location(os.environ)
        recorded = kept_record(folder, lambda: read_record(url, source.fleet, source.days))
    if recorded.fleet.name != source.fleet:
        option, given = ("--from", source.origin) if source.origin is not None else ("--out", folder)
        raise BadInput(option, str(given), f"it is of fleet {recorded.fleet.name}, not of {source.fleet}")
    return learner_of(recorded, source.world, ModelShelf(place), idle_s_of(source.fleet, idle, os.environ))


def _export(
    fleet: str, ledger: str | None, days: float, idle: float | None, models_dir: Path | None, path: Path
) -> None:
    from agent.models.directory import ModelsDirectory
    from agent.settings.location import ledger_location, models_location
    from trainer.learning.minutes import read_record
    from trainer.learning.subject import idle_s_of
    from trainer.learning.transfer import export_of, write_export

    recorded = read_record(ledger or ledger_location(os.environ), fleet, days)
    directory = ModelsDirectory(models_dir or models_location(os.environ))
    found = export_of(recorded, idle_s_of(fleet, idle, os.environ), directory)
    write_export(found, path)
    minutes, models = len(recorded.minutes), sum(name.endswith(".onnx") for name in found.models)
    show([f"{path}: {minutes} minutes of fleet {fleet}, {models} models"])


def _as_data(learner: Learner, windows: Windows, found: Fidelity) -> dict[str, Any]:
    each = [asdict(one) | {"off": one.off} for one in found.windows]
    return {
        "fleet": learner.fleet,
        "world": learner.world,
        "policies": dict(learner.recorded.policies),
        "left_out": learner.recorded.left_out,
        "window_hours": windows.window_s / HOUR_S,
        "earlier": len(windows.earlier),
        "held_out": len(windows.held_out),
        "fidelity": {**asdict(found), "windows": each, "off": found.off, "holds": found.holds, "named": found.named},
        "sentence": found.sentence,
    }


def _lines(learner: Learner, windows: Windows, found: Fidelity) -> list[str]:
    rows: list[tuple[object, ...]] = [("window", "hours", "recorded", "replayed", "")]
    rows += [
        (w.name, f"{w.hours:.1f}", f"{w.recorded:.4f} $", f"{w.replayed:.4f} $", f"{w.off:+.1%}") for w in found.windows
    ]
    left_out = [f"left out, {why}: {count} minutes" for why, count in learner.recorded.left_out.items()]
    return [
        f"fleet {learner.fleet}: {len(windows.earlier)} windows of {windows.window_s / HOUR_S:.3g} h to learn on, "
        f"{len(windows.held_out)} later ones held out; world {learner.world}",
        *left_out,
        *columns(rows),
        found.sentence,
    ]
