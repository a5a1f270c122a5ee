"""Tunes the queue rule of a fleet by its record: a setting that is surely cheaper, or nothing and the reason.

The record's jobs are replayed by the agent's own decision and rails (`trainer.learning.replay`) on the plain twin, so
that neither numba nor torch is loaded. Horizons within FACTOR of the present one and the first guess for the recorded
jobs (`guess_s`), then idle times, are played on the newest day, the best of them on SEARCHED_DAYS, and the best of
these and the present setting on all days. The guess may lie beyond FACTOR: the cost often has a ridge between, and a
closed form that knows nothing of the replay supports it. A setting counts as dearer by NEARER for each e-fold of the
horizon, or ten minutes of idle time, between it and the present one. The cheapest is held to the evidence. It must be

    LEAST_GAIN cheaper than the present setting in SURE of the resamples of blocks of BLOCK_HOURS consecutive hours of
    the record, the boot seeds averaged: hours correlate, and the best of many settings is cheaper by luck,
    FEW_DAYS_GAIN cheaper on less than FEW_DAYS: days differ, and settings without an effect over three days often save
    half of that on one of them,
    cheaper in the first two thirds of the record and in its last third,
    cheaper with boots LONGER_BOOTS times as long.

A replay under the recorded settings differs from the record because rebuilt jobs are not the true ones. Its cost and
its work must lie within WITHIN of the record, boots as in `trainer.learning.fidelity`. A setting is put in use if it
saves LEAST_GAIN more than the replay is off, else it may be proposed to people. Minutes of other policies are left out.

`trainer.learning.lived_hours` compares the hours after a change with the rule of day 0.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from agent.autoscaling.policies.registry import policy_from_name
from agent.autoscaling.policies.rules import QueueRulePolicy
from domain.rules.queue_rule import RuleSetting, first_horizon_s
from domain.units import DAY_S, HOUR_S, MINUTE_S
from simulator.autoscaling.configuration import SimulationConfig
from trainer.learning.fidelity import Fidelity, check_fidelity, replayed
from trainer.learning.jobs import Jobs
from trainer.learning.minutes import DecidedMinute, Record, Span, jobs_of, mean_job_core_s, span_of
from trainer.learning.replay import Loop
from trainer.learning.subject import Learner

Floats = NDArray[np.float64]

LEAST_HOURS: Final = 24.0
"""Hours of record before the first tuning."""
LEAST_BUSY_HOURS: Final = 8
"""Hours of them in which jobs waited or ran."""
LEAST_JOBS: Final = 100
SEARCHED_DAYS: Final = 3.0
MOST_DAYS: Final = 7.0
"""Days of record that a setting is searched on, and judged on."""
FACTOR: Final = 4.0
"""By so much a horizon may change at once, save to the first guess."""
FACTORS: Final = (1 / FACTOR, 0.5, 1.0, 2.0, FACTOR)
FINER: Final = (math.sqrt(0.5), math.sqrt(2.0))
"""Factors of the best horizon of these that are tried next."""
IDLE_S: Final = (0.0, 120.0, 300.0)
SHORTEST_S, LONGEST_S = 15.0, 14_400.0
FINALISTS: Final = 3
"""Settings that are played on SEARCHED_DAYS; the best of them on all days."""
NEARER: Final = 0.005
"""Share of the cost that a setting must save more for being farther from the present one, by `_distance`."""
LONGEST_GUESS_S: Final = 4_800.0
LEAST_GAIN: Final = 0.03
FEW_DAYS, FEW_DAYS_GAIN = 3.0, 0.1
SURE: Final = 0.95
LONGER_BOOTS: Final = 1.5
EARLIER: Final = 2 / 3
WITHIN: Final = 0.25
"""By how much the replay may differ from the record."""
RESAMPLES: Final = 2_000
BLOCK_HOURS: Final = 6
SEEDS: Final = 2
"""Boot seeds of the judgement; the search has the first of them."""
FIRST_SEED: Final = 2_400_000_000
CPU_S: Final = 90.0
"""Seconds of a processor that a tuning may take; with more jobs it uses fewer days."""
PLAYED_DAYS: Final = 16.0
"""Days that are played for each day that a setting is judged on, about."""
FIRST_DAYS: Final = 1 / 8
"""Days that are played before a whole one: where these take too long already, no day is played."""
MONTH_HOURS: Final = 730.0


@dataclass(frozen=True, slots=True)
class Tuning:
    """The result of a tuning.

    now, setting: the present setting, and the one to use; None for nothing. why: a sentence. may_be_used: whether it
    saves enough, as far as the replay is off, to be put in use without a person. gain: share of the present cost that
    is saved; low, high: 90 % of the resamples lie between them. hours: of the record. tried: settings. off: replayed
    over recorded cost, minus 1.
    """

    now: RuleSetting
    setting: RuleSetting | None
    why: str
    may_be_used: bool = False
    gain: float = 0.0
    low: float = 0.0
    high: float = 0.0
    dollars_a_month: float = 0.0
    hours: float = 0.0
    tried: int = 0
    off: float = 0.0


Simulate = Callable[[Loop, SimulationConfig, Span, int], Floats]
"""Plays a span from a boot seed, and returns the dollars of each minute."""


def simulate(loop: Loop, config: SimulationConfig, span: Span, seed: int) -> Floats:
    """Play a span by the agent's own decision and rails on the plain twin; dollars of each minute, shape (steps,)."""
    run = replayed((loop, config, span, seed))
    return run.rent + run.penalty


Costs = Callable[[RuleSetting, float, int, float], Floats]
"""Dollars of each minute of the last days under a setting: given are setting, days, boot seed, and factor of boots."""


def tune(
    learner: Learner,
    now: RuleSetting,
    *,
    play: Simulate = simulate,
    cpu_clock: Callable[[], float] = time.process_time,
    begun_s: float | None = None,
) -> Tuning:
    """Return a cheaper setting of the queue rule for a fleet, or the reason why there is none.

    now: the setting in use. cpu_clock: seconds of a processor, which bound the number of days that are used. begun_s:
    of that clock, where CPU_S begins; None for now.
    """
    too_little = missing(learner.recorded)
    if too_little:
        return Tuning(now, None, too_little)
    newest = learner.recorded.minutes[-1].policy
    if not names_rule(newest):
        return Tuning(now, None, f"{newest} decides, not the queue rule")
    plays = _Plays(learner, play)
    first_s = cpu_clock()
    left_s = CPU_S - (0.0 if begun_s is None else first_s - begun_s)
    too_long = Tuning(now, None, f"a day has too many jobs to be replayed in {CPU_S:.0f} s of a processor")
    plays(now, FIRST_DAYS, 0, 1.0)
    if PLAYED_DAYS * (cpu_clock() - first_s) > left_s:
        return too_long
    first_s = cpu_clock()
    hours = plays(now, 1.0, 0, 1.0).size * MINUTE_S / HOUR_S
    if not hours:
        return Tuning(now, None, "the newest day has no stretch of more than an hour that the queue rule decided")
    day_s = max(cpu_clock() - first_s, 1e-9) / (hours / 24.0)
    days = min(MOST_DAYS, left_s / (PLAYED_DAYS * day_s))
    if days < 1.0:
        return too_long
    found = check_fidelity(learner.loop, learner.config, plays.spans(days), (), seeds=1)
    if faults := _faults(found):
        return Tuning(now, None, faults, off=found.off)
    chosen = choose(now, days, plays, guess_s(learner))
    return replace(chosen, may_be_used=chosen.gain >= LEAST_GAIN + abs(found.off), off=found.off)


def guess_s(learner: Learner) -> float | None:
    """Return the first guess of the horizon for the recorded jobs, None where waiting costs nothing or none ended."""
    recorded, waiting_price = learner.recorded, learner.config.waiting_price_per_hour
    job_core_s = mean_job_core_s([one.load for one in recorded.minutes])
    if job_core_s is None or waiting_price <= 0.0:
        return None
    return first_horizon_s(job_core_s, recorded.fleet.core_price_per_hour, waiting_price, LONGEST_GUESS_S)


def _faults(found: Fidelity) -> str:
    """Return by which quantities the replay is too far from the record, and the remedy; "" for none."""
    faults = {
        f"the replay of the record costs {found.off:+.1%} of its cost: check limits, prices and IDLE_S": (
            abs(found.off) > WITHIN
        ),
        f"boots in the replay take {found.boots:+.0%} of the recorded time: boot times change, or VMs report none": (
            not found.are_boots_met
        ),
        f"the replay does {found.work:+.0%} of the recorded work: check finished_core_seconds_total": (
            found.is_work_recorded and abs(found.work) > WITHIN
        ),
    }
    return "; ".join(fault for fault, holds in faults.items() if holds)


def missing(recorded: Record) -> str:
    """Return the reason why the record is too small for a first tuning, "" for none."""
    minutes = recorded.minutes
    hours = len(minutes) * MINUTE_S / HOUR_S
    if hours < LEAST_HOURS:
        return f"{hours:.1f} h are recorded, {LEAST_HOURS:.0f} are needed"
    busy = len({one.end_s // HOUR_S for one in minutes if one.waiting or one.running})
    if busy < LEAST_BUSY_HOURS:
        return f"{busy} h with jobs are recorded, {LEAST_BUSY_HOURS} are needed"
    jobs = sum(one.load.submitted for one in minutes)
    if jobs < LEAST_JOBS:
        return f"{jobs} jobs are recorded, {LEAST_JOBS} are needed"
    return "no length of a job is recorded" if recorded.job_core_s is None else ""


def names_rule(policy: str) -> bool:
    """Return whether the queue rule decides under this name."""
    return policy.partition(":")[0] == "queue-rule"


class _Plays:
    """Plays settings on parts of a record, each once."""

    def __init__(self, learner: Learner, play: Simulate) -> None:
        self._learner, self._play = learner, play
        self._jobs = [jobs_of(stretch) for stretch in learner.recorded.stretches]
        self._known: dict[tuple[RuleSetting, float, int, float], Floats] = {}
        self._spans: dict[float, tuple[Span, ...]] = {}

    def spans(self, days: float) -> tuple[Span, ...]:
        """Return the last days of the record, stretch by stretch."""
        if days not in self._spans:
            since_s = self._learner.recorded.minutes[-1].end_s - days * DAY_S
            self._spans[days] = spans_since(self._learner.recorded, since_s, self._jobs)
        return self._spans[days]

    def __call__(self, setting: RuleSetting, days: float, seed: int, boots: float) -> Floats:
        """Return the dollars of each minute: see `Costs`."""
        key = (setting, days, seed, boots)
        if key not in self._known:
            config, spans = self._learner.config, self.spans(days)
            if boots != 1.0:
                # The recorded boots are not longer.
                config, spans = config.boots_scaled(boots), tuple(replace(span, boots=()) for span in spans)
            own = [under(self._learner, span, setting) for span in spans]
            runs = [self._play(loop, config, span, FIRST_SEED + seed) for loop, span in own]
            self._known[key] = np.concatenate([[], *runs])
        return self._known[key]


def choose(now: RuleSetting, days: float, costs: Costs, guess_s: float | None = None) -> Tuning:
    """Return the setting within reach that the evidence speaks for, or the reason why there is none.

    days: of the record that may be used. guess_s: a horizon that is tried, however far it lies. may_be_used of the
    answer is open: it hangs on the check of the replay.
    """
    tried: set[RuleSetting] = set()

    def cost(setting: RuleSetting, of_days: float, seeds: int = 1) -> float:
        tried.add(setting)
        total = np.mean([costs(setting, min(of_days, days), seed, 1.0).sum() for seed in range(seeds)])
        return float(total) * (1.0 + NEARER * _distance(now, setting))

    def ranked(of_days: float) -> list[RuleSetting]:
        return sorted(ahead, key=lambda one: cost(one, of_days))

    def at(factor: float, of: RuleSetting) -> RuleSetting:
        shortest_s, longest_s = max(SHORTEST_S, now.horizon_s / FACTOR), min(LONGEST_S, now.horizon_s * FACTOR)
        return replace(of, horizon_s=float(round(min(max(of.horizon_s * factor, shortest_s), longest_s))))

    guessed = [] if guess_s is None else [replace(now, horizon_s=guess_s)]
    ahead = list(dict.fromkeys([now, *(at(factor, now) for factor in FACTORS), *guessed]))
    best = ranked(1.0)[0]
    ahead = list(dict.fromkeys([*ahead, *(at(factor, best) for factor in FINER)]))
    best = ranked(1.0)[0]
    ahead = list(dict.fromkeys([*ahead, *(replace(best, idle_s=idle_s) for idle_s in IDLE_S)]))
    ahead = ranked(1.0)[:FINALISTS]
    best = min((now, ranked(SEARCHED_DAYS)[0]), key=lambda one: cost(one, days, SEEDS))
    if best == now:
        return Tuning(now, None, "no setting within reach costs less than the present one", tried=len(tried))
    return replace(_judged(now, best, days, costs), tried=len(tried))


def _distance(now: RuleSetting, then: RuleSetting) -> float:
    """Return how far a setting lies from the present one: the factor of the horizon counts, then idle minutes."""
    return abs(math.log(then.horizon_s / now.horizon_s)) + 0.1 * abs(then.idle_s - now.idle_s) / MINUTE_S


def _judged(now: RuleSetting, best: RuleSetting, days: float, costs: Costs) -> Tuning:
    """Hold a setting to the evidence."""
    before, after = (
        by_hour(np.mean([costs(setting, days, seed, 1.0) for seed in range(SEEDS)], axis=0)) for setting in (now, best)
    )
    cost, saved = float(before.sum()), before - after
    gain = float(saved.sum()) / cost if cost > 0.0 else 0.0
    drawn = resampled(saved.size)
    sums, spent = saved[drawn].sum(axis=1), before[drawn].sum(axis=1)
    low, high = np.quantile(sums / np.maximum(spent, 1e-12), [0.05, 0.95]).tolist()
    cut, sure = round(EARLIER * saved.size), float((sums >= LEAST_GAIN * spent).mean())
    longer = [float(costs(one, min(days, SEARCHED_DAYS), 0, LONGER_BOOTS).sum()) for one in (now, best)]
    against = {
        f"with less than {FEW_DAYS * 24.0:.0f} h at least {FEW_DAYS_GAIN:.0%} are needed": (
            saved.size < FEW_DAYS * 24.0 and gain < FEW_DAYS_GAIN
        ),
        f"{LEAST_GAIN:.0%} or more in {sure:.0%} of the resamples, {SURE:.0%} are needed": sure < SURE,
        "it costs more in the earlier part": saved[:cut].sum() <= 0.0,
        "it costs more in the latest part": saved[cut:].sum() <= 0.0,
        "it costs more where boots take longer": longer[1] >= longer[0],
    }
    refused = [why for why, holds in against.items() if holds]
    what = f"{_changes(now, best)} saves {gain:.1%} [{low:.1%}, {high:.1%}] of {saved.size} recorded hours"
    month = float(saved.mean()) * MONTH_HOURS
    why = f"{what}: {'; '.join(refused)}" if refused else f"{what}, {month:.2f} $ a month"
    hours = float(saved.size)
    return Tuning(now, None if refused else best, why, False, gain, low, high, month, hours)


def resampled(hours: int) -> NDArray[np.int64]:
    """Return resamples of hours in blocks of BLOCK_HOURS, shape (RESAMPLES, hours); hour 0 follows the last one."""
    blocks = math.ceil(hours / BLOCK_HOURS)
    first = np.random.default_rng(0).integers(hours, size=(RESAMPLES, blocks, 1))
    return ((first + np.arange(BLOCK_HOURS)) % hours).reshape(RESAMPLES, -1)[:, :hours]


def _changes(now: RuleSetting, then: RuleSetting) -> str:
    parts = [("horizon", now.horizon_s, then.horizon_s), ("idle time", now.idle_s, then.idle_s)]
    return ", ".join(f"{name} {before:g} -> {after:g} s" for name, before, after in parts if before != after)


def under(learner: Learner, span: Span, setting: RuleSetting) -> tuple[Loop, Span]:
    """Return the loop and the span as they are played under a setting of the queue rule."""
    loop = learner.loop
    terms = loop.terms and replace(loop.terms, horizon_s=setting.horizon_s, idle_s=setting.idle_s)
    job_core_s = setting.job_core_s or (terms.job_core_s if terms else QueueRulePolicy().job_core_s)
    rule = policy_from_name(span.policies[-1]) if names_rule(span.policies[-1]) else QueueRulePolicy()
    policy = QueueRulePolicy(setting.horizon_s, job_core_s, bool(getattr(rule, "single", False))).name
    own = replace(span.without_idle, policies=(policy,) * len(span.policies))
    return replace(loop, idle_s=setting.idle_s, terms=terms), own


def by_rule(minute: DecidedMinute) -> bool:
    """Return whether the queue rule decided at the end of a minute."""
    return names_rule(minute.policy)


def spans_since(
    recorded: Record,
    since_s: float,
    jobs: Sequence[Jobs | None],
    holds: Callable[[DecidedMinute], bool] = by_rule,
) -> tuple[Span, ...]:
    """Return the record since a moment, epoch seconds: the parts of more than an hour whose minutes all hold.

    jobs: of each whole stretch.
    """
    return tuple(
        span_of(f"{minutes[0].end_s:.0f}", minutes, recorded.job_core_s or MINUTE_S, jobs=own)
        for stretch, own in zip(recorded.stretches, jobs, strict=True)
        for minutes in _parts([one for one in stretch if one.end_s >= since_s], holds)
        if len(minutes) * MINUTE_S > HOUR_S
    )


def _parts(
    minutes: Sequence[DecidedMinute], holds: Callable[[DecidedMinute], bool]
) -> Iterator[Sequence[DecidedMinute]]:
    """Yield the parts of a stretch whose minutes hold, each with the minute that ends it."""
    begin = None
    for place, minute in enumerate(minutes):
        if not holds(minute):
            if begin is not None:
                yield minutes[begin : place + 1]
            begin = None
        elif begin is None:
            begin = place
    if begin is not None:
        yield minutes[begin:]


def by_hour(minutes: Floats) -> Floats:
    """Return the sums of each 60 minutes; a rest of less than an hour is added to the last one."""
    whole = max(minutes.size // 60, 1)
    return np.add.reduceat(minutes, 60 * np.arange(whole))
