"""A trace is sorted, checked and hashed when it is built."""

import numpy as np
import pytest

from domain.errors import TraceError
from domain.workload import Job, make_trace, trace_of


def test_jobs_are_sorted_by_arrival_and_id_and_the_columns_cannot_be_changed() -> None:
    trace = trace_of("t", [Job(3, 5.0, 1.0), Job(2, 5.0, 2.0), Job(9, 1.0, 3.0, width=4, ram_gb=1.0)])
    assert trace.job_id.tolist() == [9, 2, 3]
    assert trace.width.tolist() == [4, 1, 1]
    assert (trace.jobs, trace.work_core_s, trace.staged) == (3, 15.0, False)
    with pytest.raises(ValueError, match="read-only"):
        trace.service_s[0] = 9.0


def test_the_digest_depends_on_the_jobs_and_not_on_the_name() -> None:
    one, two = make_trace("a", [0.0, 1.0], [5.0, 6.0]), make_trace("b", [0.0, 1.0], [5.0, 6.0])
    assert one.digest == two.digest
    assert make_trace("a", [0.0, 1.0], [5.0, 6.5]).digest != one.digest
    assert make_trace("a", [0.0, 1.0], [5.0, 6.0], serial_fraction=0.1).digest != one.digest


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"arrival_s": [-1.0]}, "arrival_s of job 1 is -1.0: give seconds, 0 or more"),
        ({"service_s": [0.0]}, "service_s of job 1 is 0.0: give seconds above 0"),
        ({"service_s": [float("nan")]}, "service_s of job 1 is nan"),
        ({"width": [-2]}, "width of job 1 is -2"),
        ({"ram_gb": [float("inf")]}, "ram_gb of job 1 is inf"),
        ({"release_after": [0]}, "release_after of job 1 is 0: name an earlier stage"),
        ({"stage": [-3]}, "stage of job 1 is -3"),
        ({"pause_s": [-0.5]}, "pause_s of job 1 is -0.5"),
        ({"serial_fraction": 1.5}, "serial_fraction is 1.5"),
    ],
)
def test_a_wrong_value_names_column_job_value_and_remedy(columns: dict[str, object], text: str) -> None:
    given = {"arrival_s": [0.0], "service_s": [1.0], **columns}
    with pytest.raises(TraceError, match=text):
        make_trace("t", **given)


def test_a_repeated_id_is_refused() -> None:
    with pytest.raises(TraceError, match="job_id of job 4 is 4: "):
        make_trace("t", [0.0, 1.0], [1.0, 1.0], job_id=np.array([4, 4]))


def test_a_released_job_has_no_arrival_of_its_own() -> None:
    with pytest.raises(TraceError, match=r"arrival_s of job 2 is 7\.0"):
        make_trace("t", [0.0, 7.0], [1.0, 1.0], stage=[0, 1], release_after=[-1, 0])
