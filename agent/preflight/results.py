"""What a check found: one finding each, with what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from domain.decisions import Mode


class State(StrEnum):
    """missing: the agent cannot do its work. advice: it can, worse. unknown: it could not be found out."""

    OK = "ok"
    ADVICE = "advice"
    UNKNOWN = "unknown"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `remedy` says what to do, "" when nothing is to be done."""

    subject: str
    state: State
    detail: str
    remedy: str = ""


def ok(subject: str, detail: str) -> Finding:
    """Return that the subject is as it should be."""
    return Finding(subject, State.OK, detail)


def missing(subject: str, detail: str, remedy: str) -> Finding:
    """Return that something required is not there."""
    return Finding(subject, State.MISSING, detail, remedy)


def advice(subject: str, detail: str, remedy: str) -> Finding:
    """Return that something would be better otherwise."""
    return Finding(subject, State.ADVICE, detail, remedy)


def unknown(subject: str, detail: str, remedy: str = "") -> Finding:
    """Return that it could not be found out."""
    return Finding(subject, State.UNKNOWN, detail, remedy)


def needed_to_act(mode: Mode, subject: str, detail: str, remedy: str) -> Finding:
    """Return a finding about what only acting needs: missing in act mode, advice in observe mode."""
    return Finding(subject, State.MISSING if mode is Mode.ACT else State.ADVICE, detail, remedy)


def passed(findings: Iterable[Finding]) -> bool:
    """Return whether nothing required is missing."""
    return all(finding.state is not State.MISSING for finding in findings)
