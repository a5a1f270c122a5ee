"""Workers tell how busy they are and learn when to drain: the Python hook, a shell, hostile and dead writers."""

import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.run_directory import MAX_WORKERS, NOTHING_KNOWN, RunDirectory, VmWork, parse_report
from collectors.worker_hook import WorkerHook, write_report
from domain.errors import BadInput
from tests.waiting import until

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "operate" / "worker-hook.md"


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    made = RunDirectory(tmp_path / "run", silence_s=60.0)
    made.make()
    return made


def worker(directory: RunDirectory, name: str, text: str) -> Path:
    file = directory.place / "workers" / name
    file.write_text(text)
    return file


def test_jobs_are_counted_while_they_run_and_their_work_grows(directory: RunDirectory) -> None:
    with WorkerHook(str(directory.place)) as hook:
        until(lambda: directory.work(time.time()) == VmWork(0.0, 0.0))
        with hook.job(cores=2), hook.job():
            time.sleep(0.05)
            hook.report()
            work = directory.work(time.time())
            assert work.busy_cores == 3.0
            assert work.work_core_seconds is not None
            assert 0.15 <= work.work_core_seconds < 30.0
        assert directory.work(time.time()) == VmWork(0.0, 0.0)
    assert directory.work(time.time()) == NOTHING_KNOWN


def test_workers_add_up(directory: RunDirectory) -> None:
    for n in range(3):
        write_report(directory.place / "workers" / f"w{n}", float(n), 10.0 * n)
    assert directory.work(time.time()) == VmWork(3.0, 30.0)


def test_a_job_that_fails_is_over_too(directory: RunDirectory) -> None:
    hook = WorkerHook(str(directory.place), name="w")
    with pytest.raises(ZeroDivisionError), hook.job():
        raise ZeroDivisionError
    assert directory.work(time.time()).busy_cores == 0.0


def test_a_worker_without_a_collector_works_on(tmp_path: Path) -> None:
    with WorkerHook(str(tmp_path / "nothing")) as hook, hook.job():
        assert not hook.draining
        assert not hook.report()


def test_a_worker_learns_that_it_is_to_drain(directory: RunDirectory) -> None:
    hook = WorkerHook(str(directory.place))
    directory.ask_to_drain("spot interruption: terminate", 1_795_209_000.4)
    assert hook.draining
    directory.ask_to_drain("the group terminates it", 1_795_209_100.0)
    assert (directory.place / "drain").read_text() == "1795209000 spot interruption: terminate\n"
    directory.ask_to_drain(None, 1_795_209_200.0)
    directory.ask_to_drain(None, 1_795_209_200.0)
    assert not hook.draining


def test_a_silent_worker_makes_the_vm_unknown_not_idle(directory: RunDirectory) -> None:
    write_report(directory.place / "workers" / "talks", 1.0, 5.0)
    file = worker(directory, "silent", "busy_cores 2\nwork_core_seconds 7\n")
    now = time.time()
    assert directory.work(now) == VmWork(3.0, 12.0)
    os.utime(file, (now - 61.0, now - 61.0))
    assert directory.work(now) == VmWork(None, None, ("silent",))
    os.utime(file, (now + 3600.0, now + 3600.0))
    assert directory.work(now).silent == ("silent",)


def test_a_worker_that_died_is_forgotten_and_one_in_another_namespace_is_not(directory: RunDirectory) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    here = os.readlink("/proc/self/ns/pid")
    report = f"busy_cores 2\nwork_core_seconds 7\nprocess {ended.pid} "
    dead = worker(directory, "dead", report + here)
    assert directory.work(time.time()) == VmWork(0.0, 0.0)
    assert not dead.exists()
    worker(directory, "contained", report + "pid:[1]")
    assert directory.work(time.time()) == VmWork(2.0, 7.0)


@pytest.mark.parametrize(
    "text",
    ["", "busy_cores 1\n", "busy_cores one\nwork_core_seconds 1\n", "busy_cores -1\nwork_core_seconds 1\n"]
    + [f"busy_cores {value}\nwork_core_seconds 1\n" for value in ("nan", "inf", "1e9", "1 2", "")],
)
def test_a_report_that_cannot_be_read_makes_the_vm_unknown(directory: RunDirectory, text: str) -> None:
    worker(directory, "odd", text)
    assert directory.work(time.time()) == VmWork(None, None, ("odd",))


@given(st.binary(max_size=300))
def test_any_bytes_give_a_report_in_range_or_a_refusal(content: bytes) -> None:
    for text in (content, b"busy_cores " + content, b"busy_cores 1\nwork_core_seconds 1\nprocess " + content):
        try:
            report = parse_report("w", text)
        except BadInput:
            continue
        assert 0.0 <= report.busy_cores <= 4096.0
        assert 0.0 <= report.work_core_seconds <= 1e9
        assert report.process is None or 0 < report.process[0] < 2**22


def test_what_a_hostile_neighbour_puts_there_is_neither_followed_nor_waited_for(
    directory: RunDirectory, tmp_path: Path
) -> None:
    place = directory.place / "workers"
    secret = tmp_path / "secret"
    secret.write_text("busy_cores 9\nwork_core_seconds 9\n")
    (place / "link").symlink_to(secret)
    os.mkfifo(place / "pipe")
    (place / "folder").mkdir()
    (place / "large").write_bytes(b"x" * 2**22)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(place / "socket"))
        work = directory.work(time.time())
    assert work == VmWork(None, None, ("folder", "large", "link", "pipe", "socket"))


def test_more_workers_than_can_be_are_not_read(directory: RunDirectory) -> None:
    for n in range(MAX_WORKERS + 5):
        worker(directory, f"w{n:04d}", "busy_cores 1\nwork_core_seconds 1\n")
    work = directory.work(time.time())
    assert (work.busy_cores, len(work.silent)) == (None, 5)


def test_every_user_may_report_and_none_may_touch_another_s_file(directory: RunDirectory) -> None:
    assert (directory.place / "workers").stat().st_mode & 0o7777 == 0o1777
    directory.make()


def test_reports_from_many_threads_are_never_read_half(directory: RunDirectory) -> None:
    hook = WorkerHook(str(directory.place), name="w")
    hook.report()
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            with hook.job():
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        seen = {directory.work(time.time()).busy_cores for _ in range(300)}
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert seen <= {0.0, 1.0, 2.0, 3.0, 4.0}


def test_the_guide_s_shell_worker_reports_and_drains(directory: RunDirectory, tmp_path: Path) -> None:
    (example,) = re.findall(r"```sh\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    example = example.replace("run=/run/trimtab", f"run={directory.place}").replace("sleep 5", "sleep 0.05")
    jobs, done = tmp_path / "jobs", tmp_path / "done"
    jobs.write_text("one\n")
    begin = f"next_job() {{ cat {jobs} && rm {jobs}; }} 2>/dev/null\n"
    begin += f"work_on() {{ until test -e {done}; do sleep 0.05; done; }}\n"
    shell = subprocess.Popen(["/bin/sh", "-c", begin + example])
    try:
        until(lambda: directory.work(time.time()).busy_cores == 1.0)
        directory.ask_to_drain("the group terminates it", time.time())
        done.touch()
        assert shell.wait(60.0) == 0
    finally:
        shell.kill()
    assert directory.work(time.time()) == NOTHING_KNOWN


def test_the_guide_s_python_worker_runs(directory: RunDirectory) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    done: list[str] = []

    def work_on(job: str) -> None:
        assert directory.work(time.time()).busy_cores == 1.0
        done.append(job)
        directory.ask_to_drain("the group terminates it", time.time())

    code = example.replace("/run/trimtab", str(directory.place))
    exec(code, {"next_job": lambda: "one", "work_on": work_on})
    assert done == ["one"]


def test_the_hook_needs_the_standard_library_only() -> None:
    code = (
        "import sys; import collectors.worker_hook; "
        "print({n.partition('.')[0] for n in sys.modules} - set(sys.stdlib_module_names) - {'collectors'})"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("set()", "{'__main__'}")
