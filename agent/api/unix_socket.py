"""The agent's unix socket from outside: its path as the kernel takes it, and requests to the agent of this host."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from domain.errors import CollectionFailed

ANSWER_WITHIN_S = 10.0
MAX_ANSWER_BYTES = 16 * 2**20
LONGEST_BYTES = 100
"""Of a path; the kernel's limit is 107, and a longer one goes through its directory."""


@contextmanager
def reachable(path: Path) -> Iterator[str]:
    """Give a name to bind or connect to instead of `path`, valid inside the block; OSError without its directory."""
    if len(os.fsencode(path)) <= LONGEST_BYTES:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def connected(path: Path) -> HTTPConnection:
    """Return an open connection to the agent; OSError when none listens there or this user may not."""
    connection = HTTPConnection("localhost", timeout=ANSWER_WITHIN_S)
    connection.sock = opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    opened.settimeout(ANSWER_WITHIN_S)
    try:
        with reachable(path) as name:
            opened.connect(name)
    except OSError:
        opened.close()
        raise
    return connection


def read(path: Path, route: str) -> str:
    """Return the body of the answer to a GET; CollectionFailed when no agent answers, or with an error."""
    try:
        with closing(connected(path)) as connection:
            connection.request("GET", route)
            answer = connection.getresponse()
            body = answer.read(MAX_ANSWER_BYTES).decode("utf-8", "replace")
    except (OSError, HTTPException) as error:
        raise CollectionFailed(f"the agent's socket {path}: {type(error).__name__}: {error}") from None
    # A probe that answers 503 has its reasons in the body.
    if answer.status not in (200, 503):
        raise CollectionFailed(f"the agent answers {route} with status {answer.status}")
    return body
