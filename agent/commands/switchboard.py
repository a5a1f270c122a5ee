"""Where a switch goes: to the running agent through its unix socket, else straight to the ledger."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from agent.api.unix_path import reachable
from agent.settings.location import socket_location
from domain.errors import BadInput, LedgerUnavailable

if TYPE_CHECKING:
    from agent.autoscaling.controls import Pinned, Resumed
    from agent.autoscaling.state import Pause, PauseScope
    from agent.ledger import Ledger

ANSWER_WITHIN_S = 10.0
FIELDS = {
    "fleet": "--fleet",
    "for_s": "--for",
    "owner": "--owner",
    "by": "--owner",
    "reason": "--reason",
    "group": "--group",
    "pool": "POOL",
}
"""The options of the command line that stand for fields of an order."""


class Switchboard(Protocol):
    """Takes orders for one fleet; `fleet` None means the only one. BadInput when an order is refused."""

    def pause(
        self, fleet: str | None, scope: PauseScope, *, owner: str, reason: str, lasting_s: float | None
    ) -> tuple[str, Pause]:
        """Hold changes; return the fleet and the pause."""
        ...

    def resume(self, fleet: str | None, scope: PauseScope, *, owner: str) -> tuple[str, Resumed]:
        """Lift pauses; return the fleet and what still holds."""
        ...

    def pin(
        self, fleet: str | None, size: int, *, group: str | None, owner: str, reason: str, lasting_s: float
    ) -> tuple[str, Pinned]:
        """Keep a size; return the fleet and the pin."""
        ...

    def unpin(self, fleet: str | None, *, owner: str) -> tuple[str, bool]:
        """Lift the pin; return the fleet and whether there was one."""
        ...

    def rearm(self, pool: str | None, *, owner: str, reason: str) -> str:
        """Let the rates of a rolled-back pool go down again; return the pool."""
        ...


@contextmanager
def switchboard(ledger: str | None) -> Iterator[Switchboard]:
    """Give the running agent's switchboard, or the ledger's when `--ledger` names one or no agent listens."""
    from agent.commands.ledger import open_ledger

    connection = None if ledger is not None else _connected(socket_location(os.environ))
    if connection is not None:
        try:
            yield _Agent(connection)
        finally:
            connection.close()
        return
    with open_ledger(ledger, to_write=True) as book:
        yield _Book(book, time.time())


class _Unix(HTTPConnection):
    """A connection to a unix socket that is already open."""

    def __init__(self, opened: socket.socket) -> None:
        super().__init__("localhost", timeout=ANSWER_WITHIN_S)
        self.sock = opened


def _connected(path: Path) -> HTTPConnection | None:
    """Return a connection to the agent, None when nobody listens there or this user may not."""
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    opened.settimeout(ANSWER_WITHIN_S)
    try:
        with reachable(path) as name:
            opened.connect(name)
    except OSError:
        opened.close()
        return None
    return _Unix(opened)


class _Agent:
    """Hands orders to the running agent."""

    def __init__(self, connection: HTTPConnection) -> None:
        self._connection = connection

    def pause(
        self, fleet: str | None, scope: PauseScope, *, owner: str, reason: str, lasting_s: float | None
    ) -> tuple[str, Pause]:
        answer = self._ask("pause", fleet=fleet, scope=scope.value, owner=owner, reason=reason, for_s=lasting_s)
        return answer["fleet"], _pause(answer["pause"])

    def resume(self, fleet: str | None, scope: PauseScope, *, owner: str) -> tuple[str, Resumed]:
        from agent.autoscaling.controls import Resumed

        answer = self._ask("resume", fleet=fleet, scope=scope.value, owner=owner)
        return answer["fleet"], Resumed(answer["lifted"], tuple(_pause(pause) for pause in answer["left"]))

    def pin(
        self, fleet: str | None, size: int, *, group: str | None, owner: str, reason: str, lasting_s: float
    ) -> tuple[str, Pinned]:
        from agent.autoscaling.controls import Pinned
        from agent.autoscaling.state import Pin

        answer = self._ask("pin", fleet=fleet, size=size, group=group, owner=owner, reason=reason, for_s=lasting_s)
        before = None if answer["before"] is None else Pin(**answer["before"])
        return answer["fleet"], Pinned(Pin(**answer["pin"]), before)

    def unpin(self, fleet: str | None, *, owner: str) -> tuple[str, bool]:
        answer = self._ask("unpin", fleet=fleet, owner=owner)
        return answer["fleet"], answer["lifted"]

    def rearm(self, pool: str | None, *, owner: str, reason: str) -> str:
        return str(self._ask("oversubscription/rearm", pool=pool, by=owner, reason=reason)["pool"])

    def _ask(self, verb: str, **order: Any) -> dict[str, Any]:
        body = json.dumps({name: value for name, value in order.items() if value is not None})
        try:
            self._connection.request("POST", f"/api/v1/{verb}", body, {"Content-Type": "application/json"})
            response = self._connection.getresponse()
            status, answer = response.status, json.loads(response.read())
        except (OSError, HTTPException, ValueError) as error:
            raise LedgerUnavailable(
                f"the agent took the order and did not answer ({type(error).__name__}): see `trimtab status` for "
                "whether it holds; with --ledger the order goes to the ledger without the agent"
            ) from error
        if status == 200:
            return dict(answer)
        if answer["wrong"]:
            raise _refusal(answer, order)
        raise LedgerUnavailable(f"the agent answers: {answer['detail']}")


class _Book:
    """Writes orders into the ledger."""

    def __init__(self, ledger: Ledger, now: float) -> None:
        self._ledger = ledger
        self._now = now

    def _chosen(self, fleet: str | None) -> str:
        from agent.commands.ledger import fleets, one_fleet

        return one_fleet(fleet, fleets(self._ledger))

    def _paused(self, fleet: str | None) -> str:
        """Return the fleet meant, or the cluster of that name."""
        from agent.commands.ledger import clusters

        return fleet if fleet is not None and fleet in clusters() else self._chosen(fleet)

    def pause(
        self, fleet: str | None, scope: PauseScope, *, owner: str, reason: str, lasting_s: float | None
    ) -> tuple[str, Pause]:
        from agent.autoscaling import controls

        name = self._paused(fleet)
        return name, controls.pause(
            self._ledger, name, scope, owner=owner, reason=reason, now=self._now, lasting_s=lasting_s
        )

    def resume(self, fleet: str | None, scope: PauseScope, *, owner: str) -> tuple[str, Resumed]:
        from agent.autoscaling import controls

        name = self._paused(fleet)
        return name, controls.resume(self._ledger, name, scope, owner=owner, now=self._now)

    def pin(
        self, fleet: str | None, size: int, *, group: str | None, owner: str, reason: str, lasting_s: float
    ) -> tuple[str, Pinned]:
        from agent.autoscaling import controls

        name = self._chosen(fleet)
        return name, controls.pin(
            self._ledger, name, size, group=group, owner=owner, reason=reason, now=self._now, lasting_s=lasting_s
        )

    def unpin(self, fleet: str | None, *, owner: str) -> tuple[str, bool]:
        from agent.autoscaling import controls

        name = self._chosen(fleet)
        return name, controls.unpin(self._ledger, name, owner=owner, now=self._now)

    def rearm(self, pool: str | None, *, owner: str, reason: str) -> str:
        # The agent that leads keeps a pool's memory and writes it whole: what is written beside it would be lost.
        raise LedgerUnavailable(
            "a pool is re-armed by the agent that leads it, and none listens on the socket here: start it, or ask on "
            "the machine where it runs"
        )


def _pause(given: Mapping[str, Any]) -> Pause:
    from agent.autoscaling.state import Pause, PauseScope

    return Pause(**{**given, "scope": PauseScope(given["scope"])})


def _refusal(answer: Mapping[str, Any], order: Mapping[str, Any]) -> BadInput:
    """Return the agent's refusal as the command line words it."""
    wrong = next(iter(answer["wrong"]), {"field": "order", "remedy": answer["detail"]})
    field = str(wrong["field"]).removeprefix("body.")
    value = order.get("size") if field == "N" else order.get(field)
    return BadInput(FIELDS.get(field, field), value if value is not None else "", str(wrong["remedy"]))
