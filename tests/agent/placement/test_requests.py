"""Two phases: hosts are reserved, then confirmed or cancelled, then released; each asked again changes nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from agent.kernel.decision import Capacity
from agent.ledger import Ledger
from agent.placement.records import Stage
from domain.clock import VirtualClock
from domain.controls import Pause, PauseScope
from domain.decisions import Mode, Reason
from domain.errors import BadInput, StateConflict, UnknownName
from domain.rules.placement.cluster import Choice, Scored, best_of
from tests.agent.placement.hosts import START, app, ask, held, inventory, kind, made


class TestARequest:
    def test_gets_a_host_for_each_container_with_the_reasons(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory(), policy="bf")
        decision = pool.request(ask("r1", count=5))
        assert [one.host for one in decision.containers] == ["large-1"] * 4 + ["large-2"]
        assert [one.opened for one in decision.containers] == [True, False, False, False, True]
        assert (decision.decision_id, decision.reason, decision.open_hosts) == ("main-p1", Reason.PLACED, 2)
        assert decision.until == START + 300.0
        first = decision.containers[0]
        # Closed hosts of one size count as one.
        assert (first.feasible, first.runner_up, first.policy) == (1, None, "BF")
        (best,) = decision.best
        assert best.host == "large-1"
        assert best.score == pytest.approx(sum(best.terms.values()))

    def test_that_does_not_fit_as_a_whole_reserves_nothing(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory())
        decision = pool.request(ask("r1", count=17))
        assert (decision.reason, decision.containers, decision.unplaced) == (Reason.NO_HOST, (), 17)
        assert decision.infeasible == {"cpu": 4}
        assert held(pool) == {}
        assert pool.view().figures.open_hosts == 0
        assert len(pool.request(ask("r2", count=16)).containers) == 16

    def test_takes_what_fits_where_it_may_be_partial(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory(app("shop", limit=1)))
        decision = pool.request(ask("r1", count=6, partial=True))
        assert (decision.reason, decision.unplaced) == (Reason.PLACED_IN_PART, 2)
        assert [one.host for one in decision.containers] == ["large-1", "large-2", "large-3", "large-4"]
        assert decision.infeasible == {"limit": 4}
        assert "2 found no host (limit 4)" in decision.detail

    def test_of_an_unknown_application_names_those_there_are(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory())
        with pytest.raises(UnknownName, match=r"application is 'nothing': .*: mail, shop$"):
            pool.request(ask("r1", "nothing"))
        assert pool.store.decision("main", "r1") is None

    @pytest.mark.parametrize("count", [0, -1, 5001, True])
    def test_with_a_count_that_is_none_is_refused(self, ledger: Ledger, clock: VirtualClock, count: int) -> None:
        pool = made(ledger, clock, inventory())
        with pytest.raises(BadInput, match="from 1 to 5000"):
            pool.request(ask("r1", count=count))

    @pytest.mark.parametrize("name", ["", "a/b", " r", "x" * 129, "a\nb"])
    def test_with_an_id_that_may_not_stand_in_a_path_is_refused(
        self, ledger: Ledger, clock: VirtualClock, name: str
    ) -> None:
        pool = made(ledger, clock, inventory())
        with pytest.raises(BadInput, match="request_id"):
            pool.request(ask(name))

    def test_is_refused_while_the_pool_is_paused(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory())
        ledger.pause("placement", "main", Pause(PauseScope.ALL, "ada", "move", clock.now(), None))
        with pytest.raises(StateConflict, match="ada"):
            pool.request(ask("r1"))
        ledger.resume("placement", "main", PauseScope.ALL, at=clock.now(), owner="ada")
        assert pool.request(ask("r1")).containers

    def test_is_advice_alone_in_observe_mode(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory(), mode=Mode.OBSERVE)
        decision = pool.request(ask("r1", count=2))
        assert (decision.advice, [one.host for one in decision.containers]) == (True, ["large-1", "large-1"])
        assert held(pool) == {}
        assert pool.view().figures.open_hosts == 0
        assert pool.request(ask("r1", count=3)).count == 3

    def test_in_an_empty_pool_says_so(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory(app("shop"), hosts=[kind(count=0), kind("other", count=0)]))
        assert "the pool has no hosts" in pool.request(ask("r1")).detail

    def test_says_how_many_cores_are_on_their_way(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory(hosts=[kind(count=0)]), behind=Capacity(pending=32.0))
        assert pool.request(ask("r1")).detail.endswith("32 cores are on their way")

    def test_on_hosts_without_bound_always_finds_one(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory(app("shop", limit=1), hosts=[kind(count=None)]))
        assert [one.host for one in pool.request(ask("r1", count=7)).containers] == [f"large-{n}" for n in range(1, 8)]
        again = made(ledger, clock)
        assert [one.host for one in again.request(ask("r2", count=2)).containers] == ["large-8", "large-9"]


class TestAReservation:
    def test_lasts_once_it_is_confirmed(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory(), confirm_within_s=60.0)
        pool.request(ask("r1"))
        first = pool.confirm("r1")
        assert (first.already, first.reservation and first.reservation.stage) == (False, Stage.CONFIRMED)
        assert pool.confirm("r1").already
        clock.advance(1000.0)
        pool.lapse(epoch=1)
        assert held(pool) == {"r1": ["large-1"]}

    def test_leaves_nothing_in_memory_once_it_ended(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory())
        for n in range(20):
            pool.request(ask(f"r{n}"))
            pool.confirm(f"r{n}")
            pool.release(f"r{n}")
        pool.request(ask("last"))
        pool.lapse(epoch=1)
        assert len(pool._first_seen) == 1

    def test_gives_its_hosts_back_where_it_is_not_confirmed_in_time(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory(), confirm_within_s=60.0)
        pool.request(ask("r1", count=16))
        clock.advance(61.0)
        with pytest.raises(StateConflict, match="it lapsed"):
            pool.confirm("r1")
        assert len(pool.request(ask("r2", count=16)).containers) == 16
        assert pool.view().head.lapsed == 1
        reasons = [entry.reason for entry in ledger.journal()]
        assert Reason.PLACEMENT_LAPSED in reasons

    def test_is_not_ended_by_a_clock_that_is_set(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory(), confirm_within_s=60.0)
        pool.request(ask("r1"))
        clock.step(86_400.0)
        assert not pool.confirm("r1").already

    def test_can_be_cancelled_until_it_is_confirmed(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory())
        pool.request(ask("r1", count=16))
        assert not pool.cancel("r1").already
        assert pool.cancel("r1").already
        with pytest.raises(StateConflict, match="was cancelled"):
            pool.confirm("r1")
        pool.request(ask("r2", count=16))
        pool.confirm("r2")
        with pytest.raises(StateConflict, match="release its containers"):
            pool.cancel("r2")

    def test_that_never_was_is_unknown(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory())
        for order in (pool.confirm, pool.cancel, pool.release):
            with pytest.raises(UnknownName, match="no request of this id"):
                order("r9")


class TestARelease:
    def test_takes_the_containers_that_it_names(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory(app("shop", limit=1)))
        pool.request(ask("r1", count=4))
        pool.confirm("r1")
        pool.release("r1", [1, 3])
        assert held(pool) == {"r1": ["large-1", "large-3"]}
        assert [one.host for one in pool.request(ask("r2", count=2)).containers] == ["large-2", "large-4"]

    def test_of_all_of_them_ends_the_request(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory())
        pool.request(ask("r1", count=4))
        pool.confirm("r1")
        assert pool.release("r1").reservation is not None
        assert held(pool) == {}
        assert pool.release("r1").already
        with pytest.raises(UnknownName):
            pool.release("r2")

    def test_again_changes_nothing(self, ledger: Ledger, clock: VirtualClock) -> None:
        """A client that got no answer asks again, with the same containers or with more of them."""
        pool = made(ledger, clock, inventory())
        pool.request(ask("r1", count=4))
        pool.confirm("r1")
        first = pool.release("r1", [0, 1])
        rows = len(ledger.journal())
        again = pool.release("r1", [1, 0])
        assert (first.already, again.already, again.reservation) == (False, True, first.reservation)
        assert len(ledger.journal()) == rows
        assert pool.release("r1", [1, 2]).reservation is not None
        assert held(pool) == {"r1": ["large-1"]}
        assert pool.release("r1").already is False
        assert pool.release("r1", [0]).already
        with pytest.raises(StateConflict, match="not confirmed"):
            pool.move("r1", 0, "large-2")

    @pytest.mark.parametrize(
        ("containers", "error", "words"),
        [
            ([7], UnknownName, "no such container"),
            ([1, 7], UnknownName, "no such container"),
            ([], BadInput, "at least one"),
        ],
    )
    def test_of_what_does_not_run_changes_nothing(
        self, ledger: Ledger, clock: VirtualClock, containers: list[int], error: type[BadInput], words: str
    ) -> None:
        pool = made(ledger, clock, inventory())
        pool.request(ask("r1", count=3))
        pool.confirm("r1")
        pool.release("r1", [0])
        with pytest.raises(error, match=words):
            pool.release("r1", containers)
        assert held(pool) == {"r1": ["large-1", "large-1"]}

    def test_before_it_was_confirmed_is_a_conflict(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory())
        pool.request(ask("r1"))
        with pytest.raises(StateConflict, match="not confirmed"):
            pool.release("r1")


class TestWhatWouldBe:
    def test_is_placed_on_a_copy(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory())
        pool.request(ask("r1", count=3))
        part = ask("what-if", "shop", 16, partial=True)
        found = pool.what_if([ask("what-if", "mail", 2), ask("what-if", "shop", 16), part])
        assert [one.hosts[:2] for one in found.requests] == [("large-1", "large-2"), (), ("large-2", "large-2")]
        assert [(one.unplaced, one.opened) for one in found.requests] == [(0, 1), (16, 0), (5, 2)]
        assert (found.open_before, found.open_after) == (1, 4)
        assert pool.view().figures.open_hosts == 1
        assert pool.what_if([ask("what-if", "mail", 2)]).requests[0].hosts == ("large-1", "large-2")

    def test_keeps_no_request_waiting(self, ledger: Ledger, clock: VirtualClock) -> None:
        answered: list[int] = []

        def asked_meanwhile(found: Scored) -> Choice | None:
            with ThreadPoolExecutor(1) as other:
                answered.append(len(other.submit(pool.reservations).result(timeout=60.0)))
            return best_of(found)

        pool = made(ledger, clock, inventory(), pick=asked_meanwhile)
        pool.what_if([ask("what-if", "mail", 1)])
        assert answered == [0]

    def test_capacity_for_counts_what_fits_now(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory(app("shop"), app("single", limit=1, excludes=["shop"])))
        pool.request(ask("r1"))
        assert (
            pool.capacity_for("shop").containers,
            pool.capacity_for("single").containers,
        ) == (15, 3)
        assert pool.capacity_for("single").infeasible == {"exclusion": 1}

    def test_explains_the_best_hosts_by_the_terms_of_their_scores(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory(app("shop"), app("single", limit=1)), policy="wf")
        pool.request(ask("r1", "single", count=2))
        found = pool.explained("shop")
        assert [one.host for one in found.best] == ["large-1", "large-2"]
        assert set(found.best[0].terms) == {"residual cores", "residual memory_gib", "residual disk_gb"}
        assert found.policy == "WF"

    def test_explains_small_pools_by_the_places_that_others_lose(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory(app("shop"), app("single", 12, limit=1)), policy="small-pools")
        pool.request(ask("r1", "shop"))
        lost = pool.explained("shop").best[0].terms["places1 places lost"]
        assert lost < 0.0
        pool.request(ask("r2", "single"))
        assert pool.explained("shop").best[0].terms["places1 places lost"] == 0.0


class TestRepacking:
    def test_is_a_plan_whose_moves_are_reported_one_by_one(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory(), policy="bf")
        for n in range(3):
            pool.request(ask(f"r{n}", count=3))
            pool.confirm(f"r{n}")
        pool.release("r0", [0, 1])
        pool.release("r2", [0])
        # Of four places on each of three hosts six are taken: one host can be emptied.
        plan = pool.plan_repack(10)
        assert (plan.open_hosts, plan.closed, plan.violations) == (3, 1, 0)
        assert pool.view().figures.open_hosts == 3
        for move in plan.moves:
            after = pool.move(move.request_id, move.container, move.target)
            assert after.reservation is not None
            assert after.reservation.hosts[str(move.container)] == move.target
            assert pool.move(move.request_id, move.container, move.target).already
        assert pool.view().figures.open_hosts == 2
        assert made(ledger, clock).hosts() == pool.hosts()
        assert pool.plan_repack(10).moves == ()

    def test_a_container_is_not_moved_to_where_it_cannot_be(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory(app("shop", limit=1)))
        pool.request(ask("r1", count=2))
        with pytest.raises(StateConflict, match="not confirmed"):
            pool.move("r1", 0, "large-3")
        pool.confirm("r1")
        with pytest.raises(StateConflict, match="does not take it"):
            pool.move("r1", 0, "large-2")
        with pytest.raises(UnknownName, match="no such container"):
            pool.move("r1", 7, "large-3")
        with pytest.raises(UnknownName, match="no host of this name"):
            pool.move("r1", 0, "nothing")
        assert held(pool) == {"r1": ["large-1", "large-2"]}


def test_what_it_holds_is_there_after_a_start_anew(ledger: Ledger, clock: VirtualClock) -> None:
    pool = made(ledger, clock, inventory(app("shop", limit=1), app("mail")))
    pool.request(ask("r1", count=3))
    pool.confirm("r1")
    pool.release("r1", [1])
    pool.request(ask("r2", "mail", count=2))
    again = made(ledger, clock)
    assert (again.reservations(), again.hosts()) == (pool.reservations(), pool.hosts())
    assert again.view().figures == pool.view().figures
    assert again.request(ask("r3", "mail")) == pool.request(ask("r3", "mail"))
