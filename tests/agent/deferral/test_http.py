"""Deferral over HTTP and in the verbs: jobs, bad input with field and remedy, status, preflight, replay."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from agent.deferral.decision import DeferralPart
from agent.deferral.look import PoolService
from agent.deferral.records import History, StepRow
from agent.deferral.state import Change
from agent.kernel.checks import Account, State
from agent.kernel.decision import Capacity
from agent.rehearsal.scenario import AGENT_KEY, SECRET
from agent.settings import Settings, load_settings
from collectors.aws import AwsOptions, AwsSession
from domain.clock import VirtualClock
from domain.errors import ConfigurationError
from domain.units import HOUR_S
from simulator.aws.process import RunningCloud
from tests.agent.deferral.pools import START, STEP
from tests.agent.preflight.iam import QUEUES, ROLE_SESSION, running_iam
from tests.contract.running import RunningAgent, running
from tests.short_directory import short_directory

NAMES = iter(f"q{n}" for n in range(16))
POOLS = [f"q{n}" for n in range(16)]
"""More than there are tests, of which each has one of its own."""


@dataclass
class Pool:
    """A pool of the agent; a turn is made when the test says so."""

    agent: RunningAgent
    name: str

    @property
    def part(self) -> DeferralPart:
        part = self.agent.part("deferral")
        assert isinstance(part, DeferralPart)
        return part

    @property
    def service(self) -> PoolService:
        return self.part.pools[self.name]

    def turn(self) -> None:
        """Turn it once, as the leader."""
        self.service.turns.turn(self.agent.clock.now(), self.agent.epoch)

    def lines(self) -> str:
        """What `trimtab status` shows of it."""
        return "\n".join(self.part.status(self.name, self.agent.clock.now()).lines)


@pytest.fixture(scope="module")
def serving() -> Iterator[RunningAgent]:
    """One agent for the module."""
    with short_directory() as directory:
        settings = {
            "deferrals": {name: {"policy": "knapsack"} for name in POOLS},
            "http": {"socket": directory / "s.sock"},
        }
        with running(f"sqlite:///{directory}/l.db", VirtualClock(START), directory=directory, **settings) as made:
            yield made.lead()


@pytest.fixture
def pool(serving: RunningAgent) -> Pool:
    serving.clock.step(START - serving.clock.now())
    return Pool(serving, next(NAMES))


@pytest.fixture
def client(pool: Pool) -> Iterator[httpx.Client]:
    with pool.agent.client(f"/api/v1/deferral/pools/{pool.name}") as made:
        yield made


def job(job_id: str = "a", **more: Any) -> dict[str, Any]:
    return {"job_id": job_id, "cores": 4, "duration_steps": 2, "latest_at": START + 9 * HOUR_S, **more}


def test_a_job_is_submitted_started_explained_and_cancelled(pool: Pool, client: httpx.Client) -> None:
    assert client.post("/capacity", json={"cores": 10, "by": "probe"}).status_code == 200
    assert client.post("/jobs", json=job()).json()["already"] is False
    assert client.post("/jobs", json=job("b", cores=9)).json()["job"]["stage"] == "waiting"
    pool.turn()
    (started,) = client.get("/jobs", params={"stage": "running"}).json()
    decision_id = f"{pool.name}-d1"
    assert (started["job_id"], started["start"], started["decision_id"]) == ("b", STEP, decision_id)
    assert client.get("/jobs/a/explain").json()["waits_for"].startswith("jobs before it")
    assert client.post("/jobs/b/cancel", json={"by": "ada"}).json()["core_steps"] == 9
    view = pool.service.view()
    assert (view.step, view.capacity, view.running, view.jobs["cancelled"]) == (STEP, 10, 9, 1)
    assert pool.part.capacity(pool.name) == Capacity(1.0, 4.0, 9.0)
    with pool.agent.client("/api/v1/deferral") as above:
        assert above.get(f"/decisions/{decision_id}").json()["starts"][0]["job_id"] == "b"
        assert pool.name in [one["pool"] for one in above.get("/pools").json()]


def test_jobs_are_listed_page_by_page(client: httpx.Client) -> None:
    for name in "abcde":
        assert client.post("/jobs", json=job(name)).status_code == 200
    pages, after = list[list[str]](), 0
    for _ in range(3):
        found = client.get("/jobs", params={"limit": 2, "after": after}).json()
        pages.append([one["job_id"] for one in found])
        after = found[-1]["number"]
    assert pages == [["a", "b"], ["c", "d"], ["e"]]
    assert client.get("/jobs", params={"after": after}).json() == []


def test_numbers_that_are_none_and_names_that_are_not_there_are_refused(client: httpx.Client) -> None:
    for cores in ("NaN", "-1", "1e400", '"many"', "true"):
        answer = client.post("/capacity", content=f'{{"cores": {cores}}}', headers={"Content-Type": "application/json"})
        assert answer.status_code in (400, 422), cores
    assert client.get("/jobs/nothing").status_code == 404
    assert client.post("/jobs/nothing/cancel", json={}).status_code == 404


def test_the_forecast_of_the_capacity_is_published(pool: Pool, client: httpx.Client) -> None:
    assert client.get("/forecast").json()["steps"] == []
    client.post("/capacity", json={"cores": 10})
    pool.turn()
    first = client.get("/forecast", params={"steps": 3}).json()
    expected = [{"step": STEP + n, "cores": 10.0, "low": None, "high": None} for n in (1, 2, 3)]
    assert (first["by_calendar"], first["steps"]) == (False, expected)
    rows = [StepRow(STEP - 95 + k, 10 + 10 * (k % 24 >= 12)) for k in range(95)]
    pool.service.transact(lambda state, now: (None, Change(state.head, history=History((*rows, *state.history.rows)))))
    pool.agent.clock.advance(HOUR_S)
    client.post("/capacity", json={"cores": 10})
    pool.turn()
    found = client.get("/forecast").json()
    assert found["by_calendar"]
    assert len(found["steps"]) == 24
    assert all(one["low"] <= one["high"] for one in found["steps"])
    assert max(one["cores"] for one in found["steps"]) > min(one["cores"] for one in found["steps"]) + 5
    (coming,) = [one for one in found["steps"] if one["step"] == STEP + 2]
    assert dataclasses.asdict(pool.service.view().expected) == pytest.approx(coming)
    published = {
        labels[1]: value
        for name, labels, value in pool.part.readings()
        if name == "deferral_forecast_cores" and labels[0] == pool.name
    }
    assert published == {"mean": coming["cores"], "0.1": coming["low"], "0.9": coming["high"]}
    assert "forecast of the step after step" in pool.lines()
    assert client.get("/forecast", params={"steps": 1000}).status_code == 422


def test_a_drain_needs_who_and_why(pool: Pool, client: httpx.Client) -> None:
    assert client.post("/drain", json={"by_at": START}).status_code == 422
    order = {"by_at": START + 2 * HOUR_S, "owner": "ada", "reason": "maintenance"}
    assert client.post("/drain", json=order).json()["by_step"] == STEP + 2
    drain = pool.service.view().drain
    assert drain is not None
    assert drain.owner == "ada"


def test_status_card_and_explanation_say_what_happened(pool: Pool, client: httpx.Client) -> None:
    client.post("/capacity", json={"cores": 10})
    client.post("/jobs", json=job())
    pool.turn()
    lines = pool.lines()
    assert "6 of 10 cores free, policy knapsack" in lines
    assert "1 started with 8 core-steps" in lines
    card = pool.part.card(pool.name, pool.agent.clock.now())
    assert card is not None
    assert ("running", "1 job, 4 cores") in card.rows
    explained = pool.part.explain(pool.part.decisions.get(f"{pool.name}-d1")).lines
    assert "  knapsack" in "\n".join(explained)
    assert [one.same for one in pool.part.replay(pool.name, None, None)] == [True]


def test_preflight_passes_a_pool_whose_capacity_is_posted(clock: VirtualClock) -> None:
    account = Account(AwsSession(AwsOptions("us-east-1"), clock, read_only=True), "arn:aws:iam::1:role/agent")
    settings = Settings.model_validate({"deferrals": {"c": {}}})
    found = [(one.subject, one.state, one.detail) for one in DeferralPart.preflight(settings, account)]
    assert any(subject == "deferral c" and state is State.OK for subject, state, _ in found)


def looked(mode: str, refused: str = "") -> list[tuple[State, str]]:
    """What preflight says of a pool with two queues, IAM refusing an action."""
    url = "https://sqs.eu-west-1.amazonaws.com/111122223333"
    own = {"submit_queue_url": f"{url}/jobs", "ready_queue_url": f"{url}/ready.fifo", "policy": "knapsack"}
    settings = Settings.model_validate({"mode": mode, "aws": {"region": "eu-west-1"}, "deferrals": {"night": own}})
    with running_iam() as (iam, session):
        iam.decisions[refused] = "implicitDeny"
        found = [(one.state, one.detail) for one in DeferralPart.preflight(settings, Account(session, ROLE_SESSION))]
        assert [form["ResourceArns.member.1"] for form in iam.asked] == [[f"{QUEUES}:jobs"], [f"{QUEUES}:ready.fifo"]]
    return found


def test_preflight_asks_iam_for_both_queues_and_names_what_it_refuses() -> None:
    taken, sent = "IAM allows sqs:DeleteMessage and sqs:ReceiveMessage", "IAM allows sqs:SendMessage"
    allowed = [(State.OK, taken), (State.OK, sent)]
    assert looked("act")[-2:] == allowed
    assert (State.MISSING, "IAM refuses sqs:SendMessage") in looked("act", "sqs:SendMessage")
    assert (State.ADVICE, "IAM refuses sqs:DeleteMessage") in looked("observe", "sqs:DeleteMessage")


def test_preflight_names_a_queue_that_is_not_there(cloud: RunningCloud, clock: VirtualClock) -> None:
    own = {"submit_queue_url": f"{cloud.endpoint}/123456789012/gone", "policy": "knapsack"}
    settings = Settings.model_validate({"mode": "act", "aws": {"region": "us-east-1"}, "deferrals": {"night": own}})
    options = AwsOptions("us-east-1", cloud.endpoint, access_key_id=AGENT_KEY, secret_access_key=SECRET)
    account = Account(AwsSession(options, clock, read_only=True), ROLE_SESSION)
    found = [one for one in DeferralPart.preflight(settings, account) if one.state is State.MISSING]
    (remedy,) = [one.remedy for one in found]
    assert "TRIMTAB_DEFERRALS__night__SUBMIT_QUEUE_URL" in remedy
    assert "sqs:GetQueueAttributes" in remedy


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("CAPACITY", "web", "give http, fleet:NAME"),
        ("MARGIN", "-1", "give whole cores such as 4"),
        ("POLICY", "best", "give one of learned, rolling, knapsack, fifo"),
        ("STEP_S", "3700", "of which a day has a whole number"),
        ("MODE", "act", "give one of observe, enforce"),
        ("MODEL_PIN", "xyz", "the beginning of a model's digest"),
    ],
)
def test_settings_that_are_wrong_are_named_with_a_remedy(name: str, value: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_settings({f"TRIMTAB_DEFERRALS__night__{name}": value})
    assert words in str(caught.value)


def test_one_queue_for_both_ways_is_refused() -> None:
    url = "https://sqs.eu-west-1.amazonaws.com/123456789012/jobs"
    queues = {f"TRIMTAB_DEFERRALS__night__{way}_QUEUE_URL": url for way in ("SUBMIT", "READY")}
    with pytest.raises(ConfigurationError, match="sent starts would be received as jobs"):
        load_settings(queues)
