"""The AWS session: the one place where calls are made, budgeted, fenced, classified and, in observe mode, stopped.

Retries: calls that read go through botocore's `standard` mode with a few attempts. Calls that change something are
sent ONCE. botocore repeats a request whose response did not arrive, and a repeated TerminateInstanceInAutoScalingGroup
with decrement could shrink a group twice; an absolute SetDesiredCapacity could be repeated safely, but then a deposed
leader might send it late. Repeating is the actuator's business: at the next tick, after reading back.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from collectors.aws_account import AccountCheck
from collectors.aws_clock import ClockCheck
from collectors.aws_failures import check_response, classify, is_read
from domain.clock import Clock
from domain.errors import CloudError, FailureClass, TrimtabError
from domain.units import MINUTE_S

if TYPE_CHECKING:
    from botocore.model import OperationModel


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float
    pause_s: float = 0.0
    paused_until: float = 0.0


class CallBudget:
    """At most `calls_per_minute` calls a minute of each family, in bursts of up to that many.

    A family that AWS throttled is left alone for `first_pause_s`, twice as long after each further throttled call up to
    `longest_pause_s` (shorter than a tick, so that every tick tries again); one successful call ends that. Thread-safe;
    times are those of `clock.monotonic()`.
    """

    def __init__(
        self, calls_per_minute: int, clock: Clock, *, first_pause_s: float = 5.0, longest_pause_s: float = 40.0
    ) -> None:
        self._per_s = calls_per_minute / MINUTE_S
        self._burst = float(calls_per_minute)
        self._clock = clock
        self._first_pause_s, self._longest_pause_s = first_pause_s, longest_pause_s
        self._buckets: dict[str, _Bucket] = {}
        self._counts: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    @property
    def counts(self) -> Mapping[tuple[str, str], int]:
        """Calls so far by (family, their result): ok, a failure class, or `refused` for those never sent."""
        with self._lock:
            return MappingProxyType(dict(self._counts))

    def refusal(self, family: str) -> str | None:
        """Take one call out of the family's budget; return None, or a sentence with the reason why none is left."""
        with self._lock:
            now = self._clock.monotonic()
            bucket = self._bucket(family, now)
            bucket.tokens = min(self._burst, bucket.tokens + (now - bucket.at) * self._per_s)
            bucket.at = now
            if now < bucket.paused_until:
                self._counts[family, "refused"] += 1
                return f"AWS throttles {family}; next call in {bucket.paused_until - now:.0f} s"
            if bucket.tokens < 1.0:
                self._counts[family, "refused"] += 1
                return f"the budget of {self._burst:.0f} {family} calls a minute is spent; the rest waits"
            bucket.tokens -= 1.0
            return None

    def settle(self, family: str, result: str, *, throttled: bool = False) -> None:
        """Count a call's `result`; a throttled one pauses the family, any other result ends the pause."""
        with self._lock:
            self._counts[family, result] += 1
            now = self._clock.monotonic()
            bucket = self._bucket(family, now)
            if throttled:
                bucket.pause_s = min(self._longest_pause_s, 2.0 * bucket.pause_s or self._first_pause_s)
                bucket.paused_until = now + bucket.pause_s
            else:
                bucket.pause_s = bucket.paused_until = 0.0

    def _bucket(self, family: str, now: float) -> _Bucket:
        return self._buckets.setdefault(family, _Bucket(self._burst, now))


PRICE_LIST_REGION = "us-east-1"
"""The Price List API has endpoints in three regions; this one lists every region's prices."""


@dataclass(frozen=True, slots=True)
class AwsOptions:
    """The connection to AWS. The key pair is for look-alikes only; with AWS, credentials come from its own chain."""

    region: str | None = None
    endpoint_url: str | None = None
    connect_timeout_s: float = 3.0
    read_timeout_s: float = 10.0
    read_attempts: int = 3
    calls_per_minute: int = 120
    access_key_id: str | None = None
    secret_access_key: str | None = field(default=None, repr=False)


class AwsSession:
    """Calls AWS by service and operation name, as in `session.read("autoscaling", "DescribeAutoScalingGroups", ...)`.

    read_only: every call that could change anything raises CloudError(READ_ONLY) from inside botocore before a request
    is built, whichever client of this session makes it (`is_read` decides; unknown verbs are refused).
    fence: called right before the bytes of each request that changes something, each attempt anew, on a connection that
    has been made (`collectors.aws_transport`); what it raises (Fenced, LedgerUnavailable) comes through unchanged and
    nothing is sent.
    account: compares the account that answers carry; while it is another one, every change raises CloudError
    (CREDENTIALS) before a request is built. A queue of another account is refused likewise.
    Clients are made on first use and may be shared by threads.
    """

    def __init__(
        self, options: AwsOptions, clock: Clock, *, read_only: bool, fence: Callable[[], None] | None = None
    ) -> None:
        self.options = options
        self.read_only = read_only
        self.budget = CallBudget(options.calls_per_minute, clock)
        self.account = AccountCheck(clock.monotonic)
        self.clock_check = ClockCheck()
        self._now = clock.now
        self._fence = fence
        self._clients: dict[tuple[str, int], Any] = {}
        self._lock = threading.Lock()
        self._deadline = threading.local()
        self._sending = threading.local()
        # botocore takes .1 s and 11 MB to load: a verb that does not call AWS does without.
        import boto3
        import botocore.session

        from collectors.aws_models import SlimLoader

        core = botocore.session.get_session()
        core.register_component("data_loader", SlimLoader(core.get_config_variable("data_path")))
        # Before any client exists: every client copies the session's handlers when it is made.
        # Twice: botocore's own handlers run between the two events, and the second is the last before the wire.
        core.register("provide-client-params", self._refuse_changes)
        core.register("before-call", self._refuse_changes)
        core.register("before-parse", _check_response)
        core.register("before-parse", self._compare_clocks)
        if fence is not None:
            core.register("before-send", self._note_operation)
        self._boto = boto3.session.Session(
            aws_access_key_id=options.access_key_id,
            aws_secret_access_key=options.secret_access_key,
            region_name=options.region,
            botocore_session=core,
        )

    @property
    def region(self) -> str | None:
        """The region in use: as given, or as the AWS chain finds it."""
        return self._boto.region_name

    def read(self, service: str, operation: str, /, **parameters: Any) -> dict[str, Any]:
        """Make a call that reads; raises CloudError with the failure class."""
        return self._call(service, operation, self.options.read_attempts, parameters)

    def pages(self, service: str, operation: str, /, **parameters: Any) -> Iterator[dict[str, Any]]:
        """Yield the pages of a call that reads and pages by NextToken; raises CloudError with the failure class."""
        page = self.read(service, operation, **parameters)
        yield page
        while page.get("NextToken"):
            page = self.read(service, operation, **{**parameters, "NextToken": page["NextToken"]})
            yield page

    def mutate(self, service: str, operation: str, /, **parameters: Any) -> dict[str, Any]:
        """Make a call that changes something, one attempt only.

        Raises:
            CloudError: with the failure class; READ_ONLY in observe mode, where the call never leaves the process.
            Fenced: this process may no longer act; the call was not sent.
        """
        return self._call(service, operation, 1, parameters)

    def client(self, service: str, attempts: int = 1) -> Any:
        """Return the boto3 client of a service, trying a call `attempts` times; this session's guards hold for it."""
        from botocore.config import Config

        from collectors.aws_transport import GatedTransport

        with self._lock:
            if (service, attempts) not in self._clients:
                config = Config(
                    connect_timeout=self.options.connect_timeout_s,
                    read_timeout=self.options.read_timeout_s,
                    retries={"mode": "standard", "total_max_attempts": attempts},
                    user_agent_extra="trimtab",
                )
                make: Callable[..., Any] = self._boto.client
                region = PRICE_LIST_REGION if service == "pricing" else None
                client = make(service, region_name=region, endpoint_url=self.options.endpoint_url, config=config)
                if self._fence is not None:
                    endpoint = client._endpoint
                    endpoint.http_session = GatedTransport(endpoint.http_session, self._let_through)
                self._clients[service, attempts] = client
            return self._clients[service, attempts]

    def close(self) -> None:
        """Close the connections; the session may still be used and opens new ones."""
        with self._lock:
            for client in self._clients.values():
                client.close()

    @contextlib.contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Let this thread begin no call `seconds` after the block was entered: they fail as UNAVAILABLE, unsent.

        What a call takes at most is set by its timeouts; this bounds what many of them take.
        """
        self._deadline.at = time.monotonic() + seconds
        try:
            yield
        finally:
            self._deadline.at = None

    def _refuse_late(self, operation: str) -> None:
        at: float | None = getattr(self._deadline, "at", None)
        if at is not None and time.monotonic() >= at:
            raise CloudError(
                operation,
                FailureClass.UNAVAILABLE,
                "TurnDeadline",
                "AWS took so long for the calls before that this one was not begun in this turn",
            )

    def _call(self, service: str, operation: str, attempts: int, parameters: dict[str, Any]) -> dict[str, Any]:
        from botocore import xform_name

        from collectors.aws_models import check_kept

        check_kept(service, operation)
        self._refuse_late(operation)
        family = f"{service} {'read' if is_read(service, operation) else 'change'}"
        refusal = None if self._stopped(service, operation) else self.budget.refusal(family)
        if refusal is not None:
            raise CloudError(operation, FailureClass.THROTTLE, "CallBudget", refusal)
        # Before any attempt: what waits between two of them must not look like a clock ahead.
        self._sending.at = self._now()
        try:
            client = self.client(service, attempts)
            response: dict[str, Any] = getattr(client, xform_name(operation))(**parameters)
            self.account.take(operation, response)
        except CloudError as error:
            self.budget.settle(family, error.failure)
            raise
        except TrimtabError:
            # The fence refused, or could not be read: nothing was sent, and AWS had no part in that.
            self.budget.settle(family, "fenced")
            raise
        except Exception as error:
            failed = classify(error, operation)
            self.budget.settle(family, failed.failure, throttled=failed.failure is FailureClass.THROTTLE)
            raise failed from error
        self.budget.settle(family, "ok")
        return response

    def _stopped(self, service: str, operation: str) -> bool:
        return self.read_only and not is_read(service, operation)

    def _refuse_changes(self, **event: Any) -> None:
        model: OperationModel = event["model"]
        if self._stopped(model.service_model.service_name, model.name):
            raise CloudError(
                model.name,
                FailureClass.READ_ONLY,
                "ReadOnly",
                "this process runs in observe mode, so the call was not sent; set TRIMTAB_MODE=act to let it act",
            )
        if not is_read(model.service_model.service_name, model.name):
            self.account.refuse(model.name)
        parameters = event.get("params")
        if isinstance(parameters, dict) and isinstance(url := parameters.get("QueueUrl"), str):
            self.account.refuse_queue(model.name, url)

    def _compare_clocks(self, **event: Any) -> None:
        now = self._now()
        date = event["response_dict"].get("headers", {}).get("date", "")
        self.clock_check.compare(date, getattr(self._sending, "at", now), now)

    def _note_operation(self, **event: Any) -> None:
        """Remember what this thread is about to send: the connection knows only bytes."""
        _, service, operation = str(event["event_name"]).split(".")
        self._sending.change = None if is_read(service, operation) else operation

    def _let_through(self) -> str | None:
        """Check the fence for the request whose connection has just been made; return the operation that it changes."""
        # Nothing noted: a request that passed no event of this session's is taken for a change.
        change: str | None = getattr(self._sending, "change", "request")
        if change is not None and self._fence is not None:
            self._fence()
        return change


def _check_response(**event: Any) -> None:
    check_response(event["operation_model"], event["response_dict"])
