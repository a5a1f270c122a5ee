"""What makes a request or an event unusable: each function names the field, and says what to give instead."""

from __future__ import annotations

import math
import re
from dataclasses import fields
from typing import Final

from agent.admission.records import AdmissionRequest, DeploymentEvent, EventKind, Prior
from domain.errors import BadInput

LONGEST_ID: Final = 255
LONGEST_WORDS: Final = 200
MOST_CORES: Final = 10_000_000
MOST_KINDS: Final = 8
AHEAD_S: Final = 300.0
"""Clocks of those who tell of events may be so far ahead of ours."""
_ID = re.compile(r"[^\x00-\x1f\x7f]{1,255}")
_NUMBERS = tuple(field.name for field in fields(Prior) if field.name != "label")


def check_request(request: AdmissionRequest) -> None:
    """Raise BadInput when a value of the request cannot be used."""
    check_id("deployment_id", request.deployment_id)
    check_cores("cores", request.cores)
    for name in ("requested_by", "request_id"):
        _check_words(name, getattr(request, name))
    if len(request.observations) > MOST_KINDS:
        raise BadInput("observations", len(request.observations), f"give at most {MOST_KINDS} kinds")
    for prior in request.observations:
        _check_prior(prior)
    labels = [prior.label for prior in request.observations]
    if len(labels) > 1 and len({label for label in labels if label}) < len(labels):
        raise BadInput("label", labels, "give each of several kinds a label of its own")


def check_event(event: DeploymentEvent, now: float, last_at: float | None = None) -> None:
    """Raise BadInput when a value of the event cannot be used.

    last_at: the time of what is known of its deployment. An event may be as late as that, so that a clock that was set
    back does not stop what the agent itself observes.
    """
    check_id("event_id", event.event_id)
    check_id("deployment_id", event.deployment_id)
    _check_kind(event.kind)
    _check_time(event.time)
    if event.time > max(now + AHEAD_S, now if last_at is None else last_at):
        raise BadInput("time", event.time, f"it lies ahead of the agent's clock, which says {now!r}: set the clocks")
    if event.kind is not EventKind.SHUTDOWN:
        check_cores("cores", event.cores)
    if event.cores_after is not None and not 0 <= _whole(event.cores_after) <= MOST_CORES:
        raise BadInput("cores_after", event.cores_after, "give a whole number of cores, 0 or more")


def check_id(field: str, value: object) -> None:
    """Raise BadInput unless the value can name a deployment or an event."""
    if not isinstance(value, str) or _ID.fullmatch(value) is None:
        raise BadInput(field, value, f"give 1 to {LONGEST_ID} characters, none of them a control character")


def check_cores(field: str, value: object) -> None:
    """Raise BadInput unless the value is a number of cores."""
    if not 1 <= _whole(value) <= MOST_CORES:
        raise BadInput(field, value, f"give a whole number of cores, from 1 to {MOST_CORES}")


def recorded_cores(value: object) -> int:
    """Return how many cores stand in the record of a request: 0 for what is no number of cores."""
    return max(min(_whole(value), MOST_CORES), 0)


def _whole(value: object) -> int:
    """Return a whole number, -1 for what is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) else -1


def _check_words(field: str, value: object) -> None:
    if not isinstance(value, str) or len(value) > LONGEST_WORDS:
        raise BadInput(field, value, f"give a text of at most {LONGEST_WORDS} characters")


def _check_kind(value: object) -> None:
    if not isinstance(value, EventKind):
        raise BadInput("kind", value, f"give one of {', '.join(EventKind)}")


def _check_time(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0.0:
        raise BadInput("time", value, "give seconds since the epoch")


def _check_prior(prior: Prior) -> None:
    for name in _NUMBERS:
        value = getattr(prior, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0.0:
            raise BadInput(name, value, "give a finite number, 0 or more")
    if prior.weight <= 0.0:
        raise BadInput("weight", prior.weight, "give a chance above 0")
    _check_words("label", prior.label)
    if prior.deaths > 0.0 and prior.core_hours <= 0.0:
        raise BadInput("core_hours", prior.core_hours, "cores that ended have run: give their hours")
