"""The program `trimtab`: one verb per module, found by name; a verb imports what it needs only when it runs."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any

import typer
from typer.core import TyperGroup

from domain.errors import BadInput, ConfigurationError, TrimtabError

VERBS = (
    "run",
    "collect",
    "dry_run",
    "status",
    "explain",
    "decisions",
    "replay",
    "pause",
    "pin",
    "config",
    "preflight",
    "support_bundle",
    "schema",
)
"""Modules of this package in the order of the help, each with `register(app)`; one that is not installed is absent."""
ENTRY_POINTS = "trimtab.commands"
"""Packages outside add verbs here: an entry point is a function that takes the program and adds to it."""

FAILED, BAD_INPUT = 1, 2


class OneMessage(TyperGroup):
    """Turns an error into one message and an exit status: 2 when a value given is wrong, 1 when the work failed."""

    def invoke(self, ctx: Any) -> Any:
        """Run the verb."""
        try:
            return super().invoke(ctx)
        except (BadInput, ConfigurationError) as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(BAD_INPUT) from None
        except TrimtabError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(FAILED) from None
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                raise
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(FAILED) from None


def program() -> typer.Typer:
    """Return the program with every verb that is installed."""
    made = typer.Typer(
        name="trimtab",
        cls=OneMessage,
        help="Scales cloud fleets safely and explains every decision.",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for verb in VERBS:
        module = f"agent.commands.{verb}"
        if find_spec(module) is not None:
            import_module(module).register(made)
    for plugin in entry_points(group=ENTRY_POINTS):
        plugin.load()(made)
    return made


app = program()
