"""The compiled simulator is the reference simulator to the last bit, whatever configuration, trace and actions."""

from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.autoscaling.batch import FastSimulation
from simulator.autoscaling.configuration import Compat
from simulator.autoscaling.twin import Simulation
from tests.simulator.autoscaling.worlds import (
    actions,
    assert_same,
    assert_same_result,
    compats,
    configs,
    take,
    traces,
)


def assert_twins(data: st.DataObject, seed: int, switches: st.SearchStrategy[Compat] | None) -> None:
    """Draw a world and assert that both simulators show the same of it after every step."""
    config = data.draw(configs(switches))
    trace = data.draw(traces(config))
    script = data.draw(actions(config))
    fast, twin = FastSimulation(config, trace, seed), Simulation(config, trace, seed)
    assert_same(fast, twin)
    for action in script:
        if twin.finished or twin.truncated:
            break
        assert_same_result(take(fast, action), take(twin, action))
        assert_same(fast, twin)


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(-(2**70), 2**70))
def test_every_step_of_any_world_is_the_reference_simulators(data: st.DataObject, seed: int) -> None:
    assert_twins(data, seed, None)


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(0, 2**20))
def test_so_it_is_with_any_of_the_published_simulators_oddities(data: st.DataObject, seed: int) -> None:
    assert_twins(data, seed, compats())
