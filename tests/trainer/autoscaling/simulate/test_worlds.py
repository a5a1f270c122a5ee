"""Options describe a world; each wrong value is refused by the option's name."""

import pytest

from simulator.autoscaling.reference import SimulationConfig, preset
from simulator.autoscaling.reference.configuration import PRICES_M5A, Billing, RemovalMode
from tests.trainer.autoscaling.simulate.conftest import Simulate
from trainer.autoscaling.worlds import world_names, world_of


def test_the_exact_world_is_the_training_one_and_presets_go_by_their_names() -> None:
    assert world_of() == SimulationConfig()
    assert world_of("live-like") == preset("live-like")
    assert world_of("paper-live", prices="train").types == SimulationConfig().types
    assert world_of(prices="m5a").types == PRICES_M5A
    assert {"exact", "live-like", "paper-live"} <= set(world_names())


def test_boot_times_limits_and_fields() -> None:
    world = world_of(boot="uniform:30,40", limits="4,4,0", cooldown_s=None, max_steps=7, changes=["removal_mode=drain"])
    assert (world.boot_low_s, world.boot_high_s) == (30.0, 40.0)
    assert (world.limits, world.initial, world.max_steps) == ((4, 4, 0), (1, 1, 0), 7)
    assert (world.cooldown_s, world.removal_mode) == (0.0, RemovalMode.DRAIN)
    assert not world_of("compat", changes=["compat.offset_clock=no"]).compat.offset_clock
    assert world_of("compat", changes=["compat.offset_clock=no"]).compat.chain_loss
    many = world_of(changes=["minimum=0,0,0", "backfill=yes", "idle_cpu=0.2", "billing=exact", "speed=1,1,1.5"])
    assert (many.minimum, many.backfill, many.idle_cpu) == ((0, 0, 0), True, 0.2)
    assert (many.billing, many.speed) == (Billing.EXACT, (1.0, 1.0, 1.5))


def test_own_vm_types_begin_with_one_vm_of_each() -> None:
    world = world_of(vm_types=["a,2,4,0.1", "b,32,64,1.5"])
    assert [kind.cores for kind in world.types] == [2, 32]
    assert (world.limits, world.initial, world.minimum) == ((10, 10), (1, 1), (1, 0))


@pytest.mark.parametrize(
    ("options", "named", "remedy"),
    [
        (("--set", "compat.colour=true"), "--set", "one of the fields offset_clock"),
        (("--preset", "moon"), "--preset", "choose one of exact"),
        (("--prices", "gold"), "--prices", "choose one of train, m5a"),
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
        (("--plot", "fleet.gif"), "--plot", ".png, .svg, .html"),
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
