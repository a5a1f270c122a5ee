"""`trimtab models`: which models there are, which one decides, and whether a file would be taken."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent.commands.options import JsonOption, ModelsOption, examples, models_directory, print_json

if TYPE_CHECKING:
    from agent.models.file import Model
    from agent.models.shelf import ModelShelf

DIGITS = 12


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("models", epilog=examples("trimtab models", "trimtab models MODEL.onnx --json"))(models)


def models(
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Verify this file instead.")] = None,
    directory: ModelsOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the models of the models directory and those that come with the agent, each verified, and the champion.

    With a file, verify that one as the agent does before it uses it, and tell what it was trained for. Exits with
    status 2 when it would be refused.
    """
    from agent.models.shelf import ModelShelf
    from agent.settings.location import promotion_key_location

    if file is not None:
        from agent.models.file import load_model

        found = _about(load_model(file), str(file))
        print_json(found) if as_json else _show([found])
        return
    place = models_directory(directory)
    shelf = ModelShelf(place, key=promotion_key_location(os.environ))
    shelf.look()
    rows = _listed(place, shelf)
    if as_json:
        print_json({"directory": str(place), "refusal": shelf.refusal or None, "models": rows})
        return
    _show(rows)
    every = shelf.champion.name[:DIGITS] if shelf.champion else "none"
    own = [f"; of {fleet}: {model.name[:DIGITS]}" for fleet, model in sorted(shelf.champions.items()) if fleet]
    typer.echo(f"models directory {place}; champion: {every}{''.join(own)}")
    if shelf.refusal:
        typer.echo(f"refused: {shelf.refusal}", err=True)


def _listed(place: Path, shelf: ModelShelf) -> list[dict[str, Any]]:
    from agent.models.shipped.index import shipped_models

    files = [(path, _role(path.stem, shelf)) for path in sorted(place.glob("*.onnx"))]
    files += [(model.path, f"comes along: {model.name}, {model.trained_for}") for model in shipped_models()]
    return [_tried(path, role) for path, role in files]


def _role(sha: str, shelf: ModelShelf) -> str:
    """Return which fleets the model is the champion of, "" for none."""
    fleets = [fleet for fleet, model in sorted(shelf.champions.items()) if model.name == sha]
    own = [f"champion of {fleet}" for fleet in fleets if fleet]
    return ", ".join([*(["champion"] if "" in fleets else []), *own])


def _tried(path: Path, role: str) -> dict[str, Any]:
    from agent.models.file import ModelRefused, load_model

    try:
        return _about(load_model(path), role)
    except ModelRefused as refusal:
        return {"model": path.stem, "role": role, "refused": refusal.remedy}


def _about(model: Model, role: str) -> dict[str, Any]:
    card = model.card
    return {
        "model": model.name,
        "role": role,
        "observation": card.observation,
        "actions": card.action_set,
        "network": f"{card.network} {card.hidden_size}" if card.hidden_size else card.network,
        "masked": card.masked,
        "types": [
            {"name": t.name, "cores": t.cores, "price_per_hour": t.price_per_hour, "limit": t.limit} for t in card.types
        ],
        "training": card.training,
        "evaluation": card.evaluation,
    }


def _show(rows: list[dict[str, Any]]) -> None:
    from agent.commands.output import columns, show

    if not rows:
        return
    lines: list[tuple[object, ...]] = [("model", "sees", "does", "network", "for at most", "")]
    for row in rows:
        if "refused" in row:
            lines.append((row["model"][:DIGITS], "refused:", row["refused"], "", "", row["role"]))
            continue
        fleet = " + ".join(f"{t['limit']} x {t['cores']} cores" for t in row["types"])
        does = row["actions"] + (", masked" if row["masked"] else "")
        lines.append((row["model"][:DIGITS], row["observation"], does, row["network"], fleet, row["role"]))
    show(columns(lines))
