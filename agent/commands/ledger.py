"""The ledger as the verbs use it: found by option or settings, opened for reading or for an operator's switch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agent.settings.location import ledger_location
from domain.errors import BadInput, ConfigurationError

if TYPE_CHECKING:
    from agent.ledger import DecisionRecord, Ledger
    from domain.fleet import Fleet


def ledger_url(option: str | None) -> str:
    """Return the ledger's URL from `--ledger` (a URL or the path of a SQLite file), else from the settings."""
    if option is None:
        return ledger_location(os.environ)
    return option if "://" in option else f"sqlite:///{Path(option).absolute()}"


def open_ledger(option: str | None, *, to_write: bool = False) -> Ledger:
    """Open the ledger, which must exist: a verb never makes one."""
    from agent.ledger import Ledger

    url = ledger_url(option)
    ledger = Ledger.open(url, read_only=True)
    if not to_write:
        return ledger
    ledger.close()
    return Ledger.open(url)


def fleets(ledger: Ledger) -> tuple[str, ...]:
    """Return the fleets that the ledger knows, and those of the settings as far as these can be read."""
    from agent.settings import load_settings

    try:
        configured = set(load_settings(os.environ).fleets)
    except ConfigurationError:
        configured = set()
    return tuple(sorted({*ledger.fleets(), *configured}))


def one_fleet(option: str | None, names: Sequence[str]) -> str:
    """Return the fleet meant: `--fleet`, or the only one there is; BadInput names those there are."""
    listed = ", ".join(names)
    if not names:
        raise BadInput("--fleet", option, "neither the ledger nor the settings know a fleet: set one, start the agent")
    if option is not None:
        if option not in names:
            raise BadInput("--fleet", option, f"choose one of: {listed}")
        return option
    if len(names) > 1:
        raise BadInput("--fleet", "", f"there are several fleets, name one of: {listed}")
    return names[0]


def last_record(ledger: Ledger, fleet: str) -> DecisionRecord | None:
    """Return a fleet's newest decision with its inputs, None before the first."""
    rows = ledger.decisions(fleet, limit=1)
    return ledger.decision(rows[0].decision.decision_id) if rows else None


def known_fleet(ledger: Ledger, name: str) -> tuple[Fleet, tuple[int, ...]]:
    """Return the fleet as it was last decided on, and the sizes requested then; BadInput before the first decision."""
    record = last_record(ledger, name)
    if record is None:
        raise BadInput("--fleet", name, "nothing was ever decided for it, so its groups are not known: start the agent")
    fleet, snapshot = record.inputs.fleet, record.inputs.snapshot
    if snapshot is not None:
        return fleet, snapshot.requested
    known = record.inputs.state.known_desired
    return fleet, tuple(known.get(group.key, group.minimum) for group in fleet.groups)
