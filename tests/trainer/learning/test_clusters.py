"""The table of a cluster: what a ledger recorded comes back to what it was drawn from, and says what is missing."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest

from agent.admission.cluster import AdmissionService
from agent.admission.records import DeploymentEvent, EventKind
from agent.admission.state import AdmissionStore
from agent.kernel.parts import kept
from agent.ledger import Ledger
from domain.clock import VirtualClock
from domain.errors import BadInput
from domain.units import DAY_S
from simulator.admission import Cluster
from tests.trainer.learning.recorded_clusters import HOUR_S, SMALL, START_S, record, rules
from tests.trainer.learning.steps import trimtab
from trainer.admission.fitting.fits import fit_marginal
from trainer.admission.fitting.histories import histories_of, read_vm_table
from trainer.admission.fitting.report import START as FIRST_GUESS
from trainer.learning.clusters import Counts, export_table, read_cluster, table_of

HOURS = 400.0
ROOMY = Cluster("main", SMALL, 100_000, 2.0, 1e-3)


def told(path: Path, *events: tuple[float, str, str, int], after: dict[int, int] | None = None) -> Path:
    """Report events (hour, deployment, kind, cores) to a service on a ledger; after: cores left, by place, as said."""
    with Ledger.open(f"sqlite:///{path}") as ledger:
        service = AdmissionService(rules(1000), AdmissionStore(ledger), VirtualClock(START_S + 1000 * HOUR_S))
        for n, (hour, name, kind, cores) in enumerate(events):
            left = (after or {}).get(n)
            service.observe(
                [DeploymentEvent(f"e{n}", name, EventKind(kind), cores, left, time=START_S + hour * HOUR_S)]
            )
    return path


def rows(path: Path, since: float | None = None, until: float | None = None) -> tuple[list[tuple[int, int]], Counts]:
    """(created, deleted) of every core in hours, as the table has them."""
    counts = Counts()
    found = read_cluster(str(path), "main", since, until)
    lines = [line.split(",") for line in table_of(found, counts)]
    return [(int(line[3]), int(line[4])) for line in lines], counts


def hour(hours: float) -> int:
    return int(hours * HOUR_S) + 1


@pytest.mark.exhaustive
def test_the_population_that_was_recorded_is_the_one_that_is_fitted(tmp_path: Path) -> None:
    record(tmp_path / "ledger.db", ROOMY, HOURS)
    done = trimtab(
        *("trace", "from-ledger", tmp_path / "ledger.db", "--cluster", "main", "--out", tmp_path / "main.csv.gz"),
        "--json",
    )
    assert done.exit_code == 0, done.output
    histories = histories_of(read_vm_table(tmp_path / "main.csv.gz"))
    found = fit_marginal(histories, FIRST_GUESS)
    assert len(histories) > 600
    # Each parameter within four of its own standard errors, which eight hundred deployments make 5 to 25 %.
    for name, wanted in asdict(SMALL).items():
        fitted, error = getattr(found.population, name), found.relative_errors[name]
        off = abs(fitted - wanted) if name == "power" else abs(math.log(fitted / wanted))
        assert off < 4.0 * error < 1.2, (name, fitted, wanted, error)


def test_every_core_is_a_row_from_its_request_to_its_end(tmp_path: Path) -> None:
    path = told(
        tmp_path / "ledger.db",
        (0, "a", "started", 2),
        (1, "a", "scaled", 3),
        (2, "a", "core_ended", 1),
        (2, "b", "started", 1),
        (3, "a", "refused", 4),
        (4, "a", "shutdown", 0),
        (9, "c", "started", 1),
        (10, "c", "refused", 1),
    )
    found, counts = rows(path)
    end = hour(10) + 1
    assert sorted(found) == sorted(
        [(1, hour(2)), (1, hour(4)), *[(hour(1), hour(4))] * 3, (hour(2), end), (hour(9), end)]
    )
    assert (counts.deployments, counts.machines, counts.refused, counts.events) == (3, 7, 2, 8)


def test_a_span_leaves_out_who_was_there_and_ends_who_lives_on(tmp_path: Path) -> None:
    path = told(
        tmp_path / "ledger.db",
        (0, "a", "started", 2),
        (1, "a", "scaled", 1),
        (5, "b", "started", 1),
        (6, "a", "core_ended", 1),
        (8, "a", "shutdown", 0),
    )
    found, counts = rows(path, START_S + 4 * HOUR_S, START_S + 7 * HOUR_S)
    # `fit admission` leaves out deployments with a core from second 0 on, and takes the last second for the end.
    assert sorted(found) == [(0, hour(2)), (0, hour(3)), (0, hour(3)), (hour(1), hour(3))]
    assert counts.deployments == 1


def test_cores_that_end_together_one_by_one_are_no_shutdown_and_requests_of_a_second_stay_apart(tmp_path: Path) -> None:
    path = told(
        tmp_path / "ledger.db",
        (0, "a", "started", 4),
        (0, "a", "scaled", 2),
        (0, "a", "scaled", 1),
        (5, "a", "core_ended", 7),
        (6, "b", "started", 1),
        (7, "b", "shutdown", 0),
    )
    found, _ = rows(path)
    ends = sorted(deleted for _, deleted in found if deleted <= hour(5))
    assert ends == list(range(hour(5) - 6, hour(5) + 1))
    assert sorted(created for created, _ in found)[:7] == [1, 1, 1, 1, 2, 2, 3]


def test_what_does_not_add_up_is_mended_and_counted_and_a_new_start_is_another_deployment(tmp_path: Path) -> None:
    path = told(
        tmp_path / "ledger.db",
        (0, "a", "started", 4),
        (1, "a", "core_ended", 1),
        (2, "a", "shutdown", 0),
        (3, "a", "started", 1),
        (4, "a", "scaled", 1),
        after={1: 1, 4: 5},
    )
    found, counts = rows(path)
    assert (counts.repaired, counts.deployments) == (2, 2)
    assert sorted(found)[:4] == [(1, hour(1)), (1, hour(1)), (1, hour(1)), (1, hour(2))]


def test_events_without_their_start_and_long_silences_are_listed(tmp_path: Path) -> None:
    often = [(100 + n / 10, f"d{n}", "started", 1) for n in range(80)]
    path = told(tmp_path / "ledger.db", (0, "old", "started", 3), (90, "old", "core_ended", 1), *often)
    with Ledger.open(f"sqlite:///{path}") as ledger:
        ledger.compact(START_S + 91 * HOUR_S, 40 * HOUR_S, kept(), longer_s={"learning": 2 * HOUR_S})
    side = export_table(read_cluster(str(path), "main", START_S), tmp_path / "t.csv", "1", {})
    facts = side["recorded"]
    assert (facts["began_before"], side["deployments"]) == (1, 80)
    assert facts["gaps_s"] == [[0.0, 90 * HOUR_S], [90 * HOUR_S, 100 * HOUR_S]]
    assert json.loads((tmp_path / "t.csv.json").read_text()) == side


def test_events_are_kept_as_long_as_what_learning_needs_and_deployments_as_long_as_decisions(tmp_path: Path) -> None:
    path = told(
        tmp_path / "ledger.db",
        (0, "a", "started", 2),
        (1, "a", "shutdown", 0),
        (1, "b", "started", 1),
        (999, "c", "started", 1),
    )
    now = START_S + 1000 * HOUR_S
    with Ledger.open(f"sqlite:///{path}") as ledger:
        store = AdmissionStore(ledger)
        ledger.compact(now, DAY_S, kept(), longer_s={"learning": 1000 * HOUR_S})
        assert len(list(store.stream("main", now))) == 4
        assert {one.deployment_id for one in store.inside("main").deployments} == {"b", "c"}
        ledger.compact(now, DAY_S, kept(), longer_s={"learning": 2 * HOUR_S})
        assert [event.deployment_id for event in store.stream("main", now)] == ["c"]


def test_a_table_names_nobody_and_is_the_same_each_time(tmp_path: Path) -> None:
    path = told(tmp_path / "ledger.db", (0, "secret-name", "started", 2), (1, "other-name", "started", 1))
    for name in ("a.csv.gz", "b.csv.gz"):
        done = trimtab(
            "trace", "from-ledger", path, "--cluster", "main", "--out", tmp_path / name, "--until", "2100-01-01"
        )
        assert done.exit_code == 0, done.output
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()
    table = read_vm_table(tmp_path / "a.csv.gz")
    assert (table.deployments, len(table.cores), table.rejected) == (2, 3, {})
    lines, _ = rows(path, None, START_S + 2 * HOUR_S)
    assert len(lines) == 3
    written = gzip.decompress((tmp_path / "a.csv.gz").read_bytes()) + (tmp_path / "a.csv.gz.json").read_bytes()
    assert not any(name in written for name in (b"secret-name", b"other-name"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--cluster", "other"), "has main"),
        (("--cluster", "main", "--since", "2100-01-01"), "no events of it in this span"),
        ((), "give one of --fleet, --cluster"),
        (("--cluster", "main", "--fleet", "web"), "give one of --fleet, --cluster"),
    ],
)
def test_what_cannot_be_exported_is_said_and_no_file_is_left(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    path = told(tmp_path / "ledger.db", (0, "a", "started", 2), (1, "b", "started", 1))
    done = trimtab("trace", "from-ledger", path, "--out", tmp_path / "t.csv", *words)
    assert done.exit_code == 2
    assert said in done.output
    assert [file.name for file in tmp_path.iterdir() if "t.csv" in file.name] == []


def test_who_was_turned_away_is_counted_once(tmp_path: Path) -> None:
    full = Cluster("main", SMALL, 12, 2.0, 1e-3)
    record(tmp_path / "ledger.db", full, 30.0)
    found = read_cluster(str(tmp_path / "ledger.db"), "main")
    counts = Counts()
    assert len(list(table_of(found, counts))) == counts.machines
    assert found.turned_away > 0
    with pytest.raises(BadInput, match="ledger"):
        read_cluster(str(tmp_path / "ledger.db"), "unknown")
