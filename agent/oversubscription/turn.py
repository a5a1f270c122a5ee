"""The pools of one agent: made from its settings, turned with the loop, their troubles kept from it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

import structlog

from actuators.values import Parameters
from agent.kernel.part import Services
from agent.kernel.transaction import Conflict, retried
from agent.kernel.turn import TickReport, pools_turned
from agent.ledger import Ledger
from agent.models.background import Background
from agent.oversubscription.choice import Decided, Wanted, decide_hour, hot_hours, shadowed
from agent.oversubscription.fold import Folded, HotMachine, fold, hour_of_day
from agent.oversubscription.loads import Loads
from agent.oversubscription.memory import PoolMemory, vm_key
from agent.oversubscription.observation import Sight, expected_requests
from agent.oversubscription.pool import Pool
from agent.oversubscription.profiles import Profiles, profiles_of
from agent.oversubscription.publisher import Publisher
from agent.oversubscription.rate_policies import PoolModels, RatePolicy, policy_of, probationer_of
from agent.oversubscription.recorded_hours import HourRecorder
from agent.oversubscription.records import HourDecision, ShadowRates
from agent.oversubscription.settings import SUBJECTS, pool_rules_of
from agent.oversubscription.state import OVERSUBSCRIPTION, OversubscriptionStore
from agent.oversubscription.usage import FIVE_MINUTES_S, UsageBook
from agent.rails.base import RailLimits
from agent.settings import Settings
from collectors.aws import AwsSession
from domain.clock import Clock
from domain.decisions import AGENT, Event, Reason
from domain.errors import BadInput, TrimtabError
from domain.units import HOUR_S

log = structlog.get_logger(__name__)

GRACE_S: Final = 30.0
"""How long after an hour, or five minutes, late readings are still taken."""
WARM_TWICE: Final = 2
POLICY_PATIENCE_S: Final = 0.5
"""So long a turn waits for the file of the policy, which is read anew for each hour."""
POLICY_TURNS: Final = 2
"""So many turns the hour's decision waits for it; then everything is reserved in full, as when it cannot be read."""


class PoolTurns:
    """Turns one pool; an event on a subject is repeated only once it changed."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._epoch = 0
        self._said: dict[str, tuple[Reason, str]] = {}
        self._five = -1
        self._warm: dict[str, int] = {}
        # Recorded, and not yet returned: a turn that failed half-way returned nothing.
        self._recorded: list[Event] = []
        self._reading: Background[RatePolicy] | None = None
        self._beside: Background[RatePolicy | None] | None = None
        self._waited = 0
        self._recorder = HourRecorder()

    def turn(self, now: float, epoch: int, *, paused: bool) -> tuple[Event, ...]:
        """Turn once and return what happened; raises LedgerError or Fenced when nothing more may be done.

        Whatever could not be written is still there for the next turn: readings of every hour, and events.
        """
        kept = dict(self._said), self._five, dict(self._warm)
        try:
            self._turn(now, epoch, paused=paused)
        except BaseException:
            self._said, self._five, self._warm = kept
            # Its rows stand on the one before, which may not have been written.
            self._recorder.begin_anew()
            raise
        happened, self._recorded = tuple(self._recorded), []
        return happened

    def _turn(self, now: float, epoch: int, *, paused: bool) -> None:
        pool = self.pool
        if epoch != self._epoch:
            self._recorder.begin_anew()
            if self._epoch:
                pool.reload()
            self._epoch = epoch
        pool.leads(now)
        pool.book.hold(pool.memory.hour + 1)
        events: list[Event] = []
        pool.look()
        self._tell(events, "inventory", Reason.METRICS_LOST, pool.problem, now)
        self._watch(now, events)
        last = math.floor((now - GRACE_S) / HOUR_S) - 1
        due = self._due(last)
        if due and not self._policy_is_ready():
            due = ()
        for hour in due:
            self._decide(hour, now, epoch, events, paused=paused)
            events = []
        if due and self._reading is not None and self._reading.over():
            # A file that changes is read again for the next hour.
            self._reading = None
        if due and self._beside is not None and self._beside.over():
            self._beside = None
        if events and not due:
            # A re-arm between reading the memory and writing it would be undone.
            with pool.lock:
                pool.store.write_memory(pool.rules.name, pool.memory, events, epoch=epoch)
            self._recorded += events

    def _due(self, last: int) -> tuple[int, ...]:
        """Return the hours to decide, the oldest first: the last one, and those before it that were not written."""
        written = self.pool.memory.hour
        # An hour before the last one decided: the clock was set back.
        if last < written - 1:
            return (last,)
        return (*(hour for hour in self.pool.book.hours() if written < hour < last), last) if last > written else ()

    def _policy_is_ready(self) -> bool:
        """Have the policy read in a thread of its own; return whether the hour need not wait for it any longer."""
        rules = self.pool.rules
        if self._reading is None:
            call = partial(policy_of, rules.policy, rules, self.pool.models)
            self._reading, self._waited = Background(f"pool {rules.name}", call), 0
        if self._beside is None:
            beside = partial(probationer_of, rules, self.pool.models)
            self._beside = Background(f"pool {rules.name} on probation", beside)
            # Here and not before the decision, under whose lock requests wait.
            self._beside.over(POLICY_PATIENCE_S)
        self._waited += 1
        return self._reading.over(POLICY_PATIENCE_S) or self._waited > POLICY_TURNS

    def _policy(self) -> RatePolicy:
        """Return the policy that was read; BadInput when it cannot be had. What still hangs is not begun again."""
        reading = self._reading
        if reading is not None and not reading.over():
            remedy = f"it is still being read, for {reading.age_s:.0f} s now: look after the file and its disk"
            raise BadInput("policy", self.pool.rules.policy, remedy)
        try:
            pool = self.pool
            return policy_of(pool.rules.policy, pool.rules, pool.models) if reading is None else reading.answer()
        except TrimtabError:
            raise
        except Exception as error:
            # Memory that does not suffice, say: the pool's turn goes on without the policy.
            raise BadInput("policy", self.pool.rules.policy, f"it fails: {type(error).__name__}: {error}") from error

    def _decide(self, hour: int, now: float, epoch: int, events: list[Event], *, paused: bool) -> None:
        pool = self.pool
        rules, before = pool.rules, pool.memory
        readings = pool.book.close(hour)
        profiles = profiles_of(before.subscribers, before.hour, rules.rho, rules.persistence)
        folded = fold(before, pool.vms, readings, hour, rules, profiles)
        # What was learnt in this hour counts from now on.
        pool.rebuild(folded.memory)
        with pool.lock:
            folded = replace(folded, memory=_with_answers(folded.memory, pool.memory))
            loads, known = pool.ground()
            fresh = self._fresh(now)
            sight = self._sight(folded, loads, known)
            wanted = self._wanted(sight, events, now)
            learning = self._recorder.row(rules, pool.vms, readings, hour, len(folded.hot), rules.policy)

            def attempt() -> tuple[Decided, list[Event]]:
                number = pool.next_number()
                decided = decide_hour(folded, loads, known, rules, wanted, now, number, paused=paused, fresh=fresh)
                decided = replace(decided, decision=replace(decided.decision, shadow=self._shadow(sight, decided)))
                noted = [*events, *self._happened(folded, decided, before, now)]
                try:
                    pool.store.write_hour(
                        *(number, decided.memory, decided.decision, decided.inputs, noted),
                        epoch=epoch,
                        learning=learning,
                    )
                except Conflict:
                    pool.forget_number()
                    raise
                return decided, noted

            decided, noted = retried(f"pool {rules.name}", attempt)
            pool.take(decided.memory, decided.decision)
            pool.book.written(hour, now)
            self._recorded += noted
            made = decided.decision
            log.info("rates", pool=rules.name, decision_id=made.decision_id, detail=made.detail)

    def _shadow(self, sight: Sight, decided: Decided) -> ShadowRates | None:
        """Return what the model on probation would have decided; whatever is wrong with it changes nothing else.

        None where there is none; one that is still being read has its next chance in an hour.
        """
        beside, before = self._beside, None if self.pool.hour is None else self.pool.hour.shadow
        if beside is None or not beside.over():
            return None
        model = ""
        try:
            policy = beside.answer()
            if policy is None:
                return None
            model = policy.model
            return shadowed(decided.inputs, Wanted(policy.rates(sight), policy.budget, model), before)
        except Exception as error:
            log.warning("shadow_failed", pool=self.pool.rules.name, detail=str(error))
            return ShadowRates(model, (), 0.0, f"{type(error).__name__}: {error}")

    def _sight(self, folded: Folded, loads: Loads, profiles: Profiles) -> Sight:
        pool, memory = self.pool, folded.memory
        clock = hour_of_day(memory.hour + 1, pool.rules)
        return Sight(
            memories=memory.subscribers,
            vms=(*pool.vms.values(), *(vm for vm, _ in pool.promised.values() if vm.vm not in pool.vms)),
            asked=expected_requests(memory.subscribers, clock),
            loads=loads,
            profiles=profiles,
            rules=pool.rules,
            hour_of_day=clock,
            hot_hours=hot_hours(memory, pool.rules),
        )

    def _wanted(self, sight: Sight, events: list[Event], now: float) -> Wanted | None:
        try:
            policy = self._policy()
            wanted = Wanted(policy.rates(sight), policy.budget, policy.model, policy.multiplier)
        except BadInput as error:
            # Everything is reserved until it can be read again.
            self._tell(events, "policy", Reason.POLICY_FAILED, str(error), now)
            return None
        self._tell(events, "policy", Reason.POLICY_FAILED, "", now)
        origin = f"{policy.model} sets the rates, {f'forced: {policy.forced}' if policy.forced else 'promoted'}"
        self._tell(events, "model", Reason.MODEL_READY, origin if policy.model else "", now)
        return wanted

    def _fresh(self, now: float) -> bool:
        """Return whether the inventory can be gone by: it was written lately, and could be read."""
        pool = self.pool
        return pool.inventory_at is not None and now - pool.inventory_at <= HOUR_S + pool.rules.stale_s

    def _happened(self, folded: Folded, decided: Decided, before: PoolMemory, now: float) -> Iterator[Event]:
        rules, decision = self.pool.rules, decided.decision
        moved = any(abs(row.rate - row.previous_rate) > 1e-9 for row in decision.subscribers)
        if moved:
            yield self._event(now, Reason.RATES_CHANGED, f"{decision.decision_id}: {decision.detail}")
        for machine in folded.hot:
            detail = (
                f"{machine.machine} used {machine.cores:.1f} cores of {rules.machine_cores:g} in the last hour, "
                f"{rules.threshold_cores:g} are hot: it takes no new oversold VM; {_consequence(machine, decision)}; "
                f"moving {', '.join(machine.migrations)} away helps most"
            )
            yield self._event(now, Reason.MACHINE_HOT, detail, machine.machine)
        for machine_name, chance in decided.assessed.likely:
            detail = f"{machine_name} will be hot in the next hour with a chance of {chance:.0%}"
            yield self._event(now, Reason.MACHINE_WARM, detail, machine_name)
        for name in folded.drifted:
            detail = f"{name} uses its cores otherwise than it did: new VMs are reserved in full until that is learnt"
            yield self._event(now, Reason.USAGE_DRIFTED, detail, name)
        seen = decision.risk.hot_hours_seen
        if decision.rolled_back and not before.rolled_back:
            detail = (
                f"{seen} hot hours in {rules.horizon_h} h break the promise: every new VM is reserved in full until "
                f"an operator re-arms the pool: trimtab rearm {rules.name}"
            )
            yield self._event(now, Reason.RATES_ROLLED_BACK, detail)
        elif decision.frozen and not decision.rolled_back and not self._was_frozen:
            detail = f"{seen} hot hours in {rules.horizon_h} h, one more breaks the promise: no rate goes down"
            yield self._event(now, Reason.RATES_FROZEN, detail)

    @property
    def _was_frozen(self) -> bool:
        return self.pool.hour is not None and self.pool.hour.frozen

    def _watch(self, now: float, events: list[Event]) -> None:
        """Warn of machines that were warm in two five-minute means in a row (§13)."""
        pool = self.pool
        index = math.floor((now - GRACE_S) / FIVE_MINUTES_S) - 1
        if index == self._five or not pool.vms or pool.profiles is None:
            return
        in_a_row = index == self._five + 1
        self._five = index
        measured = pool.book.five_minutes(index)
        if not measured:
            self._warm.clear()
            return
        clock = hour_of_day(math.floor(index * FIVE_MINUTES_S / HOUR_S), pool.rules)
        place = {name: n for n, name in enumerate(pool.profiles.names)}
        expected = pool.profiles.mean[:, clock].tolist()
        cores: dict[str, float] = {}
        last = dict(zip(pool.memory.table.names, pool.memory.table.last, strict=True))
        for vm in pool.vms.values():
            usage = measured.get((vm.subscriber, vm.vm))
            if usage is None:
                usage = last.get(vm_key(vm), expected[place.get(vm.subscriber, len(place))])
            cores[vm.machine] = cores.get(vm.machine, 0.0) + usage * vm.cores
        warm = {name: held for name, held in cores.items() if held >= pool.rules.warning_cores - 1e-9}
        self._warm = {name: (self._warm.get(name, 0) if in_a_row else 0) + 1 for name in warm}
        for name, times in self._warm.items():
            if times == WARM_TWICE:
                limit = pool.rules.threshold_cores
                detail = f"{name} uses {warm[name]:.1f} cores, twice in five minutes, {limit:g} are hot"
                events.append(self._event(now, Reason.MACHINE_WARM, detail, name))

    def _tell(self, events: list[Event], subject: str, reason: Reason, detail: str, now: float) -> None:
        if not detail:
            self._said.pop(subject, None)
        elif self._said.get(subject) != (reason, detail):
            self._said[subject] = (reason, detail)
            events.append(self._event(now, reason, detail))

    def _event(self, now: float, reason: Reason, detail: str, subject: str = "") -> Event:
        name = self.pool.rules.name
        return Event(AGENT, now, reason, f"{name}: {detail}", subject or name)


def _consequence(machine: HotMachine, decision: HourDecision) -> str:
    """Return what becomes of the rates of those that use most of a hot machine."""
    rows = {row.subscriber: row for row in decision.subscribers}
    raised = [name for name in machine.subscribers if rows[name].rate > rows[name].previous_rate + 1e-9]
    most = f"mostly by {' and '.join(machine.subscribers)}"
    if raised:
        return f"{most}, and new VMs of {' and '.join(raised)} are reserved more"
    if decision.rolled_back:
        return f"{most}; every new VM of the pool is reserved in full already"
    return f"{most}, whose rates cannot go up"


def _with_answers(folded: PoolMemory, now: PoolMemory) -> PoolMemory:
    """Return what was folded, with what requests and operators did to the memory meanwhile."""
    mine = folded.counts
    counts = replace(
        now.counts,
        hot_machine_hours=mine.hot_machine_hours,
        realised_hot_hours=mine.realised_hot_hours,
        drift_alarms=mine.drift_alarms,
        peak_machines=mine.peak_machines,
    )
    return replace(folded, counts=counts, rolled_back=now.rolled_back, armed_hour=now.armed_hour)


class Pools(Services[Pool]):
    """Pools by their name; any thread may ask them."""

    def __init__(
        self,
        pools: Mapping[str, Pool],
        ledger: Ledger | None = None,
        publishers: Mapping[str, Publisher] | None = None,
    ) -> None:
        super().__init__(pools)
        self._ledger = ledger
        self._publishers = dict(publishers or {})
        self._turns = {name: PoolTurns(pool) for name, pool in self.items()}

    def turned(self, report: TickReport, epoch: int) -> TickReport:
        """Turn every pool after the loop's turn and return the report of all."""
        if report.failure is not None or self._ledger is None:
            return report
        # Where a turn is cut short no rate is renewed: answers fall back to 1.0 when the last hour is too old.
        return pools_turned(
            report, OVERSUBSCRIPTION, ((name, partial(self._turn, name, report.at, epoch)) for name in self)
        )

    def _turn(self, name: str, now: float, epoch: int) -> tuple[Event, ...]:
        assert self._ledger is not None, "only pools on a ledger turn"
        controls = self._ledger.controls(OVERSUBSCRIPTION, name)
        events = self._turns[name].turn(now, epoch, paused=any(pause.active(now) for pause in controls.pauses))
        if name in self._publishers:
            events += self._publishers[name].turn(now, epoch, controls)
        return events


def pools_of(settings: Settings, ledger: Ledger, clock: Clock, session: AwsSession | None) -> Pools:
    """Return the pools that the settings describe, on this ledger."""
    pools: dict[str, Pool] = {}
    publishers: dict[str, Publisher] = {}
    for name, one in SUBJECTS.of(settings).items():
        book = UsageBook(unknown_per_peer=settings.listener.unknown_vms_per_peer)
        models = PoolModels(settings.models_directory, settings.promotion_key)
        pool = pools[name] = Pool(
            pool_rules_of(name, one), OversubscriptionStore(ledger), clock, one.inventory_file, book, models
        )
        # Before readings come, so that those of the VMs that it lists need not wait.
        pool.read_inventory()
        if one.parameter is not None and session is not None:
            parameters, limits = Parameters(session), RailLimits()
            publishers[name] = Publisher(pool, one.parameter, parameters, ledger, settings.mode, limits, clock)
    return Pools(pools, ledger, publishers)
