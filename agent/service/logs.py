"""Configures logging: one line of JSON per event on standard error, of this program and libraries, without secrets."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final, TextIO

import structlog
from pydantic import SecretStr
from structlog.typing import EventDict, Processor, WrappedLogger

from agent.settings import Settings
from agent.settings.location import credentials, without_password
from agent.settings.model import LogLevel
from agent.settings.names import values
from domain.errors import BadInput

MASK: Final = "***"
SHORTEST_SECRET: Final = 6
"""A shorter secret occurs in ordinary words."""

_SECRET_VARIABLES: Final = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "PGPASSWORD",
)
_QUIET: Final = ("botocore", "boto3", "urllib3", "apscheduler", "asyncio", "alembic", "httpx", "httpcore")
"""Libraries of which only warnings are logged."""


class Scrubber:
    """Replaces secrets in any text: those known by value, and passwords in URLs."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        spelled = {form for secret in secrets if len(secret) >= SHORTEST_SECRET for form in _spellings(secret)}
        # The longest first: one secret may be part of another.
        self._secrets = sorted(spelled, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """Return the text without secrets."""
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return without_password(text) if "://" in text else text


def secrets_of(settings: Settings, environ: Mapping[str, str]) -> frozenset[str]:
    """Return all secrets: secret settings, credentials, and AWS keys of the environment."""
    found = {environ[name] for name in _SECRET_VARIABLES if environ.get(name)}
    for _, value in values(settings):
        if isinstance(value, SecretStr):
            found |= _parts(value.get_secret_value())
    try:
        for text in credentials(environ).values():
            found |= _parts(text)
    except BadInput:
        # The settings were read from there just before: without it there are no more secrets.
        return frozenset(found)
    return frozenset(found)


def configure_logs(level: LogLevel, scrub: Scrubber, stream: TextIO | None = None) -> None:
    """Send every event at `level` and above, of the libraries from `warning`, to `stream` (standard error)."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                _Render(scrub),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    logging.captureWarnings(True)
    # A log that cannot be written, such as a closed pipe, must neither print a traceback nor stop the agent.
    logging.raiseExceptions = False


class _Render:
    """Renders an event as one line of JSON and scrubs it."""

    def __init__(self, scrub: Scrubber) -> None:
        self._scrub = scrub

    def __call__(self, logger: WrappedLogger, name: str, event: EventDict) -> str:
        first = {key: event.pop(key) for key in ("timestamp", "level", "event") if key in event}
        return self._scrub(json.dumps({**first, **event}, default=_plain, ensure_ascii=False))


def _plain(value: Any) -> str:
    return MASK if isinstance(value, SecretStr) else str(value)


def _parts(secret: str) -> set[str]:
    """Return the parts of a secret to mask: of a database's URL the password alone, else all of it."""
    scheme, separator, rest = secret.partition("://")
    if not separator:
        return {secret}
    if scheme in ("http", "https"):
        # The path of a webhook is its key.
        return {secret, rest.partition("/")[2]}
    password = rest.rpartition("@")[0].partition(":")[2]
    return {password} if password else set()


def _spellings(secret: str) -> tuple[str, ...]:
    return secret, json.dumps(secret, ensure_ascii=False)[1:-1], repr(secret)[1:-1]
