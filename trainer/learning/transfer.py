"""What a round on another machine needs, as one tar file: the record, and the models that decided.

    export.json          subject; the IDLE_S of a fleet, or the policy in use of a pool or cluster: no ledger has these
    parts/               the record: of a fleet one file, of a pool or a cluster its earlier and its later part
    models/              the models that decided, by their SHA-256, and the subject's champion with pointer and report

It holds no secrets and no measurements of single VMs. Nothing in it is believed: names are checked, models are
verified as every model is, and a report that is signed stays signed.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from agent.autoscaling.policies.ppo_lstm import names_model, sha_of
from agent.kernel.unfinished import unfinished
from agent.models.directory import EVERY_FLEET, LARGEST_MODEL_BYTES, POINTER, read_model_file
from agent.models.shipped import DIRECTORY
from domain.errors import BadInput
from domain.subject import AUTOSCALING, Subject
from trainer.kit.files import replace_file
from trainer.learning.minutes import Record
from trainer.learning.state import RECORD_FILE, packed, unpacked
from trainer.promotion.directory import ModelsWriter, pointer_text

ABOUT_FILE, MODELS, PARTS = "export.json", "models", "parts"
FORMAT = 2
_MODEL = re.compile(r"champion\.json|[0-9a-f]{64}\.(onnx|json)|report-[0-9a-f]{16}\.json")
_PART = re.compile(r"recorded\.json\.gz|(earlier|later)(\.csv\.gz(\.json)?|/[A-Za-z0-9_-]+(\.[a-z]+){1,3})")
LARGEST_RECORD_BYTES = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Export:
    """The record of a subject with the facts that no ledger has.

    about: `idle_s` of a fleet, the policy in use of a pool or a cluster, as data. parts: files of the record by their
    names in the folder of a round. models: files by their names in a models directory.
    """

    subject: Subject
    about: Mapping[str, Any]
    parts: Mapping[str, bytes]
    models: Mapping[str, bytes]


def export_of(recorded: Record, idle_s: float, directory: ModelsWriter) -> Export:
    """Return the export of a fleet; ModelRefused for a model that decided and is damaged.

    A model that is in no place is left out: the round says so where it is needed.
    """
    subject, models = Subject(AUTOSCALING, recorded.fleet.name), dict[str, bytes]()
    for policy in recorded.policies:
        sha = sha_of(policy) if names_model(policy) else ""
        for place in (directory.path, DIRECTORY):
            if sha and (place / f"{sha}.onnx").is_file():
                models[f"{sha}.onnx"] = read_model_file(place / f"{sha}.onnx").content
    champion = champion_files(directory, subject) or champion_files(directory, EVERY_FLEET)
    return Export(subject, {"idle_s": idle_s}, {RECORD_FILE: packed(recorded)}, models | champion)


def record_in(found: Export, source: str) -> tuple[Record, float]:
    """Return the record in the export of a fleet, and its idle_s; BadInput without them."""
    try:
        return unpacked(found.parts[RECORD_FILE], source), float(found.about["idle_s"])
    except (KeyError, ValueError, TypeError) as error:
        raise BadInput("--from", source, f"{ABOUT_FILE} or {RECORD_FILE} is missing or damaged: {error}") from None


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


def place_parts(found: Export, folder: Path) -> None:
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
        with unfinished(place, is_folder=True) as partial:
            for name, content in files.items():
                (partial / PurePosixPath(name).name).write_bytes(content)
            partial.rename(place)


def write_export(found: Export, path: Path) -> None:
    """Write the tar file, whole or not at all; the same bytes for the same content."""
    decision, name = found.subject
    about = {"format": FORMAT, "decision": decision, "subject": name, "about": dict(found.about)}
    files = {ABOUT_FILE: json.dumps(about).encode()}
    for folder, each in ((PARTS, found.parts), (MODELS, found.models)):
        files |= {f"{folder}/{name}": content for name, content in sorted(each.items())}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    replace_file(path, buffer.getvalue())


def read_export(path: Path, subject: Subject) -> Export:
    """Return the content of the export of a subject, a tar file or a folder of its files.

    BadInput for any other file, for another version, and for another subject.
    """

    def again(why: str) -> BadInput:
        remedy = f"give a file of `trimtab learn {subject.decision} {subject.name} --export FILE`"
        return BadInput("--from", str(path), f"{why}: {remedy}")

    try:
        files = dict(_of_folder(path, again) if path.is_dir() else _of_tar(path, again))
    except (OSError, tarfile.TarError) as error:
        raise again(str(error)) from None
    try:
        about = dict(json.loads(files.pop(ABOUT_FILE)))
        if about["format"] != FORMAT:
            raise again(f"it is of format {about['format']}, not {FORMAT}")
        found, facts = Subject(str(about["decision"]), str(about["subject"])), dict(about["about"])
    except (KeyError, ValueError, TypeError) as error:
        raise again(f"{ABOUT_FILE} is missing or damaged: {error}") from None
    if found != subject:
        raise again(f"it is of {found}, not of {subject}")
    return Export(found, facts, _under(files, PARTS), _under(files, MODELS))


Again = Callable[[str], BadInput]
"""Returns the refusal of a file for a reason."""


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
    known = name == ABOUT_FILE or (folder == PARTS and _PART.fullmatch(rest) is not None)
    return known and size <= LARGEST_RECORD_BYTES
