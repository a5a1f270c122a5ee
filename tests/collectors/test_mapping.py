"""Other senders' paths: which measurement each is, which VM it is of, and how several lines become one reading."""

import re
import shutil
import subprocess
import textwrap
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from agent.autoscaling.snapshot.series import SeriesStore
from collectors.base import Refusal
from collectors.intake import IntakeLimits
from collectors.listener import GraphiteListener
from collectors.mapping import Hosts, InputMap, MappedSink, _of_glob, map_of, read_map
from domain.errors import BadInput, ConfigurationError, RejectReason
from domain.samples import Sample
from tests.collectors.surroundings import T0, map_in_the_docs
from tests.waiting import until

WEB = ("web", "workers", "i-0abc")
COLLECTD = """
    [[series]]
    from = "collectd.{host}.cpu-*.cpu-{state}"
    to = "cpu_percent"
    fold = "share"
    part = "state"
    not_counted = ["idle", "wait"]

    [[series]]
    from = "collectd.{host}.memory.memory-{kind}"
    to = "ram_percent"
    fold = "share"
    part = "kind"
    counted = ["used"]
"""


class Kept:
    """A sink that keeps what it takes."""

    def __init__(self) -> None:
        self.readings: list[tuple[str, float, float]] = []

    def append(
        self, paths: Sequence[bytes], values: Sequence[float], times: Sequence[float], now: float, peer: str = ""
    ) -> Sequence[Refusal]:
        self.readings += zip((path.decode() for path in paths), values, times, strict=True)
        return [Refusal(k, RejectReason.LATE) for k, path in enumerate(paths) if b"late" in path]

    def append_samples(self, samples: Sequence[Sample], now: float) -> Sequence[Refusal]:
        return ()


def rules_of(text: str) -> InputMap:
    return map_of(tomllib.loads(textwrap.dedent(text)))


def mapped(text: str, hosts: Hosts | None = None) -> tuple[MappedSink, Kept]:
    kept, rules = Kept(), rules_of(text)
    return MappedSink(kept, rules, hosts or Hosts(rules.hosts)), kept


def send(sink: MappedSink, *lines: tuple[str, float, float], now: float = T0) -> list[Refusal]:
    paths, values, times = zip(*lines, strict=True)
    return list(sink.append([path.encode() for path in paths], list(values), list(times), now))


@pytest.mark.parametrize(
    ("path", "fleet"),
    [("stats.web.cpu", "web"), ("app.load", "api"), ("collectd.h1.memory.memory-used", ""), ("other", "")],
)
def test_the_fleet_of_a_path_is_that_of_the_path_or_of_its_rule(path: str, fleet: str) -> None:
    rules = rules_of(
        COLLECTD
        + """
    [[series]]
    from = "stats.{fleet}.cpu"
    to = "waiting"

    [[series]]
    from = "app.load"
    to = "running"
    fleet = "api"
    """
    )
    assert rules.fleet_of(path) == fleet


def known(*names: str) -> Hosts:
    hosts = Hosts()
    hosts.update([(WEB, names)])
    return hosts


def test_a_path_becomes_a_measurement_of_the_vm_that_it_names_with_its_unit_changed() -> None:
    sink, kept = mapped("""
        [[series]]
        from = "telegraf.{fleet}.{group}.{vm}.mem.available_percent"
        to = "ram_percent"
        scale = -1.0
        offset = 100.0
        """)
    assert send(sink, ("telegraf.web.workers.i-1.mem.available_percent", 30.0, T0)) == []
    assert kept.readings == [("trimtab.web.workers.i-1.ram_percent", 70.0, T0)]


def test_a_queue_needs_its_fleet_alone_and_a_part_may_name_it() -> None:
    sink, kept = mapped(r"""
        [[series]]
        from = "stats.gauges.jobs.{fleet}.waiting"
        to = "waiting"
        [[series]]
        from = "stats.counters.done.count"
        to = "finished_total"
        fleet = "batch"
        """)
    assert send(sink, ("stats.gauges.jobs.web.waiting", 4.0, T0), ("stats.counters.done.count", 9.0, T0)) == []
    assert [path for path, _, _ in kept.readings] == ["trimtab.web.queue.waiting", "trimtab.batch.queue.finished_total"]


def test_our_own_paths_pass_as_they_are_and_what_no_rule_takes_is_foreign() -> None:
    sink, kept = mapped(COLLECTD)
    refused = send(
        sink,
        ("trimtab.web.s.i-1.cpu_percent", 5.0, T0),
        ("collectd.a.df-root.df_complex-free", 1.0, T0),
        ("trimtab.late.s.i-1.cpu_percent", 5.0, T0),
    )
    assert refused == [Refusal(1, RejectReason.FOREIGN_PATH), Refusal(2, RejectReason.LATE)]
    assert len(kept.readings) == 2


@pytest.mark.parametrize(
    "written",
    [
        *("i-0abc", "ip-10-0-1-17.ec2.internal", "ip-10-0-1-17_ec2_internal", "ip-10-0-1-17", "IP-10-0-1-17"),
        *("10_0_1_17", "10-0-1-17"),
    ],
)
def test_a_host_is_found_by_every_way_in_which_senders_write_its_names(written: str) -> None:
    assert known("ip-10-0-1-17.ec2.internal", "10.0.1.17").find(written) == WEB


def test_a_name_of_two_vms_leads_to_neither_and_an_address_has_no_first_label() -> None:
    hosts = Hosts()
    other = ("web", "workers", "i-0def")
    hosts.update([(WEB, ["web.a.internal", "10.0.1.17"]), (other, ["web.b.internal", "10.0.1.18"])])
    assert hosts.find("web") is None
    assert hosts.find("10") is None
    assert hosts.find("web.b.internal") == other


def test_a_host_that_is_launched_later_is_found_then_and_one_that_is_gone_no_more() -> None:
    hosts = Hosts()
    sink, kept = mapped('[[series]]\nfrom = "x.{host}.busy"\nto = "busy_cores"', hosts)
    line = ("x.web-1.busy", 1.0, T0)
    assert send(sink, line) == [Refusal(0, RejectReason.UNKNOWN_VM)]
    hosts.update([(WEB, ["web-1"])])
    assert send(sink, line) == []
    hosts.update([])
    assert send(sink, line) == [Refusal(0, RejectReason.UNKNOWN_VM)]
    assert len(kept.readings) == 1


def test_the_file_may_name_hosts_that_no_inventory_knows() -> None:
    sink, kept = mapped('[[series]]\nfrom = "x.{host}.busy"\nto = "busy_cores"\n[hosts]\nrack7 = "web.workers.i-0abc"')
    assert send(sink, ("x.rack7.busy", 1.0, T0)) == []
    assert kept.readings[0][0] == "trimtab.web.workers.i-0abc.busy_cores"


def one_round(at: float, busy: float, cpus: int = 2) -> list[tuple[str, float, float]]:
    return [
        (f"collectd.i-0abc.cpu-{n}.cpu-{state}", value, at)
        for n in range(cpus)
        for state, value in (("user", busy), ("idle", 100.0 - busy))
    ]


def test_the_first_lines_of_a_sender_never_look_like_a_full_load() -> None:
    # `user` comes before `idle`: a share of what has come so far would be 100 %.
    sink, kept = mapped(COLLECTD, known())
    for line in one_round(T0, 20.0):
        send(sink, line)
    assert kept.readings == []
    send(sink, one_round(T0 + 10.0, 30.0)[0])
    assert kept.readings == [("trimtab.web.workers.i-0abc.cpu_percent", 20.0, T0)]


def test_later_rounds_are_read_as_soon_as_their_last_line_comes() -> None:
    sink, kept = mapped(COLLECTD, known())
    for k, busy in enumerate((20.0, 30.0, 40.0)):
        send(sink, *one_round(T0 + 10.0 * k, busy), now=T0 + 10.0 * k)
    assert [(value, at) for _, value, at in kept.readings] == [(20.0, T0), (30.0, T0 + 10.0), (40.0, T0 + 20.0)]


def test_a_line_that_stays_away_is_left_out_after_its_window() -> None:
    sink, kept = mapped(COLLECTD.replace('part = "state"', 'part = "state"\n    window_s = 15'), known())
    for k in range(4):
        lines = one_round(T0 + 10.0 * k, 50.0) if k == 0 else one_round(T0 + 10.0 * k, 10.0, cpus=1)
        send(sink, *lines, now=T0 + 10.0 * k)
    # A round without the second processor ends when the next begins; its last values count for 15 s.
    assert [value for _, value, _ in kept.readings[:2]] == [50.0, 30.0]
    assert kept.readings[-1][1] == 10.0


def test_a_line_of_a_wrong_clock_is_refused_and_spoils_no_round() -> None:
    sink, kept = mapped(COLLECTD, known())
    send(sink, *one_round(T0, 20.0))
    path = "collectd.i-0abc.cpu-0.cpu-user"
    assert send(sink, (path, 1.0, T0 + 3600.0)) == [Refusal(0, RejectReason.FUTURE)]
    assert send(sink, (path, 1.0, T0 - 3600.0)) == [Refusal(0, RejectReason.TOO_OLD)]
    assert send(sink, (path, float("nan"), T0)) == [Refusal(0, RejectReason.NOT_FINITE)]
    send(sink, *one_round(T0 + 10.0, 30.0), now=T0 + 10.0)
    assert [value for _, value, _ in kept.readings] == [20.0, 30.0]


@given(
    st.lists(st.lists(st.floats(0, 1e6), min_size=3, max_size=3), min_size=2, max_size=5),
    st.sampled_from([("mean", np.mean), ("sum", np.sum), ("max", np.max), ("min", np.min)]),
)
def test_whole_rounds_fold_to_what_numpy_says(rounds: list[list[float]], fold: tuple[str, object]) -> None:
    name, known_fold = fold
    sink, kept = mapped(f'[[series]]\nfrom = "x.{{host}}.disk-*.busy"\nto = "busy_cores"\nfold = "{name}"', known())
    for k, values in enumerate(rounds):
        at = T0 + k
        send(sink, *[(f"x.i-0abc.disk-{n}.busy", value, at) for n, value in enumerate(values)], now=at)
    expected = [known_fold(values) for values in rounds]  # type: ignore[operator]
    np.testing.assert_allclose([value for _, value, _ in kept.readings], expected)


def test_every_mistake_in_a_map_is_named_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        rules_of("""
            [[series]]
            from = "a.{host}.cpu-*"
            to = "cpu"
            scale = "two"
            [[series]]
            from = "a.{host}.{host}"
            to = "waiting"
            fleet = "web"
            [[series]]
            regex = "(?P<host>.*)"
            to = "cpu_percent"
            [[series]]
            from = "a.{host}.{state}"
            to = "cpu_percent"
            [[series]]
            from = "a.{host}.{state}"
            to = "cpu_percent"
            fold = "share"
            part = "stat"
            [[series]]
            from = "a.b"
            to = "cpu_percent"
            colour = "red"
            [hosts]
            one = "web"
            """)
    assert [mistake.name for mistake in caught.value.mistakes] == [
        *("series[1].to", "series[1].scale", "series[2].from", "series[3].regex", "series[3].from", "series[4].fold"),
        *("series[5].part", "series[5].counted", "series[6].colour", "series[6].vm", "hosts.one"),
    ]
    assert all(mistake.remedy for mistake in caught.value.mistakes)


def test_a_host_name_with_dots_is_refused_with_the_quotation_marks_that_it_lacks() -> None:
    with pytest.raises(ConfigurationError, match=r'"web1\.example\.com" = "web\.workers\.i-0abc"'):
        rules_of("""
            [[series]]
            from = "a.{host}.cpu"
            to = "cpu_percent"
            [hosts]
            web1.example.com = "web.workers.i-0abc"
            """)


@pytest.mark.parametrize("text", [None, "[[series", "\x00"])
def test_a_file_that_holds_no_map_is_refused(text: str | None, tmp_path: Path) -> None:
    file = tmp_path / "inputs.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(BadInput, match=r"inputs\.toml"):
        read_map(file)


def test_any_number_of_paths_is_remembered_in_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collectors.mapping.MOST_KNOWN", 100)
    monkeypatch.setattr("collectors.mapping.MOST_FOLDS", 10)
    hosts = Hosts()
    hosts.update([(("web", "workers", f"i-{n}"), ()) for n in range(50)])
    sink, _ = mapped(COLLECTD, hosts)
    for n in range(1000):
        send(sink, (f"collectd.i-{n % 50}.cpu-{n}.cpu-idle", 1.0, T0), (f"random.{n}", 1.0, T0))
    assert len(sink._known) <= 100
    assert len(sink._folds) <= 10


def test_folds_of_vms_that_are_gone_are_forgotten_and_a_round_goes_on_over_a_change_of_vms() -> None:
    hosts = Hosts()
    sink, kept = mapped(COLLECTD, hosts)

    def turn(vm: str, beside: str, at: float) -> None:
        hosts.update([(("web", "workers", one), ()) for one in (vm, beside)])
        for state, value in (("user", 30.0), ("idle", 70.0)):
            lines = [(f"collectd.{one}.cpu-0.cpu-{state}", value, at) for one in (vm, beside)]
            assert send(sink, *lines, now=at) == []

    for n in range(10):
        turn("i-stays", f"i-{n}", T0 + 1000.0 * n)
    assert len(sink._folds) <= 6
    assert len([path for path, _, _ in kept.readings if "i-stays" in path]) == 10


@pytest.mark.parametrize(
    ("sender", "paths"),
    [
        ("telegraf", ["i-0abc.cpu-total.cpu.usage_idle", "i-0abc.mem.used_percent"]),
        ("statsd", ["stats.gauges.jobs.web.waiting", "stats.gauges.jobs.web.running"]),
    ],
)
def test_the_maps_of_the_documentation_take_what_these_senders_write(sender: str, paths: list[str]) -> None:
    sink = MappedSink(Kept(), map_in_the_docs(sender), known())
    assert send(sink, *[(path, 40.0, T0) for path in paths]) == []


def test_a_path_may_become_a_signal_of_a_fleet() -> None:
    rules = rules_of("""
        [[series]]
        from = "lb.{fleet}.requests"
        to = "signal.rps"
        """)
    kept = Kept()
    sink = MappedSink(kept, rules, known())
    assert send(sink, ("lb.web.requests", 40.0, T0)) == []
    assert [path for path, _, _ in kept.readings] == ["trimtab.web.signal.rps"]
    assert sink.explain("lb.web.requests").startswith("trimtab.web.signal.rps ")
    for wrong in ("signal.", "signal.a b", "signals.rps"):
        with pytest.raises(ConfigurationError):
            rules_of(f'[[series]]\nfrom = "lb.{{fleet}}.requests"\nto = "{wrong}"')


@pytest.mark.needs_collectd
def test_a_real_collectd_is_read_without_a_change_of_its_names(tmp_path: Path) -> None:
    collectd = shutil.which("collectd") or "/usr/sbin/collectd"
    rules = map_in_the_docs("collectd")
    hosts = Hosts()
    hosts.update([(WEB, ["ip-10-0-1-17.ec2.internal"])])
    store = SeriesStore(capacity=500)
    listener = GraphiteListener(MappedSink(store, rules, hosts, IntakeLimits()), time.time, port=0)
    listener.start()
    (tmp_path / "collectd.conf").write_text(f"""
        Hostname "ip-10-0-1-17.ec2.internal"
        FQDNLookup false
        BaseDir "{tmp_path}"
        PIDFile "{tmp_path}/pid"
        Interval 1
        LoadPlugin cpu
        LoadPlugin memory
        LoadPlugin load
        LoadPlugin write_graphite
        <Plugin write_graphite>
          <Node "trimtab">
            Host "127.0.0.1"
            Port "{listener.port}"
            Prefix "collectd."
          </Node>
        </Plugin>
        """)
    process = subprocess.Popen([collectd, "-f", "-C", str(tmp_path / "collectd.conf")])
    try:
        metrics = ("cpu_percent", "ram_percent")
        wanted = [f"trimtab.web.workers.i-0abc.{metric}".encode() for metric in metrics]
        until(lambda: all(path in store._rows_by_path for path in wanted))
        # Load averages are in no rule, and a rate has no value in collectd's first round: nothing else is refused.
        refused = {reason for reason, count in listener.counters.rejected.items() if count}
        assert RejectReason.FOREIGN_PATH in refused
        assert refused <= {RejectReason.FOREIGN_PATH, RejectReason.NOT_FINITE}
        foreign = listener.counters.examples[RejectReason.FOREIGN_PATH]
        assert foreign.startswith("collectd.ip-10-0-1-17_ec2_internal.load")
    finally:
        process.terminate()
        process.wait(30)
        listener.stop()


@pytest.mark.parametrize(("name", "number"), [("scale", 10**400), ("offset", -(10**400)), ("scale", 0), ("scale", 0.0)])
def test_a_number_that_no_reading_survives_is_refused(name: str, number: float) -> None:
    """With a scale of zero every VM would seem idle."""
    with pytest.raises(ConfigurationError, match=rf"series\[1\]\.{name}"):
        map_of({"series": [{"from": "x.{host}", "to": "cpu_percent", name: number}]})


# Lines and expressions made to take long


def test_many_stars_in_a_part_take_no_longer_than_one() -> None:
    """Tried at every place each, seven stars would take this line days."""
    rules = map_of({"series": [{"from": "x.{host}.*-*-*-*-*-*-*.y", "to": "cpu_percent", "fold": "mean"}]})
    assert rules.match("x.a." + "-" * 400 + ".z") is None
    assert rules.match("x.a." + "-" * 400 + ".y") is not None


def test_four_names_between_two_dots_are_refused() -> None:
    for most, glob in ((3, "{host}-{a}-{b}-{c}"), (2, "{host}-{a}-{b}-x"), (2, "{host}*{a}-x")):
        table = {"from": f"x.{glob}.y", "to": "cpu_percent", "fold": "mean"}
        with pytest.raises(ConfigurationError) as caught:
            map_of({"series": [table]})
        assert [mistake.name for mistake in caught.value.mistakes] == ["series[1].from"], most
    map_of({"series": [{"from": "x.{host}-{a}-{b}.c-{d}-{e}.y", "to": "cpu_percent", "fold": "mean"}]})


def test_as_many_names_as_there_may_be_take_milliseconds_on_the_longest_path() -> None:
    rules = map_of({"series": [{"from": "{host}-{a}-{b}.x", "to": "cpu_percent", "fold": "mean"}]})
    assert rules.match("-" * 510 + ".y") is None


def test_a_path_longer_than_any_is_refused_before_an_expression_sees_it() -> None:
    sink = MappedSink(Kept(), rules_of(COLLECTD), Hosts())
    long = b"collectd." + b"h" * 600 + b".memory.memory-used"
    assert sink.append([long], [1.0], [T0], T0) == [Refusal(0, RejectReason.TOO_LONG)]


@given(
    st.lists(st.sampled_from(["*", "{a}", "{b}", "-", "_", "p", "."]), min_size=1, max_size=8),
    st.text("-_p.q", max_size=12),
)
def test_a_glob_takes_what_its_stars_say_with_the_same_parts(pieces: list[str], path: str) -> None:
    glob = "".join(piece for k, piece in enumerate(pieces) if piece[0] != "{" or piece not in pieces[:k])
    words = {"*": "[^.]*", "{a}": "(?P<a>[^.]+)", "{b}": "(?P<b>[^.]+)"}
    plain = "".join(words.get(piece, re.escape(piece)) for piece in re.split(r"(\{.\}|\*)", glob))
    try:
        expression = _of_glob(glob)
    except re.error:
        reject()
    expected, found = re.fullmatch(plain, path), re.fullmatch(expression, path)
    assert (found and found.groupdict()) == (expected and expected.groupdict())


def test_tags_behind_a_path_are_taken_by_a_rule_that_names_them_and_by_no_other() -> None:
    hosts = Hosts({"web-1": WEB, "web-1.example.com": WEB})
    sink, kept = mapped(COLLECTD, hosts)
    tagged = [(f"collectd.web-1.cpu-0.cpu-{state};dc=eu", 50.0, T0) for state in ("idle", "user")]
    assert [one.reason for one in send(sink, *tagged)] == [RejectReason.FOREIGN_PATH] * 2
    assert "has tags" in sink.explain(tagged[0][0])
    by_tag = """
        [[series]]
        from = "cpu.{state};core=*;host={host}"
        to = "cpu_percent"
        fold = "share"
        part = "state"
        not_counted = ["idle"]

        [[series]]
        from = "{host}.mem"
        to = "ram_percent"
    """
    sink, kept = mapped(by_tag, hosts)
    for at in (T0, T0 + 10.0):
        lines = [("idle", 30.0), ("user", 10.0)]
        send(sink, *((f"cpu.{state};core=0;host=web-1.example.com", value, at) for state, value in lines), now=at)
    assert kept.readings == [("trimtab.web.workers.i-0abc.cpu_percent", 25.0, at) for at in (T0, T0 + 10.0)]
    assert [one.reason for one in send(sink, ("web-1.mem;dc=eu", 1.0, T0))] == [RejectReason.FOREIGN_PATH]


def test_a_share_of_counters_is_refused_from_the_third_round_on_and_one_of_levels_never() -> None:
    def rounds(*values: tuple[float, float]) -> list[RejectReason]:
        sink, _ = mapped(COLLECTD, Hosts({"web-1": WEB}))
        refused = []
        for n, pair in enumerate(values):
            at = T0 + 10.0 * n
            lines = zip(("idle", "user"), pair, strict=True)
            refused += send(sink, *((f"collectd.web-1.cpu-0.cpu-{state}", value, at) for state, value in lines), now=at)
        return [one.reason for one in refused]

    ticks = [(254_016_000.0 + n, 5_184_000.0 + 999.0 * n) for n in range(5)]
    assert rounds(*ticks) == [RejectReason.COUNTER] * 5
    assert rounds(*((99.0 + n / 10.0, 1.0) for n in range(9))) == []
    assert rounds(*((90.0 - 10.0 * n, 10.0 + 10.0 * n) for n in range(9))) == []
    restarted = [*ticks[:4], (0.0, 10.0), (900.0, 110.0)]
    assert rounds(*restarted).count(RejectReason.COUNTER) == 4
