"""Client of a VM's instance metadata service, version 2: the VM's id, and whether it is to be terminated."""

from __future__ import annotations

import json
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

from domain.errors import CollectionFailed

TOKEN_LIFE_S = 21_600
MAX_RESPONSE_BYTES = 65_536
_ENDED = frozenset({"Terminated", "Terminating"})
_WARM_POOL = "Warmed:"
_REPLACED = frozenset({"ReplacingRootVolume", "RootVolumeReplaced"})


class InstanceMetadata:
    """The instance metadata service at `url`, with a session token that is renewed when it is refused.

    `timeout_s` bounds each wait for it: outside AWS there is no such service. No proxy is used. For one
    thread.
    """

    def __init__(self, url: str = "http://169.254.169.254", timeout_s: float = 1.0) -> None:
        place = urlsplit(url)
        self._host, self._port = place.hostname or "", place.port or 80
        self._below = place.path.rstrip("/")
        self._timeout_s = timeout_s
        self._token: str | None = None

    def get(self, item: str) -> str | None:
        """Return the item below `latest/meta-data/`, None where there is none; CollectionFailed without a response."""
        path = f"/latest/meta-data/{item}"
        for _ in range(2):
            if self._token is None:
                self._token = self._new_token()
            status, text = self._ask("GET", path, {"X-aws-ec2-metadata-token": self._token})
            if status == 404:
                return None
            if status == 200:
                return text
            self._token = None
            if status != 401:
                break
        raise CollectionFailed(f"instance metadata {path}: status {status}")

    def instance_id(self) -> str | None:
        """Return the VM's id."""
        found = self.get("instance-id")
        return found.strip() if found else None

    def leaving(self) -> str | None:
        """Return why the VM ends, stops or leaves service, None while it does not.

        A group announces that while its lifecycle hook holds the VM; a VM that leaves a warm pool again is on its way
        to InService. AWS announces the interruption of a spot VM two minutes ahead.
        """
        target = (self.get("autoscaling/target-lifecycle-state") or "").strip()
        if target in _ENDED:
            return "the group terminates it"
        if target.startswith(_WARM_POOL):
            return "the group puts it into its warm pool"
        if target in _REPLACED:
            return "the group replaces its root volume"
        action = self.get("spot/instance-action")
        return None if action is None else f"spot interruption: {_action(action)}"

    def _new_token(self) -> str:
        path = "/latest/api/token"
        status, text = self._ask("PUT", path, {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_LIFE_S)})
        if status != 200:
            raise CollectionFailed(f"instance metadata {path}: status {status}")
        return text.strip()

    def _ask(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
        connection = HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        try:
            connection.request(method, self._below + path, headers=headers)
            response = connection.getresponse()
            return response.status, response.read(MAX_RESPONSE_BYTES).decode("utf-8", "replace")
        except (OSError, HTTPException, ValueError) as error:
            raise CollectionFailed(f"instance metadata {path}: {type(error).__name__}: {error}") from None
        finally:
            connection.close()


def _action(text: str) -> str:
    try:
        action = json.loads(text)["action"]
    except (ValueError, KeyError, TypeError):
        return "unknown action"
    return str(action) if action in {"terminate", "stop", "hibernate"} else "unknown action"
