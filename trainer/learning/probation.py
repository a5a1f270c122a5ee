"""The end of a probation: where challenger and champion differed, what each would have cost, and whether it held.

The agent asked the challenger each minute and recorded its proposal beside the decision. These say where the two
differ. What each would have cost says the replay of the same minutes under both, by the agent's own code: a proposal
that was not carried out has no cost of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from agent.autoscaling.decide import DecisionInputs
from agent.autoscaling.policies.ppo_lstm import LEARNED
from agent.models.directory import Probationer, moment_text
from agent.models.file import load_model
from domain.decisions import Decision, Verdict
from domain.errors import BadInput
from domain.fleet import Fleet
from domain.units import HOUR_S, MINUTE_S
from trainer.kit.intervals import Comparison, compare
from trainer.kit.report import Section, chip, document, escape, table
from trainer.learning.fidelity import WITHIN, WindowCost, replay_windows
from trainer.learning.minutes import Record, read_record_since
from trainer.learning.recorded import read_decisions
from trainer.learning.report import write_folder
from trainer.learning.watch import LEAST_WINDOWS, Inspection
from trainer.learning.windows import marked_stretches, part_of
from trainer.promotion.gate import Limits

LEAST_SHARE = 0.5
"""Share of the minutes of a probation in which the challenger's proposal must be recorded."""
LONGEST = 2.0
"""A probation that cannot be judged goes on for at most so many times its hours."""
FIRST_SEED = 2_800_000_000
"""Boot seeds of the replays; what trains, tunes, judges, checks or watches uses others."""
PROBATION_FOLDER = "probation"
WAITING, IDLE, ANNOUNCED, RAILS, ALL = "jobs wait", "VMs are idle", "work is announced", "a rail changed it", "all"


@dataclass(frozen=True, slots=True)
class Situation:
    """The minutes of a kind: how many, in how many the two differ, and by how much the challenger asks for more there.

    vms, cores: means over the minutes that differ; below 0 where it asks for less.
    """

    name: str
    minutes: int
    differing: int
    vms: float
    cores: float

    @property
    def share(self) -> float:
        """Share of the minutes in which they differ."""
        return self.differing / self.minutes if self.minutes else 0.0


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where recorded proposals of a challenger differ from those of what decided.

    minutes: decisions in the span. asked: those with a proposal of the challenger. failed: those in which another
    policy stood in for it. situations: all minutes first; one minute can be of several kinds.
    """

    minutes: int
    asked: int
    failed: int
    situations: tuple[Situation, ...]

    @property
    def sentence(self) -> str:
        """What was found, for people."""
        if not self.asked:
            return f"none of its proposals is recorded in {self.minutes} minutes"
        every = self.situations[0]
        text = f"it differs in {every.share:.1%} of {self.asked} minutes"
        if every.differing:
            text += f", by {every.vms:+.1f} VMs and {every.cores:+.1f} cores on average"
        return text + (f"; in {self.failed} minutes another policy replaced it" if self.failed else "")


class ProbationStatus(StrEnum):
    """The status of a probation.

    running: its hours are not over. waiting: they are, and too little is recorded, or the simulator is not true; it
    goes on. held, broken: its promise. given up: it could not be judged in twice its hours, or another one is champion.
    """

    RUNNING = "running"
    WAITING = "waiting"
    HELD = "held"
    BROKEN = "broken"
    GIVEN_UP = "given up"


@dataclass(frozen=True, slots=True)
class TriedWindow:
    """Dollars of a window: as recorded, and replayed under what decided and under the challenger."""

    name: str
    hours: float
    recorded: float
    champion: float
    challenger: float


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of a probation. promised: the gate's relative cost, None where its report has none. why: for people."""

    probationer: Probationer
    status: ProbationStatus
    why: str
    promised: float | None = None
    divergence: Divergence | None = None
    windows: tuple[TriedWindow, ...] = ()
    comparison: Comparison | None = None

    @property
    def sentence(self) -> str:
        """What was found, for people."""
        return f"{self.probationer.model[:12]}, on probation since {moment_text(self.probationer.since)}: {self.why}"


def examine(case: Inspection, one: Probationer, limits: Limits | None = None) -> Tried:
    """Judge a probation; nothing is changed.

    limits: of the gate: the challenger may cost no more than `limits.worse` above what decided, and not surely more at
    all. Raises BadInput for a report or a file that is damaged or was tampered with, and for a world that does not go
    with the fleet; LedgerUnavailable.
    """
    limits = limits or Limits()
    report = case.directory.check_probationer(case.subject, one)
    load_model(case.directory.file_of(one.model))
    found = Tried(
        one, ProbationStatus.RUNNING, f"its {one.hours:g} h end at {moment_text(one.until)}", _promised(report)
    )
    champion = case.directory.champion(case.subject)
    now = None if champion is None else champion.model
    if now != one.against:
        why = f"the champion is {now or 'none'} by now, it was compared with {one.against or 'none'}"
        return replace(found, status=ProbationStatus.GIVEN_UP, why=why)
    if case.now_s < one.until:
        return found
    late = case.now_s >= one.since + LONGEST * one.hours * HOUR_S
    undecided = ProbationStatus.GIVEN_UP if late else ProbationStatus.WAITING
    divergence = divergence_of(case.ledger, case.fleet, one)
    found = replace(found, divergence=divergence)
    needed = LEAST_SHARE * one.hours * HOUR_S / MINUTE_S
    if divergence.asked < needed:
        why = f"{divergence.asked} of its proposals are recorded, at least {needed:.0f} are needed"
        return replace(found, status=undecided, why=why_undecided(why, one, late))
    recorded = _recorded(case, one)
    job_core_s = None if recorded is None else recorded.job_core_s
    spans = () if recorded is None or job_core_s is None else marked_stretches(recorded, job_core_s)
    count = sum(len(span.marks) for span in spans)
    if recorded is None or count < LEAST_WINDOWS:
        why = f"the minutes that can be replayed make {count} windows, {LEAST_WINDOWS} are needed"
        return replace(found, status=undecided, why=why_undecided(why, one, late))
    learner = case.learner(recorded)
    theirs, ours = (
        replay_windows(
            learner.loop, learner.config, spans, FIRST_SEED, policy=policy, seeds=case.seeds, spread=case.spread
        )
        for policy in (None, f"{LEARNED}:{Path(one.model).stem}")
    )
    found = replace(
        found,
        windows=tuple(
            TriedWindow(own.name, own.hours, old.recorded, old.replayed, own.replayed)
            for old, own in zip(theirs, ours, strict=True)
        ),
    )
    comparison = compare([own.replayed for own in ours], [old.replayed for old in theirs])
    found = replace(found, comparison=comparison)
    off = _off(theirs)
    if abs(off) > WITHIN:
        why = f"the replay of the policy in use costs {off:+.1%} of the recorded cost: the simulator is not true"
        return replace(found, status=undecided, why=why_undecided(why, one, late))
    return judged(found, divergence, comparison, limits)


def judged(found: Tried, divergence: Divergence, comparison: Comparison, limits: Limits) -> Tried:
    """Return whether the promise of a probation held that was replayed; see `examine` for what it may cost."""
    r = comparison.relative
    why = f"the same minutes cost {r.mean:+.1%} ({r.low:+.1%} to {r.high:+.1%}) under it; {divergence.sentence}"
    if found.promised is not None:
        why += f"; the gate found {found.promised:+.1%}"
    fault = fault_of(comparison, limits)
    status = ProbationStatus.BROKEN if fault else ProbationStatus.HELD
    return replace(found, status=status, why=f"{why}: {fault}" if fault else why)


def fault_of(comparison: Comparison, limits: Limits) -> str:
    """Return why a challenger costs too much to decide, for people; "" where it does not.

    comparison: of its cost with that of what decided: it may be `limits.worse` above it, and not surely above at all.
    """
    if comparison.relative.mean > limits.worse:
        return f"more than {limits.worse:+.0%}"
    return "it is surely dearer" if comparison.relative.low > 0.0 else ""


def divergence_of(ledger: str, fleet: str, one: Probationer) -> Divergence:
    """Return where the recorded proposals of a model on probation differ so far from those of what decided."""
    policy = f"{LEARNED}:{Path(one.model).stem}"
    kinds: Mapping[str, Callable[[DecisionInputs, Decision], bool]] = {
        ALL: lambda inputs, made: True,
        WAITING: _jobs_wait,
        IDLE: lambda inputs, made: inputs.snapshot is not None and any(g.idle_long for g in inputs.snapshot.groups),
        ANNOUNCED: lambda inputs, made: inputs.snapshot is not None and bool(inputs.snapshot.announced),
        RAILS: lambda inputs, made: any(effect.verdict is not Verdict.PASSED for effect in made.effects),
    }
    found: dict[str, list[tuple[int, int, int]]] = {name: [] for name in kinds}
    minutes = failed = 0
    try:
        for inputs, made in read_decisions(ledger, fleet, one.since, one.since + LONGEST * one.hours * HOUR_S):
            minutes += 1
            proposal = next((one for one in made.shadows if one.policy == policy), None)
            if proposal is None:
                # Beside what decides only shadows are recorded: one of another name stood in for it.
                failed += policy in inputs.shadows
                continue
            if len(proposal.desired) != len(made.proposal.desired):
                continue
            more = _more(inputs.fleet, proposal.desired, made.proposal.desired)
            for name, is_kind in kinds.items():
                if is_kind(inputs, made):
                    found[name].append(more)
    except BadInput:
        minutes = 0
    situations = tuple(_situation(name, rows) for name, rows in found.items())
    return Divergence(minutes, situations[0].minutes, failed, situations)


def _jobs_wait(inputs: DecisionInputs, _: Decision) -> bool:
    snapshot = inputs.snapshot
    return snapshot is not None and snapshot.queue is not None and snapshot.queue.waiting > 0


def _more(fleet: Fleet, ours: Sequence[int], theirs: Sequence[int]) -> tuple[int, int, int]:
    """Return whether two proposals differ, and how many VMs and cores more the first one asks for."""
    apart = [a - b for a, b in zip(ours, theirs, strict=True)]
    cores = sum(more * group.vm_type.cores for more, group in zip(apart, fleet.groups, strict=True))
    return int(any(apart)), sum(apart), cores


def _situation(name: str, rows: Iterable[tuple[int, int, int]]) -> Situation:
    every = list(rows)
    apart = [(vms, cores) for differs, vms, cores in every if differs]
    count = max(len(apart), 1)
    return Situation(
        name, len(every), len(apart), sum(vms for vms, _ in apart) / count, sum(cores for _, cores in apart) / count
    )


def _recorded(case: Inspection, one: Probationer) -> Record | None:
    try:
        recorded = read_record_since(case.ledger, case.fleet, one.since)
    except BadInput:
        return None
    return part_of(recorded, one.since, one.since + LONGEST * one.hours * HOUR_S)


def _off(windows: Sequence[WindowCost]) -> float:
    recorded = sum(one.recorded for one in windows)
    return sum(one.replayed for one in windows) / recorded - 1.0 if recorded > 0.0 else 0.0


def why_undecided(why: str, one: Probationer, late: bool) -> str:
    """Return why nothing can be said of a probation yet, and until when it goes on, for people."""
    end = moment_text(one.since + LONGEST * one.hours * HOUR_S)
    return f"{why}; twice its hours are over" if late else f"{why}; it continues until {end} at most"


def _promised(report: Mapping[str, Any]) -> float | None:
    try:
        return float(report["overall"]["relative"]["mean"])
    except (KeyError, TypeError, ValueError):
        return None


def write_probation(folder: Path, fleet: str, found: Tried) -> Path:
    """Write page and data of a probation into `folder/probation`, each whole or not at all; return the page."""
    one, comparison, divergence = found.probationer, found.comparison, found.divergence
    facts = {
        "fleet": fleet,
        "challenger": one.model,
        "champion": one.against or "none: the policy of the settings",
        "since": moment_text(one.since),
        "hours": f"{one.hours:g}",
    }
    held = {ProbationStatus.HELD: True, ProbationStatus.BROKEN: False}.get(found.status)
    body = f"<p>{chip(held, found.status)} {escape(found.why)}.</p>"
    if comparison is not None:
        r = comparison.relative
        rows = [["the gate", "—" if found.promised is None else f"{found.promised:+.1%}"]]
        rows += [["this probation", f"{r.mean:+.1%} ({r.low:+.1%} to {r.high:+.1%})"]]
        body += table(["challenger against the policy in use", "cost"], rows)
    sections = [Section("promise", "Did the promise hold?", body)]
    if divergence is not None:
        rows = [
            [escape(s.name), str(s.minutes), f"{s.share:.1%}", f"{s.vms:+.1f}", f"{s.cores:+.1f}"]
            for s in divergence.situations
        ]
        head = ["minutes in which", "minutes", "differ in", "VMs more", "cores more"]
        words = f"<p>{escape(divergence.sentence)}.</p>"
        sections.append(Section("divergence", "Where they differ", words + table(head, rows)))
    rows = [
        [escape(w.name), f"{w.hours:.1f}", *(f"{x:.4f} $" for x in (w.recorded, w.champion, w.challenger))]
        for w in found.windows
    ]
    head = ["window", "hours", "recorded", "the policy in use, replayed", "challenger, replayed"]
    sections.append(Section("windows", "Windows", table(head, rows)))
    data = {**asdict(found), "sentence": found.sentence}
    page = document(f"The probation of fleet {fleet}", sections, facts)
    return write_folder(folder / PROBATION_FOLDER, page, data)
