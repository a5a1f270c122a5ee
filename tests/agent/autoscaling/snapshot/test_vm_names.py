"""Names of VMs: those that the cloud shows are kept, others are held, and invented names do not displace them."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import pytest

from agent.autoscaling.snapshot.series import SeriesStore
from agent.oversubscription.usage import WAITING_VMS, PoolSink, UsageBook
from collectors.intake import IntakeCounters, LineReader
from collectors.vm_names import SPARE
from domain.errors import RejectReason
from domain.fleet import Fleet
from domain.samples import VmMetric
from tests.agent.autoscaling.snapshot.scene import FLEET, SMALL, T0, Scene, group, running

ATTACKER, OTHER = "10.0.0.66", "10.0.0.67"
QUOTA = SMALL.maximum + SPARE


def path(vm: str, metric: str = "cpu_percent", key: str = "s") -> bytes:
    return f"trimtab.web.{key}.{vm}.{metric}".encode()


def put(store: SeriesStore, vm: str, peer: str = "", at: float = T0, key: str = "s") -> RejectReason | None:
    refused = store.append([path(vm, key=key)], [50.0], [at], at, peer)
    return refused[0].reason if refused else None


def names(store: SeriesStore, key: str = "s") -> set[str]:
    return set(store.vm_rows("web", key))


def store(**about: int) -> SeriesStore:
    return SeriesStore(watched=[FLEET], **about)


def show(held: SeriesStore, *vms: str, minute: int, most: int = SMALL.maximum, key: str = "s") -> None:
    end = T0 + 60.0 * minute
    held.close_bin(end - 60.0, end, end + 5.0)
    held.show("web", key, vms, most, end)


def test_what_a_booting_vm_reported_before_the_cloud_showed_it_counts() -> None:
    scene = Scene(store=store())
    scene.place("s", running("i-1"))
    scene.report("s", "i-2", (T0 + 10.0 * k for k in range(1, 7)), cpu_percent=80.0, ram_percent=5.0, busy_cores=1.0)
    scene.minute(cpu={"i-1": 50.0}, queue={"waiting": 0, "running": 0})
    start = scene.now
    scene.report("s", "i-2", (start + 10.0 * k for k in range(1, 7)), cpu_percent=80.0, ram_percent=5.0, busy_cores=1.0)
    scene.place("s", running("i-1"), running("i-2", launched_at=T0))
    snapshot = scene.minute(cpu={"i-1": 50.0}, queue={"waiting": 0, "running": 0})
    assert (group(snapshot, "s").warm, group(snapshot, "s").silent) == (2, 0)
    assert snapshot.cpu_mean == pytest.approx(0.65)
    assert scene.store.first([scene.store.vm_rows("web", "s")["i-2"][0]])[0] == T0 + 10.0  # type: ignore[arg-type]


def test_a_name_that_two_collections_do_not_show_is_forgotten_and_refused_until_one_does() -> None:
    held = store()
    assert put(held, "ghost") is None
    show(held, "i-1", minute=1)
    assert names(held) == {"ghost"}
    show(held, "i-1", minute=2)
    assert names(held) == set()
    assert put(held, "ghost", ATTACKER, T0 + 125.0) is RejectReason.UNKNOWN_VM
    unknown = held.unknown_vms()["web", "s"]
    assert (unknown.waiting, unknown.refused, unknown.name, unknown.peer) == (0, 2, "ghost", ATTACKER)
    show(held, "i-1", "ghost", minute=3)
    assert put(held, "ghost", at=T0 + 185.0) is None


def test_lines_of_a_fleet_that_another_agent_leads_are_bounded_and_no_unknown_vms() -> None:
    held = store(unknown_per_peer=3)
    # Most of its VMs were shown and have not reported.
    show(held, "before", *(f"quiet-{n}" for n in range(QUOTA - 1)), minute=0)
    put(held, "before", at=T0 + 1.0)
    held.leave({"web"}, T0 + 1.0)
    # Its readings are dropped once: what follows may come after a gap.
    assert names(held) == set()
    found = [put(held, f"i-{n}", "relay", T0 + 1.0) for n in range(2 * QUOTA)]
    assert found == [None] * QUOTA + [RejectReason.TOO_MANY_UNKNOWN] * QUOTA
    for minute in (1, 2, 3):
        held.close_bin(T0 + 60.0 * minute - 60.0, T0 + 60.0 * minute, T0 + 60.0 * minute + 5.0)
        held.leave({"web"}, T0 + 60.0 * minute)
    assert len(held) == QUOTA
    assert ("web", "s") not in held.unknown_vms()
    # VMs that are gone give their names to others, also where this agent folds no minute.
    held.leave({"web"}, T0 + 9065.0)
    assert len(held) == 0
    assert put(held, "new", "relay", T0 + 9066.0) is None
    # When this agent takes it, its VMs are known at once, and none of the others is reported.
    assert put(held, "gone", "relay", T0 + 9067.0) is None
    held.leave(set(), T0 + 9068.0)
    show(held, "new", minute=152)
    assert names(held) == {"new", "gone"}
    show(held, "new", minute=153)
    assert names(held) == {"new"}
    assert held.unknown_vms()["web", "s"].refused == 0


def test_a_fleet_may_have_as_many_vms_as_its_groups_allow() -> None:
    large = Fleet("web", (replace(SMALL, maximum=30_000),))
    held = SeriesStore(capacity=40, watched=[large])
    paths = [path(f"i-{n}", metric) for n in range(200) for metric in VmMetric]
    assert held.append(paths, [1.0] * len(paths), [T0] * len(paths), T0) == []
    assert held.capacity >= len(VmMetric) * 30_000
    held.watch([FLEET])
    assert held.capacity < len(paths), "settings of a smaller fleet hold again"


def test_a_collection_requested_twice_in_a_minute_counts_once() -> None:
    held = store()
    put(held, "i-1")
    show(held, minute=1)
    show(held, minute=1)
    assert names(held) == {"i-1"}


def test_a_vm_that_the_cloud_leaves_out_once_keeps_its_readings() -> None:
    held = store()
    put(held, "i-1")
    show(held, "i-1", minute=1)
    show(held, minute=2)
    assert names(held) == {"i-1"}
    show(held, "i-1", minute=3)
    show(held, minute=4)
    assert names(held) == {"i-1"}
    show(held, minute=5)
    assert (names(held), len(held)) == (set(), 0)


def test_a_group_that_cannot_be_read_drops_no_vm() -> None:
    held = store()
    put(held, "i-1")
    for minute in range(1, 9):
        end = T0 + 60.0 * minute
        held.close_bin(end - 60.0, end, end + 5.0)
    assert names(held) == {"i-1"}


def test_a_group_holds_no_more_unknown_names_than_it_can_have_vms_and_a_few() -> None:
    held = store()
    found = [put(held, f"ghost-{n}", ATTACKER) for n in range(QUOTA + 50)]
    assert found == [None] * QUOTA + [RejectReason.TOO_MANY_UNKNOWN] * 50
    assert put(held, "i-1", ATTACKER, key="l") is None, "another group has room of its own"


def test_one_address_reports_of_a_bounded_number_of_unknown_vms_over_all_groups() -> None:
    held = store(unknown_per_peer=10)
    found = [put(held, f"ghost-{n}", f"{ATTACKER}:{40_000 + n}", key="sl"[n % 2]) for n in range(12)]
    assert found == [None] * 10 + [RejectReason.TOO_MANY_UNKNOWN] * 2
    assert put(held, "i-1", OTHER) is None
    assert put(held, "i-2") is None, "what the agent fetches itself has no such bound"


def test_a_fleet_that_fills_the_store_is_not_locked_out_by_names_that_wait() -> None:
    held = store(capacity=40)
    for n in range(30):
        put(held, f"ghost-{n}", f"10.0.0.{n}")
    show(held, *(f"i-{n}" for n in range(40)), minute=1, most=40)
    assert [put(held, f"i-{n}", at=T0 + 65.0) for n in range(40)] == [None] * 40
    assert put(held, "i-0", at=T0 + 66.0) is None
    assert len(held) <= 2 * held.capacity


def test_a_row_changes_its_owner_only_after_the_minute_is_closed() -> None:
    held = store()
    for n in range(QUOTA):
        put(held, f"ghost-{n}", ATTACKER, at=T0 + 30.0)
    held.close_bin(T0, T0 + 60.0, T0 + 65.0)
    freed = {held.vm_rows("web", "s")[f"ghost-{n}"][0] for n in range(QUOTA)}
    for at in (T0 + 60.0, T0 + 61.0):
        held.show("web", "s", (), SMALL.maximum, at)
    assert put(held, "i-1", OTHER, at=T0 + 65.0) is None
    assert held.vm_rows("web", "s")["i-1"][0] not in freed
    fold = held.close_bin(T0 + 60.0, T0 + 120.0, T0 + 125.0)
    for n in range(2, 6):
        assert put(held, f"i-{n}", f"10.0.2.{n}", at=T0 + 126.0) is None
    taken = [rows[0] for vm, rows in held.vm_rows("web", "s").items() if vm.startswith("i-") and rows[0] in freed]
    assert taken
    assert [int(fold.counts[row]) for row in taken] == [0] * len(taken)


def test_fleets_that_are_no_longer_watched_give_back_what_waited_for_them() -> None:
    held = store(unknown_per_peer=3)
    for n in range(3):
        put(held, f"ghost-{n}", ATTACKER)
    held.watch([])
    held.watch([FLEET])
    assert len(held) == 0
    assert put(held, "i-1", ATTACKER) is None


def grown(lines: list[bytes], sink: SeriesStore | PoolSink, peer: str) -> tuple[int, IntakeCounters]:
    """Return the bytes that these lines leave behind, and what became of them."""
    counters = IntakeCounters()
    reader = LineReader(sink, counters, lambda: T0, peer)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for first in range(0, len(lines), 1000):
        reader.feed(b"".join(lines[first : first + 1000]))
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return after - before, counters


@pytest.mark.exhaustive
def test_sixty_thousand_invented_names_cost_little_and_an_honest_fleet_is_not_locked_out() -> None:
    held = store()
    lines = [b"trimtab.web.%s.x-%d.cpu_percent 1 %d\n" % (b"sl"[n % 2 : n % 2 + 1], n, T0) for n in range(60_000)]
    bytes_left, counters = grown(lines, held, ATTACKER)
    assert bytes_left < 2**20
    assert counters.accepted == 2 * QUOTA
    assert counters.rejected[RejectReason.TOO_MANY_UNKNOWN] == 60_000 - 2 * QUOTA
    show(held, *(f"i-{n}" for n in range(10)), minute=1)
    assert [put(held, f"i-{n}", f"10.0.1.{n}", at=T0 + 65.0) for n in range(10)] == [None] * 10


@pytest.mark.exhaustive
def test_fifty_thousand_invented_vms_of_a_pool_cost_little() -> None:
    book = UsageBook()
    sink = PoolSink(SeriesStore(watched=[FLEET]), {"main": book})
    lines = [b"trimtab.main.subscriber-%d.vm-%d.cpu_percent 1 %d\n" % (n % 977, n, T0) for n in range(50_000)]
    bytes_left, counters = grown(lines, sink, ATTACKER)
    assert bytes_left < 6 * 2**20
    assert (counters.accepted, counters.rejected[RejectReason.TOO_MANY_UNKNOWN]) == (1000, 49_000)
    assert (book.unknown_vms().waiting, len(book.spellings)) == (1000, 1000)


def test_endless_spellings_of_a_pools_vm_are_not_all_remembered() -> None:
    book = UsageBook()
    sink = PoolSink(SeriesStore(watched=[FLEET]), {"main": book})
    lines = [b"trimtab.cpu_percent;fleet=main;group=web;vm=v1;n=%d 1 %d\n" % (n, T0) for n in range(20_000)]
    bytes_left, counters = grown(lines, sink, ATTACKER)
    assert bytes_left < 2**18
    assert (counters.accepted, len(book.spellings)) == (20_000, 8)


def test_a_pools_vm_that_is_listed_later_keeps_what_it_reported_and_others_are_forgotten() -> None:
    book = UsageBook()
    sink = PoolSink(SeriesStore(watched=[FLEET]), {"main": book})

    def report(vm: bytes, at: float) -> list[RejectReason]:
        line = b"trimtab.main.web.%s.%s" % (vm, VmMetric.CPU_PERCENT.encode())
        return [refusal.reason for refusal in sink.append([line], [40.0 if at == T0 else 60.0], [at], at, ATTACKER)]

    assert report(b"new", T0) == report(b"ghost", T0) == []
    book.show([("web", "old")])
    assert report(b"new", T0 + 60.0) == []
    book.show([("web", "old"), ("web", "new")])
    assert report(b"ghost", T0 + 120.0) == [RejectReason.UNKNOWN_VM]
    hour = int(T0 // 3600)
    assert book.close(hour) == {("web", "new"): pytest.approx(0.5)}
    assert set(book.spellings.values()) == {series for series in book.spellings.values() if series.vm == "new"}


def test_inventories_of_any_size_are_reported_in_full_and_invented_names_have_room_beside_them() -> None:
    book = UsageBook()
    listed = [("web", f"v{n}") for n in range(WAITING_VMS + 100)]
    book.show(listed)
    assert {book.add(*key, 20.0, T0, T0, ATTACKER) for key in listed} == {None}
    assert book.add("web", "ghost", 20.0, T0, T0, ATTACKER) is None


@pytest.mark.parametrize(("subscriber", "vm"), [("web", "v 1"), ("ü", "v1"), ("web", "v" * 129), ("", "v1")])
def test_a_pools_names_are_those_that_its_inventory_could_list(subscriber: str, vm: str) -> None:
    assert UsageBook().add(subscriber, vm, 20.0, T0, T0) is RejectReason.FOREIGN_PATH
