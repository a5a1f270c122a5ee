"""What the ledger says when it cannot be used: the wording of its refusals, held in tests/golden/ledger.txt."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from agent.autoscaling.state import FleetStore
from agent.ledger import Ledger, lock_directory, lock_ledger
from agent.ledger.identity import LedgerOwner
from domain.controls import Pause, PauseScope
from domain.errors import TrimtabError
from tests.agent.ledger.records import START, made
from tests.agent.ledger.test_identity import another, copy_of, moved, overwritten
from tests.golden import check_wording


def locked(path: Path) -> None:
    with Ledger.open(f"sqlite:///{path}", busy_timeout_s=0.01) as ledger, closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        FleetStore(ledger).record([made(0)])


def damaged(path: Path) -> None:
    with Ledger.open(f"sqlite:///{path}") as ledger:
        FleetStore(ledger).record([made(n) for n in range(50)])
    path.write_bytes(path.read_bytes()[:4096] + b"x" * 90_000)
    with Ledger.open(f"sqlite:///{path}"):
        pass


def no_ledger(path: Path) -> None:
    path.write_bytes(b"this is a shopping list\n" * 400)
    Ledger.open(f"sqlite:///{path}")


def newer_schema(path: Path) -> None:
    Ledger.open(f"sqlite:///{path}").close()
    with closing(sqlite3.connect(path)) as direct, direct:
        direct.execute("UPDATE alembic_version SET version_num = '9001'")
    Ledger.open(f"sqlite:///{path}")


def never_written(path: Path) -> None:
    Ledger.open(f"sqlite:///{path}", read_only=True)


def written_by_a_reader(path: Path) -> None:
    Ledger.open(f"sqlite:///{path}").close()
    with Ledger.open(f"sqlite:///{path}", read_only=True) as reader:
        reader.pause("autoscaling", "web", Pause(PauseScope.ALL, "ana", "no", START))


def of_others(path: Path) -> None:
    with Ledger.open(f"sqlite:///{path}") as ledger:
        ledger.bind(LedgerOwner("1111", "us-east-1", "prod"))
        ledger.bind(LedgerOwner("2222", "eu-west-1", "test"))


def fenced(path: Path) -> None:
    with Ledger.open(f"sqlite:///{path}") as ledger:
        ledger.take_epoch("ana", START)
        ledger.take_epoch("ben", START)
        ledger.check_epoch(1)


def in_use(path: Path) -> None:
    with lock_ledger(path), lock_ledger(path):
        pass


def directory_in_use(path: Path) -> None:
    with lock_directory(path.parent), lock_directory(path.parent):
        pass


def address(path: Path) -> None:
    Ledger.open("not a url")


def gone(path: Path) -> None:
    with Ledger.open(f"sqlite:///{path}") as ledger:
        path.unlink()
        FleetStore(ledger).record([made(0)])


def replaced_by(make: Callable[[Path], Path], put: Callable[[Path, Path], None]) -> Callable[[Path], None]:
    def act(path: Path) -> None:
        with Ledger.open(f"sqlite:///{path}") as ledger:
            ledger.take_epoch("host-a:1", START)
            other = make(path)
            FleetStore(ledger).record([made(0), made(1)])
            ledger.database.pragma("wal_checkpoint(TRUNCATE)")
            put(other, path)
            ledger.check_epoch(1)

    return act


REFUSALS: dict[str, Callable[[Path], None]] = {
    "held by another process": locked,
    "damaged": damaged,
    "no ledger": no_ledger,
    "newer schema": newer_schema,
    "never written": never_written,
    "written by a reader": written_by_a_reader,
    "of other agents": of_others,
    "an epoch that is over": fenced,
    "ledger in use": in_use,
    "state directory in use": directory_in_use,
    "address": address,
    "gone": gone,
    "replaced by an older copy": replaced_by(copy_of, moved),
    "replaced by another ledger": replaced_by(another, moved),
    "overwritten by an older copy": replaced_by(copy_of, overwritten),
    "overwritten by another ledger": replaced_by(another, overwritten),
}


def test_a_refusal_says_what_happened_and_what_to_do(tmp_path: Path) -> None:
    said = {}
    for number, (case, act) in enumerate(REFUSALS.items()):
        path = tmp_path / f"{number}" / "ledger.db"
        path.parent.mkdir()
        with pytest.raises(TrimtabError) as refused:
            act(path)
        text = str(refused.value).replace(str(path.parent), "STATE").replace(str(os.getpid()), "PID")
        text = re.sub(r"another ledger \(\w{8}, not \w{8}\)", "another ledger (ID, not ID)", text)
        said[case] = f"{type(refused.value).__name__}: {text}"
    check_wording("ledger", said)
