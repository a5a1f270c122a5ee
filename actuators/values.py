"""Values written into AWS, each in one call, once, and read back before it is written again: tags and parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from actuators.base import Act, ChangingCall, Permit, change
from collectors.aws import AwsSession
from domain.errors import CloudError

LONGEST_VALUE: Final = 256
_ALLOWED: Final = frozenset(" +-=._:/@")


class GroupTags:
    """Writes tags of groups; they are not passed on to the VMs."""

    def __init__(self, session: AwsSession) -> None:
        self._session = session

    def put(self, cluster: str, group_name: str, tags: Mapping[str, str], permit: Permit) -> None:
        """Set these tags of a cluster's group, once.

        Raises CloudError (UNKNOWN_OUTCOME: read them back first), Fenced or Held.
        """
        change(
            self._session,
            permit,
            ChangingCall(Act.MARK, cluster, group_name),
            "autoscaling",
            "CreateOrUpdateTags",
            Tags=[
                {
                    "ResourceId": group_name,
                    "ResourceType": "auto-scaling-group",
                    "Key": key,
                    "Value": value,
                    "PropagateAtLaunch": False,
                }
                for key, value in sorted(tags.items())
            ],
        )


def missing(wanted: Mapping[str, str], there: Mapping[str, str]) -> Mapping[str, str]:
    """Return those of the wanted tags that are absent or have another value."""
    return {key: value for key, value in wanted.items() if there.get(key) != value}


def tag_value(text: str) -> str:
    """Return the text as AWS takes it for a tag's value: other characters become `_`, and it ends where it must."""
    return "".join(c if c.isalnum() or c in _ALLOWED else "_" for c in text)[:LONGEST_VALUE]


STANDARD: Final = 4096
"""Characters of the largest parameter that costs nothing."""


class Parameters:
    """Reads and writes parameters of type String."""

    def __init__(self, session: AwsSession) -> None:
        self._session = session

    def get(self, name: str) -> str | None:
        """Return a parameter's value, None when there is none; raises CloudError."""
        try:
            response = self._session.read("ssm", "GetParameter", Name=name)
        except CloudError as error:
            if error.code == "ParameterNotFound":
                return None
            raise
        return str(response["Parameter"]["Value"])

    def put(self, pool: str, name: str, value: str, permit: Permit) -> None:
        """Set a pool's parameter, once; raises CloudError (UNKNOWN_OUTCOME: read it back first), Fenced or Held."""
        about = {"Type": "String", "Overwrite": True, "Tier": "Standard" if len(value) <= STANDARD else "Advanced"}
        call = ChangingCall(Act.PUBLISH, pool, name)
        change(self._session, permit, call, "ssm", "PutParameter", Name=name, Value=value, **about)
