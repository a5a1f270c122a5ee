"""Options describe a world; each wrong value is refused by the option's name."""

import json
from pathlib import Path

import pytest

from domain.errors import BadInput
from simulator.autoscaling.configuration import PRICES_M5A, Billing, RemovalMode, SimulationConfig
from simulator.autoscaling.world_file import preset
from tests.agent.models.making import scorer
from tests.oracles.lstm_model import write_model
from tests.trainer.autoscaling.simulate.conftest import Simulate
from trainer.autoscaling.worlds import policy_in_world, world_of


def test_the_exact_world_is_the_training_one_and_presets_go_by_their_names() -> None:
    assert world_of().config == SimulationConfig()
    assert world_of("live-like").config == preset("live-like")
    assert world_of("paper-live", prices="train").config.types == SimulationConfig().types
    assert world_of(prices="m5a").config.types == PRICES_M5A


def test_boot_times_limits_and_fields() -> None:
    world = world_of(
        boot="uniform:30,40", limits="4,4,0", cooldown_s=None, max_steps=7, changes=["removal_mode=drain"]
    ).config
    assert (world.boot_low_s, world.boot_high_s) == (30.0, 40.0)
    assert (world.limits, world.initial, world.max_steps) == ((4, 4, 0), (1, 1, 0), 7)
    assert (world.cooldown_s, world.removal_mode) == (0.0, RemovalMode.DRAIN)
    assert not world_of("compat", changes=["compat.offset_clock=no"]).config.compat.offset_clock
    assert world_of("compat", changes=["compat.offset_clock=no"]).config.compat.chain_loss
    many = world_of(changes=["minimum=0,0,0", "backfill=yes", "idle_cpu=0.2", "billing=exact", "speed=1,1,1.5"]).config
    assert (many.minimum, many.backfill, many.idle_cpu) == ((0, 0, 0), True, 0.2)
    assert (many.billing, many.speed) == (Billing.EXACT, (1.0, 1.0, 1.5))


def test_own_vm_types_begin_with_one_vm_of_each() -> None:
    world = world_of(vm_types=["a,2,4,0.1", "b,32,64,1.5"]).config
    assert [kind.cores for kind in world.types] == [2, 32]
    assert (world.limits, world.initial, world.minimum) == ((10, 10), (1, 1), (1, 0))


@pytest.mark.parametrize(
    ("options", "named", "remedy"),
    [
        (("--set", "compat.colour=true"), "--set", "one of the fields offset_clock"),
        (("--world", "moon"), "--world", "choose one of exact"),
        (("--boot", "71"), "--boot", "const:71 or uniform:45,97"),
        (("--boot", "uniform:97"), "--boot", "const:71 or uniform:45,97"),
        (("--boot", "uniform:97,45"), "boot_low_s", "0 <= low <= high"),
        (("--limits", "ten"), "--limits", "one per VM type"),
        (("--limits", "1,1"), "limits", "3 whole numbers"),
        (("--initial", "11,0,0"), "initial", "stay within limits"),
        (("--vm", "a,2"), "--vm", "NAME,CORES,GB,DOLLARS_PER_HOUR"),
        (("--cooldown", "-1"), "cooldown_s", "0 or more"),
        (("--set", "colour=red"), "--set", "one of the fields types, limits"),
        (("--set", "backfill=maybe"), "--set", "true or false"),
        (("--set", "removal_mode=soon"), "--set", "immediate, drain, checkpoint"),
        (("--set", "max_steps=few"), "--set", "whole number"),
        (("--set", "types=a"), "--set", "cannot be given as text"),
        (("--plot", "fleet.gif"), "--plot", ".png, .svg, .pdf, .html"),
        (("--policy", "hope"), "policy", "queue-rule"),
    ],
)
def test_a_wrong_option_is_refused_by_its_name(
    simulate: Simulate, options: tuple[str, str], named: str, remedy: str
) -> None:
    done = simulate("--workload", "train-fit", *options)
    assert done.exit_code == 2
    assert named in done.stderr
    assert remedy in done.stderr


def test_the_help_teaches_workloads_policies_and_worlds(simulate: Simulate) -> None:
    shown = simulate("--help").stdout
    assert all(word in shown for word in ("train-rand:7", "log.swf.gz:hours=24", "queue-rule", "compat", "Examples:"))


FIVE = """
version = 1
boot = [60, 120]
[jobs]
sizes = "unknown"
typical_core_s = 90
""" + "".join(
    f"""
[[vm_types]]
name = "type-{cores}"
cores = {cores}
memory_gb = {4 * cores}
price_per_hour = {0.05 * cores}
limit = 12
minimum = {int(cores == 1)}
"""
    for cores in (1, 2, 4, 16, 32)
)


@pytest.fixture
def five(tmp_path: Path) -> Path:
    """A world file of five VM types, whose job sizes are not told."""
    path = tmp_path / "five.toml"
    path.write_text(FIVE, encoding="utf-8")
    return path


def test_a_world_file_and_several_workloads_are_played(simulate: Simulate, five: Path, jobs: Path) -> None:
    workloads = ("--workload", jobs, "--workload", "nasa")
    done = simulate("--world", five, *workloads, "--compare", "constant:1,0,0,1,0", "--json")
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert data["world"] == "five"
    assert [one["jobs"] for one in data["workloads"]] == [3, 446]
    for one in data["workloads"]:
        assert one["policy"] == "queue-rule"
        assert len(one["added"]) == 5
        assert [other["policy"] for other in one["compared"]] == ["constant:1,0,0,1,0"]
    shown = simulate("--world", five, *workloads).stdout
    assert shown.count("world five") == 2


def test_single_fields_are_changed_on_top_of_a_file(five: Path) -> None:
    world = world_of(str(five), limits="1,1,1,1,1", boot="const:30", changes=["waiting_price_per_hour=1"]).config
    assert (world.limits, world.boot_ranges_s[0], world.waiting_price_per_hour) == ((1,) * 5, (30.0, 30.0), 1.0)
    assert world_of(str(five), vm_types=["a,2,4,0.1"]).config.limits == (10,)
    with pytest.raises(BadInput, match="other VM types"):
        world_of(str(five), prices="m5a")


def test_a_change_of_boot_times_counts_for_every_vm_type(tmp_path: Path) -> None:
    path = tmp_path / "measured.toml"
    path.write_text(FIVE + "boot = { quantiles = [1, 2, 9] }\n", encoding="utf-8")
    assert world_of(str(path)).config.boot_points_s[4] == (1.0, 2.0, 9.0)
    assert set(world_of(str(path), boot="const:30").config.boot_points_s) == {(30.0, 30.0)}
    assert set(world_of(str(path), changes=["boot_low_s=1", "boot_high_s=2"]).config.boot_points_s) == {(1.0, 2.0)}


def test_a_rule_that_knows_no_job_sizes_expects_the_typical_job(five: Path, tmp_path: Path) -> None:
    world = world_of(str(five))
    network = write_model(tmp_path, hidden=4, observation="obs-v2")
    assert policy_in_world("queue-rule", world) == "queue-rule:job_core_s=90"
    assert policy_in_world("queue-rule:horizon_s=60", world) == "queue-rule:horizon_s=60,job_core_s=90"
    assert policy_in_world("queue-rule:job_core_s=7", world) == "queue-rule:job_core_s=7"
    assert policy_in_world("threshold", world) == "threshold"
    assert policy_in_world("queue-rule", world_of()) == "queue-rule"
    with pytest.raises(BadInput) as refused:
        policy_in_world(str(network), world)
    assert refused.value.field == "policy model"
    made = str(scorer(tmp_path, {}))
    assert policy_in_world(made, world) == f"{made}:job_core_s=90"


def test_one_workload_is_drawn_and_none_is_named_twice(simulate: Simulate, jobs: Path, tmp_path: Path) -> None:
    several = ("--workload", jobs, "--workload", "nasa")
    refused = simulate(*several, "--plot", tmp_path / "a.png")
    assert refused.exit_code == 2
    assert "--steps or --plot" in refused.stderr
    twice = simulate("--workload", "nasa", "--workload", "nasa")
    assert (twice.exit_code, "each workload once" in twice.stderr) == (2, True)


def test_every_mistake_of_a_world_file_is_printed(simulate: Simulate, five: Path) -> None:
    five.write_text(FIVE.replace("limit = 12", "limt = 12"), encoding="utf-8")
    refused = simulate("--world", five)
    assert refused.exit_code == 2
    assert refused.stderr.count("did you mean limit?") == 5
