"""Faults on demand: rules, tried in the order of their creation, decide which request meets which fault, seeded."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from simulator.aws.requests import AwsError, AwsRequest

KINDS = {
    "throttle": "answers Throttling (EC2: RequestLimitExceeded)",
    "access_denied": "answers AccessDenied",
    "expired_token": "answers ExpiredToken",
    "internal_error": "answers InternalFailure, status 500",
    "timeout_before": "does nothing, holds the connection `hold_s` wall seconds and closes it without an answer",
    "timeout_after": "carries the request out, then holds and closes the connection without an answer",
    "foreign_page": "carries the request out, then answers 200 with an HTML page, as a gateway in between does",
    "fail_terminate": "refuses TerminateInstanceInAutoScalingGroup (of `instance_ids`): ScalingActivityInProgress",
    "lost_completion": "answers CompleteLifecycleAction 200 without effect",
    "late_heartbeat": "answers RecordLifecycleActionHeartbeat 200 and lets it take effect `delay_s` later",
}
_ONLY = {
    "fail_terminate": "TerminateInstanceInAutoScalingGroup",
    "lost_completion": "CompleteLifecycleAction",
    "late_heartbeat": "RecordLifecycleActionHeartbeat",
}
_CODES: dict[str, dict[str, tuple[str, int]]] = {
    "throttle": {"ec2": ("RequestLimitExceeded", 503), "query": ("Throttling", 400), "": ("ThrottlingException", 400)},
    "access_denied": {
        "ec2": ("UnauthorizedOperation", 403),
        "query": ("AccessDenied", 403),
        "": ("AccessDeniedException", 400),
    },
    "expired_token": {
        "ec2": ("RequestExpired", 400),
        "query": ("ExpiredToken", 403),
        "": ("ExpiredTokenException", 400),
    },
    "internal_error": {"ec2": ("InternalError", 500), "query": ("InternalFailure", 500), "": ("InternalFailure", 500)},
}
_QUERY_CODED = frozenset({"sqs", "cloudwatch"})
"""Services that speak JSON or CBOR by now and keep the error codes of their query days."""
_MESSAGES = {
    "throttle": "Rate exceeded",
    "access_denied": "User: arn:aws:iam::123456789012:user/agent is not authorized to perform: {service}:{operation}",
    "expired_token": "The security token included in the request is expired",
    "internal_error": "An internal error has occurred",
}


@dataclass(slots=True)
class Fault:
    """A rule: requests that match meet `kind`, each with probability `rate`, at most `remaining` times, before `until`.

    Empty `operations`, `services`, `access_keys`, `groups` (names of Auto Scaling groups) and `instance_ids` match
    everything.
    """

    fault_id: int
    kind: str
    rate: float = 1.0
    remaining: int | None = None
    until: float | None = None
    operations: list[str] = field(default_factory=list)
    services: list[str] = field(default_factory=list)
    access_keys: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    instance_ids: list[str] = field(default_factory=list)
    hold_s: float = 0.0
    delay_s: float = 0.0
    met: int = 0

    def matches(self, request: AwsRequest, now: float) -> bool:
        """Return whether the rule is in force and is about this request."""
        return (
            (self.until is None or now < self.until)
            and (self.remaining is None or self.remaining > 0)
            and (not self.operations or request.operation in self.operations)
            and (not self.services or request.service in self.services)
            and (not self.access_keys or request.access_key in self.access_keys)
            and (not self.groups or request.form.get("AutoScalingGroupName") in self.groups)
            and request.operation == _ONLY.get(self.kind, request.operation)
            and (not self.instance_ids or self.names_instance_of(request))
        )

    def names_instance_of(self, request: AwsRequest) -> bool:
        """Return whether the request names one of the rule's instances."""
        named = (value for key, value in request.form.items() if key.startswith("InstanceId"))
        return any(value in self.instance_ids for value in named)


_OWN = {"fault_id", "remaining", "until", "met"}
"""Fields of a rule that are never given as such."""


class Faults:
    """The rules in force."""

    def __init__(self, seed: int) -> None:
        self._rules: list[Fault] = []
        self._random = np.random.default_rng([seed, 4])
        self._made = 0
        self._lock = threading.Lock()

    def add(
        self, now: float, *, kind: str, duration_s: float | None = None, count: int | None = None, **about: Any
    ) -> Fault:
        """Make a rule for `duration_s` of the cloud's time and `count` requests at most (None: without that limit).

        Raises: ValueError for an unknown kind or field, or a rate outside 0..1.
        """
        if kind not in KINDS:
            raise ValueError(f"kind is {kind!r}: give one of {', '.join(KINDS)} (or capacity)")
        unknown = about.keys() - {field.name for field in fields(Fault)} | about.keys() & _OWN
        if unknown:
            raise ValueError(f"fault has unknown fields {', '.join(sorted(unknown))}; see simulator/aws/faults.py")
        if not 0.0 <= float(about.get("rate", 1.0)) <= 1.0:
            raise ValueError(f"rate is {about['rate']}: give a probability from 0 to 1")
        with self._lock:
            self._made += 1
            until = None if duration_s is None else now + duration_s
            rule = Fault(self._made, kind, remaining=count, until=until, **about)
            self._rules.append(rule)
            return rule

    def meet(self, request: AwsRequest, now: float) -> Fault | None:
        """Return the first rule that strikes this request, None when it goes through."""
        if not self._rules:
            return None
        with self._lock:
            for rule in self._rules:
                if rule.matches(request, now) and (rule.rate >= 1.0 or self._random.random() < rule.rate):
                    rule.met += 1
                    if rule.remaining is not None:
                        rule.remaining -= 1
                    return rule
        return None

    def listed(self) -> list[dict[str, Any]]:
        """Return the rules as plain data."""
        with self._lock:
            return [asdict(rule) for rule in self._rules]

    def clear(self, fault_id: int | None = None) -> None:
        """Drop one rule, or all."""
        with self._lock:
            self._rules = [rule for rule in self._rules if fault_id is not None and rule.fault_id != fault_id]


def error_for(kind: str, request: AwsRequest) -> AwsError | None:
    """Return the error by which a fault of this kind answers the request; None for kinds that answer otherwise."""
    if kind == "fail_terminate":
        return AwsError("ScalingActivityInProgress", "Scaling activity is in progress and blocks this action")
    if kind not in _CODES:
        return None
    spoken = "query" if request.service in _QUERY_CODED else request.protocol
    code, status = _CODES[kind].get(spoken, _CODES[kind][""])
    return AwsError(code, _MESSAGES[kind].format(service=request.service, operation=request.operation), status)
