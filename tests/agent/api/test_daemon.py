"""The real process serves all of it: liveness, metrics, page and switches, over the socket in its state directory."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from agent.api.unix_socket import reachable
from agent.commands.switches import ordered
from domain.controls import PauseScope
from tests.agent.service.site import FLEET, Daemon, Site, running_site
from tests.agent.telemetry.metrics import all_metrics
from tests.waiting import until


@pytest.fixture
def site() -> Iterator[Site]:
    with running_site(30.0) as made:
        made.make_group()
        made.start()
        yield made


@pytest.fixture
def daemon(site: Site, tmp_path: Path) -> Iterator[Daemon]:
    made = Daemon(site, tmp_path / "agent", **FLEET)
    made.start()
    made.await_ready()
    yield made
    made.close()


def test_a_running_daemon_is_seen_and_switched_through_its_socket(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "agent" / "trimtab.sock"
    with (
        reachable(path) as name,
        httpx.Client(transport=httpx.HTTPTransport(uds=name), base_url="http://localhost") as client,
    ):
        assert client.get("/readyz").json()["role"] in ("leader", "standby")
        until(lambda: client.get("/readyz").status_code == 200)
        assert client.get("/healthz").json()["ok"] is True
        assert client.get("/").status_code == 200
        monkeypatch.setenv("TRIMTAB_HTTP__SOCKET", str(path))
        assert ordered(None, "pause", scope=PauseScope.IN, owner="ada", reason="x")["fleet"] == "web"
        text = client.get("/metrics").text
        samples = {
            (sample.name, tuple(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        assert samples["trimtab_ready", ()] == 1.0
        assert samples["trimtab_ticks_total", ()] >= 1.0
        assert samples["trimtab_paused", ("web", "in")] == 1.0
        assert samples["trimtab_group_requested", ("web", "workers", "m5a.large")] == 1.0
        shown = {family.name for family in text_string_to_metric_families(text)}
        assert shown == {metric.name.removesuffix("_total") for metric in all_metrics()}
    daemon.terminate()
    assert daemon.wait() == 0
    assert not path.exists()
