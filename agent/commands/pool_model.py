"""`trimtab pool-model`: which learned policy sets a pool's rates; use another one, and go back to the one before."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agent.commands.options import JsonOption, examples, print_json
from domain.errors import BadInput

if TYPE_CHECKING:
    from agent.oversubscription.rules import PoolRules

DIGITS = 12


def register(app: typer.Typer) -> None:
    """Add the verb to the program."""
    app.command(
        "pool-model",
        epilog=examples("trimtab pool-model MODEL.onnx --pool main", "trimtab pool-model --previous --pool main"),
    )(pool_model)


def pool_model(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE.onnx]", help="Model to use from now on.", show_default=False)
    ] = None,
    previous: Annotated[bool, typer.Option("--previous", help="Go back to the model before.")] = False,
    pool: Annotated[
        str | None, typer.Option("--pool", help="Pool; not needed when there is one.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the model that sets a pool's rates, use another one, or go back to the one before.

    For a pool whose policy is model:DIRECTORY. A model comes from `trimtab train oversubscription --method vdn`; it
    must be for as many subscribers as have a MODEL_PLACE, and for the pool's levels. It is tried before it is used.
    The agent takes it up with the next hour; rates still go down one level in two hours.
    """
    from agent.oversubscription.model_directory import go_back, put_in_use, state_of

    if file is not None and previous:
        raise BadInput("pool-model", str(file), "give a file or --previous")
    rules, directory = _pool(pool)
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if previous:
        go_back(directory, rules, at)
    elif file is not None:
        put_in_use(directory, file, rules, at)
    now = state_of(directory)
    if as_json:
        print_json({"pool": rules.name, "directory": str(directory), "model": now.model, "previous": now.previous})
        return
    typer.echo(f"{rules.name}: {now.model[:DIGITS]} since {now.at}, before it {(now.previous or 'none')[:DIGITS]}")


def _pool(name: str | None) -> tuple[PoolRules, Path]:
    """Return the rules of the pool meant and the directory of its models; BadInput when it has none."""
    from agent.settings import load_settings
    from agent.settings.oversubscription import pool_rules_of

    pools = load_settings(os.environ).pools
    there = ", ".join(sorted(pools)) or "(none is set)"
    if name is None and len(pools) != 1:
        raise BadInput("--pool", "", f"name one of: {there}")
    chosen = next(iter(pools)) if name is None else name
    if chosen not in pools:
        raise BadInput("--pool", chosen, f"choose one of: {there}")
    kind, _, place = pools[chosen].policy.partition(":")
    if kind != "model" or place.endswith(".onnx"):
        remedy = f"set TRIMTAB_POOLS__{chosen}__POLICY to model:DIRECTORY: the verb keeps a pool's models there"
        raise BadInput("policy", pools[chosen].policy, remedy)
    return pool_rules_of(chosen, pools[chosen]), Path(place)
