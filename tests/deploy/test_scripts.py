"""install.sh, upgrade.sh and uninstall.sh, really run into a folder of their own."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

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
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environ)

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


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_whole_life_of_an_installation(tmp_path: Path) -> None:
    place = Place(tmp_path, a_checkout(tmp_path / "checkout"))

    done = place.script("install.sh", "--role", "both")
    assert done.returncode == 0, done.stderr
    assert "note: no systemd runs here" in done.stdout
    first = place.venv
    assert (tmp_path / "etc" / "credentials").stat().st_mode & 0o777 == 0o700
    unit = (tmp_path / "units" / "trimtab-agent.service").read_text()
    assert f"ExecStart={tmp_path}/opt/venv/bin/trimtab run\n" in unit
    assert f"EnvironmentFile={tmp_path}/etc/agent.env\n" in unit

    # The operators' command has the service's settings and credentials, and what it is given goes before.
    (tmp_path / "etc" / "credentials" / "http__token").write_text("a-token-of-enough-letters\n")
    (tmp_path / "etc" / "agent.env").write_text(
        f'# $(touch {tmp_path}/ran)\nTRIMTAB_STATE_DIRECTORY="{tmp_path}/state"\nTRIMTAB_HTTP__PORT=8080\n'
        f"TRIMTAB_HTTP__SOCKET=/$(touch {tmp_path}/ran)\n"
    )
    checked = place.trimtab("config", "check", TRIMTAB_HTTP__PORT="8081")
    assert checked.returncode == 0, checked.stderr
    lines = {line.split()[0]: line.split()[1] for line in checked.stdout.splitlines() if line.startswith("TRIMTAB")}
    assert lines["TRIMTAB_STATE_DIRECTORY"] == f"{tmp_path}/state"
    assert (lines["TRIMTAB_HTTP__PORT"], lines["TRIMTAB_HTTP__TOKEN"]) == ("8081", "***")
    assert not (tmp_path / "ran").exists()

    again = place.script("install.sh")
    assert again.returncode == 0
    assert place.venv == first
    assert "8080" in (tmp_path / "etc" / "agent.env").read_text()

    (tmp_path / "state").mkdir()
    with sqlite3.connect(tmp_path / "state" / "ledger.db") as ledger:
        ledger.execute("create table told (what)")
        ledger.execute("insert into told values ('everything')")
    ledger.close()
    upgraded = place.script("upgrade.sh")
    assert upgraded.returncode == 0, upgraded.stderr
    second = place.venv
    assert second != first
    assert Path(first).exists()
    (copied,) = (tmp_path / "state").glob("ledger.db.before-*")
    with sqlite3.connect(copied) as copy:
        assert copy.execute("select what from told").fetchall() == [("everything",)]
    copy.close()

    # Settings that the new version does not take stop an upgrade before anything has changed.
    with (tmp_path / "etc" / "agent.env").open("a") as settings:
        settings.write("TRIMTAB_MOOD=good\n")
    refused = place.script("upgrade.sh")
    assert refused.returncode == 1
    assert "TRIMTAB_MOOD" in refused.stderr
    assert place.venv == second
    assert len(list((tmp_path / "opt" / "environments").iterdir())) == 2

    back = place.script("upgrade.sh", "--rollback")
    assert back.returncode == 0, back.stderr
    assert place.venv == first
    assert str(copied) in back.stdout

    (tmp_path / "opt" / "notes.txt").write_text("not ours")
    gone = place.script("uninstall.sh")
    assert gone.returncode == 0, gone.stderr
    assert sorted(path.name for path in (tmp_path / "opt").iterdir()) == ["notes.txt"]
    assert list((tmp_path / "units").iterdir()) == []
    assert (tmp_path / "etc" / "agent.env").exists()
    assert (tmp_path / "state" / "ledger.db").exists()
    assert place.script("uninstall.sh", "--purge").returncode == 0
    assert not (tmp_path / "etc").exists()
    assert not (tmp_path / "state").exists()


@pytest.fixture
def empty(tmp_path: Path) -> Place:
    return Place(tmp_path, ROOT)


@pytest.mark.parametrize(
    ("script", "options", "told"),
    [
        ("install.sh", ["--rolle", "agent"], "--rolle: no such option"),
        ("install.sh", ["--role", "boss"], "--role boss: give agent, collect or both"),
        ("install.sh", ["--source", "/no/such/wheel"], "/no/such/wheel: no such checkout or wheel"),
        ("install.sh", ["--prefix", "relative"], "relative: give an absolute path"),
        ("install.sh", ["--prefix"], "--prefix needs a value"),
        ("upgrade.sh", [], "run install.sh"),
        ("uninstall.sh", ["--all"], "--all: no such option"),
    ],
)
def test_a_mistake_is_told_and_nothing_is_made(empty: Place, script: str, options: list[str], told: str) -> None:
    done = empty.script(script, *options)
    assert done.returncode == 1
    assert told in done.stderr
    assert list(empty.root.iterdir()) == []


@pytest.mark.parametrize("script", ["install.sh", "upgrade.sh", "uninstall.sh"])
def test_help_says_what_the_options_are(empty: Place, script: str) -> None:
    done = empty.script(script, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"usage: {script} ")
