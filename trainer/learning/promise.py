"""After a round for a pool or a cluster: the end of a probation, and the watch, where a promise counts.

Both say of units (hours of a pool, requests for more cores of a cluster) how many were bad (hot, refused), and hold
that to the share that is promised with an exact binomial interval (Clopper and Pearson). What is surely beyond the
promise was not kept: a model on probation does not come into use, and a promotion is taken back. Units of one day are
not independent: hot hours come together, so that the interval is too narrow, and a promotion is rather taken back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from agent.models.directory import Champion, Probationer, moment_text
from domain.rules.oversubscription.risk import clopper_pearson_lower, clopper_pearson_upper
from domain.subject import Subject
from domain.units import HOUR_S
from trainer.kit.intervals import Comparison, compare
from trainer.kit.report import Section, chip, document, escape, table
from trainer.learning.probation import LONGEST, PROBATION_FOLDER, ProbationStatus, fault_of, why_undecided
from trainer.learning.report import write_folder
from trainer.learning.watch import WATCH_FOLDER, watched_promotion
from trainer.promotion.directory import ModelsWriter, Verify
from trainer.promotion.gate import Limits

_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Kept:
    """How many of so many units were bad, and the share that the promise allows. words: for people, what was bad."""

    bad: int
    of: int
    allowed: float
    words: str

    @property
    def low(self) -> float:
        """The lower end of the one-sided 95 % interval of the share."""
        return clopper_pearson_lower(self.bad, self.of) if self.of else 0.0

    @property
    def high(self) -> float:
        """The upper end of the other one."""
        return clopper_pearson_upper(self.bad, self.of) if self.of else 1.0

    @property
    def broken(self) -> bool:
        """Whether the promise is surely broken; as many bad hours as break it in its own horizon are enough."""
        return self.bad > 0 and self.low >= self.allowed - _ROUNDING

    @property
    def sentence(self) -> str:
        """What was found, for people."""
        if not self.of:
            return f"no {self.words}"
        share = f"{self.bad / self.of:.2%}, 95 %: {self.low:.2%} to {self.high:.2%}"
        return f"{self.bad} of {self.of} {self.words} ({share}; {self.allowed:.2%} are promised)"


@dataclass(frozen=True, slots=True)
class Replay:
    """What the time of a probation would have been: by window, the policy in use and the challenger, and the promise.

    windows: names. now, challenger: costs, the share of cores that is reserved or stays idle. kept: of the challenger.
    asked, needed: recorded answers of the challenger, and how many there must be. divergence: where they differ, for
    people. too_little: why nothing can be said yet, "" where something can.
    """

    asked: int
    needed: int
    divergence: str
    windows: tuple[str, ...] = ()
    now: tuple[float, ...] = ()
    challenger: tuple[float, ...] = ()
    kept: Kept | None = None
    too_little: str = ""


@dataclass(frozen=True, slots=True)
class Inspected:
    """What a look at the models of a pool or a cluster needs.

    lived: what became of the promise since a promotion, or why that cannot be said. replay: see `Replay`. cost: in a
    word, what `Replay.now` is a share of. now_s: epoch seconds.
    """

    subject: Subject
    directory: ModelsWriter
    verify: Verify
    now_s: float
    cost: str
    lived: Callable[[Champion], Kept | str]
    replay: Callable[[Probationer], Replay]
    limits: Limits = field(default_factory=Limits)

    @property
    def now(self) -> str:
        """Now, as the models directory writes it."""
        return moment_text(self.now_s)


@dataclass(frozen=True, slots=True)
class Watched:
    """What became of a promotion; kept: None where nothing can be said, for the reason in `too_little`."""

    model: str
    since_s: float
    kept: Kept | None
    too_little: str = ""

    @property
    def broken(self) -> bool:
        """Whether it is taken back."""
        return self.kept is not None and self.kept.broken

    @property
    def sentence(self) -> str:
        """What was found, for people."""
        head = f"{self.model[:12]} decides since {moment_text(self.since_s)}"
        found = self.too_little if self.kept is None else self.kept.sentence
        return f"{head}: {found}{', surely more' if self.broken else ''}"


def watch(case: Inspected, hours: float) -> Watched | None:
    """Return what became of a promotion of the last hours, None where there is none to watch; nothing is changed."""
    champion = watched_promotion(case.directory, case.subject, case.now_s, hours)
    if champion is None:
        return None
    assert champion.at_s is not None, "a promotion that is watched has a time"
    found = case.lived(champion)
    if isinstance(found, str):
        return Watched(champion.model, champion.at_s, None, found)
    return Watched(champion.model, champion.at_s, found)


def take_back(case: Inspected, found: Watched) -> str:
    """Roll back to the champion before, and return what decides then, for people.

    Raises BadInput when another one is champion by now, or when the one before would be refused: then nothing changes.
    """
    assert found.kept is not None, "what is taken back was judged"
    reason = f"taken back by the watch: {found.kept.sentence}"
    back = case.directory.rollback(case.now, case.subject, case.verify, reason=reason, of=found.model)
    return f"{back.model[:12]} decides again" if back is not None else "the policy of the settings decides again"


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of a probation. why: for people. comparison: the challenger's cost against that of what decided."""

    probationer: Probationer
    status: ProbationStatus
    why: str
    replay: Replay | None = None
    comparison: Comparison | None = None

    @property
    def sentence(self) -> str:
        """What was found, for people."""
        return f"{self.probationer.model[:12]}, on probation since {moment_text(self.probationer.since)}: {self.why}"


def examine(case: Inspected, one: Probationer) -> Tried:
    """Judge a probation; nothing is changed.

    It must keep the promise on what was recorded, cost no more than `limits.worse` above what decided, and not surely
    more at all. Raises BadInput for a report or a file that is damaged or was tampered with; LedgerUnavailable.
    """
    case.directory.check_probationer(case.subject, one)
    # A file of JSON says nothing of its own content.
    case.directory.read(one.model)
    case.verify(case.directory.file_of(one.model))
    found = Tried(one, ProbationStatus.RUNNING, f"its {one.hours:g} h end at {moment_text(one.until)}")
    champion = case.directory.champion(case.subject)
    now = None if champion is None else champion.model
    if now != one.against:
        why = f"the champion is {now or 'none'} by now, it was compared with {one.against or 'none'}"
        return replace(found, status=ProbationStatus.GIVEN_UP, why=why)
    if case.now_s < one.until:
        return found
    late = case.now_s >= one.since + LONGEST * one.hours * HOUR_S
    replay = case.replay(one)
    found = replace(found, replay=replay)
    why = replay.too_little
    if not why and replay.asked < replay.needed:
        why = f"{replay.asked} of its answers are recorded, at least {replay.needed} are needed"
    if why or replay.kept is None:
        status = ProbationStatus.GIVEN_UP if late else ProbationStatus.WAITING
        return replace(found, status=status, why=why_undecided(why, one, late))
    return judged(found, replay, replay.kept, case)


def judged(found: Tried, replay: Replay, kept: Kept, case: Inspected) -> Tried:
    """Return whether the promise of a probation held that was replayed; see `examine`."""
    comparison = compare(replay.challenger, replay.now)
    r = comparison.relative
    why = f"it has {r.mean:+.1%} ({r.low:+.1%} to {r.high:+.1%}) of the {case.cost}; {kept.sentence}"
    why += f"; {replay.divergence}"
    fault = "the promise is surely broken" if kept.broken else fault_of(comparison, case.limits)
    status = ProbationStatus.BROKEN if fault else ProbationStatus.HELD
    return replace(found, status=status, why=f"{why}: {fault}" if fault else why, comparison=comparison)


def write_watch(folder: Path, subject: Subject, found: Watched) -> Path:
    """Write page and data of the watch into `folder/watch`, each whole or not at all; return the page."""
    body = f"<p>{escape(found.sentence)}.</p>"
    if found.kept is not None:
        kept = found.kept
        rows = [[escape(kept.words), chip(not kept.broken, f"{kept.bad} of {kept.of}"), f"{kept.low:.2%}"]]
        rows[0] += [f"{kept.high:.2%}", f"{kept.allowed:.2%}"]
        body += table(["since the promotion", "", "at least, 95 %", "at most", "promised"], rows)
    facts = {"subject": str(subject), "champion": found.model, "since": moment_text(found.since_s)}
    data: dict[str, Any] = {**asdict(found), "broken": found.broken, "sentence": found.sentence}
    page = document(f"The promotion for {subject}", [Section("promise", "The promise since", body)], facts)
    return write_folder(folder / WATCH_FOLDER, page, data)


def write_probation(folder: Path, subject: Subject, found: Tried, cost: str) -> Path:
    """Write page and data of a probation into `folder/probation`, each whole or not at all; return the page."""
    one, replay = found.probationer, found.replay
    facts = {
        "subject": str(subject),
        "challenger": one.model,
        "champion": one.against or "none: the policy of the settings",
        "since": moment_text(one.since),
        "hours": f"{one.hours:g}",
    }
    held = {ProbationStatus.HELD: True, ProbationStatus.BROKEN: False}.get(found.status)
    body = f"<p>{chip(held, found.status)} {escape(found.why)}.</p>"
    sections = [Section("promise", "Did the promise hold?", body)]
    if replay is not None:
        pairs = zip(replay.windows, replay.now, replay.challenger, strict=True)
        rows = [[escape(name), f"{ours:.2%}", f"{theirs:.2%}"] for name, ours, theirs in pairs]
        words = f"<p>{escape(replay.divergence)}.</p>"
        head = ["window", f"{cost}, the policy in use", f"{cost}, challenger"]
        sections.append(Section("windows", "Windows", words + table(head, rows)))
    page = document(f"The probation for {subject}", sections, facts)
    return write_folder(folder / PROBATION_FOLDER, page, {**asdict(found), "sentence": found.sentence})
