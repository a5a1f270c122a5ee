"""Garbage is collected between turns, and what was there at the start is not looked at again."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from agent.service.chores import collect_between_turns, freeze_live_objects


class Thing:
    itself: Thing | None = None


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


@pytest.mark.exhaustive
def test_what_is_alive_at_the_start_is_set_aside_and_what_comes_later_is_collected() -> None:
    freeze_live_objects()
    set_aside = gc.get_freeze_count()
    assert set_aside > 1000
    thing = Thing()
    thing.itself = thing
    seen = weakref.ref(thing)
    del thing
    collect_between_turns()
    assert seen() is None
    # What is set aside still dies when nothing refers to it any more.
    assert 0.9 * set_aside < gc.get_freeze_count() <= set_aside
