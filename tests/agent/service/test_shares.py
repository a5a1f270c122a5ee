"""The shares of agents: each unit has one owner, few of them move, and never two agents lead a subject."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.ledger.leases import OBSERVES, AgentRecord, Lease, Moves, Roster
from agent.service import shares as module
from agent.service.shares import BATCHES, Managed, Shares, Unit, differences, managed_by, owner, shares, units, waits
from agent.settings import Settings
from domain.decisions import Mode
from domain.errors import LedgerUnavailable
from domain.subject import Subject, fleet_subject

NAMES = st.lists(st.text("abcdefgh", min_size=1, max_size=4), min_size=1, max_size=6, unique=True)
SUBJECTS = [fleet_subject(f"f{n}") for n in range(300)]
UNITS = units(SUBJECTS, [])


@given(agents=NAMES, more=st.text("xyz", min_size=1, max_size=3))
def test_a_new_agent_takes_only_what_becomes_its_own_and_what_it_leaves_moves_alone(
    agents: list[str], more: str
) -> None:
    for unit in UNITS[:60]:
        before, after = owner(unit, agents), owner(unit, [*agents, more])
        assert after in (before, more)


def test_three_agents_have_about_a_third_each() -> None:
    found = Counter(owner(unit, ["a", "b", "c"]) for unit in units([fleet_subject(f"f{n}") for n in range(3000)], []))
    assert all(900 <= number <= 1100 for number in found.values())
    assert owner(UNITS[0], []) is None


@given(
    subjects=st.sets(st.sampled_from(SUBJECTS[:12])),
    couples=st.lists(st.tuples(st.sampled_from(SUBJECTS[:12]), st.sampled_from(SUBJECTS[:12])), max_size=8),
)
def test_units_are_the_connected_components_of_the_subjects_that_there_are(
    subjects: set[Subject], couples: list[tuple[Subject, Subject]]
) -> None:
    found = units(subjects, couples)
    of = {subject: unit for unit in found for subject in unit}
    assert sum(map(len, found)) == len(of) == len(subjects)
    inside = [(one, other) for one, other in couples if {one, other} <= subjects]
    assert all(of[one] == of[other] for one, other in inside)
    # No smaller parts: without its couples a unit of several subjects would fall apart.
    assert len(found) >= len(subjects) - len(inside)
    alone = [unit for unit in found if not any(unit & {*pair} for pair in inside)]
    assert all(len(unit) == 1 for unit in alone)


def record(name: str, **about: object) -> AgentRecord:
    known = AgentRecord(name, f"host:{name}", "0014", settings=dict.fromkeys(SUBJECTS[:20], "d"))
    return replace(known, **about)  # type: ignore[arg-type]


def plan(name: str, wanted: Collection[Unit], there: Roster, **may: bool) -> Moves:
    return module.plan(name, shares(wanted, there), there, **{"may_give": True, **may})


def roster(*agents: AgentRecord, led: Mapping[Subject, str] | None = None) -> Roster:
    leases = {subject: Lease(name, f"host:{name}", n + 1) for n, (subject, name) in enumerate((led or {}).items())}
    return Roster({one.name: one for one in agents}, leases)


def applied(before: Roster, name: str, moves: Moves) -> Roster:
    """Return the roster after the moves of an agent, as the ledger makes them."""
    kept = {subject: one for subject, one in before.leases.items() if subject not in moves.give}
    taken = {one: Lease(name, f"host:{name}", 1000) for one in moves.take if one not in before.leases}
    return replace(before, leases={**kept, **taken})


@given(seed=st.integers(0, 2**32 - 1))
def test_agents_come_to_lead_their_shares_one_unit_at_a_time_and_never_two_lead_one(seed: int) -> None:
    dice = random.Random(seed)
    subjects = SUBJECTS[:20]
    pairs = [(dice.choice(subjects), dice.choice(subjects)) for _ in range(dice.randrange(6))]
    wanted = units(subjects, pairs)
    names = ["a", "b", "c"][: dice.randint(1, 3)]
    there = roster(*map(record, names), led={one: dice.choice(names) for one in subjects if dice.random() < 0.7})
    for _ in range(200):
        name = dice.choice(names)
        moves = plan(name, wanted, there, may_give=dice.random() < 0.8)
        mine = {subject for subject, lease in there.leases.items() if lease.agent == name}
        assert moves.give <= mine
        assert not moves.take & there.leases.keys()
        assert len([unit for unit in wanted if unit & moves.give]) <= 1
        there = applied(there, name, moves)
    for name in names:
        assert plan(name, wanted, there) == Moves()
    assert {subject: lease.agent for subject, lease in there.leases.items()} == {
        subject: owner(unit, names) for unit in wanted for subject in unit
    }


@pytest.mark.parametrize(("count", "together"), [(60, 1), (61, 2), (3000, 50)])
@hypothesis.settings(max_examples=3)
@given(seed=st.integers(0, 2**32 - 1))
def test_agents_that_come_late_have_their_shares_within_two_beats_a_batch(count: int, together: int, seed: int) -> None:
    dice = random.Random(seed)
    subjects = [fleet_subject(f"f{n}") for n in range(count)]
    of_all = dict.fromkeys(subjects, "d")
    names = ["a", "b", "c"]
    there = roster(*(record(name, settings=of_all) for name in names), led=dict.fromkeys(subjects, "a"))
    wanted = units(subjects, [])
    of = shares(wanted, there)
    free: dict[Subject, int] = {}
    # Two thirds of 60 batches, and each waits for one beat of a leader at most.
    for _ in range(2 * math.ceil(2 / 3 * BATCHES) + 8):
        for name in dice.sample(names, len(names)):
            moves = module.plan(name, of, there, may_give=True)
            assert len(moves.give) <= together
            assert not moves.take & there.leases.keys()
            # The batch before has been taken.
            assert not (moves.give and len(there.leases) < count)
            there = applied(there, name, moves)
        free = {one: free.get(one, 0) + 1 for one in subjects if one not in there.leases}
        assert max(free.values(), default=0) <= 1
    assert {unit: there.leases[next(iter(unit))].agent for unit in wanted} == of


def test_what_an_agent_must_not_lead_goes_at_once_but_not_within_a_turn() -> None:
    subjects = SUBJECTS[:20]
    there = roster(record("a", ready=False), record("b"), led=dict.fromkeys(subjects, "a"))
    assert plan("a", units(subjects, []), there) == Moves(give=frozenset(subjects), pending=True)
    assert plan("a", units(subjects, []), there, may_give=False) == Moves(pending=True)
    # Settings without a subject: its lease goes, whether anybody wants it or not.
    fewer = units(subjects[1:], [])
    assert plan("a", fewer, roster(record("a"), led=dict.fromkeys(subjects, "a"))).give == {subjects[0]}


def test_where_no_agent_is_ready_all_share() -> None:
    wanted = units(SUBJECTS[:20], [])
    assert {*shares(wanted, roster(record("a", ready=False), record("b", ready=False))).values()} == {"a", "b"}
    assert {*shares(wanted, roster(record("a", ready=False), record("b"))).values()} == {"b"}


OBSERVING = dict.fromkeys(SUBJECTS[:20], f"{OBSERVES}e")


def test_an_agent_that_observes_leads_only_what_no_agent_acts_on_and_is_no_conflict() -> None:
    wanted, observer = units(SUBJECTS[:20], []), record("b", settings=OBSERVING)
    there = roster(record("a"), observer, led=dict.fromkeys(SUBJECTS[:20], "b"))
    assert differences(there) == {}
    assert plan("b", wanted, there) == Moves(give=frozenset(SUBJECTS[:20]), pending=True)
    assert {*shares(wanted, roster(record("a", ready=False), observer)).values()} == {"a"}
    # A subject that the other one lacks, and one that is coupled to a subject on which it acts.
    fewer = record("a", settings=dict.fromkeys(SUBJECTS[:10], "d"))
    coupled = units(SUBJECTS[:20], [(SUBJECTS[9], SUBJECTS[10])])
    assert plan("b", coupled, roster(fewer, observer)).take == {*SUBJECTS[11:20]}
    # Agents that all observe share the subjects, and are compared.
    alike = roster(observer, record("c", settings=OBSERVING))
    assert {*shares(wanted, alike).values()} == {"b", "c"}
    differ = roster(observer, record("c", settings={**OBSERVING, SUBJECTS[0]: f"{OBSERVES}f"}))
    assert differences(differ).keys() == {SUBJECTS[0]}


def test_a_subject_whose_acting_agents_differ_stops_no_move_between_agents_that_observe() -> None:
    fleet, pool = SUBJECTS[0], Subject("placement", "p")
    acting = record("d", settings={fleet: "x", pool: "x"}), record("e", settings={pool: "y"})
    there = roster(
        *acting, *(record(name, settings=OBSERVING) for name in "ab"), led=dict.fromkeys(SUBJECTS[1:20], "a")
    )
    assert plan("d", units([fleet, pool], [(fleet, pool)]), there).take == set()
    wanted = units(SUBJECTS[:20], [])
    (given,) = plan("a", wanted, there).give
    assert shares(wanted, there)[frozenset({given})] == "b"


def test_an_agent_that_observes_waits_for_the_restart_of_one_that_acts() -> None:
    wanted, ended = units(SUBJECTS[:20], []), dict.fromkeys(SUBJECTS[:10], "a")
    there = replace(roster(record("b", settings=OBSERVING)), ended=ended)
    assert plan("b", wanted, there).take == {*SUBJECTS[10:20]}
    assert plan("c", wanted, replace(there, agents={"c": record("c")})).take == {*SUBJECTS[:20]}
    assert waits("b", there) == ""
    nothing = replace(there, ended=dict.fromkeys(SUBJECTS[:20], "a"))
    assert waits("b", nothing).startswith("a acted")


def test_shares_are_computed_again_after_a_change_only(monkeypatch: pytest.MonkeyPatch) -> None:
    found, calls = Shares(), []

    def counted(wanted: Collection[Unit], there: Roster) -> dict[Unit, str | None]:
        calls.append(there)
        return shares(wanted, there)

    monkeypatch.setattr(module, "shares", counted)
    wanted, there = units(SUBJECTS[:20], []), roster(record("a"), record("b"))
    for _ in range(3):
        # Rosters and units are read again each time.
        assert found(tuple(wanted), replace(there, agents={**there.agents})) == shares(wanted, there)
    assert len(calls) == 1
    observing = record("a", settings=OBSERVING)
    for changed in (
        roster(record("a")),
        roster(record("a", ready=False), record("b")),
        roster(observing),
        replace(roster(observing), ended={SUBJECTS[0]: "b"}),
    ):
        assert found(wanted, changed) == shares(wanted, changed)
    assert found(wanted[1:], there) == shares(wanted[1:], there)


def test_a_subject_whose_settings_differ_has_no_leader_and_both_agents_are_named() -> None:
    subjects = SUBJECTS[:20]
    other = {**dict.fromkeys(subjects, "d"), subjects[3]: "e"}
    there = roster(record("a"), record("b", settings=other), led=dict.fromkeys(subjects, "a"))
    (sentence,) = differences(there).values()
    assert differences(there).keys() == {subjects[3]}
    assert "a (process host:a)" in sentence
    assert "b (process host:b)" in sentence
    give = plan("a", units(subjects, []), there).give
    assert subjects[3] in give
    there = replace(there, leases={})
    takes = [plan(name, units(subjects, []), there).take for name in "ab"]
    assert frozenset.union(*takes) == {*subjects} - {subjects[3]}


def test_a_subject_that_one_agent_alone_has_in_its_settings_is_that_ones() -> None:
    subjects = SUBJECTS[:20]
    fewer = dict.fromkeys(subjects[:10], "d")
    there = roster(record("a", settings=fewer), record("b"))
    assert {*subjects[10:]} <= plan("b", units(subjects, []), there).take
    assert differences(there) == {}


class FakePart:
    """A part with two subjects, of which `web` is coupled to a subject of another part."""

    def __init__(self, name: str, sizes: Mapping[str, int], error: Exception | None = None) -> None:
        self.name, self.sizes, self.error = name, sizes, error

    def managed(self) -> tuple[str, ...]:
        if self.error is not None:
            raise self.error
        return tuple(self.sizes)

    def written(self, subject: str) -> str:
        return f"size={self.sizes[subject]}"

    def couples(self) -> list[tuple[Subject, Subject]]:
        return [(Subject("a", "web"), Subject("b", "web"))] if self.name == "a" else []


def managed(*parts: FakePart, mode: Mode = Mode.ACT, **others: object) -> Managed:
    return managed_by(parts, Settings(mode=mode, **others))  # type: ignore[arg-type]


@pytest.mark.parametrize("others", [{"grace_s": 6.0}, {"tick_interval_s": 30.0}, {"drift": "report"}])
def test_a_digest_covers_the_settings_of_all_subjects(others: dict[str, Any]) -> None:
    part = FakePart("a", {"web": 1, "api": 1})
    differ = managed(part).settings.items() ^ managed(part, **others).settings.items()
    assert len(differ) == 2 * len(part.sizes)
    # Where an agent writes its files, and how it is reached, is its own.
    assert managed(part, state_directory="/var/lib/other", log_level="debug") == managed(part)


def test_a_digest_covers_settings_unit_and_mode() -> None:
    first = managed(FakePart("a", {"web": 1, "api": 1}), FakePart("b", {"web": 1}))
    web = frozenset({Subject("a", "web"), Subject("b", "web")})
    assert {*first.units} == {web, frozenset({Subject("a", "api")})}
    changed = managed(FakePart("a", {"web": 1, "api": 1}), FakePart("b", {"web": 2}))
    assert {one for one in first.settings if first.settings[one] != changed.settings[one]} == web
    observing = managed(FakePart("a", {"web": 1, "api": 1}), FakePart("b", {"web": 1}), mode=Mode.OBSERVE)
    assert observing.settings == {one: OBSERVES + digest for one, digest in first.settings.items()}


def test_a_part_that_fails_costs_no_other_its_lead() -> None:
    there = managed(FakePart("a", {"web": 1}), FakePart("b", {"web": 1}, ValueError("a mistake in a plug-in")))
    assert there.settings.keys() == {Subject("a", "web")}
    with pytest.raises(LedgerUnavailable):
        managed(FakePart("a", {}, LedgerUnavailable("away")))


@pytest.mark.parametrize("led", [{}, dict.fromkeys(SUBJECTS[:20], "a")])
def test_an_agent_with_a_newer_schema_waits_until_the_older_ones_have_ended(led: Mapping[Subject, str]) -> None:
    wanted = units(SUBJECTS[:20], [])
    there = roster(record("a"), record("b", revision="0015", settings=dict.fromkeys(SUBJECTS[:20], "e")), led=led)
    assert plan("b", wanted, there) == Moves()
    after = applied(there, "a", plan("a", wanted, there))
    assert {lease.agent for lease in after.leases.values()} == {"a"}
    sentence = waits("b", there)
    assert "a (process host:a)" in sentence
    assert "b (process host:b)" in sentence
    assert waits("a", there) == ""
    assert waits("a", replace(there, older="old:1")).startswith("process old:1")
    alone = roster(record("b", revision="0015"))
    assert plan("b", wanted, alone).take == {*SUBJECTS[:20]}


def test_the_schema_of_an_agent_that_observes_stops_none_that_acts() -> None:
    wanted = units(SUBJECTS[:20], [])
    there = roster(record("a", revision="0015"), record("b", settings=OBSERVING))
    assert plan("a", wanted, there).take == {*SUBJECTS[:20]}
    assert plan("b", wanted, there).take == set()
    assert waits("a", there) == ""
    assert "0015" in waits("b", there)
