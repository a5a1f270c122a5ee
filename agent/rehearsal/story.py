"""The stories a dry run can tell: which faults strike when, and what the ledger must then hold, in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from agent.autoscaling.policies.ppo_lstm import names_model
from agent.ledger.records import JournalEntry, Kind
from domain.decisions import Reason
from domain.errors import BadInput

NOBODY = ""
"""What a fault strikes that strikes no VM in particular."""


class Stage(Protocol):
    """What a story can do to the world."""

    def shortage(self, vm_type: str, duration_s: float) -> None:
        """AWS has no VM of this type for so long."""
        ...

    def metric_gap(self, duration_s: float) -> None:
        """No measurement arrives for so long."""
        ...

    def spot_notice(self) -> str | None:
        """Give one busy VM its spot notice and return its id; None while there is none."""
        ...

    def throttle(self, rate: float, duration_s: float) -> None:
        """AWS throttles this share of the agent's calls for so long."""
        ...

    def timeouts(self, count: int) -> None:
        """The next calls that change a group take effect, but their answers never arrive."""
        ...


Strike = Callable[[Stage], str | None]
"""Does it, and returns the VM it struck (or NOBODY); None when it could not be done yet."""


@dataclass(frozen=True, slots=True)
class Beat:
    """One fault: from this minute on, as soon as `strike` succeeds; `title` is what the screen says.

    met: in words, what it means for this fault that the ledger gives a reason after it.
    """

    minute: float
    title: str
    strike: Strike
    met: Mapping[Reason, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Struck:
    """A beat that has struck: when (epoch seconds), and which VM."""

    beat: Beat
    at: float
    vm: str


@dataclass(frozen=True, slots=True)
class Told:
    """One reason that the ledger gives, when (epoch seconds), and what it is about, such as a VM ("": nothing)."""

    reason: Reason
    at: float
    subject: str = ""


@dataclass(frozen=True, slots=True)
class Story:
    """A named sequence of faults and the reasons the ledger must show afterwards, each after the one before it."""

    name: str
    about: str
    beats: tuple[Beat, ...]
    required: tuple[Reason, ...]


ABOUT_THE_TAKEN_VM = (Reason.DRAINING, Reason.DRAINED)
"""After a spot interruption, these count only for the VM that was interrupted."""

OF_THE_QUEUE_RULE = (Reason.QUEUE_GREW, Reason.QUEUE_COVERED)
OF_A_SHORTAGE = (Reason.NO_CAPACITY, Reason.CAPACITY_LOST, Reason.CAPACITY_FALLBACK, Reason.CAPACITY_RETURNED)

LARGEST = "m5a.2xlarge"


def _always(strike: Callable[[Stage], None]) -> Strike:
    def struck(stage: Stage) -> str:
        strike(stage)
        return NOBODY

    return struck


def _shortage(vm_type: str, minutes: float, at: float) -> Beat:
    return Beat(
        at,
        f"no {vm_type} for {minutes:.0f} min",
        _always(lambda stage: stage.shortage(vm_type, minutes * 60)),
        {
            Reason.CAPACITY_FALLBACK: "fallback",
            Reason.CAPACITY_RETURNED: "asked for again",
        },
    )


def _gap(minutes: float, at: float) -> Beat:
    return Beat(
        at,
        f"no measurements for {minutes:.0f} min",
        _always(lambda stage: stage.metric_gap(minutes * 60)),
        {
            Reason.METRICS_LOST: "held",
            Reason.SAFE_FLOOR: "safe floor",
            Reason.METRICS_RETURNED: "measured again",
        },
    )


def _throttle(rate: float, minutes: float, at: float) -> Beat:
    calls = "every call" if rate == 1.0 else f"{rate:.0%} of the calls"
    return Beat(
        at,
        f"{calls} throttled for {minutes:.0f} min",
        _always(lambda stage: stage.throttle(rate, minutes * 60)),
        {Reason.CLOUD_UNREADABLE: "held", Reason.THROTTLED: "tried again", Reason.DONE: "done"},
    )


def _spot(at: float) -> Beat:
    return Beat(
        at,
        "spot notice for a VM",
        lambda stage: stage.spot_notice(),
        {Reason.SPOT_INTERRUPTION: "replaced", Reason.DRAINING: "drains", Reason.DRAINED: "drained"},
    )


def _timeouts(count: int, at: float) -> Beat:
    return Beat(
        at,
        f"the next {count} answers to a change get lost",
        _always(lambda stage: stage.timeouts(count)),
        {Reason.UNKNOWN_OUTCOME: "read back", Reason.DONE: "found done"},
    )


SPOT_AT = 40.75
"""A quarter of a minute before the minute is over: the turn that reads the notice comes 36 s after it."""

STORIES: tuple[Story, ...] = (
    Story(
        "story",
        "a capacity error with fallback, a metric gap that is held, a spot notice that is drained",
        (_shortage(LARGEST, 8.0, 0.0), _gap(3.0, 26.0), _spot(SPOT_AT)),
        (
            Reason.QUEUE_GREW,
            Reason.NO_CAPACITY,
            Reason.CAPACITY_LOST,
            Reason.CAPACITY_FALLBACK,
            Reason.DONE,
            Reason.CAPACITY_RETURNED,
            Reason.METRICS_LOST,
            Reason.METRICS_RETURNED,
            Reason.SPOT_INTERRUPTION,
            Reason.DRAINING,
            Reason.DRAINED,
        ),
    ),
    Story(
        "none",
        "nothing goes wrong",
        (),
        (Reason.QUEUE_GREW, Reason.DONE, Reason.DRAINED),
    ),
    Story(
        "throttle",
        "AWS throttles: every call for five minutes, then every third for ten",
        (_throttle(1.0, 5.0, 8.0), _throttle(0.33, 10.0, 15.0)),
        (Reason.QUEUE_GREW, Reason.CLOUD_UNREADABLE, Reason.QUEUE_COVERED),
    ),
    Story(
        "capacity",
        "AWS runs out of the largest type for half an hour",
        (_shortage(LARGEST, 30.0, 0.0),),
        (Reason.QUEUE_GREW, Reason.NO_CAPACITY, Reason.CAPACITY_LOST, Reason.CAPACITY_FALLBACK, Reason.DONE),
    ),
    Story(
        "gap",
        "no measurement arrives for six minutes: hold, then the safe floor",
        (_gap(6.0, 12.0),),
        (Reason.METRICS_LOST, Reason.METRICS_RETURNED),
    ),
    Story(
        "spot",
        "AWS takes a VM back",
        (_spot(SPOT_AT),),
        (Reason.SPOT_INTERRUPTION, Reason.DRAINING, Reason.DRAINED),
    ),
    Story(
        "timeout",
        "changes take effect, but AWS's answers never arrive",
        (_timeouts(2, 0.0),),
        (Reason.QUEUE_GREW, Reason.UNKNOWN_OUTCOME, Reason.DONE),
    ),
)


def story_named(name: str) -> Story:
    """Return the story; BadInput lists the stories there are."""
    for story in STORIES:
        if story.name == name:
            return story
    raise BadInput("--fault", name, f"choose one of: {', '.join(story.name for story in STORIES)}")


class Teller:
    """Strikes a story's beats when their minute has come."""

    def __init__(self, story: Story) -> None:
        self._waiting = list(story.beats)

    def advance(self, minute: float, now: float, stage: Stage) -> tuple[Struck, ...]:
        """Strike what is due; return what struck. A beat that cannot strike yet is tried again at the next call."""
        struck = []
        for beat in [beat for beat in self._waiting if beat.minute <= minute]:
            vm = beat.strike(stage)
            if vm is not None:
                self._waiting.remove(beat)
                struck.append(Struck(beat, now, vm))
        return tuple(struck)


def required_of(story: Story, policy: str) -> tuple[Reason, ...]:
    """Return the reasons that the ledger must show under this policy.

    A learned policy gives a reason of its own, and whether it asks for the type that AWS has run out of is its choice:
    it is told of the shortage and can take another type before any rail does.
    """
    if not names_model(policy):
        return story.required
    required = (Reason.LEARNED if r in OF_THE_QUEUE_RULE else r for r in story.required if r not in OF_A_SHORTAGE)
    return tuple(dict.fromkeys(required))


def missing(required: Sequence[Reason], told: Sequence[Told]) -> tuple[Reason, ...]:
    """Return the required reasons that the ledger does not show in their order; within a turn any order will do.

    One that is absent does not keep those after it from being found.
    """
    absent, since = [], float("-inf")
    taken = NOBODY
    for reason in required:
        subject = taken if reason in ABOUT_THE_TAKEN_VM else NOBODY
        found = next((t for t in told if t.reason is reason and t.at >= since and subject in (NOBODY, t.subject)), None)
        if found is None:
            absent.append(reason)
            continue
        since = found.at
        if reason is Reason.SPOT_INTERRUPTION:
            taken = found.subject
    return tuple(absent)


def told_by(journal: Sequence[JournalEntry]) -> list[Told]:
    """Return every reason in the journal, those of the rails included.

    A rail's word counts where it came to something: a fallback that another rail held in the same turn is none.
    """
    acted = {entry.ref.rpartition(".")[0] for entry in journal if entry.kind is Kind.INTENT}
    told = []
    for entry in journal:
        reasons = [entry.reason]
        if entry.kind is Kind.DECISION:
            reasons += [effect["reason"] for effect in entry.body["effects"] if effect["reason"]]
            if entry.ref not in acted:
                reasons = [reason for reason in reasons if reason != Reason.CAPACITY_FALLBACK]
        known = dict.fromkeys(reason for reason in reasons if reason in Reason._value2member_map_)
        told += [Told(Reason(reason), entry.at, entry.ref) for reason in known]
    return told
