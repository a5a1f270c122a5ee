"""Files that would fill the memory or stop whoever opens them, and models that never answer: refused, and in time."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.autoscaling.policies.fallback import evaluate_within
from agent.autoscaling.policies.learned_models import ModelShelf
from agent.models.background import Background, left_behind
from agent.models.directory import LARGEST_MODEL_BYTES, LARGEST_POINTER_BYTES
from agent.models.file import Model, ModelRefused, load_model
from agent.models.regular_files import read_file
from agent.models.shelf import ModelPending
from domain.errors import PolicyFailure
from tests.agent.autoscaling.policies.test_learned import FLEET, snapshot
from tests.agent.models.making import ADD_M, ADD_S, NOTHING, endless, preferring, promote
from tests.agent.models.test_model_shelf import fleet, named

pytestmark = pytest.mark.timeout(60)


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_directory(path: Path) -> None:
    path.mkdir()


def a_link(path: Path) -> None:
    target = path.with_name("elsewhere")
    target.write_bytes(b"{}")
    path.symlink_to(target)


def a_link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def a_socket(path: Path) -> None:
    # Names of sockets have at most 107 characters.
    there = os.open(path.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(f"/proc/self/fd/{there}/{path.name}")
    finally:
        os.close(there)


def a_huge_file(path: Path) -> None:
    path.touch()
    os.truncate(path, LARGEST_MODEL_BYTES + 1)


KINDS = {
    a_pipe: "it is a named pipe, a regular file is needed",
    a_directory: "it is a directory, a regular file is needed",
    a_link: "it is a symbolic link, a regular file is needed",
    a_link_to_a_device: "it is a symbolic link, a regular file is needed",
    a_socket: "it is a socket, a regular file is needed",
    a_huge_file: f"it has {LARGEST_MODEL_BYTES + 1} bytes, more than",
}
Make = Callable[[Path], None]
KIND = pytest.mark.parametrize(("make", "words"), KINDS.items(), ids=lambda made: getattr(made, "__name__", ""))


@pytest.fixture
def models(tmp_path: Path) -> Path:
    directory = tmp_path / "models"
    directory.mkdir()
    return directory


@KIND
def test_only_a_regular_file_below_a_size_is_a_model(models: Path, make: Make, words: str) -> None:
    path = models / f"{'a' * 64}.onnx"
    make(path)
    with pytest.raises(ModelRefused) as refused:
        load_model(path)
    assert words in str(refused.value)


@KIND
def test_only_a_regular_file_below_a_size_names_the_champion_and_the_one_before_stays(
    models: Path, make: Make, words: str
) -> None:
    first = preferring(models, ADD_S)
    promote(models, first)
    shelf = ModelShelf(models, patience_s=30.0)
    shelf.look()
    (models / "champion.json").unlink()
    make(models / "champion.json")
    assert shelf.resolve("learned", fleet()) == named(first)
    assert words.replace(f"more than {LARGEST_MODEL_BYTES}", f"more than {LARGEST_POINTER_BYTES}") in shelf.refusal


def test_a_device_is_refused_before_it_is_opened() -> None:
    with pytest.raises(OSError, match="a character device"):
        read_file(Path("/dev/zero"), 100)


def test_a_file_that_grows_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "growing"
    path.write_bytes(b"12345678")
    monkeypatch.setattr("agent.models.regular_files.check", lambda *_: None)
    assert read_file(path, 8) == b"12345678"
    with pytest.raises(OSError, match="it has more than 7 bytes"):
        read_file(path, 7)


def test_another_file_that_takes_the_name_in_between_is_judged_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, pipe = tmp_path / "file", tmp_path / "pipe"
    path.write_bytes(b"whole")
    os.mkfifo(pipe)
    opens = os.open
    monkeypatch.setattr("agent.models.regular_files.os.open", lambda at, flags: opens(pipe, flags))
    with pytest.raises(OSError, match="it is a named pipe"):
        read_file(path, 100)


def test_a_link_that_takes_the_name_in_between_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, other = tmp_path / "file", tmp_path / "other"
    path.write_bytes(b"whole")
    other.write_bytes(b"other")
    opens = os.open

    def swapped(at: Path, flags: int) -> int:
        path.unlink()
        path.symlink_to(other)
        return opens(at, flags)

    monkeypatch.setattr("agent.models.regular_files.os.open", swapped)
    with pytest.raises(OSError, match="symbolic links"):
        read_file(path, 100)


def test_a_link_is_followed_only_where_that_is_asked_for(tmp_path: Path) -> None:
    a_link(tmp_path / "link")
    assert read_file(tmp_path / "link", 100, follow_links=True) == b"{}"
    a_link_to_a_device(tmp_path / "zero")
    with pytest.raises(OSError, match="it is a character device"):
        read_file(tmp_path / "zero", 100, follow_links=True)


def test_a_model_that_never_answers_its_golden_inputs_is_refused(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.models.file.GOLDEN_DEADLINE_S", 0.2)
    path = endless(models, preferring(models, NOTHING))
    with pytest.raises(ModelRefused, match=r"no answer within 0.2 s"):
        load_model(path)


def test_a_model_that_never_answers_in_a_minute_is_stopped_and_leaves_no_thread(models: Path) -> None:
    path = endless(models, preferring(models, NOTHING), when_idle=True)
    policy = ModelShelf(models).policy(f"model:{path}", FLEET)
    with pytest.raises(PolicyFailure, match=r"within 0.2 s"):
        evaluate_within(0.2)(policy, FLEET, snapshot(), {})
    over = threading.Event()

    def wait() -> None:
        while f"policy {policy.name}" in left_behind():
            over.wait(0.01)

    assert Background("waits for the policy", wait).over(20.0)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, list[Path]]]:
    """Every model but the first to be loaded takes until the event is set."""
    over, loads = threading.Event(), list[Path]()

    def load(path: Path) -> Model:
        loads.append(path)
        if len(loads) > 1:
            over.wait()
        return load_model(path)

    monkeypatch.setattr("agent.models.file.load_model", load)
    yield over, loads
    over.set()


def test_while_a_model_is_tried_the_one_before_decides_and_nobody_waits(
    models: Path, slow: tuple[threading.Event, list[Path]]
) -> None:
    over, loads = slow
    first, second = preferring(models, ADD_S), preferring(models, ADD_M)
    shelf = ModelShelf(models, patience_s=30.0)
    promote(models, first)
    assert shelf.look()
    shelf.patience_s = 0.0
    promote(models, second)
    for _ in range(5):
        assert shelf.resolve("learned", fleet()) == named(first)
    assert "model " + str(models) in left_behind()
    over.set()
    shelf.patience_s = 30.0
    assert shelf.resolve("learned", fleet()) == named(second)
    assert loads == [first, second]


def test_a_first_champion_that_is_still_being_tried_is_said_to_be_and_none_that_is_shipped_decides(
    models: Path, slow: tuple[threading.Event, list[Path]]
) -> None:
    over, loads = slow
    loads.append(models)
    promote(models, preferring(models, ADD_S))
    shelf = ModelShelf(models, patience_s=0.0)
    with pytest.raises(ModelPending, match="still being read"):
        shelf.resolve("learned", fleet())
    over.set()
    shelf.patience_s = 30.0
    assert shelf.resolve("learned", fleet()) == named(preferring(models, ADD_S))


def test_a_caller_waits_once_for_a_model_and_not_with_each_call(
    models: Path, slow: tuple[threading.Event, list[Path]]
) -> None:
    over, loads = slow
    loads.append(models)
    path = preferring(models, ADD_S)
    shelf = ModelShelf(None, patience_s=1.0)
    with pytest.raises(ModelPending, match="still being read"):
        shelf.resolve(f"model:{path}", fleet())
    began = time.monotonic()
    for _ in range(50):
        with pytest.raises(ModelPending):
            shelf.resolve(f"model:{path}", fleet())
    # Fifty times the patience would be fifty seconds.
    assert time.monotonic() - began < 30.0
    assert len(loads) == 2
    over.set()
