"""A cluster's inside as two files, numbers in .npz and the rest in .json, to be moved or kept beside the ledger."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from agent.admission.book import FUTURES, Book
from agent.admission.deployments import Deployment
from agent.admission.records import DeploymentEvent
from agent.admission.store import ClusterCounts, NamedTally
from agent.ledger import codec
from domain.errors import BadInput, LedgerError
from domain.rules.admission.belief import Floats
from domain.rules.admission.cluster import ClusterRules

VERSION: Final = 2


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a snapshot holds; `arrays` are the futures of `ids`, as `Book.arrays` gives them."""

    cluster: str
    at: float
    config_hash: str
    counts: ClusterCounts
    deployments: tuple[Deployment, ...]
    events: tuple[DeploymentEvent, ...]
    ids: tuple[str, ...]
    arrays: Mapping[str, Floats]
    tallies: tuple[NamedTally, ...] = ()


def write(
    path: Path,
    rules: ClusterRules,
    counts: ClusterCounts,
    book: Book,
    events: tuple[DeploymentEvent, ...],
    now: float,
) -> Path:
    """Write both files and return the path of the .json one; what stood there is replaced only when all is written."""
    ids, arrays = book.arrays()
    numbers, words = _named(path)
    part = numbers.with_suffix(".npz.part")
    with part.open("wb") as file:
        save: Any = np.savez
        save(file, **arrays)
    digest = hashlib.sha256(part.read_bytes()).hexdigest()
    body = {
        "version": VERSION,
        "cluster": rules.name,
        "at": now,
        "config_hash": rules.config_hash,
        "sha256": digest,
        "counts": codec.plain(counts),
        "deployments": [codec.plain(deployment) for deployment in book.inside()],
        "events": [codec.plain(event) for event in events],
        "ids": ids,
        "tallies": [
            codec.plain(NamedTally(owner, label, tally)) for (owner, label), tally in sorted(book.tallies.items())
        ],
    }
    text = words.with_suffix(".json.part")
    text.write_text(json.dumps(body, allow_nan=False), "utf-8")
    os.replace(part, numbers)
    os.replace(text, words)
    return words


def read(path: Path, cluster: str) -> Snapshot:
    """Return a snapshot of this cluster; BadInput when it is another's, of another version, or damaged."""
    numbers, words = _named(path)
    try:
        body: Any = json.loads(words.read_text("utf-8"))
        held = numbers.read_bytes()
    except (OSError, ValueError) as error:
        raise BadInput("snapshot", str(words), f"give a snapshot that can be read: {error}") from None
    found = body.get("version") if isinstance(body, dict) else None
    if found != VERSION:
        raise BadInput("snapshot", str(words), f"it has version {found!r}, this Trimtab reads version {VERSION}")
    if body.get("cluster") != cluster:
        raise BadInput("snapshot", str(words), f"it is of the cluster {body.get('cluster')!r}, not of {cluster}")
    if hashlib.sha256(held).hexdigest() != body.get("sha256"):
        raise BadInput("snapshot", str(numbers), "it does not belong to its .json file: give both of one snapshot")
    try:
        with np.load(numbers, allow_pickle=False) as file:
            arrays = {name: np.asarray(file[name], dtype=np.float64) for name in FUTURES}
        return Snapshot(
            cluster,
            float(body["at"]),
            str(body["config_hash"]),
            _read(ClusterCounts, body["counts"]),
            tuple(_read(Deployment, item) for item in body["deployments"]),
            tuple(_read(DeploymentEvent, item) for item in body["events"]),
            tuple(body["ids"]),
            arrays,
            # Those of before names were gathered have none.
            tuple(_read(NamedTally, item) for item in body.get("tallies", ())),
        )
    except (KeyError, TypeError, ValueError, LedgerError) as error:
        raise BadInput("snapshot", str(words), f"it is damaged ({error})") from None


def _named(path: Path) -> tuple[Path, Path]:
    stem = path.with_suffix("") if path.suffix in (".npz", ".json") else path
    return stem.with_name(stem.name + ".npz"), stem.with_name(stem.name + ".json")


def _read(kind: type[Any], value: Any) -> Any:
    return codec.decode(kind, json.dumps(value, allow_nan=False).encode())
