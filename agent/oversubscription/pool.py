"""One pool: answers requests from any thread, decides each hour in the loop's, and remembers on disk (§13).

An hour: readings --fold--> memory --policy--> wanted rates --choice, rails--> rates, with the risk of the pool.
A response is in the ledger before it is sent; the state in memory can be read again from ledger and inventory.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from agent.kernel.leads import Led
from agent.kernel.transaction import Conflict, retried
from agent.models.background import Background
from agent.models.directory import ModelsDirectory
from agent.oversubscription.alive import Alive, alive_of
from agent.oversubscription.choice import HourChoice, PolicyRates, decide_hour, hot_hours, shadowed
from agent.oversubscription.fold import HotMachine, HourFold, fold, hour_of_day
from agent.oversubscription.inventory import check_request, read_inventory
from agent.oversubscription.loads import Loads, loads_of
from agent.oversubscription.memory import Counts, PoolMemory, columns_of, vm_key
from agent.oversubscription.observation import Sight, expected_requests
from agent.oversubscription.profiles import Profiles, profiles_of
from agent.oversubscription.rate_policies import RatePolicy, policy_of, probationer_of, subject_of
from agent.oversubscription.recorded_hours import HourRecorder, recorded_policy
from agent.oversubscription.records import HourDecision, Publication, RateDecision, RateRequest, ShadowRates, Vm
from agent.oversubscription.request import answer, check_same, counted, vm_of
from agent.oversubscription.state import OversubscriptionStore
from agent.oversubscription.usage import FIVE_MINUTES_S, UsageBook
from domain.clock import Clock
from domain.decisions import Event, Reason
from domain.errors import BadInput, StateConflict, TrimtabError
from domain.rules.oversubscription.pool import PoolRules
from domain.units import HOUR_S

log = structlog.get_logger(__name__)

Signature = tuple[int, int]
Inventory = tuple[float, Signature, Alive | BadInput | None]
"""When the file was written, its signature, and its VMs: the error of an invalid file, None for an unchanged one."""
INVENTORY_PATIENCE_S: Final = 5.0
"""Seconds that a turn waits for the inventory; a slower one is used in a later turn."""
LEADS_FOR_S: Final = 900.0
"""A pool whose turn was so long ago is no longer decided by this process."""
GRACE_S: Final = 30.0
"""How long after an hour, or five minutes, late readings are still taken."""
WARM_TWICE: Final = 2
POLICY_PATIENCE_S: Final = 0.5
"""Seconds that a turn waits for the file of the policy, which is read again for each hour."""
POLICY_TURNS: Final = 2
"""Turns that the hour's decision waits for it; then everything is reserved in full, as when it cannot be read."""


@dataclass(frozen=True, slots=True)
class PoolView(Led):
    """A pool as it is now. problem: why its inventory is not as it should be, "" when it is.

    clipped, rejected_samples: readings above 100 % that were taken, and those that were refused, since the start.
    """

    pool: str
    at: float
    decision: HourDecision | None
    counts: Counts
    vms: int
    promised: int
    problem: str
    newest_sample_at: float | None
    clipped: int
    rejected_samples: int
    publication: Publication | None


class Pool:
    """A pool; every method raises LedgerUnavailable when the ledger cannot be used: then nothing was decided.

    Any thread may call `request`, `view` and `rearm`. The lock guards `promised`, which they change in place, and every
    change of `memory`, on disk too. `alive`, `profiles` and `hour` are replaced whole by the loop's thread, which calls
    `turn`; an event on a subject is repeated only once it changed.
    """

    def __init__(
        self,
        rules: PoolRules,
        store: OversubscriptionStore,
        clock: Clock,
        inventory_file: Path | None = None,
        book: UsageBook | None = None,
        models: ModelsDirectory | None = None,
    ) -> None:
        self.rules = rules
        self.models = models
        self.store = store
        self.book = book or UsageBook()
        self._clock = clock
        self._inventory_file = inventory_file
        self._read: Signature | None = None
        self._inventory_reading: Background[Inventory] | None = None
        self._refusal = ""
        self._lock = threading.RLock()
        self._number: int | None = None
        self.memory = PoolMemory()
        self.hour: HourDecision | None = None
        self.alive = alive_of({})
        self.promised: dict[str, tuple[Vm, float]] = {}
        self.profiles: Profiles | None = None
        self.loads: Loads | None = None
        self.problem = "" if inventory_file is not None else "no inventory file is set"
        self.inventory_at: float | None = None
        self._loaded = False
        self._led_at: float | None = None
        # Of the turn.
        self._epoch = 0
        self._reported: dict[str, tuple[Reason, str]] = {}
        self._five = -1
        self._warm: dict[str, int] = {}
        # Recorded, and not yet returned: a turn that failed half-way returned nothing.
        self._recorded: list[Event] = []
        self._policy_reading: Background[RatePolicy] | None = None
        self._probation_reading: Background[RatePolicy | None] | None = None
        self._waited = 0
        self._recorder = HourRecorder()

    # Requests: any thread

    def request(self, request: RateRequest) -> RateDecision:
        """Return the rate for a VM that will be created, recorded; BadInput names a field that cannot be used."""
        check_request(request, self.rules)
        with self._lock:
            self.load()
            return retried(f"pool {self.rules.name}", lambda: self._answered(request))

    def _answered(self, request: RateRequest) -> RateDecision:
        known = self._known(request)
        if known is not None:
            return known
        now, number = self._clock.now(), self.next_number()
        failed = self._failure(now)
        decision, k = answer(
            request, number, now, self.rules, self.hour, self.memory, self.loads, self.profiles, failed
        )
        try:
            self.store.write_request(number, decision, self._events_of(decision))
        except Conflict:
            self._number = None
            raise
        self._promise(decision, k)
        return decision

    def _known(self, request: RateRequest) -> RateDecision | None:
        if not request.request_id:
            return None
        known = self.store.of_request(self.rules.name, request.request_id)
        if known is not None:
            check_same(request, known)
        return known

    def rates(self) -> Mapping[str, float]:
        """Return the rate in force of each subscriber, none while everything has to be reserved."""
        hour = self.hour
        if hour is None or self._failure(self._clock.now()) is not None:
            return {}
        return {row.subscriber: row.rate for row in hour.subscribers}

    def _failure(self, now: float) -> Reason | None:
        """Return why everything has to be reserved now: the fail-safe of §13."""
        if self._led_at is None or not 0.0 <= now - self._led_at < LEADS_FOR_S:
            return Reason.NOT_LEADER
        if self.hour is None or now - self.hour.at > HOUR_S + self.rules.stale_s:
            return Reason.STALE_INPUT
        return None

    def _events_of(self, decision: RateDecision) -> Sequence[Event]:
        if Reason.NO_MACHINE not in decision.reasons:
            return ()
        detail = f"{self.rules.name}: {decision.detail} ({decision.decision_id})"
        return (Event(subject_of(self.rules), decision.at, Reason.NO_MACHINE, detail),)

    def _promise(self, decision: RateDecision, k: int) -> None:
        self._number = int(decision.decision_id.rpartition("-o")[2])
        self.memory = replace(self.memory, counts=counted(self.memory.counts, decision))
        if k < 0 or self.loads is None or self.profiles is None:
            return
        vm = vm_of(decision)
        self.promised[vm.vm] = (vm, self._clock.monotonic())
        self.loads.place(k, vm, self.profiles.index(vm.subscriber), self.profiles)

    # The loop's thread

    def load(self) -> None:
        """Read the memory from the ledger, once."""
        if self._loaded:
            return
        memory, hour = self.store.memory(self.rules.name), self.store.newest_hour(self.rules.name)
        now, at = self._clock.now(), self._clock.monotonic()
        since = hour.at if hour is not None else 0.0
        found = self.store.requests_since(self.rules.name, min(since, now) - self.rules.start_within_s)
        # Our clock may be ahead of that of the agent that answered: its newest answer counts as given just now.
        newest = min(now, max([since, *(decision.at for decision in found)]))
        for decision in found:
            if decision.at >= since:
                memory = replace(memory, counts=counted(memory.counts, decision))
            if decision.machine and decision.at > newest - self.rules.start_within_s:
                # So much of its time is over by the ledger's own times: a restart does not begin the wait again.
                self.promised[vm_of(decision).vm] = (vm_of(decision), at - max(0.0, newest - decision.at))
        self.memory, self.hour, self._loaded = memory, hour, True

    def reload(self) -> None:
        """Read the memory again, as after another process led."""
        with self._lock:
            self._loaded, self._number, self._read = False, None, None
            self.promised.clear()
            self.load()

    def leads(self, now: float) -> None:
        """Record that this process decides for the pool now."""
        with self._lock:
            self.load()
            self._led_at = now

    def next_number(self) -> int:
        """Return the number of the next decision."""
        if self._number is None:
            self._number = self.store.newest_number(self.rules.name)
        return self._number + 1

    def look(self) -> bool:
        """Read the inventory when it has changed, and build the loads again; return whether they were."""
        changed = self.read_inventory()
        passed = self._clock.monotonic()
        over_s = self.rules.start_within_s
        with self._lock:
            expired = [vm for vm, (_, at) in self.promised.items() if vm in self.alive.vms or passed - at >= over_s]
            for vm in expired:
                del self.promised[vm]
        if not (changed or expired or self.loads is None):
            return False
        self.rebuild()
        return True

    def read_inventory(self) -> bool:
        """Read the inventory where it has changed; return whether it was taken."""
        path = self._inventory_file
        if path is None:
            return False
        reading = self._inventory_reading
        if reading is None:
            before, rules = self._read, self.rules
            # In a thread: a disk that hangs must not stop the loop.
            reading = self._inventory_reading = Background(
                f"inventory of {rules.name}", lambda: _listed(path, before, rules)
            )
        if not reading.over(INVENTORY_PATIENCE_S):
            self.problem = (
                f"the inventory {path} is still being read, for {reading.age_s:.0f} s now: look after its disk"
            )
            return False
        self._inventory_reading = None
        try:
            self.inventory_at, self._read, listed = reading.answer()
        except OSError as error:
            self.problem = f"the inventory {path} cannot be read: {error.strerror or error}"
            return False
        if isinstance(listed, BadInput):
            # The previous inventory stays in use: a file that is being written is not an empty pool.
            self._refusal = f"the inventory {path} is refused, keeping the previous one: {listed}"
        elif listed is not None:
            self.alive, self._refusal = listed, ""
            self.book.show(listed.keys)
        self.problem = self._refusal
        return isinstance(listed, Alive)

    def rebuild(self, folded: HourFold | None = None) -> None:
        """Compute profiles and loads from memory, inventory and promises; long work is done outside the lock."""
        memory, rules = folded.memory if folded else self.memory, self.rules
        known = folded.columns if folded else columns_of(memory.table, self.alive.names)
        profiles = profiles_of(memory.subscribers, memory.hour, rules.rho, rules.persistence, rules.drift_hours)
        loads = loads_of(self.alive, known, profiles, rules)
        with self._lock:
            for vm, _ in self.promised.values():
                if vm.vm in self.alive.vms:
                    continue
                allowed = loads.free_cores > -float("inf")
                k = loads.index(vm.machine)
                if k < 0:
                    k = loads.best_fit(vm.rate * vm.cores, vm.memory_gb, vm.network_gbit, allowed)
                if k >= 0:
                    loads.place(k, vm, profiles.index(vm.subscriber), profiles)
            self.profiles, self.loads = profiles, loads

    # For people and programs

    def view(self) -> PoolView:
        """Return the pool as it is now."""
        with self._lock:
            self.load()
            newest = self.book.newest()
            return PoolView(
                pool=self.rules.name,
                at=self._clock.now(),
                decision=self.hour,
                counts=self.memory.counts,
                vms=len(self.alive.vms),
                promised=len(self.promised),
                problem=self.problem,
                newest_sample_at=newest if newest > float("-inf") else None,
                clipped=self.book.clipped,
                rejected_samples=self.book.rejected,
                publication=self.store.publication(self.rules.name),
            )

    def rearm(self, by: str, reason: str) -> PoolView:
        """Let rates be lowered again after a roll-back; StateConflict when there was none, or another agent leads."""
        with self._lock:
            self.load()
            now = self._clock.now()
            if self._failure(now) is Reason.NOT_LEADER:
                raise StateConflict("pool", self.rules.name, "ask the agent that leads, once it has turned")
            if not self.memory.rolled_back:
                raise StateConflict(
                    "pool", self.rules.name, "its rates are not rolled back: there is nothing to re-arm"
                )
            memory = replace(self.memory, rolled_back=False, armed_hour=self.memory.hour)
            detail = f"{self.rules.name}: re-armed by {by}: {reason}"
            self.store.write_memory(
                self.rules.name, memory, [Event(subject_of(self.rules), now, Reason.RATES_REARMED, detail)]
            )
            self.memory = memory
            log.info("rates_rearmed", pool=self.rules.name, by=by, reason=reason)
        return self.view()

    # The turn: the thread of the loop

    def turn(self, now: float, epoch: int, *, paused: bool) -> tuple[Event, ...]:
        """Turn once and return the events; raises LedgerError or Fenced when nothing more may be done.

        The next turn writes the hours and events that this one could not.
        """
        before = dict(self._reported), self._five, dict(self._warm)
        try:
            self._turn(now, epoch, paused=paused)
        except BaseException:
            self._reported, self._five, self._warm = before
            # Its rows stand on the one before, which may not have been written.
            self._recorder.begin_anew()
            raise
        happened, self._recorded = tuple(self._recorded), []
        return happened

    def _turn(self, now: float, epoch: int, *, paused: bool) -> None:
        if epoch != self._epoch:
            self._recorder.begin_anew()
            if self._epoch:
                self.reload()
            self._epoch = epoch
        self.leads(now)
        self.book.hold(self.memory.hour + 1)
        events: list[Event] = []
        self.look()
        self._report(events, "inventory", Reason.METRICS_LOST, self.problem, now)
        self._watch(now, events)
        last = math.floor((now - GRACE_S) / HOUR_S) - 1
        due = self._due(last)
        if due and not self._policy_is_ready():
            due = ()
        for hour in due:
            self._decide(hour, now, epoch, events, paused=paused)
            events = []
        # A file that changes is read again for the next hour.
        if due and self._policy_reading is not None and self._policy_reading.over():
            self._policy_reading = None
        if due and self._probation_reading is not None and self._probation_reading.over():
            self._probation_reading = None
        if events and not due:
            # A re-arm between reading the memory and writing it would be undone.
            with self._lock:
                self.store.write_memory(self.rules.name, self.memory, events, epoch=epoch)
            self._recorded += events

    def _due(self, last: int) -> tuple[int, ...]:
        """Return the hours to decide, the oldest first: the last one, and those before it that were not written."""
        written = self.memory.hour
        # An hour before the last one decided: the clock was set back.
        if last < written - 1:
            return (last,)
        return (*(hour for hour in self.book.hours() if written < hour < last), last) if last > written else ()

    def _policy_is_ready(self) -> bool:
        """Have the policy read in a thread; return whether the hour need not wait for it any longer."""
        rules = self.rules
        if self._policy_reading is None:
            call = partial(policy_of, rules.policy, rules, self.models)
            self._policy_reading, self._waited = Background(f"pool {rules.name}", call), 0
        if self._probation_reading is None:
            beside = partial(probationer_of, rules, self.models)
            self._probation_reading = Background(f"pool {rules.name} on probation", beside)
            # Here and not before the decision, under whose lock requests wait.
            self._probation_reading.over(POLICY_PATIENCE_S)
        self._waited += 1
        return self._policy_reading.over(POLICY_PATIENCE_S) or self._waited > POLICY_TURNS

    def _policy(self) -> RatePolicy:
        """Return the policy that was read; BadInput when it cannot be. A read that still hangs is not begun again."""
        reading = self._policy_reading
        assert reading is not None, "begun before the hour is decided"
        if not reading.over():
            remedy = f"it is still being read, for {reading.age_s:.0f} s now: look after the file and its disk"
            raise BadInput("policy", self.rules.policy, remedy)
        try:
            return reading.answer()
        except TrimtabError:
            raise
        except Exception as error:
            # Out of memory, for example: the pool is decided without the policy.
            raise BadInput("policy", self.rules.policy, f"it fails: {type(error).__name__}: {error}") from error

    def _decide(self, hour: int, now: float, epoch: int, events: list[Event], *, paused: bool) -> None:
        rules, before = self.rules, self.memory
        readings = self.book.close(hour)
        profiles = profiles_of(before.subscribers, before.hour, rules.rho, rules.persistence)
        folded = fold(before, self.alive, readings, hour, rules, profiles)
        # The statistics of this hour count from now on.
        self.rebuild(folded)
        with self._lock:
            folded = replace(folded, memory=_with_answers(folded.memory, self.memory))
            loads, known = self.loads, self.profiles
            assert loads is not None, "rebuilt above"
            assert known is not None, "rebuilt with them"
            fresh = self._fresh(now)
            sight = self._sight(folded, loads, known)
            wanted = self._wanted(sight, events, now)
            policy = recorded_policy(rules.policy, self.hour)
            learning = self._recorder.row(rules, self.alive.vms, readings, hour, len(folded.hot), policy)

            def attempt() -> tuple[HourChoice, list[Event]]:
                number = self.next_number()
                decided = decide_hour(folded, loads, known, rules, wanted, now, number, paused=paused, fresh=fresh)
                decided = replace(decided, decision=replace(decided.decision, shadow=self._shadow(sight, decided)))
                noted = [*events, *self._happened(folded, decided, before, now)]
                try:
                    self.store.write_hour(
                        *(number, decided.memory, decided.decision, decided.inputs, noted),
                        epoch=epoch,
                        learning=learning,
                    )
                except Conflict:
                    self._number = None
                    raise
                return decided, noted

            decided, noted = retried(f"pool {rules.name}", attempt)
            made = decided.decision
            self.memory, self.hour = decided.memory, made
            self._number = int(made.decision_id.rpartition("-o")[2])
            self.book.written(hour, now)
            self._recorded += noted
            log.info("rates", pool=rules.name, decision_id=made.decision_id, detail=made.detail)

    def _shadow(self, sight: Sight, decided: HourChoice) -> ShadowRates | None:
        """Return the decision of the model on probation; its errors change nothing else.

        None where there is none; one that is still being read has its next chance in an hour.
        """
        beside, before = self._probation_reading, None if self.hour is None else self.hour.shadow
        if beside is None or not beside.over():
            return None
        model = ""
        try:
            policy = beside.answer()
            if policy is None:
                return None
            model = policy.model
            return shadowed(decided.inputs, policy.wanted(sight), before)
        except Exception as error:
            log.warning("shadow_failed", pool=self.rules.name, detail=str(error))
            return ShadowRates(model, (), 0.0, f"{type(error).__name__}: {error}")

    def _sight(self, folded: HourFold, loads: Loads, profiles: Profiles) -> Sight:
        memory = folded.memory
        clock = hour_of_day(memory.hour + 1, self.rules)
        return Sight(
            memories=memory.subscribers,
            vms=(*self.alive.vms.values(), *(vm for vm, _ in self.promised.values() if vm.vm not in self.alive.vms)),
            asked=expected_requests(memory.subscribers, clock),
            loads=loads,
            profiles=profiles,
            rules=self.rules,
            hour_of_day=clock,
            hot_hours=hot_hours(memory, self.rules),
        )

    def _wanted(self, sight: Sight, events: list[Event], now: float) -> PolicyRates | None:
        try:
            policy = self._policy()
            wanted = policy.wanted(sight)
        except BadInput as error:
            # Everything is reserved until it can be read again.
            self._report(events, "policy", Reason.POLICY_FAILED, str(error), now)
            return None
        self._report(events, "policy", Reason.POLICY_FAILED, "", now)
        origin = f"{policy.model} sets the rates, {f'forced: {policy.forced}' if policy.forced else 'promoted'}"
        self._report(events, "model", Reason.MODEL_READY, origin if policy.model else "", now)
        return wanted

    def _fresh(self, now: float) -> bool:
        """Return whether the inventory can be gone by: it was written lately, and could be read."""
        return self.inventory_at is not None and now - self.inventory_at <= HOUR_S + self.rules.stale_s

    def _happened(self, folded: HourFold, decided: HourChoice, before: PoolMemory, now: float) -> Iterator[Event]:
        rules, decision = self.rules, decided.decision
        moved = any(abs(row.rate - row.previous_rate) > 1e-9 for row in decision.subscribers)
        if moved:
            yield self._event(now, Reason.RATES_CHANGED, f"{decision.decision_id}: {decision.detail}")
        for machine in folded.hot:
            detail = (
                f"{machine.machine} used {machine.cores:.1f} cores of {rules.machine_cores:g} in the last hour, "
                f"{rules.threshold_cores:g} are hot: it takes no new oversubscribed VM; "
                f"{_consequence(machine, decision)}; moving {', '.join(machine.migrations)} away helps most"
            )
            yield self._event(now, Reason.MACHINE_HOT, detail, machine.machine)
        for machine_name, chance in decided.assessed.likely:
            detail = f"{machine_name} will be hot in the next hour with a chance of {chance:.0%}"
            yield self._event(now, Reason.MACHINE_WARM, detail, machine_name)
        for name in folded.drifted:
            detail = f"{name} uses its cores otherwise than it did: new VMs are reserved in full until that is learnt"
            if decision.rule is not None:
                detail += ", then the rates of the rule's file decide until another rule is in use"
            yield self._event(now, Reason.USAGE_DRIFTED, detail, name)
        seen = decision.risk.hot_hours_seen
        if decision.rolled_back and not before.rolled_back:
            detail = (
                f"{seen} hot hours in {rules.horizon_h} h break the promise: every new VM is reserved in full until "
                f"an operator re-arms the pool: trimtab rearm {rules.name}"
            )
            yield self._event(now, Reason.RATES_ROLLED_BACK, detail)
        elif decision.frozen and not decision.rolled_back and not (self.hour is not None and self.hour.frozen):
            detail = f"{seen} hot hours in {rules.horizon_h} h, one more breaks the promise: no rate goes down"
            yield self._event(now, Reason.RATES_FROZEN, detail)

    def _watch(self, now: float, events: list[Event]) -> None:
        """Warn of machines that were warm in two five-minute means in a row (§13)."""
        index = math.floor((now - GRACE_S) / FIVE_MINUTES_S) - 1
        if index == self._five or not self.alive.vms or self.profiles is None:
            return
        in_a_row = index == self._five + 1
        self._five = index
        measured = self.book.five_minutes(index)
        if not measured:
            self._warm.clear()
            return
        clock = hour_of_day(math.floor(index * FIVE_MINUTES_S / HOUR_S), self.rules)
        place = {name: n for n, name in enumerate(self.profiles.names)}
        expected = self.profiles.mean[:, clock].tolist()
        cores: dict[str, float] = {}
        last = dict(zip(self.memory.table.names, self.memory.table.last, strict=True))
        for vm in self.alive.vms.values():
            usage = measured.get((vm.subscriber, vm.vm))
            if usage is None:
                usage = last.get(vm_key(vm), expected[place.get(vm.subscriber, len(place))])
            cores[vm.machine] = cores.get(vm.machine, 0.0) + usage * vm.cores
        warm = {name: used for name, used in cores.items() if used >= self.rules.warning_cores - 1e-9}
        self._warm = {name: (self._warm.get(name, 0) if in_a_row else 0) + 1 for name in warm}
        for name, times in self._warm.items():
            if times == WARM_TWICE:
                limit = self.rules.threshold_cores
                detail = f"{name} uses {warm[name]:.1f} cores, twice in five minutes, {limit:g} are hot"
                events.append(self._event(now, Reason.MACHINE_WARM, detail, name))

    def _report(self, events: list[Event], subject: str, reason: Reason, detail: str, now: float) -> None:
        if not detail:
            self._reported.pop(subject, None)
        elif self._reported.get(subject) != (reason, detail):
            self._reported[subject] = (reason, detail)
            events.append(self._event(now, reason, detail))

    def _event(self, now: float, reason: Reason, detail: str, about: str = "") -> Event:
        name = self.rules.name
        return Event(subject_of(self.rules), now, reason, f"{name}: {detail}", about)


def _listed(path: Path, before: Signature | None, rules: PoolRules) -> Inventory:
    """Return when the inventory was written, its signature, and its VMs, None when it has not changed."""
    status = path.stat()
    known_by = (status.st_mtime_ns, status.st_size)
    if known_by == before:
        return status.st_mtime, known_by, None
    try:
        return status.st_mtime, known_by, alive_of(read_inventory(path, rules))
    except BadInput as error:
        return status.st_mtime, known_by, error


def _consequence(machine: HotMachine, decision: HourDecision) -> str:
    rows = {row.subscriber: row for row in decision.subscribers}
    raised = [name for name in machine.subscribers if rows[name].rate > rows[name].previous_rate + 1e-9]
    most = f"mostly by {' and '.join(machine.subscribers)}"
    if raised:
        return f"{most}, and new VMs of {' and '.join(raised)} are reserved more"
    if decision.rolled_back:
        return f"{most}; every new VM of the pool is reserved in full already"
    return f"{most}, whose rates cannot go up"


def _with_answers(folded: PoolMemory, now: PoolMemory) -> PoolMemory:
    mine = folded.counts
    counts = replace(
        now.counts,
        hot_machine_hours=mine.hot_machine_hours,
        realised_hot_hours=mine.realised_hot_hours,
        drift_alarms=mine.drift_alarms,
        peak_machines=mine.peak_machines,
    )
    return replace(folded, counts=counts, rolled_back=now.rolled_back, armed_hour=now.armed_hour)
