"""One agent of every decision for each module: each test uses ids that no other has, and lifts its pauses."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from domain.clock import VirtualClock
from simulator.aws.client import CloudControl
from simulator.aws.process import start_in_thread
from tests.contract.cases import CASES, SETTINGS, START
from tests.contract.running import TOKENS, RunningAgent, running, toy_installed
from tests.short_directory import short_directory
from tests.simulator.aws.world import World


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The toy decision, installed, and no settings from outside."""
    with pytest.MonkeyPatch.context() as patch, toy_installed(tmp_path_factory.mktemp("toy")):
        for name in [name for name in os.environ if name.startswith("TRIMTAB_")]:
            patch.delenv(name)
        yield


@pytest.fixture(scope="module")
def short() -> Iterator[Path]:
    """A directory whose path is short enough for a socket."""
    with short_directory() as made:
        yield made


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """A cloud with the fleet's group, one VM of which is in service; its clock is that of the agents."""
    clock = VirtualClock(START)
    cloud = start_in_thread(clock, seed=7)
    made = World(cloud, CloudControl(cloud.endpoint))
    made.ready_group("web-s", size=(0, 1, 5))
    yield made
    made.close()


@pytest.fixture(scope="module")
def agent(toy: None, short: Path, world: World) -> Iterator[RunningAgent]:
    """The agent, served over its socket and TCP, after its first turn."""
    clock = VirtualClock(START)
    settings = {**SETTINGS, "http": {"socket": short / "s.sock", **TOKENS}}
    with running(f"sqlite:///{short}/ledger.db", clock, world.running.endpoint, directory=short, **settings) as made:
        made.lead()
        for case in CASES:
            case.prepare(made)
        report = made.turn()
        assert report.failure is None, report.failure
        yield made


@pytest.fixture(scope="module")
def client(agent: RunningAgent) -> Iterator[httpx.Client]:
    """A client of the agent's socket, below /api/v1."""
    with agent.client() as made:
        yield made
