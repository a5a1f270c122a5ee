"""A change of structure changes nothing that happens: on fixed seeds every projected byte is the committed one."""

from __future__ import annotations

import pytest

from tests.parity.projection import PROJECTIONS, committed, text_of


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", PROJECTIONS)
def test_what_happens_is_what_happened(name: str) -> None:
    now, then = text_of(name).splitlines(), committed(name).read_text("utf-8").splitlines()
    different = [(i, *pair) for i, pair in enumerate(zip(then, now, strict=False)) if pair[0] != pair[1]]
    assert (different[:3], len(now)) == ([], len(then)), "if meant: python -m tests.parity.projection, and say why"
