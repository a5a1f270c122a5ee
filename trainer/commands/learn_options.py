"""What `trimtab learn` shares for every decision: options, how long a probation and a watch are, and what follows them.

Pools and clusters go one road, on which what is learnt must keep a promise: `learn_promise`.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from agent.commands.options import print_json, show
from domain.errors import BadInput
from domain.units import MINUTE_S
from trainer.commands.endings import OUT, REFUSED, ROLLED_BACK, TOO_LITTLE, End, end_of_promise, with_status

if TYPE_CHECKING:
    from agent.models.directory import Probationer, Then
    from domain.subject import Subject
    from trainer.learning.probation import ProbationStatus
    from trainer.learning.promise import Inspected
    from trainer.learning.state import State
    from trainer.learning.transfer import PartsExport
    from trainer.promotion.directory import ModelsWriter, Verify
    from trainer.promotion.gate import Term

CpuMinutesOption = Annotated[
    float | None,
    Option(metavar="MINUTES", min=0.01, help="Time of a processor, over all resumptions; else of the settings."),
]
ProbationHoursOption = Annotated[
    float | None,
    Option(
        metavar="HOURS",
        min=0.0,
        help="Shadow period of a challenger before it may decide, 0: none; else of the settings.",
    ),
]
ThenOption = Annotated[
    str | None,
    Option(metavar="promote|approve|nothing", help="Action after a probation that held; else of the settings."),
]
WatchHoursOption = Annotated[
    float | None,
    Option(metavar="HOURS", min=0.0, help="How long a promotion is watched, 0: not; else of the settings."),
]
RoundFolderOption = Annotated[
    Path | None, Option(metavar="DIR", help="Folder of the round; else runs/learn/DECISION-SUBJECT.")
]
ExportOption = Annotated[
    Path | None, Option("--export", metavar="FILE", help="Only write the input of a round on another machine.")
]
OriginOption = Annotated[
    Path | None, Option("--from", metavar="FILE|DIR", help="Learn from such a file in place of a ledger.")
]


def check_origin(origin: Path | None, ledger: str | None, export: Path | None) -> None:
    """Raise BadInput where a call is to learn from a file and from something else as well."""
    if origin is not None and (ledger is not None or export is not None):
        raise BadInput("--from", str(origin), "give it alone, without --ledger or --export")


def models_elsewhere(out: Path) -> Path:
    """Return the models directory of a round on what comes from elsewhere, which has a champion of its own.

    That must not stand in for the one in use here.
    """
    return out.with_name(f"{out.name}-models")


@dataclass(frozen=True, slots=True)
class Asked:
    """What the options say of budget, probation and watch; None: the settings have it."""

    cpu_minutes: float | None
    probation_hours: float | None
    then: str | None
    watch_hours: float | None


@dataclass(frozen=True, slots=True)
class Terms:
    """How long a round, a probation and a watch are, and what follows a probation that held."""

    cpu_s: float
    probation_hours: float
    then: Then
    watch_hours: float

    def term(self, since: float) -> Term | None:
        """Return the probation of what passes now, epoch seconds; None where it decides at once."""
        from trainer.promotion.gate import Term

        return Term(since, self.probation_hours, self.then) if self.probation_hours > 0.0 else None


def terms_of(asked: Asked) -> Terms:
    """Return what was asked for, else what the settings have; BadInput for an unknown `--then`."""
    from agent.models.directory import Then
    from agent.settings import load_settings

    known = load_settings(os.environ).learning
    then = asked.then or str(known.then)
    if then not in [*Then]:
        raise BadInput("--then", then, f"choose one of {', '.join(Then)}")
    return Terms(
        MINUTE_S * (known.cpu_minutes if asked.cpu_minutes is None else asked.cpu_minutes),
        known.probation_hours if asked.probation_hours is None else asked.probation_hours,
        Then(then),
        known.watch_hours if asked.watch_hours is None else asked.watch_hours,
    )


@dataclass(frozen=True, slots=True)
class Judged:
    """The status of a probation, what was found of it, and a sentence for people."""

    one: Probationer
    status: ProbationStatus
    why: str
    sentence: str


def after_probation(
    directory: ModelsWriter, subject: Subject, found: Judged, now: str, verify: Verify, *, act: bool
) -> End:
    """Do what follows from how a probation stands, and return the end of the call; act: else nothing is changed."""
    from agent.models.directory import Then
    from agent.models.rounds import Ending
    from trainer.learning.probation import ProbationStatus

    held, sentence, then = found.status is ProbationStatus.HELD, found.sentence, found.one.then
    if found.status in (ProbationStatus.BROKEN, ProbationStatus.GIVEN_UP):
        if act:
            directory.end_probation(subject, found.why, now)
        return End(Ending.REFUSED, f"{sentence}; its probation is over, the policy in use stays", REFUSED)
    if held and then is Then.PROMOTE:
        if act:
            directory.approve(subject, now, verify, reason=found.why)
        return End(Ending.PROMOTED, f"{sentence}; it is the champion of {subject.name} now")
    if held and then is Then.APPROVE:
        return End(Ending.PROBATION, f"{sentence}; to use it: trimtab approve {subject}")
    if held:
        if act:
            directory.end_probation(subject, f"{found.why}; nothing follows, as set", now)
        return End(Ending.KEPT, f"{sentence}; nothing follows, as set")
    return End(Ending.PROBATION, sentence)


def tell(out: Path, data: dict[str, Any], sentence: str, page: Path | None, *, try_only: bool, as_json: bool) -> None:
    """Print what came of a watch or a probation."""
    if as_json:
        print_json({"directory": str(out), **data})
    else:
        tried = ["nothing is changed (--try)"] if try_only else []
        show([sentence, *tried, *([] if page is None else [f"report: {page}"])])


@dataclass(frozen=True, slots=True)
class PromiseRun:
    """One call for a pool or a cluster: its models, its folder, and what the call may change.

    now_s: epoch seconds. origin: the export to learn from, None for a ledger.
    """

    subject: Subject
    directory: ModelsWriter
    out: Path
    terms: Terms
    now_s: float
    try_only: bool
    as_json: bool
    origin: PartsExport | None = None


def promise_run(
    subject: Subject,
    asked: Asked,
    place: Path | None,
    usual: Path,
    out: Path | None,
    key_file: Path | None,
    at: float | None,
    *,
    try_only: bool,
    as_json: bool,
    origin: Path | None = None,
) -> PromiseRun:
    """Return a call as its options have it, with the files of its origin where it has one.

    place: the models directory that is asked for. usual: the one of the settings. Raises BadInput for what the options
    contradict, and for an origin that is no export of the subject.
    """
    from agent.models.directory import read_key
    from agent.settings.location import promotion_key_location
    from trainer.learning.transfer import read_parts
    from trainer.promotion.directory import ModelsWriter

    folder, now_s = out or OUT / f"{subject.decision}-{subject.name}", time.time() if at is None else at
    found = None if origin is None else read_parts(origin, subject)
    directory = ModelsWriter(
        place or (usual if found is None else models_elsewhere(folder)),
        read_key(key_file) or promotion_key_location(os.environ),
    )
    return PromiseRun(subject, directory, folder, terms_of(asked), now_s, try_only, as_json, found)


def export_parts(
    run: PromiseRun, path: Path, names: tuple[str, ...], keep: Callable[[Path], object], about: Mapping[str, Any]
) -> None:
    """Write what a round elsewhere needs of a pool or a cluster; exits where too little is recorded.

    names: of the files or folders in which `keep` keeps the parts of the record. about: what decides now, as data; the
    files that it names by `file` go along.
    """
    from trainer.learning.transfer import PartsExport, champion_files, parts_of, write_export
    from trainer.learning.windows import TooLittle

    with TemporaryDirectory() as place:
        folder = Path(place) / "round"
        try:
            keep(folder)
        except TooLittle as end:
            typer.echo(str(end), err=True)
            raise typer.Exit(TOO_LITTLE) from None
        models = champion_files(run.directory, run.subject)
        given = about.get("file")
        if given is not None:
            content = Path(given).read_bytes()
            name = f"{hashlib.sha256(content).hexdigest()}.json"
            models, about = {**models, name: content}, {**about, "file": name}
        write_export(PartsExport(run.subject, about, parts_of(folder, names), models), path)
    show([f"{path}: {run.subject.decision} {run.subject.name}, {len(models)} files of models"])


def learn_promise(run: PromiseRun, case: Callable[[], Inspected], work: Callable[[], End]) -> None:
    """Look after a promotion and a probation, else do a round, with its lock and its status; exits with its status.

    case: for the look, asked for where there is something to look after alone. work: the round.
    """
    from agent.models.directory import moment_text
    from trainer.learning.state import locked, set_aside
    from trainer.learning.transfer import place_models, place_parts

    def learnt() -> End:
        # What was learnt elsewhere decides nothing there.
        end = None if run.origin is not None else _looked_after(run, case)
        if end is not None:
            return end
        before = set_aside(run.out)
        if before is not None:
            typer.echo(f"the last round is over, it lies in {before}: this is a new one", err=True)
        if run.origin is not None:
            place_parts(run.origin, run.out)
            place_models(run.origin.models, run.directory.path)
        return work()

    with locked(run.directory.path, f"{run.subject.decision}-{run.subject.name}", moment_text(run.now_s)):
        with_status(run.directory.path, run.subject, run.now_s, learnt, try_only=run.try_only)


def _looked_after(run: PromiseRun, case: Callable[[], Inspected]) -> End | None:
    from trainer.learning.watch import watched_promotion

    hours = run.terms.watch_hours
    if watched_promotion(run.directory, run.subject, run.now_s, hours) is not None:
        end = _watched(run, case())
        if end is not None:
            return end
    one = run.directory.probationers().get(run.subject)
    return None if one is None else _on_probation(run, case(), one)


def _watched(run: PromiseRun, case: Inspected) -> End | None:
    from agent.models.rounds import Ending
    from trainer.learning.promise import take_back, watch, write_watch

    found = watch(case, run.terms.watch_hours)
    if found is None:
        return None
    typer.echo(found.sentence, err=True)
    if found.kept is None:
        return None
    page = write_watch(run.out, case.subject, found)
    if not found.broken:
        return None
    sentence = found.sentence
    if not run.try_only:
        sentence = f"rolled back, {take_back(case, found)}: {sentence}"
    data = {"watch": asdict(found), "rolled_back": not run.try_only}
    tell(run.out, data, sentence, page, try_only=run.try_only, as_json=run.as_json)
    return End(Ending.ROLLED_BACK, sentence, ROLLED_BACK)


def _on_probation(run: PromiseRun, case: Inspected, one: Probationer) -> End:
    from trainer.learning.promise import examine, write_probation

    found, act = examine(case, one), not run.try_only
    page = write_probation(run.out, case.subject, found, case.cost) if found.replay is not None else None
    judged = Judged(one, found.status, found.why, found.sentence)
    end = after_probation(run.directory, case.subject, judged, case.now, case.verify, act=act)
    data = {"probation": asdict(found) | {"sentence": end.sentence, "changed": act}}
    tell(run.out, data, end.sentence, page, try_only=run.try_only, as_json=run.as_json)
    return end


def gate_lines(state: State, passed: str, name: str) -> list[str]:
    """Return what the gate said of a round for a pool or a cluster, and where its report is. passed: what it is of."""
    gate = state.stages["gate"]
    if gate["promoted"]:
        lines = [f"the gate: passed, {passed} is the champion of {name} now"]
    elif gate["on_probation"]:
        lines = [f"the gate: passed, {passed} is on probation for {name}: it decides nothing yet"]
    elif gate["passed"]:
        lines = ["the gate: passed; nothing is changed (--try)"]
    else:
        lines = ["the gate: the policy in use stays", *(f"  {reason}" for reason in gate["reasons"])]
    return [*lines, f"report: {state.folder / 'report.html'}"]


def round_end(state: State, name: str, lines: list[str], *, as_json: bool) -> End:
    """Print a round of a pool or a cluster whose stages are done, and return its end."""
    if as_json:
        print_json({"directory": str(state.folder), "cpu_s": state.cpu_s, **state.stages})
    else:
        show(lines)
    return end_of_promise(state, name)
