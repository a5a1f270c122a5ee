"""`trimtab simulate placement`: figures, picture, decision log, and what it refuses."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from agent.commands.main import app
from agent.placement.choosing import SHIPPED_SMALL, read_policy
from domain.errors import BadInput, ConfigurationError
from domain.rules.placement.instance import HostType, Instance, as_document
from domain.rules.placement.policies import BF, RESERVE, WF, Policy, policy_document
from simulator.placement import engine
from simulator.placement.instances import churn, instance_of, looked_ahead, s1
from tests.architecture.product import ROOT
from tests.simulator.placement.vectors import FIRST
from trainer.placement.evaluation import decisions, play, policy_of

RUNNER = CliRunner()


def simulate(*words: str) -> Result:
    return RUNNER.invoke(app, ["simulate", "placement", *words])


def test_best_fit_opens_five_hosts_too_many_for_s1() -> None:
    data = json.loads(simulate("--json").stdout)
    assert (data["hosts"], data["lower_bound"], data["bound_by"], data["rejected"]) == (20, 15, "cores", 0)
    assert data["allocated"]["cores"] == pytest.approx(1360 / (20 * 96))
    assert data["headroom"] == {"4": 10, "8": 9, "16": 7, "32": 6}
    assert "shuffles" not in data


def test_other_orders_are_the_shuffles_from_zero_on() -> None:
    data = json.loads(simulate("--policy", "wf", "--shuffles", "41", "--json").stdout)["shuffles"]
    orders = np.stack([np.random.default_rng(k).permutation(30) for k in range(41)])
    hosts = engine.play_orders(s1(), WF, orders)[:, 0]
    assert (data["number"], data["mean"], data["range"]) == (41, hosts.mean(), np.ptp(hosts))


def test_text_names_hosts_bound_and_room() -> None:
    text = simulate("--shuffles", "3").stdout
    assert re.search(r"hosts +20; .* 15 \(cores\), \+33\.3%", text)
    assert "9 with 8, 7 with 16" in text
    assert "on average of 3;" in text


def test_a_full_pool_says_what_kept_containers_out(tmp_path: Path) -> None:
    crowded = replace(s1(), hosts=(HostType("host", (96, 512, 3000), 12),))
    path = tmp_path / "crowded.json"
    path.write_text(json.dumps(as_document(crowded)))
    data = json.loads(simulate("--instance", str(path), "--json").stdout)
    assert (data["hosts"], data["obstacles"].keys()) == (12, {"cpu", "limit", "exclusion"})
    assert data["rejected"] > 0
    assert "obstacles" in simulate("--instance", str(path)).stdout


def part_of_a_month(hosts: HostType) -> Instance:
    month = churn(1)
    requests = month.requests[:400]
    known = {request.name for request in requests}
    releases = tuple(end for end in month.releases if end.request in known)
    return replace(month, requests=requests, releases=releases, hosts=(hosts,))


def test_departures_are_shown_as_host_hours() -> None:
    part = part_of_a_month(HostType("host", (96, 512, 3000)))
    played = play(part, BF, warm_up_days=1.0)
    data = played.as_data()
    assert played.packing is None
    assert data["measured_hours"] == pytest.approx((part.releases[-1].at_s / 86_400 - 1) * 24)
    assert data["mean_hosts"] == pytest.approx(data["host_hours"] / data["measured_hours"])
    assert 1.0 < data["mean_hosts"] <= data["peak"]
    with pytest.raises(BadInput, match="has releases"):
        play(part, BF, shuffles=2)
    with pytest.raises(BadInput, match="give fewer days"):
        play(s1(), BF, warm_up_days=1.0)


@pytest.mark.parametrize("policy", [BF, FIRST, RESERVE], ids=lambda policy: policy.name)
def test_the_log_has_every_decision_that_the_simulator_made(policy: Policy) -> None:
    hosts = [None if entry["host"] is None else int(entry["host"].split("-")[1]) for entry in decisions(s1(), policy)]
    assert hosts == engine.play(s1(), policy).host.tolist()


def test_the_log_follows_departures_and_names_obstacles() -> None:
    small = part_of_a_month(HostType("host", (16, 64, 3000), 20))
    logged = list(decisions(small, WF))
    outcome = engine.play(small, WF)
    assert sum(entry["host"] is None for entry in logged) == outcome.rejected > 0
    assert next(entry["obstacles"] for entry in logged if entry["host"] is None)


def test_a_state_digest_is_in_every_thousandth_decision() -> None:
    logged = list(decisions(replace(instance_of("L219"), requests=instance_of("L219").requests[:700]), BF))
    assert [k for k, entry in enumerate(logged) if "state" in entry] == [999]


def test_files_are_written_once(tmp_path: Path) -> None:
    log, plot = tmp_path / "s1.jsonl", tmp_path / "s1.svg"
    assert simulate("--log", str(log), "--plot", str(plot)).exit_code == 0
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(entries) == 168
    assert {"time", "request", "container", "host", "score", "runner_up", "feasible", "is_new", "policy"} <= entries[
        0
    ].keys()
    drawn = plot.read_bytes()
    assert b"<svg" in drawn
    assert simulate("--plot", str(plot)).exit_code == 2
    assert simulate("--plot", str(plot), "--force").exit_code == 0
    assert plot.read_bytes() == drawn, "the same packing gives the same bytes"
    assert simulate("--plot", str(tmp_path / "s1.gif")).exit_code == 2


def test_policies_are_named_or_read_from_files(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(policy_document(FIRST)))
    assert policy_of(str(path)) == FIRST
    assert policy_of("BF") == BF
    assert policy_of("reserve:100,8,10") == RESERVE
    assert policy_of("small-pools") == read_policy(SHIPPED_SMALL)
    for text in ("best", "reserve:1,2", "reserve:a,b,c", str(tmp_path)):
        with pytest.raises(BadInput):
            policy_of(text)
    path.write_text("{")
    with pytest.raises(BadInput, match="JSON file of a policy"):
        policy_of(str(path))
    path.write_text(json.dumps(policy_document(FIRST) | {"theta": [2.0]}))
    with pytest.raises(ConfigurationError, match="17 numbers"):
        policy_of(str(path))


@pytest.mark.parametrize("ahead", [0, 1, 4, 29, 100])
def test_of_the_known_requests_the_largest_comes_first(ahead: int) -> None:
    instance, left, expected = s1(), list(range(30)), []
    while left:
        known = left[: ahead + 1]
        expected.append(max(known, key=lambda k: (instance.requests[k].count, -k)))
        left.remove(expected[-1])
    assert looked_ahead(instance, range(30), ahead) == expected
    assert play(instance, BF, ahead=ahead).instance.requests == tuple(instance.requests[k] for k in expected)


def test_a_look_ahead_narrows_the_range_over_ten_orders() -> None:
    """At most 5 hosts over shuffles 0 to 9; the published range over ten orders is 3."""
    vector = str(ROOT / "trainer/placement/shipped/tiers18a.json")
    hosts = {ahead: play(instance_of("L219"), policy_of(vector), shuffles=10, ahead=ahead).orders for ahead in (0, 100)}
    assert np.ptp(hosts[100][:, 0]) <= 5 < np.ptp(hosts[0][:, 0])
    assert hosts[100][:, 0].mean() < hosts[0][:, 0].mean()
    assert not hosts[100][:, 1].any()


def test_a_look_ahead_of_containers_that_end_is_refused() -> None:
    with pytest.raises(BadInput, match="ahead is 3"):
        play(churn(1), BF, ahead=3)
