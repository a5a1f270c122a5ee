"""The log: a line of JSON per event, ours and the libraries', and no secret in any of them."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from pydantic import SecretStr

from agent.service.logs import Scrubber, configure_logs, secrets_of
from agent.settings import Settings, load_settings
from agent.settings.model import LogLevel

PASSWORD, KEY = 'open"sesame\\ÿ', "wJalrXUtnFEMI/K7MDENG"


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, raises = root.handlers[:], root.level, logging.raiseExceptions
    yield
    structlog.reset_defaults()
    logging.captureWarnings(False)
    root.handlers[:], logging.raiseExceptions = handlers, raises
    root.setLevel(level)


def logged(level: LogLevel = LogLevel.INFO, secrets: tuple[str, ...] = (PASSWORD, KEY)) -> io.StringIO:
    stream = io.StringIO()
    configure_logs(level, Scrubber(secrets), stream)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_a_line_of_json_with_time_level_and_logger() -> None:
    stream = logged()
    structlog.get_logger("agent.test").info("decided", fleet="web", size=3, path=Path("a"))
    (line,) = lines(stream)
    assert str(line.pop("timestamp")).endswith("Z")
    assert line == {
        "level": "info",
        "event": "decided",
        "fleet": "web",
        "size": 3,
        "path": "a",
        "logger": "agent.test",
    }


def test_libraries_are_heard_from_warning_on() -> None:
    stream = logged(LogLevel.DEBUG)
    logging.getLogger("botocore.hooks").info("chatter")
    logging.getLogger("botocore.hooks").warning("careful: %s", "hot")
    structlog.get_logger("agent.test").debug("detail")
    assert [line["event"] for line in lines(stream)] == ["careful: hot", "detail"]


def test_a_line_break_in_a_value_breaks_no_line() -> None:
    stream = logged()
    structlog.get_logger("agent.test").info("said", text='first\nsecond","level":"fatal')
    assert lines(stream)[0]["text"] == 'first\nsecond","level":"fatal'


def test_no_secret_comes_through_in_event_value_exception_or_library() -> None:
    stream = logged()
    log = structlog.get_logger("agent.test")
    event = f"logging in with {PASSWORD}"
    log.info(event, password=PASSWORD, wrapped={"in": [KEY]}, typed=SecretStr("geheimnis"))
    try:
        raise ValueError(f"refused {PASSWORD!r} and {KEY}")
    except ValueError:
        log.exception("failed")
    logging.getLogger("somebody").warning("token %s", KEY)
    text = stream.getvalue()
    assert len(lines(stream)) == 3
    for secret in (PASSWORD, json.dumps(PASSWORD)[1:-1], repr(PASSWORD)[1:-1], KEY, "geheimnis"):
        assert secret not in text
    assert "ValueError: refused" in text


def test_passwords_in_urls_are_masked_though_nobody_named_them() -> None:
    assert Scrubber()("see postgresql://trimtab:hunter2@db/ledger") == "see postgresql://trimtab:***@db/ledger"


def test_short_texts_are_no_secrets() -> None:
    assert Scrubber(["web", ""])("fleet web") == "fleet web"


def test_secrets_are_those_of_settings_credentials_and_the_aws_environment(tmp_path: Path) -> None:
    (tmp_path / "trimtab_ledger__url").write_text("postgresql+psycopg://trimtab:geheim@db/ledger\n")
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path), "AWS_SECRET_ACCESS_KEY": KEY, "HOME": "/root"}
    assert secrets_of(load_settings(environ), environ) == {"geheim", KEY}


def test_a_ledger_without_a_password_is_no_secret() -> None:
    assert secrets_of(Settings(ledger={"url": "sqlite:////var/lib/trimtab/ledger.db"}), {}) == frozenset()


def test_a_log_that_cannot_be_written_stops_nobody() -> None:
    stream = logged()
    stream.close()
    structlog.get_logger("agent.test").info("into the void")
