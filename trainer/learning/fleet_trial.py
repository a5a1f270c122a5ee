"""The evidence on a fleet's models: minutes of the ledger, replayed by the agent's own code in the fleet's world.

After a promotion the minutes of the champion are replayed under it (the prediction) and under the policy before it. If
the recorded cost is surely above the prediction, the simulator was wrong about the champion; if it is surely above that
of the policy before, the promotion was: either takes it back. So does a loss against the rule of day 0
(`trainer.learning.loss_watch`), over all hours that promoted models decided since the last rollback: small losses of
one promotion after the other add up there, and its hours are enough for an early verdict.

In a probation the agent asked the challenger each minute and recorded its proposal with the decision. These show where
the two differ; their cost is that of a replay of the same minutes under both.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from agent.autoscaling.decide import DecisionInputs
from agent.autoscaling.policies.learned_models import ModelShelf
from agent.autoscaling.policies.ppo_lstm import LEARNED
from agent.autoscaling.policies.rules import QueueRulePolicy
from agent.models.directory import PROMOTED, ROLLED_BACK, Champion, Probationer, moment_s
from agent.models.file import load_model
from domain.decisions import Decision, Verdict
from domain.errors import BadInput
from domain.fleet import Fleet
from domain.rules.queue_rule import RuleSetting
from domain.subject import AUTOSCALING, Subject
from domain.units import DAY_S, HOUR_S, MINUTE_S
from trainer.autoscaling.worlds import world_of
from trainer.kit.intervals import compare
from trainer.kit.report import Section, chip, escape, table
from trainer.learning.fidelity import CHECK_VERSION, SEEDS, WITHIN, Map, WindowCost, replay_windows
from trainer.learning.lived_hours import (
    CHANGED,
    EARLIER,
    LEAD_S,
    RULE,
    KeptHours,
    LivedHours,
    borne_out,
    decided_by,
    kept_until,
    lived_hours,
    read_kept,
    write_kept,
)
from trainer.learning.loss_watch import DEVIATIONS, LossResult, LossVerdict, loss_watch
from trainer.learning.minutes import DecidedMinute, Record, Span, read_record_since
from trainer.learning.recorded import read_decisions
from trainer.learning.subject import Learner, check_policy, learner_of
from trainer.learning.trial import LEAST_SHARE, Inspection, Replay, WatchEvidence, end_of, interval
from trainer.learning.windows import marked_stretches, part_of
from trainer.promotion.directory import ModelsWriter
from trainer.promotion.gate import Limits

OVER_PREDICTED, OVER_BEFORE = 0.05, 0.02
"""Bounds of the recorded cost above the prediction and above the policy before, for the lower end of the interval."""
ENDS: Final = 0.90
"""Level of the intervals of the watch: each end is passed by chance in 5 %."""
LEAST_WINDOWS: Final = 8
"""Windows of an hour or more for a judgement."""
SEEN_S: Final = 28 * DAY_S
"""How far before a promotion the hours are compared with the rule of day 0."""
WATCH_SEED, PROBATION_SEED = 2_700_000_000, 2_800_000_000
"""Boot seeds of the replays; training, tuning, judgement and fidelity check use others."""
WAITING, IDLE, ANNOUNCED, RAILS, ALL = "jobs wait", "VMs are idle", "work is announced", "a rail changed it", "all"


@dataclass(frozen=True, slots=True)
class FleetEvidence:
    """The ledger of a fleet, and its world.

    ledger: a SQLite file or a URL. world, idle_s: as of `subject.learner_of`, `usual_s` is usual_idle_s. seeds: boot
    seeds of each replay. spread: maps a function over items. rule: of day 0, None for the recorded terms. hourly: a
    promotion is compared with that rule alone. keeps: compared hours are kept for the next call.
    """

    fleet: str
    ledger: str
    directory: ModelsWriter
    shelf: ModelShelf
    world: str | None
    idle_s: float | None
    seeds: int = SEEDS
    spread: Map = map
    usual_idle_s: float = 0.0
    rule: RuleSetting | None = None
    hourly: bool = False
    keeps: bool = True

    def inspection(self, now_s: float, limits: Limits) -> Inspection:
        """Return the case for a look at the fleet's models; now_s: epoch seconds."""
        subject = Subject(AUTOSCALING, self.fleet)
        return Inspection(subject, self.directory, load_model, now_s, self.lived, self.replay, limits)

    def learner(self, recorded: Record, *, only_rules: bool = False) -> Learner:
        """Return the fleet with its record; BadInput for a world or a policy that cannot be replayed."""
        return learner_of(recorded, self.world, self.shelf, self.idle_s, self.usual_idle_s, only_rules=only_rules)

    def lived(self, champion: Champion) -> WatchEvidence | str:
        """Return the minutes since a promotion, or why too little is known.

        Raises LedgerUnavailable, and BadInput for a world that does not go with the fleet.
        """
        assert champion.at_s is not None, "a promotion that is watched has a time"
        hours = self.compared(champion)
        recorded = None if self.hourly else self._read_since(champion.at_s - DAY_S)
        if hours is None or (recorded is None and not self.hourly):
            return "the ledger has no minute since then"
        predicted = "the prediction is compared by the round of each night"
        loss = self.loss(hours, champion)
        if loss.is_loss:
            loss = self._borne_out(loss, champion)
        return beside_loss(loss, predicted if recorded is None else self._predicted(recorded, champion))

    def _borne_out(self, found: LossResult, champion: Champion) -> LossResult:
        """Return the loss, as far as replays of the champion and of the rule of day 0 bear it out.

        The loss is returned where the champion cannot be replayed.
        """
        policy, at_s = f"{LEARNED}:{Path(champion.model).stem}", champion.at_s or 0.0
        recorded = self._read_since(at_s)
        if recorded is None or not self._can_be_replayed(policy, recorded):
            return found
        learner = self.learner(recorded, only_rules=True)
        rule, decided = (
            lived_hours(learner, setting, lambda one: CHANGED if one.policy == policy else None, at_s)
            for setting in (self.rule or _recorded_rule(learner), None)
        )
        return borne_out(found, rule, decided)

    def _read_since(self, since_s: float) -> Record | None:
        try:
            return read_record_since(self.ledger, self.fleet, since_s)
        except BadInput:
            return None

    def compared(self, champion: Champion) -> LivedHours | None:
        """Return the hours since SEEN_S before a promotion; kept hours are not replayed again. None without any."""
        at_s = champion.at_s or 0.0
        path = self.directory.path / f"watch-{AUTOSCALING}-{self.fleet}.json"
        rule = None if self.rule is None else asdict(self.rule)
        world = "" if self.world is None else repr(world_of(self.world).config)
        facts = {"version": CHECK_VERSION, "model": champion.model, "at": champion.at, "rule": rule, "world": world}
        facts |= {"fleet": self.fleet, "idle_s": self.idle_s, "since": self._since_s}
        kept, recorded = read_kept(path, facts, self.directory.key), None
        if kept.until is not None:
            recorded = self._read_since(at_s + kept.until * HOUR_S - LEAD_S)
            if recorded is None or kept_until(recorded.minutes[-1].end_s - at_s) < kept.until:
                # The clock was set back: kept hours would hide the hours that come again.
                kept = KeptHours(facts)
        if kept.until is None:
            recorded = self._read_since(at_s - SEEN_S)
        if recorded is None:
            return None
        hours = kept.with_newer(self.hours(recorded, champion))
        if self.keeps:
            # A full disk must not end the watch: the next call replays these hours again.
            with contextlib.suppress(OSError):
                write_kept(path, kept.kept_of(hours, recorded.minutes[-1].end_s - at_s), self.directory.key)
        return hours

    @property
    def _since_s(self) -> float:
        """When the last rollback was, epoch seconds: the hours of promoted models count since then."""
        changes = self.directory.history(Subject(AUTOSCALING, self.fleet))
        return max((moment_s(one["at"]) for one in changes if one.get("event") == ROLLED_BACK), default=0.0)

    def hours(self, recorded: Record, champion: Champion) -> LivedHours:
        """Return the recorded hours that the rule of day 0 or promoted models since the last rollback decided."""
        own, since_s = f"{LEARNED}:{Path(champion.model).stem}", self._since_s
        changes = self.directory.history(Subject(AUTOSCALING, self.fleet))
        watched = {f"{LEARNED}:{Path(one['model']).stem}" for one in changes if one.get("event") == PROMOTED}
        learner = self.learner(recorded, only_rules=True)
        setting = self.rule or _recorded_rule(learner)

        def kind_of(minute: DecidedMinute) -> int | None:
            if minute.policy in watched and minute.end_s >= since_s:
                return CHANGED if minute.policy == own else EARLIER
            return RULE if decided_by(minute, setting) else None

        return lived_hours(learner, setting, kind_of, champion.at_s or 0.0)

    def loss(self, hours: LivedHours, champion: Champion) -> LossResult:
        """Return the verdict on the hours of promoted models, compared with the rule of day 0.

        A loss is that of the champion only where its own hours cost more, too.
        """
        found = loss_watch(*hours.of(EARLIER, CHANGED), hours.of(RULE))
        lived, rule = hours.of(CHANGED)
        if found.is_loss and lived.sum() <= found.bias * (1.0 + found.tolerance) * rule.sum():
            why = f"the policies before it lost more than the budget, it does not: {found.reason}"
            return replace(found, verdict=LossVerdict.CONTINUE, reason=why)
        return found

    def _predicted(self, recorded: Record, champion: Champion) -> WatchEvidence | str:
        """Return the minutes of a champion against its prediction and the policy before, or why too little is known."""
        assert champion.at_s is not None, "a promotion that is watched has a time"
        policy = f"{LEARNED}:{Path(champion.model).stem}"
        lived = replace(recorded, stretches=tuple(_decided_by(policy, recorded, champion.at_s)))
        minutes = sum(len(one) - 1 for one in lived.stretches)
        job_core_s = lived.job_core_s or recorded.job_core_s
        spans = () if job_core_s is None else marked_stretches(lived, job_core_s)
        if (count := _windows(spans)) < LEAST_WINDOWS:
            why = f"{minutes} minutes that it decided are recorded, which make {count} windows"
            return f"{why}; {LEAST_WINDOWS} are needed to judge it by"
        if not self._can_be_replayed(policy, recorded):
            return "its minutes cannot be replayed: it is a recurrent network, or it is gone"
        before = _policy_before(recorded, champion, policy)
        if before and not self._can_be_replayed(before, recorded):
            before = ""
        predicted = self._replayed(lived, spans, WATCH_SEED, policy)
        costs: list[float | None] = [None] * len(predicted)
        bias = 1.0
        if before:
            replays = self._replayed(lived, spans, WATCH_SEED, before)
            bias = self._bias(recorded, champion.at_s, before, job_core_s or 0.0)
            costs = [bias * one.replayed for one in replays]
        windows = tuple(
            WatchWindow(one.name, one.hours, one.recorded, one.replayed, cost)
            for one, cost in zip(predicted, costs, strict=True)
        )
        return weighed(champion.previous, minutes, before, bias, windows)

    def _replayed(
        self, recorded: Record, spans: Sequence[Span], first_seed: int, policy: str | None
    ) -> tuple[WindowCost, ...]:
        learner = self.learner(recorded)
        more: dict[str, Any] = {"policy": policy, "seeds": self.seeds, "spread": self.spread}
        return replay_windows(learner.loop, learner.config, spans, first_seed, **more)

    def _can_be_replayed(self, policy: str, recorded: Record) -> bool:
        try:
            check_policy(policy, recorded.fleet, self.shelf)
        except BadInput:
            return False
        return True

    def _bias(self, recorded: Record, until_s: float, policy: str, job_core_s: float) -> float:
        """Return recorded over replayed cost of the minutes of a policy before a moment, 1 for too few of them.

        It is kept within the bound of the fidelity check: a simulator that is further off does not speak for a model.
        """
        earlier = part_of(recorded, until_s - DAY_S, until_s)
        earlier = replace(earlier, stretches=tuple(_decided_by(policy, earlier, until_s - DAY_S)))
        spans = marked_stretches(earlier, job_core_s)
        if _windows(spans) < LEAST_WINDOWS:
            return 1.0
        found = self._replayed(earlier, spans, WATCH_SEED, None)
        replayed = sum(one.replayed for one in found)
        ratio = sum(one.recorded for one in found) / replayed if replayed > 0.0 else 1.0
        return min(max(ratio, 1.0 - WITHIN), 1.0 + WITHIN)

    def replay(self, one: Probationer) -> Replay:
        """Return the minutes of a probation under the policy in use and under the challenger.

        Raises BadInput for a world that does not go with the fleet; LedgerUnavailable.
        """
        promised = _promised(self.directory.check_probationer(Subject(AUTOSCALING, self.fleet), one))
        divergence = divergence_of(self.ledger, self.fleet, one)
        needed = LEAST_SHARE * one.hours * HOUR_S / MINUTE_S
        if divergence.asked < needed:
            why = f"{divergence.asked} of its proposals are recorded, at least {needed:.0f} are needed"
            return replayed(divergence, promised, (), why)
        try:
            recorded = part_of(read_record_since(self.ledger, self.fleet, one.since), one.since, end_of(one))
        except BadInput:
            recorded = None
        job_core_s = None if recorded is None else recorded.job_core_s
        spans = () if recorded is None or job_core_s is None else marked_stretches(recorded, job_core_s)
        if recorded is None or _windows(spans) < LEAST_WINDOWS:
            why = f"the minutes that can be replayed make {_windows(spans)} windows, {LEAST_WINDOWS} are needed"
            return replayed(divergence, promised, (), why)
        old = self._replayed(recorded, spans, PROBATION_SEED, None)
        new = self._replayed(recorded, spans, PROBATION_SEED, f"{LEARNED}:{Path(one.model).stem}")
        windows = tuple(
            ProbationWindow(ours.name, ours.hours, theirs.recorded, theirs.replayed, ours.replayed)
            for theirs, ours in zip(old, new, strict=True)
        )
        total = sum(one.recorded for one in old)
        off = sum(one.replayed for one in old) / total - 1.0 if total > 0.0 else 0.0
        why = f"the replay of the policy in use costs {off:+.1%} of the recorded cost: the simulator is not true"
        return replayed(divergence, promised, windows, why if abs(off) > WITHIN else "")


def beside_loss(loss: LossResult, predicted: WatchEvidence | str) -> WatchEvidence | str:
    """Return the evidence with the comparison with the rule of day 0; predicted: or why too little is known."""
    if loss.verdict is LossVerdict.UNKNOWN:
        return predicted
    row = [f"{loss.hours}", chip(not loss.is_loss, f"{loss.lost:+.4f} $"), f"{loss.budget:.4f} $"]
    row += [f"{loss.excess:+.1%} in {loss.span_hours} h", f"{loss.deviations:.1f}", f"{DEVIATIONS:g}"]
    head = ["hours", "lost in the last week", "budget of a week", "surest excess", "standard deviations", "may be"]
    section = Section("day-0", "Against the rule of day 0", table(head, [row]))
    data = {"day_0": asdict(loss)}
    if isinstance(predicted, str):
        fault = loss.reason if loss.is_loss else ""
        return WatchEvidence(fault, f"{loss.reason}; {predicted}", data, (section,), is_of_all=loss.is_loss)
    fault = "; ".join(one for one in (loss.reason if loss.is_loss else "", predicted.fault) if one)
    sentence = fault or f"{predicted.sentence}; {loss.reason}"
    return replace(
        predicted,
        fault=fault,
        sentence=sentence,
        data={**predicted.data, **data},
        sections=(*predicted.sections, section),
        is_of_all=loss.is_loss,
    )


@dataclass(frozen=True, slots=True)
class WatchWindow:
    """Dollars of a window: recorded, predicted for the champion, and under the policy before (None: not known)."""

    name: str
    hours: float
    lived: float
    predicted: float
    before: float | None


def weighed(
    previous: str | None, minutes: int, before: str, bias: float, windows: tuple[WatchWindow, ...]
) -> WatchEvidence:
    """Return the evidence on the minutes since a promotion.

    previous: the file before. minutes: under the champion. before: the policy that decided before it, "" where that is
    not known or cannot be replayed. bias: recorded over replayed cost of the day before the promotion, as far as the
    fidelity check allows: it is the simulator's fault and not the champion's, so `before` of the windows is multiplied
    by it.
    """
    lived = [one.lived for one in windows]
    others = [one.before for one in windows if one.before is not None]
    predicted = compare(lived, [one.predicted for one in windows], level=ENDS)
    found = [("predicted", "the prediction", predicted, OVER_PREDICTED)]
    earlier = compare(lived, others, level=ENDS) if before and len(others) == len(lived) else None
    if earlier is not None:
        found.append((f"under {before}", f"the cost of {before}", earlier, OVER_BEFORE))
    faults = [
        f"it cost {interval(comparison)} against {reference}, surely more than {bound:+.0%}"
        for _, reference, comparison, bound in found
        if comparison.relative.low > bound
    ]
    costs = ", and ".join(f"{interval(comparison)} against {reference}" for _, reference, comparison, _ in found)
    against = [
        [escape(name), chip(comparison.relative.low <= bound, interval(comparison)), f"{bound:+.0%}"]
        for name, _, comparison, bound in found
    ]
    rows = [
        [
            escape(one.name),
            f"{one.hours:.1f}",
            *("—" if x is None else f"{x:.4f} $" for x in (one.lived, one.predicted, one.before)),
        ]
        for one in windows
    ]
    head = ["window", "hours", "lived", "predicted", "under the policy before"]
    data = {
        "previous": previous,
        "minutes": minutes,
        "before": before,
        "bias": bias,
        "windows": [asdict(one) for one in windows],
        "against_predicted": asdict(predicted),
        "against_before": None if earlier is None else asdict(earlier),
        "faults": faults,
    }
    sections = (
        Section("cost", "Cost since the promotion", table(["lived against", "", "may surely be"], against)),
        Section("windows", "Windows", table(head, rows)),
    )
    facts = {"the day before": f"recorded cost is {bias:.3f} of the replayed"} if before else {}
    fault = "; ".join(faults)
    return WatchEvidence(fault, fault or f"in {minutes} minutes it cost {costs}", data, sections, facts)


def _recorded_rule(learner: Learner) -> RuleSetting:
    """Return the rule of day 0 by the newest recorded terms."""
    terms = learner.recorded.terms
    return RuleSetting(QueueRulePolicy().horizon_s if terms is None else terms.horizon_s, learner.loop.idle_s)


def _windows(spans: Iterable[Span]) -> int:
    return sum(len(span.marks) for span in spans)


def _decided_by(policy: str, recorded: Record, since_s: float) -> Iterator[tuple[DecidedMinute, ...]]:
    """Yield the parts of the stretches in which this policy decided, without a minute of another between them."""
    for stretch in recorded.stretches:
        for chosen, minutes in groupby(stretch, lambda one: one.policy == policy and one.end_s >= since_s):
            part = tuple(minutes)
            if chosen and len(part) > 1:
                yield part


def _policy_before(recorded: Record, champion: Champion, policy: str) -> str:
    """Return the last policy before the promotion, by the ledger, else by the pointer; "" where neither knows."""
    earlier = [minute for minute in recorded.minutes if champion.at_s is not None and minute.end_s < champion.at_s]
    if earlier:
        newest = max(earlier, key=lambda minute: minute.end_s).policy
        return "" if newest == policy else newest
    return "" if champion.previous is None else f"{LEARNED}:{Path(champion.previous).stem}"


@dataclass(frozen=True, slots=True)
class Situation:
    """The minutes of a kind, those in which the two differ, and how much more the challenger asks for there.

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
    """Differences between recorded proposals of a challenger and the decisions.

    minutes: decisions in the span. asked: minutes with a proposal of the challenger. failed: minutes in which another
    policy replaced it. situations: all minutes first; one minute can be of several kinds.
    """

    minutes: int
    asked: int
    failed: int
    situations: tuple[Situation, ...]

    @property
    def sentence(self) -> str:
        """The result, for people."""
        if not self.asked:
            return f"none of its proposals is recorded in {self.minutes} minutes"
        every = self.situations[0]
        text = f"it differs in {every.share:.1%} of {self.asked} minutes"
        if every.differing:
            text += f", by {every.vms:+.1f} VMs and {every.cores:+.1f} cores on average"
        return text + (f"; in {self.failed} minutes another policy replaced it" if self.failed else "")


@dataclass(frozen=True, slots=True)
class ProbationWindow:
    """Dollars of a window: recorded, and replayed under the policy in use and under the challenger."""

    name: str
    hours: float
    recorded: float
    champion: float
    challenger: float


def replayed(
    divergence: Divergence, promised: float | None, windows: tuple[ProbationWindow, ...], too_little: str = ""
) -> Replay:
    """Return the evidence on a probation. promised: the gate's relative cost, None where its report has none."""
    why, more = f"the same minutes cost {{}} under it; {divergence.sentence}", ""
    if promised is not None:
        why += f"; the gate found {promised:+.1%}"
    now, challenger = tuple(one.champion for one in windows), tuple(one.challenger for one in windows)
    if windows:
        rows = [["the gate", "—" if promised is None else f"{promised:+.1%}"]]
        rows += [["this probation", interval(compare(challenger, now))]]
        more = table(["challenger against the policy in use", "cost"], rows)
    rows = [
        [escape(s.name), str(s.minutes), f"{s.share:.1%}", f"{s.vms:+.1f}", f"{s.cores:+.1f}"]
        for s in divergence.situations
    ]
    head = ["minutes in which", "minutes", "differ in", "VMs more", "cores more"]
    differ = f"<p>{escape(divergence.sentence)}.</p>{table(head, rows)}"
    rows = [
        [escape(w.name), f"{w.hours:.1f}", *(f"{x:.4f} $" for x in (w.recorded, w.champion, w.challenger))]
        for w in windows
    ]
    head = ["window", "hours", "recorded", "the policy in use, replayed", "challenger, replayed"]
    sections = (
        Section("divergence", "Where they differ", differ),
        Section("windows", "Windows", table(head, rows)),
    )
    data = {
        "promised": promised,
        "divergence": asdict(divergence),
        "windows": [asdict(one) for one in windows],
    }
    return Replay(now, challenger, too_little, why, data, sections, more=more)


def _promised(report: Mapping[str, Any]) -> float | None:
    try:
        return float(report["overall"]["relative"]["mean"])
    except (KeyError, TypeError, ValueError):
        return None


def divergence_of(ledger: str, fleet: str, one: Probationer) -> Divergence:
    """Return the differences so far between the proposals of a model on probation and the decisions."""
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
        for inputs, made in read_decisions(ledger, fleet, one.since, end_of(one)):
            minutes += 1
            proposal = next((one for one in made.shadows if one.policy == policy), None)
            if proposal is None:
                # Only shadows are recorded with a decision: one of another name replaced it.
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
    """Return whether two proposals differ, and the VMs and cores that the first one asks for in addition."""
    apart = [a - b for a, b in zip(ours, theirs, strict=True)]
    cores = sum(more * group.vm_type.cores for more, group in zip(apart, fleet.groups, strict=True))
    return int(any(apart)), sum(apart), cores


def _situation(name: str, rows: Sequence[tuple[int, int, int]]) -> Situation:
    apart = [(vms, cores) for differs, vms, cores in rows if differs]
    count = max(len(apart), 1)
    return Situation(
        name, len(rows), len(apart), sum(vms for vms, _ in apart) / count, sum(cores for _, cores in apart) / count
    )
