"""The real process with every decision, killed by SIGKILL and started again on its ledger: answers stay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.agent.service.site import FLEET, Daemon, running_site
from tests.contract.cases import CASES, GROUP, SIZES, TOKENS, Case
from tests.contract.running import over_socket
from tests.short_directory import short_directory
from tests.waiting import until

pytestmark = [pytest.mark.exhaustive]

ENVIRON = {
    **FLEET,
    "TRIMTAB_FLEETS__web__POLICY": "hold",
    "TRIMTAB_CLUSTERS__main__CAPACITY_CORES": "1000",
    "TRIMTAB_CLUSTERS__main__PRESET": "K",
    "TRIMTAB_CLUSTERS__main__KAPPA": "2.2",
    "TRIMTAB_POOLS__east__MACHINES": "3",
    "TRIMTAB_POOLS__east__MACHINE_CORES": "48",
    "TRIMTAB_POOLS__east__MACHINE_MEMORY_GB": "512",
    "TRIMTAB_POOLS__east__SUBSCRIBERS__ours__INTERNAL": "true",
    "TRIMTAB_PLACEMENTS__south__POLICY": "bf",
    "TRIMTAB_DEFERRALS__night__POLICY": "knapsack",
}
KILLED = tuple(case for case in CASES if case is not TOKENS)


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with short_directory() as directory, running_site(30.0) as site:
        site.make_group(GROUP["name"])
        site.start()
        made = Daemon(site, directory, **ENVIRON)
        made.start()
        made.await_ready()
        yield made
        made.close()


def asked(daemon: Daemon, method: str, path: str, body: Any = None) -> Any:
    """The daemon's answer, which must be 200."""
    with over_socket(daemon.directory / "trimtab.sock", "/api/v1") as client:
        answer = client.request(method, path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def order(case: Case, daemon: Daemon, name: str) -> dict[str, Any]:
    """The case's order at the daemon's time."""
    body = case.order(name)
    if "latest_at" in body:
        body["latest_at"] = daemon.site.clock.now() // 3600.0 * 3600.0 + 90 * 3600.0
    return body


def test_what_was_answered_before_a_sigkill_is_answered_after_it(daemon: Daemon) -> None:
    def decided(case: Case) -> list[str]:
        listed = asked(daemon, "GET", f"/{case.decision}/{case.subject}/decisions")["decisions"]
        return [one["id"] for one in listed]

    asked(daemon, "PUT", "/placement/south/applications/shop", SIZES)
    asked(daemon, "POST", "/placement/south/hosts", {"host": "h0", "cores": 64, "memory_gib": 256, "disk_gb": 900})
    asked(daemon, "POST", "/deferral/pools/night/capacity", {"cores": 100})
    until(lambda: all(decided(case) for case in KILLED if case.decision in ("autoscaling", "oversubscription")))
    orders = {case: order(case, daemon, "r1") for case in KILLED}
    first = {case: asked(daemon, "POST", case.path, body) for case, body in orders.items()}
    before = {case: decided(case) for case in KILLED}
    assert daemon.popen is not None
    daemon.popen.kill()
    daemon.popen.wait()
    daemon.start()
    daemon.await_ready()
    for case in KILLED:
        again = asked(daemon, "POST", case.path, orders[case])
        assert {**again, case.newness: 0} == {**first[case], case.newness: 0}, case
        assert set(before[case]) <= set(decided(case)), case
    admission = next(case for case in KILLED if case.decision == "admission")
    following = asked(daemon, "POST", admission.path, order(admission, daemon, "r2"))
    assert following["decision_id"] == admission.decision_id(len(before[admission]) + 1)
    daemon.terminate()
    assert daemon.wait() == 0
