"""The record of a placement pool as windows: what was requested, when it ended, and what ran before."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.ledger import Ledger, codec, state
from agent.placement.state import HEADS, PlacementStore
from domain.clock import VirtualClock
from domain.errors import BadInput
from domain.rules.placement.instance import as_document, parse_instance
from domain.rules.placement.policies import BF, FF, WF
from domain.units import DAY_S, HOUR_S
from tests.agent.placement.hosts import START, app, ask, inventory, kind, made
from tests.trainer.learning.recorded_placements import INVENTORY, lived
from trainer.learning.placements import default_policy, kept_windows, read_placements, reordered, window_of, windows_of
from trainer.learning.windows import TooLittle
from trainer.placement.evaluation import Case, FigureWrong

HOURS = 20
END = START + HOURS * HOUR_S + 1.0


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(lived(tmp_path_factory.mktemp("pool"), HOURS))


def test_every_request_is_read_with_its_ends(ledger: str) -> None:
    recorded = read_placements(ledger, "main", START, END)
    # One request in eleven was cancelled before it was confirmed.
    cancelled = [number for number in range(HOURS * 4) if number % 11 == 5]
    assert [int(life.request[1:]) for life in recorded.lives] == [
        number for number in range(HOURS * 4) if number not in cancelled
    ]
    assert len(cancelled) <= recorded.left_out <= 3 * len(cancelled)
    assert sum(len(life.ends) == life.count for life in recorded.lives) > HOURS
    for life in recorded.lives:
        assert all(end >= life.begin for end in life.ends)


def test_containers_lost_with_their_host_end_with_it(tmp_path: Path) -> None:
    path, clock = tmp_path / "ledger.db", VirtualClock(START)
    with Ledger.open(f"sqlite:///{path}") as opened:
        pool = made(opened, clock, inventory(app("shop"), hosts=[kind(count=1)]), policy="bf")
        pool.request(ask("r1", count=2))
        pool.confirm("r1")
        clock.advance(HOUR_S)
        pool.fail("large")
    (life,) = read_placements(str(path), "main", START, START + DAY_S).lives
    assert life.ends == (START + HOUR_S,) * 2


def test_ends_that_an_earlier_version_recorded_are_read_from_their_words(
    ledger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = read_placements(ledger, "main", START, END)
    events = PlacementStore._events

    def without_data(store: PlacementStore, *args: Any) -> Any:
        return [(*row[:3], {**row[3], "data": {}}) for row in events(store, *args)]

    monkeypatch.setattr(PlacementStore, "_events", without_data)
    assert read_placements(ledger, "main", START, END) == now


def test_the_policy_where_the_settings_name_none_is_that_of_the_recorded_pool(ledger: str, tmp_path: Path) -> None:
    earlier = tmp_path / "earlier.db"
    shutil.copy(ledger, earlier)
    with Ledger.open(f"sqlite:///{earlier}") as opened:
        head = replace(PlacementStore(opened).read("main").head, default_policy="bf")
        with opened.database.write() as connection:
            state.put(connection, [("main", HEADS.key, codec.encode(head))])
    assert (default_policy(ledger, "main"), default_policy(str(earlier), "main")) == ("lifetime", "bf")


def test_windows_begin_with_what_ran_and_end_with_it(ledger: str) -> None:
    recorded = read_placements(ledger, "main", START, END)
    whole = window_of(recorded, START, END)
    assert len(whole.requests) == len(recorded.lives)
    later = window_of(recorded, START + 10 * HOUR_S, START + 11 * HOUR_S)
    warm = [request for request in later.requests if request.at_s == 0.0]
    running = {
        life.request: life.count - len([end for end in life.ends if end <= START + 10 * HOUR_S])
        for life in recorded.lives
        if life.begin <= START + 10 * HOUR_S
    }
    assert {one.name: one.count for one in warm} == {name: left for name, left in running.items() if left}
    assert all(0.0 <= end.at_s <= HOUR_S for end in later.releases)
    assert parse_instance(as_document(later))[0] == later


def test_a_request_of_the_window_declares_the_recorded_lifetime(ledger: str) -> None:
    recorded = read_placements(ledger, "main", START, END)
    window = window_of(recorded, START + 10 * HOUR_S + 1.0, START + 15 * HOUR_S)
    found = {(request.at_s > 0.0, int(request.name[1:]) % 2, request.lifetime_s) for request in window.requests}
    assert found == {(False, 0, None), (False, 1, None), (True, 0, None), (True, 1, 4 * HOUR_S)}


def test_a_window_played_as_it_was_costs_what_was_lived(ledger: str) -> None:
    recorded = read_placements(ledger, "main", START, END)
    case = Case.of(window_of(recorded, START, END), END - START)
    # Worst fit decided, so that the same policy opens the same hosts again.
    assert case.checked_cost(WF) == case.cost(WF)
    assert case.cost(BF) < case.cost(WF)
    assert 0.0 < case.bound() <= case.cost(BF)


def test_another_order_has_the_same_containers_for_the_same_times(ledger: str) -> None:
    recorded = read_placements(ledger, "main", START, END)
    window = window_of(recorded, START + 5 * HOUR_S, START + 12 * HOUR_S)
    other = reordered(window, 7)
    assert reordered(window, 7) == other != reordered(window, 8)

    def lasting(instance: object) -> list[tuple[str, int, list[float]]]:
        begun = {request.name: request.at_s for request in instance.requests}  # type: ignore[attr-defined]
        return sorted(
            (
                request.application,
                request.count,
                sorted(
                    round(end.at_s - begun[request.name], 3)
                    for end in instance.releases  # type: ignore[attr-defined]
                    if end.request == request.name
                ),
            )
            for request in instance.requests  # type: ignore[attr-defined]
        )

    assert lasting(other) == lasting(window)
    assert sorted(one.at_s for one in other.requests) == sorted(one.at_s for one in window.requests)
    assert Case.of(other, 7 * HOUR_S).checked_cost(FF) > 0.0


def test_a_simulator_that_counts_wrongly_is_found(ledger: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = read_placements(ledger, "main", START, END)
    case = Case.of(window_of(recorded, START, START + 4 * HOUR_S), 4 * HOUR_S)
    true = case.cost(BF)
    monkeypatch.setattr(Case, "cost", lambda self, policy: true + 0.5)
    with pytest.raises(FigureWrong, match="by the plain rules"):
        case.checked_cost(BF)


def test_a_bound_of_what_is_without_releases_is_that_of_the_instance(ledger: str) -> None:
    recorded = read_placements(ledger, "main", START, END)
    still = replace(window_of(recorded, START, START + 2 * HOUR_S), releases=())
    case = Case.of(still, 2 * HOUR_S)
    assert case.length_s == 0.0
    assert case.bound() <= case.checked_cost(BF)
    assert case.cost(BF) == int(case.cost(BF))


def test_the_latest_two_fifths_are_held_out_and_kept_for_a_round_that_goes_on(ledger: str, tmp_path: Path) -> None:
    recorded = read_placements(ledger, "main", START, END)
    found = windows_of(recorded)
    assert (len(found.earlier), len(found.held_out)) == (10, 6)
    kept, digest = kept_windows(tmp_path / "round", lambda: recorded)
    again, same = kept_windows(tmp_path / "round", lambda: pytest.fail("it is kept"))
    assert (again, same) == (kept, digest)
    assert kept == found
    (tmp_path / "round" / "windows.json.gz").write_bytes(b"cut")
    with pytest.raises(BadInput, match="it is cut or changed"):
        kept_windows(tmp_path / "round", lambda: recorded)


def test_too_short_a_record_says_how_much_is_missing(tmp_path: Path) -> None:
    short = str(lived(tmp_path, 3))
    with pytest.raises(TooLittle, match=r"windows of 1 h .* \d+ are"):
        windows_of(read_placements(short, "main", START, START + 3 * HOUR_S))
    with pytest.raises(BadInput, match="no request was placed"):
        read_placements(short, "main", START + 9 * HOUR_S, START + 10 * HOUR_S)
    with pytest.raises(BadInput, match="has no inventory of it"):
        read_placements(short, "other", START, END)


def test_the_inventory_is_one_that_the_pool_takes() -> None:
    assert parse_instance(INVENTORY)[0].hosts[0].count == 60
