"""The error that the tests of one subject may make: it accrues with time, and every test spends it.

Rounds test each night, on records that overlap. Even so the chance of a false promotion is at most the sum
of the alphas of all tests (Bonferroni). So alpha accrues at PER_DAY up to MOST, a test spends the whole account, and
none is made with less than LEAST: a few tests with a fair level have more power than one each night with a tiny one.
The sum over a year is at most MOST + 365 PER_DAY = 0.42.

The sealed reports of the subject in the models directory are the account: each test is stored there with its time and
its alpha, before anything is promoted. The same test made again, as by a round that was stopped, counts once. A test
whose report was changed, or with a key is not signed with it, has spent MOST when its file was written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from agent.models.directory import ModelsDirectory, Seal, moment_s, seal_of
from domain.errors import BadInput
from domain.subject import Subject
from domain.units import DAY_S

PER_DAY: Final = 0.03 / 30.0
MOST: Final = 0.05
LEAST: Final = 0.01
ROUNDED: Final = 1e-6
"""A minute's worth, since times are stored as seconds."""


@dataclass(frozen=True, slots=True)
class Spent:
    """A test: when it was made, epoch seconds, and the alpha it spent."""

    at_s: float
    alpha: float


Account = Mapping[str, Spent]
"""The tests of a subject by their digest."""


def account_of(directory: ModelsDirectory, subject: Subject) -> Account:
    """Return the tests that the reports of a subject hold; a report that cannot be read holds none."""
    found: dict[str, Spent] = {}
    for path in sorted(directory.path.glob("report-*.json")):
        try:
            report = directory.report(path.name)
        except BadInput:
            continue
        if (report.get("decision"), report.get("subject")) != subject or "test" not in report:
            continue
        try:
            key, spent = _test_of(report, directory.key)
        except (BadInput, KeyError, ValueError, TypeError, RecursionError):
            key, spent = path.name, Spent(path.stat().st_mtime, MOST)
        found[key] = min(found.get(key, spent), spent, key=lambda each: each.at_s)
    return found


def _test_of(report: Mapping[str, Any], key: bytes | None) -> tuple[str, Spent]:
    """Return the digest of a test and its alpha; ValueError, KeyError or TypeError for a report that proves none."""
    seal = seal_of(report, key)
    if seal is Seal.CHANGED or (key is not None and seal is not Seal.SIGNED):
        raise ValueError("its seal does not hold")
    test = report["test"]
    alpha = float(test["alpha"])
    if not 0.0 <= alpha <= 1.0:
        raise ValueError("its alpha is not between 0 and 1")
    return str(test["sha256"]), Spent(moment_s(report["at"]), alpha)


def left(account: Account, now_s: float) -> float:
    """Return the alpha that a test made now would spend."""
    alpha, before_s = MOST, now_s
    for one in sorted(account.values(), key=lambda each: each.at_s):
        at_s = min(one.at_s, now_s)
        alpha = max(min(alpha + PER_DAY * max(at_s - before_s, 0.0) / DAY_S, MOST) - one.alpha, 0.0)
        before_s = at_s
    return min(alpha + PER_DAY * (now_s - before_s) / DAY_S, MOST)


def next_s(account: Account, now_s: float) -> float:
    """Return when there is enough for a test, epoch seconds: `now_s` where there is."""
    missing = LEAST - left(account, now_s)
    return now_s if missing < ROUNDED else now_s + missing / PER_DAY * DAY_S
