"""Exact branches: what each candidate of a minute would have cost on the same jobs and boots.

An episode is played in one copy. At a branched minute that copy is written over scratch copies; each takes one
candidate, goes on under the queue rule for some steps, and its cost is read. Boots are keyed by seed and request, and
jobs are those of the trace, so that two branches differ by their first orders alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.observations import autoscaling_scorer as scorer
from domain.observations.autoscaling_scorer import ANNOUNCED, CANDIDATES, MEMORY, STATES
from domain.rules import autoscaling as rules
from domain.rules.autoscaling import MOST_CANDIDATES
from domain.rules.queue_rule import RuleSetting
from domain.units import HOUR_S
from domain.workload import Trace
from simulator.autoscaling.configuration import UNITS_PER_DOLLAR, RemovalChoice, SimulationConfig
from simulator.autoscaling.episode import begin_step, end_step, reset_copy
from simulator.autoscaling.jobs import oldest_arrival
from simulator.autoscaling.memory import (
    ADDRESSES,
    COPIES,
    Copy,
    Records,
    count_at,
    job_at,
    kind_at,
    ready_slot,
    running_at,
    settings_of,
    side_at,
    vm_at,
)
from simulator.autoscaling.orders import carry_out, cooldown_left
from simulator.autoscaling.packing import pack
from simulator.compilation import compiled

Floats = NDArray[np.float64]
Weights = NDArray[np.float32]
Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]

BRANCH_STEPS = 24
"""Steps under the rule after a candidate's own: most of what an order costs has come by then."""
TAIL_S = 120.0
"""Beyond the last step, rent and waiting go on for so long, and what is queued costs its cores at the lowest price."""

NOT_ANNOUNCED = np.zeros((0, 4))
"""The rows of no announcements."""

_NEWEST = list(RemovalChoice).index(RemovalChoice.NEWEST)
_KEPT = len(ADDRESSES) * 8
if COPIES.names is None or COPIES.names[: len(ADDRESSES)] != ADDRESSES:
    raise AssertionError("the addresses of a copy come first in its record")


def _bound(function: Callable[..., Any], **callees: Any) -> Any:
    """Compile a rule that calls other rules: numba binds its globals, which must hold the compiled ones."""
    assert isinstance(function, FunctionType)
    made = FunctionType(
        function.__code__, {**function.__globals__, **callees}, function.__name__, function.__defaults__
    )
    made.__qualname__, made.__module__ = function.__qualname__, function.__module__
    return compiled(made)


fill = _bound(rules.fill, next_type=compiled(rules.next_type))
queue_rule = _bound(rules.queue_rule_multi, fill=fill)
add_candidate = compiled(rules.add_candidate)
cheapest_split = compiled(rules.cheapest_split)
candidate_targets = _bound(
    rules.candidate_targets,
    fill=fill,
    queue_rule_multi=queue_rule,
    add_candidate=add_candidate,
    cheapest_split=cheapest_split,
)
remember = compiled(scorer.remember)
kept_to_rule = compiled(scorer.kept_to_rule)
announced_core_s = compiled(scorer.announced_core_s)
fold_announcements = _bound(scorer.fold_announcements, announced_core_s=announced_core_s)
observe_state = compiled(scorer.observe_state)
observe_candidates = compiled(scorer.observe_candidates)
gain_unit = compiled(scorer.gain_unit)
judge = compiled(scorer.judge)


class Sight(NamedTuple):
    """Room for what is read of a copy at a decision; per type, N entries each."""

    cores: Ints
    prices: Floats
    limits: Ints
    floor: Ints
    ready: Ints
    booting: Ints
    requested: Ints
    idle: Ints
    idle_long: Ints
    minimum: Ints
    maximum: Ints
    cooling_out_s: Floats
    cooling_in_s: Floats
    boot_low_s: Floats
    boot_high_s: Floats
    rule: Floats
    """Of the queue rule: horizon_s, idle_s, and job_core_s, which is 0 where the work of waiting jobs is known."""
    announcements: Floats
    """Rows of `domain.announcements.rows_of`, in seconds of the trace."""
    announcing: Floats
    """Whether announcements are made at all (1 or 0), and how long before work comes a fleet prepares (`lead_of`)."""


def sight_of(config: SimulationConfig, rule: RuleSetting) -> Sight:
    """Return the room for a configuration's fleet, with what never changes filled in."""
    kinds = len(config.types)
    low, high = (np.array(column, dtype=np.float64) for column in zip(*config.boot_ranges_s, strict=True))

    def ints(values: Any) -> Ints:
        return np.array(values, dtype=np.int64)

    def empty() -> Ints:
        return np.zeros(kinds, dtype=np.int64)

    return Sight(
        cores=ints(config.cores),
        prices=np.array([kind.price_per_hour for kind in config.types], dtype=np.float64),
        limits=ints(config.limits),
        floor=ints(config.minimum),
        ready=empty(),
        booting=empty(),
        requested=empty(),
        idle=empty(),
        idle_long=empty(),
        minimum=empty(),
        maximum=empty(),
        cooling_out_s=np.zeros(kinds),
        cooling_in_s=np.zeros(kinds),
        boot_low_s=low,
        boot_high_s=high,
        rule=np.array([rule.horizon_s, rule.idle_s, rule.job_core_s]),
        announcements=NOT_ANNOUNCED,
        announcing=np.array([0.0, scorer.lead_of(ints(config.cores), ints(config.limits), low, high, config.step_s)]),
    )


@compiled
def look(copy: Copy, sight: Sight) -> float:
    """Read a copy into `sight` and return the core-seconds that wait, as far as they are known."""
    for kind in range(copy.kinds):
        count = count_at(copy, kind)
        sight.ready[kind], sight.booting[kind] = count.ready, count.booting
        sight.requested[kind] = count.ready + count.booting
        sight.cooling_out_s[kind] = cooldown_left(copy, kind, True)
        sight.cooling_in_s[kind] = cooldown_left(copy, kind, False)
        sight.idle[kind] = sight.idle_long[kind] = 0
        sight.maximum[kind] = sight.limits[kind]
        if sight.cooling_out_s[kind] > 0.0:
            sight.maximum[kind] = min(sight.requested[kind], sight.limits[kind])
        sight.minimum[kind] = sight.floor[kind]
        if sight.cooling_in_s[kind] > 0.0:
            sight.minimum[kind] = max(sight.requested[kind], sight.floor[kind])
    newest = settings_of(copy).removal_choice == _NEWEST
    for kind in range(copy.kinds):
        long = True
        for place in range(copy.ready - 1, -1, -1):
            vm = vm_at(copy, ready_slot(copy, place))
            if vm.kind != kind:
                continue
            idle_s = copy.now - vm.idle_since if vm.free == vm.cores else 0.0
            if idle_s > 0.0:
                sight.idle[kind] += 1
            elif newest:
                break
            long = (long or not newest) and idle_s >= sight.rule[1]
            sight.idle_long[kind] += long and idle_s > 0.0
    if sight.rule[2] <= 0.0:
        return float(copy.queued_core_s)
    mean = copy.finished_core_s / copy.finished if copy.finished > 0 else sight.rule[2]
    return float((copy.waiting - copy.uncounted) * mean)


@compiled
def order(copy: Copy, sight: Sight, target: Ints) -> None:
    """Do one step with the orders that lead to a target: removals first, larger types first in both."""
    begin_step(copy)
    for sign in (-1, 1):
        for place in range(copy.kinds):
            kind = kind_at(copy, place).by_size
            change = target[kind] - sight.requested[kind]
            if change * sign > 0:
                carry_out(copy, kind, change)
    end_step(copy)


@compiled
def preparing_for(copy: Copy, sight: Sight) -> float:
    """Return the core-seconds announced for the time that a new VM takes to boot."""
    return float(announced_core_s(sight.announcements, copy.now, copy.now + sight.announcing[1]))


@compiled
def step_by_rule(copy: Copy, sight: Sight) -> None:
    """Do one step under the queue rule, as `candidate_targets` has it; types that may not change are left out."""
    waiting_core_s = look(copy, sight) + rules.PREPARED_SHARE * preparing_for(copy, sight)
    target = queue_rule(
        waiting_core_s,
        sight.rule[0],
        sight.cores,
        sight.requested,
        sight.booting,
        sight.idle_long,
        sight.minimum,
        sight.maximum,
        float(copy.free_cores),
        float(copy.busy_cores),
    )
    order(copy, sight, target)


@compiled
def cost_of(copy: Copy) -> float:
    """Return the dollars of a copy's episode so far."""
    whole = copy.rent_dollars + copy.penalty_dollars
    return float(whole + (copy.rent_units + copy.penalty_units) / UNITS_PER_DOLLAR)


@compiled
def _cheapest(sight: Sight) -> float:
    """Return the lowest price of a core, dollars per hour, among the types that may have a VM; 0 without one."""
    cheapest = np.inf
    for kind in range(sight.cores.size):
        if sight.limits[kind] > 0:
            cheapest = min(cheapest, sight.prices[kind] / sight.cores[kind])
    return float(cheapest) if cheapest < np.inf else 0.0


@compiled
def _tail(copy: Copy, sight: Sight) -> float:
    """Return what a copy's state costs beyond the last step played."""
    if copy.over:
        return 0.0
    cheapest = _cheapest(sight)
    waiting_price = settings_of(copy).waiting_price_micro / 1e6
    rent = copy.rate_micro / 1e6
    waiting = copy.waiting - copy.uncounted
    return float(((rent + waiting_price * waiting) * TAIL_S + cheapest * copy.queued_core_s) / HOUR_S)


@compiled
def _write_over(copies: Records, rows: Bytes, tables: tuple[Bytes, ...], target: int) -> None:
    """Write the first copy over another: its scalars, its tables, and the used parts of its two long ones."""
    for at in range(_KEPT, rows.shape[1]):
        rows[target, at] = rows[0, at]
    for table in tables:
        table[target] = table[0]
    source, other = copies[0], copies[target]
    for place in range(source.running):
        old, new = running_at(source, place), running_at(other, place)
        new.end, new.start, new.waited, new.remaining = old.end, old.start, old.waited, old.remaining
        new.position, new.sequence, new.count, new.slot = old.position, old.sequence, old.count, old.slot
    for entry in range(source.side_head, source.side_end):
        aside, moved = side_at(source, entry), side_at(other, entry)
        moved.since, moved.waited, moved.remaining = aside.since, aside.waited, aside.remaining
        moved.position, moved.unseen = aside.position, aside.unseen


@compiled
def branch(
    copies: Records,
    rows: Bytes,
    tables: tuple[Bytes, ...],
    sight: Sight,
    targets: Ints,
    count: int,
    steps: int,
    costs: Floats,
) -> int:
    """Write what each of the first `count` targets costs from here on, and return how many steps were played for it.

    `sight` must show the first copy.
    """
    begun = cost_of(copies[0])
    played = count
    requested = sight.requested.copy()
    for place in range(count):
        _write_over(copies, rows, tables, 1)
        copy = copies[1]
        sight.requested[:] = requested
        order(copy, sight, targets[place])
        for _ in range(steps):
            if copy.over:
                break
            step_by_rule(copy, sight)
            played += 1
        costs[place] = cost_of(copy) - begun + _tail(copy, sight)
    look(copies[0], sight)
    return played


@compiled
def advance(state: Floats, weights: tuple[Weights, ...], recurrent: Floats) -> None:
    """Bring the LSTMs of an ensemble up to a minute. recurrent: hidden state and cells of each network [2, E, K]."""
    inward, across, bias = weights[5], weights[6], weights[7]
    cells = across.shape[1]
    gates = np.zeros(4 * cells)
    for e in range(across.shape[0]):
        for g in range(gates.size):
            gates[g] = bias[e, g]
        for i in range(state.size):
            value = state[i]
            if value != 0.0:
                for g in range(gates.size):
                    gates[g] += value * inward[e, i, g]
        for k in range(cells):
            for g in range(gates.size):
                gates[g] += recurrent[0, e, k] * across[e, k, g]
        for k in range(cells):
            kept = recurrent[1, e, k] / (1.0 + math.exp(-gates[2 * cells + k]))
            kept += math.tanh(gates[3 * cells + k]) / (1.0 + math.exp(-gates[k]))
            recurrent[1, e, k] = kept
            recurrent[0, e, k] = math.tanh(kept) / (1.0 + math.exp(-gates[cells + k]))


@compiled
def score(
    state: Floats, candidates: Floats, count: int, weights: tuple[Weights, ...], recurrent: Floats, out: Floats
) -> None:
    """Write the scores of an ensemble (`judge`) after a minute's `advance`.

    weights: of the layers, [E, S + C + K, H], [E, H], [E, H, H], [E, H], [E, H], the inputs being state, candidate and
    the K cells of the network's LSTM; then of the LSTM, [E, S, 4 K], [E, K, 4 K], [E, 4 K], gates in the order of ONNX:
    input, output, forget, candidate. K is 0 without memory. The last layer's bias changes no choice and is left out.
    """
    first, first_bias, second, second_bias, last = weights[:5]
    hidden = first.shape[2]
    shared, one, two = np.zeros(hidden), np.zeros(hidden), np.zeros(hidden)
    votes = np.zeros((count, first.shape[0]))
    for e in range(first.shape[0]):
        for h in range(hidden):
            shared[h] = first_bias[e, h]
        for i in range(state.size):
            for h in range(hidden):
                shared[h] += state[i] * first[e, i, h]
        for k in range(recurrent.shape[2]):
            for h in range(hidden):
                shared[h] += recurrent[0, e, k] * first[e, state.size + candidates.shape[1] + k, h]
        for row in range(count):
            one[:] = shared
            for i in range(candidates.shape[1]):
                value = candidates[row, i]
                if value != 0.0:
                    for h in range(hidden):
                        one[h] += value * first[e, state.size + i, h]
            for h in range(hidden):
                two[h] = second_bias[e, h]
            for i in range(hidden):
                if one[i] > 0.0:
                    for h in range(hidden):
                        two[h] += one[i] * second[e, i, h]
            for h in range(hidden):
                if two[h] > 0.0:
                    votes[row, e] += two[h] * last[e, h]
    judge(votes, count, out)


@compiled
def _random(word: NDArray[np.uint64]) -> float:
    """Return a draw in [0, 1) and move the generator on (xorshift64*)."""
    x = word[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    word[0] = x
    return float((x * np.uint64(0x2545F4914F6CDD1D)) >> np.uint64(11)) / 9007199254740992.0


@compiled
def play(
    copies: Records,
    rows: Bytes,
    tables: tuple[Bytes, ...],
    sight: Sight,
    weights: tuple[Weights, ...],
    margin: float,
    idle_limit_min: float,
    explore: float,
    temperature: float,
    branch_share: float,
    steps: int,
    word: NDArray[np.uint64],
    states: Floats,
    candidates: Floats,
    counts: Ints,
    costs: Floats,
    units: Floats,
    taken: Ints,
    spent: Floats,
    minutes: Floats,
    at: Ints,
) -> tuple[int, int, int]:
    """Play the first copy to its end and return three counts.

    They are the minutes that were branched, the decisions that left the rule's choice, and the steps of the simulator,
    those of branches too.

    A share `explore` of the decisions is drawn from the candidates; the others take the best score where it beats the
    rule's by `margin`, the rule's own choice while VMs beyond the minimum idle for `idle_limit_min`, and without
    weights ([0, ...]) always. With a temperature they are drawn from the softmax of the scores, those beside the rule's
    less `margin`, over it. A share `branch_share` of the minutes is branched as long as `states` [B, S], `candidates`
    [B, M, C], `counts` [B], `costs` [B, M] and `units` [B] have room; with `steps` below 0 they are only written down.
    `taken` [B] is what was taken, -1 where it was not the scorer's to choose, and `spent` [B] the dollars until then.
    `minutes` [T, S] are the states of the first T minutes, and `at` [B] which of them were branched.
    """
    copy = copies[0]
    settings = settings_of(copy)
    waiting_price = settings.waiting_price_micro / 1e6
    memory, state, announced = np.zeros(MEMORY), np.zeros(STATES), np.zeros(ANNOUNCED)
    seen, logits = np.zeros((MOST_CANDIDATES, CANDIDATES)), np.zeros(MOST_CANDIDATES)
    targets = np.zeros((MOST_CANDIDATES, copy.kinds), dtype=np.int64)
    done = departures = submitted = played = 0
    learned = weights[0].shape[0] > 0
    recurrent = np.zeros((2, weights[6].shape[0], weights[6].shape[1]))
    passed = 0
    cheapest = _cheapest(sight)
    while not copy.over:
        waiting_core_s = look(copy, sight)
        waiting = copy.waiting - copy.uncounted
        arrived = copy.submitted - submitted
        arrived_core_s = 0.0
        if sight.rule[2] <= 0.0:
            for position in range(submitted, copy.submitted):
                arrived_core_s += job_at(copy, position).submitted_core_s
        else:
            mean = copy.finished_core_s / copy.finished if copy.finished > 0 else sight.rule[2]
            arrived_core_s = arrived * mean
        submitted = copy.submitted
        above = 0.0
        for kind in range(copy.kinds):
            above += max(sight.requested[kind] - sight.floor[kind], 0) * sight.cores[kind]
        remember(memory, float(arrived), arrived_core_s, float(waiting), float(copy.free_cores), above)
        coming_core_s = preparing_for(copy, sight)
        fold_announcements(sight.announcements, sight.announcing[0], copy.now, memory[MEMORY - 2], announced)
        count = candidate_targets(
            waiting_core_s,
            sight.rule[0],
            sight.cores,
            sight.prices,
            sight.requested,
            sight.booting,
            sight.idle_long,
            sight.idle,
            sight.minimum,
            sight.maximum,
            float(copy.free_cores),
            float(copy.busy_cores),
            coming_core_s,
            targets,
        )
        chosen = 0
        branched = count > 1 and done < states.shape[0] and _random(word) < branch_share
        if passed < minutes.shape[0] or recurrent.size > 0 or (count > 1 and (branched or learned)):
            observe_state(
                memory,
                float(waiting),
                waiting_core_s,
                copy.now - oldest_arrival(copy) if copy.waiting > 0 else 0.0,
                sight.rule[0],
                sight.cores,
                sight.prices,
                sight.ready,
                sight.booting,
                sight.idle,
                sight.floor,
                sight.limits,
                sight.cooling_out_s,
                sight.cooling_in_s,
                settings.cooldown_s,
                sight.boot_low_s,
                sight.boot_high_s,
                float(copy.free_cores),
                float(copy.busy_cores),
                waiting_price,
                announced,
                state,
            )
            if passed < minutes.shape[0]:
                minutes[passed] = state
            if recurrent.size > 0:
                advance(state, weights, recurrent)
        if count > 1 and (branched or learned):
            observe_candidates(
                targets,
                count,
                waiting_core_s,
                sight.rule[0],
                sight.cores,
                sight.prices,
                sight.requested,
                sight.booting,
                sight.idle,
                sight.limits,
                float(copy.free_cores),
                float(copy.busy_cores),
                waiting_price,
                coming_core_s,
                seen,
            )
        if branched:
            states[done], candidates[done] = state, seen
            counts[done] = count
            cores = 0.0
            for kind in range(copy.kinds):
                cores += sight.requested[kind] * sight.cores[kind]
            units[done] = gain_unit(cores, (waiting_core_s + coming_core_s) / sight.rule[0], cheapest)
            taken[done], spent[done], at[done] = -1, cost_of(copy), passed
            if steps >= 0:
                played += branch(copies, rows, tables, sight, targets, count, steps, costs[done])
            done += 1
        if count > 1 and explore > 0.0 and _random(word) < explore:
            chosen = int(_random(word) * count)
        elif count > 1 and learned and not kept_to_rule(memory, idle_limit_min, announced):
            score(state, seen, count, weights, recurrent, logits)
            if temperature > 0.0:
                for row in range(count):
                    # The greatest of scores with such noise is a draw from their softmax.
                    apart = logits[row] - (margin if row > 0 else 0.0)
                    logits[row] = apart / temperature - math.log(-math.log(max(_random(word), 1e-12)))
            for row in range(1, count):
                if logits[row] > logits[chosen]:
                    chosen = row
            if temperature <= 0.0 and logits[chosen] - logits[0] <= margin:
                chosen = 0
            if branched:
                taken[done - 1] = chosen
        departures += chosen != 0
        passed += 1
        order(copy, sight, targets[chosen])
        played += 1
    return done, departures, played


def without_memory(networks: int) -> tuple[Weights, ...]:
    """Return LSTMs without cells for a number of networks, as `score` takes them."""
    shapes = ((networks, STATES, 0), (networks, 0, 0), (networks, 0))
    return tuple(np.zeros(shape, dtype=np.float32) for shape in shapes)


NO_WEIGHTS: tuple[Weights, ...] = (
    np.zeros((0, STATES + CANDIDATES, 1), dtype=np.float32),
    np.zeros((0, 1), dtype=np.float32),
    np.zeros((0, 1, 1), dtype=np.float32),
    np.zeros((0, 1), dtype=np.float32),
    np.zeros((0, 1), dtype=np.float32),
    *without_memory(0),
)
"""The weights of no scorer: the queue rule decides."""


@dataclass(frozen=True, slots=True)
class Branches:
    """B branched minutes: state [B, S], candidates [B, M, C], how many of the M there are [B], dollars [B, M].

    units: dollars in which gains are counted [B], see `gain_unit`. cost: dollars of the whole episode. departures:
    decisions that were not the rule's. steps: of the simulator, those of branches too. taken: the candidate that the
    scorer took [B], -1 where it was not its to choose. spent: dollars of the episode before each of them [B]. minutes:
    states of all minutes up to the last branched one [T, S], where asked for. at: which of them were branched [B].
    """

    states: Floats
    candidates: Floats
    counts: Ints
    costs: Floats
    units: Floats
    cost: float
    departures: int
    steps: int
    taken: Ints
    spent: Floats
    minutes: Floats
    at: Ints


class BranchedEpisodes:
    """Plays episodes of one world and trace, under a scorer or the queue rule, and branches some of their minutes."""

    def __init__(self, config: SimulationConfig, trace: Trace, rule: RuleSetting) -> None:
        """Lay out the memory; BadInput for a trace whose jobs wait for one another."""
        if trace.staged:
            raise BadInput("trace", trace.name, "give one whose jobs arrive at fixed times")
        self._worlds = worlds = pack(config, (trace,), 2)
        self._steps = config.max_steps
        self._sight = sight_of(config, rule)
        self._rows = worlds.copies.view(np.uint8).reshape(2, COPIES.itemsize)
        small = (worlds.counts, worlds.vms, worlds.meters, worlds.ready, worlds.booting, worlds.free, worlds.starting)
        self._tables = tuple(table.view(np.uint8).reshape(2, -1) for table in small)

    def play(
        self,
        seed: int,
        weights: tuple[Weights, ...] = NO_WEIGHTS,
        *,
        margin: float = 0.0,
        idle_limit_min: float = math.inf,
        explore: float = 0.0,
        temperature: float = 0.0,
        branch_share: float = 0.0,
        most: int = 0,
        steps: int = BRANCH_STEPS,
        draw: int = 1,
        announcements: Floats | None = None,
        through_time: bool = False,
    ) -> Branches:
        """Play one episode.

        seed: of its boots. draw: seed of exploration and of the choice of branched minutes. announcements: known coming
        work, rows of `domain.announcements.rows_of` in seconds of the trace, all known from the start; None where
        none is announced. Without weights the queue rule decides, which counts some of that work as waiting.
        through_time: also return the states of the minutes between.
        """
        rows = NOT_ANNOUNCED if announcements is None else np.ascontiguousarray(announcements, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != NOT_ANNOUNCED.shape[1]:
            raise BadInput("shape of announcements", rows.shape, "give rows of at, jobs, job_core_s and over_s")
        announcing = self._sight.announcing.copy()
        announcing[0] = float(announcements is not None)
        sight = self._sight._replace(announcements=rows, announcing=announcing)
        for copy in range(2):
            reset_copy(self._worlds.copies[copy], seed, 0)
        shape = (most, MOST_CANDIDATES)
        states, candidates = np.zeros((most, STATES)), np.zeros((*shape, CANDIDATES))
        counts, costs = np.zeros(most, dtype=np.int64), np.zeros(shape)
        units = np.zeros(most)
        taken, spent, at = np.zeros(most, dtype=np.int64), np.zeros(most), np.zeros(most, dtype=np.int64)
        minutes = np.zeros((self._steps if through_time else 0, STATES))
        word = np.array([(draw * 2_654_435_769 + 88_172_645_463_325_252) & (2**64 - 1)], dtype=np.uint64)
        done, departures, played = play(
            self._worlds.copies,
            self._rows,
            self._tables,
            sight,
            weights,
            margin,
            idle_limit_min,
            explore,
            temperature,
            branch_share,
            steps,
            word,
            states,
            candidates,
            counts,
            costs,
            units,
            taken,
            spent,
            minutes,
            at,
        )
        cost = float(cost_of(self._worlds.copies[0]))
        kept = slice(done)
        return Branches(
            states[kept],
            candidates[kept],
            counts[kept],
            costs[kept],
            units[kept],
            cost,
            departures,
            played,
            taken[kept],
            spent[kept],
            minutes[: at[done - 1] + 1 if done else 0],
            at[kept],
        )
