"""VMs, jobs, events and dispatch of the plain twin: the world between two decisions (§2, §11)."""

from __future__ import annotations

import copy
import heapq
import math
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from domain.units import HOUR_S
from domain.workload import WHOLE_VM
from simulator.autoscaling.columns import JobColumns
from simulator.autoscaling.configuration import (
    BOOT,
    CHAIN_LOSS_S,
    RECLAIM,
    REMOVAL,
    CpuSampling,
    Dispatch,
    RemovalChoice,
    RemovalMode,
    SimulationConfig,
)

BOOTING, READY, DRAINING = 0, 1, 2


@dataclass(slots=True)
class Machine:
    """One VM: its type, its state and what runs on it (`jobs`: job index to start time, in order of start).

    free: cores that no job has. starting: cores of jobs that have one and do not run yet. freed_at: when a job last
    ended here. busy_core_s: busy cores integrated from the VM's readiness to `counted_to`; step_busy_core_s: its value
    at the start of the step. readings, cpu_readings, ram_readings: number and sums of the step's monitor readings.
    """

    number: int
    kind: int
    cores: int
    ram_gb: float
    speed: float
    requested_at: float
    state: int = BOOTING
    ready_at: float = math.inf
    idle_since: float = math.inf
    freed_at: float = -math.inf
    free: int = 0
    starting: int = 0
    jobs: dict[int, float] = field(default_factory=dict)
    used_ram_gb: float = 0.0
    busy_core_s: float = 0.0
    step_busy_core_s: float = 0.0
    counted_to: float = 0.0
    readings: int = 0
    cpu_readings: float = 0.0
    ram_readings: float = 0.0
    billed_ms: int = 0

    def __lt__(self, other: Machine) -> bool:
        return self.number < other.number

    @property
    def busy(self) -> int:
        """Cores on which jobs run."""
        return self.cores - self.free - self.starting

    @property
    def vacant(self) -> bool:
        """Whether no job has a core here."""
        return self.free == self.cores

    def count_busy(self, now: float) -> None:
        """Bring the integral of busy cores up to `now`."""
        self.busy_core_s += self.busy * (now - self.counted_to)
        self.counted_to = now

    def begin_step(self, now: float) -> None:
        """Clear the readings of the last step and save the integral of busy cores."""
        if self.state != BOOTING:
            self.count_busy(now)
        self.step_busy_core_s = self.busy_core_s
        self.readings, self.cpu_readings, self.ram_readings = 0, 0.0, 0.0

    def read(self, idle_cpu: float) -> None:
        """Take one reading of CPU and RAM, as a monitor does."""
        self.readings += 1
        self.cpu_readings += _shown(1.0 - (self.free + self.starting) / self.cores, idle_cpu)
        self.ram_readings += self.used_ram_gb / self.ram_gb

    def measured(self, config: SimulationConfig, step_start: float, now: float) -> tuple[float, float]:
        """Return (CPU, RAM), 0..1, for the step from `step_start` to `now`; nan where there were too few readings."""
        if config.cpu_sampling is CpuSampling.SAMPLED:
            if self.readings < config.samples_needed:
                return math.nan, math.nan
            return self.cpu_readings / self.readings, self.ram_readings / self.readings
        ram = self.used_ram_gb / self.ram_gb
        elapsed = now - max(step_start, self.ready_at)
        if config.cpu_sampling is CpuSampling.AVERAGE and elapsed > 0:
            self.count_busy(now)
            busy_share = (self.busy_core_s - self.step_busy_core_s) / (elapsed * self.cores)
            return _shown(busy_share, config.idle_cpu), ram
        return _shown(1.0 - (self.free + self.starting) / self.cores, config.idle_cpu), ram


def _shown(busy_share: float, idle_cpu: float) -> float:
    """Return the CPU a VM shows: its busy cores in full and its idle ones at `idle_cpu`."""
    return busy_share + (1.0 - busy_share) * idle_cpu


_BLOCK = 64


class Streams:
    """Uniform numbers in [0, 1) addressed by (stream, kind, index): any draw is a function of the seed.

    Two policies on one seed see the same boot time for the i-th VM of a type (autoscaler specification §2.5).
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._drawn: dict[tuple[int, int], list[float]] = {}
        self._generators: dict[tuple[int, int], np.random.Generator] = {}

    def draw(self, stream: int, kind: int, index: int) -> float:
        """Return draw number `index` (from 0) of a stream."""
        key = (stream, kind)
        drawn = self._drawn.setdefault(key, [])
        while index >= len(drawn):
            if key not in self._generators:
                words = np.array([self.seed & 0xFFFFFFFFFFFFFFFF, (stream << 32) | kind], dtype=np.uint64)
                self._generators[key] = np.random.Generator(np.random.Philox(key=words))
            drawn.extend(self._generators[key].random(_BLOCK).tolist())
        return drawn[index]

    def ready_at(self, kind: int, index: int, points: Sequence[float], now: float) -> float:
        """Return when VM number `index` of a type, requested at `now`, is ready; points: quantiles of boot times."""
        place = self.draw(BOOT, kind, index) * (len(points) - 1)
        below = min(int(place), len(points) - 2)
        low, high = points[below], points[below + 1]
        return now + low + (high - low) * (place - below)


JOB_END, VM_READY, ARRIVAL, JOB_START, NOTICE, TAKEN_BACK = range(6)
"""Kinds of events; at one instant they happen in this order, those of a kind in that of their making."""


class Event(NamedTuple):
    """One event: of a job by its index, or of a VM by its number."""

    time: float
    kind: int
    sequence: int
    item: int


@dataclass(slots=True)
class Events:
    """The events to come; `sequence` is the number of the one made last."""

    sequence: int = 0
    _heap: list[Event] = field(default_factory=list)

    def push(self, time: float, kind: int, item: int) -> int:
        """Add an event and return its number."""
        self.sequence += 1
        heapq.heappush(self._heap, Event(time, kind, self.sequence, item))
        return self.sequence

    def push_release(self, time: float, job: int) -> None:
        """Add the arrival of a released job; at one instant these come in order of their jobs."""
        heapq.heappush(self._heap, Event(time, ARRIVAL, job, job))

    def next_time(self, stale: Callable[[Event], bool]) -> float:
        """Drop what has become stale and return the time of the first event left, inf when there is none."""
        while self._heap and stale(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0].time if self._heap else math.inf

    def pop(self) -> Event:
        """Take the first event."""
        return heapq.heappop(self._heap)


def choose_machine(ready: Sequence[Machine], width: int, order: Dispatch, scan_from: int, next_place: int) -> int:
    """Return the position in `ready` of the VM for a job of `width` cores (WHOLE_VM: an empty VM), -1 for none.

    ready: VMs in request order. scan_from: first fit looks from this position on, the caller knowing that no earlier
    VM has room. next_place: number of the VM where next fit resumes.
    """
    if order is Dispatch.FIRST_FIT:
        for position in range(scan_from, len(ready)):
            if _has_room(ready[position], width):
                return position
        return -1
    fits = [position for position, machine in enumerate(ready) if _has_room(machine, width)]
    if not fits:
        return -1
    if order is Dispatch.BEST_FIT:
        return min(fits, key=lambda position: (0 if width == WHOLE_VM else ready[position].free, position))
    return next((position for position in fits if ready[position].number >= next_place), fits[0])


def _has_room(machine: Machine, width: int) -> bool:
    return machine.free >= (machine.cores if width == WHOLE_VM else width)


@dataclass(slots=True)
class Bursts:
    """Bursts of an episode: one begins when jobs are left without a core where none was, and ends when none is left.

    began: instants at which one began. answered: those in which a VM became ready. wait_s: seconds from the beginning
    to the first such VM, over all answered ones.
    """

    began: int = 0
    answered: int = 0
    wait_s: float = 0.0
    _since: float = math.inf
    _open: bool = False

    def placed(self, left: int, now: float) -> None:
        """Note that a pass over the queue left so many jobs without a core."""
        if left == 0:
            self._open = False
        elif not self._open:
            self._open = True
            self._since = now
            self.began += 1

    def vm_ready(self, now: float) -> None:
        """Note that a VM became ready."""
        if self._open and self._since < math.inf:
            self.answered += 1
            self.wait_s += now - self._since
            self._since = math.inf

    @property
    def first_core_s(self) -> float:
        """Mean seconds from the beginning of an answered burst to its first new VM; 0 where none was."""
        return self.wait_s / self.answered if self.answered else 0.0


class World:
    """Everything that changes in an episode, and the mechanics that change it; knows nothing of actions or money."""

    def __init__(self, config: SimulationConfig, jobs: JobColumns, streams: Streams) -> None:
        self.config = config
        self.jobs = jobs
        self.streams = streams
        self.now = 0.0
        kinds = len(config.types)
        self.machines: list[Machine] = []
        self.ready: list[Machine] = []
        self.booting: dict[int, Machine] = {}
        self.departed: list[tuple[Machine, float]] = []
        self.spot: dict[int, Machine] = {}
        self._boot_points_s = config.boot_points_s
        self.requests = [0] * kinds
        self.made = [0] * kinds
        self.removal_draws = 0
        self.present = [0] * kinds
        self.ready_count = [0] * kinds
        self.next_number = 0
        self.next_place = 0
        self.events = Events()
        self.running: dict[int, tuple[int, Machine]] = {}
        self.starting: dict[int, tuple[int, Machine]] = {}
        self.unseen: set[int] = set()
        self.next_fixed = 0
        self.queue: list[tuple[float, int, int]] = []
        self.arrived_at = list(jobs.arrival)
        self.remaining = list(jobs.service)
        self.stage_left = dict(jobs.stage_sizes)
        self.waiting_since: dict[int, float] = {}
        self.waited: dict[int, float] = {}
        self.finished_waits: list[float] = []
        self.queued_core_s = 0.0
        self.finished_core_s = 0.0
        self.finished_lengths: list[float] = []
        self.submitted = 0
        self.finished = 0
        self.free_cores = self.busy_cores = 0
        self.interruptions = self.reclaimed = 0
        self.bursts = Bursts()
        self.lost_core_s = 0.0
        self.executed_core_s = 0.0
        self.busy_core_s = 0.0
        self.ready_cores = 0
        self.ready_core_s = 0.0
        self.waiting_job_s = 0.0
        self.next_reading = math.inf
        for kind, count in enumerate(config.initial):
            for _ in range(count):
                machine = self._new_machine(kind)
                self._make_ready(machine)

    def copy(self) -> World:
        """Return an independent copy; trace, configuration and random streams are shared, being the same for all."""
        shared = (self.config, self.jobs, self.streams)
        return copy.deepcopy(self, {id(thing): thing for thing in shared})

    @property
    def waiting(self) -> int:
        """Jobs submitted and not running, less those that the published simulator forgets (compat row 6)."""
        return len(self.queue) + len(self.starting) - len(self.unseen)

    # Machines

    def _new_machine(self, kind: int) -> Machine:
        vm_type = self.config.types[kind]
        machine = Machine(
            self.next_number, kind, vm_type.cores, vm_type.memory_gb, self.config.speeds[kind], requested_at=self.now
        )
        self.next_number += 1
        self.machines.append(machine)
        self.present[kind] += 1
        return machine

    def request(self, kind: int) -> None:
        """Request one VM of a type; it is ready after a boot time drawn now."""
        machine = self._new_machine(kind)
        self.booting[machine.number] = machine
        ready_at = self.streams.ready_at(kind, self.requests[kind], self._boot_points_s[kind], self.now)
        self.requests[kind] += 1
        self.events.push(ready_at, VM_READY, machine.number)

    def _make_ready(self, machine: Machine) -> None:
        machine.state = READY
        machine.ready_at = machine.idle_since = machine.counted_to = self.now
        machine.free = machine.cores
        machine.used_ram_gb = self.config.base_ram_gb
        insort(self.ready, machine)
        self.ready_count[machine.kind] += 1
        self.free_cores += machine.cores
        self.ready_cores += machine.cores
        self.bursts.vm_ready(self.now)
        rates = self.config.reclaims_per_hour
        if rates and rates[machine.kind] > 0:
            share = self.streams.draw(RECLAIM, machine.kind, self.made[machine.kind])
            self.spot[machine.number] = machine
            self.events.push(self.now - math.log1p(-share) * HOUR_S / rates[machine.kind], NOTICE, machine.number)
        self.made[machine.kind] += 1

    def _depart(self, machine: Machine) -> None:
        self.spot.pop(machine.number, None)
        self.machines.remove(machine)
        self.present[machine.kind] -= 1
        self.departed.append((machine, self.now))

    def give_notice(self, machine: Machine) -> None:
        """Let the provider take a ready VM back: it takes no new job from now on, and its jobs return at the end."""
        self.spot[machine.number] = machine
        self.reclaimed += 1
        self.events.push(self.now + self.config.reclaim_notice_s, TAKEN_BACK, machine.number)
        self._withdraw(machine)

    def work_lost(self, machine: Machine) -> float:
        """Core-seconds that a VM's jobs would lose if it went now, added one by one: sum() rounds by Python version."""
        lost = 0.0
        for job, start in machine.jobs.items():
            lost += self._cores_of(job, machine) * (self.now - start)
        return lost

    def victim(self, kind: int, *, draw: bool = False) -> Machine | None:
        """Return the ready VM of a type that would be removed next, None when there is none.

        draw: the removal is carried out, so that a random choice uses up its number.
        """
        candidates = [machine for machine in self.ready if machine.kind == kind]
        if not candidates:
            return None
        choice = self.config.removal_choice
        if choice is RemovalChoice.NEWEST:
            return candidates[-1]
        if choice is RemovalChoice.LEAST_WORK_LOST:
            return min(candidates, key=lambda machine: (self.work_lost(machine), -machine.number))
        share = self.streams.draw(REMOVAL, 0, self.removal_draws)
        self.removal_draws += int(draw)
        return candidates[int(share * len(candidates))]

    def booting_count(self, kind: int) -> int:
        """Return the number of booting VMs of a type."""
        return sum(machine.kind == kind for machine in self.booting.values())

    def cancel_boot(self, kind: int) -> None:
        """Take back the newest booting VM of a type."""
        number = max(number for number, machine in self.booting.items() if machine.kind == kind)
        self._depart(self.booting.pop(number))

    def remove(self, machine: Machine) -> None:
        """Remove a ready VM: its jobs go back to the queue, keep their progress there, or end first (removal mode)."""
        self._withdraw(machine)
        if self.config.removal_mode is not RemovalMode.DRAIN:
            self._evict(machine)

    def _withdraw(self, machine: Machine) -> None:
        """Give a ready VM no more jobs; it leaves when it has none."""
        self.ready.remove(machine)
        self.ready_count[machine.kind] -= 1
        self.ready_cores -= machine.cores
        self.free_cores -= machine.free
        machine.count_busy(self.now)
        self.busy_cores -= machine.busy
        machine.state = DRAINING
        if machine.vacant:
            self._depart(machine)

    def _evict(self, machine: Machine) -> None:
        """Send the jobs of a withdrawn VM back to the queue, and the VM away."""
        if machine.vacant:
            return
        for job in list(machine.jobs):
            self._interrupt(job, machine)
        for job in [job for job, (_, place) in self.starting.items() if place is machine]:
            del self.starting[job]
            self.interruptions += 1
            self._enqueue(job)
        self._depart(machine)

    # Jobs

    def _cores_of(self, job: int, machine: Machine) -> int:
        width = self.jobs.width[job]
        return machine.cores if width == WHOLE_VM else width

    def _rate(self, job: int, machine: Machine) -> float:
        """Seconds of service done in a second on this VM."""
        if self.jobs.width[job] != WHOLE_VM:
            return machine.speed
        serial = self.jobs.serial_fraction
        return machine.speed / (serial + (1.0 - serial) / machine.cores)

    def _queued_work(self, job: int) -> float:
        return max(self.jobs.width[job], 1) * self.remaining[job]

    def _submit(self, job: int) -> None:
        self.arrived_at[job] = self.now
        self.submitted += 1
        self.waited[job] = 0.0
        self.waiting_since[job] = self.now
        self._enqueue(job)

    def _enqueue(self, job: int) -> None:
        self.queued_core_s += self._queued_work(job)
        heapq.heappush(self.queue, (self.arrived_at[job], self.jobs.job_id[job], job))

    def _interrupt(self, job: int, machine: Machine) -> None:
        start = machine.jobs.pop(job)
        del self.running[job]
        cores, elapsed = self._cores_of(job, machine), self.now - start
        machine.free += cores
        self.interruptions += 1
        self.waiting_since[job] = self.now
        self.executed_core_s += cores * elapsed
        if self.config.removal_mode is RemovalMode.CHECKPOINT:
            self.remaining[job] = max(self.remaining[job] - elapsed * self._rate(job, machine), 0.0)
        else:
            self.lost_core_s += cores * elapsed
        if self.config.compat.interrupted_to_tail:
            self.arrived_at[job] = self.now
            self.unseen.add(job)
        self._enqueue(job)

    def _start(self, job: int, machine: Machine, others_wait: bool) -> None:
        """Give a job its cores; it runs at once, or after the latency of a start."""
        cores = self._cores_of(job, machine)
        machine.count_busy(self.now)
        machine.free -= cores
        machine.starting += cores
        self.free_cores -= cores
        self.queued_core_s = self.queued_core_s - self._queued_work(job) if others_wait else 0.0
        latency_s = self.config.start_latency_s
        if self.config.compat.chain_loss and machine.freed_at == self.now:
            latency_s += CHAIN_LOSS_S
        if latency_s > 0:
            self.starting[job] = (self.events.push(self.now + latency_s, JOB_START, job), machine)
        else:
            self._run(job, machine)

    def _run(self, job: int, machine: Machine) -> None:
        cores = self._cores_of(job, machine)
        machine.count_busy(self.now)
        machine.starting -= cores
        machine.used_ram_gb += self.jobs.ram[job]
        machine.jobs[job] = self.now
        if machine.state != DRAINING:
            self.busy_cores += cores
        self.unseen.discard(job)
        self.waited[job] += self.now - self.waiting_since.pop(job)
        end = self.now + self.remaining[job] / self._rate(job, machine)
        self.running[job] = (self.events.push(end, JOB_END, job), machine)

    def _finish(self, job: int) -> None:
        _, machine = self.running.pop(job)
        start = machine.jobs.pop(job)
        cores = self._cores_of(job, machine)
        machine.count_busy(self.now)
        machine.free += cores
        machine.freed_at = self.now
        machine.used_ram_gb = self.config.base_ram_gb if not machine.jobs else machine.used_ram_gb - self.jobs.ram[job]
        self.executed_core_s += cores * (self.now - start)
        self.finished += 1
        core_s = max(self.jobs.width[job], 1) * self.jobs.service[job]
        self.finished_core_s += core_s
        self.finished_lengths.append(core_s)
        self.finished_waits.append(self.waited.pop(job))
        if machine.vacant:
            machine.idle_since = self.now
        if machine.state == DRAINING:
            if machine.vacant:
                self._depart(machine)
        else:
            self.free_cores += cores
            self.busy_cores -= cores
        self._finish_stage(self.jobs.stage[job])

    def _finish_stage(self, stage: int) -> None:
        self.stage_left[stage] -= 1
        if self.stage_left[stage] == 0:
            for job in self.jobs.released_by.get(stage, ()):
                self.events.push_release(self.now + self.jobs.pause[job], job)

    # Dispatch

    def dispatch(self) -> None:
        """Start waiting jobs in order of (arrival, id) until the head fits nowhere (§2.3)."""
        passed_over: list[tuple[float, int, int]] = []
        scan_from, widest_tried = 0, math.inf
        while self.queue and self.free_cores > 0:
            job = self.queue[0][2]
            width = self.jobs.width[job]
            if width == WHOLE_VM or width < widest_tried:
                scan_from = 0
            widest_tried = math.inf if width == WHOLE_VM else width
            place = choose_machine(self.ready, width, self.config.placement, scan_from, self.next_place)
            if place >= 0:
                heapq.heappop(self.queue)
                self.next_place = self.ready[place].number
                self._start(job, self.ready[place], bool(self.queue or passed_over))
                if self.config.placement is Dispatch.FIRST_FIT:
                    scan_from = place
            elif self.config.backfill:
                passed_over.append(heapq.heappop(self.queue))
            else:
                break
        for entry in passed_over:
            heapq.heappush(self.queue, entry)
        self.bursts.placed(len(self.queue), self.now)

    # Time

    def _next_time(self) -> float:
        """Return the time of the next event that still matters, inf when there is none."""
        time = self.events.next_time(self._is_stale)
        if self.next_fixed < len(self.jobs.fixed) and self.jobs.handover is None:
            time = min(time, self.jobs.arrival[self.jobs.fixed[self.next_fixed]])
        return time

    def _is_stale(self, event: Event) -> bool:
        if event.kind == JOB_END:
            return event.item not in self.running or self.running[event.item][0] != event.sequence
        if event.kind == JOB_START:
            return event.item not in self.starting or self.starting[event.item][0] != event.sequence
        if event.kind in (NOTICE, TAKEN_BACK):
            return event.item not in self.spot
        return event.kind == VM_READY and event.item not in self.booting

    def hand_over(self, step: int) -> None:
        """Submit the jobs that are handed over at the start of a step or earlier (compat row 2)."""
        fixed, handover = self.jobs.fixed, self.jobs.handover
        while handover is not None and self.next_fixed < len(fixed) and handover[fixed[self.next_fixed]] <= step:
            self._submit(fixed[self.next_fixed])
            self.next_fixed += 1

    def run_until(self, end: float) -> None:
        """Process all events in (now, end] and bring the clock to `end` (§2.2).

        With an offset clock, those at `end` are left for the next step (compat row 1).
        """
        last = math.nextafter(end, -math.inf) if self.config.compat.offset_clock else end
        while (time := self._next_time()) <= last:
            self._move_clock(time)
            while self.events.next_time(self._is_stale) == time:
                self._carry_out(self.events.pop())
            fixed = self.jobs.fixed if self.jobs.handover is None else []
            while self.next_fixed < len(fixed) and self.jobs.arrival[fixed[self.next_fixed]] == time:
                self._submit(fixed[self.next_fixed])
                self.next_fixed += 1
            self.dispatch()
        self._move_clock(end)
        if self.next_reading <= end:
            self._read_monitors()

    def _carry_out(self, event: Event) -> None:
        _, kind, _, item = event
        if kind == JOB_END:
            self._finish(item)
        elif kind == VM_READY:
            self._make_ready(self.booting.pop(item))
        elif kind == ARRIVAL:
            self._submit(item)
        elif kind == JOB_START:
            self._run(item, self.starting.pop(item)[1])
        elif kind == NOTICE:
            self.reclaimed += 1
            self.events.push(self.now + self.config.reclaim_notice_s, TAKEN_BACK, item)
            if self.spot[item].state == READY:
                self._withdraw(self.spot[item])
        else:
            self._evict(self.spot[item])

    def _move_clock(self, time: float) -> None:
        while self.next_reading < time:
            self._read_monitors()
        passed = time - self.now
        self.busy_core_s += self.busy_cores * passed
        self.ready_core_s += self.ready_cores * passed
        self.waiting_job_s += self.waiting * passed
        self.now = time

    def _read_monitors(self) -> None:
        for machine in self.ready:
            machine.read(self.config.idle_cpu)
        self.next_reading += self.config.sample_interval_s

    def begin_step(self) -> None:
        """Start a control step: clear the departures and the monitors' readings of the last one."""
        self.departed.clear()
        for machine in self.machines:
            machine.begin_step(self.now)
        if self.config.cpu_sampling is CpuSampling.SAMPLED:
            self.next_reading = self.now + self.config.sample_interval_s
