"""Which fleets there are, which one is meant, and what is known of one from its last decision."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agent.ledger import DecisionRecord, Ledger
from domain.errors import BadInput, UnknownName
from domain.fleet import Fleet


def fleet_names(ledger: Ledger, configured: Iterable[str]) -> tuple[str, ...]:
    """Return the fleets that the ledger knows and the configured ones, by name."""
    return tuple(sorted({*ledger.fleets(), *configured}))


def one_fleet(wanted: str | None, names: Sequence[str], *, field: str = "fleet") -> str:
    """Return the fleet meant: `wanted`, or the only one there is.

    BadInput (on `field`) lists the fleets; UnknownName when none has the name that is wanted.
    """
    listed = ", ".join(names)
    if wanted is not None and wanted in names:
        return wanted
    refusal = BadInput if wanted is None else UnknownName
    if not names:
        raise refusal(field, wanted, "neither the ledger nor the settings know a fleet: set one, start the agent")
    if wanted is not None:
        raise refusal(field, wanted, f"choose one of: {listed}")
    if len(names) > 1:
        raise BadInput(field, "", f"there are several fleets, name one of: {listed}")
    return names[0]


def last_record(ledger: Ledger, fleet: str) -> DecisionRecord | None:
    """Return a fleet's newest decision with its inputs, None before the first."""
    rows = ledger.decisions(fleet, limit=1)
    return ledger.decision(rows[0].decision.decision_id) if rows else None


def last_known(ledger: Ledger, name: str, *, field: str = "fleet") -> tuple[Fleet, tuple[int, ...]]:
    """Return the fleet as it was last decided on, and the sizes requested then; BadInput before the first decision."""
    record = last_record(ledger, name)
    if record is None:
        raise BadInput(field, name, "nothing was ever decided for it, so its groups are not known: start the agent")
    fleet, snapshot = record.inputs.fleet, record.inputs.snapshot
    if snapshot is not None:
        return fleet, snapshot.requested
    known = record.inputs.state.known_desired
    return fleet, tuple(known.get(group.key, group.minimum) for group in fleet.groups)
