"""Reading a table of virtual machines: what counts, what is left out and where it stood, what is refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from domain.errors import TraceError
from trainer.admission.fitting.histories import Rejection, histories_of, read_vm_table


def line(deployment: str = "d", created: object = 300, deleted: object = 600, cores: object = 2) -> str:
    return f"v,u,{deployment},{created},{deleted},99.5,10.1,50.2,Interactive,{cores},1.75"


def table_of(folder: Path, *lines: str) -> Path:
    path = folder / "vmtable.csv"
    path.write_text("".join(f"{text}\n" for text in lines), encoding="utf-8")
    return path


def test_rows_become_columns_and_deployments_numbers(tmp_path: Path) -> None:
    table = read_vm_table(table_of(tmp_path, line("a"), line("b", 0, 900, 16), line("a", "600.0", 900, 1)))
    assert table.deployment.tolist() == [0, 1, 0]
    assert table.created_s.tolist() == [300, 0, 600]
    assert table.deleted_s.tolist() == [600, 900, 900]
    assert table.cores.tolist() == [2, 16, 1]
    assert (table.deployments, table.subscriptions, table.lines, table.rejected) == (2, 1, 3, {})
    assert (table.machine_hours, table.core_hours) == pytest.approx((1500 / 3600, (300 * 2 + 900 * 16 + 300) / 3600))


def test_a_packed_table_is_the_same(tmp_path: Path) -> None:
    plain = table_of(tmp_path, *(line(f"d{i % 7}", 300 * i, 300 * (i + i % 5), 1 + i % 3) for i in range(1000)))
    packed = tmp_path / "vmtable.csv.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    first, second = read_vm_table(plain), read_vm_table(packed)
    for name in ("deployment", "created_s", "deleted_s", "cores"):
        assert getattr(first, name).tolist() == getattr(second, name).tolist()


def test_what_makes_no_sense_is_left_out_by_reason_with_its_lines(tmp_path: Path) -> None:
    table = read_vm_table(
        table_of(
            tmp_path,
            line(),
            "too,few",
            line(created="soon"),
            "",
            line(created=900, deleted=600),
            line(deployment=""),
            line(cores=0),
            line(cores=1.5),
            line(created=-300),
            line(deleted="nan"),
            line(cores=""),
            line() + ",one,more",
            line(created=1e12, deleted=1e12),
            line(),
        )
    )
    assert table.rejected == {
        "wrong number of columns": Rejection(2, (2, 12)),
        "missing id": Rejection(2, (4, 6)),
        "not a number": Rejection(4, (3, 10, 11, 13)),
        "negative time": Rejection(1, (9,)),
        "deleted before created": Rejection(1, (5,)),
        "cores not a whole number above 0": Rejection(2, (7, 8)),
    }
    assert (len(table.cores), table.lines) == (2, 14)


def test_of_many_only_the_first_lines_are_kept(tmp_path: Path) -> None:
    lines = [line(cores=0) if i % 10 == 9 else "odd" if i % 10 == 4 else line() for i in range(200_000)]
    table = read_vm_table(table_of(tmp_path, *lines))
    assert table.rejected == {
        "wrong number of columns": Rejection(20_000, (5, 15, 25, 35, 45)),
        "cores not a whole number above 0": Rejection(20_000, (10, 20, 30, 40, 50)),
    }
    assert len(table.cores) == 160_000


def test_a_line_far_into_the_table_is_reported_by_its_own_number(tmp_path: Path) -> None:
    # More than one block of the reader, with rows before it that are no rows.
    lines = ["odd"] * 3 + [line()] * 190_000 + ["odd"] + [line(cores=">24")]
    with pytest.raises(TraceError, match="line 190005, vmcorecount"):
        read_vm_table(table_of(tmp_path, *lines))


def test_core_counts_in_buckets_are_refused_by_line_and_field(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"line 2, .*\(column 10\) is '>24'"):
        read_vm_table(table_of(tmp_path, line(), line(cores=">24")))


def test_a_heading_is_left_out_and_reported(tmp_path: Path) -> None:
    heading = "vmid,subscriptionid,deploymentid,vmcreated,vmdeleted,a,b,c,vmcategory,vmcorecount,vmmemory"
    assert read_vm_table(table_of(tmp_path, heading, line())).rejected == {"not a number": Rejection(1, (1,))}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "Empty CSV file"),
        (b"a,b,c\n", "usable rows; left out: wrong number of columns 1"),
        (b"v,u,d,9,3,1,1,1,x,1,1\n", "usable rows; left out: deleted before created 1"),
        (b"v,u,d,3,9,1,1,1,x,\xff\xfe,1\n", "give a CSV of eleven columns"),
    ],
)
def test_a_table_without_a_usable_row_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "vmtable.csv"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=words):
        read_vm_table(path)


def test_a_packed_table_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "vmtable.csv.gz"
    path.write_bytes(gzip.compress("".join(f"{line(str(i))}\n" for i in range(5000)).encode())[:-2000])
    with pytest.raises(TraceError, match="of eleven columns"):
        read_vm_table(path)


def test_a_deployment_is_known_by_its_machines(tmp_path: Path) -> None:
    histories = histories_of(
        read_vm_table(
            table_of(
                tmp_path,
                # Two machines of 6 cores in all come first, 2 and 1 cores are scale-outs; the end takes two machines.
                line("a", 600, 1800, 4),
                line("a", 600, 4200, 2),
                line("a", 900, 4200, 2),
                line("a", 1800, 3000, 1),
                # There when the window began.
                line("old", 0, 600, 8),
                line("old", 900, 1200, 8),
                # One that runs until the end, and one that ends in the step in which it began.
                line("on", 3600, 7200, 3),
                line("brief", 1200, 1200, 5),
                # Three at once: a shutdown.
                line("c", 300, 900, 1),
                line("c", 300, 900, 1),
                line("c", 300, 900, 1),
            )
        )
    )
    assert (histories.truncated, histories.window_h, histories.grid_h) == (1, 2.0, 300 / 3600)
    assert histories.initial.tolist() == [6, 3, 5, 3]
    assert histories.scale_outs.tolist() == [2, 0, 0, 0]
    assert histories.activated.tolist() == [9, 3, 5, 3]
    assert histories.extra.tolist() == [6, 2, 4, 2]
    assert histories.ended.tolist() == [9, 0, 5, 3]
    assert histories.peak.tolist() == [8, 3, 5, 3]
    assert histories.dead.tolist() == [True, False, True, True]
    assert histories.last_vms.tolist() == [2, 0, 1, 3]
    assert histories.last_cores.tolist() == [4, 0, 5, 3]
    assert histories.shut_down.tolist() == [False, False, False, True]
    assert histories.hours.tolist() == pytest.approx([1.0, 1.0, 150 / 3600, 1 / 6])
    hours = np.array([4 * 1200 + 2 * 3600 + 2 * 3300 + 1200, 3 * 3600, 5 * 150, 3 * 600]) / 3600
    assert histories.core_hours.tolist() == pytest.approx(hours.tolist())


def test_a_table_of_deployments_that_were_all_there_before_says_nothing(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="begin after time 0"):
        histories_of(read_vm_table(table_of(tmp_path, line(created=0))))
