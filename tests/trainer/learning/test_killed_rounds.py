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

from simulator.admission import Cluster
from tests.killed import changes, killed_at
from tests.trainer.learning.recorded_clusters import SMALL, record
from tests.trainer.learning.test_cluster import SUBJECT, round_of
from trainer.learning.state import opened
from trainer.promotion.directory import ModelsWriter

pytestmark = pytest.mark.exhaustive

STAGES = ("now", "fit", "fidelity", "plan", "threshold", "judge", "report")
POINTS = 12
"""Deaths within a round, apart from those within its promotion, which are at every point."""

Whole = tuple[Path, Path, str]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """The ledger of a cluster, the folder of a round that nothing stopped, and the model that it promoted."""
    folder = tmp_path_factory.mktemp("whole")
    ledger = folder / "ledger.db"
    record(ledger, Cluster("main", SMALL, 100_000, 4.0, 1e-3), 150.0)
    assert round_of(ledger, folder).go_on()["gate"]["promoted"]
    (champion,) = ModelsWriter(folder / "models").champions().values()
    return ledger, folder, champion.model


def looked_at(folder: Path, model: str) -> bool:
    """Check that each file in a folder is whole; return whether the model of the round decides."""
    opened(folder / "round", {"hours": 48.0})
    directory = ModelsWriter(folder / "models")
    champions = directory.champions()
    assert set(champions) <= {SUBJECT}
    for champion in champions.values():
        assert champion.model == model
        assert directory.check(SUBJECT, champion)["passed"] is True
        assert directory.file_of(champion.model).read_bytes()
    return bool(champions)


def results(state: Path) -> dict[str, Any]:
    """What the stages found; without what differs from one process to the next, times and the report's name."""
    stages: dict[str, Any] = json.loads((state / "state.json").read_text())["stages"]
    found: dict[str, Any] = {name: stages[name] for name in ("now", "fidelity", "judge") if name in stages}
    return {**found, "passed": stages["gate"]["passed"]}


def test_a_promotion_that_is_killed_anywhere_leaves_the_old_state_or_the_new_one(whole: Whole, tmp_path: Path) -> None:
    ledger, done, model = whole

    def begun(name: str) -> Path:
        folder = tmp_path / name
        shutil.copytree(done / "round", folder / "round")
        work = round_of(ledger, folder)
        stages = {stage: found for stage, found in work.state.stages.items() if stage != "gate"}
        replace(work.state, stages=stages).spent(0.0)
        return folder

    points = changes(round_of(ledger, begun("alone")).go_on)
    assert points > 15
    seen = set()
    for at in range(1, points + 1):
        folder = begun(f"killed-{at}")
        assert killed_at(round_of(ledger, folder).go_on, at)
        seen.add(looked_at(folder, model))
        if at % 4 == 1:
            # A promotion that was killed between its line of history and its pointer is in the history once.
            assert round_of(ledger, folder).go_on()["gate"]["promoted"] is True
            assert looked_at(folder, model)
            lines = ModelsWriter(folder / "models").history(SUBJECT)
            assert [line["event"] for line in lines] == ["promoted"]
        shutil.rmtree(folder)
    assert seen == {False, True}


def test_a_round_that_is_killed_again_and_again_comes_to_the_same_end(whole: Whole, tmp_path: Path) -> None:
    ledger, done, model = whole
    deaths = 0
    # Each process gets further than the one before, and dies at another place of a stage.
    for number in range(POINTS):
        deaths += killed_at(lambda: round_of(ledger, tmp_path).go_on(), 3 + 5 * number)
        if (tmp_path / "round" / "earlier.csv.gz").exists():
            looked_at(tmp_path, model)
    round_of(ledger, tmp_path).go_on()
    assert deaths > 3
    assert looked_at(tmp_path, model)
    assert results(tmp_path / "round") == results(done / "round")


@contextmanager
def small_disk(place: Path, kilobytes: int) -> Iterator[None]:
    """Mount a file system of that size."""
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "none", str(place)], check=True)
    try:
        yield
    finally:
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
    """Do something in a process of its own, whose files may have this many bytes; return the error, "" for none."""
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


def goes_on_after_a_full_disk(
    whole: Whole, place: Path, stages: int, stop: Callable[[Callable[[], object]], str]
) -> None:
    """Stop a round that has done some stages by an error of the disk, then go on without it."""
    ledger, done, model = whole
    shutil.copytree(done / "round", place / "round")
    state = json.loads((done / "round" / "state.json").read_text())
    names = STAGES[:stages]
    replace(round_of(ledger, place).state, stages={name: state["stages"][name] for name in names}).spent(0.0)
    assert stop(round_of(ledger, place).go_on) != ""
    assert not looked_at(place, model)
    assert set(opened(place / "round", {"hours": 48.0}).stages) == set(names)
    (place / "filled").unlink(missing_ok=True)
    assert round_of(ledger, place).go_on()["gate"]["promoted"] is True
    assert looked_at(place, model)
    assert results(place / "round") == results(done / "round")


@pytest.mark.needs_mount
@pytest.mark.parametrize("stages", [1, 4, 7])
def test_a_disk_that_is_full_in_the_middle_decides_nothing_and_the_round_goes_on(
    whole: Whole, tmp_path: Path, stages: int
) -> None:
    place = tmp_path / "disk"
    needed = sum(path.stat().st_size for path in (whole[1] / "round").rglob("*") if path.is_file())

    def stop(act: Callable[[], object]) -> str:
        fill(place / "filled")
        error = in_child(act, None)
        assert "No space left" in error
        return error

    with small_disk(place, needed // 1024 + 512):
        goes_on_after_a_full_disk(whole, place, stages, stop)


@pytest.mark.emulates("needs_mount")
@pytest.mark.parametrize("stages", [1, 4, 7])
def test_a_file_that_may_not_grow_in_the_middle_decides_nothing_and_the_round_goes_on(
    whole: Whole, tmp_path: Path, stages: int
) -> None:
    def stop(act: Callable[[], object]) -> str:
        error = in_child(act, 300)
        assert "File too large" in error
        return error

    goes_on_after_a_full_disk(whole, tmp_path, stages, stop)


def test_the_command_says_what_to_do_when_the_disk_is_full(tmp_path: Path) -> None:
    """The folder of the round cannot be written: nothing else has begun."""
    ledger = tmp_path / "ledger.db"
    record(ledger, Cluster("main", SMALL, 100_000, 4.0, 1e-3), 150.0)
    words = ["learn", "admission", "main", "--ledger", str(ledger), "--models-dir", str(tmp_path / "models")]
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
    assert done.returncode == 8, done.stderr
    assert "make room there" in done.stderr
    assert ModelsWriter(tmp_path / "models").champions() == {}
    assert not list((tmp_path / "out").rglob("*.part"))
