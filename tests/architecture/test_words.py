"""The words of texts and docstrings: no file gains old dialect, and the count sees strings, pages and comments."""

from __future__ import annotations

import pytest

from tests.architecture.words import COUNTS, committed, counted, found, of_module, of_page, risen


def test_no_file_has_more_old_dialect_than_committed() -> None:
    now = {path: (texts, notes) for path, texts, notes in counted()}
    assert risen(now, committed()) == [], f"see tests/architecture/words.py; the counts in {COUNTS.name} may only fall"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("whoever has told it what it holds", 3),
        ("each fleet has limits of\n  its own", 1),
        ("the ledger's URL is none", 1),
        ("what to do next", 0),
        ("What does it cost?", 0),
        ("no sample is no longer fresh", 0),
    ],
)
def test_words_are_found_as_a_reader_sees_them(text: str, count: int) -> None:
    assert len(found(text)) == count


def test_a_file_is_read_as_its_kind() -> None:
    assert found(of_page("`told` and\n```sh\ntold\n```\n[beside](told.md)")) == ["beside"]
    texts, notes = of_module('"""Told."""\nname = f"{1} stands {2}"  # beside\nother = "who"\n')
    assert sorted(word for text in texts for word in found(text)) == ["stands", "who"]
    assert sorted(word for note in notes for word in found(note)) == ["Told", "beside"]


@pytest.mark.parametrize(("now", "rises"), [((2, 3), False), ((1, 0), False), ((3, 3), True), ((2, 4), True)])
def test_a_count_may_only_fall(now: tuple[int, int], rises: bool) -> None:
    assert bool(risen({"a.py": now}, {"a.py": (2, 3)})) is rises
