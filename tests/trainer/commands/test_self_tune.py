"""`trimtab self-tune`: one line of JSON, limits before anything else, and no package of the extra `train`."""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.models.rounds import Ending, read_status, status_file
from domain.subject import QUEUE_RULE, Subject
from tests.trainer.learning.recording import FLEET, batches, made, recorded_in
from tests.trainer.learning.steps import trimtab
from trainer.commands import self_tune
from trainer.learning.self_tuning_turn import Tuner, Turn

LIMIT = self_tune.limit_itself
GROUP = {"VM_TYPE": "m5a.large", "CORES": "2", "MEMORY_GB": "8", "PRICE_PER_HOUR": "0.086", "MIN": "1", "MAX": "10"}
ENV = {f"TRIMTAB_FLEETS__{FLEET}__GROUPS__s__{name}": value for name, value in GROUP.items()}
BLOCKED = """
import json, sys


class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numba", "torch", "onnxruntime", "scipy", "pandas"):
            raise ImportError(f"{name} is not installed")


sys.meta_path.insert(0, Blocked())
"""


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An hour of a fleet."""
    path = tmp_path_factory.mktemp("ledger") / "ledger.db"
    return recorded_in(path, made(1.0, trace=batches(1.0)))


@pytest.fixture
def call(tmp_path: Path, ledger: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, object]]:
    monkeypatch.setattr(self_tune, "limit_itself", lambda: None)
    for name, value in ENV.items():
        monkeypatch.setenv(name, value)

    def do(*words: object) -> dict[str, object]:
        result = trimtab("self-tune", FLEET, "--ledger", ledger, "--models-dir", tmp_path, *words)
        assert result.exit_code == 0, result.output
        (line,) = result.stdout.splitlines()
        found: dict[str, object] = json.loads(line)
        return found

    return do


def test_too_short_a_record_is_an_answer_and_leaves_its_status(
    call: Callable[..., dict[str, object]], tmp_path: Path
) -> None:
    found = call()
    assert (found["did"], found["outcome"]) == ("tuned", "too_little")
    assert read_status(status_file(tmp_path, Subject(QUEUE_RULE, FLEET))).outcome is Ending.TOO_LITTLE


def test_a_plan_leaves_nothing(call: Callable[..., dict[str, object]], tmp_path: Path) -> None:
    assert call("--plan")["outcome"] == "too_little"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("SELF_TUNE", "off", "SELF_TUNE"),
        ("IDLE_S", "60", "by hand"),
        ("QUEUE_RULE__HORIZON_S", "600", "by hand"),
        ("POLICY", "threshold", "policy"),
    ],
)
def test_a_fleet_that_does_not_follow_is_left_alone(
    call: Callable[..., dict[str, object]], monkeypatch: pytest.MonkeyPatch, name: str, value: str, why: str
) -> None:
    monkeypatch.setenv(f"TRIMTAB_FLEETS__{FLEET}__{name}", value)
    found = call()
    assert found["did"] == "nothing"
    assert why in str(found["why"])


def test_an_unknown_fleet_is_bad_input(call: Callable[..., dict[str, object]]) -> None:
    assert trimtab("self-tune", "other").exit_code == 2


def test_the_program_tunes_without_the_extra_and_within_its_limits(tmp_path: Path, ledger: str) -> None:
    words = ["self-tune", FLEET, "--ledger", ledger, "--models-dir", str(tmp_path)]
    code = f"""{BLOCKED}
from agent.commands.main import app
try:
    app({words!r})
except SystemExit as end:
    assert not end.code, end.code
import os, resource
print(json.dumps([os.nice(0), resource.getrlimit(resource.RLIMIT_CPU)[0], resource.getrlimit(resource.RLIMIT_AS)[0]]))
from domain.rules.queue_rule import RuleSetting
from trainer.learning import self_tuning as tuner
from trainer.learning.minutes import read_record
from trainer.learning.subject import learner_of
learner = learner_of(read_record({ledger!r}, {FLEET!r}, 1.0), None, None)
plays = tuner._Plays(learner, tuner.simulate)
print(plays(RuleSetting(300.0, 0.0), 1.0, 0, 1.0).sum())
print(json.dumps(sorted({{"numba", "torch", "onnxruntime", "scipy", "pandas"}} & set(sys.modules))))
"""
    run = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | ENV, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr
    answer, limits, cost, loaded = run.stdout.splitlines()
    assert json.loads(answer)["outcome"] == "too_little"
    assert json.loads(limits) == [self_tune.NICENESS, self_tune.CPU_S, self_tune.MEMORY_BYTES]
    assert float(cost) > 0.0
    assert json.loads(loaded) == []


def test_limits_are_never_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[int, tuple[int, int]] = {}
    monkeypatch.setattr(os, "nice", lambda more: (_ for _ in ()).throw(PermissionError("refused")))
    monkeypatch.setattr(resource, "getrlimit", lambda limit: (10, 10))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(resource, "setrlimit", given.__setitem__)
    self_tune.limit_itself()
    # The soft limit ends the turn with its status, before the hard one ends the process.
    assert given == {resource.RLIMIT_CPU: (9, 10), resource.RLIMIT_AS: (10, 10)}


def test_too_many_jobs_end_a_turn_with_its_status_once_a_day(
    call: Callable[..., dict[str, object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = []
    before = signal.getsignal(signal.SIGXCPU)

    def turn(tuner: Tuner) -> Turn:
        # As a replay that counts a fault of a policy.
        with contextlib.suppress(Exception):
            signal.raise_signal(signal.SIGXCPU)
        played.append(tuner)
        return Turn("tuned", "to its end")

    monkeypatch.setattr(self_tune, "limit_itself", LIMIT)
    monkeypatch.setattr(os, "nice", lambda more: 0)
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    monkeypatch.setattr(Tuner, "turn", turn)
    found = call()
    assert (found["did"], found["outcome"]) == ("tuned", "budget")
    assert played == []
    status = read_status(status_file(tmp_path, Subject(QUEUE_RULE, FLEET)))
    assert status.outcome is Ending.BUDGET
    # The signal that comes each second does not end the writing of the status.
    assert signal.getsignal(signal.SIGXCPU) is signal.SIG_IGN
    signal.signal(signal.SIGXCPU, before)
