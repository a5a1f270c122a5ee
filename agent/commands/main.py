"""The program `trimtab`: one verb per module, found by name; a verb imports what it needs only when it runs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
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
    "rehearse",
    "status",
    "explain",
    "decisions",
    "replay",
    "pause",
    "pin",
    "rearm",
    "pool_model",
    "cluster",
    "config",
    "models",
    "preflight",
    "support_bundle",
    "schema",
)
"""Modules of this package in the order of the help, each with `register(app)`; one that is not installed is absent."""
ENTRY_POINTS = "trimtab.commands"
"""Packages outside add verbs here: an entry point is a function that takes the program and adds to it."""

FAILED, BAD_INPUT = 1, 2


EXTRAS: Mapping[str, str] = {
    "torch": "train",
    "numba": "train",
    "gymnasium": "train",
    "onnx": "train",
    "scipy": "train",
    "highspy": "train",
    "matplotlib": "train",
    "tensorboard": "train",
    "ray": "distributed",
    "moto": "dry-run",
}
"""Packages that only some verbs need, and the extra that brings each."""


class Program(TyperGroup):
    """Finds the verbs of other packages only when they are asked for, and turns an error into one message.

    The exit status is 2 when a value given is wrong, 1 when the work failed.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all verbs, ours first."""
        return [*super().list_commands(ctx), *_plugged_in()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a verb by name, None when there is none."""
        return super().get_command(ctx, cmd_name) or _plugged_in().get(cmd_name)

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
        except ModuleNotFoundError as error:
            extra = EXTRAS.get((error.name or "").partition(".")[0])
            if extra is None:
                raise
            typer.echo(f"error: this needs {error.name}: install it with pip install 'trimtab[{extra}]'", err=True)
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
        cls=Program,
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
    return made


@cache
def _plugged_in() -> Mapping[str, Any]:
    """Return the verbs of other packages; loading them costs time that `trimtab run` need not spend."""
    outside = typer.Typer()
    # With a callback it stays a group, however few verbs there are.
    outside.callback()(lambda: None)
    for plugin in entry_points(group=ENTRY_POINTS):
        plugin.load()(outside)
    group: Any = typer.main.get_command(outside)
    return dict(group.commands)


app = program()
