"""The comparison with a peer that may be missing, may be stopped before it arrives, or may arrive."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchmarks import ppo_throughput
from benchmarks.ppo_throughput import INSTALL, main, settings, throughput, time_to_quality

OF_THE_PEER = {"sb3_cpu_s", "reached_sb3", "sb3_by_branching", "time_to_quality_ratio", "time_to_quality_is_bound"}


class SlowPeer:
    """Replaces the peer: an update takes a tenth of a second of a processor."""

    def __init__(self, config):
        pass

    def update(self):
        return 0.1


@pytest.fixture
def few_copies(monkeypatch):
    small = replace(settings(0), environments=8, steps_per_update=4, hidden=8, warm_steps=4)
    monkeypatch.setattr(ppo_throughput, "settings", lambda seed: replace(small, seed=seed))


def climbs(monkeypatch, *, ours, peer):
    """Replace the runs; each is (seconds, whether it arrived) for seed 0 and seed 1."""
    found = {"branching": [(10.0, True)] * 2, "ours": ours, "peer": peer}
    for name, runs in found.items():
        monkeypatch.setattr(ppo_throughput, name, lambda quality, seed, most_s, runs=runs: runs[seed])


def test_the_ratio_of_speed_is_that_of_median_updates(few_copies, monkeypatch) -> None:
    monkeypatch.setattr(ppo_throughput, "Peer", SlowPeer)
    monkeypatch.setattr(ppo_throughput, "timed_update", lambda training: 0.04)
    monkeypatch.setattr(ppo_throughput, "time_of_products", lambda config, features: 0.02)
    speed = {"steps_per_cpu_s": 800.0, "sb3_steps_per_cpu_s": 320.0, "ratio_vs_sb3": 2.5}
    assert throughput(3, peer_there=True) == pytest.approx(speed | {"products_share": 0.5, "ratio_limit": 5.0})


def test_an_update_of_ours_is_timed_without_a_peer(few_copies) -> None:
    found = throughput(1, peer_there=False)
    assert found["steps_per_cpu_s"] > 0.0
    assert found["products_share"] > 0.0
    assert {found[name] for name in ("sb3_steps_per_cpu_s", "ratio_vs_sb3", "ratio_limit")} == {None}


def test_a_peer_that_arrives_gives_the_ratio_of_medians(monkeypatch) -> None:
    climbs(monkeypatch, ours=[(20.0, True), (30.0, True)], peer=[(50.0, True), (70.0, True)])
    found = time_to_quality(5.84, 2, 300.0, 75.0, True)
    assert found["time_to_quality_ratio"] == pytest.approx(60.0 / 25.0)
    assert found["time_to_quality_is_bound"] is False
    assert found["sb3_by_branching"] == pytest.approx(6.0)


def test_a_peer_that_is_stopped_gives_a_bound(monkeypatch) -> None:
    climbs(monkeypatch, ours=[(20.0, True), (30.0, True)], peer=[(50.0, True), (75.0, False)])
    found = time_to_quality(5.84, 2, 300.0, 75.0, True)
    assert found["reached_sb3"] == 0.5
    assert found["time_to_quality_is_bound"] is True
    assert found["time_to_quality_ratio"] == pytest.approx(62.5 / 25.0)


def test_there_is_no_ratio_where_ours_does_not_arrive(monkeypatch) -> None:
    climbs(monkeypatch, ours=[(20.0, True), (300.0, False)], peer=[(75.0, False)] * 2)
    found = time_to_quality(5.84, 2, 300.0, 75.0, True)
    assert found["time_to_quality_ratio"] is None
    assert found["time_to_quality_is_bound"] is None
    assert found["sb3_by_branching"] == pytest.approx(7.5)


def test_a_missing_peer_is_null_and_the_way_to_install_it_is_printed(few_copies, monkeypatch, capsys) -> None:
    climbs(monkeypatch, ours=[(20.0, True)], peer=[])
    monkeypatch.setattr(ppo_throughput.importlib.util, "find_spec", lambda name: None)
    assert main(["--json", "--runs", "1"]) == 0
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert {answer[name] for name in OF_THE_PEER | {"ratio_vs_sb3", "sb3_steps_per_cpu_s"}} == {None}
    assert answer["targets_met"] == {"ratio_vs_sb3": None, "sb3_by_branching": None}
    assert INSTALL in err
    assert main(["--runs", "1"]) == 0
    assert "not measured" in capsys.readouterr().out
