"""Advice on a pool's policy from its record: thirds of days, recorded fillings, and the file for the agent."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.placement.advice import PolicyAdvice, advice_file, read_advice
from agent.placement.choosing import SHIPPED, read_policy
from domain.errors import BadInput
from domain.rules.placement.instance import Instance
from domain.rules.placement.policies import BF, NAMED, WF
from domain.units import DAY_S, HOUR_S
from simulator.placement.instances import small
from tests.agent.placement.hosts import START
from tests.trainer.learning.recorded_placements import drawn
from trainer.commands.placement import LearnPlacement
from trainer.learning.placement_advice import MOST_FILLINGS, advise, fillings_of, last_advice, leave
from trainer.learning.placements import Life, PlacementRecord
from trainer.placement.advice import bundled

POLICIES = bundled(read_policy(SHIPPED))


def filled(*instances: Instance, gone: bool = True) -> PlacementRecord:
    """A record of fillings a day apart, each empty after twelve hours; gone: the last one too."""
    lives = []
    for number, one in enumerate(instances):
        begin = START + DAY_S * number
        for k, request in enumerate(one.requests):
            ends = (begin + 12 * HOUR_S,) * request.count if gone or number < len(instances) - 1 else ()
            name = f"{number}-{request.name}"
            lives.append(Life(name, f"{number}-{request.application}", request.count, begin + 1.0 + k, ends))
    apps = [
        replace(app, name=f"{number}-{app.name}", excludes=frozenset(f"{number}-{other}" for other in app.excludes))
        for number, one in enumerate(instances)
        for app in one.applications
    ]
    basis = replace(instances[0], applications=tuple(apps), requests=(), releases=())
    return PlacementRecord("main", basis, tuple(lives), START, START + len(instances) * DAY_S, 0)


@pytest.mark.parametrize(("applications", "hosts", "replayed"), [(30, 666, True), (30, 667, False)])
def test_small_pools_is_replayed_where_its_decisions_take_little_time(
    applications: int, hosts: int, *, replayed: bool
) -> None:
    one = filled(small(9000))
    assert len(one.basis.applications) == applications
    many = replace(one.basis, hosts=(replace(one.basis.hosts[0], count=hosts),))
    second = tuple(
        replace(life, request=f"{life.request}b", begin=life.begin + DAY_S, ends=(life.begin + 2 * DAY_S,) * life.count)
        for life in one.lives
    )
    recorded = replace(one, basis=many, lives=(*one.lives, *second), until=START + 3 * DAY_S)
    found = advise(recorded, POLICIES, ("bf", BF), None, recorded.until)
    assert "wf" in found.costs
    assert ("small-pools" in found.costs) is replayed


def test_a_pool_whose_containers_end_is_advised_by_thirds_of_its_record() -> None:
    recorded = drawn(hours=80)
    replayed: list[str] = []
    found = advise(recorded, POLICIES, ("wf", WF), None, recorded.until, replayed.append)
    assert sorted(replayed) == sorted(found.costs)
    assert found.advised in {"oldest", "ff", "lifetime"}
    assert (found.policy, found.policy_digest, found.changed_at) == ("wf", WF.digest, recorded.until)
    ours, theirs = found.costs[found.advised], found.costs["wf"]
    assert all(mine <= 0.98 * other for mine, other in zip(ours, theirs, strict=True))
    # With the advised policy in use there is none.
    stays = advise(recorded, POLICIES, (found.advised, NAMED[found.advised]), found, recorded.until + 60.0)
    assert (stays.advised, stays.changed_at) == ("", 0.0)


def test_two_days_are_too_few() -> None:
    recorded = drawn(hours=48)
    found = advise(recorded, POLICIES, ("wf", WF), None, recorded.until)
    assert (found.advised, found.costs) == ("", {})
    assert "2.0 recorded days, 3 are needed" in found.why


def test_a_pool_that_fills_again_and_again_is_advised_after_two_fillings() -> None:
    first, second, third = (small(seed) for seed in (9000, 9001, 9002))
    once = advise(filled(first), POLICIES, ("bf", BF), None, START + DAY_S)
    assert (once.advised, once.costs) == ("", {})
    found = advise(filled(first, second), POLICIES, ("bf", BF), None, START + 2 * DAY_S)
    assert found.advised == "dp"
    assert len(found.costs["bf"]) == 2
    assert sum(found.costs[found.advised]) < sum(found.costs["bf"]) - 4.0
    # A filling under way is not one of them, and does not hinder.
    assert len(fillings_of(filled(first, second, third, gone=False))) == 2
    assert len(fillings_of(filled(first, second, third))) == 3


def test_a_filling_has_no_container_of_another_one_that_ends_or_begins_within_a_second() -> None:
    recorded = filled(small(9000), small(9001))
    first = sum(life.request.startswith("0-") for life in recorded.lives)
    later = recorded.lives[first].begin - START - 12 * HOUR_S - 0.5
    moved = [
        replace(life, begin=life.begin - later, ends=tuple(end - later for end in life.ends)) if k >= first else life
        for k, life in enumerate(recorded.lives)
    ]
    found = fillings_of(replace(recorded, lives=tuple(moved)))
    assert [{request.name[0] for request in one.requests} for one in found] == [{"0"}, {"1"}]


def test_the_newest_fillings_are_replayed_and_fit_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    costs = dict.fromkeys(POLICIES, (100.0 / 7.0,) * MOST_FILLINGS)
    leave(tmp_path, PolicyAdvice("main", 1.0, "bf", BF.digest, "oldest", "", 1.0, 3.0, costs))
    assert read_advice(tmp_path, "main") is not None
    monkeypatch.setattr("trainer.learning.placement_advice.MOST_FILLINGS", 2)
    three = filled(*(small(seed) for seed in (9000, 9001, 9002)))
    found = advise(three, POLICIES, ("bf", BF), None, START + 3 * DAY_S)
    last = replace(three, lives=tuple(one for one in three.lives if not one.request.startswith("0-")))
    assert found.costs == advise(last, POLICIES, ("bf", BF), None, START + 3 * DAY_S).costs


def test_nothing_is_advised_by_hosts_on_which_the_policy_in_use_could_not_have_placed_the_record() -> None:
    """The replay has the hosts of now: those of a fleet that shrank are fewer than the record's."""
    recorded = drawn(hours=80)
    assert advise(recorded, POLICIES, ("wf", WF), None, recorded.until).advised
    few = replace(recorded, basis=replace(recorded.basis, hosts=(replace(recorded.basis.hosts[0], count=20),)))
    found = advise(few, POLICIES, ("wf", WF), None, recorded.until)
    assert found.costs
    assert found.advised == ""


def test_a_round_needs_no_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as where the models directory takes no file, or a champion is refused that does not decide."""

    class Begun(Exception):
        pass

    def begun(*_: object) -> None:
        raise Begun

    def full(_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    nothing: Any = None
    monkeypatch.setattr(LearnPlacement, "_advise", full)
    monkeypatch.setattr(LearnPlacement, "set_aside", lambda _: None)
    monkeypatch.setattr("trainer.learning.placements.kept_windows", begun)
    with pytest.raises(Begun):
        LearnPlacement(ctx=nothing, name="main", ledger="ledger.db", out=Path("out")).round()


def test_a_stretch_in_which_containers_end_is_no_filling() -> None:
    recorded = filled(small(9000), small(9001))
    early = [
        replace(life, ends=(life.begin + 1.0,) * life.count) if k % 5 == 0 else life
        for k, life in enumerate(recorded.lives)
    ]
    assert fillings_of(replace(recorded, lives=tuple(early))) == ()
    short = replace(recorded, lives=tuple(replace(one, count=1, ends=one.ends[:1]) for one in recorded.lives[:19]))
    assert fillings_of(short) == ()


def test_the_advice_is_left_for_the_agent_and_changes_once_a_day(tmp_path: Path) -> None:
    recorded = drawn(hours=80)
    found = advise(recorded, POLICIES, ("wf", WF), None, recorded.until)
    assert last_advice(tmp_path, "main") is None
    leave(tmp_path / "models", found)
    assert read_advice(tmp_path / "models", "main") == found
    changed = replace(found, advised="bf")
    later = advise(recorded, POLICIES, ("wf", WF), changed, recorded.until + HOUR_S)
    assert (later.advised, later.changed_at) == ("bf", recorded.until)
    # The figures are of the policy that it waits for.
    assert later.why.startswith(found.why)


def test_a_damaged_or_foreign_file_is_refused(tmp_path: Path) -> None:
    advice = PolicyAdvice("main", 1.0, "bf", BF.digest, "oldest", "", 1.0, 3.0, {"bf": (1.0, 1.0, 1.0)})
    file = leave(tmp_path, advice)
    file.rename(advice_file(tmp_path, "other"))
    with pytest.raises(BadInput, match="it is about main"):
        read_advice(tmp_path, "other")
    file.write_text('{"pool": "main", "at": NaN}')
    with pytest.raises(BadInput):
        read_advice(tmp_path, "main")
    assert last_advice(tmp_path, "main") is None
