"""The support bundle tells what a helper needs and holds no secret, whatever state agent and settings are in."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from agent.service.support_bundle import write_bundle
from tests.architecture.product import ROOT
from tests.faults.world import World

SECRETS = {
    "TRIMTAB_HTTP__TOKEN": "planted-reading-token",
    "TRIMTAB_HTTP__ASK_TOKEN": "planted-ask-token",
    "TRIMTAB_HTTP__OPERATOR_TOKEN": "planted-operator-token",
    "TRIMTAB_RENDER__AUTHORIZATION": "Bearer planted-graphite-token",
    "TRIMTAB_ALARMS__WEBHOOK_URL": "https://hooks.example.org/planted/webhook/key",
    "AWS_SECRET_ACCESS_KEY": "planted-aws-secret-key",
    "AWS_SESSION_TOKEN": "planted-aws-session-token",
}
NEEDLES = [*(value.rpartition(" ")[2] for value in SECRETS.values()), "planted-database-password", "planted-credential"]


def content(bundle: Path) -> dict[str, str]:
    with tarfile.open(bundle) as archive:
        return {
            member.name.partition("/")[2]: archive.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in archive.getmembers()
        }


@pytest.fixture
def environ(world: World, tmp_path: Path) -> dict[str, str]:
    """A site with every secret there can be, and an agent that has decided three times."""
    world.submit(30)
    world.tick(3)
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    (credentials / "trimtab_http__private_key").write_text("/planted-credential/key.pem\n")
    (credentials / "trimtab_http__certificate").write_text("/etc/certificate.pem\n")
    return {**SECRETS, "CREDENTIALS_DIRECTORY": str(credentials), "TRIMTAB_STATE_DIRECTORY": str(world.directory)}


def test_it_holds_versions_settings_decisions_and_the_journal(environ: dict[str, str], tmp_path: Path) -> None:
    write_bundle(tmp_path / "trouble.tar.gz", environ, decisions=2)
    found = content(tmp_path / "trouble.tar.gz")
    assert json.loads(found["versions.json"])["packages"]["numpy"]
    assert json.loads(found["settings.json"])["TRIMTAB_HTTP__TOKEN"] == "***"
    assert len(found["decisions.jsonl"].splitlines()) == 2
    assert {json.loads(row)["kind"] for row in found["journal.jsonl"].splitlines()} >= {"decision", "intent"}
    assert {row["decision"] for row in map(json.loads, found["decisions.jsonl"].splitlines())} == {"autoscaling"}
    subjects = json.loads(found["subjects.json"])
    assert set(subjects) >= {"autoscaling", "admission", "oversubscription"}
    assert subjects["autoscaling"]["web"]["fleet"] == "web"


def test_what_cannot_be_read_is_named_with_the_reason(environ: dict[str, str], tmp_path: Path) -> None:
    texts = write_bundle(tmp_path / "trouble.tar.gz", environ, log=tmp_path / "no.log")
    found = content(tmp_path / "trouble.tar.gz")
    assert "trimtab.sock" in found["metrics.txt.absent"]
    assert "No such file" in found["log.txt.absent"]
    assert "decisions.jsonl" in texts


def test_no_secret_is_in_it(environ: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "agent.log"
    log.write_text("\n".join(["first", *NEEDLES, "postgresql://trimtab:planted-database-password@db/x", "last"]))
    write_bundle(tmp_path / "trouble.tar.gz", environ, log=log)
    found = content(tmp_path / "trouble.tar.gz")
    assert "first" in found["log.txt"]
    assert "last" in found["log.txt"]
    shown = {(name, needle) for name, text in found.items() for needle in SECRETS.values() if needle in text}
    assert shown == set()
    assert "planted-database-password@" not in found["log.txt"]


def test_no_secret_is_in_it_when_the_settings_are_wrong(environ: dict[str, str], tmp_path: Path) -> None:
    environ |= {
        "TRIMTAB_MOOD": "good",
        "TRIMTAB_LEDGER__URL": "postgresql+psycopg://trimtab:planted-database-password@127.0.0.1:1/x",
        "TRIMTAB_HTTP__TOKEN": "planted short",
    }
    write_bundle(tmp_path / "trouble.tar.gz", environ)
    found = content(tmp_path / "trouble.tar.gz")
    assert "TRIMTAB_MOOD" in found["settings.json"]
    assert "decisions.jsonl.absent" in found
    given = [*SECRETS.values(), "planted-database-password", "planted short"]
    assert {(name, needle) for name, text in found.items() for needle in given if needle in text} == set()


def test_it_is_for_its_owner_alone_and_never_overwrites(environ: dict[str, str], tmp_path: Path) -> None:
    bundle = tmp_path / "trouble.tar.gz"
    write_bundle(bundle, environ)
    assert bundle.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        write_bundle(bundle, environ)


@pytest.mark.exhaustive
def test_the_command_writes_one_and_lists_its_content(environ: dict[str, str], tmp_path: Path) -> None:
    bundle = tmp_path / "trouble.tar.gz"
    code = "from agent.commands.main import app; app()"
    command = [sys.executable, "-c", code, "support-bundle", "--output", str(bundle)]
    done = subprocess.run(
        command, env={"PATH": "/usr/bin:/bin", **environ}, capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"wrote {bundle}\n")
    assert "planted" not in done.stdout
