"""Parameters of Systems Manager's Parameter Store: each is put once, and read back before it is put again."""

from __future__ import annotations

from typing import Final

from actuators.base import Act, ChangingCall, Permit, change
from collectors.aws import AwsSession
from domain.errors import CloudError

STANDARD: Final = 4096
"""Characters of the largest parameter that costs nothing."""


class Parameters:
    """Reads and writes parameters of type String."""

    def __init__(self, session: AwsSession) -> None:
        self._session = session

    def get(self, name: str) -> str | None:
        """Return a parameter's value, None when there is none; raises CloudError."""
        try:
            answer = self._session.read("ssm", "GetParameter", Name=name)
        except CloudError as error:
            if error.code == "ParameterNotFound":
                return None
            raise
        return str(answer["Parameter"]["Value"])

    def put(self, pool: str, name: str, value: str, permit: Permit) -> None:
        """Set a pool's parameter, once; raises CloudError (UNKNOWN_OUTCOME: read it back first), Fenced or Held."""
        about = {"Type": "String", "Overwrite": True, "Tier": "Standard" if len(value) <= STANDARD else "Advanced"}
        call = ChangingCall(Act.PUBLISH, pool, name)
        change(self._session, permit, call, "ssm", "PutParameter", Name=name, Value=value, **about)
