"""What every decision that learns promises of a model on probation: recorded beside its decisions, it changes none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agent.autoscaling.policies.ppo_lstm import LEARNED
from agent.kernel.parts import kinds
from agent.ledger import codec
from agent.models.directory import Probationer, Then, moment_text, read_model_file
from agent.oversubscription.settings import DIGITS
from domain.clock import VirtualClock
from domain.rules.placement.policies import DP, policy_document
from domain.subject import Subject
from tests.agent.models.making import reported, scorer
from tests.contract.cases import ADMISSION, AUTOSCALING, HOUR_S, OVERSUBSCRIPTION, PLACEMENT, SETTINGS, START, Case
from tests.contract.running import RunningAgent, running
from tests.contract.test_killed import timeless
from tests.simulator.aws.world import World
from tests.stages import exhaustive
from trainer.promotion.directory import ModelsWriter

FIRST, MOST = 26, 200
"""Hours of a life: placement compares once a day; a model is read beside the loop, however long that takes."""


@dataclass(frozen=True)
class Learned:
    """A decision that learns: who writes its model into a folder, and how a record calls a model of this SHA-256.

    otherwise: its shadow while no model is on probation, which it compares once a day; "" for none.
    """

    case: Case
    write: Callable[[Path], Path]
    name: Callable[[str], str]
    otherwise: str = ""

    def __str__(self) -> str:
        return self.case.decision

    @property
    def subject(self) -> Subject:
        return Subject(self.case.decision, self.case.subject)


def _json(**document: Any) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = folder / "model.json"
        path.write_text(json.dumps(document))
        return path

    return write


EVERY = (
    Learned(AUTOSCALING, lambda folder: scorer(folder, {"added": 1.0}), lambda sha: f"{LEARNED}:{sha}"),
    Learned(ADMISSION, _json(rule="second:99", preset="K"), str),
    Learned(OVERSUBSCRIPTION, _json(kind="oversubscription-rates", rates={"ours": 0.2}), lambda sha: sha[:DIGITS]),
    Learned(PLACEMENT, _json(**policy_document(DP)), lambda sha: DP.name, otherwise="WF"),
)
every = pytest.mark.parametrize("learned", EVERY, ids=str)


def on_probation(place: Path) -> dict[str, Probationer]:
    """Put a model of each decision on probation in a directory, and return them by decision."""
    directory, found = ModelsWriter(place), {}
    place.mkdir()
    for one in EVERY:
        model = read_model_file(one.write(place.parent))
        report = reported(place, model.name, None, one.subject, champion={"sha256": None})
        found[str(one)] = directory.put_on_probation(
            model, one.subject, report, START, 24.0 * 365, Then.PROMOTE, lambda path: path, beaten=None
        )
    return found


def beside(body: Mapping[str, Any]) -> set[str]:
    """Who decided beside a recorded decision, by name; a placement pool records it once a day."""
    shadow = body.get("shadow")
    named = {one["policy"] for one in body.get("shadows") or ()}
    return named | ({shadow["model"]} if isinstance(shadow, Mapping) else {shadow} if shadow else set())


def without_shadows(value: Any) -> Any:
    """The value without what shadows said."""
    if isinstance(value, Mapping):
        return {key: without_shadows(one) for key, one in value.items() if not key.startswith("shadow")}
    return [without_shadows(one) for one in value] if isinstance(value, list | tuple) else value


@dataclass
class Life:
    """An agent that is asked once an hour by every client."""

    agent: RunningAgent
    hours: int = 0

    def hour(self) -> None:
        """Let an hour pass, every part turn, and every client order."""
        self.agent.clock.advance(HOUR_S)
        self.hours += 1
        with self.agent.client() as client:
            for one in EVERY:
                for chore in self.agent.part(str(one)).chores():
                    chore.call()
                assert self.agent.turn(str(one)).failure is None
                order = one.case.order(f"h{self.hours}")
                client.post(one.case.path, json=order).raise_for_status()

    def bodies(self, learned: Learned) -> list[dict[str, Any]]:
        """What it decided for a subject, newest first."""
        store = self.agent.part(str(learned)).decisions
        return [codec.decode_mapping(one.body) for one in store.newest(str(learned), learned.case.subject, limit=500)]

    def beside(self, learned: Learned) -> set[str]:
        """Who was recorded beside the newest decision, or in the newest comparison."""
        compared = (one for one in self.bodies(learned) if not learned.otherwise or "saved" in one)
        return beside(next(compared, {}))

    def until(self, holds: Callable[[], bool], at_least: int = 0) -> None:
        """Live on until it holds."""
        first = self.hours
        while self.hours < first + at_least or not holds():
            assert self.hours < first + MOST
            self.hour()


NUMBERS = count(1)
METRIC = "trimtab_learn_probation"


@contextmanager
def living(short: Path, world: World, models: Path) -> Iterator[Life]:
    """An agent of its own ledger and this directory of models, before its first turn."""
    name = f"p{next(NUMBERS)}"
    south = SETTINGS["placements"]["south"] | {"shadow": "wf"}
    settings = {
        **{key: value for key, value in SETTINGS.items() if key != "deferrals"},
        "placements": {"south": south},
        "learned": {"models_dir": models},
        "http": {"socket": short / f"{name}.sock"},
    }
    url = f"sqlite:///{short}/{name}.db"
    with running(url, VirtualClock(START), world.running.endpoint, directory=short, **settings) as agent:
        agent.lead()
        for one in EVERY:
            one.case.prepare(agent)
        yield Life(agent)


@dataclass
class Pair:
    """Two lives of as many hours, the second with a model of each decision on probation."""

    plain: Life
    tried: Life
    models: Path
    probation: Mapping[str, Probationer]

    def name(self, learned: Learned) -> str:
        """How a record calls the model."""
        return learned.name(Path(self.probation[str(learned)].model).stem)


@pytest.fixture(scope="module")
def pair(toy: None, short: Path, world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("probation")
    probation = on_probation(folder / "models")
    with ExitStack() as stack:
        tried = stack.enter_context(living(short, world, folder / "models"))
        plain = stack.enter_context(living(short, world, folder / "none"))
        made = Pair(plain, tried, folder / "models", probation)
        tried.until(lambda: all(tried.beside(one) == {made.name(one)} for one in EVERY), at_least=FIRST)
        plain.until(lambda: plain.hours == tried.hours)
        yield made


def test_every_decision_that_learns_is_here(toy: None) -> None:
    assert {kind.name for kind in kinds() if kind.learns} == {str(one) for one in EVERY}


@every
def test_it_is_recorded_beside_the_decisions_and_changes_none(learned: Learned, pair: Pair) -> None:
    lives = (pair.tried, pair.plain)
    assert [life.beside(learned) for life in lives] == [{pair.name(learned)}, {learned.otherwise} - {""}]
    with_it, alone = ([timeless(without_shadows(one)) for one in life.bodies(learned)] for life in lives)
    # What a comparison of policies says is of the shadow.
    assert [one for one in with_it if "saved" not in one] == [one for one in alone if "saved" not in one]
    assert [on_probation_by_metric(life, learned) for life in lives] == [1.0, None]


def on_probation_by_metric(life: Life, learned: Learned) -> float | None:
    with life.agent.client("") as client:
        families = text_string_to_metric_families(client.get("/metrics").text)
    labels = {"part": learned.case.decision, "subject": learned.case.subject}
    found = [one.value for family in families for one in family.samples if one.name == METRIC and one.labels == labels]
    return found[0] if found else None


def spoilt(place: Path, one: Probationer, damage: str) -> None:
    """Change the model or its report, or take the model away."""
    file = place / (one.report if damage == "report" else one.model)
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes().replace(b"true", b"false")[:-1] + b" \n")


@pytest.mark.parametrize("damage", ["model", "report", *exhaustive("gone")])
def test_one_that_is_damaged_decides_nothing_until_it_is_whole_and_nothing_after_its_end(
    damage: str, toy: None, short: Path, world: World, tmp_path: Path
) -> None:
    place = tmp_path / "models"
    probation = on_probation(place)
    whole = {path: path.read_bytes() for path in place.iterdir()}
    names = {one: one.name(Path(probation[str(one)].model).stem) for one in EVERY}
    for spoil in probation.values():
        spoilt(place, spoil, damage)
    with living(short, world, place) as life:
        life.until(lambda: life.hours == FIRST)
        for one in EVERY:
            assert names[one] not in set().union(*map(beside, life.bodies(one))), one
        for path, content in whole.items():
            path.write_bytes(content)
        life.until(lambda: all(life.beside(one) == {names[one]} for one in EVERY))
        for one in EVERY:
            ModelsWriter(place).end_probation(one.subject, "over", moment_text(START))
        life.until(lambda: all(life.beside(one) == {one.otherwise} - {""} for one in EVERY))
