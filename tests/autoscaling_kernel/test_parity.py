"""The compiled simulator is the reference simulator to the last bit, whatever configuration, trace and actions."""

from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.autoscaling import FastSimulation
from simulator.reference import Simulation
from tests.autoscaling_kernel.worlds import actions, assert_same, assert_same_result, configs, take, traces


@settings(max_examples=300, deadline=None)
@given(st.data(), st.integers(-(2**70), 2**70))
def test_every_step_of_any_world_is_the_reference_simulators(data: st.DataObject, seed: int) -> None:
    config = data.draw(configs())
    trace = data.draw(traces(config))
    script = data.draw(actions(config))
    fast, twin = FastSimulation(config, trace, seed), Simulation(config, trace, seed)
    assert_same(fast, twin)
    for action in script:
        if twin.finished or twin.truncated:
            break
        assert_same_result(take(fast, action), take(twin, action))
        assert_same(fast, twin)
