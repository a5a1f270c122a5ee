"""Is the simulator true? The recorded windows, replayed under the policy that ran, must give the recorded cost.

The agent's own code decides, with the fleet's limits (`trainer.learning.replay`), and VMs boot as long as recorded. A
difference is therefore one of the recorded jobs, the limits or the prices. Where it is too large, lengths of jobs and
arrivals are changed one by one: the quantity is named whose change brings the replay nearest to the record. The boots
of the world are compared with the recorded ones, because boots of half the length hardly change the cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from domain.units import HOUR_S, MINUTE_S
from domain.workload import Trace, make_trace
from simulator.autoscaling.configuration import SimulationConfig
from trainer.learning.minutes import Span
from trainer.learning.recorded import LEAST_BOOTS
from trainer.learning.replay import Episode, Loop, play
from trainer.learning.state import StageResult

CHECK_VERSION = 2
"""Of what is compared; a round that another version began is put away."""
WITHIN = 0.05
"""By how much the cost of all windows together may differ from what was recorded."""
WINDOWS_WITHIN = 0.15
"""Bound of the differences of the windows from the record, added without their signs."""
WORK_WITHIN = 0.1
"""Bound of the replayed busy core-minutes, of which the policy changes little."""
BOOTS_WITHIN = math.log(1.3)
"""Largest factor between the world's and the recorded boot times of a group, as a logarithm."""
FEWEST_BOOTS = 5
"""Of fewer recorded boots in all, the VMs that boot are counted in record and replay."""
SEEDS = 3
"""Boot seeds of each window."""
FIRST_SEED = 2_600_000_000
"""Boot seeds of the replay; what trains, tunes or judges uses others."""
FACTORS = (1 / 3, 1 / 2, 3 / 4, 4 / 3, 2.0, 3.0)
"""Changes of a quantity that are tried."""
BOOTS, LENGTHS, ARRIVALS = "boots", "lengths", "arrivals"
QUANTITIES = (BOOTS, LENGTHS, ARRIVALS)
TRIED_MIN = 1500
"""Minutes on which changes are tried, of the windows that differ most."""
BETTER = 0.7
"""A change explains the difference where it leaves at most so much of the distance."""

Map = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]


@dataclass(frozen=True, slots=True)
class WindowCost:
    """One window: recorded and replayed dollars, rent and price of waiting apart; the replay is the mean over seeds."""

    name: str
    start_s: float
    hours: float
    recorded_rent: float
    recorded_penalty: float
    replayed_rent: float
    replayed_penalty: float

    @property
    def recorded(self) -> float:
        """Record dollars."""
        return self.recorded_rent + self.recorded_penalty

    @property
    def replayed(self) -> float:
        """Replayed dollars."""
        return self.replayed_rent + self.replayed_penalty

    @property
    def off(self) -> float:
        """Replayed over recorded cost, minus 1."""
        return _over(self.replayed, self.recorded)


@dataclass(frozen=True, slots=True)
class Suspect:
    """A quantity changed by a factor, and how far the replay then lies from the record, in times of before."""

    quantity: str
    factor: float
    distance: float


@dataclass(frozen=True, slots=True)
class Fidelity(StageResult):
    """Whether the world describes the fleet.

    windows: see `WindowCost`. rent, penalty, work: replayed over recorded, minus 1, of all windows: rent, price of
    waiting, busy core-minutes. boots: the world's over recorded boot times, minus 1, of the group that differs most.
    suspects: the best change of each quantity, the likeliest first; none where the world holds. is_work_recorded:
    whether the record has the work of finished jobs.
    """

    STAGE: ClassVar = "fidelity"
    DERIVED: ClassVar = ("holds", "off", "apart", "named", "sentence")

    windows: tuple[WindowCost, ...]
    rent: float
    penalty: float
    boots: float
    work: float
    suspects: tuple[Suspect, ...] = ()
    policy_failures: int = 0
    first_failure: str = ""
    is_work_recorded: bool = True

    @property
    def off(self) -> float:
        """Replayed over recorded cost of all windows, minus 1."""
        return _over(sum(w.replayed for w in self.windows), sum(w.recorded for w in self.windows))

    @property
    def holds(self) -> bool:
        """Whether the recorded cost is met, in all and by window, and so are work and boot times."""
        return abs(self.off) <= WITHIN and self.apart <= WINDOWS_WITHIN and self.are_boots_met and self.is_work_met

    @property
    def apart(self) -> float:
        """The differences of the windows without their signs, over the recorded cost."""
        recorded = sum(w.recorded for w in self.windows)
        return sum(abs(w.replayed - w.recorded) for w in self.windows) / recorded if recorded > 0.0 else 0.0

    @property
    def are_boots_met(self) -> bool:
        """Whether the world's boot times are the recorded ones."""
        return abs(math.log(max(1.0 + self.boots, 1e-9))) <= BOOTS_WITHIN

    @property
    def is_work_met(self) -> bool:
        """Whether the replay does the recorded work, as far as that is known."""
        return not self.is_work_recorded or abs(self.work) <= WORK_WITHIN

    @property
    def named(self) -> str:
        """The quantity that is off, "" where the cost is met or no change of one alone explains it."""
        first = self.suspects[0] if self.suspects else None
        return first.quantity if first is not None and first.distance <= BETTER else ""

    @property
    def sentence(self) -> str:
        """What was found, for people."""
        met = f"the replay costs {self.off:+.1%} of the recorded cost, at most {WITHIN:.0%} is allowed"
        met += f", and its windows differ by {self.apart:.0%}, at most {WINDOWS_WITHIN:.0%}"
        if self.policy_failures:
            met += f"; in {self.policy_failures} minutes another policy decided ({self.first_failure})"
        if self.holds:
            return f"the world file describes this fleet: {met}"
        apart = f"rent {self.rent:+.1%}, waiting {self.penalty:+.1%}, time of a boot {self.boots:+.0%}"
        found = f"the world file does not describe this fleet: {met} ({apart}, work {self.work:+.0%})"
        if not self.named:
            look = "look at IDLE_S (--idle), limits, prices and cool-downs"
            if not self.is_work_recorded:
                look = "the record lacks finished_core_seconds_total, without which jobs have mean lengths: report it"
            return f"{found}; neither boots, lengths nor arrivals alone explain it: {look}"
        factor = self.suspects[0].factor
        return f"{found}; {_WORDS[self.named].format(factor=factor)}"


_WORDS = {
    BOOTS: "its boots are off: with boot times {factor:.2g} times as long it would come nearest to the record",
    LENGTHS: "lengths of jobs are off: with jobs {factor:.2g} times as long it would come nearest to the record",
    ARRIVALS: "arrivals are off: with {factor:.2g} times as many jobs it would come nearest to the record",
}


def check_fidelity(
    loop: Loop,
    config: SimulationConfig,
    stretches: Sequence[Span],
    windows: Sequence[Span],
    *,
    seeds: int = SEEDS,
    spread: Map = map,
) -> Fidelity:
    """Replay stretches under the policies that ran, and compare.

    config: the world; where it is off, its boots are a suspect. windows: on which changes of a quantity are tried.
    spread: maps a function over items, maybe in processes.
    """
    each = _replays(loop, config, stretches, FIRST_SEED, seeds, spread)
    runs = [run for own in each for run in own]

    def ratio(column: str) -> float:
        ours = sum(float(getattr(run, column).sum()) for run in runs) / seeds
        theirs = sum(float(getattr(span, column).sum()) for span in stretches)
        return ours / theirs - 1.0 if theirs > 0.0 else (0.0 if ours == 0.0 else math.inf)

    found = Fidelity(
        windows=tuple(one for span, own in zip(stretches, each, strict=True) for one in _costs(span, own)),
        rent=ratio("rent"),
        penalty=ratio("penalty"),
        boots=_boots_of_world(config, stretches, each),
        work=ratio("busy_cores"),
        policy_failures=sum(run.failures for run in runs) // seeds,
        first_failure=next((run.first_failure for run in runs if run.first_failure), ""),
        is_work_recorded=all(span.is_work_recorded for span in stretches),
    )
    if found.holds:
        return found
    suspects = _suspects(loop, config, windows, found, spread)
    if not found.are_boots_met:
        suspects = (
            Suspect(BOOTS, 1.0 / max(1.0 + found.boots, 1e-9), 0.0),
            *(one for one in suspects if one.quantity != BOOTS),
        )
    return replace(found, suspects=suspects)


def replay_windows(
    loop: Loop,
    config: SimulationConfig,
    stretches: Sequence[Span],
    first_seed: int,
    *,
    policy: str | None = None,
    seeds: int = SEEDS,
    spread: Map = map,
) -> tuple[WindowCost, ...]:
    """Replay stretches, and return each of their windows.

    first_seed: boots of two replays with the same seed are alike. policy: decides all along; None for what decided.
    """
    played = [span if policy is None else replace(span, policies=(policy,) * len(span.policies)) for span in stretches]
    each = _replays(loop, config, played, first_seed, seeds, spread)
    return tuple(one for span, own in zip(stretches, each, strict=True) for one in _costs(span, own))


def _replays(
    loop: Loop, config: SimulationConfig, spans: Sequence[Span], first_seed: int, seeds: int, spread: Map
) -> list[list[Episode]]:
    """Return the replays of each span, one for each boot seed."""
    runs = list(spread(replayed, [(loop, config, span, first_seed + seed) for span in spans for seed in range(seeds)]))
    return [runs[k * seeds : (k + 1) * seeds] for k in range(len(spans))]


def replayed(item: tuple[Loop, SimulationConfig, Span, int]) -> Episode:
    """Return the replay of a span in a world from a boot seed, from the recorded fleet on."""
    loop, config, span, seed = item
    initial = tuple(min(there, limit) for there, limit in zip(span.first.requested, config.limits, strict=True))
    return play(
        loop,
        replace(config, initial=initial),
        span.trace,
        span.policies,
        seed,
        span.first.end_s,
        lead=span.lead,
        lived=span.lived,
        boots=span.boots,
    )


def _costs(span: Span, runs: Sequence[Episode]) -> Iterator[WindowCost]:
    """Yield the windows of a stretch."""
    for name, first, last in span.marks or ((span.name, 0, span.steps),):
        yield WindowCost(
            name,
            span.start_s + first * MINUTE_S,
            (last - first) * MINUTE_S / HOUR_S,
            float(span.rent[first:last].sum()),
            float(span.penalty[first:last].sum()),
            float(np.mean([run.rent[first:last].sum() for run in runs])),
            float(np.mean([run.penalty[first:last].sum() for run in runs])),
        )


def _over(ours: float, theirs: float) -> float:
    """Return a cost over another one, minus 1; 0 where nothing was recorded."""
    return ours / theirs - 1.0 if theirs > 0.0 else 0.0


def _launched(requested: np.ndarray[Any, np.dtype[np.int64]]) -> float:
    """Return VMs launched, by the growth of the groups."""
    return float(np.clip(np.diff(requested, axis=0), 0, None).sum())


def _boot_minutes(booting: float, launched: float) -> float:
    # Half a minute more: a boot that ends before the next minute does is counted in no minute.
    return (booting + 0.5 * launched) / launched if launched > 0.0 else 0.5


def _boot_ratio(windows: Sequence[Span], each: Sequence[Sequence[Episode]]) -> float:
    ours = _boot_minutes(
        sum(float(run.booting.sum()) for own in each for run in own),
        sum(_launched(run.requested) for own in each for run in own),
    )
    theirs = _boot_minutes(
        sum(float(span.booting.sum()) for span in windows), sum(_launched(span.requested) for span in windows)
    )
    return ours / theirs - 1.0


def _boots_of_world(config: SimulationConfig, stretches: Sequence[Span], each: Sequence[Sequence[Episode]]) -> float:
    """Return the world's over the recorded boot times, medians, minus 1: of the group that differs most."""
    boots = [boot for span in stretches for boot in span.boots]
    if len(boots) < FEWEST_BOOTS:
        return _boot_ratio(stretches, each)
    medians = [float(np.median(points)) for points in config.boot_points_s]
    groups = [[boot for boot in boots if boot.group == k] for k in range(len(medians))]
    # A world made of the record has the boots of all groups where one has few.
    known = [own for own in groups if len(own) >= LEAST_BOOTS] or [boots]
    ratios = [
        max(float(np.median([medians[boot.group] for boot in own])), 1.0)
        / max(float(np.median([boot.seconds for boot in own])), 1.0)
        for own in known
    ]
    return max(ratios, key=lambda ratio: abs(math.log(ratio))) - 1.0


def _suspects(
    loop: Loop, config: SimulationConfig, windows: Sequence[Span], found: Fidelity, spread: Map
) -> tuple[Suspect, ...]:
    """Return the best change of each quantity, the likeliest first."""
    gap = {one.name: abs(one.replayed - one.recorded) for one in found.windows}
    far_first = sorted(windows, key=lambda span: -gap.get(span.name, 0.0))
    minutes = np.cumsum([span.lead + span.steps for span in far_first])
    chosen = far_first[: max(int((minutes <= TRIED_MIN).sum()), 1)]
    changes = [(BOOTS, 1.0), *((quantity, factor) for quantity in QUANTITIES for factor in FACTORS)]
    items = [
        (loop, *_changed(config, span, quantity, factor), FIRST_SEED) for quantity, factor in changes for span in chosen
    ]
    runs = list(spread(replayed, items))
    far = [_distance(chosen, runs[k * len(chosen) : (k + 1) * len(chosen)]) for k in range(len(changes))]
    best: dict[str, Suspect] = {}
    for (quantity, factor), distance in zip(changes[1:], far[1:], strict=True):
        share = distance / far[0] if far[0] > 0.0 else math.inf
        if quantity not in best or share < best[quantity].distance:
            best[quantity] = Suspect(quantity, factor, share)
    return tuple(sorted(best.values(), key=lambda one: one.distance))


def _changed(config: SimulationConfig, span: Span, quantity: str, factor: float) -> tuple[SimulationConfig, Span]:
    if quantity == BOOTS:
        return config.boots_scaled(factor), span
    trace = _longer(span.trace, factor) if quantity == LENGTHS else _more(span.trace, factor)
    return config, replace(span, trace=trace)


def _longer(trace: Trace, factor: float) -> Trace:
    return make_trace(trace.name, trace.arrival_s, trace.service_s * factor)


def _more(trace: Trace, factor: float) -> Trace:
    """Return so many times the jobs, evenly over the trace."""
    places = np.floor(np.arange(round(trace.jobs * factor)) / factor).astype(np.int64).clip(0, trace.jobs - 1)
    return make_trace(trace.name, trace.arrival_s[places], trace.service_s[places])


def _distance(windows: Sequence[Span], runs: Sequence[Episode]) -> float:
    """Return how far replays lie from the record: rent, waiting, time of a boot, work and jobs done, as logarithms.

    Rent and waiting count as shares of the cost. A quantity that is right but compensates another one's error leaves
    the others off, so that the sum of squares finds the one that is wrong.
    """
    cost = sum(span.cost for span in windows)
    rent = sum(float(run.rent.sum() - span.rent.sum()) for span, run in zip(windows, runs, strict=True))
    penalty = sum(float(run.penalty.sum() - span.penalty.sum()) for span, run in zip(windows, runs, strict=True))
    boots = math.log1p(_boot_ratio(windows, [[run] for run in runs]))
    parts = [_share(rent, cost), _share(penalty, cost), boots]
    for ours, theirs in (
        (sum(float(run.busy_cores.sum()) for run in runs), sum(float(span.busy_cores.sum()) for span in windows)),
        (sum(run.finished for run in runs), sum(span.finished for span in windows)),
    ):
        if theirs > 0:
            parts.append(math.log(max(ours, 1e-9) / theirs))
    return math.sqrt(sum(part * part for part in parts))


def _share(difference: float, cost: float) -> float:
    """Return a difference as a share of the cost, as a logarithm so that twice and half are as far."""
    share = difference / cost if cost > 0.0 else 0.0
    return math.copysign(math.log1p(abs(share)), share)


def called(call: tuple[Callable[[Any], Any], Any]) -> Any:
    """Return what a function of a module answers, so that a process can be asked for it."""
    work, item = call
    return work(item)
