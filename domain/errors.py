"""The errors that several packages raise and handle, and what the caller may do about each.

TrimtabError
├── BadInput                 a given value is wrong: names the field, the value and the remedy
│   ├── UnknownName          the value names something that does not exist: a fleet, cluster, pool or decision
│   ├── StateConflict        the value is well formed and contradicts what is recorded
│   ├── SampleRejected       one metric line or point is unusable; counted by reason, never fatal
│   └── TraceError           a job trace or log file is unusable
├── ConfigurationError       one or more settings are wrong; lists every mistake at once
├── LedgerError              the ledger cannot do what was requested
│   ├── LedgerUnavailable    it cannot be read or written now: nothing may be executed
│   │   └── LedgerReplaced   another ledger or an older copy is in its place: an operator has to look
│   ├── LedgerForeign        it belongs to another account, region or deployment
│   └── IntentConflict       the group already has an open intent
├── Fenced                   this process holds an old leader epoch: it must not act
├── CollectionFailed         a source of measurements did not respond, or not usably: poll it again at its next turn
├── PolicyFailure            a policy raised, overran its deadline or returned an unusable proposal
└── CloudError               a call to the cloud did not succeed; carries its FailureClass

A module that alone raises an error defines it as a subclass of one of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final


def install_command(extra: str) -> str:
    """Return the command that installs an extra, in a checkout: the package is on no index."""
    return f"pip install '.[{extra}]'"


class TrimtabError(Exception):
    """Base of the errors raised on purpose."""

    def __reduce__(self) -> tuple[object, ...]:
        # An error of another process comes by pickle, which would call a subclass with the message alone.
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[TrimtabError], args: tuple[object, ...], attributes: Mapping[str, object]) -> TrimtabError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


class BadInput(TrimtabError):
    """A value is wrong; the message names the field, the value and the remedy."""

    def __init__(self, field: str, value: object, remedy: str) -> None:
        self.field = field
        self.value = value
        self.remedy = remedy
        text = repr(value)
        super().__init__(f"{field} is {text if len(text) <= 120 else text[:117] + '...'}: {remedy}")


class UnknownName(BadInput):
    """A value names something that does not exist; `field` is its kind, `remedy` lists the names that exist."""


class StateConflict(BadInput):
    """A value is well formed and contradicts what is recorded; the same request may succeed at another time."""


class RejectReason(StrEnum):
    """Why a metric line or point was refused; the label of the counter."""

    TOO_LONG = "too_long"
    NOT_TEXT = "not_text"
    MALFORMED = "malformed"
    FOREIGN_PATH = "foreign_path"
    BAD_VALUE = "bad_value"
    NOT_FINITE = "not_finite"
    OUT_OF_RANGE = "out_of_range"
    IMPLAUSIBLE = "implausible"
    FUTURE = "future"
    TOO_OLD = "too_old"
    LATE = "late"
    TOO_MANY_SERIES = "too_many_series"
    COUNTER = "counter"
    UNKNOWN_VM = "unknown_vm"
    TOO_MANY_UNKNOWN = "too_many_unknown"
    LED_ELSEWHERE = "led_elsewhere"


REFUSED_LINES: Final[Mapping[RejectReason, str]] = MappingProxyType(
    {
        RejectReason.TOO_LONG: "send shorter lines: docs/operate/inputs.md has the limit",
        RejectReason.NOT_TEXT: "send UTF-8 text; a carbon-relay with DESTINATION_PROTOCOL = line",
        RejectReason.MALFORMED: "send `path value seconds`, with one space between them",
        RejectReason.FOREIGN_PATH: "send Trimtab's own paths, or map these in the file that TRIMTAB_INPUT_MAP names",
        RejectReason.BAD_VALUE: "send a plain decimal number",
        RejectReason.NOT_FINITE: "leave the line out while there is no value",
        RejectReason.OUT_OF_RANGE: "check the unit: shares are sent in percent, 0 to 100",
        RejectReason.IMPLAUSIBLE: "check the counter of the sender",
        RejectReason.COUNTER: "send rates, not counters since boot: StoreRates true in collectd",
        RejectReason.FUTURE: "set the sender's clock, by NTP for example",
        RejectReason.TOO_OLD: "set the sender's clock, or have it drop old values",
        RejectReason.LATE: "send within TRIMTAB_GRACE_S of the minute's end, or lengthen it",
        RejectReason.TOO_MANY_SERIES: "find and stop the sender of new names",
        RejectReason.UNKNOWN_VM: "send the VM's instance id, and check that its group is in the settings",
        RejectReason.LED_ELSEWHERE: "set TRIMTAB_LEADER__RELAY of the fleet's leader, or send to that agent",
        RejectReason.TOO_MANY_UNKNOWN: "find which host sends names of VMs that do not exist",
    }
)
"""What to do about lines that were refused, by the reason."""


class SampleRejected(BadInput):
    """One metric line or point is unusable."""

    def __init__(self, reason: RejectReason, field: str, value: object, remedy: str) -> None:
        self.reason = reason
        super().__init__(field, value, remedy)


class TraceError(BadInput):
    """A job trace or log file is unusable; `field` names file, line and column where known."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """One wrong setting: the environment variable's name, the value with secrets masked, and the remedy."""

    name: str
    value: str
    remedy: str


class ConfigurationError(TrimtabError):
    """One or more settings are wrong; the message lists all of them."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        lines = "\n".join(f"  {m.name}={m.value}: {m.remedy}" for m in self.mistakes)
        super().__init__(f"{len(self.mistakes)} setting(s) are wrong:\n{lines}")


class LedgerError(TrimtabError):
    """The ledger cannot do what was requested."""


class LedgerUnavailable(LedgerError):
    """The ledger cannot be read or written now; nothing may be executed."""


class LedgerReplaced(LedgerUnavailable):
    """The ledger is not the one that this agent wrote last; nothing may be executed."""


class LedgerForeign(LedgerError):
    """The ledger belongs to another AWS account, region or deployment; this agent must not use it."""


class IntentConflict(LedgerError):
    """The group already has an open intent."""


class Fenced(TrimtabError):
    """This process holds an old leader epoch and must not act."""


class CollectionFailed(TrimtabError):
    """A source of measurements did not respond, or not usably."""


class PolicyFailure(TrimtabError):
    """A policy raised, overran its deadline or returned something unusable."""


class FailureClass(StrEnum):
    """The kind of failure that a cloud call met, which decides what may be done next."""

    THROTTLE = "throttle"
    CAPACITY = "capacity"
    CREDENTIALS = "credentials"
    PERMANENT = "permanent"
    UNKNOWN_OUTCOME = "unknown_outcome"
    UNAVAILABLE = "unavailable"
    READ_ONLY = "read_only"
    UNSUPPORTED = "unsupported"


class CloudError(TrimtabError):
    """A call to the cloud did not succeed.

    `failure` says what may be done next: THROTTLE and UNAVAILABLE (the request was not executed) may be tried at the
    next tick; UNKNOWN_OUTCOME must be read back first; CAPACITY means another type or zone; CREDENTIALS and PERMANENT
    need a person; READ_ONLY means this process runs in observe mode and the call never left it; UNSUPPORTED means that
    AWS responded and the group is of a kind that Trimtab does not manage: nothing may be sent to it.
    """

    def __init__(self, operation: str, failure: FailureClass, code: str, message: str) -> None:
        self.operation = operation
        self.failure = failure
        self.code = code
        super().__init__(f"{operation}: {code}: {message}")
