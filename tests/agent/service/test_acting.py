"""A call to AWS leaves under the epoch of its subject, and of all subjects of its turn where it has none."""

from __future__ import annotations

import threading

from agent.service.assembly import Acting


def test_a_block_sends_under_its_own_epoch_and_the_turn_under_all() -> None:
    acting = Acting()
    assert acting.epochs is None
    with acting.under(3, 4):
        with acting.under(4):
            assert acting.epochs == (4,)
        assert acting.epochs == (3, 4)
        seen: list[object] = []
        # The thread of the alarms is in no turn.
        other = threading.Thread(target=lambda: seen.append(acting.epochs))
        other.start()
        other.join()
        assert seen == [None]
    assert acting.epochs is None
