"""One pool's service: answers requests from any thread, decides each hour in the loop's, and remembers on disk (§13).

What it answers is in the ledger before the answer; what it holds in memory can be had again from ledger and inventory.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import structlog

from agent.kernel.transaction import Conflict, retried
from agent.models.background import Background
from agent.oversubscription.inventory import check_request, read_inventory
from agent.oversubscription.loads import Loads, loads_of
from agent.oversubscription.memory import Counts, PoolMemory
from agent.oversubscription.profiles import Profiles, profiles_of
from agent.oversubscription.rate_policies import PoolModels
from agent.oversubscription.records import (
    HourDecision,
    Publication,
    RateDecision,
    RateRequest,
    ShadowRate,
    ShadowRates,
    Source,
    Vm,
)
from agent.oversubscription.shield import Answer, ask_filter, ask_shield
from agent.oversubscription.state import OversubscriptionStore
from agent.oversubscription.usage import UsageBook
from domain.clock import Clock
from domain.decisions import AGENT, Event, Reason
from domain.errors import BadInput, StateConflict
from domain.rules.oversubscription.pool import PoolRules
from domain.units import HOUR_S

NOTHING = Answer(1.0, -1, None, False, ())


def answer(
    request: RateRequest,
    number: int,
    now: float,
    rules: PoolRules,
    hour: HourDecision | None,
    memory: PoolMemory,
    loads: Loads | None,
    profiles: Profiles | None,
    failed: Reason | None,
) -> tuple[RateDecision, int]:
    """Return the decision and the place of its machine, -1 where none has room. failed: why everything is reserved."""
    began = time.perf_counter()
    base, source, reasons, failed = _base(request, rules, hour, failed)
    budget = rules.budget(None) if hour is None or hour.budget is None else hour.budget
    found = NOTHING
    if loads is not None and profiles is not None:
        ask = ask_filter if rules.risk_filter else ask_shield
        found = ask(loads, profiles, request, base, rules, budget, memory.closed)
        if found.hot_hours is not None and not math.isfinite(found.hot_hours):
            found, source, reasons = replace(NOTHING, machine=found.machine), Source.FALLBACK, (Reason.NOT_FINITE,)
        elif found.rate > base + 1e-9:
            source, reasons = Source.SHIELD, (*reasons, Reason.SHIELDED)
        if found.machine < 0:
            reasons = (*reasons, Reason.NO_MACHINE)
        elif not found.safe:
            reasons = (*reasons, Reason.NO_SAFE_LEVEL)
    shadow = None
    if hour is not None and hour.shadow is not None and failed is None and loads is not None and profiles is not None:
        shadow = shadow_rate(hour.shadow, request, rules, loads, profiles, memory.closed)
    machine = loads.names[found.machine] if loads is not None and found.machine >= 0 else ""
    hash_of = f"{hour.state_hash if hour else ''}{machine}{found.hot_hours!r}"
    decision = RateDecision(
        decision_id=f"{rules.name}-o{number}",
        at=now,
        pool=rules.name,
        request_id=request.request_id,
        vm=request.vm,
        subscriber=request.subscriber,
        cores=request.cores,
        memory_gb=request.memory_gb,
        network_gbit=request.network_gbit,
        rate=found.rate,
        base_rate=base,
        source=source,
        reasons=reasons,
        detail=_sentence(request, base, found, machine, budget, reasons),
        machine=machine,
        hot_hours=found.hot_hours,
        budget=budget,
        threshold_cores=rules.threshold_cores,
        safe=found.safe,
        tried=found.tried,
        policy=rules.policy,
        model=hour.model if hour is not None else "",
        config_hash=rules.config_hash,
        state_hash=hashlib.sha256(hash_of.encode()).hexdigest()[:16],
        hour=hour.hour if hour is not None else -1,
        evaluation_us=0.0,
        requested_by=request.requested_by,
        shadow=shadow,
    )
    return replace(decision, evaluation_us=(time.perf_counter() - began) * 1e6), found.machine


def shadow_rate(
    shadow: ShadowRates,
    request: RateRequest,
    rules: PoolRules,
    loads: Loads,
    profiles: Profiles,
    closed: Collection[str],
) -> ShadowRate | None:
    """Return what a model on probation would have answered, None where it has no rates for the hour."""
    if shadow.failed:
        return None
    ask = ask_filter if rules.risk_filter else ask_shield
    found = ask(loads, profiles, request, shadow.rate(request.subscriber), rules, shadow.budget, closed)
    return ShadowRate(shadow.model, found.rate, found.safe)


def _base(
    request: RateRequest, rules: PoolRules, hour: HourDecision | None, failed: Reason | None
) -> tuple[float, Source, tuple[Reason, ...], Reason | None]:
    if failed is None and request.subscriber not in rules.subscribers:
        failed = Reason.UNKNOWN_SUBSCRIBER
    if failed is not None or hour is None:
        failed = failed or Reason.STALE_INPUT
        return 1.0, Source.FALLBACK, (failed,), failed
    rows = {row.subscriber: row for row in hour.subscribers}
    row = rows.get(request.subscriber)
    if row is None:
        # Named in the settings since the last hour: of it nothing is known yet.
        opted_out = rules.subscribers[request.subscriber].opted_out
        reason = Reason.OPTED_OUT if opted_out else Reason.LITTLE_HISTORY
        return 1.0, Source.MANUAL if opted_out else Source.POLICY, (reason,), None
    return row.rate, row.source, row.reasons, None


def _sentence(
    request: RateRequest, base: float, found: Answer, machine: str, budget: float, reasons: tuple[Reason, ...]
) -> str:
    asked = f"{request.subscriber} asks for {request.cores:g} cores: rate {found.rate:g}"
    if Reason.NO_MACHINE in reasons:
        return f"{asked}; no machine has room for it in full"
    if found.hot_hours is None:
        return f"{asked}, everything reserved: {', '.join(reasons)}"
    risk = f"{machine} would be hot for {found.hot_hours:.2g} h of the next day ({budget:g} allowed)"
    if not found.safe:
        return f"{asked}; no level keeps within the budget: {risk}"
    if found.rate > base + 1e-9:
        return f"{asked} instead of {base:g}, whose machine would run too hot; {risk}"
    return f"{asked}; {risk}"


def vm_of(decision: RateDecision) -> Vm:
    """Return the VM that a decision promises room to, under its decision's id where it has no name yet."""
    return Vm(
        vm=decision.vm or decision.decision_id,
        subscriber=decision.subscriber,
        machine=decision.machine,
        cores=decision.cores,
        memory_gb=decision.memory_gb,
        network_gbit=decision.network_gbit,
        rate=decision.rate,
    )


def check_same(request: RateRequest, decision: RateDecision) -> None:
    """Raise StateConflict when a request id that was answered stands for something else now."""
    before = (decision.subscriber, decision.cores, decision.memory_gb, decision.network_gbit, decision.vm)
    if before != (request.subscriber, request.cores, request.memory_gb, request.network_gbit, request.vm):
        raise StateConflict("request_id", request.request_id, f"it belongs to another request ({decision.decision_id})")


def counted(counts: Counts, decision: RateDecision) -> Counts:
    """Return the counts with one more answer."""
    placed = decision.machine != ""
    return replace(
        counts,
        requests=counts.requests + 1,
        fallbacks=counts.fallbacks + (decision.source is Source.FALLBACK),
        interventions=counts.interventions + (decision.source is Source.SHIELD),
        rejects=counts.rejects + (Reason.NO_MACHINE in decision.reasons),
        requested_cores=counts.requested_cores + decision.cores,
        saved_cores=counts.saved_cores + ((1.0 - decision.rate) * decision.cores if placed else 0.0),
    )


log = structlog.get_logger(__name__)

Signature = tuple[int, int]
Inventory = tuple[float, Signature, dict[str, Vm] | BadInput | None]
"""When it was written, what it is known by, and its VMs: why they are not taken, or None for an unchanged file."""
INVENTORY_PATIENCE_S: Final = 5.0
"""So long a turn waits for the inventory; what takes longer is taken in a later turn."""
LEADS_FOR_S: Final = 900.0
"""A pool whose turn was so long ago is no longer decided by this process."""


@dataclass(frozen=True, slots=True)
class PoolView:
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

    Any thread may call `request`, `view` and `rearm`. Under `lock` stand `promised`, which they change in place, and
    every change of `memory`, on disk too. `vms`, `profiles` and `hour` are replaced whole by the loop's thread.
    """

    def __init__(
        self,
        rules: PoolRules,
        store: OversubscriptionStore,
        clock: Clock,
        inventory_file: Path | None = None,
        book: UsageBook | None = None,
        models: PoolModels | None = None,
    ) -> None:
        self.rules = rules
        self.models = models or PoolModels()
        self.store = store
        self.book = book or UsageBook()
        self._clock = clock
        self._inventory_file = inventory_file
        self._read: Signature | None = None
        self._reading: Background[Inventory] | None = None
        self._refusal = ""
        self._lock = threading.RLock()
        self._number: int | None = None
        self.memory = PoolMemory()
        self.hour: HourDecision | None = None
        self.vms: dict[str, Vm] = {}
        self.promised: dict[str, tuple[Vm, float]] = {}
        self.profiles: Profiles | None = None
        self.loads: Loads | None = None
        self.problem = "" if inventory_file is not None else "no inventory file is set"
        self.inventory_at: float | None = None
        self._loaded = False
        self._led_at: float | None = None

    # Requests: any thread

    def request(self, request: RateRequest) -> RateDecision:
        """Return the rate for a VM that will be created, recorded; BadInput names a field that cannot be used."""
        if request.pool != self.rules.name:
            raise BadInput("pool", request.pool, f"this is the pool {self.rules.name}")
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
            self.store.write_request(number, decision, self._told(decision))
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

    def _failure(self, now: float) -> Reason | None:
        """Return why everything has to be reserved now: the fail-safe of §13."""
        if self._led_at is None or not 0.0 <= now - self._led_at < LEADS_FOR_S:
            return Reason.NOT_LEADER
        if self.hour is None or now - self.hour.at > HOUR_S + self.rules.stale_s:
            return Reason.STALE_INPUT
        return None

    def _told(self, decision: RateDecision) -> Sequence[Event]:
        if Reason.NO_MACHINE not in decision.reasons:
            return ()
        detail = f"{self.rules.name}: {decision.detail} ({decision.decision_id})"
        return (Event(AGENT, decision.at, Reason.NO_MACHINE, detail, self.rules.name),)

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
        """Read from the ledger what is remembered, once."""
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
                # So much of its time is over by the ledger's own times: a restart does not begin the wait anew.
                self.promised[vm_of(decision).vm] = (vm_of(decision), at - max(0.0, newest - decision.at))
        self.memory, self.hour, self._loaded = memory, hour, True

    def reload(self) -> None:
        """Forget what is held and read it again, as after another process led."""
        with self._lock:
            self._loaded, self._number, self._read = False, None, None
            self.promised.clear()
            self.load()

    def leads(self, now: float) -> None:
        """Say that this process decides for the pool now."""
        with self._lock:
            self.load()
            self._led_at = now

    def next_number(self) -> int:
        """Return the number of the next decision."""
        if self._number is None:
            self._number = self.store.newest_number(self.rules.name)
        return self._number + 1

    def forget_number(self) -> None:
        """Have the number of the next decision read from the ledger again."""
        with self._lock:
            self._number = None

    def look(self) -> bool:
        """Read the inventory when it has changed, and build the loads anew; return whether they were."""
        changed = self.read_inventory()
        passed = self._clock.monotonic()
        over_s = self.rules.start_within_s
        with self._lock:
            expired = [vm for vm, (_, at) in self.promised.items() if vm in self.vms or passed - at >= over_s]
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
        reading = self._reading
        if reading is None:
            before, rules = self._read, self.rules
            # In a thread of its own: a disk that hangs must not stop the loop.
            reading = self._reading = Background(f"inventory of {rules.name}", lambda: _listed(path, before, rules))
        if not reading.over(INVENTORY_PATIENCE_S):
            self.problem = (
                f"the inventory {path} is still being read, for {reading.age_s:.0f} s now: look after its disk"
            )
            return False
        self._reading = None
        try:
            self.inventory_at, self._read, listed = reading.answer()
        except OSError as error:
            self.problem = f"the inventory {path} cannot be read: {error.strerror or error}"
            return False
        if isinstance(listed, BadInput):
            # What was read before still stands: a file that is being written is not an empty pool.
            self._refusal = f"the inventory {path} is refused, keeping the previous one: {listed}"
        elif listed is not None:
            self.vms, self._refusal = listed, ""
            self.book.show((vm.subscriber, vm.vm) for vm in listed.values())
        self.problem = self._refusal
        return isinstance(listed, dict)

    def rebuild(self, memory: PoolMemory | None = None) -> None:
        """Compute profiles and loads from memory, inventory and promises; long work is done outside the lock."""
        memory, rules = memory or self.memory, self.rules
        profiles = profiles_of(memory.subscribers, memory.hour, rules.rho, rules.persistence, rules.drift_hours)
        loads = loads_of(tuple(self.vms.values()), memory.table, profiles, rules)
        with self._lock:
            for vm, _ in self.promised.values():
                if vm.vm in self.vms:
                    continue
                allowed = loads.free_cores > -float("inf")
                k = loads.index(vm.machine)
                if k < 0:
                    k = loads.best_fit(vm.rate * vm.cores, vm.memory_gb, vm.network_gbit, allowed)
                if k >= 0:
                    loads.place(k, vm, profiles.index(vm.subscriber), profiles)
            self.profiles, self.loads = profiles, loads

    def ground(self) -> tuple[Loads, Profiles]:
        """Return loads and profiles, built where there are none."""
        if self.loads is None or self.profiles is None:
            self.rebuild()
        assert self.loads is not None, "built above"
        assert self.profiles is not None, "built with them"
        return self.loads, self.profiles

    def take(self, memory: PoolMemory, hour: HourDecision) -> None:
        """Go by a decision that has just been recorded; answers given meanwhile are counted in it."""
        with self._lock:
            self.memory, self.hour = memory, hour
            self._number = int(hour.decision_id.rpartition("-o")[2])

    @property
    def lock(self) -> threading.RLock:
        """What no answer is given under."""
        return self._lock

    # Whoever asks

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
                vms=len(self.vms),
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
                self.rules.name, memory, [Event(AGENT, now, Reason.RATES_REARMED, detail, self.rules.name)]
            )
            self.memory = memory
            log.info("rates_rearmed", pool=self.rules.name, by=by, reason=reason)
        return self.view()


def _listed(path: Path, before: Signature | None, rules: PoolRules) -> Inventory:
    """Return when the inventory was written, what it is known by, and the VMs in it: None when it has not changed."""
    status = path.stat()
    known_by = (status.st_mtime_ns, status.st_size)
    if known_by == before:
        return status.st_mtime, known_by, None
    try:
        return status.st_mtime, known_by, read_inventory(path, rules)
    except BadInput as error:
        return status.st_mtime, known_by, error
