"""`trimtab learn` for every decision: the lengths of a round, a probation and a watch, and the actions after them.

Models of pools and clusters must keep a promise: `PromiseLearning`.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from agent.commands.options import LedgerOption
from domain.errors import BadInput
from domain.units import MINUTE_S
from trainer.commands.endings import OUT, REFUSED, ROLLED_BACK, TOO_LITTLE, End, end_of_promise, with_status
from trainer.commands.options import FOLDER, AtOption, Bounds, TryOption
from trainer.commands.verb import Answer, ModelsVerb

if TYPE_CHECKING:
    from agent.models.directory import Champion, Probationer, Then
    from domain.subject import Subject
    from trainer.learning.round import Round
    from trainer.learning.transfer import Export
    from trainer.learning.trial import Inspection, ProbationResult
    from trainer.promotion.gate import Term


WAITS_FOR_WATCH_S = 10.0
"""How long a round waits for the hourly watch to end."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The lengths of a round, a probation and a watch, and the action after a good probation."""

    cpu_s: float
    probation_hours: float
    then: Then
    watch_hours: float

    def term(self, since: float) -> Term | None:
        """Return the probation from `since` on, epoch seconds; None where a model decides at once."""
        from trainer.promotion.gate import Term

        return Term(since, self.probation_hours, self.then) if self.probation_hours else None


@dataclass(frozen=True, kw_only=True)
class Learning(ModelsVerb):
    """A call for one subject: its models, the folder of its round, and the permission to change."""

    DECISION: ClassVar[str]

    name: str
    ledger: LedgerOption = None
    out: Annotated[Path | None, "DIR", "Folder of the round; else runs/learn/DECISION-SUBJECT.", FOLDER] = None
    cpu_minutes: Annotated[
        float | None, "MINUTES", "Time of a processor, over all resumptions; else of the settings.", Bounds(min=0.01)
    ] = None
    probation_hours: Annotated[
        float | None,
        "HOURS",
        "Shadow period of a challenger before it may decide, 0: none; else of the settings.",
        Bounds(min=0.0),
    ] = None
    then: Annotated[
        str | None, "promote|approve|nothing", "Action after a probation that held; else of the settings."
    ] = None
    watch_hours: Annotated[
        float | None, "HOURS", "How long a promotion is watched, 0: not; else of the settings.", Bounds(min=0.0)
    ] = None
    watch_only: Annotated[bool, "--watch", "Look after the last promotion and probation, and begin no round."] = False
    try_only: TryOption = False
    at: AtOption = None
    export: Annotated[Path | None, "FILE", "Only write the input of a round on another machine."] = None
    origin: Annotated[Path | None, "--from", "FILE|DIR", "Learn from such a file in place of a ledger."] = None

    def case(self) -> Inspection:
        """Return the case for a look at the models."""
        raise NotImplementedError

    def write_export(self, path: Path) -> Answer:
        """Write the input of a round on another machine."""
        raise NotImplementedError

    def round(self) -> End:
        """Do a new round, or resume a stopped one."""
        raise NotImplementedError

    def directory(self) -> Path:
        """Return the directory of models; a round on an export has a separate one, whose models decide nothing here."""
        if self.origin is not None and self.models_dir is None:
            return self.folder.with_name(f"{self.folder.name}-models")
        return super().directory()

    @property
    def folder(self) -> Path:
        """Where the round lies."""
        return self.out or OUT / f"{self.DECISION}-{self.name}"

    @property
    def lock(self) -> str:
        """The name under which no other call learns."""
        return f"{self.DECISION}-{self.name}"

    @cached_property
    def subject(self) -> Subject:
        """The fleet, pool or cluster."""
        from domain.subject import Subject

        return Subject(self.DECISION, self.name)

    @cached_property
    def now_s(self) -> float:
        """Epoch seconds."""
        return time.time() if self.at is None else self.at

    @property
    def now(self) -> str:
        """Now, as the models directory writes it."""
        from agent.models.directory import moment_text

        return moment_text(self.now_s)

    @property
    def source(self) -> str:
        """The ledger."""
        from agent.settings.location import ledger_location

        return self.ledger or ledger_location(os.environ)

    @cached_property
    def terms(self) -> Terms:
        """The options, else the settings."""
        from agent.models.directory import Then
        from agent.settings import load_settings

        known = load_settings(os.environ).learning
        for option, hours in (("--cpu-minutes", self.cpu_minutes), ("--probation-hours", self.probation_hours)):
            if hours is not None and not math.isfinite(hours):
                raise BadInput(option, hours, "give a finite number")
        return Terms(
            MINUTE_S * (known.cpu_minutes if self.cpu_minutes is None else self.cpu_minutes),
            known.probation_hours if self.probation_hours is None else self.probation_hours,
            Then(self.then or known.then),
            known.watch_hours if self.watch_hours is None else self.watch_hours,
        )

    @property
    def round_arguments(self) -> dict[str, Any]:
        """The arguments of every round (`trainer.learning.round`)."""
        return {
            "cpu_s": self.terms.cpu_s,
            "directory": self.models,
            "at": self.now,
            "try_only": self.try_only,
            "announce": lambda line: typer.echo(line, err=True),
            "term": self.terms.term(self.now_s),
        }

    def check(self) -> None:
        """Raise BadInput for an option that is wrong."""
        if self.origin is not None and (self.ledger is not None or self.export is not None):
            raise BadInput("--from", str(self.origin), "give it alone, without --ledger or --export")
        _ = self.given

    @cached_property
    def given(self) -> Export | None:
        """The export of --from; BadInput for the export of another subject."""
        from trainer.learning.transfer import read_export

        return None if self.origin is None else read_export(self.origin, self.subject)

    def place_parts(self) -> None:
        """Put the files of an export in their places."""
        from trainer.learning.transfer import place_models, place_parts

        if self.given is not None:
            place_parts(self.given, self.folder)
            place_models(self.given.models, self.models.path)

    def run(self) -> Answer:
        """Look after the models of the last rounds, else do a round, with its lock and its status."""
        from trainer.kit.files import remove_leftovers
        from trainer.learning.state import Busy, locked

        self.check()
        if self.export is not None:
            _make_folder("--export", self.export.parent)
            return self.write_export(self.export)
        _, directory = self.terms, self.models
        _make_folder("--out", self.folder)
        _make_folder("--models-dir", directory.path)

        def work() -> End | None:
            # A model from an export decides nothing there.
            found = None if self.origin is not None else self.looked_after()
            return found if found is not None or self.watch_only else self._new_round()

        why = "nothing is changed"
        try:
            with locked(directory.path, self.lock, self.now, 0.0 if self.watch_only else WAITS_FOR_WATCH_S):
                remove_leftovers(self.folder)
                remove_leftovers(directory.path)
                end = with_status(directory.path, self.subject, self.now_s, work, try_only=self.try_only)
        except Busy as busy:
            if not self.watch_only:
                raise
            # The round that holds the lock looks after them too.
            end, why = None, f"busy, {busy.remedy}"
        if end is None:
            return Answer({"subject": self.name, "changed": False}, [f"{self.subject}: {why}"])
        return Answer(end.data, end.lines, end.status)

    def _new_round(self) -> End:
        """Do a round; a state that cannot continue is put away, and a new round begins."""
        from trainer.learning.state import OutdatedRound, put_away

        try:
            return self.round()
        except OutdatedRound as error:
            line = f"{error}\nthe round is in {put_away(self.folder)}, a new one begins"
            typer.echo(line, err=True)
        return self.round()

    def looked_after(self) -> End | None:
        """Look after a promotion and a probation; None where a new round may begin."""
        from trainer.learning.trial import watched_promotion

        champion = watched_promotion(self.models, self.subject, self.now_s, self.terms.watch_hours)
        end = None if champion is None else self._watched(self.case(), champion)
        one = self.models.probationers().get(self.subject)
        return end if end is not None or one is None else self._on_probation(self.case(), one)

    def _watched(self, case: Inspection, champion: Champion) -> End | None:
        from agent.models.rounds import Ending
        from trainer.learning.trial import take_back, watch, write_watch

        found = watch(case, champion)
        typer.echo(found.sentence, err=True)
        if found.lived is None:
            return None
        page = write_watch(self.folder, case.subject, found)
        if not found.fault:
            return None
        sentence = found.sentence
        if not self.try_only:
            sentence = f"rolled back, {take_back(case, found)}: {sentence}"
        data = {"watch": found.as_data(), "rolled_back": not self.try_only}
        return self.end(End(Ending.ROLLED_BACK, sentence, ROLLED_BACK), data, page)

    def _on_probation(self, case: Inspection, one: Probationer) -> End:
        from trainer.learning.trial import examine, write_probation

        found, act = examine(case, one), not self.try_only
        page = write_probation(self.folder, case.subject, found) if found.replay is not None else None
        end = after_probation(case, found, act=act)
        about = {"status": found.status, "sentence": end.sentence, "changed": act}
        return self.end(end, {"probation": found.as_data() | about}, page)

    def end(self, end: End, data: dict[str, Any], page: Path | None) -> End:
        """Return the end of a watch or a probation with its output."""
        tried = ["nothing is changed (--try)"] if self.try_only else []
        report = [] if page is None else [f"report: {page}"]
        return replace(end, data={"directory": str(self.folder), **data}, lines=[end.sentence, *tried, *report])

    def set_aside(self) -> None:
        """Put a round that is over out of the way."""
        from trainer.learning.state import set_aside

        before = set_aside(self.folder)
        if before is not None:
            typer.echo(f"the last round is over, it lies in {before}: this is a new one", err=True)


def _make_folder(option: str, folder: Path) -> None:
    """Make a folder; OSError with the option and the remedy where that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"{option} is {str(folder)!r}: {error.strerror}: name a folder that can be written") from None


def after_probation(case: Inspection, found: ProbationResult, *, act: bool) -> End:
    """Act on the status of a probation, and return the end of the call; act: else nothing is changed."""
    from agent.models.directory import Then
    from agent.models.rounds import Ending
    from trainer.learning.trial import ProbationStatus

    directory, subject, sentence, then = case.directory, case.subject, found.sentence, found.probationer.then
    held = found.status is ProbationStatus.HELD
    if found.status in (ProbationStatus.BROKEN, ProbationStatus.GIVEN_UP):
        if act:
            directory.end_probation(subject, found.why, case.now)
        return End(Ending.REFUSED, f"{sentence}; its probation is over, the policy in use stays", REFUSED)
    if held and then is Then.PROMOTE:
        if act:
            directory.approve(subject, case.now, case.verify, reason=found.why)
        return End(Ending.PROMOTED, f"{sentence}; it is the champion of {subject.name} now")
    if held and then is Then.APPROVE:
        return End(Ending.PROBATION, f"{sentence}; to use it: trimtab approve {subject}")
    if held:
        if act:
            directory.end_probation(subject, f"{found.why}; nothing follows, as set", case.now)
        return End(Ending.KEPT, f"{sentence}; nothing follows, as set")
    return End(Ending.PROBATION, sentence)


@dataclass(frozen=True, kw_only=True)
class PromiseLearning(Learning):
    """A call for a pool or a cluster."""

    def export_parts(
        self, path: Path, names: tuple[str, ...], keep: Callable[[Path], object], about: Mapping[str, Any]
    ) -> Answer:
        """Write the input of a round elsewhere; exits where too little is recorded.

        names: of the files or folders in which `keep` keeps the parts of the record. about: the policy in use, as data;
        the files that it names by `file` go along.
        """
        from trainer.learning.transfer import Export, champion_files, parts_of, write_export
        from trainer.learning.windows import TooLittle

        with TemporaryDirectory() as place:
            folder = Path(place) / "round"
            try:
                keep(folder)
            except TooLittle as end:
                typer.echo(str(end), err=True)
                raise typer.Exit(TOO_LITTLE) from None
            models = champion_files(self.models, self.subject)
            given = about.get("file")
            if given is not None:
                content = Path(given).read_bytes()
                name = f"{hashlib.sha256(content).hexdigest()}.json"
                models, about = {**models, name: content}, {**about, "file": name}
            write_export(Export(self.subject, about, parts_of(folder, names), models), path)
        line = f"{path}: {self.subject.decision} {self.name}, {len(models)} files of models"
        return Answer({"file": str(path), "models": len(models)}, [line])


def gate_lines(work: Round, passed: str, name: str) -> list[str]:
    """Return the judgement of the gate for a pool or a cluster, and the path of its report. passed: the model."""
    from trainer.learning.round import GateResult

    gate = work.state.result(GateResult)
    if gate.promoted:
        lines = [f"the gate: passed, {passed} is the champion of {name} now"]
    elif gate.on_probation:
        lines = [f"the gate: passed, {passed} is on probation for {name}: it decides nothing yet"]
    elif gate.passed:
        lines = ["the gate: passed; nothing is changed (--try)"]
    else:
        lines = ["the gate: the policy in use stays", *(f"  {reason}" for reason in gate.reasons)]
    return [*lines, f"report: {work.state.folder / 'report.html'}"]


def round_end(work: Round, lines: list[str]) -> End:
    """Return the end of a round of a pool or a cluster whose stages are done."""
    data = {"directory": str(work.state.folder), "cpu_s": work.state.cpu_s, **work.state.stages}
    return replace(end_of_promise(work, work.subject.name), data=data, lines=lines)
