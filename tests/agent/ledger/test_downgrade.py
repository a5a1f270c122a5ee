"""An older schema has no place for clusters and pools: none is dropped unnoticed, and all of it comes back."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from agent.admission.deployments import Deployment
from agent.admission.service import AdmissionService
from agent.admission.store import AdmissionStore
from agent.commands.main import app
from agent.decisions.store import Record, add
from agent.ledger import Ledger
from agent.ledger.schema import REVISIONS
from agent.oversubscription.store import OversubscriptionStore
from domain.clock import VirtualClock
from domain.controls import Controls, Pause, PauseScope, Pin
from domain.decisions import Reason
from domain.rules.admission.cluster import PolicyKind
from tests.agent.admission.clusters import START, ask, event
from tests.agent.admission.clusters import rules as cluster_rules
from tests.agent.oversubscription.pools import House, rules, vm

CLUSTER = cluster_rules(capacity_cores=100, policy=PolicyKind.ZEROTH, kappa=None, threshold_cores=101.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger with 90 of 100 cores taken in a cluster, and a pool that decided an hour and a request."""
    house = House(tmp_path, rules(), [vm("v1")])
    house.hour()
    house.ask(vm="v2", request_id="r1")
    service = cluster(house.ledger)
    service.admit(ask("running", 60))
    service.observe(event("running", "started", 60))
    service.admit(ask("reserved", 30))
    house.ledger.close()
    return tmp_path / "ledger.db"


def cluster(ledger: Ledger) -> AdmissionService:
    return AdmissionService(CLUSTER, AdmissionStore(ledger), VirtualClock(START))


def trimtab(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["ledger", *map(str, arguments)])


def held(path: Path) -> tuple[tuple[Deployment, ...], object, object, int]:
    """Everything that the ledger knows of the cluster and the pool."""
    with Ledger.open(f"sqlite:///{path}") as ledger:
        pool = OversubscriptionStore(ledger)
        return cluster(ledger).deployments(), cluster(ledger).newest(), pool.newest("main"), pool.newest_number("main")


def schema(path: Path) -> str:
    connection = sqlite3.connect(path)
    (revision,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    connection.close()
    return str(revision)


def test_a_downgrade_that_would_lose_a_cluster_or_a_pool_is_refused_with_what_it_would_lose(path: Path) -> None:
    before = held(path)
    done = trimtab("downgrade", "--to", "0002", "--ledger", path)
    assert done.exit_code == 2
    assert "1 clusters, 2 deployments, 1 events, 2 decisions" in done.output
    assert "add --lose admission --lose oversubscription" in done.output
    assert (schema(path), list(path.parent.glob("*.jsonl"))) == (REVISIONS[-1], [])
    assert held(path) == before


def test_naming_one_of_two_that_would_be_lost_is_not_enough(path: Path) -> None:
    done = trimtab("downgrade", "--to", "0002", "--lose", "admission", "--ledger", path)
    assert done.exit_code == 2
    assert "add --lose oversubscription to export" in done.output
    assert schema(path) == REVISIONS[-1]


def test_a_schema_that_has_a_place_for_clusters_asks_for_the_pool_alone(path: Path) -> None:
    done = trimtab("downgrade", "--to", "0003", "--lose", "oversubscription", "--ledger", path)
    assert (done.exit_code, schema(path)) == (0, "0003")
    with Ledger.open(f"sqlite:///{path}") as ledger:
        assert cluster(ledger).admit(ask("more", 90)).reason is Reason.REJECTED_FEASIBILITY


def test_what_was_exported_comes_back_whole(path: Path, tmp_path: Path) -> None:
    before, export = held(path), tmp_path / "lost.jsonl"
    lose = ("--lose", "admission", "--lose", "oversubscription", "--export", export)
    assert trimtab("downgrade", "--to", "0001", *lose, "--ledger", path).exit_code == 0
    assert (schema(path), export.stat().st_mode & 0o777) == ("0001", 0o600)
    with Ledger.open(f"sqlite:///{path}") as ledger:
        assert cluster(ledger).deployments() == ()
    done = trimtab("import", export, "--ledger", path)
    assert (done.exit_code, done.output) == (0, f"{path}: 9 rows put back from {export}\n")
    assert held(path) == before


def test_without_a_name_the_export_lies_beside_the_ledger(path: Path) -> None:
    lose = ("--lose", "admission", "--lose", "oversubscription")
    done = trimtab("downgrade", "--to", "0002", *lose, "--ledger", path)
    (export,) = path.parent.glob(f"ledger-schema-{REVISIONS[-1]}-to-0002-*.jsonl")
    assert str(export) in done.output


def test_nothing_is_dropped_when_the_export_cannot_be_written(path: Path) -> None:
    before = held(path)
    lose = ("--lose", "admission", "--lose", "oversubscription", "--export", path.parent / "nowhere" / "lost.jsonl")
    done = trimtab("downgrade", "--to", "0002", *lose, "--ledger", path)
    assert done.exit_code == 1
    assert "nothing was dropped: name another file by --export" in done.output
    assert held(path) == before


def test_an_export_overwrites_no_file(path: Path, tmp_path: Path) -> None:
    export = tmp_path / "lost.jsonl"
    export.write_text("mine\n")
    lose = ("--lose", "admission", "--lose", "oversubscription", "--export", export)
    assert trimtab("downgrade", "--to", "0002", *lose, "--ledger", path).exit_code == 1
    assert (export.read_text(), schema(path)) == ("mine\n", REVISIONS[-1])


def test_an_import_is_not_mixed_with_what_is_there(path: Path, tmp_path: Path) -> None:
    export = tmp_path / "lost.jsonl"
    lose = ("--lose", "admission", "--lose", "oversubscription", "--export", export)
    trimtab("downgrade", "--to", "0002", *lose, "--ledger", path)
    with Ledger.open(f"sqlite:///{path}") as ledger:
        cluster(ledger).admit(ask("new", 5))
    done = trimtab("import", export, "--ledger", path)
    assert done.exit_code == 2
    assert "the ledger holds admission already" in done.output


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no json\n",
        '{"other": 1}\n',
        '{"trimtab ledger export": 1}\n{"table": "journal", "row": {}}\n',
        '{"trimtab ledger export": 1}\n{"table": "admission_clusters", "row": {"cluster": "x"}}\n',
    ],
)
def test_a_file_that_is_no_export_is_refused_and_nothing_is_written(path: Path, tmp_path: Path, text: str) -> None:
    file = tmp_path / "given.jsonl"
    file.write_text(text)
    before = held(path)
    done = trimtab("import", file, "--ledger", path)
    assert (done.exit_code, "export is " in done.output) == (2, True)
    assert held(path) == before


def test_an_unknown_state_to_lose_is_refused_with_those_there_are(path: Path) -> None:
    done = trimtab("downgrade", "--to", "0002", "--lose", "everything", "--ledger", path)
    assert done.exit_code == 2
    assert "give one of admission, oversubscription" in done.output


def test_an_export_is_readable(path: Path, tmp_path: Path) -> None:
    export = tmp_path / "lost.jsonl"
    lose = ("--lose", "admission", "--lose", "oversubscription", "--export", export)
    trimtab("downgrade", "--to", "0002", *lose, "--ledger", path)
    rows = [json.loads(line) for line in export.read_text().splitlines()[1:]]
    inside = {row["row"]["deployment_id"]: row["row"]["body"]["cores"] for row in rows if "deployments" in row["table"]}
    assert inside == {"running": 60, "reserved": 30}


def test_what_a_name_alone_held_stays_held_for_every_decision(tmp_path: Path) -> None:
    """As the version before wrote it, and as it reads it again after a rollback."""
    url, pin = f"sqlite:///{tmp_path}/ledger.db", Pin({"workers": 3}, "ana", "launch", START, START + 7200.0)
    short, long = (Pause(PauseScope.ALL, "ana", reason, START, until) for reason, until in (("x", START), ("y", None)))
    out = Pause(PauseScope.OUT, "ben", "budget", START)
    with Ledger.open(url) as ledger:
        ledger.pause("autoscaling", "web", short)
        ledger.pause("deferral", "web", long)
        ledger.pause("shift", "web", out)
        ledger.pin("autoscaling", "web", pin)
        with ledger.database.write() as connection:
            add(connection, [Record("web-s1", "shift", "web", START, b"{}")])
        ledger.downgrade("0009")
    connection = sqlite3.connect(tmp_path / "ledger.db")
    keys = connection.execute("SELECT key FROM state WHERE fleet = 'web' ORDER BY key").fetchall()
    connection.close()
    assert keys == [("pause.all",), ("pause.out",), ("pin",)]
    with Ledger.open(url) as ledger:
        assert ledger.controls("autoscaling", "web") == Controls((long, out), pin)
        for decision in ("admission", "deferral", "oversubscription", "placement", "shift"):
            assert ledger.controls(decision, "web") == Controls((long, out))
        assert ledger.resume("deferral", "web", PauseScope.ALL, at=START, owner="ana")
        assert ledger.controls("deferral", "web") == Controls()
        assert ledger.controls("autoscaling", "web") == Controls((long, out), pin)
        ledger.downgrade("0009")
    with Ledger.open(url) as ledger:
        # The version before knows the name alone, so that what one decision keeps holds all of them again.
        assert ledger.controls("deferral", "web") == Controls((long, out))
