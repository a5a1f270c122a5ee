"""Liveness means that the loop turns; readiness, that the agent can do its work."""

import httpx
import pytest

from agent.kernel.decision import Check
from agent.kernel.leads import Leads
from agent.kernel.turn import TurnReport
from tests.agent.api.conftest import Stage
from tests.agent.api.running import Running
from tests.golden import check_wording


def checks(answer: httpx.Response) -> dict[str, tuple[bool, str]]:
    return {check["name"]: (check["ok"], check["detail"]) for check in answer.json()["checks"]}


class TestLiveness:
    def test_it_holds_until_three_intervals_have_passed_without_a_turn(
        self, client: httpx.Client, running: Running
    ) -> None:
        running.world.clock.advance(180.0)
        assert client.get("/healthz").status_code == 200
        running.world.clock.advance(1.0)
        answer = client.get("/healthz")
        assert answer.status_code == 503
        found = answer.json()
        assert (found["ok"], found["last_turn_age_s"], found["limit_s"]) == (False, 181.0, 180.0)
        assert found["detail"].endswith("181 s")
        running.tick()
        assert client.get("/healthz").status_code == 200

    def test_a_clock_set_forward_or_back_does_not_end_it(self, client: httpx.Client, running: Running) -> None:
        for step_s in (3600.0, -7200.0):
            running.world.agent_clock.step(step_s)
            assert client.get("/healthz").status_code == 200

    def test_the_watchdogs_word_counts_too(self, running: Running) -> None:
        assert running.view.health().ok
        running.is_alive = False
        assert not running.view.health().ok

    def test_a_ledger_that_cannot_be_read_does_not_end_it(self, client: httpx.Client, running: Running) -> None:
        running.lose_ledger()
        assert client.get("/healthz").status_code == 200


class TestReadiness:
    def test_an_agent_whose_loop_has_turned_is_ready(self, client: httpx.Client) -> None:
        answer = client.get("/readyz")
        assert answer.status_code == 200
        assert answer.json()["role"] == "leader"
        assert {name: ok for name, (ok, _) in checks(answer).items()} == dict.fromkeys(
            ("loop", "ledger", "aws", "model"), True
        )

    def test_before_the_first_turn_it_is_not(self, stage: Stage) -> None:
        running = stage.own(turns=0)
        readiness = running.view.readiness()
        running.world.close()
        assert not readiness.ready
        assert [(check.name, check.ok) for check in readiness.checks] == [
            ("loop", False),
            ("ledger", True),
            ("aws", False),
            ("model", True),
        ]

    def test_without_a_ledger_to_write_it_is_not(self, client: httpx.Client, running: Running) -> None:
        running.lose_ledger()
        answer = client.get("/readyz")
        assert answer.status_code == 503
        assert {name for name, (ok, _) in checks(answer).items() if not ok} == {"ledger"}

    def test_the_ledger_is_not_tried_at_every_question(self, client: httpx.Client, running: Running) -> None:
        assert client.get("/readyz").status_code == 200
        running.lose_ledger()
        assert client.get("/readyz").status_code == 200
        running.world.clock.advance(15.0)
        assert client.get("/readyz").status_code == 503

    def test_while_aws_cannot_be_read_it_is_not(self, client: httpx.Client, running: Running) -> None:
        running.world.fault("throttle", operations=["DescribeAutoScalingGroups"], count=100)
        running.tick()
        answer = client.get("/readyz")
        assert answer.status_code == 503
        ok, detail = checks(answer)["aws"]
        assert (ok, detail.endswith(": web")) == (False, True)

    def test_a_turn_that_only_measures_says_what_it_could_not_read(
        self, client: httpx.Client, running: Running
    ) -> None:
        world = running.world
        world.loop.leads = Leads()
        for is_read in (False, True):
            if not is_read:
                world.fault("throttle", operations=["DescribeAutoScalingGroups"], count=100)
            else:
                world.control.clear_faults()
                world.clock.advance(60.0)
            now = world.agent_clock.now()
            report = running.fleets.take(TurnReport(now), world.loop.measure(now))
            for listener in running.board.turned(report, 0.0):
                listener(running.board.read(), report)
            assert checks(client.get("/readyz"))["aws"][0] is is_read

    @pytest.mark.parametrize("readable", [True, False])
    def test_a_turn_that_did_not_ask_aws_changes_nothing(
        self, client: httpx.Client, running: Running, readable: bool
    ) -> None:
        if not readable:
            running.world.fault("throttle", operations=["DescribeAutoScalingGroups"], count=100)
            running.tick()
        without_aws = TurnReport(running.world.agent_clock.now())
        for listener in running.board.turned(without_aws, 0.0):
            listener(running.board.read(), without_aws)
        assert checks(client.get("/readyz"))["aws"][0] is readable

    def test_a_standby_is_ready_and_says_so(self, client: httpx.Client, running: Running) -> None:
        running.board.change(leader=False)
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()["role"]) == (200, "standby")

    def test_an_agent_that_ends_is_not(self, client: httpx.Client, running: Running) -> None:
        running.board.change(stopping=True)
        answer = client.get("/readyz")
        assert answer.status_code == 503
        assert checks(answer)["loop"] == (False, "the agent is stopping")

    def test_further_conditions_count(self, shared: Running) -> None:
        model = Check("model", False, "the model could not be loaded; the queue rule decides")
        readiness = shared.with_checks(model).readiness()
        assert (readiness.ready, readiness.checks[-1]) == (False, model)


def test_the_wording_of_health_and_readiness(client: httpx.Client, running: Running) -> None:
    """Of an agent that turns, then one after the other without AWS, without a ledger, and without turns."""

    def written() -> str:
        health = client.get("/healthz").json()
        lines = [f"health {health['ok']}: {health['detail']}"]
        lines += [f"{name} {ok}: {detail}" for name, (ok, detail) in checks(client.get("/readyz")).items()]
        return "\n".join(lines)

    texts = {"all is well": written()}
    running.world.fault("throttle", operations=["DescribeAutoScalingGroups"], count=100)
    running.tick()
    texts["AWS cannot be read"] = written()
    running.lose_ledger()
    running.world.clock.advance(181.0)
    texts["no turn and no ledger"] = written()
    running.is_alive = False
    texts["the watchdog rings"] = written()
    running.board.change(stopping=True)
    texts["stopping"] = written()
    check_wording("api_health", texts)
