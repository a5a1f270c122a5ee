"""Rounds and promotions of clusters that are killed anywhere, or whose disk is full: nothing half-written.

Each death is that of a real process, each full disk one that the system fills: a small file system of its own where the
tests may mount one, else a limit on the size of files.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.models.directory import ModelsDirectory
from simulator.admission import Cluster
from tests.killed import changes, killed_at
from tests.trainer.learning import test_admission_round as clusters
from tests.trainer.learning.recorded_clusters import SMALL, record
from trainer.learning.state import opened

pytestmark = pytest.mark.exhaustive

KINDS: dict[str, Any] = {"admission": clusters}
FACTS = {"admission": {"hours": 48.0}}
STAGES = {
    "admission": ("now", "fit", "fidelity", "plan", "threshold", "judge", "report"),
}
POINTS = 12
"""Deaths within a round, apart from those within its promotion, which are at every point."""


@pytest.fixture(scope="module", params=sorted(KINDS))
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Path]:
    """A decision, the ledger of its cluster or pool, and the folder of a round that nothing stopped."""
    kind, folder = str(request.param), tmp_path_factory.mktemp(str(request.param))
    ledger = folder / "ledger.db"
    record(ledger, Cluster("main", SMALL, 100_000, 4.0, 1e-3), 150.0)
    assert round_in(kind, ledger, folder).go_on()["gate"]["promoted"]
    return kind, ledger, folder


def round_in(kind: str, ledger: Path, folder: Path) -> Any:
    """The round of a folder, which goes on there."""
    return KINDS[kind].round_of(ledger, folder)


def looked_at(kind: str, folder: Path, model: str) -> bool:
    """Hold what lies in a folder to be whole; return whether the model of the round decides."""
    opened(folder / "round", FACTS[kind])
    directory = ModelsDirectory(folder / "models")
    champions = directory.champions()
    assert set(champions) <= {KINDS[kind].SUBJECT}
    for subject, champion in champions.items():
        assert champion.model == model
        assert directory.check(subject, champion)["passed"] is True
        assert directory.file_of(champion.model).read_bytes()
    return bool(champions)


def results(state: Path) -> dict[str, Any]:
    """What the stages found; without what differs from one process to the next, times and the report's name."""
    stages: dict[str, Any] = json.loads((state / "state.json").read_text())["stages"]
    found: dict[str, Any] = {name: stages[name] for name in ("now", "fidelity", "judge") if name in stages}
    return {**found, "passed": stages["gate"]["passed"]}


def test_a_promotion_that_is_killed_anywhere_leaves_the_old_state_or_the_new_one(
    whole: tuple[str, Path, Path], tmp_path: Path
) -> None:
    kind, ledger, done = whole
    (champion,) = ModelsDirectory(done / "models").champions().values()

    def begun(name: str) -> Path:
        folder = tmp_path / name
        shutil.copytree(done / "round", folder / "round")
        work = round_in(kind, ledger, folder)
        stages = {stage: found for stage, found in work.state.stages.items() if stage != "gate"}
        replace(work.state, stages=stages).spent(0.0)
        return folder

    alone = begun("alone")
    points = changes(round_in(kind, ledger, alone).go_on)
    assert points > 15
    seen = set()
    for at in range(1, points + 1):
        folder = begun(f"killed-{at}")
        assert killed_at(round_in(kind, ledger, folder).go_on, at)
        seen.add(looked_at(kind, folder, champion.model))
        if at % 4 == 1:
            # It goes on, and a promotion that was killed between its line of history and its pointer stands there once.
            assert round_in(kind, ledger, folder).go_on()["gate"]["promoted"] is True
            assert looked_at(kind, folder, champion.model)
            lines = ModelsDirectory(folder / "models").history(KINDS[kind].SUBJECT)
            assert [line["event"] for line in lines] == ["promoted"]
        shutil.rmtree(folder)
    assert seen == {False, True}


def test_a_round_that_is_killed_again_and_again_comes_to_the_same_end(
    whole: tuple[str, Path, Path], tmp_path: Path
) -> None:
    kind, ledger, done = whole
    (champion,) = ModelsDirectory(done / "models").champions().values()
    deaths = 0
    # Each process gets somewhat further than the one before, and dies at another place of a stage.
    for number in range(POINTS):
        deaths += killed_at(lambda: round_in(kind, ledger, tmp_path).go_on(), 3 + 5 * number)
        if (tmp_path / "round" / "earlier.csv.gz").exists():
            looked_at(kind, tmp_path, champion.model)
    round_in(kind, ledger, tmp_path).go_on()
    assert deaths > 3
    assert looked_at(kind, tmp_path, champion.model)
    assert results(tmp_path / "round") == results(done / "round")


@contextmanager
def small_disk(place: Path, kilobytes: int) -> Iterator[bool]:
    """Mount a file system of that size where the tests may; yield whether they may."""
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "none", str(place)]
    try:
        mounted = subprocess.run(words, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", str(place)], check=True)


def fill(path: Path) -> None:
    """Write a file until its disk is full."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(256))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


def in_child(act: Callable[[], object], largest: int | None) -> str:
    """Do something in a process of its own, whose files may have so many bytes; return the error, "" for none."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = "it ended otherwise"
        try:
            if largest is not None:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                # A module's cache that is cut at the limit would be read by every later process.
                sys.dont_write_bytecode = True
                resource.setrlimit(resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
            act()
            said = ""
        except OSError as error:
            said = str(error)
        finally:
            os.write(writing, said.encode())
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as pipe:
        return pipe.read()


@pytest.mark.parametrize("stages", [1, 4, 7])
def test_a_disk_that_is_full_in_the_middle_decides_nothing_and_the_round_goes_on(
    whole: tuple[str, Path, Path], tmp_path: Path, stages: int
) -> None:
    kind, ledger, done = whole
    (champion,) = ModelsDirectory(done / "models").champions().values()
    state = json.loads((done / "round" / "state.json").read_text())
    names = STAGES[kind][:stages]
    place = tmp_path / "disk"
    needed = sum(path.stat().st_size for path in (done / "round").rglob("*") if path.is_file())
    with small_disk(place, needed // 1024 + 512) as mounted:
        shutil.copytree(done / "round", place / "round")
        work = round_in(kind, ledger, place)
        replace(work.state, stages={name: state["stages"][name] for name in names}).spent(0.0)
        filled = place / "filled"
        if mounted:
            fill(filled)
        said = in_child(round_in(kind, ledger, place).go_on, None if mounted else 300)
        assert ("No space left" if mounted else "File too large") in said
        assert not looked_at(kind, place, champion.model)
        assert set(opened(place / "round", FACTS[kind]).stages) == set(names)
        filled.unlink(missing_ok=True)
        assert round_in(kind, ledger, place).go_on()["gate"]["promoted"] is True
        assert looked_at(kind, place, champion.model)
        assert results(place / "round") == results(done / "round")


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_command_says_what_to_do_when_the_disk_is_full(kind: str, tmp_path: Path) -> None:
    """The round's folder cannot be written: nothing else has begun."""
    ledger = tmp_path / "ledger.db"
    record(ledger, Cluster("main", SMALL, 100_000, 4.0, 1e-3), 150.0)
    words = ["learn", kind, "main", "--ledger", str(ledger), "--models-dir", str(tmp_path / "models")]
    words += ["--out", str(tmp_path / "out"), "--capacity", "130"]
    program = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from agent.commands.main import app\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (900, resource.RLIM_INFINITY))\n"
        "app()"
    )
    # The limit would cut the caches of modules and of compiled functions, which every later process reads.
    command = [sys.executable, "-B", "-c", program, *words]
    own = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "numba")}
    done = subprocess.run(command, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "make room there" in done.stderr
    assert ModelsDirectory(tmp_path / "models").champions() == {}
    assert not list((tmp_path / "out").rglob("*.part"))
