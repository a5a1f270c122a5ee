"""The program `trimtab` with every verb, in the order of its help."""

from __future__ import annotations

from importlib import import_module

from agent.commands.options import app

__all__ = ["app"]

VERBS = (
    "init",
    "run",
    "collect",
    "inputs",
    "dry_run",
    "local_aws",
    "rehearse",
    "decisions",
    "replay",
    "switches",
    "config",
    "models",
    "preflight",
    "support_bundle",
    "ledger",
)
"""Modules of this package, each with one verb or several that belong together."""

for verb in VERBS:
    import_module(f"agent.commands.{verb}")
