"""A learned policy for any fleet: it scores whole-fleet targets beside the queue rule's own choice.

Each minute `domain.rules.autoscaling.candidate_targets` makes what is worth comparing, and the model scores every
candidate by `domain.observations.autoscaling_scorer`: the same functions as in the simulator that it was trained on.
The queue rule decides where no candidate beats its choice by the model's margin, where VMs beyond the minimum have
idled for long, and where the minute is far outside what training saw. A model with an LSTM takes one step of it each
minute, with candidates or without; its memory is kept in the ledger with the moving averages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from agent.autoscaling.policies.base import InputAbsent
from agent.autoscaling.policies.ppo_lstm import LEARNED, NAME_DIGITS, OUTSIDE, compact
from agent.autoscaling.policies.rules import cover_of
from agent.models.card import SCORER_MEMORY, ScorerCard, misfit, recurrent_inputs
from agent.rails.state import Memory
from domain.announcements import rows_of
from domain.decisions import Proposal, Reason
from domain.errors import PolicyFailure
from domain.fleet import Fleet
from domain.observations.autoscaling_scorer import (
    ANNOUNCED,
    CANDIDATES,
    IDLE_PLACE,
    MEMORY,
    SINCE_PLACE,
    STATES,
    announced_core_s,
    fold_announcements,
    gain_unit,
    judge,
    kept_to_rule,
    lead_of,
    observe_candidates,
    observe_state,
    remember,
)
from domain.rules.autoscaling import MOST_CANDIDATES, candidate_targets
from domain.snapshot import Snapshot
from domain.units import MINUTE_S

if TYPE_CHECKING:
    from agent.models.file import Model

Floats = NDArray[np.float32]
SHOWN = 4
"""Candidates that the sentence tells beside the chosen one and the rule's."""
SHOWN_OUTSIDE = 3


@dataclass(frozen=True, slots=True, eq=False)
class ScorerPolicy:
    """A verified scorer as a policy."""

    model: Model[ScorerCard]

    @property
    def name(self) -> str:
        """`learned:` and the SHA-256 of the model's file."""
        return f"{LEARNED}:{self.model.name}"

    def decide(self, fleet: Fleet, snapshot: Snapshot, memory: Memory) -> tuple[Proposal, Memory]:
        """Score the minute's candidates and propose the best, or what the queue rule would do.

        InputAbsent without the queue; PolicyFailure for too many types, or an answer that is no number.
        """
        card = self.model.card
        unfit = misfit(card, fleet)
        if unfit:
            raise PolicyFailure(f"the model {self.model.name[:NAME_DIGITS]} does not fit: {unfit}")
        sight = _sight(fleet, snapshot)
        remembered = list(memory.get(self._key(SCORER_MEMORY), (0.0,) * MEMORY))
        carried = {
            name: np.array(memory.get(self._key(name), (0.0,) * card.cells), dtype=np.float32)
            for name in recurrent_inputs(card)
        }
        weighed = self.weigh(sight, remembered, carried)
        parts = [
            _comparison(fleet, snapshot.requested, weighed, card.branch_min),
            weighed.why,
            f"saw {sight.sentence}",
            _outside_text(card, weighed),
        ]
        after = {self._key(SCORER_MEMORY): tuple(remembered)}
        after |= {self._key(name): compact(values) for name, values in carried.items()}
        if weighed.outside:
            after[self._key(OUTSIDE)] = tuple(float(place) for place in weighed.outside)
        desired = tuple(weighed.targets[weighed.chosen])
        return Proposal(fleet.name, self.name, desired, Reason.LEARNED, "; ".join(filter(None, parts))), after

    def weigh(self, sight: Sight, remembered: list[float], carried: dict[str, Floats]) -> CandidateScores:
        """Bring both memories up to a minute and return its candidates, weighed.

        remembered: MEMORY numbers. carried: by name the recurrent inputs of the model (cells,); empty without any.
        """
        sight.remember(remembered)
        targets, announced = sight.candidates(), sight.folded(remembered)
        state, rows = sight.features(remembered, announced, targets)
        outputs = self.model.run(
            {
                "state": np.array([state] * len(targets), dtype=np.float32),
                "candidates": np.array(rows, dtype=np.float32),
                **{name: np.repeat(values[None], len(targets), axis=0) for name, values in carried.items()},
            }
        )
        broken = [name for name, values in outputs.items() if not np.isfinite(values).all()]
        if broken:
            raise PolicyFailure(f"the model {self.model.name[:NAME_DIGITS]} answers {', '.join(broken)} with no number")
        carried |= {name: outputs[f"{name}_next"][0] for name in carried}
        scores, gains = [0.0] * len(targets), outputs["gain"][:, 0].astype(np.float64).tolist()
        judge(outputs["score"].astype(np.float64).tolist(), len(targets), scores)
        outside = _outside(self.model.card, state)
        chosen, why = self._choice(scores, remembered, announced, outside)
        unit = sight.gain_unit
        dollars = [(gain - gains[0]) * unit for gain in gains]
        return CandidateScores(targets, scores, dollars, chosen, why, state, outside)

    def _choice(
        self, scores: Sequence[float], remembered: list[float], announced: list[float], outside: dict[int, float]
    ) -> tuple[int, str]:
        """Return the place of the chosen candidate, and why the rule decides where it does ("" elsewhere)."""
        card = self.model.card
        if len(scores) == 1:
            return 0, ""
        if kept_to_rule(remembered, card.idle_limit_min, announced):
            idle_min = remembered[IDLE_PLACE]
            return 0, f"the rule decides: VMs beyond the minimum have idled for {idle_min:.0f} minutes"
        if outside and max(outside.values()) > card.far:
            return 0, "the rule decides: this minute is too far outside the training range"
        best = max(range(len(scores)), key=lambda place: (scores[place], -place))
        if scores[best] - scores[0] <= card.margin:
            return 0, "the rule decides: no candidate is better by the margin" if best else ""
        return best, ""

    def _key(self, name: str) -> str:
        return f"{self.model.name[:NAME_DIGITS]}.{name}"


@dataclass(frozen=True, slots=True)
class CandidateScores:
    """A minute's candidates: targets, the queue rule's own first, with their scores and expected gains over it.

    dollars: over the card's branch_min. chosen: the place of the best. why: why the rule decides where it does.
    state: features of the state. outside: those beyond their range in training, by place, with how far.
    """

    targets: list[list[int]]
    scores: list[float]
    dollars: list[float]
    chosen: int
    why: str
    state: list[float]
    outside: dict[int, float]


@dataclass(frozen=True, slots=True)
class Sight:
    """What one minute shows of a fleet; lists over its groups, as `candidate_targets` and `observe_state` take them.

    floor, limits: the settings'; minimum, maximum: what may be reached now. oldest_wait_s: 0 without a waiting job.
    now_s: on the clock of the announcements, which are rows of at, jobs, job_core_s and over_s; given: 1 where any are
    made at all, else 0.
    """

    cores: list[int]
    prices: list[float]
    requested: list[int]
    ready: list[int]
    booting: list[int]
    idle: list[int]
    idle_long: list[int]
    floor: list[int]
    limits: list[int]
    minimum: list[int]
    maximum: list[int]
    cooling_out_s: list[float]
    cooling_in_s: list[float]
    boot_low_s: list[float]
    boot_high_s: list[float]
    waiting: int
    arrived: int
    arrived_core_s: float
    oldest_wait_s: float
    job_core_s: float
    free_cores: float
    busy_cores: float
    horizon_s: float
    cooldown_s: float
    waiting_price: float
    now_s: float
    announcements: list[list[float]]
    given: float

    @property
    def waiting_core_s(self) -> float:
        """Work that waits, in core-seconds."""
        return self.waiting * self.job_core_s

    @property
    def announced_core_s(self) -> float:
        """Work announced for the time that a new VM takes to boot."""
        if not self.announcements:
            return 0.0
        until_s = self.now_s + lead_of(self.cores, self.limits, self.boot_low_s, self.boot_high_s, MINUTE_S)
        return announced_core_s(self.announcements, self.now_s, until_s)

    @property
    def gain_unit(self) -> float:
        """Dollars that a gain of 1 stands for."""
        requested = sum(n * c for n, c in zip(self.requested, self.cores, strict=True))
        per_core = [p / c for p, c, most in zip(self.prices, self.cores, self.limits, strict=True) if most]
        need = (self.waiting_core_s + self.announced_core_s) / self.horizon_s
        return gain_unit(float(requested), need, min(per_core, default=0.0))

    @property
    def sentence(self) -> str:
        """What the decision sentence says of the minute."""
        booting = sum(n * c for n, c in zip(self.booting, self.cores, strict=True))
        announced = self.announced_core_s
        coming = f", {announced:.0f} core-s announced within a boot" if announced else ""
        return (
            f"{self.waiting} jobs waiting ({self.job_core_s:.0f} core-s each), {self.arrived} new, "
            f"{self.busy_cores:.0f} "
            f"cores busy, {self.free_cores:.0f} free, {booting} booting, {sum(self.idle)} VMs idle{coming}"
        )

    def remember(self, memory: list[float]) -> None:
        """Bring a memory of MEMORY numbers up to this minute."""
        spare = zip(self.requested, self.floor, self.cores, strict=True)
        above = float(sum(max(n - least, 0) * cores for n, least, cores in spare))
        remember(memory, float(self.arrived), self.arrived_core_s, float(self.waiting), self.free_cores, above)

    def candidates(self) -> list[list[int]]:
        """Return the targets to compare, the queue rule's own first."""
        rows = [[0] * len(self.cores) for _ in range(MOST_CANDIDATES)]
        count = candidate_targets(
            self.waiting_core_s,
            self.horizon_s,
            self.cores,
            self.prices,
            self.requested,
            self.booting,
            self.idle_long,
            self.idle,
            self.minimum,
            self.maximum,
            self.free_cores,
            self.busy_cores,
            self.announced_core_s,
            rows,
        )
        return rows[:count]

    def folded(self, memory: list[float]) -> list[float]:
        """Return what the announcements come to, ANNOUNCED numbers."""
        found = [0.0] * ANNOUNCED
        fold_announcements(self.announcements, self.given, self.now_s, memory[SINCE_PLACE], found)
        return found

    def features(
        self, memory: list[float], announced: list[float], targets: list[list[int]]
    ) -> tuple[list[float], list[list[float]]]:
        """Return the features of the state, and of each target."""
        state = [0.0] * STATES
        observe_state(
            memory,
            float(self.waiting),
            self.waiting_core_s,
            self.oldest_wait_s,
            self.horizon_s,
            self.cores,
            self.prices,
            self.ready,
            self.booting,
            self.idle,
            self.floor,
            self.limits,
            self.cooling_out_s,
            self.cooling_in_s,
            self.cooldown_s,
            self.boot_low_s,
            self.boot_high_s,
            self.free_cores,
            self.busy_cores,
            self.waiting_price,
            announced,
            state,
        )
        rows = [[0.0] * CANDIDATES for _ in targets]
        observe_candidates(
            targets,
            len(targets),
            self.waiting_core_s,
            self.horizon_s,
            self.cores,
            self.prices,
            self.requested,
            self.booting,
            self.idle,
            self.limits,
            self.free_cores,
            self.busy_cores,
            self.waiting_price,
            self.announced_core_s,
            rows,
        )
        return state, rows


def _sight(fleet: Fleet, snapshot: Snapshot) -> Sight:
    """Return what the minute shows; InputAbsent without the queue or the terms of the settings."""
    queue, terms, groups = snapshot.queue, snapshot.terms, snapshot.groups
    if queue is None:
        raise InputAbsent("the learned policy needs the queue's length, and no reading of it arrived this minute")
    if terms is None:
        raise InputAbsent("the learned policy needs the terms of the settings, which older records do not hold")
    requested = [group.requested for group in groups]
    floor = [group.minimum for group in fleet.groups]
    limits = [group.maximum for group in fleet.groups]
    minimum, maximum = list(floor), list(limits)
    for k, group in enumerate(groups):
        if group.cannot_remove:
            minimum[k] = max(requested[k], floor[k])
        if group.cannot_add:
            maximum[k] = min(requested[k], limits[k])
    free_cores, busy_cores = cover_of(fleet, snapshot)
    job_core_s = terms.job_core_s if queue.job_core_s is None else queue.job_core_s
    return Sight(
        cores=list(fleet.cores),
        prices=list(fleet.prices_per_hour),
        requested=requested,
        ready=list(snapshot.warm),
        booting=list(snapshot.booting),
        idle=[group.idle for group in groups],
        idle_long=[group.idle_long for group in groups],
        floor=floor,
        limits=limits,
        minimum=minimum,
        maximum=maximum,
        cooling_out_s=[group.cooldown_out_s for group in groups],
        cooling_in_s=[group.cooldown_in_s for group in groups],
        boot_low_s=list(terms.boot_low_s),
        boot_high_s=list(terms.boot_high_s),
        waiting=queue.waiting,
        arrived=queue.submitted_recent,
        arrived_core_s=queue.submitted_recent * job_core_s,
        oldest_wait_s=(queue.oldest_wait_s or 0.0) if queue.waiting else 0.0,
        job_core_s=job_core_s,
        free_cores=free_cores,
        busy_cores=busy_cores,
        horizon_s=terms.horizon_s,
        cooldown_s=terms.cooldown_s,
        waiting_price=terms.waiting_price_per_hour,
        now_s=snapshot.taken_at,
        announcements=rows_of(snapshot.announced or ()),
        given=0.0 if snapshot.announced is None else 1.0,
    )


def _outside(card: ScorerCard, state: Sequence[float]) -> dict[int, float]:
    """Return by place how far a feature stands beyond its range in training, as a share of that range."""
    found = {}
    for place, (value, low, high) in enumerate(zip(state, card.feature_low, card.feature_high, strict=True)):
        beyond = max(low - value, value - high)
        # Of 32 bits and a range without width, a hair's breadth is no distance.
        if beyond > 1e-6:
            found[place] = beyond / max(high - low, 1e-6)
    return found


def _outside_text(card: ScorerCard, weighed: CandidateScores) -> str:
    outside, state = weighed.outside, weighed.state
    if not outside:
        return ""
    furthest = sorted(outside, key=lambda place: -outside[place])[:SHOWN_OUTSIDE]
    words = [
        f"{card.features[place]} {state[place]:.3g} (seen {card.feature_low[place]:.3g} to "
        f"{card.feature_high[place]:.3g})"
        for place in furthest
    ]
    more = len(outside) - len(words)
    return f"outside the training range: {', '.join(words)}" + (f" and {more} more" if more else "")


def _change(fleet: Fleet, requested: Sequence[int], target: Sequence[int]) -> str:
    words = [
        f"{target[k] - requested[k]:+d} {group.vm_type.name}"
        for k, group in enumerate(fleet.groups)
        if target[k] != requested[k]
    ]
    return " ".join(words) or "no change"


def _dollars(gain: float, minutes: float) -> str:
    return f"${abs(gain):.3f} {'cheaper' if gain >= 0 else 'dearer'} over {minutes:.0f} min"


def _comparison(fleet: Fleet, requested: Sequence[int], weighed: CandidateScores, minutes: float) -> str:
    """Return the choice beside the rule's, and the candidates that come next, each with its score and dollars."""
    words = [_change(fleet, requested, target) for target in weighed.targets]

    def judged(place: int) -> str:
        return f"score {weighed.scores[place]:+.2f}, {_dollars(weighed.dollars[place], minutes)}"

    chosen = weighed.chosen
    head = f"{words[chosen]} ({judged(chosen)} than the rule's {words[0]})" if chosen else f"the rule's {words[0]}"
    others = sorted(
        (place for place in range(1, len(words)) if place != chosen), key=lambda place: -weighed.scores[place]
    )
    listed = [f"{words[place]} ({judged(place)})" for place in others[:SHOWN]]
    return f"{head}; others: {', '.join(listed)}" if listed else head
