"""What a round on another machine needs, as one tar file: the record, and the models that decided.

    recorded.json.gz     the record of a fleet
    parts/               of a pool or a cluster: the earlier and the later part of its record, as its round keeps them
    export.json          whose it is; a fleet's IDLE_S, or what decides for a pool or a cluster: no ledger has these
    models/              the models that decided, by their SHA-256, and the subject's champion with pointer and report

It holds no secrets and no measurements of single VMs. Nothing in it is believed: names are checked, models are
verified as every model is, and a report that is signed stays signed.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from agent.autoscaling.policies.ppo_lstm import names_model, sha_of
from agent.models.directory import EVERY_FLEET, LARGEST_MODEL_BYTES, POINTER, read_model_file
from agent.models.shipped import DIRECTORY
from domain.errors import BadInput
from domain.subject import AUTOSCALING, Subject
from trainer.kit.files import replace_file
from trainer.learning.minutes import Record
from trainer.learning.state import RECORD_FILE, packed, unpacked
from trainer.promotion.directory import ModelsWriter, pointer_text

ABOUT_FILE, MODELS, PARTS = "export.json", "models", "parts"
FORMAT = 1
_MODEL = re.compile(r"champion\.json|[0-9a-f]{64}\.(onnx|json)|report-[0-9a-f]{16}\.json")
_PART = re.compile(r"(earlier|later)(\.csv\.gz(\.json)?|/[A-Za-z0-9_-]+(\.[a-z]+){1,3})")
LARGEST_RECORD_BYTES = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Export:
    """A record with what the ledger does not know: idle_s of the fleet, and models by their names."""

    recorded: Record
    idle_s: float
    models: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class PartsExport:
    """The record of a pool or a cluster with what its ledger does not know.

    about: what decides now, as data. parts: files by their names in the folder of a round. models: files by their names
    in a models directory.
    """

    subject: Subject
    about: Mapping[str, Any]
    parts: Mapping[str, bytes]
    models: Mapping[str, bytes]


def export_of(recorded: Record, idle_s: float, directory: ModelsWriter) -> Export:
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
        champion = champion_files(directory, subject)
        if champion:
            return Export(recorded, idle_s, models | champion)
    return Export(recorded, idle_s, models)


def champion_files(directory: ModelsWriter, subject: Subject) -> dict[str, bytes]:
    """Return the champion of a subject with pointer and report, nothing without one; ModelRefused if damaged."""
    champion = directory.champions().get(subject)
    if champion is None:
        return {}
    found = {champion.model: directory.read(champion.model).content, POINTER: pointer_text({subject: champion})}
    if champion.report is not None:
        found[champion.report] = (directory.path / Path(champion.report).name).read_bytes()
    return found


def parts_of(folder: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """Return the files of the parts of a record in the folder of a round; names: of files, or of folders of them."""
    found: dict[str, bytes] = {}
    for name in names:
        place = folder / name
        for file in sorted(place.iterdir()) if place.is_dir() else [place]:
            found[file.relative_to(folder).as_posix()] = file.read_bytes()
    return found


def place_parts(found: PartsExport, folder: Path) -> None:
    """Put the parts of a record into the folder of a round, where they are not yet; what is there already stays.

    A folder of files appears whole or not at all, since a round takes one that is there for whole.
    """
    for top in sorted({PurePosixPath(name).parts[0] for name in found.parts}):
        place, files = folder / top, {name: one for name, one in found.parts.items() if name.startswith(f"{top}/")}
        if place.exists():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        if not files:
            replace_file(place, found.parts[top])
            continue
        partial = folder / f".{top}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        for name, content in files.items():
            (partial / PurePosixPath(name).name).write_bytes(content)
        partial.rename(place)


def write_export(found: Export | PartsExport, path: Path) -> None:
    """Write the tar file, whole or not at all; the same bytes for the same content."""
    if isinstance(found, Export):
        about = {"format": FORMAT, "fleet": found.recorded.fleet.name, "idle_s": found.idle_s}
        files = {ABOUT_FILE: json.dumps(about).encode(), RECORD_FILE: packed(found.recorded)}
    else:
        decision, name = found.subject
        about = {"format": FORMAT, "decision": decision, "subject": name, "about": dict(found.about)}
        files = {ABOUT_FILE: json.dumps(about).encode()}
        files |= {f"{PARTS}/{name}": content for name, content in sorted(found.parts.items())}
    files |= {f"{MODELS}/{name}": content for name, content in sorted(found.models.items())}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    replace_file(path, buffer.getvalue())


def read_export(path: Path) -> Export:
    """Return what the export of a fleet, a tar file or a folder of its files, holds; BadInput for any other file."""
    about, files, again = _read(path, "autoscaling FLEET")
    try:
        fleet, idle_s, record = str(about["fleet"]), float(about["idle_s"]), files.pop(RECORD_FILE)
    except (KeyError, ValueError, TypeError) as error:
        raise again(f"{ABOUT_FILE} or {RECORD_FILE} is missing or damaged: {error}") from None
    recorded = unpacked(record, str(path))
    if recorded.fleet.name != fleet:
        raise again(f"its record is of fleet {recorded.fleet.name}, not of {fleet}")
    return Export(recorded, idle_s, _under(files, MODELS))


def read_parts(path: Path, subject: Subject) -> PartsExport:
    """Return what the export of a pool or a cluster holds; BadInput for any other file, and for another subject."""
    about, files, again = _read(path, f"{subject.decision} NAME")
    try:
        whose, facts = Subject(str(about["decision"]), str(about["subject"])), dict(about["about"])
    except (KeyError, ValueError, TypeError) as error:
        raise again(f"{ABOUT_FILE} is damaged: {error}") from None
    if whose != subject:
        raise again(f"it is of {whose}, not of {subject}")
    return PartsExport(whose, facts, _under(files, PARTS), _under(files, MODELS))


Again = Callable[[str], BadInput]
"""Returns the refusal of a file for a reason."""


def _read(path: Path, of: str) -> tuple[dict[str, Any], dict[str, bytes], Again]:
    def again(why: str) -> BadInput:
        return BadInput("--from", str(path), f"{why}: give a file of `trimtab learn {of} --export FILE`")

    try:
        files = dict(_of_folder(path, again) if path.is_dir() else _of_tar(path, again))
    except (OSError, tarfile.TarError) as error:
        raise again(str(error)) from None
    try:
        about = dict(json.loads(files.pop(ABOUT_FILE)))
        version = about["format"]
    except (KeyError, ValueError, TypeError) as error:
        raise again(f"{ABOUT_FILE} is missing or damaged: {error}") from None
    if version != FORMAT:
        raise again(f"it is of format {version}")
    return about, files, again


def _under(files: Mapping[str, bytes], folder: str) -> dict[str, bytes]:
    return {name.removeprefix(f"{folder}/"): one for name, one in files.items() if name.startswith(f"{folder}/")}


def place_models(models: Mapping[str, bytes], directory: Path) -> None:
    """Put models into a directory that has no champion of its own; what is there already stays."""
    directory.mkdir(parents=True, exist_ok=True)
    # The pointer last: it must not name a file that is not there yet.
    for name in sorted(models, key=lambda name: name == POINTER):
        if not (directory / name).exists():
            replace_file(directory / name, models[name])


def _of_tar(path: Path, again: Again) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(path) as tar:
        for member in tar:
            stream = tar.extractfile(member) if member.isreg() and _wanted(member.name, member.size) else None
            if stream is None:
                raise again(f"{member.name} has no place in one")
            yield (member.name, stream.read())


def _of_folder(path: Path, again: Again) -> Iterator[tuple[str, bytes]]:
    for file in sorted(path.rglob("*")):
        name = file.relative_to(path).as_posix()
        if file.is_dir() and not file.is_symlink():
            continue
        if file.is_symlink() or not _wanted(name, file.stat().st_size):
            raise again(f"{file.name} has no place in one")
        yield name, file.read_bytes()


def _wanted(name: str, size: int) -> bool:
    folder, _, rest = name.partition("/")
    if folder == MODELS:
        return _MODEL.fullmatch(rest) is not None and size <= LARGEST_MODEL_BYTES
    known = name in (ABOUT_FILE, RECORD_FILE) or (folder == PARTS and _PART.fullmatch(rest) is not None)
    return known and size <= LARGEST_RECORD_BYTES
