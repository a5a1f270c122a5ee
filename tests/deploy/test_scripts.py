"""install.sh, upgrade.sh and uninstall.sh, really run into a folder of their own."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import tomllib
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent.ledger import Ledger
from agent.ledger.schema import REVISIONS
from tests.architecture.product import ROOT

INSTALLED = ("agent", "actuators", "collectors", "domain", "simulator", "trainer", "deploy")
FILES = ("pyproject.toml", "constraints.txt", "README.md", "LICENSE")
QUICK_PIP = {"PIP_COMPILE": "0"}
"""Has pip leave out what takes it longest: compiling thousands of modules of which few are loaded here."""


@dataclass(frozen=True, slots=True)
class Place:
    """A host's folders below one of ours, and a checkout whose scripts install there."""

    root: Path
    checkout: Path

    @property
    def options(self) -> list[str]:
        folders = {"--prefix": "opt", "--config": "etc", "--units": "units", "--state": "state"}
        return [word for option, name in folders.items() for word in (option, str(self.root / name))]

    def script(self, name: str, *more: str) -> subprocess.CompletedProcess[str]:
        environ = {key: value for key, value in os.environ.items() if not key.startswith("TRIMTAB_")} | QUICK_PIP
        command = ["bash", str(self.checkout / "deploy" / name), *self.options, *more]
        # The umask of a careful administrator: what the service's user must read is readable all the same.
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environ, umask=0o077)

    def trimtab(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.root / "opt" / "bin" / "trimtab"), *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin", **environ}
        )

    @property
    def venv(self) -> str:
        return os.readlink(self.root / "opt" / "venv")


def a_checkout(at: Path) -> Path:
    """A copy, since building a wheel leaves its traces in the folder it is built from."""
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in INSTALLED:
        shutil.copytree(ROOT / folder, at / folder, ignore=ignored)
    for file in FILES:
        shutil.copy(ROOT / file, at / file)
    return at


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_the_whole_life_of_an_installation(tmp_path: Path) -> None:
    place = Place(tmp_path, a_checkout(tmp_path / "checkout"))

    done = place.script("install.sh", "--role", "both")
    assert done.returncode == 0, done.stderr
    assert "note: no systemd runs here" in done.stdout
    first = place.venv
    assert (tmp_path / "etc" / "credentials").stat().st_mode & 0o777 == 0o700
    variables, settings = tmp_path / "etc" / "agent.env", tmp_path / "etc" / "agent.toml"
    assert variables.stat().st_mode & 0o777 == 0o640
    # The service's user reads it.
    assert settings.stat().st_mode & 0o777 == 0o644
    example = place.trimtab("config", "check")
    assert (example.returncode, f" in {settings}; " in example.stdout) == (0, True), example.stderr
    closed = [
        str(path)
        for top in (tmp_path / "opt", tmp_path / "units")
        for path in [top, *top.rglob("*")]
        if not path.is_symlink() and path.stat().st_mode & 0o055 < (0o055 if path.is_dir() else 0o044)
    ]
    assert closed == [], "the service's user cannot read these"
    unit = (tmp_path / "units" / "trimtab-agent.service").read_text()
    assert f"ExecStart={tmp_path}/opt/venv/bin/trimtab run\n" in unit
    assert f"EnvironmentFile={tmp_path}/etc/agent.env\n" in unit

    # The operators' command has the service's settings and credentials, and what it is given goes before.
    (tmp_path / "etc" / "credentials" / "http__token").write_text("a-token-of-enough-letters\n")
    settings.write_text(f'state_directory = "{tmp_path}/state"\n[http]\nport = 8080\n')
    variables.write_text(
        f'# $(touch {tmp_path}/ran)\nTRIMTAB_CONFIG="{settings}"\nTRIMTAB_HTTP__SOCKET=/$(touch {tmp_path}/ran)\n'
    )
    checked = place.trimtab("config", "check", "--all", TRIMTAB_HTTP__PORT="8081")
    assert checked.returncode == 0, checked.stderr
    lines = {line.split()[0]: line.split()[1] for line in checked.stdout.splitlines() if line.startswith("TRIMTAB")}
    assert lines["TRIMTAB_STATE_DIRECTORY"] == f"{tmp_path}/state"
    assert (lines["TRIMTAB_HTTP__PORT"], lines["TRIMTAB_HTTP__TOKEN"]) == ("8081", "***")
    assert not (tmp_path / "ran").exists()

    again = place.script("install.sh")
    assert again.returncode == 0
    assert place.venv == first
    assert "8080" in settings.read_text()

    (tmp_path / "state").mkdir()
    for number in range(4):
        old_copy = tmp_path / "state" / f"ledger.db.before-{number}"
        old_copy.write_text("an old copy")
        os.utime(old_copy, (1e9 + number, 1e9 + number))
    ledger = tmp_path / "state" / "ledger.db"
    Ledger.open(f"sqlite:///{ledger}").close()
    upgraded = place.script("upgrade.sh")
    assert upgraded.returncode == 0, upgraded.stderr
    second = place.venv
    assert second != first
    assert Path(first).exists()
    (copied,) = (tmp_path / "state").glob("ledger.db.before-2*T*")
    assert schema(copied) == REVISIONS[-1]
    assert copied.stat().st_mode & 0o777 == 0o600
    assert copies(tmp_path) == {"ledger.db.before-2", "ledger.db.before-3", copied.name}

    before = {path.name: path.read_text() for path in (tmp_path / "etc").glob("*.before-upgrade")}
    assert before == {f"{path.name}.before-upgrade": path.read_text() for path in (variables, settings)}

    # Settings that the new version does not take stop an upgrade before anything has changed.
    taken = settings.read_text()
    settings.write_text(f'{taken}mood = "good"\n')
    refused = place.script("upgrade.sh")
    assert refused.returncode == 1
    assert f"{settings}:4: http.mood" in refused.stderr
    assert place.venv == second
    assert len(list((tmp_path / "opt" / "environments").iterdir())) == 2

    # The version before works with an older schema: without a copy of before the upgrade nothing is switched.
    (known,) = Path(first).glob("lib/python3*/site-packages/agent/ledger/schema.py")
    known.write_text(f"{known.read_text()}\nREVISIONS = ('0009',)\n")
    settings.write_text(taken)
    copied.rename(tmp_path / "away.db")
    kept = place.script("upgrade.sh", "--rollback")
    assert kept.returncode == 1
    assert "nothing was switched" in kept.stderr
    assert (place.venv, schema(ledger)) == (second, REVISIONS[-1])

    shutil.copy(tmp_path / "away.db", copied)
    broken = place.script("upgrade.sh", "--rollback")
    assert (broken.returncode, place.venv, schema(ledger)) == (1, second, REVISIONS[-1])

    with closing(sqlite3.connect(copied)) as direct, direct:
        direct.execute("UPDATE alembic_version SET version_num = '0009'")
    back = place.script("upgrade.sh", "--rollback")
    assert back.returncode == 0, back.stderr
    assert (place.venv, schema(ledger)) == (first, "0009")
    (replaced,) = (tmp_path / "state").glob("ledger.db.replaced-*")
    assert schema(replaced) == REVISIONS[-1]
    assert len(copies(tmp_path)) == 3

    (tmp_path / "opt" / "notes.txt").write_text("not ours")
    gone = place.script("uninstall.sh")
    assert gone.returncode == 0, gone.stderr
    assert sorted(path.name for path in (tmp_path / "opt").iterdir()) == ["notes.txt"]
    assert list((tmp_path / "units").iterdir()) == []
    assert settings.exists()
    assert (tmp_path / "state" / "ledger.db").exists()
    assert place.script("uninstall.sh", "--purge").returncode == 0
    assert not (tmp_path / "etc").exists()
    assert not (tmp_path / "state").exists()


def schema(ledger: Path) -> str:
    with closing(sqlite3.connect(ledger)) as connection:
        return str(connection.execute("select version_num from alembic_version").fetchone()[0])


def copies(place: Path) -> set[str]:
    return {path.name for path in (place / "state").glob("ledger.db.before-*")}


def test_what_is_installed_has_hashes_and_the_versions_that_were_tested() -> None:
    text = (ROOT / "deploy" / "requirements.txt").read_text()
    blocks = [block for block in re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE) if "==" in block]
    assert [block.split()[0] for block in blocks if not re.search(r"--hash=sha256:[0-9a-f]{64}\b", block)] == []
    installed = {block.split()[0] for block in blocks}
    tested = set(re.findall(r"^[a-z0-9-]+==\S+", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE))
    assert {pin for pin in installed - tested if not pin.startswith("setuptools==")} == set()
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[^A-Za-z0-9-]", need)[0] for need in asked["dependencies"]} | {"psycopg", "setuptools"}
    assert names <= {pin.partition("==")[0] for pin in installed}


@pytest.mark.exhaustive
def test_a_file_with_another_hash_is_not_installed(tmp_path: Path) -> None:
    deploy = tmp_path / "checkout" / "deploy"
    shutil.copytree(ROOT / "deploy", deploy)
    (deploy / "requirements.txt").write_text(f"h11==0.16.0 --hash=sha256:{'0' * 64}\n")
    place = Place(tmp_path / "host", tmp_path / "checkout")
    done = place.script("install.sh")
    assert done.returncode == 1
    assert "nothing was changed" in done.stderr
    assert list((place.root / "opt" / "environments").iterdir()) == []


@pytest.fixture
def empty(tmp_path: Path) -> Place:
    return Place(tmp_path, ROOT)


@pytest.mark.parametrize(
    ("script", "options", "message"),
    [
        ("install.sh", ["--rolle", "agent"], "--rolle: no such option"),
        ("install.sh", ["--role", "boss"], "--role boss: give agent, collect, both or learn"),
        ("install.sh", ["--source", "/no/such/wheel"], "/no/such/wheel: no such checkout or wheel"),
        ("install.sh", ["--extras", "train"], "--extras train: give postgres"),
        ("install.sh", ["--prefix", "relative"], "relative: give an absolute path"),
        ("install.sh", ["--prefix"], "--prefix needs a value"),
        ("upgrade.sh", [], "run install.sh"),
        ("upgrade.sh", ["--leave-ledger"], "--leave-ledger goes with --rollback"),
        ("upgrade.sh", ["--role", "agent", "--back"], "--back: no such option"),
        ("uninstall.sh", ["--all"], "--all: no such option"),
    ],
)
def test_a_mistake_is_reported_and_nothing_is_created(
    empty: Place, script: str, options: list[str], message: str
) -> None:
    done = empty.script(script, *options)
    assert done.returncode == 1
    assert message in done.stderr
    assert list(empty.root.iterdir()) == []


@pytest.mark.parametrize("script", ["install.sh", "upgrade.sh", "uninstall.sh"])
def test_help_lists_the_options(empty: Place, script: str) -> None:
    done = empty.script(script, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"usage: {script} ")


def test_the_learner_gets_the_ledgers_url_and_the_key_of_promotions_and_no_token(empty: Place) -> None:
    (empty.root / "opt" / "environments" / "one").mkdir(parents=True)
    (empty.root / "opt" / "venv").symlink_to(empty.root / "opt" / "environments" / "one")
    agents, unit = empty.root / "etc" / "credentials", empty.root / "units" / "trimtab-learn.service"
    agents.mkdir(parents=True)

    def loaded(*names: str) -> list[str]:
        for name in names:
            (agents / name).write_text("secret")
        assert empty.script("install.sh", "--role", "learn").returncode == 0
        lines = unit.read_text().splitlines()
        return [line.removeprefix("LoadCredential=") for line in lines if line.startswith("LoadCredential=")]

    assert loaded("http__token", "http__operator_token", "alarms__webhook_url") == []
    url, key = "ledger__url", "learned__promotion_key"
    assert loaded(url) == [f"trimtab_{url}:{agents / url}"]
    assert loaded(key) == [f"trimtab_{name}:{agents / name}" for name in (url, key)]


def test_the_role_learn_adds_service_timer_and_the_users_of_a_host_that_learns(empty: Place) -> None:
    (empty.root / "opt" / "environments" / "one" / "bin").mkdir(parents=True)
    (empty.root / "opt" / "venv").symlink_to(empty.root / "opt" / "environments" / "one")
    done = empty.script("install.sh", "--role", "learn")
    assert done.returncode == 0, done.stderr
    units = empty.root / "units"
    written = {str(path.relative_to(units)) for path in units.rglob("*") if path.is_file()}
    beside = "trimtab-agent.service.d/learn.conf"
    services = {f"trimtab-{name}.{kind}" for name in ("learn", "watch") for kind in ("service", "timer")}
    assert written == {"trimtab-agent.service", *services, beside}
    learn, watch = ((units / f"trimtab-{name}.service").read_text().splitlines() for name in ("learn", "watch"))
    assert f"ExecStart={empty.root}/opt/venv/bin/trimtab learn all --watch --out /var/lib/trimtab-learn" in watch
    differ = {line.partition("=")[0] for line in {*learn} ^ {*watch}}
    assert differ == {"Description", "ExecStart"}
    assert f"ExecStart={empty.root}/opt/venv/bin/trimtab learn all" in (units / "trimtab-learn.service").read_text()
    assert [path.name for path in (empty.root / "etc").glob("*.env")] == ["agent.env"]
    for words in (
        "no user was created",
        "was made without what learning needs: run upgrade.sh --role learn",
        "systemctl enable --now trimtab-learn.timer trimtab-watch.timer",
    ):
        assert words in done.stdout
    # Whoever learns goes on to, also where another role is named.
    again = empty.script("install.sh")
    assert (again.returncode, "trimtab-learn.timer" in again.stdout) == (0, True)
    (empty.root / "state-learn").mkdir()
    gone = empty.script("uninstall.sh")
    assert gone.returncode == 0, gone.stderr
    assert list(units.iterdir()) == []
    assert f"kept: {empty.root}/state-learn" in gone.stdout
    assert empty.script("uninstall.sh", "--purge").returncode == 0
    assert not (empty.root / "state-learn").exists()


def test_an_upgrade_stops_the_learners_services_that_there_are(tmp_path: Path) -> None:
    """Run in a shell in which systemctl fails for a unit that is not there, as it does."""
    script = (ROOT / "deploy" / "upgrade.sh").read_text()
    function = script[script.index("end_round() {") : script.index("\nstop() {")]
    shell = f"""set -euo pipefail
ROLES="agent learn" UNITS={tmp_path}
has_systemd() {{ true; }}
systemctl() {{ shift; for unit in "$@"; do [ -e "$UNITS/$unit" ] || return 5; echo "$unit"; done; }}
{function}
end_round
echo went on"""
    stopped = []
    for name in ("learn", "watch"):
        stopped.append(f"trimtab-{name}.service")
        (tmp_path / stopped[-1]).touch()
        done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout.splitlines()) == (0, [*stopped, "went on"])
