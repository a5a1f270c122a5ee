"""Asks the agent that runs on this host, through its unix socket: for commands that look at it from outside."""

from __future__ import annotations

import json
import socket
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from agent.api.unix_path import reachable
from domain.errors import CollectionFailed

ANSWER_WITHIN_S = 10.0
MAX_ANSWER_BYTES = 16 * 2**20


class RunningAgent:
    """The agent behind the unix socket at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def text(self, route: str) -> str:
        """Return the body of the answer to a GET; CollectionFailed when nobody answers, or with an error."""
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        opened.settimeout(ANSWER_WITHIN_S)
        connection = HTTPConnection("localhost", timeout=ANSWER_WITHIN_S)
        connection.sock = opened
        try:
            with reachable(self.path) as name:
                opened.connect(name)
            connection.request("GET", route)
            answer = connection.getresponse()
            body = answer.read(MAX_ANSWER_BYTES).decode("utf-8", "replace")
        except (OSError, HTTPException) as error:
            raise CollectionFailed(f"the agent's socket {self.path}: {type(error).__name__}: {error}") from None
        finally:
            connection.close()
            opened.close()
        # A probe that answers 503 has its reasons in the body.
        if answer.status not in (200, 503):
            raise CollectionFailed(f"the agent answers {route} with status {answer.status}")
        return body

    def document(self, route: str) -> Any:
        """Return the JSON answer to a GET; CollectionFailed when there is none."""
        try:
            return json.loads(self.text(route))
        except ValueError:
            raise CollectionFailed(f"the agent answers {route} with something else than JSON") from None
