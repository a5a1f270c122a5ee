"""Answers on disk are found by the content of their case, survive a kill, and call nothing when they are read."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.autoscaling.twin import Simulation
from tests.trainer.kit.light_work import refuse, square_and_die_once, square_or_die
from trainer.kit.answers import AnswerFile, keys_of
from trainer.kit.jobs import Pool, Workers

A, B = (bytes([n] * 32) for n in (1, 2))


@dataclass(frozen=True)
class Case:
    name: str
    values: tuple[float, ...]


def test_answers_are_found_again_until_the_command_ends(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "answers"
    first = AnswerFile(file, resume=True)
    assert first.find(A) is None
    first.add(A, None)
    first.add(B, {"table": np.arange(3.0)})
    again = AnswerFile(file, resume=True)
    assert again.find(A) == (None,)
    (found,) = again.find(B) or (None,)
    np.testing.assert_array_equal(found["table"], np.arange(3.0))
    again.remove()
    assert not file.exists()
    assert AnswerFile(file, resume=True).find(A) is None


def test_without_resume_the_answers_of_before_are_gone(tmp_path: Path) -> None:
    AnswerFile(tmp_path / "answers", resume=True).add(A, 1)
    AnswerFile(tmp_path / "answers", resume=False)
    assert AnswerFile(tmp_path / "answers", resume=True).find(A) is None


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_a_record_that_is_cut_or_damaged_is_dropped_and_the_next_is_whole(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "answers"
    store = AnswerFile(file, resume=True)
    store.add(A, "whole")
    store.add(B, "damaged")
    content = bytearray(file.read_bytes())
    if damage == "cut":
        del content[-1]
    else:
        content[-2] ^= 1
    file.write_bytes(content)
    store = AnswerFile(file, resume=True)
    assert (store.find(A), store.find(B)) == (("whole",), None)
    store.add(B, "again")
    assert AnswerFile(file, resume=True).find(B) == ("again",)


class Harm:
    def __reduce__(self) -> object:
        return os.system, ("true",)


@pytest.mark.parametrize("harm", [Harm(), Simulation, partial(print, "text")])
def test_a_file_from_elsewhere_calls_nothing(tmp_path: Path, harm: object) -> None:
    """Classes of the program may be named, functions never, nor a function through a module of the program."""
    store = AnswerFile(tmp_path / "answers", resume=True)
    store.add(A, harm)
    through = b"\x80\x04\x8c\x10trainer.kit.jobs\x8c\tos.system\x93\x8c\x04true\x85R."
    with pytest.raises(AttributeError):
        pickle.loads(through.replace(b"os.system", b"os.sistem"))
    store._answers[B] = through
    assert store.find(B) is None
    assert (store.find(A) is None) == (harm is not Simulation)


def key_of(work: Callable[..., Any], item: object) -> bytes:
    key, again = keys_of(work, [item, item])
    assert key == again
    return key


def test_a_case_is_known_by_its_content_and_not_by_its_objects() -> None:
    case = Case("one", (1.0, 2.0))
    assert key_of(refuse, case) == key_of(refuse, Case("".join(["o", "ne"]), (1.0, 2.0)))
    others = [replace(case, name="two"), replace(case, values=(1.0,)), (case,), ("one", (1.0, 2.0))]
    keys = {key_of(refuse, other) for other in [case, *others]}
    keys |= {key_of(square_or_die, case), key_of(partial(refuse, 1), case)}
    keys |= {key_of(refuse, np.zeros(2)), key_of(refuse, np.zeros((2, 1))), key_of(refuse, np.zeros(2, dtype=np.int64))}
    assert len(keys) == 10


def test_a_file_counts_by_its_content(tmp_path: Path) -> None:
    first, second = tmp_path / "first.onnx", tmp_path / "second.onnx"
    first.write_text("weights")
    before = key_of(refuse, str(first)), key_of(refuse, f"script:{first}")
    second.write_text("weights")
    assert (key_of(refuse, second), key_of(refuse, f"script:{second}")) == before
    first.write_text("other weights")
    after = key_of(refuse, str(first)), key_of(refuse, f"script:{first}")
    assert not set(before) & set(after)


def marks(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("count", [1, 2])
def test_finished_items_are_not_repeated_by_any_number_of_workers(tmp_path: Path, count: int) -> None:
    """Stopped in the middle; then the others run, once each, and the answers are those of one run."""
    items = [(tmp_path / "marks", number) for number in range(4, 12)]
    items[0][0].mkdir()
    with Pool(square_and_die_once, Workers(count, answers=AnswerFile(tmp_path / "answers", resume=True))) as pool:
        stopped = pool.run(items)
        assert [next(stopped) for _ in range(3)] == [16, 25, 36]
        stopped.close()
    before = len(marks(tmp_path / "marks"))
    again = Workers(3 - count, answers=AnswerFile(tmp_path / "answers", resume=True))
    with Pool(square_and_die_once, again) as pool:
        assert list(pool.run(items)) == [number * number for _, number in items]
    repeated = [name for name in marks(tmp_path / "marks") if not name.endswith("-0")]
    # Items at work or queued in two processes when it was stopped: their answers were never read.
    assert len(repeated) <= (0 if count == 1 else 5)
    assert not any(name.startswith(("4-", "5-", "6-")) for name in repeated)
    assert before < len(items) or count == 2


def test_where_no_file_can_be_written_the_work_goes_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    workers = Workers(answers=AnswerFile(tmp_path / "file" / "answers", resume=True))
    with Pool(square_or_die, workers) as pool:
        assert list(pool.run([2, 3])) == [4, 9]
    assert capfd.readouterr().err.count("finished cases are not stored") == 1
