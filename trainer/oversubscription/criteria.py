"""The acceptance figures of an evaluation, B1 to B7: what was asked, what was found, whether it is enough (§9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from trainer.oversubscription.evaluation import ALPHAS, Evaluation
from trainer.oversubscription.trials import LEFT_OUT, OWN, PERSISTENT, SHIFTED, UNSEEN, Row

GAINS = {
    ("internal_like", "cold"): 1.10,
    ("internal_like", "warm"): 1.20,
    ("azure_like", "cold"): 1.20,
    ("azure_like", "warm"): 1.20,
}
"""By how much the default policy passes the best safe baseline (B2)."""
STATIC = {
    ("internal_like", "cold"): 0.535,
    ("internal_like", "warm"): 0.630,
    ("azure_like", "cold"): 0.127,
    ("azure_like", "warm"): 0.127,
}
"""Reference static optimum at 0.95 (§8); two points below it is enough (B3)."""
PERSISTENT_SAVED = {"internal_like": 0.53}
PERSISTENT_MACHINES = 50
SOME_RISK = 0.001


@dataclass(frozen=True, slots=True)
class Check:
    """One figure held to its limit."""

    key: str
    asked: str
    found: str
    passed: bool

    def as_data(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


def checks_of(done: Evaluation) -> list[Check]:
    """Return the checks of an evaluation, misses first; those of reference figures only for the packaged scenarios."""
    known = done.packaged and (done.scenario, done.start) in GAINS
    checks = [*_calibration(done), *_alphas(done)]
    if known:
        checks += [*_baselines(done), *_gain(done), *_unseen(done), *_shifted(done), *_persistent(done)]
    return sorted(checks, key=lambda check: (check.passed, check.key))


def floor_of(done: Evaluation) -> float:
    """Return the share of cores that the default policy must save: the best safe baseline times its gain (B2)."""
    best = max(_mean(done.of(label), "s_cores") for label in ("MA", "SL"))
    return GAINS[done.scenario, done.start] * best


def _baselines(done: Evaluation) -> list[Check]:
    internal = done.scenario == "internal_like"
    risk = {row["label"]: row["c_hot_r"] for row in done.rows if row["kind"] == OWN}
    checks = []
    for label in ("Grid-0.2", "Grid-0.4") if internal else ("Grid-0.2", "Grid-0.4", "Grid-0.6"):
        least = 0.25 if internal else 0.99
        checks.append(_check("B1", f"{label} hot in at least {least:.0%}", risk[label], risk[label] >= least))
    safe = ("Grid-0.6", "MA", "SL") if internal else ("MA", "SL", "No-oversub")
    return checks + [_check("B1", f"{n} hot in at most 5 %", risk[n], risk[n] <= 0.05) for n in safe]


def _gain(done: Evaluation) -> list[Check]:
    asked, checks = floor_of(done), []
    for label in ("static 0.95", "calibrated 0.95"):
        (row,) = done.of(label)
        saved, hot = row["s_cores"], row["c_hot_r"]
        key = "B3" if label.startswith("static") else "B2"
        wanted = STATIC[done.scenario, done.start] - 0.02 if key == "B3" else asked
        told = f"{label}: saves at least {wanted:.1%}, hot in at most 5 % of {row['episodes']:,}"
        found = f"{saved:.1%}, {hot:.2%} (at most {row['c_hot_r_upper_95']:.2%}), {row['peak_machines']:g} machines"
        checks.append(Check(key, told, found, bool(saved >= wanted and hot <= 0.05)))
    return checks


def _alphas(done: Evaluation) -> list[Check]:
    rows = [done.of(f"static {alpha:g}")[0] for alpha in ALPHAS]
    saved, hot = [row["s_cores"] for row in rows], [row["c_hot_r"] for row in rows]
    falls = all(b <= a + 0.01 for a, b in pairwise(saved))
    kept = all(risk <= 1.0 - alpha for risk, alpha in zip(hot, ALPHAS, strict=True))
    found = ", ".join(f"{alpha:g}: {s:.1%} / {h:.1%}" for alpha, s, h in zip(ALPHAS, saved, hot, strict=True))
    return [Check("B4", "static: saves no more at a larger alpha, hot within 1 - alpha", found, falls and kept)]


def _unseen(done: Evaluation) -> list[Check]:
    asked, checks = floor_of(done) - 0.01, []
    for kind, told in ((UNSEEN, "redrawn weeks"), (LEFT_OUT, "packaged weeks, each left out of the fitting")):
        for label in ("calibrated 0.95", "shielded 0.95"):
            rows = done.of(label, kind)
            if not rows:
                continue
            hot, saved = [row["c_hot_r"] for row in rows], _mean(rows, "s_cores")
            passed = float(np.mean(hot)) <= 0.05 and max(hot) <= 0.10 and saved >= asked
            wanted = f"{label}, {len(rows)} {told}: hot 5 % in the mean, 10 % in the worst, saves {asked:.1%}"
            checks.append(Check("B5", wanted, f"{np.mean(hot):.1%}, {max(hot):.1%}, {saved:.1%}", passed))
    return checks


def _shifted(done: Evaluation) -> list[Check]:
    asked, checks = 1.05 * _mean(done.of("MA", SHIFTED) or [{"s_cores": 0.0}], "s_cores"), []
    for label in ("calibrated anew", "shielded anew"):
        rows = done.of(label, SHIFTED)
        if rows:
            hot, saved = _mean(rows, "c_hot_r"), _mean(rows, "s_cores")
            told = f"{label} for shifted profiles: hot in at most 5 %, saves at least {asked:.1%}"
            checks.append(Check("B5", told, f"{hot:.1%}, {saved:.1%}", hot <= 0.05 and saved >= asked))
    return checks


def _persistent(done: Evaluation) -> list[Check]:
    checks = []
    for label, row in ((row["label"], row) for row in done.rows if row["kind"] == PERSISTENT):
        risk, machines = f"{row['c_hot_r']:.1%} of {row['episodes']}", f"{row['peak_machines']:.1f} machines"
        found = f"{risk}, {row['s_cores']:.1%} saved, {machines}"
        if label == "shield, knowing VMs" and done.scenario in PERSISTENT_SAVED:
            least = PERSISTENT_SAVED[done.scenario]
            passed = row["c_hot_r"] <= 0.05 and row["s_cores"] >= least
            checks.append(Check("B5b", f"{label}: hot in at most 5 %, saves {least:.0%}", found, passed))
        if label == "risk filter, knowing VMs":
            passed = row["c_hot_r"] <= 0.05 and row["peak_machines"] <= PERSISTENT_MACHINES
            checks.append(Check("B5b", f"{label}: hot in at most 5 %, {PERSISTENT_MACHINES} machines", found, passed))
    return checks


def _calibration(done: Evaluation) -> list[Check]:
    unseen = [point for point in done.points if point["unseen"]]
    files = dict.fromkeys(point["file"] for point in done.measured)
    groups = [("on unseen weeks", unseen)]
    groups += [(f"on usage of {name}", [point for point in done.measured if point["file"] == name]) for name in files]
    checks = []
    for where, points in groups:
        # Where no machine can run hot whatever the rates, there is no prediction to hold to anything.
        told_apart = [point for point in points if max(point["predicted"], point["realised"]) >= SOME_RISK]
        apart = [abs(point["predicted"] - point["realised"]) for point in told_apart if point["predicted"] < 0.30]
        if apart:
            told = f"predicted risk below 30 % within 5 points, {len(apart)} rates {where}"
            found = f"{max(apart):.1%} at most, {np.mean(apart):.1%} in the mean"
            checks.append(Check("B7", told, found, max(apart) <= 0.05))
    return checks


def _mean(rows: Sequence[Row], name: str) -> float:
    return float(np.mean([row[name] for row in rows]))


def _check(key: str, asked: str, risk: float, passed: bool) -> Check:
    return Check(key, asked, f"{risk:.1%}", bool(passed))
