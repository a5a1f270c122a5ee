"""What somebody who helps needs to see, in one archive without secrets: versions, settings, decisions, health."""

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

from agent.api.running_agent import RunningAgent
from agent.autoscaling.explain import plain as plain_record
from agent.autoscaling.known_fleets import fleet_names
from agent.autoscaling.status import fleet_status
from agent.ledger import Ledger
from agent.service.logs import Scrubber, secrets_of
from agent.settings import Settings, load_settings
from agent.settings.effective import plain, values
from agent.settings.location import ledger_location, socket_location
from agent.settings.names import name_of
from domain.errors import ConfigurationError, TrimtabError

OURS = "trimtab"
LOG_BYTES = 1_000_000
ROUTES = {
    "health.json": "/healthz",
    "readiness.json": "/readyz",
    "status.json": "/api/v1/status",
    "collectors.json": "/api/v1/collectors",
    "metrics.txt": "/metrics",
}
"""What the running agent is asked, by the file that the answer becomes."""


def write_bundle(
    target: Path, environ: Mapping[str, str], *, decisions: int = 50, journal: int = 500, log: Path | None = None
) -> list[str]:
    """Write the archive; return a line for each file in it, saying what is there or why it is not.

    decisions, journal: how many of the newest rows. log: a log file whose end is added. Every text is scrubbed of the
    secrets in settings, credentials and environment. Raises OSError when the archive cannot be written.
    """
    settings, mistakes = _settings(environ)
    scrub = Scrubber(secrets_of(settings or Settings(), environ) | _given_secrets(environ))
    told = []
    # Only for its owner: decisions tell much about a business.
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, make in _parts(settings, mistakes, environ, decisions, journal, log):
            try:
                text = make()
                told.append(name)
            except (TrimtabError, OSError) as error:
                name, text = f"{name}.absent", f"{type(error).__name__}: {error}\n"
                told.append(f"{name}: {scrub(str(error))}")
            _add(archive, f"{target.name.partition('.')[0]}/{name}", scrub(text))
    return told


def _parts(
    settings: Settings | None,
    mistakes: str,
    environ: Mapping[str, str],
    decisions: int,
    journal: int,
    log: Path | None,
) -> Iterator[tuple[str, Callable[[], str]]]:
    yield "versions.json", lambda: _json(_versions())
    yield "settings.json", lambda: mistakes if settings is None else _json(_effective(settings))
    agent = RunningAgent(socket_location(environ))
    for name, route in ROUTES.items():
        yield name, lambda route=route: agent.text(route)  # type: ignore[misc]
    yield "decisions.jsonl", lambda: _lines(_decisions(environ, decisions))
    yield "journal.jsonl", lambda: _lines(_journal(environ, journal))
    yield "fleets.json", lambda: _json(_fleets(environ, settings))
    if log is not None:
        yield "log.txt", lambda: _tail(log)


def _settings(environ: Mapping[str, str]) -> tuple[Settings | None, str]:
    try:
        return load_settings(environ), ""
    except ConfigurationError as error:
        return None, f"{error}\n"


def _given_secrets(environ: Mapping[str, str]) -> frozenset[str]:
    """Return what was given for settings that are secret, though the settings may not be valid."""
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


def _effective(settings: Settings) -> dict[str, str]:
    return {name_of(path): plain(value) for path, value in values(settings)}


def _ledger(environ: Mapping[str, str]) -> Ledger:
    return Ledger.open(ledger_location(environ), read_only=True)


def _decisions(environ: Mapping[str, str], count: int) -> Iterator[Any]:
    with _ledger(environ) as ledger:
        for row in ledger.decisions(None, limit=count):
            yield plain_record(row)


def _journal(environ: Mapping[str, str], count: int) -> Iterator[Any]:
    with _ledger(environ) as ledger:
        yield from (
            plain_record(row) for row in ledger.journal(since_seq=max(0, ledger.newest_seq() - count), limit=count)
        )


def _fleets(environ: Mapping[str, str], settings: Settings | None) -> list[Any]:
    with _ledger(environ) as ledger:
        names = fleet_names(ledger, settings.fleets if settings else ())
        return [plain_record(fleet_status(ledger, name, time.time())) for name in names]


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
