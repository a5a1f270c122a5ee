"""The line reader takes any bytes in any chunks, counts every line once, and holds no more than one unfinished line."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.autoscaling.snapshot.series import SeriesStore
from collectors.intake import EXAMPLE_CHARACTERS, IntakeCounters, LineReader
from domain.errors import RejectReason
from domain.samples import MAX_LINE_BYTES, QueueMetric, QueueSeries, Sample, VmMetric, VmSeries
from tests.graphite_lines import format_line

T0 = 1_795_209_000.0
GOOD = b"trimtab.web.s.i-1.cpu_percent 71 1795209000"


class Reception:
    """A reader over a small store, at a fixed time."""

    def __init__(self, capacity: int = 100) -> None:
        self.store = SeriesStore(capacity=capacity)
        self.counters = IntakeCounters()
        self.reader = LineReader(self.store, self.counters, lambda: T0)

    @property
    def outcome(self) -> tuple[int, dict[RejectReason, int]]:
        return self.counters.accepted, {r: n for r, n in self.counters.rejected.items() if n}

    def readings(self, vm: str = "i-1") -> list[tuple[float, float]]:
        return self.store.readings(self.store.vm_rows("web", "s")[vm][0], T0 + 60)


def received(*chunks: bytes) -> Reception:
    reception = Reception()
    for chunk in chunks:
        reception.reader.feed(chunk)
    return reception


def test_a_line_becomes_a_reading() -> None:
    reception = received(GOOD + b"\n")
    assert reception.outcome == (1, {})
    assert reception.readings() == [(T0, 71.0)]


def test_crlf_tabs_exponents_and_fractions_are_read() -> None:
    reception = received(b"trimtab.web.s.i-1.cpu_percent\t7.1e1 1795209000.25\r\n")
    assert (reception.outcome, reception.readings()) == ((1, {}), [(T0 + 0.25, 71.0)])


def test_the_stamp_minus_one_means_now() -> None:
    reception = received(b"trimtab.web.s.i-1.cpu_percent 5 -1\n")
    assert (reception.outcome, reception.readings()) == ((1, {}), [(T0, 5.0)])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", RejectReason.MALFORMED),
        (b"trimtab.web.s.i-1.cpu_percent 71", RejectReason.MALFORMED),
        (GOOD + b" 4", RejectReason.MALFORMED),
        (b"GET / HTTP/1.1", RejectReason.BAD_VALUE),
        (b"trimtab.web.s.i-1.cpu_percent high 1795209000", RejectReason.BAD_VALUE),
        (b"trimtab.web.s.i-1.cpu_percent 71 yesterday", RejectReason.BAD_VALUE),
        (b"trimtab.web.s.i-1.cpu_percent 7_1 1795209000", RejectReason.BAD_VALUE),
        (b"trimtab.web.s.i-1.cpu_percent 71 1_795_209_000", RejectReason.BAD_VALUE),
        (b"carbon.agents.a.cpuUsage 1 1795209000", RejectReason.FOREIGN_PATH),
        (b"trimtab.web.s.i-1.cpu_percent nan 1795209000", RejectReason.NOT_FINITE),
        (b"trimtab.web.s.i-1.cpu_percent -inf 1795209000", RejectReason.NOT_FINITE),
        (b"trimtab.web.s.i-1.cpu_percent 1e400 1795209000", RejectReason.NOT_FINITE),
        (b"trimtab.web.s.i-1.cpu_percent 71 nan", RejectReason.NOT_FINITE),
        (b"trimtab.web.s.i-1.cpu_percent 400 1795209000", RejectReason.OUT_OF_RANGE),
        (b"trimtab.web.s.i-1.cpu_percent -1 1795209000", RejectReason.OUT_OF_RANGE),
        (b"trimtab.web.s.i-1.busy_cores 1e16 1795209000", RejectReason.OUT_OF_RANGE),
        (b"trimtab.web.s.i-1.cpu_percent 71 1795209061", RejectReason.FUTURE),
        (b"trimtab.web.s.i-1.cpu_percent 71 1795209000000", RejectReason.FUTURE),
        (b"trimtab.web.s.i-1.cpu_percent 71 1795208400", RejectReason.TOO_OLD),
        (b"trimtab.web.s.i-1.cpu_percent 71 -2", RejectReason.TOO_OLD),
        (b"trimtab.web.s.i-\x00.cpu_percent 71 1795209000", RejectReason.NOT_TEXT),
        (b"trimtab.web.s.i-\xff.cpu_percent 71 1795209000", RejectReason.NOT_TEXT),
        (b"\x80\x02]q\x00(U\x0bsystem.load", RejectReason.NOT_TEXT),
        (GOOD + b" " * MAX_LINE_BYTES, RejectReason.TOO_LONG),
    ],
)
def test_a_line_that_cannot_be_used_is_counted_by_its_reason_and_shown(line: bytes, reason: RejectReason) -> None:
    reception = received(line + b"\n")
    assert reception.outcome == (0, {reason: 1})
    assert len(reception.counters.examples[reason]) <= EXAMPLE_CHARACTERS + 1


def test_a_minute_already_used_and_a_full_store_are_reasons_too() -> None:
    reception = Reception(capacity=1)
    reception.reader.feed(GOOD + b"\n")
    reception.store.close_bin(T0 - 60, T0, T0 + 5)
    reception.reader.feed(GOOD + b"\ntrimtab.web.s.i-2.cpu_percent 71 1795209001\n")
    assert reception.outcome == (1, {RejectReason.LATE: 1, RejectReason.TOO_MANY_SERIES: 1})


def test_examples_keep_the_last_refused_line_harmless_and_short() -> None:
    reception = received(b"first line\n", b"\x1b[31mred\x07 \xff line with more words\n", b"x" * 500 + b" y\n")
    shown = reception.counters.examples
    assert shown[RejectReason.MALFORMED] == "x" * EXAMPLE_CHARACTERS + "…"
    assert shown[RejectReason.NOT_TEXT] == "\N{REPLACEMENT CHARACTER}[31mred\N{REPLACEMENT CHARACTER} " + (
        "\N{REPLACEMENT CHARACTER} line with more words"
    )
    assert shown[RejectReason.FUTURE] == ""


def test_good_lines_among_bad_ones_are_taken() -> None:
    reception = received(b"\n".join([b"nonsense", GOOD, b"\x00", b"trimtab.web.s.i-1.cpu_percent 72 1795209010", b""]))
    assert reception.outcome == (2, {RejectReason.MALFORMED: 1, RejectReason.NOT_TEXT: 1})
    assert reception.readings() == [(T0, 71.0), (T0 + 10, 72.0)]


def test_a_megabyte_line_is_dropped_without_being_held_and_the_next_line_is_taken() -> None:
    reception = Reception()
    for _ in range(1024):
        reception.reader.feed(b"a" * 1024)
        assert reception.reader.held_bytes <= MAX_LINE_BYTES
    reception.reader.feed(b"\n" + GOOD + b"\n")
    assert reception.outcome == (1, {RejectReason.TOO_LONG: 1})


@pytest.mark.parametrize("length", [MAX_LINE_BYTES - 1, MAX_LINE_BYTES, MAX_LINE_BYTES + 1])
@pytest.mark.parametrize("cut", [1, 500, MAX_LINE_BYTES, MAX_LINE_BYTES + 2])
def test_the_length_cap_is_the_same_however_the_line_is_cut(length: int, cut: int) -> None:
    line = GOOD + b" " * (length - len(GOOD)) + b"\n"
    reception = received(line[:cut], line[cut:], GOOD + b"\n")
    assert reception.outcome == ((2, {}) if length <= MAX_LINE_BYTES else (1, {RejectReason.TOO_LONG: 1}))


def test_an_unfinished_line_at_the_end_is_refused_because_its_number_may_be_cut() -> None:
    reception = received(GOOD + b"\n" + GOOD)
    reception.reader.close()
    reception.reader.close()
    assert reception.outcome == (1, {RejectReason.MALFORMED: 1})


series = st.one_of(
    st.builds(
        VmSeries, st.just("web"), st.sampled_from("sl"), st.sampled_from(["i-1", "i-2"]), st.sampled_from(VmMetric)
    ),
    st.builds(QueueSeries, st.just("web"), st.sampled_from(QueueMetric)),
)
good_lines = st.builds(
    Sample, series, st.floats(0.0, 100.0), st.floats(-599.0, 60.0).map(lambda seconds: T0 + seconds)
).map(lambda sample: format_line(sample).encode().rstrip(b"\n"))
words = st.sampled_from(
    [b"trimtab.web.s.i-1.cpu_percent", b"nan", b"inf", b"1e308", b"-1", b"1795209000", b"\x00", b""]
)
odd_lines = st.one_of(
    st.binary(max_size=60).map(lambda line: line.replace(b"\n", b"?")),
    st.lists(words, max_size=4).map(b" ".join),
    st.integers(MAX_LINE_BYTES - 2, 3 * MAX_LINE_BYTES).map(lambda length: b"z" * length),
)


@given(st.lists(st.one_of(good_lines, odd_lines), max_size=30), st.data())
def test_chunks_cut_anywhere_give_the_same_counts_and_every_line_counts_once(
    lines: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    whole = received(stream)
    pieces = Reception()
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        pieces.reader.feed(stream[start:end])
        assert pieces.reader.held_bytes <= MAX_LINE_BYTES
    assert pieces.outcome == whole.outcome
    assert whole.counters.accepted + whole.counters.rejected_total == len(lines)


@given(st.lists(good_lines, max_size=30))
def test_every_line_that_format_line_writes_is_accepted(lines: list[bytes]) -> None:
    assert received(b"".join(line + b"\n" for line in lines)).outcome == (len(lines), {})


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_random_bytes_never_raise_and_never_grow_the_reader(chunks: list[bytes]) -> None:
    reception = received(*chunks)
    reception.reader.close()
    assert reception.reader.held_bytes == 0
    ends = b"".join(chunks)
    lines = ends.count(b"\n") + (not ends.endswith(b"\n") and ends != b"")
    assert reception.counters.accepted + reception.counters.rejected_total == lines
    assert len(reception.store) <= lines


def test_a_day_of_refusals_keeps_one_example_per_reason() -> None:
    reception = Reception()
    for n in range(3000):
        reception.reader.feed(b"garbage %d\n" % n)
    assert Counter(bool(text) for text in reception.counters.examples.values())[True] == 1
    assert reception.counters.examples[RejectReason.MALFORMED] == "garbage 2999"
