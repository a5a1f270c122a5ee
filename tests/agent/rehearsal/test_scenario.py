"""The fleet and the jobs of the dry run: its own, or those of a world and a workload that are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.rehearsal.scenario import (
    FLEET as WEB,
)
from agent.rehearsal.scenario import (
    GROUPS,
    OWNER_KEY,
    Rent,
    aws_client,
    environment,
    groups_of,
    recorded_trace,
)
from agent.settings import load_settings
from domain.clock import VirtualClock
from domain.errors import BadInput
from domain.fleet import Fleet
from simulator.aws.client import CloudControl
from simulator.aws.process import start_in_thread

FLEET = """
version = 1
[[vm_types]]
name = "c5.large"
cores = 2
memory_gb = 4
price_per_hour = 0.09
limit = 6
minimum = 1
[[vm_types]]
name = "m5.4xlarge"
cores = 16
memory_gb = 64
price_per_hour = 0.768
limit = 2
"""


def world(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(text, "utf-8")
    return str(path)


def test_the_fleet_is_that_of_the_world(tmp_path: Path) -> None:
    assert groups_of(None) == GROUPS
    groups = groups_of(world(tmp_path, FLEET))
    assert [(g.vm_type.name, g.minimum, g.maximum) for g in groups] == [("c5.large", 1, 6), ("m5.4xlarge", 0, 2)]
    values = environment(tmp_path, "http://127.0.0.1:1", "", "", "act", {}, groups)
    fleet = load_settings(values).fleet("web")
    assert [(g.key, g.vm_type.price_per_hour) for g in fleet.groups] == [("workers_1", 0.09), ("workers_2", 0.768)]
    assert fleet.max_cores == 44


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (FLEET.replace("c5.large", "small"), "the fake AWS starts these"),
        (FLEET.replace("minimum = 1", "minimum = 0"), "a minimum of 1 or more"),
        (FLEET.replace("limit = 6", "limit = 6000"), "lower the limits to 5,000 fleets"),
    ],
)
def test_a_fleet_that_the_fake_aws_cannot_run_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        groups_of(world(tmp_path, text))


def test_jobs_are_those_that_the_readers_know(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("arrival_s,service_s\n0,90\n60,30\n", "utf-8")
    trace, words = recorded_trace(str(jobs), 0)
    assert trace.jobs == 2
    assert f"Jobs of {jobs}: 2" in words
    assert recorded_trace("nasa", 1993, 84)[0].jobs > recorded_trace("nasa", 1993)[0].jobs
    jobs.write_text("arrival_s,service_s,width\n0,90,2\n", "utf-8")
    for text in (str(jobs), "coevolution"):
        with pytest.raises(BadInput, match="jobs of one core"):
            recorded_trace(text, 0)
    with pytest.raises(BadInput, match="give train-text"):
        recorded_trace("lunch", 0)


def test_the_rent_so_far_is_that_of_all_records_and_reads_what_has_ended_once() -> None:
    start, hourly = 1_795_208_400.0, {group.vm_type.name: group.vm_type.price_per_hour for group in GROUPS}
    running = start_in_thread(VirtualClock(start))
    try:
        control, machines = CloudControl(running.endpoint), aws_client("ec2", running.endpoint, OWNER_KEY)
        rent = Rent(running.endpoint, Fleet(WEB, GROUPS), start)

        def launch(kind: str) -> str:
            launched = machines.run_instances(ImageId="ami-12c6146b", InstanceType=kind, MinCount=1, MaxCount=1)
            return str(launched["Instances"][0]["InstanceId"])

        first = launch("m5a.large")
        launch("m5a.2xlarge")
        launch("t3.micro")
        control.advance(3600.0)
        assert rent.so_far(start + 3600.0) == pytest.approx(hourly["m5a.large"] + hourly["m5a.2xlarge"])
        machines.terminate_instances(InstanceIds=[first])
        for later in (5400.0, 7200.0):
            control.advance(1800.0)
            both = hourly["m5a.large"] + hourly["m5a.2xlarge"] * later / 3600.0
            assert rent.so_far(start + later) == pytest.approx(both)
            assert rent.until(start + later) == pytest.approx(both)
        # Three of what is up, two of all records, and one of the VM that has ended.
        assert len(control.calls(operation="DescribeInstances")) == 6
    finally:
        running.stop()
