"""Tags on Auto Scaling groups: written in one call, once, and read back before they are written again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from actuators.base import Act, ChangingCall, Permit, change
from collectors.aws import AwsSession

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
    """Return those of the wanted tags that are not there, or say something else."""
    return {key: value for key, value in wanted.items() if there.get(key) != value}


def tag_value(text: str) -> str:
    """Return the text as AWS takes it for a tag's value: other characters become `_`, and it ends where it must."""
    return "".join(c if c.isalnum() or c in _ALLOWED else "_" for c in text)[:LONGEST_VALUE]
