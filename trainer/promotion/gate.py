"""The gate itself: from paired runs to a verdict (autoscaler specification §12.4). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from domain.errors import BadInput
from trainer.kit.intervals import Comparison, compare


@dataclass(frozen=True, slots=True)
class Limits:
    """What a challenger must keep.

    probability: least share of resamples in which it is cheaper, families counting alike. worse: how much dearer it may
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

    entry_step: 0 for a reset, else the step of the champion's own run at which the state was taken. Costs in dollars
    from the entry on; run times in seconds from the start of the trace.
    """

    case: str
    family: str
    case_key: str
    entry_step: int
    champion_cost: float
    challenger_cost: float
    champion_run_time_s: float
    challenger_run_time_s: float
    challenger_truncated: bool


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


def judge(trials: Sequence[Trial], limits: Limits, *, seed: int = 0) -> Judgement:
    """Judge paired runs; BadInput without any."""
    if not trials:
        raise BadInput("trials", 0, "give runs of both policies")
    overall = _compared(trials, seed)
    names = sorted({trial.family for trial in trials})
    families = []
    for name in names:
        own = [trial for trial in trials if trial.family == name]
        families.append(FamilyResult(name, len(own), _compared(own, seed)))
    reasons = []
    if overall.probability_lower < limits.probability:
        reasons.append(
            f"its cost is lower in {overall.probability_lower:.1%} of the resamples, less than {limits.probability:.0%}"
        )
    reasons += [
        f"it costs {100 * f.comparison.relative.mean:+.1f} % on {f.family}, more than {100 * limits.worse:+.0f} %"
        for f in families
        if f.comparison.relative.mean > limits.worse
    ]
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


def _compared(trials: Sequence[Trial], seed: int) -> Comparison:
    return compare(
        [trial.challenger_cost for trial in trials],
        [trial.champion_cost for trial in trials],
        [trial.family for trial in trials],
        clusters=[trial.case_key for trial in trials],
        seed=seed,
    )


def _where(trial: Trial) -> str:
    return trial.case if trial.entry_step == 0 else f"{trial.case} entered at step {trial.entry_step}"
