"""`trimtab learn autoscaling`: from what a fleet's ledger recorded to what decides for it."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from agent.commands.options import JsonOption, LedgerOption, print_json, show
from agent.kernel.text import columns
from domain.errors import BadInput
from domain.units import HOUR_S
from trainer.commands.endings import BUDGET_USED, NOT_TRUE, OUT, REFUSED, ROLLED_BACK, TOO_LITTLE, End, with_status
from trainer.commands.learn_options import (
    Asked,
    CpuMinutesOption,
    ExportOption,
    Judged,
    OriginOption,
    ProbationHoursOption,
    ThenOption,
    WatchHoursOption,
    after_probation,
    check_origin,
    models_elsewhere,
    tell,
    terms_of,
)
from trainer.commands.options import AtOption, KeyOption, ModelsDirOption, TryOption, epilog

if TYPE_CHECKING:
    from trainer.learning.fidelity import Fidelity
    from trainer.learning.round import Round, RoundSettings
    from trainer.learning.subject import Learner
    from trainer.learning.watch import Inspection
    from trainer.learning.windows import Windows
    from trainer.promotion.directory import ModelsWriter

EPILOG = epilog(
    """
Exit status:
  1  the gate refused the challenger, or a model on probation did not keep its promise
  2  bad input
  3  the world file does not describe the fleet
  4  too little is recorded
  5  the time of a processor is used up: give more to continue
  6  the fleet cost more than predicted under its new champion: it was rolled back
""",
    calls=(
        "trimtab learn autoscaling web --ledger /var/lib/trimtab/ledger.db",
        "trimtab learn autoscaling web --try --cpu-minutes 30 --out runs/learn/web",
        "trimtab learn autoscaling web --probation-hours 48 --then approve",
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
    models_dir: ModelsDirOption = None,
    check: Annotated[bool, Option("--check", help="Cut windows and check the simulator, no more.")] = False,
    out: Annotated[
        Path | None, Option(metavar="DIR", help="Folder of the round, also to continue it; else runs/learn/FLEET.")
    ] = None,
    cpu_minutes: CpuMinutesOption = None,
    probation_hours: ProbationHoursOption = None,
    then: ThenOption = None,
    watch_hours: WatchHoursOption = None,
    setting: Annotated[
        list[str] | None, Option("--set", metavar="FIELD=VALUE", help="A field of the scorer's recipe; repeatable.")
    ] = None,
    start: Annotated[
        str, Option(metavar="RUN|FILE|release", help="Scorer to start from where the fleet has none.")
    ] = "release",
    export: ExportOption = None,
    origin: OriginOption = None,
    key_file: KeyOption = None,
    try_only: TryOption = False,
    workers: Annotated[int, Option(metavar="N", min=1, help="Processes of --check.")] = 1,
    at: AtOption = None,
    as_json: JsonOption = False,
) -> None:
    """Learn from what a fleet's ledger recorded: tune the queue rule, fine-tune a scorer, judge both, ask the gate.

    The recorded minutes are cut into windows; the latest two fifths are held out. First each is replayed under the
    policy that ran, with the fleet's own limits: the replay must cost what was recorded, within 5 %, or the quantity
    that is off is named. What is learnt on the earlier windows is judged on the held-out ones against what decides now.
    A scorer that the gate lets pass is the fleet's champion, after its probation where there is one; a setting of the
    rule is written for you to set. A round that was stopped goes on with the same command.

    Before a new round, the command looks after what the last ones left: a promotion of the last days is held to what it
    was predicted to cost, and rolled back where it costs more; a model on probation is judged when its hours are over.
    """
    check_origin(origin, ledger, export)
    if export is not None:
        _export(fleet, ledger, days, idle, models_dir, export)
        return
    source = Source(fleet, ledger, origin, world, days, idle)
    if check:
        _check(_learner(source, models_dir, None), workers, as_json)
        return
    from agent.models.directory import moment_text, read_key
    from agent.settings.location import models_location, promotion_key_location
    from domain.subject import AUTOSCALING, Subject
    from trainer.learning.state import locked
    from trainer.promotion.directory import ModelsWriter

    folder = out or OUT / fleet
    usual = models_elsewhere(folder) if origin is not None else models_location(os.environ)
    place, now_s = models_dir or usual, time.time() if at is None else at
    directory = ModelsWriter(place, read_key(key_file) or promotion_key_location(os.environ))
    plan = _plan(Asked(cpu_minutes, probation_hours, then, watch_hours), tuple(setting or ()), start)
    with locked(place, fleet, moment_text(now_s)):
        run = Run(source, folder, directory, plan, now_s, try_only, as_json)
        with_status(
            run.directory.path,
            Subject(AUTOSCALING, fleet),
            run.now_s,
            lambda: _looked_after(run) or _round(run),
            try_only=run.try_only,
        )


@dataclass(frozen=True, slots=True)
class Source:
    """The fleet, where its record comes from, and what the ledger does not know of it."""

    fleet: str
    ledger: str | None
    origin: Path | None
    world: str | None
    days: float
    idle: float | None


@dataclass(frozen=True, slots=True)
class Plan:
    """How a round is done, and how long a promotion is watched."""

    round: RoundSettings
    watch_hours: float


@dataclass(frozen=True, slots=True)
class Run:
    """One call of the command: where it reads, where its round lies, what it may change, and the time."""

    source: Source
    out: Path
    directory: ModelsWriter
    plan: Plan
    now_s: float
    try_only: bool
    as_json: bool


def _plan(asked: Asked, recipe: tuple[str, ...], start: str) -> Plan:
    from trainer.autoscaling.scorer_tuning import FINE
    from trainer.kit.fields import changes_of, pairs_of
    from trainer.learning.round import RoundSettings

    terms = terms_of(asked)
    settings = RoundSettings(
        cpu_s=terms.cpu_s,
        recipe=replace(FINE, **changes_of("--set", type(FINE), pairs_of("--set", recipe))),
        start=start,
        probation_hours=terms.probation_hours,
        then=terms.then,
    )
    return Plan(settings, terms.watch_hours)


def _looked_after(run: Run) -> End | None:
    """Look after a promotion and a probation; None where a new round may begin."""
    if run.source.origin is not None:
        # What was learnt elsewhere decides nothing there.
        return None
    from agent.autoscaling.policies.learned_models import ModelShelf
    from agent.settings.location import ledger_location
    from trainer.learning.stages import Budget, BudgetUsed
    from trainer.learning.subject import idle_s_of
    from trainer.learning.watch import Inspection

    source = run.source
    case = Inspection(
        source.fleet,
        source.ledger or ledger_location(os.environ),
        run.directory,
        ModelShelf(run.directory.path),
        source.world,
        idle_s_of(source.fleet, source.idle, os.environ),
        run.now_s,
        run.plan.round.seeds,
        Budget(run.plan.round.cpu_s).spread,
    )
    try:
        return _watched(run, case) or _on_probation(run, case)
    except BudgetUsed as end:
        return _spent(str(end))


def _watched(run: Run, case: Inspection) -> End | None:
    from agent.models.rounds import Ending
    from trainer.learning.watch import take_back, watch, watched_promotion, write_watch

    champion = watched_promotion(case.directory, case.subject, case.now_s, run.plan.watch_hours)
    if champion is None:
        return None
    found = watch(case, champion)
    typer.echo(found.sentence, err=True)
    if not found.windows:
        return None
    page = write_watch(run.out, case.fleet, found)
    if not found.faults:
        return None
    sentence = found.sentence
    if not run.try_only:
        sentence = f"rolled back, {take_back(case, found)}: {sentence}"
    _tell(run, {"watch": asdict(found) | {"faults": found.faults}, "rolled_back": not run.try_only}, sentence, page)
    return End(Ending.ROLLED_BACK, sentence, ROLLED_BACK)


def _on_probation(run: Run, case: Inspection) -> End | None:
    """Judge a model on probation, and do what follows from it; None where there is none."""
    from agent.models.file import load_model
    from trainer.learning.probation import examine, write_probation

    one = case.directory.probationers().get(case.subject)
    if one is None:
        return None
    found = examine(case, one, run.plan.round.limits)
    page = write_probation(run.out, case.fleet, found) if found.divergence is not None else None
    judged, act = Judged(one, found.status, found.why, found.sentence), not run.try_only
    end = after_probation(case.directory, case.subject, judged, case.now, load_model, act=act)
    about = {"status": found.status, "sentence": end.sentence, "changed": act}
    _tell(run, {"probation": asdict(found) | about}, end.sentence, page)
    return end


def _tell(run: Run, data: dict[str, Any], sentence: str, page: Path | None) -> None:
    tell(run.out, data, sentence, page, try_only=run.try_only, as_json=run.as_json)


def _spent(sentence: str) -> End:
    from agent.models.rounds import Ending

    typer.echo(sentence, err=True)
    return End(Ending.BUDGET, sentence, BUDGET_USED)


def _check(learner: Learner, workers: int, as_json: bool) -> None:
    from trainer.kit.jobs import Pool
    from trainer.learning.fidelity import called, check_fidelity
    from trainer.learning.windows import TooLittle, windows_of

    try:
        windows = windows_of(learner.recorded)
    except TooLittle as end:
        typer.echo(str(end), err=True)
        raise typer.Exit(TOO_LITTLE) from None
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


def _round(run: Run) -> End:
    """Do a new round, or go on with the one that was stopped."""
    from agent.autoscaling.policies.learned_models import ModelShelf
    from agent.models.directory import moment_text
    from agent.models.rounds import Ending
    from trainer.learning.round import Round
    from trainer.learning.stages import BudgetUsed
    from trainer.learning.state import opened, record_digest, set_aside
    from trainer.learning.windows import TooLittle, windows_of

    before = set_aside(run.out)
    if before is not None:
        typer.echo(f"the last round is over, it lies in {before}: this is a new one", err=True)
    learner = _learner(run.source, run.directory.path, run.out)
    try:
        windows = windows_of(learner.recorded)
    except TooLittle as end:
        typer.echo(str(end), err=True)
        return End(Ending.TOO_LITTLE, str(end), TOO_LITTLE)
    plan = run.plan.round
    facts = {"fleet": learner.fleet, "world": repr(learner.config), "idle_s": learner.loop.idle_s}
    facts |= {"record": record_digest(run.out), **plan.facts}
    state = opened(run.out, facts)
    round_ = Round(
        learner,
        windows,
        state,
        plan,
        run.directory,
        ModelShelf(run.directory.path),
        moment_text(run.now_s),
        run.try_only,
        tell=lambda line: typer.echo(line, err=True),
    )
    try:
        stages = round_.go_on()
    except BudgetUsed as end:
        return replace(_spent(f"{end} ({run.out})"), cpu_s=state.cpu_s)
    lines = _round_lines(round_)
    if run.as_json:
        print_json({"directory": str(run.out), "cpu_s": state.cpu_s, **stages})
    else:
        show(lines)
    if not stages["fidelity"]["holds"]:
        return End(Ending.NOT_TRUE, lines[0], NOT_TRUE, state.cpu_s)
    gate, sentence = stages["gate"], _gate_sentence(round_)
    if gate["passed"] is False:
        return End(Ending.REFUSED, "; ".join([sentence, *gate["reasons"]]), REFUSED, state.cpu_s)
    if gate["promoted"]:
        return End(Ending.PROMOTED, sentence, cpu_s=state.cpu_s)
    outcome = Ending.PROBATION if gate["on_probation"] else Ending.KEPT
    return End(outcome, "; ".join([sentence, *gate["reasons"]]), cpu_s=state.cpu_s)


def _gate_sentence(round_: Round) -> str:
    gate, stages = round_.state.stages["gate"], round_.state.stages
    if gate["promoted"]:
        return f"the gate: passed, {stages['scorer']['model']} is the champion of {round_.learner.fleet} now"
    if gate["on_probation"]:
        hours = round_.settings.probation_hours
        return f"the gate: passed, {stages['scorer']['model']} is on probation for {hours:g} h"
    return "the gate: passed; nothing is changed (--try)" if gate["passed"] else "the gate: the policy in use stays"


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
    lines += [_gate_sentence(round_), *(f"  {reason}" for reason in gate["reasons"])]
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
            place_models(found.models, place)
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
    from agent.settings.location import ledger_location, models_location
    from trainer.learning.minutes import read_record
    from trainer.learning.subject import idle_s_of
    from trainer.learning.transfer import export_of, write_export
    from trainer.promotion.directory import ModelsWriter

    recorded = read_record(ledger or ledger_location(os.environ), fleet, days)
    directory = ModelsWriter(models_dir or models_location(os.environ))
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
