"""Deferral over HTTP and in the verbs: jobs, bad input with field and remedy, status, preflight, replay."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent.api.app import create_app
from agent.api.server import HttpServer
from agent.decisions.checks import Account, State
from agent.decisions.part import Capacity, Host, Turn
from agent.decisions.parts import parts_of
from agent.decisions.turn import TickReport
from agent.deferral.part import DeferralPart
from agent.deferral.records import History, StepRow
from agent.deferral.store import Change
from agent.ledger import Ledger
from agent.rehearsal.scenario import AGENT_KEY, SECRET
from agent.settings import Settings, load_settings
from agent.view.board import ServiceBoard
from agent.view.view import AgentParts, AgentView
from collectors.aws import AwsOptions, AwsSession
from collectors.intake import IntakeCounters
from domain.clock import BothTimes, VirtualClock
from domain.errors import ConfigurationError
from domain.units import HOUR_S
from simulator.aws.process import RunningCloud
from tests.agent.deferral.pools import START, STEP
from tests.agent.preflight.iam import QUEUES, ROLE_SESSION, running_iam


class Agent:
    """One pool served on a socket; a turn is made when the test says so."""

    def __init__(self, directory: Path, ledger: Ledger, clock: VirtualClock) -> None:
        self.clock = clock
        given = {
            "mode": "act",
            "deferrals": {"night": {"policy": "knapsack"}},
            "http": {"socket": directory / "s.sock"},
        }
        settings = Settings.model_validate({**given, "state_directory": directory})
        parts = parts_of(Host(ledger, settings, clock))
        self.part = next(part for part in parts if isinstance(part, DeferralPart))
        view = AgentParts(
            settings=settings,
            board=ServiceBoard(START),
            ledger=ledger,
            now=clock.now,
            monotonic=clock.monotonic,
            parts=parts,
            collectors=dict,
            intake=IntakeCounters,
            aws_calls=dict,
        )
        self.server = HttpServer(create_app(AgentView(view)), settings)

    def turn(self) -> TickReport:
        now = self.clock.now()
        return self.part.turn(Turn(now, BothTimes(now, self.clock.monotonic()), 1, TickReport(now)))


@pytest.fixture
def agent(ledger: Ledger, clock: VirtualClock) -> Iterator[Agent]:
    directory = Path(tempfile.mkdtemp(prefix="tt-"))
    made = Agent(directory, ledger, clock)
    made.server.start()
    yield made
    made.server.stop()
    shutil.rmtree(directory)


@pytest.fixture
def client(agent: Agent) -> Iterator[httpx.Client]:
    transport = httpx.HTTPTransport(uds=str(agent.server.path))
    with httpx.Client(transport=transport, base_url="http://localhost/api/v1/deferral", timeout=30.0) as made:
        yield made


def job(job_id: str = "a", **more: Any) -> dict[str, Any]:
    return {"job_id": job_id, "cores": 4, "duration_steps": 2, "latest_at": START + 9 * HOUR_S, **more}


def test_a_job_is_quoted_submitted_started_explained_and_cancelled(agent: Agent, client: httpx.Client) -> None:
    assert client.post("/pools/night/capacity", json={"cores": 10, "by": "probe"}).status_code == 200
    assert client.post("/pools/night/quote", json=job()).json()["rollouts"] == 200
    assert client.post("/pools/night/jobs", json=job()).json()["already"] is False
    assert client.post("/jobs", json=job()).json()["already"] is True
    assert client.post("/jobs", json=job("b", cores=9)).json()["job"]["stage"] == "waiting"
    agent.turn()
    (running,) = client.get("/pools/night/jobs", params={"stage": "running"}).json()
    assert (running["job_id"], running["start"], running["decision_id"]) == ("b", STEP, "night-d1")
    assert client.get("/pools/night/jobs/a/explain").json()["waits_for"].startswith("jobs before it")
    assert client.get("/decisions/night-d1").json()["starts"][0]["job_id"] == "b"
    assert client.post("/pools/night/jobs/b/cancel", json={"by": "ada"}).json()["core_steps"] == 9
    view = client.get("/pools/night").json()
    assert (view["step"], view["capacity"], view["running"], view["jobs"]["cancelled"]) == (STEP, 10, 9, 1)
    assert agent.part.capacity("night") == Capacity(1.0, 4.0, 9.0)
    assert [one["pool"] for one in client.get("/pools").json()] == ["night"]


@pytest.mark.parametrize(
    ("status", "field", "body"),
    [
        (422, "cores", job(cores=0)),
        (422, "cores", job(cores=1.5)),
        (422, "cores", job(cores="4")),
        (422, "cores", job(cores=True)),
        (422, "duration_steps", job(duration_steps=0)),
        (422, "latest_at", job(latest_at=START - 1.0)),
        (422, "latest_at", job(earliest_at=START + 20 * HOUR_S)),
        (422, "earliest_at", job(earliest_at=START - HOUR_S)),
        (422, "job_id", job("a b")),
        (422, "version", job(version=2)),
        (422, "colour", job(colour="red")),
        (409, "job_id", job("taken", cores=5)),
    ],
)
def test_what_is_no_job_is_refused_with_field_and_remedy(
    client: httpx.Client, status: int, field: str, body: dict[str, Any]
) -> None:
    client.post("/pools/night/jobs", json=job("taken"))
    answer = client.post("/pools/night/jobs", json=body)
    assert answer.status_code == status
    assert answer.json()["wrong"][0]["field"].endswith(field)
    assert answer.json()["wrong"][0]["remedy"]
    assert len(client.get("/pools/night/jobs").json()) == 1


def test_jobs_are_listed_page_by_page(client: httpx.Client) -> None:
    for name in "abcde":
        assert client.post("/pools/night/jobs", json=job(name)).status_code == 200
    pages, after = list[list[str]](), 0
    for _ in range(3):
        found = client.get("/pools/night/jobs", params={"limit": 2, "after": after}).json()
        pages.append([one["job_id"] for one in found])
        after = found[-1]["number"]
    assert pages == [["a", "b"], ["c", "d"], ["e"]]
    assert client.get("/pools/night/jobs", params={"after": after}).json() == []


def test_numbers_that_are_none_and_names_that_are_not_there_are_refused(client: httpx.Client) -> None:
    for cores in ("NaN", "-1", "1e400", '"many"', "true"):
        answer = client.post(
            "/pools/night/capacity", content=f'{{"cores": {cores}}}', headers={"Content-Type": "application/json"}
        )
        assert answer.status_code in (400, 422), cores
    assert client.get("/pools/day").status_code == 404
    assert client.post("/pools/day/jobs", json=job()).status_code == 404
    assert client.get("/pools/night/jobs/nothing").status_code == 404
    assert client.post("/pools/night/jobs/nothing/cancel", json={}).status_code == 404


def test_the_forecast_of_the_capacity_is_published(agent: Agent, client: httpx.Client, clock: VirtualClock) -> None:
    assert client.get("/pools/night/forecast").json()["steps"] == []
    client.post("/pools/night/capacity", json={"cores": 10})
    agent.turn()
    first = client.get("/pools/night/forecast", params={"steps": 3}).json()
    expected = [{"step": STEP + n, "cores": 10.0, "low": None, "high": None} for n in (1, 2, 3)]
    assert (first["by_calendar"], first["steps"]) == (False, expected)
    rows = [StepRow(STEP - 95 + k, 10 + 10 * (k % 24 >= 12)) for k in range(95)]
    pool = agent.part.pools["night"].pool
    pool.tried(lambda state, now: (None, Change(state.head, history=History((*rows, *state.history.rows)))))
    clock.advance(HOUR_S)
    client.post("/pools/night/capacity", json={"cores": 10})
    agent.turn()
    found = client.get("/pools/night/forecast").json()
    assert found["by_calendar"]
    assert len(found["steps"]) == 24
    assert all(one["low"] <= one["high"] for one in found["steps"])
    assert max(one["cores"] for one in found["steps"]) > min(one["cores"] for one in found["steps"]) + 5
    (coming,) = [one for one in found["steps"] if one["step"] == STEP + 2]
    assert client.get("/pools/night").json()["expected"] == pytest.approx(coming)
    published = {labels[1]: value for name, labels, value in agent.part.readings() if name == "deferral_forecast_cores"}
    assert published == {"mean": coming["cores"], "0.1": coming["low"], "0.9": coming["high"]}
    assert "forecast of the step after step" in "\n".join(agent.part.status("night", clock.now()).lines)
    assert client.get("/pools/night/forecast", params={"steps": 1000}).status_code == 422


def test_a_drain_needs_who_and_why(client: httpx.Client) -> None:
    assert client.post("/pools/night/drain", json={"by_at": START}).status_code == 422
    order = {"by_at": START + 2 * HOUR_S, "owner": "ada", "reason": "maintenance"}
    assert client.post("/pools/night/drain", json=order).json()["by_step"] == STEP + 2
    assert client.get("/pools/night").json()["drain"]["owner"] == "ada"


def test_status_card_and_explanation_say_what_happened(agent: Agent, client: httpx.Client, clock: VirtualClock) -> None:
    client.post("/pools/night/capacity", json={"cores": 10})
    client.post("/pools/night/jobs", json=job())
    agent.turn()
    lines = "\n".join(agent.part.status("night", clock.now()).lines)
    assert "6 of 10 cores free, policy knapsack" in lines
    assert "1 started with 8 core-steps" in lines
    card = agent.part.card("night", clock.now())
    assert card is not None
    assert ("running", "1 job, 4 cores") in card.rows
    explained = agent.part.explain(agent.part.decisions.get("night-d1")).lines
    assert "  knapsack" in "\n".join(explained)
    assert [one.same for one in agent.part.replay("night", None, None)] == [True]


def test_preflight_names_what_is_missing(clock: VirtualClock) -> None:
    account = Account(AwsSession(AwsOptions("us-east-1"), clock, read_only=True), "arn:aws:iam::1:role/agent")
    settings = Settings.model_validate(
        {"deferrals": {"a": {"capacity": "fleet:web"}, "b": {"capacity": "pool:x"}, "c": {}}}
    )
    found = [(one.subject, one.state, one.detail) for one in DeferralPart.preflight(settings, account)]
    assert ("deferral a", State.MISSING, "no fleet is called web") in found
    assert ("deferral b", State.MISSING, "no oversold pool is called x") in found
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
    assert [one.remedy for one in found] == [
        "correct TRIMTAB_DEFERRALS__night__SUBMIT_QUEUE_URL, or allow sqs:GetQueueAttributes"
    ]


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
    with pytest.raises(ConfigurationError, match="what is sent would be received as jobs"):
        load_settings(queues)
