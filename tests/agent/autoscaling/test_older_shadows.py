"""Ledgers of versions that knew one shadow: they are read as before, and their decisions come out in the same bytes.

`decisions_before_shadows.jsonl` holds what such a version recorded: a threshold as the shadow, a minute in which AWS
could not be read, and a shadow without a model.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from agent.autoscaling.decide import Decided, DecisionInputs, decide
from agent.autoscaling.policies.fallback import Proposer, evaluate_directly
from agent.autoscaling.replay import replay
from agent.autoscaling.store import LOOP, FleetStore
from agent.ledger import Ledger, codec
from agent.rails.state import LoopState
from domain.decisions import Decision
from domain.errors import LedgerError

SAMPLES = [
    json.loads(line) for line in Path(__file__).with_name("decisions_before_shadows.jsonl").read_text().splitlines()
]


def as_written(body: dict[str, Any]) -> bytes:
    """The bytes that the ledger of then holds."""
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


def of_then(made: Decision) -> dict[str, Any]:
    """A decision as the version of then wrote it."""
    body = {**codec.plain(made)}
    shadows = body.pop("shadows")
    failures = body.pop("policy_failures")
    return {**body, "shadow": shadows[0] if shadows else None, "policy_failures": failures}


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """A ledger whose rows are those of then."""
    book = Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}")
    book.take_epoch("test", 0.0)
    with book.database.write() as connection:
        # The journal takes no change: here it is put back to what another version wrote.
        for name in connection.execute(text("select name from sqlite_master where type = 'trigger'")).scalars().all():
            connection.execute(text(f"drop trigger {name}"))
    for sample in SAMPLES:
        inputs = codec.decode(DecisionInputs, as_written(sample["inputs"]))
        made = codec.decode(Decision, as_written(sample["decision"]))
        for intent in book.open_intents():
            with book.database.write() as connection:
                of_intent = {"id": intent.intent_id}
                connection.execute(text("update intents set state = 'closed' where intent_id = :id"), of_intent)
        FleetStore(book).record([(inputs, Decided(made, inputs.state))])
        with book.database.write() as connection:
            rows = (
                ("update journal set body = :body where ref = :id and kind = 'decision'", sample["decision"]),
                ("update decisions set inputs = :body where decision_id = :id", sample["inputs"]),
                ("update state set body = :body where key = :id", sample["inputs"]["state"]),
            )
            for (query, body), key in zip(rows, (made.decision_id, made.decision_id, LOOP), strict=True):
                connection.execute(text(query), {"body": codec.pack(as_written(body)), "id": key})
    return book


def test_an_older_ledger_is_read_and_replayed_without_a_difference(ledger: Ledger) -> None:
    records = list(FleetStore(ledger).inputs("web"))
    assert [inputs.shadows for inputs, _ in records] == [
        () if sample["inputs"]["shadow"] is None else (sample["inputs"]["shadow"],) for sample in SAMPLES
    ]
    assert [(item.same, item.difference) for item in replay(records)] == [(True, "")] * len(SAMPLES)
    ledger.close()


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample["decision"]["decision_id"])
def test_the_very_bytes_of_then_come_out_again(sample: dict[str, Any]) -> None:
    inputs = codec.decode(DecisionInputs, as_written(sample["inputs"]))
    again = decide(inputs, Proposer(evaluate_directly)).decision
    assert as_written(of_then(again)) == as_written(sample["decision"])


def test_the_memory_of_the_one_shadow_goes_on_under_its_name(ledger: Ledger) -> None:
    before = FleetStore(ledger).loop_state("web")
    assert before.shadow_memories == {"": {"streaks": (0.0, 2.0)}}
    inputs = codec.decode(DecisionInputs, as_written(SAMPLES[3]["inputs"]))
    after = decide(inputs, Proposer(evaluate_directly)).state
    assert after.shadow_memories == {inputs.shadows[0]: {"streaks": (0.0, 2.0)}}
    assert codec.decode(LoopState, codec.encode(after)) == after
    ledger.close()


def test_a_value_of_the_wrong_kind_in_its_place_is_refused_as_damage() -> None:
    for spoilt in ("[1]", '"x', "7"):
        body = as_written({**SAMPLES[0]["decision"], "shadow": "SPOILT"}).replace(b'"SPOILT"', spoilt.encode())
        with pytest.raises(LedgerError):
            codec.decode(Decision, body)
