"""`pause`, `resume`, `pin` and `unpin` write straight to the ledger, with an owner, a reason and an end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.autoscaling.pins import spread
from agent.ledger import Ledger
from domain.controls import Controls, Pause, PauseScope, Pin
from domain.errors import BadInput
from domain.fleet import Fleet, Group, VmType
from tests.agent.commands.conftest import Trimtab
from tests.agent.commands.recorded import START, fleet

pytestmark = pytest.mark.usefixtures("at_200_s")
NOW = START + 200.0


def controls(url: str) -> Controls:
    with Ledger.open(url, read_only=True) as book:
        return book.controls("autoscaling", "web")


class TestPause:
    def test_it_holds_one_direction_for_a_time(self, trimtab: Trimtab, ledger: str) -> None:
        assert trimtab("pause", "in", "--reason", "load test", "--for", "2h").exit_code == 0
        assert controls(ledger).pauses == (Pause(PauseScope.IN, "ada", "load test", NOW, NOW + 7200),)

    def test_it_may_last_until_resumed_and_the_user_behind_sudo_owns_it(
        self, trimtab: Trimtab, ledger: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("USER", "root")
        monkeypatch.setenv("SUDO_USER", "grace")
        assert trimtab("pause", "all", "--reason", "x").exit_code == 0
        assert controls(ledger).pauses == (Pause(PauseScope.ALL, "grace", "x", NOW, None),)

    def test_a_cluster_of_the_settings_is_paused_by_its_name(
        self, trimtab: Trimtab, ledger: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TRIMTAB_CLUSTERS__staging__CAPACITY_CORES", "256")
        assert trimtab("pause", "all", "--fleet", "staging", "--reason", "moving").exit_code == 0
        with Ledger.open(ledger, read_only=True) as book:
            assert book.controls("admission", "staging").pauses == (Pause(PauseScope.ALL, "ada", "moving", NOW, None),)
        assert controls(ledger).pauses == ()
        assert trimtab("resume", "--fleet", "staging").exit_code == 0
        with Ledger.open(ledger, read_only=True) as book:
            assert book.controls("admission", "staging").pauses == ()

    def test_a_name_that_two_decisions_have_is_refused_with_both(
        self, trimtab: Trimtab, ledger: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TRIMTAB_CLUSTERS__web__CAPACITY_CORES", "256")
        for refused in (
            trimtab("pause", "all", "--subject", "web", "--reason", "moving"),
            trimtab("pause", "all", "--fleet", "web", "--reason", "moving"),
            trimtab("resume", "--subject", "web"),
            trimtab("explain", "web"),
        ):
            assert (refused.exit_code, "autoscaling/web, admission/web" in refused.stderr) == (2, True)
        assert trimtab("pause", "all", "--subject", "admission/web", "--reason", "moving").exit_code == 0
        assert controls(ledger).pauses == ()
        with Ledger.open(ledger, read_only=True) as book:
            assert [pause.reason for pause in book.controls("admission", "web").pauses] == ["moving"]
        assert "no pause" in trimtab("resume", "--subject", "autoscaling/web").stdout
        assert trimtab("resume", "--subject", "admission/web").stdout.startswith("admission/web: every change is")

    @pytest.mark.parametrize("rest", [(), ("--reason", "x", "--for", "soon")], ids=["no reason", "no duration"])
    def test_a_wrong_order_changes_nothing(self, trimtab: Trimtab, ledger: str, rest: tuple[str, ...]) -> None:
        assert trimtab("pause", "all", *rest).exit_code == 2
        assert controls(ledger).pauses == ()

    def test_it_works_although_another_setting_is_wrong(
        self, trimtab: Trimtab, ledger: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TRIMTAB_MODE", "nonsense")
        assert trimtab("pause", "out", "--reason", "x").exit_code == 0

    def test_resume_lifts_one_and_names_what_still_holds(self, trimtab: Trimtab, ledger: str) -> None:
        trimtab("pause", "in", "--reason", "a")
        trimtab("pause", "out", "--reason", "b", "--owner", "bob")
        assert "bob" in trimtab("resume", "in").stdout
        assert [pause.owner for pause in controls(ledger).pauses] == ["bob"]
        assert trimtab("resume").exit_code == 0
        assert controls(ledger).pauses == ()


class TestPin:
    def test_one_group(self, trimtab: Trimtab, ledger: str) -> None:
        trimtab("pin", "3", "--for", "1d", "--reason", "large jobs", "--group", "workers_l")
        assert controls(ledger).pin == Pin({"workers_l": 3}, "ada", "large jobs", NOW, NOW + 86_400)

    def test_the_whole_fleet_from_its_present_sizes(self, trimtab: Trimtab, ledger: str) -> None:
        trimtab("pin", "6", "--for", "2h", "--reason", "launch", "--owner", "bob")
        assert controls(ledger).pin == Pin({"workers_s": 4, "workers_l": 2}, "bob", "launch", NOW, NOW + 7200)
        assert "bob" in trimtab("pin", "3", "--for", "2h", "--reason", "more").stdout, "whose place it takes"

    @pytest.mark.parametrize(
        ("arguments", "bounds"),
        [
            (["8"], "1 to 7"),
            (["0"], "1 to 7"),
            (["4", "--group", "workers_l"], "0 to 3"),
            (["1", "--group", "gpu"], ""),
        ],
    )
    def test_a_size_outside_the_bounds_is_refused_with_them(
        self, trimtab: Trimtab, ledger: str, arguments: list[str], bounds: str
    ) -> None:
        result = trimtab("pin", *arguments, "--for", "2h", "--reason", "x")
        assert (result.exit_code, bounds in result.stderr) == (2, True)
        assert controls(ledger).pin is None

    def test_unpin(self, trimtab: Trimtab, ledger: str) -> None:
        trimtab("pin", "2", "--for", "2h", "--reason", "x")
        assert [trimtab("unpin").exit_code for _ in range(2)] == [0, 0]
        assert controls(ledger).pin is None


class TestSpreading:
    def test_more_come_from_the_cheapest_type_with_room(self) -> None:
        assert spread(fleet(), (1, 1), 4) == {"workers_s": 3, "workers_l": 1}
        assert spread(fleet(), (1, 1), 6) == {"workers_s": 4, "workers_l": 2}

    def test_fewer_go_from_the_most_expensive_type_first(self) -> None:
        assert spread(fleet(), (3, 2), 4) == {"workers_s": 3, "workers_l": 1}
        assert spread(fleet(), (3, 2), 2) == {"workers_s": 2, "workers_l": 0}

    @given(
        st.lists(
            st.tuples(st.integers(0, 5), st.integers(0, 5), st.sampled_from([0.1, 0.2, 0.2, 0.4]), st.integers(0, 12)),
            min_size=1,
            max_size=4,
        ),
        st.integers(0, 45),
    )
    def test_the_sum_is_what_was_asked_within_every_bound_or_the_bounds_are_reported(
        self, groups: list[tuple[int, int, float, int]], total: int
    ) -> None:
        of = Fleet(
            "f",
            tuple(
                Group(f"g{k}", f"g{k}", VmType("t.x", 2, 8.0, price), low, low + room)
                for k, (low, room, price, _) in enumerate(groups)
            ),
        )
        low, high = sum(g.minimum for g in of.groups), sum(g.maximum for g in of.groups)
        sizes = [size for *_, size in groups]
        if not low <= total <= high:
            with pytest.raises(BadInput, match=f"give {low} to {high}, the bounds of fleet f"):
                spread(of, sizes, total)
            return
        desired = spread(of, sizes, total)
        assert sum(desired.values()) == total
        assert all(g.minimum <= desired[g.key] <= g.maximum for g in of.groups)
        changes = {desired[g.key] - min(max(n, g.minimum), g.maximum) for g, n in zip(of.groups, sizes, strict=True)}
        assert not (min(changes) < 0 < max(changes)), "no VM is added while another is removed"
