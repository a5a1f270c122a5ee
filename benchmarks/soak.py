"""Days of the loop on a virtual clock, with faults of every kind: does it leak, and can it explain what it did?

The real loop turns once per simulated minute: ledger on SQLite with retention, metrics, actuator and AWS session; the
cloud is in memory and in trouble (see troubled_cloud). The ledger's disk fills (a small tmpfs, where mounting is
allowed), the agent is killed and started on its ledger, and its power is cut: it goes on with the files of that moment.
rss_last_vs_tenth: median resident memory of the last hour over that of the tenth (of the first, in shorter runs); the
process holds the cloud and its VMs too. unexplained_decisions: decisions, changes of size in the cloud, intents and
events without reason, sentence, intent or outcome; lost_jobs: jobs on VMs that the agent ended or did not keep;
calls_without_intent: changes of size that no intent explains, and calls that a fault forbids, as into another account;
replay_differs: decisions of the last hour that come out otherwise when decided again. ledger_mb_first_day: what a day
takes on disk; ledger_last_vs_first: the ledger in the end, retention keeping one day (--keep-hours), against the first
such span.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from actuators.autoscaling_group import AutoScalingActuator
from agent.autoscaling.decision import POLICY_DEADLINE_S
from agent.autoscaling.fleets import ManagedFleet
from agent.autoscaling.loop import Loop
from agent.autoscaling.policies.base import Policy
from agent.autoscaling.policies.fallback import Evaluate, Proposer, evaluate_within
from agent.autoscaling.replay import LATE, replay
from agent.autoscaling.report import with_fleets
from agent.autoscaling.snapshot.aggregate import AggregationSettings, Aggregator
from agent.autoscaling.snapshot.series import SeriesStore
from agent.autoscaling.state import FleetStore
from agent.kernel.leads import Leads
from agent.kernel.turn import TurnReport
from agent.ledger import Ledger
from agent.rails.base import RailLimits
from agent.rails.state import Memory
from agent.service import chores
from agent.service.chores import collect_between_turns, freeze_live_objects
from agent.settings import Settings
from agent.telemetry.telemetry import Telemetry
from benchmarks.agent_host import Feed, agent_view
from benchmarks.loaded_cloud import GRACE_S, make_fleets
from benchmarks.report import Target, arguments, progress, report
from benchmarks.soak_audit import Audit
from benchmarks.tagged_lines import TaggedLines
from benchmarks.tick import POLICIES, log_to
from benchmarks.troubled_cloud import TroubledCloud
from collectors.intake import IntakeCounters, LineReader
from collectors.interruptions import InterruptionQueue
from collectors.inventory import Inventory
from domain.controls import Pause, PauseScope, Pin
from domain.decisions import Mode, Proposal
from domain.errors import PolicyFailure
from domain.fleet import Fleet
from domain.snapshot import Snapshot

HOUR = 60
SCRAPE_MINUTES = 5
TENTH = 10
DISK_MB, FILLER = 256, "filler"
LIMITS = RailLimits(max_step_out_percent=4.0, max_step_in_percent=2.0, budget_per_day=4000.0)
ZEROS = ("unexplained_decisions", "lost_jobs", "calls_without_intent", "replay_differs")
TARGETS = (Target("rss_last_vs_tenth", 1.05), *(Target(name, 0.0) for name in ZEROS))
PAGE_BYTES = resource.getpagesize()
MB = 1024.0 * 1024.0


class Disk:
    """The disk of the ledger, a small one where mounting is allowed: it can be filled, and its power can be cut."""

    def __init__(self, directory: Path) -> None:
        self._place = directory / "disk"
        self._place.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(self._place)]
        self.is_mounted = not os.geteuid() and subprocess.run(mount, check=False, capture_output=True).returncode == 0

    def open(self) -> Ledger:
        """Return the ledger."""
        return Ledger.open(f"sqlite:///{self._place / 'ledger.db'}")

    def fill(self) -> bool:
        """Leave two pages of room; return whether this disk can be filled."""
        if self.is_mounted:
            room = os.statvfs(self._place)
            with open(self._place / FILLER, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, max(1, room.f_bavail - 2) * room.f_frsize)
        return self.is_mounted

    def free(self) -> None:
        """Give the room back."""
        (self._place / FILLER).unlink()

    def files(self) -> dict[Path, bytes]:
        """Return the ledger's files as they are now: what a power cut would leave."""
        return {path: path.read_bytes() for path in self._place.glob("ledger.db*")}

    def put_back(self, files: Mapping[Path, bytes]) -> None:
        """Make the ledger's files what they were."""
        for path in self._place.glob("ledger.db*"):
            path.unlink()
        for path, content in files.items():
            path.write_bytes(content)

    def close(self) -> None:
        """Unmount it."""
        if self.is_mounted:
            subprocess.run(["umount", "--lazy", str(self._place)], check=True)


class Soak:
    """One agent and its troubled cloud."""

    def __init__(self, fleets: int, vms: int, seed: int, keep_s: float, disk: Disk) -> None:
        self.fleets, self.keep_s, self.disk = make_fleets(fleets, vms), keep_s, disk
        chosen = [POLICIES[n % len(POLICIES)] for n in range(fleets)]
        self.cloud = TroubledCloud(self.fleets, vms // fleets, [level for _, level in chosen], seed)
        self.full_until = 0.0
        self.tick_ms = array("f")
        self._minutes = 0
        self._start(chosen)
        self.audit = Audit(self.fleets, self.ledger)

    def _start(self, chosen: Sequence[tuple[str, float]]) -> None:
        self.ledger = ledger = self.disk.open()
        cloud, self._policies = self.cloud, chosen
        clock, store, intake = cloud.host_clock, SeriesStore(watched=self.fleets), IntakeCounters()
        tagged = TaggedLines(store)
        states = [FleetStore(ledger).loop_state(fleet.name) for fleet in self.fleets]
        self.feed, self.reader = Feed(tagged, clock), LineReader(tagged.sink, intake, clock.now)
        self.loop = Loop(
            fleets=tuple(
                ManagedFleet(fleet, LIMITS, policy, (), AggregationSettings(limits=LIMITS, grace_s=GRACE_S))
                for fleet, (policy, _) in zip(self.fleets, chosen, strict=True)
            ),
            store=FleetStore(ledger),
            actuator=AutoScalingActuator(
                cloud,
                Inventory(cloud),
                self.fleets,
                owned_protection={vm for state in states for vm in state.protected},
                known_busy={vm for state in states for vm in state.busy},
            ),
            aggregator=Aggregator(store),
            proposer=Proposer(self._sometimes_late(evaluate_within(POLICY_DEADLINE_S))),
            clock=clock,
            mode=Mode.ACT,
            leads=Leads(every=ledger.take_epoch("soak", clock.now())),
            interruptions=InterruptionQueue(cloud, "https://sqs.invalid/interruptions", clock),
            hosts=tagged.hosts,
        )
        self.view = agent_view(ledger, self.loop, store, clock, Settings(), intake, lambda: cloud.budget.counts)
        self.board = self.view.parts.board
        self.telemetry = Telemetry(self.view)
        self._chosen = {m.fleet.name: m.policy.partition(":")[0] for m in self.loop.fleets}

    def close(self) -> None:
        """Close the ledger."""
        self.ledger.close()

    def restart(self, power_cut: bool) -> None:
        """End the agent's process and start another, on a copy of the ledger's files where the power was cut."""
        files = self.disk.files()
        self.ledger.close()
        if power_cut:
            self.disk.put_back(files)
        self._start(self._policies)
        self.audit.restarted(self.ledger)

    def minute(self) -> None:
        """Let a minute pass and turn the loop; once an hour, forget what is old."""
        cloud = self.cloud
        for kind, fleet, lasts_s in cloud.trouble(self.feed, self.reader):
            self._operate(kind, fleet, lasts_s)
        if self.full_until and cloud.clock.now() >= self.full_until:
            self.full_until = 0.0
            self.disk.free()
        cloud.pass_minute(self.feed)
        began = time.perf_counter()
        turn = self.loop.turn(cloud.host_clock.now())
        took_s = time.perf_counter() - began
        self.tick_ms.append(1000.0 * took_s)
        report_of_turn = with_fleets(TurnReport(turn.at), turn)
        for listener in self.board.turned(report_of_turn, took_s):
            listener(self.board.read(), report_of_turn)
        if self._minutes % SCRAPE_MINUTES == 0:
            self.telemetry.exposition()
        is_refused = bool(self.full_until and turn.failure)
        self.audit.look(cloud.clock.now(), turn, cloud.changes, cloud.owner_changed, is_refused=is_refused)
        self._minutes += 1
        if self._minutes % HOUR == 0 and not self.full_until:
            chores.forget(self.ledger, cloud.host_clock.now(), self.keep_s)
        collect_between_turns()

    def replay_differs(self) -> int:
        """Return how many decisions of the last hour come out otherwise when they are decided again."""
        now, store = self.cloud.host_clock.now(), FleetStore(self.ledger)
        return sum(not again.same for fleet in self.fleets for again in replay(store.inputs(fleet.name, now - 3600.0)))

    def _operate(self, kind: str, fleet: Fleet, lasts_s: float) -> None:
        now = self.cloud.host_clock.now()
        if kind in ("killed", "power_cut") and not self.full_until:
            self.restart(kind == "power_cut")
        elif kind == "disk_full":
            if not self.full_until and self.disk.fill():
                self.full_until = self.cloud.clock.now() + lasts_s / 4.0
                self.cloud.cut_off(lasts_s / 4.0)
        elif self.full_until:
            return
        elif kind in ("pause", "namesake_paused"):
            pause = Pause(PauseScope.ALL, "operator", "a look at it", now, now + lasts_s)
            if kind == "pause":
                self.audit.pauses[fleet.name] = pause
                self.ledger.pause("autoscaling", fleet.name, pause)
            else:
                self.ledger.pause("deferral", fleet.name, pause)
                self.ledger.resume("admission", fleet.name, PauseScope.ALL, at=now, owner="operator")
        else:
            sizes = {group.key: (group.minimum + group.maximum) // 2 for group in fleet.groups}
            self.ledger.pin("autoscaling", fleet.name, Pin(sizes, "operator", "a test of load", now, now + lasts_s))

    def _sometimes_late(self, evaluate: Evaluate) -> Evaluate:
        def evaluated(policy: Policy, fleet: Fleet, snapshot: Snapshot, memory: Memory) -> tuple[Proposal, Memory]:
            is_first = any(
                m.fleet.name == fleet.name and policy.name.startswith(m.policy[:5]) for m in self.loop.fleets
            )
            if is_first and self.cloud.clock.now() < self.cloud.late_policies.get(fleet.name, 0.0):
                raise PolicyFailure(f"{policy.name} {LATE[0]} {POLICY_DEADLINE_S:g} s")
            return evaluate(policy, fleet, snapshot, memory)

        return evaluated


def soaked(
    minutes: int, fleets: int, vms: int, seed: int, keep_hours: float, directory: Path
) -> tuple[dict[str, float], dict[str, object]]:
    """Return the figures of one run, and notes on what happened in it."""
    with closing(Disk(directory)) as disk, closing(Soak(fleets, vms, seed, 3600.0 * keep_hours, disk)) as soak:
        # What a run keeps of itself is bounded, so that it is not measured as the agent's.
        last: deque[float] = deque(maxlen=HOUR)
        tenth: Sequence[float] = last
        peak_mb = 0.0
        ledger_mb: dict[int, float] = {}
        began = time.perf_counter()
        for minute in range(1, minutes + 1):
            soak.minute()
            last.append(_resident_mb())
            peak_mb = max(peak_mb, last[-1])
            if minute in (HOUR, HOUR * TENTH):
                tenth = list(last)
            if minute == HOUR // 2:
                freeze_live_objects()
            if minute % HOUR == 0 or minute == minutes:
                ledger_mb[minute] = soak.ledger.size_bytes() / MB
            if minute % (6 * HOUR) == 0:
                line = f"hour {minute // HOUR}: {last[-1]:.0f} MB, ledger {ledger_mb[minute]:.0f} MB"
                progress(f"{line}, {soak.cloud.size} VMs, {soak.audit.total()} unexplained")
        took_s = time.perf_counter() - began
        first_span = min((m for m in ledger_mb if m >= HOUR * min(keep_hours, 24.0)), default=max(ledger_mb))
        figures = {
            "rss_tenth_hour_mb": statistics.median(tenth),
            "rss_last_hour_mb": statistics.median(last),
            "rss_last_vs_tenth": statistics.median(last) / statistics.median(tenth),
            "peak_rss_mb": peak_mb,
            "unexplained_decisions": soak.audit.total() - soak.audit.calls_without_intent(),
            "lost_jobs": soak.cloud.lost["agent"],
            "calls_without_intent": soak.audit.calls_without_intent() + soak.cloud.forbidden.total(),
            "replay_differs": soak.replay_differs(),
            "ledger_mb_per_day": ledger_mb[first_span] * 24.0 * HOUR / first_span,
            "ledger_last_vs_first": ledger_mb[minutes] / ledger_mb[first_span],
            "ticks_per_s": minutes / took_s,
            "tick_p50_ms": statistics.median(soak.tick_ms),
            "tick_p99_ms": sorted(soak.tick_ms)[int(0.99 * len(soak.tick_ms))],
            "decisions": soak.audit.decisions,
            "intents": soak.audit.intents,
            "size_changes": soak.audit.size_changes,
        }
        notes: dict[str, object] = {
            "simulated_hours": minutes / HOUR,
            "vms_at_the_end": soak.cloud.size,
            "faults": _sorted(soak.cloud.faults),
            "calls": {f"{family} {result}": n for (family, result), n in sorted(soak.cloud.budget.counts.items())},
            "reasons": _sorted(soak.audit.reasons),
            "jobs_lost_by": dict(soak.cloud.lost),
            "jobs_lost": soak.cloud.lost_examples,
            "forbidden_calls": dict(soak.cloud.forbidden),
            "disk": f"tmpfs of {DISK_MB} MB" if disk.is_mounted else "never full: mounting is not allowed here",
            "unexplained": dict(soak.audit.unexplained),
            "examples": soak.audit.examples,
            "readings": {"accepted": soak.feed.accepted, "refused": soak.feed.refused, "silent": soak.feed.withheld},
        }
    return figures, notes


def _resident_mb() -> float:
    with open("/proc/self/statm", encoding="ascii") as line:
        return int(line.read().split()[1]) * PAGE_BYTES / MB


def _sorted(counts: Counter[str]) -> dict[str, int]:
    return {str(name): count for name, count in counts.most_common()}


def main(given: Sequence[str] | None = None) -> int:
    """Measure once and print; exit status 1 when a target is missed."""
    parser = arguments(__doc__ or "", runs=1)
    parser.add_argument("--hours", type=float, default=720.0, help="simulated hours (default 720: a month)")
    parser.add_argument("--vms", type=int, default=40, help="VMs in all (default 40)")
    parser.add_argument("--fleets", type=int, default=2, help="fleets of three groups each (default 2)")
    parser.add_argument("--seed", type=int, default=7, help="seed of load and faults (default 7)")
    parser.add_argument("--keep-hours", type=float, default=24.0, help="what the ledger keeps (default 24)")
    asked = parser.parse_args(given)
    with tempfile.TemporaryDirectory(dir=asked.directory) as place, open(os.devnull, "w", encoding="utf-8") as sink:
        log_to(sink)
        minutes = max(1, round(asked.hours * HOUR))
        figures, notes = soaked(minutes, asked.fleets, asked.vms, asked.seed, asked.keep_hours, Path(place))
    return report(
        "soak",
        figures,
        as_json=asked.json,
        packages=("numpy", "sqlalchemy", "botocore"),
        targets=TARGETS,
        notes={"vms": asked.vms, "fleets": asked.fleets, "seed": asked.seed, "keep_hours": asked.keep_hours, **notes},
    )


if __name__ == "__main__":
    sys.exit(main())
