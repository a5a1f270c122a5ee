"""The stories a dry run can tell: which faults strike when, and what the ledger must then hold, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from domain.decisions import Reason
from domain.errors import BadInput


class Stage(Protocol):
    """What a story can do to the world."""

    def shortage(self, vm_type: str, duration_s: float) -> None:
        """AWS has no VM of this type for so long."""
        ...

    def metric_gap(self, duration_s: float) -> None:
        """No measurement arrives for so long."""
        ...

    def spot_notice(self) -> bool:
        """Give one busy VM its spot notice; False while there is none that can be spared."""
        ...

    def throttle(self, rate: float, duration_s: float) -> None:
        """AWS throttles this share of the agent's calls for so long."""
        ...

    def timeouts(self, count: int) -> None:
        """The next calls that change a group take effect, but their answers never arrive."""
        ...


@dataclass(frozen=True, slots=True)
class Beat:
    """One fault: from this minute on, as soon as `strike` succeeds; `title` is what the screen says."""

    minute: float
    title: str
    strike: Callable[[Stage], bool]


@dataclass(frozen=True, slots=True)
class Story:
    """A named sequence of faults and the reasons the ledger must show afterwards, each after the one before it."""

    name: str
    about: str
    beats: tuple[Beat, ...]
    required: tuple[Reason, ...]


def _always(strike: Callable[[Stage], None]) -> Callable[[Stage], bool]:
    def struck(stage: Stage) -> bool:
        strike(stage)
        return True

    return struck


def _shortage(vm_type: str, minutes: float, at: float) -> Beat:
    return Beat(
        at,
        f"AWS runs out of {vm_type} for {minutes:.0f} min",
        _always(lambda stage: stage.shortage(vm_type, minutes * 60)),
    )


def _gap(minutes: float, at: float) -> Beat:
    title = f"no measurement arrives for {minutes:.0f} min"
    return Beat(at, title, _always(lambda stage: stage.metric_gap(minutes * 60)))


def _throttle(rate: float, minutes: float, at: float) -> Beat:
    title = f"AWS throttles {rate:.0%} of the agent's calls for {minutes:.0f} min"
    return Beat(at, title, _always(lambda stage: stage.throttle(rate, minutes * 60)))


SPOT = Beat(40.0, "a VM gets its spot notice: two minutes", lambda stage: stage.spot_notice())
LARGEST = "m5a.2xlarge"

STORIES: tuple[Story, ...] = (
    Story(
        "story",
        "a capacity error with fallback, a metric gap that is held, a spot notice that is drained",
        (_shortage(LARGEST, 8.0, 0.0), _gap(3.0, 26.0), SPOT),
        (
            Reason.CAPACITY_LOST,
            Reason.CAPACITY_FALLBACK,
            Reason.METRICS_LOST,
            Reason.METRICS_RETURNED,
            Reason.SPOT_INTERRUPTION,
            Reason.DRAINED,
        ),
    ),
    Story("none", "nothing goes wrong", (), (Reason.QUEUE_GREW,)),
    Story(
        "throttle",
        "AWS throttles: all calls for three minutes, then every third for ten",
        (_throttle(1.0, 3.0, 5.0), _throttle(0.3, 10.0, 15.0)),
        (Reason.CLOUD_UNREADABLE, Reason.QUEUE_GREW),
    ),
    Story(
        "capacity",
        "AWS runs out of the largest type for half an hour",
        (_shortage(LARGEST, 30.0, 0.0),),
        (Reason.CAPACITY_LOST, Reason.CAPACITY_FALLBACK),
    ),
    Story(
        "gap",
        "no measurement arrives for six minutes: hold, then the safe floor",
        (_gap(6.0, 12.0),),
        (Reason.METRICS_LOST, Reason.METRICS_RETURNED),
    ),
    Story("spot", "a VM is taken back by AWS", (SPOT,), (Reason.SPOT_INTERRUPTION, Reason.DRAINED)),
    Story(
        "timeout",
        "calls take effect but their answers never arrive",
        (Beat(0.0, "the next two answers from AWS are lost", _always(lambda stage: stage.timeouts(2))),),
        (Reason.UNKNOWN_OUTCOME, Reason.DONE),
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

    def advance(self, minute: float, stage: Stage) -> tuple[str, ...]:
        """Strike what is due; return the titles of what struck."""
        struck = [beat for beat in self._waiting if beat.minute <= minute and beat.strike(stage)]
        self._waiting = [beat for beat in self._waiting if beat not in struck]
        return tuple(beat.title for beat in struck)


def missing(required: Sequence[Reason], told: Sequence[Reason]) -> tuple[Reason, ...]:
    """Return the required reasons that the ledger does not show in their order."""
    absent, position = [], 0
    for reason in required:
        try:
            position = told.index(reason, position) + 1
        except ValueError:
            absent.append(reason)
    return tuple(absent)
