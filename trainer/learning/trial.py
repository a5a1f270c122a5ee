"""After a round: the end of a probation, and the watch over a promotion, for any subject.

An adapter gives the evidence: the time since a promotion (`WatchEvidence`), and a replay of the time of a probation
under the challenger and under the policy in use (`Replay`), as answers that are not carried out cost nothing.

Models of pools and clusters must keep a promise. `Promise` holds counted units (hours of a pool, requests for more
cores of a cluster) to the promised share with an exact binomial interval (Clopper and Pearson). Units of one day are
not independent: hot hours come together, so that the interval is too narrow, and a promotion is rather taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from agent.models.directory import PROMOTED, ROLLED_BACK, Champion, Probationer, moment_text
from domain.rules.oversubscription.risk import clopper_pearson_lower, clopper_pearson_upper
from domain.subject import AUTOSCALING, Subject
from domain.units import HOUR_S
from trainer.kit.intervals import Comparison, compare
from trainer.kit.report import Section, chip, document, escape, table
from trainer.learning.state import PAGE_FILE, write_folder
from trainer.promotion.directory import ModelsWriter, Verify, last_use
from trainer.promotion.gate import Limits

LEAST_SHARE: Final = 0.5
"""Share of a probation in which the challenger's answer must be recorded."""
LONGEST: Final = 2.0
"""A probation that cannot be judged lasts this multiple of its hours at most."""
PROBATION_FOLDER, WATCH_FOLDER = "probation", "watch"
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class WatchEvidence:
    """The time since a promotion. fault: why it is taken back, "" where it is not. sentence: for people.

    data: for the data file. sections: of the page, the sentence precedes the first. facts: for the head of the page.
    is_of_all: whether the fault is that of all promotions since the last rollback, so that all are taken back.
    """

    fault: str
    sentence: str
    data: Mapping[str, Any]
    sections: tuple[Section, ...]
    facts: Mapping[str, str] = field(default_factory=dict)
    is_of_all: bool = False


@dataclass(frozen=True, slots=True)
class Replay:
    """The time of a probation, replayed: costs by window of the policy in use (`now`) and of the challenger.

    too_little: why no judgement is possible yet, "" where one is. why: the result, with {} for the relative cost.
    fault: of the challenger, apart from its cost. data: for the data file. more, sections: HTML of the first section,
    and the other sections of the page.
    """

    now: tuple[float, ...]
    challenger: tuple[float, ...]
    too_little: str
    why: str
    data: Mapping[str, Any]
    sections: tuple[Section, ...]
    fault: str = ""
    more: str = ""


@dataclass(frozen=True, slots=True)
class Promise:
    """Counts of bad and of all units, and the share that the promise allows. words: for people, the bad units."""

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
    def counts(self) -> str:
        """The counts with their interval, for people."""
        if not self.of:
            return f"no {self.words}"
        share = f"{self.bad / self.of:.2%}, 95 %: {self.low:.2%} to {self.high:.2%}"
        return f"{self.bad} of {self.of} {self.words} ({share}; {self.allowed:.2%} are promised)"

    def lived(self) -> WatchEvidence:
        """Return the time since a promotion by its counts."""
        row = [escape(self.words), chip(not self.broken, f"{self.bad} of {self.of}")]
        row += [f"{share:.2%}" for share in (self.low, self.high, self.allowed)]
        rows = table(["since the promotion", "", "at least, 95 %", "at most", "promised"], [row])
        fault, sentence = (self.counts, f"{self.counts}, surely more") if self.broken else ("", self.counts)
        data = {"kept": asdict(self), "broken": self.broken}
        return WatchEvidence(fault, sentence, data, (Section("promise", "The promise since", rows),))


@dataclass(frozen=True, slots=True)
class PromiseReplay:
    """The replay for a model that must keep a promise.

    cost: in a word, of which costs are a share. asked, needed: recorded answers of the challenger, and their least
    number. divergence: the differences, for people. windows: names. kept: of the challenger.
    """

    cost: str
    asked: int
    needed: int
    divergence: str
    windows: tuple[str, ...] = ()
    now: tuple[float, ...] = ()
    challenger: tuple[float, ...] = ()
    kept: Promise | None = None
    unknown: str = ""

    @property
    def too_little(self) -> str:
        """Why no judgement is possible yet, "" where one is."""
        if not self.unknown and self.asked < self.needed:
            return f"{self.asked} of its answers are recorded, at least {self.needed} are needed"
        return self.unknown

    def replay(self) -> Replay:
        """Return it as evidence."""
        pairs = zip(self.windows, self.now, self.challenger, strict=True)
        rows = [[escape(name), f"{ours:.2%}", f"{theirs:.2%}"] for name, ours, theirs in pairs]
        head = ["window", f"{self.cost}, the policy in use", f"{self.cost}, challenger"]
        windows = Section("windows", "Windows", f"<p>{escape(self.divergence)}.</p>{table(head, rows)}")
        counts = "" if self.kept is None else self.kept.counts
        broken = self.kept is not None and self.kept.broken
        return Replay(
            self.now,
            self.challenger,
            self.too_little,
            f"it has {{}} of the {self.cost}; {counts}; {self.divergence}",
            {"replay": asdict(self) | {"too_little": self.too_little}},
            (windows,),
            "the promise is surely broken" if broken else "",
        )


@dataclass(frozen=True, slots=True)
class Inspection:
    """The models of a subject, and the evidence of an adapter. now_s: epoch seconds.

    lived: since a promotion, or why it is not known. replay: of a probation. limits: of the gate.
    """

    subject: Subject
    directory: ModelsWriter
    verify: Verify
    now_s: float
    lived: Callable[[Champion], WatchEvidence | Promise | str]
    replay: Callable[[Probationer], Replay | PromiseReplay]
    limits: Limits = field(default_factory=Limits)

    @property
    def now(self) -> str:
        """Now, as the models directory writes it."""
        return moment_text(self.now_s)


@dataclass(frozen=True, slots=True)
class WatchResult:
    """The result of the watch over a promotion; lived: None where nothing is known, for the reason in `too_little`."""

    model: str
    since_s: float
    lived: WatchEvidence | None
    too_little: str = ""

    @property
    def fault(self) -> str:
        """Why it is taken back, "" where it is not."""
        return "" if self.lived is None else self.lived.fault

    @property
    def sentence(self) -> str:
        """The result, for people."""
        found = self.too_little if self.lived is None else self.lived.sentence
        return f"{self.model[:12]} decides since {moment_text(self.since_s)}: {found}"

    def as_data(self) -> dict[str, Any]:
        """Return it as JSON data."""
        found = {} if self.lived is None else self.lived.data
        about = {"model": self.model, "since_s": self.since_s, **found, "too_little": self.too_little}
        return {**about, "sentence": self.sentence}


def watched_promotion(directory: ModelsWriter, subject: Subject, now_s: float, hours: float) -> Champion | None:
    """Return the subject's own champion if it came into use in the last hours by the gate, else None.

    A fleet's champion that a rollback restored is watched too. One of a pool or a cluster is not: VMs and deployments
    of the model before it are still there, and would count against it. One that a person forced is that person's
    choice, also after a rollback to it, and is not watched. BadInput for a pointer that cannot be read.
    """
    champion = directory.champions().get(subject)
    if champion is None or champion.at_s is None or not now_s - hours * HOUR_S <= champion.at_s <= now_s:
        return None
    history = directory.history(subject)
    if subject.decision != AUTOSCALING and history and history[-1].get("event") == ROLLED_BACK:
        return None
    return champion if last_use(champion.model, history) == PROMOTED else None


def watch(case: Inspection, champion: Champion) -> WatchResult:
    """Return the result of the watch over a promotion; nothing is changed.

    Raises LedgerUnavailable, and BadInput for a world that does not go with the fleet.
    """
    assert champion.at_s is not None, "a promotion that is watched has a time"
    found = case.lived(champion)
    if isinstance(found, str):
        return WatchResult(champion.model, champion.at_s, None, found)
    return WatchResult(champion.model, champion.at_s, found.lived() if isinstance(found, Promise) else found)


def take_back(case: Inspection, found: WatchResult) -> str:
    """Roll back to the champion before, and return the policy that decides then, for people.

    For a fault of all promotions it is the last one that a person forced, else the policy of the settings. Raises
    BadInput when another one is champion by now, when another change of the models is under way, or when the one before
    would be refused: then nothing changes.
    """
    models, reason = case.directory, f"taken back by the watch: {found.fault}"
    if found.lived is not None and found.lived.is_of_all:
        back = models.to_day_0(case.now, case.subject, reason, of=found.model, forced=case.verify)
    else:
        back = models.rollback(case.now, case.subject, case.verify, reason=reason, of=found.model)
    if back is not None:
        return f"{back.model[:12]} decides again"
    of_fleet = case.subject.decision == AUTOSCALING
    return "it is no longer the champion of this fleet" if of_fleet else "the policy of the settings decides again"


class ProbationStatus(StrEnum):
    """The status of a probation.

    running: its hours are not over. waiting: they are, and too little is recorded, or the simulator is not true; it
    continues. held, broken: its promise. given up: it could not be judged in twice its hours, or another one is
    champion.
    """

    RUNNING = "running"
    WAITING = "waiting"
    HELD = "held"
    BROKEN = "broken"
    GIVEN_UP = "given up"


@dataclass(frozen=True, slots=True)
class ProbationResult:
    """The result of a probation. why: for people. comparison: the challenger's cost against the policy in use."""

    probationer: Probationer
    status: ProbationStatus
    why: str
    replay: Replay | None = None
    comparison: Comparison | None = None

    @property
    def sentence(self) -> str:
        """The result, for people."""
        return f"{self.probationer.model[:12]}, on probation since {moment_text(self.probationer.since)}: {self.why}"

    def as_data(self) -> dict[str, Any]:
        """Return it as JSON data."""
        found = {} if self.replay is None else self.replay.data
        compared = None if self.comparison is None else asdict(self.comparison)
        about = {"probationer": asdict(self.probationer), "status": self.status, "why": self.why}
        return {**about, **found, "comparison": compared, "sentence": self.sentence}


def end_of(one: Probationer) -> float:
    """Return the latest end of a probation, epoch seconds."""
    return one.since + LONGEST * one.hours * HOUR_S


def examine(case: Inspection, one: Probationer) -> ProbationResult:
    """Judge a probation; nothing is changed.

    The challenger must keep its promise, cost no more than `limits.worse` above the policy in use, and not surely more
    at all. Raises BadInput for a report or a file that is damaged or was tampered with, and for a world that does not
    go with the fleet; LedgerUnavailable.
    """
    case.directory.check_probationer(case.subject, one)
    case.verify(case.directory.file_of(one.model))
    # A file of JSON does not hold its own digest.
    case.directory.read(one.model)
    found = ProbationResult(one, ProbationStatus.RUNNING, f"its {one.hours:g} h end at {moment_text(one.until)}")
    champion = case.directory.champion(case.subject)
    now = None if champion is None else champion.model
    if now != one.against:
        why = f"the champion is {now or 'none'} by now, it was compared with {one.against or 'none'}"
        return replace(found, status=ProbationStatus.GIVEN_UP, why=why)
    if case.now_s < one.until:
        return found
    replay = case.replay(one)
    return judged(case, one, replay.replay() if isinstance(replay, PromiseReplay) else replay)


def judged(case: Inspection, one: Probationer, played: Replay) -> ProbationResult:
    """Return the result of a probation whose hours are over; see `examine`."""
    comparison = compare(played.challenger, played.now) if played.now else None
    if played.too_little or comparison is None:
        late = case.now_s >= end_of(one)
        more = "twice its hours are over" if late else f"it continues until {moment_text(end_of(one))} at most"
        status = ProbationStatus.GIVEN_UP if late else ProbationStatus.WAITING
        return ProbationResult(one, status, f"{played.too_little}; {more}", played, comparison)
    why, fault = played.why.format(interval(comparison)), played.fault or fault_of(comparison, case.limits)
    status = ProbationStatus.BROKEN if fault else ProbationStatus.HELD
    return ProbationResult(one, status, f"{why}: {fault}" if fault else why, played, comparison)


def fault_of(comparison: Comparison, limits: Limits) -> str:
    """Return why a challenger costs too much to decide, for people; "" where it does not."""
    if comparison.relative.mean > limits.worse:
        return f"more than {limits.worse:+.0%}"
    return "it is surely dearer" if comparison.relative.low > 0.0 else ""


def interval(comparison: Comparison) -> str:
    """Return the relative cost with its interval, for people."""
    r = comparison.relative
    return f"{r.mean:+.1%} ({r.low:+.1%} to {r.high:+.1%})"


def write_watch(folder: Path, subject: Subject, found: WatchResult) -> Path:
    """Write page and data of the watch into `folder/watch`, each whole or not at all; return the page."""
    facts = {"subject": str(subject), "champion": found.model, "since": moment_text(found.since_s)}
    assert found.lived is not None, "the evidence is known"
    first, *others = found.lived.sections
    sections = [replace(first, content=f"<p>{escape(found.sentence)}.</p>{first.content}"), *others]
    files = {PAGE_FILE: document(f"The promotion for {subject}", sections, {**facts, **found.lived.facts})}
    return write_folder(folder / WATCH_FOLDER, files, found.as_data())


def write_probation(folder: Path, subject: Subject, found: ProbationResult) -> Path:
    """Write page and data of a probation into `folder/probation`, each whole or not at all; return the page."""
    one = found.probationer
    facts = {
        "subject": str(subject),
        "challenger": one.model,
        "champion": one.against or "none: the policy of the settings",
        "since": moment_text(one.since),
        "hours": f"{one.hours:g}",
    }
    held = {ProbationStatus.HELD: True, ProbationStatus.BROKEN: False}.get(found.status)
    assert found.replay is not None, "its hours are over"
    body = f"<p>{chip(held, found.status)} {escape(found.why)}.</p>{found.replay.more}"
    sections = [Section("promise", "Did the promise hold?", body), *found.replay.sections]
    files = {PAGE_FILE: document(f"The probation for {subject}", sections, facts)}
    return write_folder(folder / PROBATION_FOLDER, files, found.as_data())
