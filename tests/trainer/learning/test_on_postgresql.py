"""Learning from a ledger on PostgreSQL: rounds, probation, approval and watch say what they say on SQLite."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import delete, insert, select
from typer.testing import CliRunner

from agent.commands.main import app
from agent.ledger import Ledger
from agent.ledger.schema import metadata
from agent.models.directory import Champion, Probationer, Then
from agent.rehearsal.virtual_time import START
from domain.units import HOUR_S
from simulator.admission import Cluster
from tests.agent.ledger.postgres.server import EMPTY_LEDGER, Server, shared_server
from tests.trainer.learning.recorded_clusters import SMALL, START_S, record
from tests.trainer.learning.recording import FLEET
from tests.trainer.learning.test_pools import lived as lived_pool
from tests.trainer.learning.test_promise_fidelity import CAPACITY
from tests.trainer.learning.tried import HOURS, SUBJECT, Site
from trainer.learning import cluster_trial, pool_trial
from trainer.learning.cluster import keep_tables
from trainer.learning.clusters import read_cluster
from trainer.learning.fleet_trial import divergence_of
from trainer.learning.minutes import read_record
from trainer.learning.pool import keep_weeks
from trainer.learning.pools import read_pool
from trainer.learning.trial import ProbationStatus, examine, watch, watched_promotion
from trainer.promotion.gate import Limits

pytestmark = pytest.mark.needs_postgresql
_numbers = itertools.count(1)
MODEL = f"{'a' * 64}.json"


@pytest.fixture(scope="session")
def server(pytestconfig: pytest.Config) -> Server:
    return shared_server(pytestconfig)


def copied(server: Server, path: Path) -> str:
    """A ledger on PostgreSQL with every row of one in a file."""
    url = server.new_database(f"learning_{next(_numbers)}", EMPTY_LEDGER)
    with Ledger.open(f"sqlite:///{path}", read_only=True) as here, Ledger.open(url) as there:
        with here.database.read() as connection:
            rows = {
                table: [dict(row._mapping) for row in connection.execute(select(table))]
                for table in metadata.sorted_tables
            }
        with there.database.write() as connection:
            for table in reversed(metadata.sorted_tables):
                connection.execute(delete(table))
            for table, found in rows.items():
                if found:
                    connection.execute(insert(table), found)
    return url


@pytest.fixture(scope="module")
def hour(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """An hour of the thrifty scorer, promoted at its begin, with the lavish one on probation beside it."""
    site = Site(tmp_path_factory.mktemp("hour"))
    site.promoted(site.thrifty, 0.0)
    site.tried(site.lavish, 1.0)
    site.live([(site.thrifty, 1.0)], shadow=site.lavish)
    return site


def test_the_record_of_a_fleet_and_where_a_shadow_differs_are_the_same(server: Server, hour: Site) -> None:
    path, url = str(hour.ledger), copied(server, hour.ledger)
    here, there = (read_record(source, FLEET, 28.0) for source in (path, url))
    assert (there.minutes == here.minutes, len(there.minutes)) == (True, 60)
    assert there.boots == here.boots
    one = hour.directory.probationers()[SUBJECT]
    assert divergence_of(url, FLEET, one) == divergence_of(path, FLEET, one)


def test_a_probation_and_a_watch_say_the_same(server: Server, hour: Site) -> None:
    url, one = copied(server, hour.ledger), hour.directory.probationers()[SUBJECT]
    found = []
    for ledger in (str(hour.ledger), url):
        case = replace(hour.evidence(), ledger=ledger).inspection(START + 1.1 * HOUR_S, Limits())
        champion = watched_promotion(case.directory, case.subject, case.now_s, 168.0)
        assert champion is not None
        found.append((examine(case, one), watch(case, champion)))
    assert found[0] == found[1]
    assert found[0][0].status is ProbationStatus.WAITING
    assert found[0][1].lived is not None, "an hour is enough to be held to the rule of day 0"


def test_a_person_who_approves_sees_what_differs_so_far(server: Server, tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.promoted(site.thrifty, 0.0)
    site.tried(site.lavish, 1.0)
    site.live([(site.thrifty, 0.1)], shadow=site.lavish)
    place = ["--ledger", copied(server, site.ledger), "--models-dir", str(site.directory.path)]
    shown = CliRunner().invoke(app, ["approve", "autoscaling", FLEET, "--reason", "the sale begins", *place])
    assert shown.exit_code == 0, shown.output
    assert "so far it differs in" in shown.output
    assert site.events()[-1] == ("promoted", "the sale begins")


@pytest.mark.exhaustive
def test_one_that_held_is_promoted_and_then_watched(server: Server, tmp_path: Path) -> None:
    site = Site(tmp_path)
    # So long ago that it is not watched: it costs more than the rule of day 0.
    site.promoted(site.lavish, -200.0)
    site.tried(site.thrifty)
    site.live([(site.lavish, HOURS), (site.thrifty, 0.5)], shadow=site.thrifty)
    words = ["learn", "autoscaling", FLEET, "--ledger", copied(server, site.ledger), "--idle", "120"]
    words += ["--models-dir", str(site.directory.path), "--out", str(tmp_path / "round")]
    done = CliRunner().invoke(app, [*words, "--at", f"{START + (HOURS + 0.1) * 3600.0:.0f}"])
    assert done.exit_code == 0, done.output
    champion = site.directory.champion(SUBJECT)
    assert champion is not None
    assert champion.model == site.thrifty.name
    later = CliRunner().invoke(app, [*words, "--at", f"{START + (HOURS + 0.5) * 3600.0:.0f}", "--try"])
    assert "needed to judge it by" in later.output


def test_a_round_for_a_cluster_begins_with_the_same_tables_and_its_watch_says_the_same(
    server: Server, tmp_path: Path
) -> None:
    path = tmp_path / "ledger.db"
    record(path, Cluster("main", SMALL, CAPACITY, 12.0, 1e-3), 40.0)
    url = copied(server, path)
    digests = {
        keep_tables(tmp_path / name, partial(read_cluster, source, "main"), 365.0, "1")
        for name, source in (("here", str(path)), ("there", url))
    }
    assert len(digests) == 1
    champion = Champion(MODEL, None, at="2026-09-21T00:00:00Z")
    assert champion.at_s is not None
    rule = f"zeroth:{CAPACITY}"
    here, there = (cluster_trial.lived(source, "main", champion, rule, 1e-3) for source in (str(path), url))
    assert here == there
    one = Probationer(MODEL, "report.json", None, START_S, 40.0, Then.PROMOTE)
    assert cluster_trial.divergence_of(url, "main", one) == cluster_trial.divergence_of(str(path), "main", one)


def test_a_round_for_a_pool_begins_with_the_same_weeks_and_its_watch_says_the_same(
    server: Server, tmp_path: Path
) -> None:
    lived_pool(tmp_path, 4).ledger.close()
    path = tmp_path / "ledger.db"
    url = copied(server, path)
    here, there = (read_pool(source, "main") for source in (str(path), url))
    assert [*here.hours] == [*there.hours]
    keep_weeks(tmp_path / "here", lambda: here)
    keep_weeks(tmp_path / "there", lambda: there)
    for part in ("earlier", "later"):
        for file in (tmp_path / "here" / part).glob("*.csv*"):
            assert file.read_bytes() == (tmp_path / "there" / part / file.name).read_bytes()
    champion = Champion(MODEL, None, at="2026-09-21T00:00:00Z")
    found = [pool_trial.lived(source, "main", champion) for source in (str(path), url)]
    assert found[0] == found[1]
    one = Probationer(MODEL, "report.json", None, START_S, 96.0, Then.PROMOTE)
    assert pool_trial.divergence_of(url, "main", one) == pool_trial.divergence_of(str(path), "main", one)
