"""The watch over a promotion: what the fleet lived under its new champion, against what the simulator says of it.

The minutes that the champion decided are replayed twice, by the agent's own code in the fleet's world: under the
champion (what was to be expected) and under the policy before it (what would have been). Lived surely dearer than
expected, the simulator was wrong about the champion; surely dearer than before, the promotion was. Either
takes it back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from agent.autoscaling.policies.learned_models import ModelShelf
from agent.autoscaling.policies.ppo_lstm import LEARNED
from agent.models.directory import FORCED, PROMOTED, ROLLED_BACK, Champion, moment_text
from agent.models.file import load_model
from domain.errors import BadInput
from domain.subject import AUTOSCALING, Subject
from domain.units import DAY_S, HOUR_S
from trainer.kit.intervals import Comparison, compare
from trainer.kit.report import Section, chip, document, escape, table
from trainer.learning.fidelity import SEEDS, WITHIN, Map, replay_windows
from trainer.learning.minutes import DecidedMinute, Record, read_record_since
from trainer.learning.report import write_folder
from trainer.learning.subject import Learner, check_policy, learner_of
from trainer.learning.windows import marked_stretches, part_of
from trainer.promotion.directory import ModelsWriter

OVER_PREDICTED, OVER_BEFORE = 0.05, 0.02
"""How much dearer the lived minutes may be than predicted, and than under the policy before, and surely be no more:
the lower end of the interval counts."""
LEAST_WINDOWS = 8
"""Windows of an hour or more that are needed to be sure of anything: an interval of fewer is too narrow."""
FIRST_SEED = 2_700_000_000
"""Boot seeds of the replays; what trains, tunes, judges or checks uses others."""
WATCH_FOLDER = "watch"


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a look at a fleet's models needs.

    ledger: a SQLite file or a URL. world, idle_s: as of `subject.learner_of`. now_s: epoch seconds. seeds: boot seeds
    of each replay. spread: maps a function over items.
    """

    fleet: str
    ledger: str
    directory: ModelsWriter
    shelf: ModelShelf
    world: str | None
    idle_s: float
    now_s: float
    seeds: int = SEEDS
    spread: Map = map

    @property
    def subject(self) -> Subject:
        """The fleet as the models directory names it."""
        return Subject(AUTOSCALING, self.fleet)

    @property
    def now(self) -> str:
        """Now, as the models directory writes it."""
        return moment_text(self.now_s)

    def learner(self, recorded: Record) -> Learner:
        """Return the fleet with what was recorded of it; BadInput for a world or a policy that cannot be replayed."""
        return learner_of(recorded, self.world, self.shelf, self.idle_s)


@dataclass(frozen=True, slots=True)
class WatchedWindow:
    """Dollars of a window: as lived, as predicted for the champion, and under the policy before (None: not known)."""

    name: str
    hours: float
    lived: float
    predicted: float
    before: float | None


@dataclass(frozen=True, slots=True)
class Watched:
    """What became of a promotion.

    model, previous: files. since_s: of the promotion, epoch seconds. minutes: lived under the model. before: the policy
    that decided before it, "" where that is not known or cannot be replayed. bias: recorded over replayed cost of the
    day before the promotion, as far as the fidelity check allows: it is the simulator's fault and not the champion's,
    so `before` of the windows is multiplied by it. against_predicted, against_before: lived against the replays.
    too_little: why nothing can be said yet, "" where something can.
    """

    model: str
    previous: str | None
    since_s: float
    minutes: int = 0
    before: str = ""
    bias: float = 1.0
    windows: tuple[WatchedWindow, ...] = ()
    against_predicted: Comparison | None = None
    against_before: Comparison | None = None
    too_little: str = ""

    @property
    def faults(self) -> tuple[str, ...]:
        """Why the promotion is taken back, none while it is not."""
        found = []
        for what, comparison, bound in (
            ("the prediction", self.against_predicted, OVER_PREDICTED),
            (f"the cost of {self.before}", self.against_before, OVER_BEFORE),
        ):
            if comparison is not None and comparison.relative.low > bound:
                found.append(f"it cost {_interval(comparison)} against {what}, surely more than {bound:+.0%}")
        return tuple(found)

    @property
    def sentence(self) -> str:
        """What was found, for people."""
        head = f"{self.model[:12]} decides since {moment_text(self.since_s)}"
        if self.too_little:
            return f"{head}: {self.too_little}"
        if self.faults:
            return f"{head}: {'; '.join(self.faults)}"
        parts = [
            f"{_interval(comparison)} against {what}"
            for what, comparison in (
                ("the prediction", self.against_predicted),
                (f"the cost of {self.before}", self.against_before),
            )
            if comparison is not None
        ]
        return f"{head}: in {self.minutes} minutes it cost {', and '.join(parts)}"


def watched_promotion(directory: ModelsWriter, subject: Subject, now_s: float, hours: float) -> Champion | None:
    """Return the subject's own champion if the gate promoted it in the last hours, else None.

    One that was forced, or that a rollback brought back, stands by the will of a person, or was in use before: it is
    not watched. BadInput for a pointer that cannot be read.
    """
    champion = directory.champions().get(subject)
    if champion is None or champion.at_s is None or not now_s - hours * HOUR_S <= champion.at_s <= now_s:
        return None
    changes = [one for one in directory.history(subject) if one.get("event") in (PROMOTED, FORCED, ROLLED_BACK)]
    if not changes or changes[-1]["event"] != PROMOTED or changes[-1].get("model") != champion.model:
        return None
    return champion


def watch(case: Inspection, champion: Champion) -> Watched:
    """Compare what the fleet lived under a champion with what the simulator says; nothing is changed.

    Raises LedgerUnavailable, and BadInput for a world that does not go with the fleet.
    """
    assert champion.at_s is not None, "a promotion that is watched has a time"
    policy = f"{LEARNED}:{Path(champion.model).stem}"
    found = Watched(champion.model, champion.previous, champion.at_s)
    try:
        recorded = read_record_since(case.ledger, case.fleet, champion.at_s - DAY_S)
    except BadInput:
        return replace(found, too_little="the ledger has no minute since then")
    stretches = tuple(_decided_by(policy, recorded, champion.at_s))
    lived = replace(recorded, stretches=stretches)
    found = replace(found, minutes=sum(len(one) - 1 for one in stretches))
    job_core_s = lived.job_core_s or recorded.job_core_s
    spans = () if job_core_s is None else marked_stretches(lived, job_core_s)
    count = sum(len(span.marks) for span in spans)
    if count < LEAST_WINDOWS:
        why = f"{found.minutes} minutes that it decided are recorded, which make {count} windows"
        return replace(found, too_little=f"{why}; {LEAST_WINDOWS} are needed to judge it by")
    if not _can_be_replayed(policy, recorded, case.shelf):
        return replace(found, too_little="its minutes cannot be replayed: it is a recurrent network, or it is gone")
    learner = case.learner(lived)
    before = _policy_before(recorded, champion, policy)
    if before and not _can_be_replayed(before, recorded, case.shelf):
        before = ""
    replays = [
        replay_windows(
            learner.loop, learner.config, spans, FIRST_SEED, policy=name, seeds=case.seeds, spread=case.spread
        )
        for name in (policy, *([before] if before else []))
    ]
    bias = _bias(case, recorded, champion.at_s, before, job_core_s or 0.0) if before else 1.0
    windows = tuple(
        WatchedWindow(
            one.name, one.hours, one.recorded, one.replayed, bias * replays[1][k].replayed if before else None
        )
        for k, one in enumerate(replays[0])
    )
    return weighed(replace(found, before=before, bias=bias), windows)


def weighed(found: Watched, windows: Sequence[WatchedWindow]) -> Watched:
    """Return what became of a promotion that cost so much in these windows."""
    lived = [one.lived for one in windows]
    before = [one.before for one in windows if one.before is not None]
    return replace(
        found,
        windows=tuple(windows),
        against_predicted=compare(lived, [one.predicted for one in windows]),
        against_before=compare(lived, before) if found.before and len(before) == len(lived) else None,
    )


def _bias(case: Inspection, recorded: Record, until_s: float, policy: str, job_core_s: float) -> float:
    """Return recorded over replayed cost of the minutes that a policy decided before a moment, 1 for too few of them.

    It is kept within the bound of the fidelity check: a simulator that is further off is no witness for a promotion.
    """
    earlier = part_of(recorded, until_s - DAY_S, until_s)
    earlier = replace(earlier, stretches=tuple(_decided_by(policy, earlier, until_s - DAY_S)))
    spans = marked_stretches(earlier, job_core_s)
    if sum(len(span.marks) for span in spans) < LEAST_WINDOWS:
        return 1.0
    learner = case.learner(earlier)
    found = replay_windows(learner.loop, learner.config, spans, FIRST_SEED, seeds=case.seeds, spread=case.spread)
    replayed = sum(one.replayed for one in found)
    ratio = sum(one.recorded for one in found) / replayed if replayed > 0.0 else 1.0
    return min(max(ratio, 1.0 - WITHIN), 1.0 + WITHIN)


def take_back(case: Inspection, found: Watched) -> str:
    """Roll back to the champion before, and return what decides then, for people.

    Raises BadInput when another one is champion by now, or when the one before would be refused: then nothing changes.
    """
    reason = f"taken back by the watch: {'; '.join(found.faults)}"
    back = case.directory.rollback(case.now, case.subject, load_model, reason=reason, of=found.model)
    return f"{back.model[:12]} decides again" if back is not None else "it is no longer the champion of this fleet"


def write_watch(folder: Path, fleet: str, found: Watched) -> Path:
    """Write page and data of the watch into `folder/watch`, each whole or not at all; return the page."""
    rows = [
        [escape(one.name), f"{one.hours:.1f}", *(_dollars(x) for x in (one.lived, one.predicted, one.before))]
        for one in found.windows
    ]
    against = [
        [escape(name), chip(comparison.relative.low <= bound, _interval(comparison)), f"{bound:+.0%}"]
        for name, comparison, bound in (
            ("predicted", found.against_predicted, OVER_PREDICTED),
            (f"under {found.before}", found.against_before, OVER_BEFORE),
        )
        if comparison is not None
    ]
    body = f"<p>{escape(found.sentence)}.</p>{table(['lived against', '', 'may surely be'], against)}"
    head = ["window", "hours", "lived", "predicted", "under the policy before"]
    facts = {"fleet": fleet, "champion": found.model, "since": moment_text(found.since_s)}
    facts |= {"the day before": f"recorded cost is {found.bias:.3f} of the replayed"} if found.before else {}
    sections = [Section("cost", "Cost since the promotion", body), Section("windows", "Windows", table(head, rows))]
    data: dict[str, Any] = {**asdict(found), "faults": list(found.faults), "sentence": found.sentence}
    return write_folder(folder / WATCH_FOLDER, document(f"The promotion of fleet {fleet}", sections, facts), data)


def _decided_by(policy: str, recorded: Record, since_s: float) -> Iterator[tuple[DecidedMinute, ...]]:
    """Yield the parts of the stretches in which this policy decided, without a minute of another between them."""
    for stretch in recorded.stretches:
        part: list[DecidedMinute] = []
        for minute in stretch:
            if minute.policy == policy and minute.end_s >= since_s:
                part.append(minute)
                continue
            if len(part) > 1:
                yield tuple(part)
            part = []
        if len(part) > 1:
            yield tuple(part)


def _policy_before(recorded: Record, champion: Champion, policy: str) -> str:
    """Return what decided last before the promotion, by the ledger, else by the pointer; "" where neither knows."""
    earlier = [minute for minute in recorded.minutes if champion.at_s is not None and minute.end_s < champion.at_s]
    if earlier:
        newest = max(earlier, key=lambda minute: minute.end_s).policy
        return "" if newest == policy else newest
    return "" if champion.previous is None else f"{LEARNED}:{Path(champion.previous).stem}"


def _can_be_replayed(policy: str, recorded: Record, shelf: ModelShelf) -> bool:
    try:
        check_policy(policy, recorded.fleet, shelf)
    except BadInput:
        return False
    return True


def _interval(comparison: Comparison) -> str:
    r = comparison.relative
    return f"{r.mean:+.1%} ({r.low:+.1%} to {r.high:+.1%})"


def _dollars(value: float | None) -> str:
    return "—" if value is None else f"{value:.4f} $"
