"""The picture of an episode: the same bytes for the same run, in each of three kinds."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from simulator.autoscaling.configuration import SimulationConfig
from simulator.workloads.named import workload_of
from tests.trainer.autoscaling.simulate.conftest import Simulate
from trainer.autoscaling.policy_names import policy_of
from trainer.autoscaling.simulate import Run, draw, play


@pytest.fixture
def run() -> Run:
    policy = "queue-rule:horizon_s=300"
    return play(policy_of(policy), policy, SimulationConfig(), workload_of("train-fit"), keep_steps=True)


def test_an_svg_holds_its_text_and_is_the_same_each_time(run: Run, tmp_path: Path) -> None:
    draw(run, tmp_path / "a.svg")
    draw(run, tmp_path / "b.svg")
    content = (tmp_path / "a.svg").read_bytes()
    assert content == (tmp_path / "b.svg").read_bytes()
    words = "".join(ElementTree.fromstring(content).itertext())
    for phrase in ("VMs by type", "m5a.2xlarge", "booting", "Jobs waiting", "queue-rule:horizon_s=300", "minutes"):
        assert phrase in words
    assert f"${run.measures.cost:,.2f}" in words


def test_a_png_is_one(run: Run, tmp_path: Path) -> None:
    draw(run, tmp_path / "fleet.png")
    assert (tmp_path / "fleet.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_a_page_stands_alone_with_picture_and_figures(simulate: Simulate, tmp_path: Path) -> None:
    page = tmp_path / "fleet.html"
    done = simulate("--workload", "train-fit", "--policy", "constant:1,1,1", "--plot", page)
    assert done.exit_code == 0
    text = page.read_text("utf-8")
    assert text.count("<svg") == 1
    assert "<tr><td>cost</td><td>7.388</td></tr>" in text
    assert "src=" not in text
    assert 'href="http' not in text.replace('href="http://www.w3.org', "")


def test_many_types_a_draining_fleet_and_an_empty_workload_can_be_drawn(simulate: Simulate, tmp_path: Path) -> None:
    types = [word for n in range(6) for word in ("--vm", f"type{n},{2**n},4,0.1")]
    plot = tmp_path / "many.svg"
    assert simulate("--workload", "train-fit", "--policy", "nothing", *types, "--plot", plot).exit_code == 0
    assert "type5" in plot.read_text("utf-8")
    words = ("--workload", "coevolution:generations=2", "--world", "live-like", "--policy", "threshold:periods=1")
    assert simulate(*words, "--plot", tmp_path / "live.svg").exit_code == 0
    (tmp_path / "none.csv").write_text("arrival_s,service_s\n", encoding="utf-8")
    assert simulate("--workload", tmp_path / "none.csv", "--plot", tmp_path / "none.png").exit_code == 0
