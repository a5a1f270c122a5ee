"""Three agents with faults in virtual time: no call under a deposed epoch, no minute twice, no fleet forgotten."""

from __future__ import annotations

import itertools

import pytest

from tests.agent.ledger.postgres.histories import FAULTS, FLEETS, MINUTES, History, play
from tests.agent.ledger.postgres.server import EMPTY_LEDGER, Server

pytestmark = pytest.mark.needs_postgresql

_numbers = itertools.count(1)


def check(server: Server, monkeypatch: pytest.MonkeyPatch, seed: int) -> History:
    url = server.new_database(f"history_{next(_numbers)}_{seed}", EMPTY_LEDGER)
    history = play(monkeypatch, url, seed)
    assert history.wrong == [], (seed, history.rates, history.faults)
    # It was no standstill.
    assert history.calls >= FLEETS * MINUTES // 3
    assert sum(map(len, history.minutes.values())) >= FLEETS * MINUTES // 2
    with server.connected() as admin:
        admin.execute(f'DROP DATABASE "history_{url.rpartition("history_")[2]}"')  # type: ignore[arg-type]
    return history


@pytest.mark.parametrize("seed", range(10))
def test_histories_of_three_agents(server: Server, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    check(server, monkeypatch, seed)


@pytest.mark.exhaustive
@pytest.mark.parametrize("first", range(0, 1000, 25))
def test_a_thousand_histories_of_three_agents(server: Server, monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    histories = [check(server, monkeypatch, seed) for seed in range(first, first + 25)]
    # Each fault was among them but perhaps one, and an agent without AWS gave its subjects away.
    kinds = {fault.split(": ")[1].rsplit(" ", 3)[0] for history in histories for fault in history.faults}
    assert len(kinds & {*FAULTS}) >= len(FAULTS) - 1
    assert sum(history.given_away for history in histories) > 0
