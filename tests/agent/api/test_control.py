"""Pause, resume, pin and unpin over HTTP are the command line's own, and the command line asks the agent first."""

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner, Result

from agent.commands.main import app as program
from domain.controls import Pause, PauseScope
from domain.decisions import Reason
from tests.agent.api.conftest import Serve
from tests.agent.api.running import Running

Trimtab = Callable[..., Result]


def said(result: Result) -> list[str]:
    """What a command printed, without what the agent in this process logged meanwhile."""
    return [line for line in result.stdout.splitlines() if "[info" not in line]


def post(client: httpx.Client, verb: str, **order: object) -> httpx.Response:
    return client.post(f"/api/v1/{verb}", json=order)


class TestOverHttp:
    def test_a_pause_holds_the_next_turn_and_is_in_the_journal(self, client: httpx.Client, running: Running) -> None:
        now = running.world.agent_clock.now()
        answer = post(client, "pause", owner="ada", reason="load test", for_s=600)
        assert answer.json() == {
            "decision": "autoscaling",
            "subject": "web",
            "fleet": "web",
            "pause": {"scope": "all", "owner": "ada", "reason": "load test", "since": now, "until": now + 600.0},
        }
        assert running.world.ledger.controls("autoscaling", "web").pauses == (
            Pause(PauseScope.ALL, "ada", "load test", now, now + 600.0),
        )
        running.world.submit(200)
        running.tick()
        assert running.world.last.reason is Reason.PAUSED
        assert [
            event.detail.split(" until")[0] for event in running.world.events if event.reason is Reason.OPERATOR
        ] == ["ada paused every change of autoscaling"]

    def test_a_cluster_is_paused_by_its_name_and_pinned_never(self, client: httpx.Client, running: Running) -> None:
        ledger = running.world.ledger
        assert post(client, "pause", owner="ada", reason="moving", subject="main").json()["subject"] == "main"
        assert [pause.reason for pause in ledger.controls("admission", "main").pauses] == ["moving"]
        assert ledger.controls("autoscaling", "web").pauses == ()
        assert post(client, "resume", owner="ada", fleet="main").json()["lifted"] is True
        assert ledger.controls("admission", "main").pauses == ()
        assert post(client, "pin", owner="ada", reason="x", size=1, for_s=60, fleet="main").status_code == 404

    def test_resume_lifts_it_and_says_what_still_holds(self, client: httpx.Client, running: Running) -> None:
        post(client, "pause", owner="ada", reason="a", scope="in")
        post(client, "pause", owner="bob", reason="b", scope="out", fleet="web")
        answer = post(client, "resume", owner="ada", scope="in").json()
        assert (answer["lifted"], [pause["owner"] for pause in answer["left"]]) == (True, ["bob"])
        assert post(client, "resume", owner="ada").json() == {
            "decision": "autoscaling",
            "subject": "web",
            "fleet": "web",
            "lifted": True,
            "left": [],
        }
        assert post(client, "resume", owner="ada").json()["lifted"] is False

    def test_a_pin_sets_the_size_at_the_next_turn(self, client: httpx.Client, running: Running) -> None:
        answer = post(client, "pin", owner="ada", reason="launch", size=5, group="small", for_s=3600).json()
        assert (answer["pin"]["desired"], answer["before"]) == ({"small": 5}, None)
        running.tick()
        assert running.world.desired()["small"] == 5
        again = post(client, "pin", owner="bob", reason="more", size=6, group="small", for_s=60).json()
        assert again["before"]["owner"] == "ada"
        assert post(client, "unpin", owner="bob").json() == {"fleet": "web", "lifted": True}
        assert running.world.ledger.controls("autoscaling", "web").pin is None

    def test_a_wrong_order_names_the_field_and_changes_nothing(self, client: httpx.Client, shared: Running) -> None:
        before = shared.world.journal
        order: dict[str, object]
        for verb, order, field in (
            ("pause", {"owner": "ada"}, "body.reason"),
            ("pause", {"owner": "", "reason": "x"}, "body.owner"),
            ("pause", {"owner": "ada", "reason": "x", "scope": "sideways"}, "body.scope"),
            ("pause", {"owner": "ada", "reason": "x", "for_s": 0}, "body.for_s"),
            ("pause", {"owner": "ada", "reason": "x", "for_s": 1e300}, "body.for_s"),
            ("pause", {"owner": "ada", "reason": "x", "surprise": 1}, "body.surprise"),
            ("pause", {"owner": "ada", "reason": "x" * 501}, "body.reason"),
            ("pause", {"owner": "a\nb", "reason": "x"}, "owner"),
            ("pause", {"owner": "ada", "reason": "\u202edoog"}, "reason"),
            ("pin", {"owner": "ada", "reason": "x", "size": 99, "for_s": 60}, "N"),
            ("pin", {"owner": "ada", "reason": "x", "size": -1, "for_s": 60}, "body.size"),
            ("pin", {"owner": "ada", "reason": "x", "size": True, "for_s": 60}, "body.size"),
            ("pin", {"owner": "ada", "reason": "x", "size": 2, "for_s": "60"}, "body.for_s"),
            ("pin", {"owner": "ada", "reason": "x", "size": 2}, "body.for_s"),
            ("pause", {"owner": "ada", "reason": "x", "fleet": "blue"}, "fleet"),
            ("pause", {"owner": "ada", "reason": "x", "subject": "blue"}, "subject"),
            ("pin", {"owner": "ada", "reason": "x", "size": 2, "for_s": 60, "group": "gpu"}, "group"),
        ):
            answer = post(client, verb, **order)
            found = [wrong["field"] for wrong in answer.json()["wrong"]]
            assert (answer.status_code, found) == (404 if field in ("fleet", "subject", "group") else 422, [field])
        assert shared.world.journal == before

    @pytest.mark.parametrize("body", [b"{", b"[]", b'"x"', b"", b"\xff\xfe", b'{"owner": NaN}'])
    def test_what_is_no_order_is_refused(self, client: httpx.Client, body: bytes) -> None:
        answer = client.post("/api/v1/pause", content=body, headers={"content-type": "application/json"})
        assert answer.status_code in (400, 422)
        assert answer.json()["detail"] in ("the body is not JSON", "some values are wrong")

    def test_a_ledger_that_cannot_be_written_is_503(self, client: httpx.Client, running: Running) -> None:
        running.lose_ledger()
        assert post(client, "pause", owner="ada", reason="x").status_code == 503


class TestTheCommandLine:
    @pytest.fixture
    def trimtab(self, serve: Serve, running: Running, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Trimtab:
        """Call the program with the agent's socket in its settings, and a ledger that is not the agent's."""
        monkeypatch.setenv("TRIMTAB_HTTP__SOCKET", str(serve().path))
        monkeypatch.setenv("TRIMTAB_STATE_DIRECTORY", str(tmp_path / "elsewhere"))
        monkeypatch.setenv("USER", "ada")
        monkeypatch.delenv("SUDO_USER", raising=False)

        def call(*arguments: str) -> Result:
            return CliRunner().invoke(program, list(arguments), catch_exceptions=False)

        return call

    def test_its_orders_reach_the_running_agent(self, trimtab: Trimtab, running: Running) -> None:
        controls = running.world.ledger.controls
        assert trimtab("pause", "in", "--reason", "x", "--for", "2h").exit_code == 0
        assert [(pause.scope, pause.owner) for pause in controls("autoscaling", "web").pauses] == [
            (PauseScope.IN, "ada")
        ]
        assert trimtab("resume").exit_code == 0
        assert controls("autoscaling", "web").pauses == ()
        trimtab("pin", "3", "--reason", "x", "--for", "1d")
        pin = controls("autoscaling", "web").pin
        assert pin is not None
        assert pin.desired == {"small": 2, "medium": 0, "large": 1}
        assert "ada's pin" in said(trimtab("pin", "4", "--reason", "y", "--for", "1d"))[1]
        lifted, absent = said(trimtab("unpin")), said(trimtab("unpin"))
        assert (controls("autoscaling", "web").pin, lifted != absent) == (None, True)

    def test_what_the_agent_refuses_reads_as_if_the_command_line_had(self, trimtab: Trimtab) -> None:
        result = trimtab("pin", "99", "--reason", "x", "--for", "1d")
        assert (result.exit_code, result.stderr.startswith("error: N is 99: give 1 to 30")) == (2, True)
        result = trimtab("pause", "--fleet", "blue", "all", "--reason", "x")
        assert (result.exit_code, result.stderr.startswith("error: --fleet is 'blue'")) == (2, True)

    def test_a_failing_agent_is_reported_and_the_ledger_is_left_alone(self, trimtab: Trimtab, running: Running) -> None:
        running.lose_ledger()
        result = trimtab("pause", "all", "--reason", "x")
        assert (result.exit_code, "the agent answers" in result.stderr) == (1, True)

    def test_with_the_agent_gone_they_go_to_the_ledger(
        self, serve: Serve, running: Running, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        server = serve()
        monkeypatch.setenv("TRIMTAB_HTTP__SOCKET", str(server.path))
        monkeypatch.setenv("TRIMTAB_LEDGER__URL", running.world._ledger_url)
        server.stop()
        assert not server.path.exists()
        result = CliRunner().invoke(program, ["pause", "all", "--reason", "x"], catch_exceptions=False)
        assert result.exit_code == 0
        assert len(running.world.ledger.controls("autoscaling", "web").pauses) == 1
