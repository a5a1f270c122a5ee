"""`trimtab learn all`: a round for every configured subject in turn, as the timer calls it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent.commands.options import LedgerOption
from agent.kernel.text import columns
from domain.errors import BadInput
from domain.units import MINUTE_S
from trainer.commands.endings import (
    BUDGET_USED,
    NOT_TRUE,
    OUT,
    ROLLED_BACK,
    STATUSES_OF_FAULTS,
    TOO_LITTLE,
    statuses_of_faults,
)
from trainer.commands.options import CHECKED_FOLDER, Bounds, epilog
from trainer.commands.verb import Answer, ParallelVerb, row_of

if TYPE_CHECKING:
    from agent.settings import Settings
    from domain.subject import Subject

NEEDS_A_LOOK = 1
PATIENCE_S, PATIENCE_PER_CPU_S = 600.0, 12.0
"""A call is ended after so long, and so many seconds for each second of its budget: it shares its processor."""
WATCH_PATIENCE_S = 2700.0
"""A watch is ended after so long: the next one is due, also for the other subjects."""
LINES_KEPT = 40
NOTHING_WATCHED = "no promotion or probation is to be looked after"
END_WITH_CALLER = "from trainer.kit.jobs import end_with_input; end_with_input()"
"""A round whose caller was killed must not run on: the caller's subject is begun again on another worker."""
PROGRAM = (sys.executable, "-c", f"{END_WITH_CALLER}; from agent.commands.main import app; app()")


@dataclass(frozen=True, slots=True)
class Ended:
    """How the call for one subject ended: outcome as in its status, sentence, exit status, None where it was ended."""

    decision: str
    subject: str
    outcome: str
    sentence: str
    status: int | None

    @property
    def needs_a_look(self) -> bool:
        """Whether a person should look into it: what judged to its end, or goes on the next time, needs none."""
        from agent.models.rounds import GOOD_ENDINGS, Ending

        return self.outcome not in {*GOOD_ENDINGS, Ending.TOO_LITTLE, Ending.BUDGET}


@dataclass(frozen=True, kw_only=True)
class LearnAll(ParallelVerb):
    """Do a round of learning for every subject of the settings.

    Each has a process and a budget: one that fails, hangs or runs out of memory does not stop the next. The outcome of
    each is written to the directory of models, where the agent reads it. With --workers or --ray several run at once;
    on a Ray cluster every machine needs the settings, the ledger, the directory of models and --out.
    """

    EPILOG = epilog(
        f"""
Exit status:
  1  a round failed, its simulator was not true, or a promotion was rolled back: see the table
  2  bad input
{STATUSES_OF_FAULTS}""",
        calls=("trimtab learn all", "trimtab learn all --cpu-minutes 30 --out /var/lib/trimtab-learn"),
    )

    WITHOUT = ("resume", "plan")
    """Each round has a budget, and continues from its folder."""
    ledger: LedgerOption = None
    models_dir: Annotated[Path | None, "DIR", "Directory of models; else that of the settings."] = None
    out: Annotated[Path, "DIR", "Folder of the rounds, DIR/DECISION/SUBJECT.", CHECKED_FOLDER] = OUT
    cpu_minutes: Annotated[
        float | None, "MINUTES", "Budget of each subject; else of the settings.", Bounds(min=0.01)
    ] = None

    watch_only: Annotated[bool, "--watch", "Look after promotions and probations, and begin no round."] = False

    def statuses(self) -> AbstractContextManager[None]:
        """Return the context in which faults of the ledger and of the disk have exit statuses."""
        return statuses_of_faults()

    def run(self) -> Answer:
        """Call `learn` for each subject."""
        from agent.models.rounds import Ending
        from agent.settings import load_settings
        from trainer.kit.jobs import Pool, Workers

        settings = load_settings(os.environ)
        minutes = settings.learning.cpu_minutes if self.cpu_minutes is None else self.cpu_minutes
        subjects = subjects_of(settings, self.ledger)
        if not subjects:
            raise BadInput("settings", "no subject", "configure a fleet: there is nothing to learn for")
        place = self.models_dir or settings.models_directory
        calls: list[tuple[Subject, Callable[[], Ended]]] = []
        found: dict[Subject, Ended] = {}
        for subject in subjects:
            if self.watch_only and not _is_anything_watched(place, subject, settings.learning.watch_hours):
                found[subject] = Ended(subject.decision, subject.name, Ending.KEPT.value, NOTHING_WATCHED, 0)
                continue
            words = [subject.decision, subject.name, "--out", str(self.out / subject.decision / subject.name)]
            words += ["--cpu-minutes", f"{minutes:g}"]
            words += ["--ledger", self.ledger] if self.ledger is not None else []
            words += ["--models-dir", str(self.models_dir)] if self.models_dir is not None else []
            words += ["--watch"] if self.watch_only else []
            round_s = PATIENCE_S + PATIENCE_PER_CPU_S * minutes * MINUTE_S
            patience_s = WATCH_PATIENCE_S if self.watch_only else round_s
            command = [*PROGRAM, "learn", *words]
            call = partial(learn_one, subject, command, place, patience_s, time.time, self.watch_only)
            calls.append((subject, call))
        with Pool(_called, Workers(self.workers, self.ray), name=lambda call: str(call[0])) as pool:
            for at, end in pool.completed(calls):
                found[calls[at][0]] = end
                typer.echo(f"{calls[at][0]}: {end.outcome}", err=True)
        ends = [found[subject] for subject in subjects]
        status = NEEDS_A_LOOK if any(end.needs_a_look for end in ends) else 0
        return Answer([asdict(end) for end in ends], _lines(ends), status)


def _called(call: tuple[Subject, Callable[[], Ended]]) -> Ended:
    return call[1]()


def _is_anything_watched(place: Path, subject: Subject, watch_hours: float) -> bool:
    """Return whether a promotion or a probation of a subject is to be looked after; also where that cannot be read."""
    from trainer.learning.trial import watched_promotion
    from trainer.promotion.directory import ModelsWriter

    models = ModelsWriter(place)
    try:
        champion = watched_promotion(models, subject, time.time(), watch_hours)
        return champion is not None or subject in models.probationers()
    except BadInput:
        # The call for the subject names the fault.
        return True


def subjects_of(settings: Settings, ledger: str | None) -> list[Subject]:
    """Return the subjects of the settings for which there is a round, in the order of the parts and by name.

    Where fleets are found by their tags, those that the ledger knows; LedgerUnavailable where it cannot be read then.
    """
    from agent.kernel.parts import kinds
    from agent.kernel.store import DecisionStore
    from agent.ledger import Ledger
    from domain.subject import Subject

    found = []
    for kind in kinds():
        if not kind.configured_in or row_of("learn", kind.name) is None:
            continue
        names = sorted(getattr(settings, kind.configured_in))
        if not names and settings.discovery.enabled and kind.subject_word == "fleet":
            url = settings.ledger_url.get_secret_value()
            if ledger is not None:
                url = ledger if "://" in ledger else f"sqlite:///{Path(ledger).absolute()}"
            with Ledger.open(url, read_only=True) as book:
                names = list(DecisionStore(book.database).subjects(kind.name))
        found += [Subject(kind.name, name) for name in names]
    return found


def learn_one(
    subject: Subject,
    command: Sequence[str],
    models_dir: Path,
    patience_s: float,
    now: Callable[[], float],
    watch_only: bool = False,
) -> Ended:
    """Run a round in a process of its own and return how it ended; its words go on to standard error.

    A process that ends without leaving a status of its own gets one by its exit status: but for those that the verbs
    agree on, it failed. now: epoch seconds. patience_s: of wall time, after which the process is ended. watch_only: a
    call that changed nothing leaves the status of the last round.
    """
    from agent.models.rounds import Ending, read_rounds
    from trainer.promotion.directory import write_round

    typer.echo(f"{subject}: begins", err=True)
    before = read_rounds(models_dir, subject.decision)[0].get(subject.name)
    status, last = _run(command, patience_s)
    after = read_rounds(models_dir, subject.decision)[0].get(subject.name)
    if after is not None and after != before:
        return Ended(subject.decision, subject.name, after.outcome.value, after.sentence, status)
    if watch_only and status == 0:
        return Ended(subject.decision, subject.name, Ending.KEPT.value, last, status)
    # A refusal of the gate has the exit status of an error: only a status that was left can tell them apart.
    known = {0: Ending.KEPT, NOT_TRUE: Ending.NOT_TRUE, TOO_LITTLE: Ending.TOO_LITTLE, BUDGET_USED: Ending.BUDGET}
    known[ROLLED_BACK] = Ending.ROLLED_BACK
    ending = Ending.FAILED if status is None else known.get(status, Ending.FAILED)
    sentence = f"it was ended after {patience_s:.0f} s" if status is None else f"it ended with exit status {status}"
    sentence += f": {last}" if last else ""
    try:
        write_round(models_dir, subject, ending, sentence, now())
    except OSError as error:
        sentence += f" (and {models_dir} takes no file: {error.strerror})"
    return Ended(subject.decision, subject.name, ending.value, sentence, status)


def _run(command: Sequence[str], patience_s: float) -> tuple[int | None, str]:
    """Return the exit status, None of one that was ended, and the last line that it wrote."""
    lines: deque[str] = deque(maxlen=LINES_KEPT)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(patience_s, end)
        timer.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line.strip())
                typer.echo(line.rstrip("\n"), err=True)
            process.wait()
        except BaseException:
            # Stopped by the timer's unit: the round ends with it, and goes on the next time.
            process.kill()
            raise
        finally:
            timer.cancel()
    last = next((line for line in reversed(lines) if line), "")
    return None if late.is_set() else process.returncode, last


def _lines(ends: Sequence[Ended]) -> list[str]:
    rows: list[tuple[object, ...]] = [("subject", "", "ended", "")]
    rows += [(end.subject, end.decision, end.outcome, end.sentence) for end in ends]
    failed: list[Any] = [f"{end.decision} {end.subject}" for end in ends if end.needs_a_look]
    return [*columns(rows), *([f"look into: {', '.join(failed)}"] if failed else [])]
