"""The support bundle: versions, settings, decisions and health in one archive without secrets."""

from __future__ import annotations

import io
import json
import os
import platform
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from agent.api import unix_socket
from agent.kernel.decision import Host
from agent.kernel.parts import parts_of
from agent.kernel.store import DecisionStore
from agent.ledger import Ledger
from agent.ledger.codec import decode_mapping, plain
from agent.service.logs import Scrubber, secrets_of
from agent.settings import Settings, load_settings
from agent.settings.location import ledger_location, socket_location
from agent.settings.names import effective, name_of, values
from domain.clock import WallClock
from domain.errors import BadInput, ConfigurationError, TrimtabError

OURS = "trimtab"
LOG_BYTES = 1_000_000
ROUTES = {
    "health.json": "/healthz",
    "readiness.json": "/readyz",
    "status.json": "/api/v1/status",
    "collectors.json": "/api/v1/collectors",
    "metrics.txt": "/metrics",
}
"""Requests to the running agent, by the file of the response."""


def write_bundle(
    target: Path, environ: Mapping[str, str], *, decisions: int = 50, journal: int = 500, log: Path | None = None
) -> list[str]:
    """Write the archive; return a line for each file in it, with the reason where it is absent.

    decisions, journal: how many of the newest rows. log: a log file whose end is added. Every text is scrubbed of the
    secrets in settings, credentials and environment. Raises OSError when the archive cannot be written.
    """
    settings, mistakes = _settings(environ)
    scrub = Scrubber(secrets_of(settings or Settings(), environ) | _given_secrets(environ))
    files = []
    # Readable by its owner only: decisions are confidential.
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, make in _parts(settings, mistakes, environ, decisions, journal, log):
            try:
                text = make()
                files.append(name)
            except (TrimtabError, OSError) as error:
                name, text = f"{name}.absent", f"{type(error).__name__}: {error}\n"
                files.append(f"{name}: {scrub(str(error))}")
            _add(archive, f"{target.name.partition('.')[0]}/{name}", scrub(text))
    return files


def _parts(
    settings: Settings | None,
    mistakes: str,
    environ: Mapping[str, str],
    decisions: int,
    journal: int,
    log: Path | None,
) -> Iterator[tuple[str, Callable[[], str]]]:
    yield "versions.json", lambda: _json(_versions())
    yield "settings.json", lambda: mistakes if settings is None else _json(effective(settings))
    for name, route in ROUTES.items():
        yield name, lambda route=route: unix_socket.read(socket_location(environ), route)  # type: ignore[misc]
    yield "decisions.jsonl", lambda: _lines(_decisions(environ, decisions))
    yield "journal.jsonl", lambda: _lines(_journal(environ, journal))
    yield "subjects.json", lambda: _json(_subjects(environ, settings))
    if log is not None:
        yield "log.txt", lambda: _tail(log)


def _settings(environ: Mapping[str, str]) -> tuple[Settings | None, str]:
    try:
        return load_settings(environ), ""
    except (BadInput, ConfigurationError) as error:
        return None, f"{error}\n"


def _given_secrets(environ: Mapping[str, str]) -> frozenset[str]:
    """Return the values given for secret settings, which may be invalid."""
    secret = {name_of(path).upper() for path, value in values(Settings()) if _is_secret(path)}
    return frozenset(value for name, value in environ.items() if name.upper() in secret and value)


def _is_secret(path: tuple[str, ...]) -> bool:
    return any(word in path[-1] for word in ("token", "authorization", "webhook")) or path == ("ledger", "url")


def _versions() -> dict[str, Any]:
    packages = {found.metadata["Name"]: found.version for found in distributions() if found.metadata["Name"]}
    return {
        OURS: packages.get(OURS, "not installed as a package"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "made_at": time.time(),
        "packages": dict(sorted(packages.items(), key=lambda item: item[0].lower())),
    }


def _ledger(environ: Mapping[str, str]) -> Ledger:
    return Ledger.open(ledger_location(environ), read_only=True)


def _decisions(environ: Mapping[str, str], count: int) -> Iterator[Any]:
    """Yield the newest decisions of every part, the newest first, without inputs."""
    with _ledger(environ) as ledger:
        for made in DecisionStore(ledger.database).newest(limit=count):
            about = {"decision_id": made.decision_id, "decision": made.decision, "subject": made.subject, "at": made.at}
            yield {**about, "kind": made.kind, "changed": made.changed, "body": decode_mapping(made.body)}


def _journal(environ: Mapping[str, str], count: int) -> Iterator[Any]:
    with _ledger(environ) as ledger:
        yield from (plain(row) for row in ledger.journal(since_seq=max(0, ledger.newest_seq() - count), limit=count))


def _subjects(environ: Mapping[str, str], settings: Settings | None) -> dict[str, dict[str, Any]]:
    """Return the state of every subject by decision and name; the reason stands where it cannot be read."""
    with _ledger(environ) as ledger:
        found: dict[str, dict[str, Any]] = {}
        for part in parts_of(Host(ledger, settings, WallClock(), environ=environ)):
            states = found.setdefault(part.name, {})
            for subject in part.subjects():
                try:
                    states[subject] = plain(part.status(subject, time.time()).data)
                except (TrimtabError, OSError) as error:
                    states[subject] = f"{type(error).__name__}: {error}"
    return found


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_BYTES))
        return file.read(LOG_BYTES).decode("utf-8", "replace")


def _json(data: Any) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False, default=str) + "\n"


def _lines(rows: Iterable[Any]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)


def _add(archive: tarfile.TarFile, name: str, text: str) -> None:
    content = text.encode()
    about = tarfile.TarInfo(name)
    about.size, about.mtime, about.mode = len(content), int(time.time()), 0o600
    archive.addfile(about, io.BytesIO(content))
