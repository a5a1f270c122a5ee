"""The trainer's verbs, added to the program by the entry point `trimtab.commands`; each loads what it needs on use."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import typer

VERBS = ("simulate", "train", "tune", "evaluate", "fit", "promote", "trace", "admission")
"""Modules of this package in the order of the help, each with `register(app)`."""


def register(app: typer.Typer) -> None:
    """Add every verb that is installed."""
    for verb in VERBS:
        module = f"trainer.commands.{verb}"
        if find_spec(module) is not None:
            import_module(module).register(app)
