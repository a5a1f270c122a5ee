"""A ledger that was replaced, by a copy, another one or nothing, is noticed before anything is written or done."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from agent.autoscaling.state import FleetStore
from agent.ledger import Ledger
from domain.controls import Pause, PauseScope
from domain.errors import LedgerReplaced
from tests.agent.ledger.records import START, made

ROOT = Path(__file__).parents[3]
PAUSE = Pause(PauseScope.ALL, "ana", "no", START)


def copy_of(path: Path, name: str = "copy.db") -> Path:
    """A whole copy of a ledger in use, as `sqlite3 ledger.db ".backup copy.db"` makes it."""
    target = path.with_name(name)
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(target)) as copy:
        source.backup(copy)
    return target


def another(path: Path) -> Path:
    """Another agent's ledger, as old as this one and led under the same epoch."""
    target = path.with_name("another.db")
    with Ledger.open(f"sqlite:///{target}") as ledger:
        ledger.take_epoch("host-b:2", START)
        FleetStore(ledger).record([made(n) for n in range(9)])
    return target


@pytest.fixture
def led(ledger: Ledger) -> Ledger:
    """A ledger led under epoch 1, with two decisions."""
    assert ledger.take_epoch("host-a:1", START) == 1
    FleetStore(ledger).record([made(0), made(1)])
    return ledger


def moved(source: Path, path: Path) -> None:
    """Put another file in the place of a ledger, under another inode."""
    os.replace(source, path)


def overwritten(source: Path, path: Path) -> None:
    """Copy a file over a ledger: the inode stays."""
    path.write_bytes(source.read_bytes())


@pytest.mark.parametrize("put", [moved, overwritten])
@pytest.mark.parametrize("kind", ["empty", "another", "older"])
def test_a_ledger_replaced_under_a_running_agent_is_refused_before_anything_is_written(
    led: Ledger, path: Path, put: Callable[[Path, Path], None], kind: str
) -> None:
    older = copy_of(path)
    FleetStore(led).record([made(2)])
    # Folded, so that the file itself is newer than the copy.
    led.database.pragma("wal_checkpoint(TRUNCATE)")
    FleetStore(led).record([made(3)])
    led.check_epoch(1)
    empty = path.with_name("empty.db")
    empty.touch()
    put({"empty": empty, "another": another(path), "older": older}[kind], path)
    for _ in range(2):
        with pytest.raises(LedgerReplaced):
            led.check_epoch(1)
        with pytest.raises(LedgerReplaced):
            FleetStore(led).record([made(4)])


def test_an_older_copy_of_the_same_epoch_is_refused_by_its_generation(led: Ledger, path: Path) -> None:
    older = copy_of(path)
    FleetStore(led).record([made(2)])
    led.database._engine.dispose()
    moved(older, path)
    with pytest.raises(LedgerReplaced, match="generation is 3"):
        led.check_epoch(1)


def test_a_copy_that_another_agent_led_on_is_refused_by_the_owner_of_the_epoch(led: Ledger, path: Path) -> None:
    older = copy_of(path)
    led.close()
    with Ledger.open(f"sqlite:///{path}") as other:
        other.take_epoch("host-a:1:again", START + 1)
    with Ledger.open(f"sqlite:///{older}") as other:
        assert other.take_epoch("host-c:1", START + 1) == 2
        other.pause("autoscaling", "web", PAUSE)
    with Ledger.open(f"sqlite:///{path}") as ours:
        assert ours.take_epoch("host-a:1:third", START + 2) == 3
        ours.check_epoch(3)
        with Ledger.open(f"sqlite:///{older}") as other:
            assert other.take_epoch("host-c:1:again", START + 2) == 3
            for _ in range(5):
                other.pause("autoscaling", "web", PAUSE)
        ours.database._engine.dispose()
        moved(older, path)
        with pytest.raises(LedgerReplaced, match="epoch 3 was led by host-c"):
            ours.check_epoch(3)


def test_a_whole_copy_in_the_place_of_the_ledger_is_taken_up(led: Ledger, path: Path) -> None:
    whole = copy_of(path)
    led.database._engine.dispose()
    moved(whole, path)
    led.check_epoch(1)
    FleetStore(led).record([made(2)])
    assert FleetStore(led).loop_state("web").decisions == 3


def test_an_operator_in_another_process_and_a_fold_of_the_log_are_no_replacement(led: Ledger, path: Path) -> None:
    for n in range(2, 8):
        with Ledger.open(f"sqlite:///{path}") as other:
            other.pause("autoscaling", "web", PAUSE)
            other.database.pragma("wal_checkpoint(TRUNCATE)")
        led.check_epoch(1)
        FleetStore(led).record([made(n)])
    led.compact(START + 1e6, 1.0)
    led.check_epoch(1)


# A log that is not the file's own

KILLED = """
import os, sys
from agent.autoscaling.state import FleetStore
from agent.ledger import Ledger
from tests.agent.ledger.records import made
ledger = Ledger.open(sys.argv[1])
ledger.take_epoch("host-a:1", 0.0)
FleetStore(ledger).record([made(n) for n in range(5)])
ledger.database.pragma("wal_checkpoint(TRUNCATE)")
FleetStore(ledger).record([made(5)])
os._exit(0)
"""


@pytest.fixture
def killed(url: str, path: Path) -> Path:
    """A ledger whose process was killed: its newest transaction is in the log beside it only."""
    Ledger.open(url).close()
    shutil.copy(path, path.with_name("older.db"))
    subprocess.run([sys.executable, "-c", KILLED, url], cwd=ROOT, check=True)
    assert path.with_name("ledger.db-wal").stat().st_size
    return path


def test_the_log_that_a_killed_agent_left_is_taken_up(killed: Path, url: str) -> None:
    with Ledger.open(url) as ledger:
        assert FleetStore(ledger).loop_state("web").decisions == 6
        assert ledger.damage() == ""


@pytest.mark.exhaustive
@pytest.mark.parametrize("read_only", [True, False])
def test_an_older_copy_beside_the_log_of_the_newer_one_is_refused_and_nothing_is_mixed(
    killed: Path, url: str, read_only: bool
) -> None:
    overwritten(killed.with_name("older.db"), killed)
    before = killed.read_bytes()
    with pytest.raises(LedgerReplaced, match=r"ledger\.db-wal"):
        Ledger.open(url, read_only=read_only)
    assert killed.read_bytes() == before


def test_another_agents_ledger_beside_the_log_is_refused(killed: Path, url: str) -> None:
    overwritten(another(killed), killed)
    with pytest.raises(LedgerReplaced, match="is not its own"):
        Ledger.open(url)


def test_a_log_is_its_own_while_a_writer_folds_it_all_the_time(led: Ledger, url: str) -> None:
    for n in range(2, 30):
        FleetStore(led).record([made(n)])
        if n % 3 == 0:
            led.database.pragma("wal_checkpoint(PASSIVE)")
        Ledger.open(url, read_only=True).close()


# Across a restart


def opened(url: str, path: Path) -> Ledger:
    return Ledger.open(url, witness_in=path.parent)


@pytest.fixture
def ended(url: str, path: Path) -> Path:
    """A ledger of an agent that has ended, with a copy from before its last decision."""
    path.parent.mkdir(exist_ok=True)
    with opened(url, path) as ledger:
        ledger.take_epoch("host-a:1", START)
        FleetStore(ledger).record([made(0)])
        copy_of(path)
        FleetStore(ledger).record([made(1)])
    return path


def test_an_older_copy_put_in_place_while_the_agent_was_stopped_is_refused_at_its_start(ended: Path, url: str) -> None:
    moved(ended.with_name("copy.db"), ended)
    with pytest.raises(LedgerReplaced, match="is an older copy"):
        opened(url, ended)


def test_a_ledger_that_was_removed_is_not_begun_anew_by_a_start(ended: Path, url: str) -> None:
    ended.unlink()
    with pytest.raises(LedgerReplaced):
        opened(url, ended)
    assert not ended.exists()


def test_another_ledger_is_refused_at_a_start(ended: Path, url: str) -> None:
    moved(another(ended), ended)
    with pytest.raises(LedgerReplaced, match="it is another ledger"):
        opened(url, ended)


def test_a_ledger_without_an_identity_is_refused(ended: Path, url: str) -> None:
    with closing(sqlite3.connect(ended)) as direct, direct:
        direct.execute("DROP TABLE ledger_identity")
    with pytest.raises(LedgerReplaced, match="it has no identity"):
        opened(url, ended)


def test_what_went_on_without_the_agent_is_taken_up(ended: Path, url: str) -> None:
    with Ledger.open(url) as ledger:
        ledger.pause("autoscaling", "web", PAUSE)
        ledger.compact(START + 1e6, 1.0)
    with opened(url, ended) as ledger:
        assert ledger.take_epoch("host-a:2", START + 5) == 2


def test_a_file_seen_overwritten_stays_refused_although_the_log_hides_it(ended: Path, url: str) -> None:
    older = ended.with_name("copy.db")
    with opened(url, ended) as ledger:
        ledger.take_epoch("host-a:2", START)
        ledger.database.pragma("wal_checkpoint(TRUNCATE)")
        ledger.pause("autoscaling", "web", PAUSE)
        overwritten(older, ended)
        with pytest.raises(LedgerReplaced, match=r"overwritten .* generation 3"):
            ledger.check_epoch(2)
    with pytest.raises(LedgerReplaced):
        opened(url, ended)


def test_another_place_in_the_settings_begins_another_ledger(ended: Path) -> None:
    with opened(f"sqlite:///{ended.with_name('other.db')}", ended) as ledger:
        assert ledger.epoch() == 0


def test_a_witness_that_cannot_be_read_is_written_anew(ended: Path, url: str) -> None:
    ended.with_name("ledger.witness").write_text("{" + "\0" * 90)
    opened(url, ended).close()
    moved(ended.with_name("copy.db"), ended)
    with pytest.raises(LedgerReplaced):
        opened(url, ended)
