"""Requests and re-arms come from HTTP threads while the loop turns the pool: neither disturbs the other."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.oversubscription.state import OversubscriptionStore
from tests.agent.oversubscription.pools import House, rules, vm

REQUESTS = 150


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path, rules(), [vm(f"v{k}", machine=f"m{k}") for k in range(4)])
    made.hour()
    yield made
    made.ledger.close()


@pytest.fixture
def switching() -> Iterator[None]:
    """Let threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("switching")
def test_room_is_promised_by_one_thread_while_the_loop_looks_through_what_was_promised(house: House) -> None:
    asked = threading.Thread(target=lambda: [house.ask(cores=0.1, vm=f"n{k}") for k in range(REQUESTS)])
    asked.start()
    while asked.is_alive():
        house.pool.look()
    asked.join()
    assert set(house.pool.promised) == {f"n{k}" for k in range(REQUESTS)}


def test_a_rearm_while_the_loop_records_an_event_is_not_undone(house: House) -> None:
    pool = house.pool
    pool.memory = replace(pool.memory, rolled_back=True)
    pool.store.write_memory("main", pool.memory)
    rearming = threading.Thread(target=lambda: pool.rearm("ada", "looked into it"))

    class Interrupted(OversubscriptionStore):
        """An operator re-arms when the loop is about to write what it has read."""

        def write_memory(self, *given: Any, **more: Any) -> None:
            if threading.current_thread() is not rearming:
                rearming.start()
                # Ends at once unless it has to wait for the loop.
                rearming.join(1.0)
            super().write_memory(*given, **more)

    pool.store = Interrupted(house.ledger)
    house.file.write_text("no inventory\n")
    house.clock.advance(60.0)
    house.turn()
    rearming.join()
    assert (pool.memory.rolled_back, pool.store.memory("main").rolled_back) == (False, False)
