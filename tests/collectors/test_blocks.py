"""Lines that are read and stored at once leave what they leave one by one, whatever is among them."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.autoscaling.snapshot import series
from agent.autoscaling.snapshot.series import SeriesStore
from collectors import intake
from collectors.intake import Claims, IntakeCounters, LineReader
from domain.fleet import Fleet, Group, VmType
from domain.samples import VmMetric, VmSeries

T0 = 1_795_209_000.0
FLEET = Fleet("web", (Group("s", "web-s", VmType("m5a.large", 2, 8.0, 0.086), 1, 40),))
PATHS = [VmSeries("web", "s", f"i-{vm:03}", metric).path.encode() for vm in range(16) for metric in VmMetric]
QUEUE = [b"trimtab.web.queue.submitted_total", b"trimtab.web.queue.waiting", b"trimtab.web.signal.requests"]
TAGGED = b"trimtab.cpu_percent;fleet=web;group=s;vm=i-003"

Odd = Callable[[list[bytes], int], object]
ODD: list[Odd] = [
    lambda lines, n: lines.insert(n, lines[n]),
    lambda lines, n: lines.insert(n + 1, _with(lines[n], value=b"1.5", at=b"%d" % (T0 + 24))),
    lambda lines, n: lines.insert(n, _with(lines[n], value=b"1.5")),
    lambda lines, n: lines.append(lines.pop(n)),
    lambda lines, n: lines.reverse(),
    lambda lines, n: lines.pop(n),
    lambda lines, n: lines.extend(list(lines)),
    lambda lines, n: lines.insert(n, lines[n].replace(b" ", b"  ", 1)),
    lambda lines, n: lines.insert(n, b" " + lines[n]),
    lambda lines, n: lines.insert(n, lines[n].replace(b" ", b"\t")),
    lambda lines, n: lines.insert(n, lines[n] + b"\r"),
    lambda lines, n: lines.insert(n, lines[n] + b" 5"),
    lambda lines, n: lines.insert(n, b"5 " + lines[n]),
    lambda lines, n: lines.insert(n, lines[n].rpartition(b" ")[0]),
    lambda lines, n: lines.insert(n, b"\xff" + lines[n]),
    lambda lines, n: lines.insert(n, b"\0" + lines[n]),
    lambda lines, n: lines.insert(n, b""),
    lambda lines, n: lines.insert(n, b"x" * 1025),
    lambda lines, n: lines.insert(n, b"x" * 3000),
    lambda lines, n: lines.insert(n, _with(lines[n], value=b"1" * 600)),
    lambda lines, n: lines.insert(n, TAGGED + b" 7 %d" % T0),
]
VALUES = (
    b"nan",
    b"inf",
    b"-inf",
    b"-1",
    b"-0.0",
    b"0",
    b"1e3",
    b"104.5",
    b"106",
    b"1_0",
    b"0x1",
    b"",
    b"1e400",
    b"7.25",
)
TIMES = (b"nan", b"inf", b"-1", b"0", b"%d" % (T0 + 1000), b"%d" % (T0 - 1000), b"1_0", b"%.3f" % (T0 + 0.125))


def _with(line: bytes, value: bytes | None = None, at: bytes | None = None) -> bytes:
    path, old_value, old_at = line.split(b" ")[:3]
    return b" ".join((path, old_value if value is None else value, old_at if at is None else at))


def _valued(value: bytes | None = None, at: bytes | None = None) -> Odd:
    def change(lines: list[bytes], n: int) -> None:
        lines[n] = _with(lines[n], value, at)

    return change


ODD += [_valued(value) for value in VALUES]
ODD += [_valued(at=at) for at in TIMES]


def round_of(order: list[bytes], number: int, odd: Odd | None, n: int) -> bytes:
    """Return a line for each path, ten seconds later in each round, with something odd at a place."""
    lines = [b"%b %.4f %d" % (path, (7 * k + number) % 90 / 50, T0 + 10 * number) for k, path in enumerate(order)]
    if odd is not None:
        odd(lines, n % len(lines))
    return b"\n".join(lines) + b"\n"


@st.composite
def rounds(draw: st.DrawFn) -> list[tuple[str, list[bytes], bool]]:
    """Return chunks by round, with their sender, and whether the minute is closed after them."""
    found = []
    for number in range(draw(st.integers(2, 5))):
        order = draw(
            st.sampled_from((PATHS, PATHS + QUEUE, PATHS + QUEUE[1:], PATHS[20:] + PATHS[:20], PATHS[:40], PATHS[::-1]))
        )
        text = round_of(order, number, draw(st.sampled_from([None, *ODD])), draw(st.integers(0, 80)))
        cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=2)))
        peer = draw(st.sampled_from(("10.0.0.7:1", "10.0.0.7:1", "10.0.0.8:1", "")))
        found.append((peer, [text[a:b] for a, b in pairwise((0, *cuts, len(text)))], draw(st.booleans())))
    return found


def state_of(store: SeriesStore, counters: IntakeCounters) -> dict[str, Any]:
    names = ("_times", "_values", "_newest", "_next_slot", "_peers", "_rows_by_path", "_paths", "_free", "_left")
    held = {name: one.tobytes() if isinstance(one := getattr(store, name), array) else deepcopy(one) for name in names}
    said = {row: [(name, repr(one)) for name, one in senders._last.items()] for row, senders in store._senders.items()}
    counted = counters.accepted, dict(counters.rejected), dict(counters.examples)
    claims = repr(store.refused_claims()), store.conflicts()
    return {**held, "senders": said, "counted": counted, "claims": claims}


def left_by(played: list[tuple[str, list[bytes], bool]], watched: bool) -> tuple[list[dict[str, Any]], int]:
    """Return what each round leaves, and how many readings were stored at once."""
    signals, claims = {"web": ["requests"]}, {"web": Claims(max_waiting=50.0, max_busy_share=0.9)}
    store = SeriesStore(watched=[FLEET] if watched else None, claims=claims, signals=signals, forget_after_s=100.0)
    counters, now, at_once = IntakeCounters(), T0, 0
    states, whole = [], store._store_at_once

    def counting(*given: Any) -> int:
        nonlocal at_once
        done = whole(*given)
        at_once += done
        return done

    store._store_at_once = counting  # type: ignore[method-assign,assignment]
    readers = {peer: LineReader(store, counters, lambda: now, peer) for peer, _, _ in played}
    for number, (peer, chunks, closes) in enumerate(played):
        now = T0 + 10 * number + 5
        for chunk in chunks:
            readers[peer].feed(chunk)
        if closes:
            store.show("web", "s", [f"i-{vm:03}" for vm in range(3, 16)], 40, now)
            store.close_bin(now - 24, now - 12, now)
        states.append(state_of(store, counters))
    return states, at_once


@contextmanager
def one_by_one() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intake, "BLOCK_BYTES", math.inf)
        patch.setattr(series, "AT_ONCE", math.inf)
        yield


@given(rounds(), st.booleans())
def test_blocks_leave_what_lines_leave(played: list[tuple[str, list[bytes], bool]], watched: bool) -> None:
    at_once, _ = left_by(played, watched)
    with one_by_one():
        expected, none = left_by(played, watched)
    assert none == 0
    assert at_once == expected


@pytest.mark.parametrize("number", range(len(ODD)))
def test_what_is_odd_leaves_what_it_leaves_line_by_line(number: int) -> None:
    for n in (0, 3, 40):
        texts = [round_of(PATHS + QUEUE[1:], k, ODD[number] if k == 2 else None, n) for k in range(4)]
        for peers in ("aaaa", "aaba", "abab"):
            played = [(f"10.0.0.7:{ord(peer)}", [text], False) for peer, text in zip(peers, texts, strict=True)]
            found, _ = left_by(played, True)
            with one_by_one():
                assert found == left_by(played, True)[0]


@pytest.mark.parametrize("order", [PATHS, PATHS[32:] + PATHS[:32], PATHS[::-1]])
@pytest.mark.parametrize("apart", [True, False])
def test_known_series_are_stored_at_once_in_any_order(order: list[bytes], apart: bool) -> None:
    first, *later = (round_of(paths, number, None, 0) for number, paths in enumerate((PATHS, order, order)))
    chunks = [first, *(later if apart else [b"".join(later)])]
    assert left_by([("10.0.0.7:1", chunks, False)], True)[1] == 2 * len(PATHS)
