"""The AWS account that the answers come from, compared with the one that this agent manages."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from domain.errors import CloudError, FailureClass

FOREIGN: Final = "ForeignAccount"
"""The code of a CloudError about another account than the one that is managed."""
_ACCOUNT: Final = re.compile(r"\d{12}")


class AccountCheck:
    """Compares the account of each answer with `expected`; None compares nothing.

    Credentials and endpoints may lead elsewhere while the process runs (an assumed role, a profile, a proxy), and
    groups of the same name exist in many accounts: so the account is read from every answer that carries it.
    difference: why the last such answer is not of this account, "" when it is; until then nothing may be changed.
    queue_accounts: other accounts whose queues may be used.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self.expected: str | None = None
        self.difference = ""
        self._compared_at = monotonic()
        self.queue_accounts: Collection[str] = ()

    def take(self, operation: str, response: Mapping[str, Any]) -> None:
        """Compare what a response carries; CloudError (CREDENTIALS, FOREIGN) when that is another account."""
        for account, what in _carried(operation, response):
            if self.expected is None:
                return
            self.asked()
            if account != self.expected:
                self.difference = (
                    f"{what} is of AWS account {account}, and this agent manages {self.expected}: nothing is executed; "
                    "give it the credentials and the endpoint of its account, or correct TRIMTAB_AWS__ACCOUNT"
                )
                self.refuse(operation)
            self.difference = ""

    def asked(self) -> None:
        """Begin to count the time without an answer anew."""
        self._compared_at = self._monotonic()

    def silent_s(self) -> float:
        """Return the seconds since an answer carried an account."""
        return self._monotonic() - self._compared_at

    def refuse(self, operation: str) -> None:
        """Raise CloudError while the last answer was of another account."""
        if self.difference:
            raise CloudError(operation, FailureClass.CREDENTIALS, FOREIGN, self.difference)

    def refuse_queue(self, operation: str, url: str) -> None:
        """Raise CloudError for the URL of a queue of another account, unless the settings name that account."""
        account = account_of_queue(url)
        if account is None or self.expected is None or account in (self.expected, *self.queue_accounts):
            return
        raise CloudError(
            operation,
            FailureClass.PERMANENT,
            FOREIGN,
            f"the queue {url} is of AWS account {account}, and this agent manages {self.expected}: correct the URL, or "
            "name the account in TRIMTAB_AWS__QUEUE_ACCOUNTS",
        )


def account_of_queue(url: str) -> str | None:
    """Return the account in the URL of an SQS queue; None where it has none."""
    first = urlsplit(url).path.lstrip("/").partition("/")[0]
    return first if _ACCOUNT.fullmatch(first) else None


def _carried(operation: str, response: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (account, resource) of every resource in a response; a reservation may be shared by another account."""
    match operation:
        case "GetCallerIdentity":
            yield str(response["Account"]), "the caller"
        case "DescribeAutoScalingGroups":
            for group in response.get("AutoScalingGroups", ()):
                yield from _owner(group.get("AutoScalingGroupARN"), f"group {group.get('AutoScalingGroupName')}")
        case "GetServiceQuota":
            yield from _owner(response["Quota"].get("QuotaArn"), f"quota {response['Quota'].get('QuotaCode')}")
        case "GetParameter":
            yield from _owner(response["Parameter"].get("ARN"), f"parameter {response['Parameter'].get('Name')}")


def _owner(arn: str | None, resource: str) -> Iterator[tuple[str, str]]:
    parts = (arn or "").split(":")
    if len(parts) > 4 and _ACCOUNT.fullmatch(parts[4]):
        yield parts[4], resource
