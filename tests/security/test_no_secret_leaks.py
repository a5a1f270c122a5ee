"""Secrets are planted wherever one can be given, and looked for in everything that the program writes or answers."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
import tarfile
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.ledger import Ledger
from agent.settings import load_settings
from agent.settings.names import page, plain, values
from domain.errors import ConfigurationError, LedgerError
from tests.agent.service.site import FLEET, ROOT, Daemon, Site, free_port, running_site
from tests.waiting import until

PASSWORD = "cnryLedgerPassword0001"
HOOK_KEY = "cnryWebhookPath0002"
READER = "cnryReadingToken0003"
OPERATOR = "cnryOperatingToken0004"
GRAPHITE = "cnryGraphiteToken0005"
AWS_SECRET = "cnryAwsSecretKey0006"
AWS_TOKEN = "cnryAwsSessionToken0007"
CREDENTIAL = "cnryCredentialFile0008"
WRONG = "cnryWrongToken0009"
ASKER = "cnryAskingToken0010"
PROMETHEUS = "cnryPrometheusToken0011"
SECRETS = (PASSWORD, HOOK_KEY, READER, ASKER, OPERATOR, GRAPHITE, PROMETHEUS, AWS_SECRET, AWS_TOKEN, CREDENTIAL, WRONG)

LEDGER = f"postgresql+psycopg://trimtab:{PASSWORD}@127.0.0.1:1/ledger"
GIVEN = {
    "TRIMTAB_LEDGER__URL": LEDGER,
    "TRIMTAB_ALARMS__WEBHOOK_URL": f"https://hooks.example.com/services/T00/{HOOK_KEY}",
    "TRIMTAB_HTTP__TOKEN": READER,
    "TRIMTAB_HTTP__ASK_TOKEN": ASKER,
    "TRIMTAB_HTTP__OPERATOR_TOKEN": OPERATOR,
    "TRIMTAB_RENDER__AUTHORIZATION": f"Bearer {GRAPHITE}",
    "TRIMTAB_PROMETHEUS__AUTHORIZATION": f"Bearer {PROMETHEUS}",
}
"""Every secret setting with a good value."""
UNUSABLE = {
    "TRIMTAB_LEDGER__URL": [
        f"postgres://trimtab:{PASSWORD}@db/ledger",
        f"mysql://db/ledger?user=trimtab&password={PASSWORD}",
        f"postgresql://trimtab:{PASSWORD}",
        PASSWORD,
        f"trimtab:{PASSWORD}@db/ledger",
    ],
    "TRIMTAB_ALARMS__WEBHOOK_URL": [f"hooks.example.com/{HOOK_KEY}", f"ftp://hooks.example.com/{HOOK_KEY}", HOOK_KEY],
    "TRIMTAB_HTTP__TOKEN": [f"{READER} with spaces", f"{READER}ü"],
    "TRIMTAB_HTTP__ASK_TOKEN": [f"{ASKER} with spaces", f"https://{ASKER} x"],
    "TRIMTAB_HTTP__OPERATOR_TOKEN": [f"{OPERATOR} with spaces", f"https://{OPERATOR} x"],
    "TRIMTAB_RENDER__AUTHORIZATION": [GRAPHITE, f"Bearer {GRAPHITE}\nX: y", f"https://{GRAPHITE}"],
    "TRIMTAB_PROMETHEUS__AUTHORIZATION": [PROMETHEUS, f"Bearer {PROMETHEUS}\nX: y", f"https://{PROMETHEUS}"],
}


def leaks(text: str | bytes) -> list[str]:
    """The planted secrets that a text holds, as they are, quoted for a URL or in base64."""
    content = text if isinstance(text, bytes) else text.encode()
    forms = {secret: (secret, quote(secret, safe=""), base64.b64encode(secret.encode()).decode()) for secret in SECRETS}
    return [secret for secret, spelled in forms.items() if any(form.encode() in content for form in spelled)]


def complaint(environ: Mapping[str, str]) -> str:
    """What is said about these settings: all mistakes, or nothing."""
    try:
        load_settings(environ)
    except ConfigurationError as error:
        return f"{error} {error.mistakes!r}"
    return ""


def run(*words: str, **environ: str) -> str:
    """Everything that the program says to a command."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "TRIMTAB_"))}
    done = subprocess.run(
        [sys.executable, "-c", "from agent.commands.main import app; app()", *words],
        check=False,
        cwd=ROOT,
        env={**clean, "AWS_EC2_METADATA_DISABLED": "true", **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout + done.stderr


class TestSettings:
    def test_the_search_itself_finds_what_is_there(self) -> None:
        assert leaks(f"x{READER}y") == [READER]
        assert leaks(base64.b64encode(PASSWORD.encode())) == [PASSWORD]

    def test_every_secret_setting_is_planted_here(self) -> None:
        kept = load_settings(GIVEN)
        secret = {path for path, value in values(kept) if "Secret" in type(value).__name__}
        assert len(secret) == len(GIVEN)

    def test_good_values_are_masked_wherever_settings_are_shown(self) -> None:
        settings = load_settings(GIVEN)
        shown = [repr(settings), settings.model_dump_json(), *(plain(value) for _, value in values(settings))]
        assert leaks("\n".join(shown)) == []

    @pytest.mark.parametrize("name", sorted(UNUSABLE))
    def test_a_wrong_value_is_complained_about_without_being_shown(self, name: str) -> None:
        for value in UNUSABLE[name]:
            said = complaint({name: value})
            assert name in said
            assert leaks(said) == [], value

    @pytest.mark.parametrize("name", sorted(GIVEN))
    @given(data=st.data())
    def test_under_a_misspelled_name_a_secret_is_not_shown(self, name: str, data: st.DataObject) -> None:
        at = data.draw(st.integers(len("TRIMTAB_"), len(name) - 1))
        instead = data.draw(st.sampled_from(["", "X", "_", "__"]))
        assert leaks(complaint({name[:at] + instead + name[at + 1 :]: GIVEN[name]})) == []

    @pytest.mark.parametrize("name", sorted(GIVEN))
    def test_in_a_section_given_as_json_a_secret_is_not_shown_however_it_is_misspelled(self, name: str) -> None:
        section, _, key = name.partition("__")
        for written in (
            json.dumps({key.lower(): GIVEN[name]})[:-1],
            json.dumps({key.lower() + "x": GIVEN[name]}),
            json.dumps({key.lower(): [GIVEN[name]]}),
            json.dumps([GIVEN[name]]),
            GIVEN[name],
        ):
            said = complaint({section: written})
            assert said
            assert leaks(said) == [], written

    @pytest.mark.parametrize("name", sorted(UNUSABLE))
    def test_a_wrong_or_misspelled_credential_is_not_shown(self, name: str, tmp_path: Path) -> None:
        for file in (name.lower(), f"{name.lower()}x"):
            (tmp_path / file).write_text(UNUSABLE[name][0] + f" {CREDENTIAL}")
        said = complaint({"CREDENTIALS_DIRECTORY": str(tmp_path)})
        assert said.count(name.lower()) >= 2
        assert leaks(said) == []

    def test_the_page_about_settings_is_the_same_with_secrets_set(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = page()
        for name, value in GIVEN.items():
            monkeypatch.setenv(name, value)
        assert page() == before


class TestALedgerThatCannotBeReached:
    @pytest.mark.parametrize(
        "url", [LEDGER, f"{LEDGER}?password={PASSWORD}&connect_timeout=1", *UNUSABLE["TRIMTAB_LEDGER__URL"]]
    )
    def test_its_password_is_in_no_part_of_the_error(self, url: str) -> None:
        with pytest.raises(LedgerError) as caught:
            Ledger.open(url)
        assert leaks("".join(traceback.format_exception(caught.value))) == []


class TestCommands:
    @pytest.mark.exhaustive
    @pytest.mark.parametrize(
        "words",
        [
            ("config", "check", "--all"),
            ("config", "check", "--json"),
            ("config", "docs", "-o", "-"),
            ("status",),
            ("run",),
        ],
        ids=" ".join,
    )
    def test_none_shows_a_secret_whether_it_works_or_not(self, words: tuple[str, ...], tmp_path: Path) -> None:
        good = {**GIVEN, "AWS_SECRET_ACCESS_KEY": AWS_SECRET, "TRIMTAB_STATE_DIRECTORY": str(tmp_path)}
        misspelled = {f"{name}X": value for name, value in GIVEN.items()} | {
            name: UNUSABLE[name][0] for name in UNUSABLE
        }
        # A good ledger that is not there is waited for: `run` is given wrong settings alone.
        for environ in ([] if words == ("run",) else [good]) + [{**good, **misspelled}]:
            said = run(*words, **environ)
            assert said
            assert leaks(said) == []


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with running_site(30.0) as made:
        made.make_group()
        made.waiting = 20.0
        made.start()
        yield made


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def daemon(site: Site, port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    place = tmp_path_factory.mktemp("agent")
    (place / "credentials").mkdir()
    (place / "credentials" / "trimtab_http__operator_token").write_text(OPERATOR)
    (place / "credentials" / "another-programs").write_text(CREDENTIAL)
    # Held, so that nothing else comes to listen there, not even the agent's own listener, which shows refused lines.
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    nowhere = held.getsockname()[1]
    made = Daemon(
        site,
        place / "state",
        **FLEET,
        TRIMTAB_LOG_LEVEL="debug",
        CREDENTIALS_DIRECTORY=str(place / "credentials"),
        TRIMTAB_HTTP__PORT=str(port),
        TRIMTAB_HTTP__TOKEN=READER,
        TRIMTAB_HTTP__ASK_TOKEN=ASKER,
        TRIMTAB_RENDER__URL=f"http://127.0.0.1:{nowhere}",
        TRIMTAB_RENDER__AUTHORIZATION=f"Bearer {GRAPHITE}",
        TRIMTAB_ALARMS__WEBHOOK_URL=f"http://127.0.0.1:{nowhere}/services/{HOOK_KEY}",
        AWS_SECRET_ACCESS_KEY=AWS_SECRET,
        AWS_SESSION_TOKEN=AWS_TOKEN,
    )
    made.start()
    made.await_ready()
    # Some turns long: the graphite-web does not answer, and alarms find nobody.
    until(lambda: made.log.read_bytes().count(b'"event": "decision"') >= 5, 60.0)
    yield made
    made.close()
    held.close()


@pytest.mark.exhaustive
class TestARunningAgent:
    """One process, with every secret in its environment or its credentials."""

    def test_no_answer_over_http_holds_one(self, daemon: Daemon, port: int) -> None:
        address = f"http://127.0.0.1:{port}"
        statuses = set()
        with httpx.Client(base_url=address, timeout=60.0) as client:
            for token in (READER, ASKER, OPERATOR, WRONG, ""):
                headers = {"Authorization": f"Bearer {token}"} if token else {}
                asked = [client.get(path, headers=headers) for path in ROUTES]
                switch = "/api/v1/pause"
                asked.append(client.post(switch, headers=headers, json={"owner": token, "reason": 7}))
                asked.append(client.post(switch, headers=headers, content=b"x" * 40_000))
                asked.append(client.put("/", headers=headers))
                for answer in asked:
                    statuses.add(answer.status_code)
                    assert leaks(str(answer.headers)) == [], answer.url
                    assert leaks(answer.content) == [], answer.url
        assert {200, 401, 404, 413, 422} <= statuses

    def test_no_command_that_looks_at_it_shows_one(self, daemon: Daemon) -> None:
        environ = {name: value for name, value in daemon.environ().items() if name.startswith(("AWS_", "TRIMTAB_"))}
        environ["CREDENTIALS_DIRECTORY"] = daemon.environ()["CREDENTIALS_DIRECTORY"]
        for words in (("status",), ("decisions",), ("explain", "web-1"), ("replay",), ("replay", "--fleet", "web")):
            said = run(*words, **environ)
            assert said
            assert leaks(said) == [], words

    def test_the_support_bundle_holds_none(self, daemon: Daemon, tmp_path: Path) -> None:
        environ = {name: value for name, value in daemon.environ().items() if name.startswith(("AWS_", "TRIMTAB_"))}
        environ["CREDENTIALS_DIRECTORY"] = daemon.environ()["CREDENTIALS_DIRECTORY"]
        target = tmp_path / "bundle.tar.gz"
        said = run("support-bundle", "-o", str(target), "--log", str(daemon.log), **environ)
        assert leaks(said) == []
        with tarfile.open(target) as archive:
            names = archive.getnames()
            contents = [opened.read() for one in archive if (opened := archive.extractfile(one)) is not None]
        assert len(contents) >= 8, names
        assert [leaks(content) for content in contents] == [[]] * len(contents)

    def test_neither_log_nor_ledger_nor_any_file_of_its_state_holds_one(self, daemon: Daemon) -> None:
        with Ledger.open(daemon.ledger_url, read_only=True) as ledger:
            journal = ledger.journal(limit=5000)
        assert "settings" in {entry.kind for entry in journal}
        assert leaks("\n".join(map(repr, journal))) == []
        files = [path for path in daemon.directory.rglob("*") if path.is_file()]
        assert {"ledger.db", "log.jsonl"} <= {path.name for path in files}
        assert {path.name: leaks(path.read_bytes()) for path in files} == {path.name: [] for path in files}

    def test_its_arguments_hold_none(self, daemon: Daemon) -> None:
        assert daemon.popen is not None
        assert leaks(Path(f"/proc/{daemon.popen.pid}/cmdline").read_bytes()) == []


ROUTES = (
    *("/", "/fleets/web", "/healthz", "/readyz", "/metrics", "/openapi.json", "/nowhere", "/docs"),
    *("/api/v1/status", "/api/v1/decisions", "/api/v1/autoscaling", "/api/v1/collectors", "/api/v1/decisions/web-1"),
    *("/api/v1/decisions?limit=x", "/api/v1/autoscaling/none", "/api/v1/settings"),
)
