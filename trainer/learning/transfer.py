"""What a round on another machine needs, as one tar file: the record, and the models that decided.

    recorded.json.gz     the record
    export.json          the fleet, and its IDLE_S, which no ledger records
    models/              the models that decided, by their SHA-256, and the fleet's champion with pointer and report

It holds no secrets and no measurements of single VMs. Nothing in it is believed: names are checked, models are
verified as every model is, and a report that is signed stays signed.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.autoscaling.policies.ppo_lstm import names_model, sha_of
from agent.models.directory import (
    AUTOSCALING,
    EVERY_FLEET,
    LARGEST_MODEL_BYTES,
    POINTER,
    ModelsDirectory,
    Subject,
    pointer_text,
    read_model_file,
)
from agent.models.shipped import DIRECTORY
from domain.errors import BadInput
from trainer.kit.files import replace_file
from trainer.learning.minutes import Record
from trainer.learning.state import RECORD_FILE, packed, unpacked

ABOUT_FILE, MODELS = "export.json", "models"
FORMAT = 1
_NAME = re.compile(r"champion\.json|[0-9a-f]{64}\.onnx|report-[0-9a-f]{16}\.json")
LARGEST_RECORD_BYTES = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Export:
    """A record with what the ledger does not know: idle_s of the fleet, and models by their names."""

    recorded: Record
    idle_s: float
    models: Mapping[str, bytes]


def export_of(recorded: Record, idle_s: float, directory: ModelsDirectory) -> Export:
    """Return what a round elsewhere needs; ModelRefused for a model that decided and is damaged.

    A model that is in no place is left out: the round says so where it is needed.
    """
    models: dict[str, bytes] = {}
    for policy in recorded.policies:
        sha = sha_of(policy) if names_model(policy) else ""
        for place in (directory.path, DIRECTORY):
            if sha and (place / f"{sha}.onnx").is_file():
                models[f"{sha}.onnx"] = read_model_file(place / f"{sha}.onnx").content
    for subject in (Subject(AUTOSCALING, recorded.fleet.name), EVERY_FLEET):
        champion = directory.champions().get(subject)
        if champion is None:
            continue
        models[champion.model] = directory.read(champion.model).content
        models[POINTER] = pointer_text({subject: champion})
        if champion.report is not None:
            models[champion.report] = (directory.path / Path(champion.report).name).read_bytes()
        break
    return Export(recorded, idle_s, models)


def write_export(found: Export, path: Path) -> None:
    """Write the tar file, whole or not at all; the same bytes for the same content."""
    about = {"format": FORMAT, "fleet": found.recorded.fleet.name, "idle_s": found.idle_s}
    files = {ABOUT_FILE: json.dumps(about).encode(), RECORD_FILE: packed(found.recorded)}
    files |= {f"{MODELS}/{name}": content for name, content in sorted(found.models.items())}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    replace_file(path, buffer.getvalue())


def read_export(path: Path) -> Export:
    """Return what a tar file, or a folder of its files, holds; BadInput for what is cut or no export."""
    try:
        files = dict(_of_folder(path) if path.is_dir() else _of_tar(path))
    except (OSError, tarfile.TarError) as error:
        raise _no_export(path, str(error)) from None
    try:
        about = json.loads(files.pop(ABOUT_FILE))
        fleet, idle_s, known = str(about["fleet"]), float(about["idle_s"]), about["format"] == FORMAT
        record = files.pop(RECORD_FILE)
    except (KeyError, ValueError, TypeError) as error:
        raise _no_export(path, f"{ABOUT_FILE} or {RECORD_FILE} is missing or damaged: {error}") from None
    if not known:
        raise _no_export(path, f"it is of format {about['format']}")
    recorded = unpacked(record, str(path))
    if recorded.fleet.name != fleet:
        raise _no_export(path, f"its record is of fleet {recorded.fleet.name}, not of {fleet}")
    return Export(recorded, idle_s, files)


def place_models(found: Export, directory: Path) -> None:
    """Put the models into a directory that has no champion of its own; what is there already stays."""
    directory.mkdir(parents=True, exist_ok=True)
    # The pointer last: it must not name a file that is not there yet.
    for name in sorted(found.models, key=lambda name: name == POINTER):
        if not (directory / name).exists():
            replace_file(directory / name, found.models[name])


def _of_tar(path: Path) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(path) as tar:
        for member in tar:
            folder, _, name = member.name.rpartition("/")
            stream = tar.extractfile(member) if member.isreg() and _wanted(folder, name, member.size) else None
            if stream is None:
                raise _no_export(path, f"{member.name} has no place in one")
            yield (name, stream.read())


def _of_folder(path: Path) -> Iterator[tuple[str, bytes]]:
    for file in sorted(path.rglob("*")):
        folder = "" if file.parent == path else file.parent.relative_to(path).as_posix()
        if file.is_dir() and not file.is_symlink():
            continue
        if file.is_symlink() or not _wanted(folder, file.name, file.stat().st_size):
            raise _no_export(path, f"{file.name} has no place in one")
        yield file.name, file.read_bytes()


def _wanted(folder: str, name: str, size: int) -> bool:
    if folder == "":
        return name in (ABOUT_FILE, RECORD_FILE) and size <= LARGEST_RECORD_BYTES
    return folder == MODELS and _NAME.fullmatch(name) is not None and size <= LARGEST_MODEL_BYTES


def _no_export(path: Path, why: str) -> BadInput:
    return BadInput("--from", str(path), f"{why}: give a file of `trimtab learn autoscaling FLEET --export FILE`")
