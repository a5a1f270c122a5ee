"""The key of state, events, alarms and metrics: a decision, and the name of its fleet, cluster or pool."""

from __future__ import annotations

from typing import Final, NamedTuple

AUTOSCALING: Final = "autoscaling"
QUEUE_RULE: Final = "queue-rule"
"""Names tuned settings of the queue rule in a models directory; a fleet's events and alarms stay under AUTOSCALING."""


class Subject(NamedTuple):
    """A fleet, cluster or pool of one decision; name "" is every subject of the decision without an own entry."""

    decision: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.decision} {self.name or 'all'}"

    @property
    def path(self) -> str:
        """Its text in messages and orders, such as `deferral/night`; "" for the agent itself."""
        return "/".join(part for part in self if part)

    def fields(self) -> dict[str, str]:
        """Return it as fields of a body: decision, subject, and `fleet` where it is one."""
        shared = {"decision": self.decision, "subject": self.name}
        return {**shared, "fleet": self.name} if self.decision == AUTOSCALING else shared


AGENT: Final = Subject("")
"""The agent itself."""


def fleet_subject(name: str) -> Subject:
    """Return the subject of a fleet."""
    return Subject(AUTOSCALING, name)
