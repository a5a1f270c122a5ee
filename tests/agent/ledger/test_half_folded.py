"""A fold of the log that ended half-way, by a full disk, a signal or a power cut, leaves a ledger that is whole."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent.autoscaling.state import FleetStore
from agent.commands.main import app
from agent.ledger import Ledger
from agent.ledger.identity import KnownLedger
from agent.ledger.sqlite_file import log_of, mark
from agent.ledger.witness import Witness
from domain.errors import LedgerReplaced, LedgerUnavailable
from tests.agent.ledger.records import START, made
from tests.agent.ledger.test_identity import copy_of, overwritten
from tests.stages import exhaustive

DECISIONS = 12
SECTOR = 512


@dataclass(frozen=True)
class Fold:
    """A ledger whose log is not folded yet: its files, what its witness remembers, and the pages that a fold writes."""

    file: bytes
    log: bytes
    remembered: KnownLedger
    pages: dict[int, bytes]

    def put(self, directory: Path, file: bytes) -> Path:
        """Make a state directory in which the file shows this and the log is whole."""
        directory.mkdir()
        path = directory / "ledger.db"
        path.write_bytes(file)
        log_of(path).write_bytes(self.log)
        with closing(Witness(directory, str(path))) as witness:
            witness.write(self.remembered)
        return path

    def after(self, written: dict[int, bytes]) -> bytes:
        """The file once these pages, or the beginnings of them, were written."""
        file = bytearray(self.file)
        for number, content in written.items():
            at = (number - 1) * 4096
            file.extend(bytes(max(0, at + len(content) - len(file))))
            file[at : at + len(content)] = content
        return bytes(file)


def pages_of(log: bytes) -> dict[int, bytes]:
    """The newest content of each page in a log, in the order in which SQLite folds them."""
    pages = {}
    for at in range(32, len(log) - 4119, 4120):
        if log[at + 8 : at + 16] == log[16:24]:
            pages[struct.unpack(">I", log[at : at + 4])[0]] = log[at + 24 : at + 4120]
    return dict(sorted(pages.items()))


def fold_of(directory: Path, folded: int) -> Fold:
    """Record decisions, `folded` of which are in the file itself, and take the files while the agent runs."""
    directory.mkdir()
    path = directory / "ledger.db"
    url = f"sqlite:///{path}"
    with Ledger.open(url, witness_in=directory) as ledger:
        if folded:
            FleetStore(ledger).record([made(n) for n in range(folded)])
            ledger.database.pragma("wal_checkpoint(TRUNCATE)")
        ledger.take_epoch("host:1", START)
        for number in range(folded, DECISIONS):
            FleetStore(ledger).record([made(number)])
        log = log_of(path).read_bytes()
        return Fold(path.read_bytes(), log, ledger.database.remembered(), pages_of(log))


@pytest.fixture(scope="module", params=[3, *exhaustive(0)])
def fold(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Fold:
    return fold_of(tmp_path_factory.mktemp("fold") / "source", request.param)


def files_in_a_fold(fold: Fold) -> Iterator[bytes]:
    """The file before and after each write of a fold, and after a power cut that lost any of the writes."""
    numbers = list(fold.pages)
    for count in range(len(numbers) + 1):
        yield fold.after({number: fold.pages[number] for number in numbers[:count]})
    yield fold.after({1: fold.pages[1][:SECTOR]})
    yield fold.after({number: page for number, page in fold.pages.items() if number != 1})
    generator = random.Random(7)
    for _ in range(12):
        some = sorted(generator.sample(numbers, generator.randrange(1, len(numbers))))
        yield fold.after({n: fold.pages[n][: generator.choice((SECTOR, 2048, 4096))] for n in some})


def assert_whole(path: Path) -> None:
    """A verb that reads takes it for the ledger, and the agent goes on with every decision."""
    with Ledger.open(f"sqlite:///{path}", read_only=True) as reader:
        assert reader.damage() == ""
        assert FleetStore(reader).loop_state("web").decisions == DECISIONS
    with Ledger.open(f"sqlite:///{path}", witness_in=path.parent) as ledger:
        ledger.check_epoch(1)
        FleetStore(ledger).record([made(DECISIONS)])
        ledger.check_epoch(1)
        found = [inputs for inputs, _ in FleetStore(ledger).inputs("web")]
        assert found == [made(number)[0] for number in range(DECISIONS + 1)]
        assert ledger.damage() == ""


def test_after_a_fold_that_ended_at_any_write_the_agent_goes_on_with_all_that_was_recorded(
    fold: Fold, tmp_path: Path
) -> None:
    files = list(dict.fromkeys(files_in_a_fold(fold)))
    assert len(files) > 15
    for number, file in enumerate(files):
        directory = tmp_path / f"{number}"
        assert_whole(fold.put(directory, file))
        shutil.rmtree(directory)


def short(fold: Fold) -> bytes:
    """The file whose header counts pages that are in the log only, as a full disk leaves it."""
    file = fold.after({1: fold.pages[1]})
    (counted,) = struct.unpack(">I", file[28:32])
    assert counted * 4096 > len(file)
    return file


def test_ledger_check_and_restore_take_it_for_what_it_is(fold: Fold, tmp_path: Path) -> None:
    path = fold.put(tmp_path / "here", short(fold))
    for arguments in (["check"], ["restore"]):
        done = CliRunner().invoke(app, ["ledger", *arguments, "--ledger", str(path)])
        assert done.exit_code == 0, done.output
    copy = fold.put(tmp_path / "copy", short(fold))
    done = CliRunner().invoke(app, ["ledger", "restore", str(copy), "--ledger", str(path)])
    assert done.exit_code == 0, done.output
    with Ledger.open(f"sqlite:///{path}", witness_in=path.parent) as ledger:
        assert len(list(FleetStore(ledger).inputs("web"))) == DECISIONS


def condemned(directory: Path) -> None:
    """Let the witness say what version 0.1 wrote once it took the ledger for overwritten."""
    body = json.loads((directory / "ledger.witness").read_bytes())
    (directory / "ledger.witness").write_bytes(json.dumps({**body, "overwritten": True}).encode().ljust(511) + b"\n")


@pytest.mark.parametrize("is_folded", [False, True], ids=["still half-folded", "folded at its stop"])
def test_an_agent_that_a_version_before_stopped_for_good_starts_again(
    fold: Fold, tmp_path: Path, is_folded: bool
) -> None:
    path = fold.put(tmp_path / "here", short(fold))
    if is_folded:
        with closing(sqlite3.connect(path)) as direct:
            direct.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    condemned(path.parent)
    assert_whole(path)
    assert json.loads((path.parent / "ledger.witness").read_bytes())["overwritten"] == ""


def mixed(fold: Fold, directory: Path) -> Path:
    """An older copy, put over the ledger, into which the newer log was folded but for what it folded before."""
    path = fold.put(directory, fold.file)
    with closing(sqlite3.connect(path)) as direct:
        direct.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (root,) = direct.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'decisions_by_time'").fetchone()
    content = bytearray(path.read_bytes())
    content[(root - 1) * 4096 : root * 4096] = fold.file[(root - 1) * 4096 : root * 4096]
    path.write_bytes(content)
    return path


def test_one_that_really_was_overwritten_stays_refused_after_the_upgrade(tmp_path: Path) -> None:
    path = mixed(fold_of(tmp_path / "source", 3), tmp_path / "here")
    condemned(path.parent)
    for _ in range(2):
        with pytest.raises(LedgerReplaced, match="overwritten"):
            Ledger.open(f"sqlite:///{path}", witness_in=path.parent)


@pytest.mark.parametrize("failure", ["SQLITE_CANTOPEN", "SQLITE_IOERR_READ"])
def test_a_file_that_cannot_be_read_for_a_time_is_not_taken_for_another(
    ledger: Ledger, path: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    # A directory can be opened, and not read.
    instead = {"SQLITE_CANTOPEN": "gone.db", "SQLITE_IOERR_READ": "."}[failure]
    ledger.take_epoch("host:1", START)
    FleetStore(ledger).record([made(0)])
    opened: Callable[..., sqlite3.Connection] = sqlite3.connect
    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", lambda name, **how: opened(str(name).replace("ledger.db", instead), **how))
        with pytest.raises(LedgerUnavailable) as refusal:
            ledger.check_epoch(1)
        assert not isinstance(refusal.value, LedgerReplaced)
        assert getattr(refusal.value.__cause__, "sqlite_errorname", "") == failure
    ledger.check_epoch(1)
    FleetStore(ledger).record([made(1)])


def test_a_half_folded_file_of_another_ledger_is_refused(fold: Fold, tmp_path: Path) -> None:
    path = fold.put(tmp_path / "here", short(fold))
    other = tmp_path / "other" / "ledger.db"
    other.parent.mkdir()
    with Ledger.open(f"sqlite:///{other}", witness_in=other.parent) as ledger:
        ledger.take_epoch("host:1", START)
        FleetStore(ledger).record([made(0)])
        older = copy_of(other)
        overwritten(path, other)
        assert mark(other) == mark(path)
        with pytest.raises(LedgerReplaced):
            ledger.check_epoch(1)
        log = log_of(other).read_bytes()
    overwritten(older, other)
    overwritten(path, other)
    log_of(other).write_bytes(log)
    with pytest.raises(LedgerReplaced):
        Ledger.open(f"sqlite:///{other}", read_only=True)
