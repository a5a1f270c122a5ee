"""Champion against challenger: from paired runs to a judgement, the sealed report, and the change of the pointer.

The same for every decision (autoscaler specification §12.4). A challenger is compared with what decides now (the
champion) on cases that neither was trained or tuned on. Fleets have costs in dollars; pools the share of requested
cores that stays reserved, clusters the share of cores that stays idle.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from agent.models.directory import Then, canonical, read_model_file
from domain.errors import BadInput
from domain.subject import Subject
from trainer.autoscaling.evaluation.results import code_version
from trainer.kit.intervals import Comparison, compare
from trainer.promotion.directory import ModelsWriter, Verify

PACKAGES = ("trimtab", "numpy", "onnxruntime", "numba")
"""Versions of these are in the report."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a challenger must keep.

    probability: least confidence that it is cheaper, families counting alike. worse: how much dearer it may
    be on a family. run_time_factor: its longest run time, as a multiple of the champion's on the same run.
    """

    probability: float = 0.95
    worse: float = 0.05
    run_time_factor: float = 1.5

    def __post_init__(self) -> None:
        if not 0.5 <= self.probability < 1.0:
            raise BadInput("probability", self.probability, "give a share in 0.5..1, such as 0.95")
        if not 0.0 <= self.worse <= 1.0:
            raise BadInput("worse", self.worse, "give a share in 0..1, such as 0.05")
        if not self.run_time_factor >= 1.0:
            raise BadInput("run_time_factor", self.run_time_factor, "give a factor of 1 or more, such as 1.5")


@dataclass(frozen=True, slots=True)
class Trial:
    """One paired run: both policies from the same entry state to the end of the same trace.

    case_key: of the cluster; runs of one cluster (one trace with several boots and entries) count as one case.
    entry_step: 0 for a reset, else the step of the champion's own run at which the state was taken. Costs from the
    entry on; run times of fleets in seconds from the start of the trace, 0 for what has none.
    """

    case: str
    family: str
    case_key: str
    entry_step: int
    champion_cost: float
    challenger_cost: float
    champion_run_time_s: float = 0.0
    challenger_run_time_s: float = 0.0
    challenger_truncated: bool = False


@dataclass(frozen=True, slots=True)
class FamilyResult:
    """One family: how many runs, and the challenger's cost against the champion's."""

    family: str
    trials: int
    comparison: Comparison


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether the challenger passes, and every reason why not."""

    passed: bool
    reasons: tuple[str, ...]
    overall: Comparison
    families: tuple[FamilyResult, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judgement with what the report holds of it: the champion's label, and facts by name."""

    judgement: Judgement
    champion: str
    facts: Mapping[str, Any]


Gate = Callable[[Path, Path | None], Verdict]
"""Compares a challenger's file with the champion's, or with what decides where there is none."""


@dataclass(frozen=True, slots=True)
class PolicyCosts:
    """The costs of one policy on cases: (family, case, cost) of each.

    broken: upper end of the interval of the share that broke the promise, in which it may be at most `allowed`; None
    where there is no promise. clusters: of cases that count as one, else each case alone. fault: why it can
    decide at no cost, "" for nothing.
    """

    costs: tuple[tuple[str, str, float], ...]
    broken: float | None = None
    allowed: float = 1.0
    clusters: tuple[str, ...] = ()
    fault: str = ""

    @property
    def keeps(self) -> bool:
        """Whether the promise is kept for sure."""
        return self.broken is None or self.broken <= self.allowed

    def as_data(self) -> Any:
        """Return the figures for the report."""
        if self.broken is None:
            return [cost for _, _, cost in self.costs]
        return {"costs": self.costs, "broken": self.broken, "allowed": self.allowed}


Check = Callable[[Sequence[Trial], Limits], list[str]]
"""Returns the reasons against a challenger, from its runs paired with the runs of a reference."""


def _close_to_tuned(trials: Sequence[Trial], limits: Limits) -> list[str]:
    return _dearer(judge(trials, limits).families, limits, " against the best tuned rule")


def _better_than_plan(trials: Sequence[Trial], limits: Limits) -> list[str]:
    sure = _compared(trials, together=True).probability_lower
    text = f"the confidence that it is better than the rolling plan is {sure:.2%}, less than {limits.probability:.2%}"
    return [text] if sure < limits.probability else []


def _no_less_earned(trials: Sequence[Trial], _: Limits) -> list[str]:
    names = dict.fromkeys(trial.family for trial in trials)
    more = {
        name: float(np.mean([t.challenger_cost - t.champion_cost for t in trials if t.family == name]))
        for name in names
    }
    text = "on {} it earns {:.0f} core-steps an episode less than FIFO that skips"
    return [text.format(name, less) for name, less in more.items() if less > 0.0]


def _no_more_hosts(trials: Sequence[Trial], _: Limits) -> list[str]:
    ours, theirs = (np.mean(row) for row in _costs(trials))
    return [f"it opens {ours - theirs:.2f} hosts more than best fit"] if ours - theirs > 0.0 else []


CHALLENGER, CHAMPION, TUNED = "challenger", "champion", "tuned"
RULES: Mapping[str, Mapping[str, Check]] = {
    "admission": {TUNED: _close_to_tuned},
    "oversubscription": {TUNED: _close_to_tuned},
    "deferral": {"rolling": _better_than_plan, "fifo:skip": _no_less_earned},
    "placement": {"BF": _no_more_hosts},
}
"""The checks of a challenger by decision and reference; in every decision it must be cheaper than the policy in use."""


def verdict(
    decision: str,
    costs: Mapping[str, PolicyCosts],
    limits: Limits,
    champion: str,
    facts: Mapping[str, Any],
    *,
    now: str = CHAMPION,
    more: Mapping[str, float] | None = None,
) -> Verdict:
    """Return the verdict on a challenger by the rules of a decision.

    It must keep the promise for sure, be cheaper than the policy in use by the rule of `judge`, and meet the check of
    each reference, where these keep the promise themselves. costs: by label, of CHALLENGER, of the policy in use (now),
    and of the references. champion: the name of the policy in use. facts, more: other facts and limits for the report.
    """
    ours = costs[CHALLENGER]
    against = judge(_paired(ours, costs[now]), limits)
    reasons = [ours.fault] if ours.fault else []
    if not ours.keeps:
        reasons.append(f"it may break the promise in {ours.broken:.2%}, more than {ours.allowed:.2%}")
    reasons += against.reasons if costs[now].keeps else ()
    references: dict[str, Any] = {}
    for label, check in RULES[decision].items():
        trials = _paired(ours, costs[label])
        reasons += check(trials, limits) if costs[label].keeps else ()
        if ours.broken is None:
            references[label] = asdict(_compared(trials, together=True))
    played = {label: one.as_data() for label, one in costs.items()}
    kept = {"limits": {**asdict(limits), **(more or {})}, "results": {"sha256": digest(played), "played": played}}
    judgement = Judgement(not reasons, tuple(reasons), against.overall, against.families)
    return Verdict(judgement, champion, {**facts, **kept, **({"against": references} if references else {})})


def _paired(challenger: PolicyCosts, champion: PolicyCosts) -> list[Trial]:
    clusters = challenger.clusters or tuple(case for _, case, _ in challenger.costs)
    pairs = zip(challenger.costs, champion.costs, clusters, strict=True)
    return [Trial(case, family, key, 0, theirs, ours) for (family, case, ours), (_, _, theirs), key in pairs]


def judge(trials: Sequence[Trial], limits: Limits, *, vetoes: Collection[str] = ()) -> Judgement:
    """Judge paired runs; BadInput without any.

    vetoes: families whose mean may be no dearer than the limit, and that do not count in the cost of all.
    """
    counted = [trial for trial in trials if trial.family not in vetoes]
    if not counted:
        raise BadInput("trials", 0, "give runs of both policies")
    overall = _compared(counted)
    names = sorted({trial.family for trial in trials})
    families = []
    for name in names:
        own = [trial for trial in trials if trial.family == name]
        families.append(FamilyResult(name, len(own), _compared(own)))
    reasons = []
    if overall.probability_lower < limits.probability:
        reasons.append(
            f"the confidence that it is cheaper is {overall.probability_lower:.2%}, less than {limits.probability:.2%}"
        )
    reasons += _dearer(families, limits)
    truncated = [trial for trial in trials if trial.challenger_truncated]
    if truncated:
        reasons.append(f"{len(truncated)} of its runs never end, first {_where(truncated[0])}")
    late = [
        trial
        for trial in trials
        if not trial.challenger_truncated
        and trial.challenger_run_time_s > limits.run_time_factor * trial.champion_run_time_s
    ]
    if late:
        longest = max(late, key=lambda t: t.challenger_run_time_s / t.champion_run_time_s)
        reasons.append(
            f"{len(late)} of its runs last more than {limits.run_time_factor:g} times the champion's, worst "
            f"{_where(longest)}: {longest.challenger_run_time_s / 60:.0f} against "
            f"{longest.champion_run_time_s / 60:.0f} minutes"
        )
    return Judgement(not reasons, tuple(reasons), overall, tuple(families))


def _dearer(families: Sequence[FamilyResult], limits: Limits, reference: str = "") -> list[str]:
    """Return the reasons against a challenger that costs too much on a family."""
    return [
        f"it costs {100 * f.comparison.relative.mean:+.1f} % on {f.family}{reference}, "
        f"more than {100 * limits.worse:+.0f} %"
        for f in families
        if f.comparison.relative.mean > limits.worse
    ]


def _costs(trials: Sequence[Trial]) -> tuple[list[float], list[float]]:
    return [trial.challenger_cost for trial in trials], [trial.champion_cost for trial in trials]


def _compared(trials: Sequence[Trial], *, together: bool = False) -> Comparison:
    """Compare the costs; together: cases count alike, else families do."""
    families = None if together else [trial.family for trial in trials]
    return compare(*_costs(trials), families, clusters=[trial.case_key for trial in trials])


def _where(trial: Trial) -> str:
    return trial.case if trial.entry_step == 0 else f"{trial.case} entered at step {trial.entry_step}"


@dataclass(frozen=True, slots=True)
class Term:
    """How long a challenger that passes runs as a shadow before it may decide, and what follows then.

    since: now, epoch seconds.
    """

    since: float
    hours: float
    then: Then

    def __post_init__(self) -> None:
        if not 0.0 < self.hours < math.inf:
            raise BadInput("--probation-hours", self.hours, "give hours, 0 for no probation")


@dataclass(frozen=True, slots=True)
class Contest:
    """What came of it: the judgement, the sealed report, and under which name it is in the models directory.

    promoted: it decides now. on_probation: it runs beside what decides.
    """

    judgement: Judgement
    report: Mapping[str, Any]
    report_name: str
    promoted: bool
    on_probation: bool = False


def hold(
    challenger: Path,
    directory: ModelsWriter,
    subject: Subject,
    verify: Verify,
    gate: Gate,
    *,
    at: str,
    try_only: bool = False,
    term: Term | None = None,
) -> Contest:
    """Let the challenger run against the champion; if it passes, it is the champion when this returns.

    at: the time for the record. try_only: judge and report, change nothing. term: of a probation, on which one that
    passes is put in place of the promotion. A file that is refused (ModelRefused,
    BadInput), the champion's too, leaves everything as it is. The report is stored either way.
    """
    verify(challenger)
    model = read_model_file(challenger)
    champion = directory.champion(subject)
    beaten = None if champion is None else directory.file_of(champion.model)
    if beaten is not None:
        verify(beaten)
    with TemporaryDirectory() as folder:
        # What is evaluated is what is stored, whatever becomes of the challenger's file meanwhile.
        copy = Path(folder) / model.name
        copy.write_bytes(model.content)
        verdict = gate(copy, beaten)
    judgement = verdict.judgement
    if champion is not None and champion.model == model.name:
        known = ("it is the champion already", *judgement.reasons)
        judgement = Judgement(False, known, judgement.overall, judgement.families)
    champion_sha = None if beaten is None else beaten.stem
    body = {
        "passed": judgement.passed,
        "reasons": list(judgement.reasons),
        "overall": asdict(judgement.overall),
        "families": [asdict(family) for family in judgement.families],
        "code": code_version(),
        "packages": {name: version(name) for name in PACKAGES},
        **verdict.facts,
        "challenger": {"sha256": model.sha256, **verdict.facts.get("challenger", {})},
        "champion": {"sha256": champion_sha, "label": verdict.champion, **verdict.facts.get("champion", {})},
    }
    name = directory.store_report(body, subject, at)
    used, against = judgement.passed and not try_only, None if champion is None else champion.model
    if used and term is None:
        directory.promote(model, subject, name, at, verify, beaten=against)
    elif used and term is not None:
        directory.put_on_probation(model, subject, name, term.since, term.hours, term.then, verify, beaten=against)
    return Contest(judgement, directory.report(name), name, used and term is None, used and term is not None)


def digest(data: Any) -> str:
    """Return the SHA-256 over plain data."""
    return hashlib.sha256(canonical({"data": data})).hexdigest()
