"""A pool's rates from a trained model: it sees and answers as in the simulator, and is not followed when in doubt."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from agent.models.directory import POINTER, Champion, ModelsDirectory, read_model_file
from agent.models.file import METADATA_KEY
from agent.oversubscription.observation import Sight, Sizes, expected_requests, observation_of
from agent.oversubscription.rate_model import load_rate_model
from agent.oversubscription.rate_policies import policy_of as rates_of
from agent.oversubscription.rate_policies import subject_of, verify_rates
from agent.oversubscription.records import Vm
from domain.decisions import Reason
from domain.errors import BadInput
from domain.rules.oversubscription.pool import PoolRules, SubscriberRules
from domain.subject import Subject
from simulator.oversubscription.batch import OversubscriptionSimulation
from tests.agent.models.making import NOTHING, preferring
from tests.agent.oversubscription.pools import House, loads_as, pool_of, profiles_as, rules, vm
from tests.stages import exhaustive
from tests.trainer.oversubscription.small import staggered_pair
from trainer.oversubscription.c2marl import Config, network_of
from trainer.oversubscription.model_file import export
from trainer.oversubscription.policies import Task, policy_of
from trainer.promotion.directory import ModelsWriter

PLACED = {name: SubscriberRules(internal=True, model_place=k) for k, name in enumerate(("s0", "s1"))}
HOUSE = {name: SubscriberRules(internal=True, model_place=k) for k, name in enumerate(("web", "batch"))}


def exported(directory: Path, seed: int = 5, observation: str = "obs-o") -> Path:
    """A model of the trainer for two subscribers."""
    scenario, config = staggered_pair(), Config(hidden=(8,), seed=seed, observation=observation)
    return export(network_of(config, scenario), config, scenario, directory, training={}, evaluation={})


def put_in_use(place: Path, file: Path, given: PoolRules, key: bytes | None = None) -> Champion:
    """The model forced for the pool, as an operator would."""
    verify = lambda path: verify_rates(path, given)  # noqa: E731
    return ModelsWriter(place, key).force(read_model_file(file), subject_of(given), "a test", "now", verify)


def model_in_use(place: Path) -> Path:
    """The file of the one pool that has a champion there."""
    ((_, champion),) = ModelsWriter(place).champions().items()
    return place / champion.model


@pytest.mark.parametrize("observation", ["obs-o", "obs-o-ext"])
def test_the_agent_sees_and_decides_what_the_simulator_does_over_a_week(tmp_path: Path, observation: str) -> None:
    scenario = staggered_pair()
    path = exported(tmp_path, observation=observation)
    pool, profiles = pool_of(scenario, PLACED), profiles_as(scenario, PLACED)
    model = load_rate_model(path, pool)
    plan = policy_of(str(path)).plan(Task(scenario, scenario.week("s0")))
    assert plan.choose is not None
    played = OversubscriptionSimulation(scenario, "s0", cost="analytic", observation=observation)
    played.reset()
    week, chosen = played.week, set()
    for hour in range(scenario.hours):
        there = played.placement()
        sizes = np.column_stack((week.cores, week.memory_gb, week.network_gbps, there.rate)).tolist()
        alive = [
            Vm(str(k), f"s{week.subscriber[k]}", f"m{there.machine[k]}", *sizes[k])
            for k in range(len(week.ids))
            if week.arrival[k] < hour < week.departure[k]
        ]
        coming = [k for k in range(len(week.ids)) if week.arrival[k] == hour]
        asked: dict[str, Sizes] = {}
        for n, name in enumerate(PLACED):
            own_ones = [k for k in coming if week.subscriber[k] == n]
            columns = (week.cores, week.memory_gb, week.network_gbps)
            cores, memory, network = (float(sum(column[k] for k in own_ones)) for column in columns)
            asked[name] = (cores, memory, network)
        sight = Sight(
            memories={},
            vms=alive,
            asked=asked,
            loads=loads_as(alive, profiles, pool),
            profiles=profiles,
            rules=pool,
            hour_of_day=hour % 24,
            hot_hours=0,
        )
        cluster, local = observation_of(sight, model.order, extended=observation == "obs-o-ext")
        seen, own = played.batch.obs.copy(), played.batch.local.copy()
        if observation == "obs-o-ext":
            # Hot hours so far are expected ones there, and seen ones here.
            cluster[0, -1] = seen[0, -1]
            assert cluster == pytest.approx(seen, abs=2e-6)
            assert local == pytest.approx(own, abs=2e-6)
        else:
            assert cluster.tobytes() == seen.tobytes()
            assert local.tobytes() == own.tobytes()
        wanted = plan.choose(played)
        assert list(model.rates(sight).values()) == wanted.tolist()
        chosen |= set(wanted.tolist())
        played.step_rates(wanted)
    assert len(chosen) > 1


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """A pool of a learned policy, with no model yet."""
    place = tmp_path / "models"
    place.mkdir()
    given = rules(policy="learned", subscribers=HOUSE)
    made = House(tmp_path, given, [vm(f"v{k}", "web" if k % 2 else "batch", f"m{k % 2 + 1}") for k in range(12)])
    yield made
    made.ledger.close()


@pytest.mark.exhaustive
def test_a_pools_rates_are_its_models_once_its_subscribers_are_known(house: House, tmp_path: Path) -> None:
    model = put_in_use(tmp_path / "models", exported(tmp_path), house.rules)
    house.live(200)
    assert house.pool.hour is not None
    assert house.pool.hour.model == model.model[:16]
    rows = house.pool.hour.subscribers
    assert all(row.wanted_rate in house.rules.actions for row in rows)
    assert {row.subscriber: row.rate for row in rows if row.rate < 1.0}
    assert house.pool.memory.counts.fallbacks == 0


def damaged(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"x")


def nan_inside(path: Path) -> None:
    """A model that loads under its name and answers what is no number, golden inputs included."""
    model = onnx.load(str(path))
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(np.full_like(numpy_helper.to_array(tensor), np.nan), tensor.name))
    content = model.SerializeToString()
    name = f"{hashlib.sha256(content).hexdigest()}.onnx"
    path.with_name(name).write_bytes(content)
    put_in_use_unverified(path.parent, path.with_name(name))


def put_in_use_unverified(place: Path, file: Path) -> None:
    """A file named as the pool's champion with a sound report, although nobody has tried it."""
    verify = lambda path: None  # noqa: E731
    ModelsWriter(place).force(read_model_file(file), subject_of(rules()), "a test", "now", verify)


def gone(path: Path) -> None:
    path.unlink()


@pytest.mark.exhaustive
@pytest.mark.parametrize("harm", [damaged, nan_inside, gone], ids=lambda one: one.__name__)
def test_a_model_that_cannot_be_gone_by_reserves_everything_counted_and_explained(
    house: House, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    place = tmp_path / "models"
    put_in_use(place, exported(tmp_path), house.rules)
    house.live(170)
    harm(model_in_use(place))
    events = house.hour(0.2)
    assert [event.reason for event in events if event.reason is Reason.POLICY_FAILED] == [Reason.POLICY_FAILED]
    assert (house.rate("web"), house.reasons("web")) == (1.0, (Reason.POLICY_FAILED,))
    assert house.rate("batch") == 1.0
    assert house.pool.memory.counts.fallbacks == 2
    # The way back: the model before, or a sound one.
    put_in_use(place, exported(tmp_path / "other", seed=6), house.rules)
    house.hour(0.2)
    assert house.reasons("web") != (Reason.POLICY_FAILED,)


def test_one_golden_number_that_is_not_the_trainers_is_enough(tmp_path: Path) -> None:
    path = exported(tmp_path)
    model = onnx.load(str(path))
    card = next(entry for entry in model.metadata_props if entry.key == METADATA_KEY)
    held = json.loads(card.value)
    held["golden"]["q"][-1][-1][0] += 0.01
    card.value = json.dumps(held)
    content = bytes(model.SerializeToString())
    spoilt = path.with_name(f"{hashlib.sha256(content).hexdigest()}.onnx")
    spoilt.write_bytes(content)
    with pytest.raises(BadInput, match="output q for the golden inputs"):
        load_rate_model(spoilt, pool_of(staggered_pair(), PLACED))


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def a_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def a_device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("harm", [a_pipe, *exhaustive(a_link, a_device)], ids=lambda one: one.__name__)
@pytest.mark.parametrize("what", ["model", "champion.json"])
def test_what_is_no_regular_file_is_not_opened_and_everything_is_reserved(
    house: House, tmp_path: Path, harm: Callable[[Path], None], what: str
) -> None:
    place = tmp_path / "models"
    put_in_use(place, exported(tmp_path), house.rules)
    house.live(2)
    harm(model_in_use(place) if what == "model" else place / what)
    (failed,) = [event.detail for event in house.hour(0.2) if event.reason is Reason.POLICY_FAILED]
    assert "a regular file is needed" in failed
    assert house.rate("web") == 1.0


def test_while_a_model_is_read_the_hour_waits_two_turns_and_is_decided_without_it_then(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in_use(tmp_path / "models", exported(tmp_path), house.rules)
    house.live(2)
    decided = house.pool.memory.hour
    over = threading.Event()
    monkeypatch.setattr("agent.oversubscription.pool.POLICY_PATIENCE_S", 0.0)
    monkeypatch.setattr("agent.oversubscription.pool.policy_of", lambda *_: over.wait() and None)
    house.hour(0.2)
    house.turn()
    assert house.pool.memory.hour == decided
    (failed,) = [event.detail for event in house.turn() if event.reason is Reason.POLICY_FAILED]
    assert "still being read, for 0 s now" in failed
    assert (house.pool.memory.hour, house.rate("web")) == (decided + 1, 1.0)
    over.set()


def test_one_that_answers_no_number_later_is_not_followed(tmp_path: Path) -> None:
    scenario = staggered_pair()
    pool = pool_of(scenario, PLACED)
    model = load_rate_model(exported(tmp_path), pool)
    empty = loads_as([], profiles_as(scenario, PLACED), pool)
    asked = {"s0": (float("nan"), 0.0, 0.0)}
    with pytest.raises(BadInput, match="not finite"):
        model.rates(Sight({}, (), asked, empty, profiles_as(scenario, PLACED), pool, 0, 0))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"subscribers": {"web": HOUSE["web"]}}, "it is for 2 subscribers, 1 of the pool have a MODEL_PLACE"),
        ({"subscribers": {"web": HOUSE["batch"], "batch": HOUSE["batch"]}}, "each once; they have: batch 1, web 1"),
        ({"subscribers": {"web": SubscriberRules(internal=True)}}, "they have: none"),
        ({"subscribers": HOUSE, "actions": (0.5, 1.0)}, "its levels are [0.2, 0.3, 0.4, 0.5, 0.6, 1.0], the pool's"),
    ],
)
def test_a_model_for_other_subscribers_or_levels_is_refused(
    tmp_path: Path, changes: dict[str, object], told: str
) -> None:
    with pytest.raises(BadInput) as refusal:
        load_rate_model(exported(tmp_path), rules(**changes))
    assert told in str(refusal.value)


def test_a_fleets_model_and_a_report_of_another_pool_are_refused(house: House, tmp_path: Path) -> None:
    place, fleets = tmp_path / "models", preferring(tmp_path, NOTHING)
    put_in_use_unverified(place, fleets)
    with pytest.raises(BadInput, match="its card is wrong, kind"):
        rates_of(house.rules.policy, house.rules, ModelsDirectory(place))
    directory, file = ModelsWriter(place), exported(tmp_path)
    other = directory.force(
        read_model_file(file), Subject("oversubscription", "other"), "a test", "now", lambda _: None
    )
    held = json.loads((place / POINTER).read_text())
    held["subjects"]["oversubscription"]["main"] = {"model": file.name, "report": other.report}
    (place / POINTER).write_text(json.dumps(held))
    with pytest.raises(BadInput, match=r"oversubscription other, not .* main"):
        rates_of(house.rules.policy, house.rules, ModelsDirectory(place))


def test_a_file_of_rates_is_promoted_under_its_content_and_refused_once_that_changes(tmp_path: Path) -> None:
    given, file = rules(policy="learned", subscribers=HOUSE), tmp_path / "rates.json"
    file.write_text(json.dumps({"kind": "oversubscription-rates", "rates": {"web": 0.5, "batch": 0.6}}))
    held = put_in_use(tmp_path / "models", file, given)
    policy = rates_of("learned", given, ModelsDirectory(tmp_path / "models"))
    assert (policy.model, policy.forced) == (held.model[:16], "a test")
    (tmp_path / "models" / held.model).write_text(file.read_text().replace("0.5", "0.2"))
    with pytest.raises(BadInput, match="it is damaged: promote it again"):
        rates_of("learned", given, ModelsDirectory(tmp_path / "models"))


def test_requests_are_expected_as_the_days_before_had_them(house: House, tmp_path: Path) -> None:
    put_in_use(tmp_path / "models", exported(tmp_path), house.rules)
    house.live(3)
    house.place([*house.vms, vm("new", "web", "m1", cores=6.0, memory_gb=24.0)])
    house.hour(0.2)
    clock = 3
    assert expected_requests(house.pool.memory.subscribers, clock)["web"] == (6.0, 24.0, 1.0)
    assert expected_requests(house.pool.memory.subscribers, clock)["batch"] == (0.0, 0.0, 0.0)
    # An hour that was not seen yet: the mean of those that were, the first of all left out.
    assert expected_requests(house.pool.memory.subscribers, 12)["web"] == pytest.approx((2.0, 8.0, 1.0 / 3.0))


def test_reading_settings_without_a_model_loads_no_onnx_runtime() -> None:
    code = (
        "import sys; import agent.oversubscription.pool; "
        "assert 'onnxruntime' not in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ}, timeout=60)
