"""The ledger as the verbs use it: found by option or settings, opened for reading or for an operator's switch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agent.settings.location import ledger_location
from domain.errors import ConfigurationError

if TYPE_CHECKING:
    from agent.ledger import Ledger


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
    from agent.autoscaling.known_fleets import fleet_names
    from agent.settings import load_settings

    try:
        configured = set(load_settings(os.environ).fleets)
    except ConfigurationError:
        configured = set()
    return fleet_names(ledger, configured)


def clusters() -> frozenset[str]:
    """Return the clusters and pools of the settings, none as far as these cannot be read."""
    from agent.settings import load_settings

    try:
        settings = load_settings(os.environ)
        return frozenset({*settings.clusters, *settings.pools})
    except ConfigurationError:
        return frozenset()


def one_fleet(option: str | None, names: Sequence[str]) -> str:
    """Return the fleet meant: `--fleet`, or the only one there is; BadInput names those there are."""
    from agent.autoscaling import known_fleets

    return known_fleets.one_fleet(option, names, field="--fleet")
