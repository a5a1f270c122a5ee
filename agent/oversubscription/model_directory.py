"""The directory of a pool's models: files named after their content, and which one is in use, replaced whole."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

from agent.models.champions import CHAMPION, Champion, read_champion
from agent.models.file import LARGEST_MODEL_BYTES
from agent.models.regular_files import read_file
from agent.oversubscription.rate_model import RateModel, load_rate_model
from agent.oversubscription.rules import PoolRules
from domain.errors import BadInput


def model_in_use(place: Path) -> Path:
    """Return the model file that a path means: itself, or the one in use in a directory; BadInput without one."""
    return place / read_champion(place / CHAMPION).model if place.is_dir() else place


def state_of(directory: Path) -> Champion:
    """Return the model in use and the one before; BadInput when none is."""
    return read_champion(directory / CHAMPION)


def put_in_use(directory: Path, file: Path, rules: PoolRules, at: str) -> RateModel:
    """Copy a model into the directory and use it from the next hour on; BadInput when it does not fit the pool."""
    model = load_rate_model(file, rules)
    directory.mkdir(parents=True, exist_ok=True)
    before = _present(directory)
    name = f"{model.name}.onnx"
    if before is not None and before.model == name:
        raise BadInput("FILE", str(file), "it is in use already")
    _replace(directory / name, read_file(file, LARGEST_MODEL_BYTES))
    _point(directory, Champion(model=name, previous=before.model if before else None, at=at))
    return model


def go_back(directory: Path, rules: PoolRules, at: str) -> RateModel:
    """Use the model before the present one; the one that is left becomes the one before. BadInput without one."""
    now = state_of(directory)
    if now.previous is None:
        raise BadInput("--previous", now.model, "there was none before it: set another policy")
    model = load_rate_model(directory / now.previous, rules)
    _point(directory, Champion(model=now.previous, previous=now.model, at=at))
    return model


def _present(directory: Path) -> Champion | None:
    return state_of(directory) if (directory / CHAMPION).exists() else None


def _point(directory: Path, champion: Champion) -> None:
    _replace(directory / CHAMPION, (json.dumps(asdict(champion)) + "\n").encode())


def _replace(path: Path, content: bytes) -> None:
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with fresh.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
