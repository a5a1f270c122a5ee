"""The seal of a report: any change shows, with a key nobody else can make it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.models.directory import Seal, read_key, seal_of
from domain.errors import BadInput
from trainer.promotion.directory import sealed

KEY, OTHER = b"0123456789abcdef", b"fedcba9876543210"
BODY = {"passed": True, "limits": {"worse": 0.05}, "cases": [1, 2, 3]}
JSON = st.dictionaries(
    st.text(max_size=8), st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text())
)


def test_a_signed_report_checks_with_its_key_and_with_no_other() -> None:
    report = sealed(BODY, KEY)
    assert seal_of(report, KEY) is Seal.SIGNED
    assert seal_of(report, OTHER) is Seal.CHANGED
    assert seal_of(report, None) is Seal.KEY_NEEDED


def test_an_unsigned_report_is_held_by_its_digest_alone() -> None:
    report = sealed(BODY, None)
    assert report["signature"] is None
    assert seal_of(report, KEY) is seal_of(report, None) is Seal.UNSIGNED


@pytest.mark.parametrize("key", [KEY, None])
def test_a_changed_report_is_noticed(key: bytes | None) -> None:
    report = sealed(BODY, key)
    assert seal_of({**report, "passed": False}, key) is Seal.CHANGED
    assert seal_of({**report, "cases": [1, 2]}, key) is Seal.CHANGED
    assert seal_of({**report, "sha256": "0" * 64}, key) is Seal.CHANGED


def test_whoever_mends_the_digest_still_lacks_the_key() -> None:
    forged = {**sealed({**BODY, "passed": False}, None), "signature": sealed(BODY, KEY)["signature"]}
    assert seal_of(forged, KEY) is Seal.CHANGED


@given(JSON)
def test_the_order_of_keys_makes_no_difference(body: dict[str, object]) -> None:
    assert sealed(dict(reversed(body.items())), KEY)["sha256"] == sealed(body, KEY)["sha256"]


def test_a_key_comes_from_a_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(KEY + b"\n")
    assert read_key(file, {}) == KEY
    assert read_key(None, {"PROMOTION_KEY": KEY.decode()}) == KEY
    assert read_key(None, {}) is None


def test_a_short_or_missing_key_is_refused_and_never_shown(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as short:
        read_key(None, {"PROMOTION_KEY": "hunter2"})
    assert "hunter2" not in str(short.value)
    with pytest.raises(BadInput):
        read_key(tmp_path / "none", {})
