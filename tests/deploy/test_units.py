"""The systemd units: sound, and in a tight sandbox, which is emulated where no systemd can be booted."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from agent.settings import load_settings
from domain.errors import ConfigurationError
from tests.agent.service.supervisor import Supervisor
from tests.architecture.product import ROOT
from tests.deploy.lstm_model import lstm
from tests.deploy.sandboxed import REFUSED

SANDBOXED = [sys.executable, "-m", "tests.deploy.sandboxed"]
TRIMTAB = [sys.executable, "-c", "from agent.commands.main import app; app()"]
UNITS = ("agent", "collect", "learn")


@pytest.fixture
def rendered(tmp_path: Path) -> Path:
    """The units with paths filled in that exist."""
    program = tmp_path / "venv" / "bin" / "trimtab"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for name in UNITS:
        text = (ROOT / "deploy" / "systemd" / f"trimtab-{name}.service").read_text("utf-8")
        (tmp_path / f"trimtab-{name}.service").write_text(
            text.replace("@PREFIX@", str(tmp_path)).replace("@CONFIG@", "/etc/trimtab")
        )
    for name in ("learn", "watch"):
        shutil.copy(ROOT / "deploy" / "systemd" / f"trimtab-{name}.timer", tmp_path)
    # As deploy/layout.sh derives it.
    learn = (tmp_path / "trimtab-learn.service").read_text()
    (tmp_path / "trimtab-watch.service").write_text(learn.replace("learn all", "learn all --watch"))
    (tmp_path / "trimtab-agent.service.d").mkdir()
    shutil.copy(
        ROOT / "deploy" / "systemd" / "trimtab-agent-learn.conf", tmp_path / "trimtab-agent.service.d" / "learn.conf"
    )
    return tmp_path


def directives(name: str) -> dict[str, list[str]]:
    """What a file of systemd sets, by directive, in order."""
    found: dict[str, list[str]] = {}
    for line in (ROOT / "deploy" / "systemd" / name).read_text("utf-8").splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


@pytest.mark.smoke
@pytest.mark.needs_systemd
def test_systemd_finds_nothing_to_say(rendered: Path) -> None:
    units = [
        *(rendered / f"trimtab-{name}.service" for name in (*UNITS, "watch")),
        *(rendered / f"trimtab-{name}.timer" for name in ("learn", "watch")),
    ]
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_learner_is_as_locked_in_as_the_agent_but_for_what_it_must_do() -> None:
    agent, learn = directives("trimtab-agent.service"), directives("trimtab-learn.service")
    sandbox = {
        key for key in agent if key.startswith(("Protect", "Private", "Restrict", "SystemCall", "Capability", "NoNew"))
    }
    assert {key for key in sandbox if learn.get(key) != agent[key]} == set()
    assert {"MemoryDenyWriteExecute", "ProcSubset"} == {
        key for key in ("MemoryDenyWriteExecute", "ProcSubset", "LockPersonality", "RemoveIPC") if key not in learn
    }
    assert {"CPUQuota", "MemoryMax", "TasksMax"} <= learn.keys()


def test_settings_of_an_agent_with_a_port_hold_without_the_token_that_the_learner_has_not() -> None:
    given = {"TRIMTAB_HTTP__PORT": "8080", "AWS_SECRET_ACCESS_KEY": "s"}
    with pytest.raises(ConfigurationError):
        load_settings(given)
    taken = directives("trimtab-learn.service")["UnsetEnvironment"][0].split()
    left = {name: value for name, value in given.items() if name not in taken}
    assert left == {}
    load_settings(left)


def test_a_port_in_the_file_of_settings_holds_without_the_token_that_the_learner_has_not(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text("[http]\nport = 8080\n")
    given = {"TRIMTAB_CONFIG": str(file)}
    with pytest.raises(ConfigurationError):
        load_settings(given)
    of_unit = dict(
        word.split("=", 1) for line in directives("trimtab-learn.service")["Environment"] for word in line.split()
    )
    load_settings(given | {name: value for name, value in of_unit.items() if name.startswith("TRIMTAB_")})


def test_the_learner_reaches_neither_the_agents_secrets_nor_the_role_of_the_host() -> None:
    learn = directives("trimtab-learn.service")
    of_agent = "@CONFIG@/credentials"
    assert learn["LoadCredential"] == [
        f"trimtab_{name}:{of_agent}/{name}" for name in ("ledger__url", "learned__promotion_key")
    ]
    assert {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} <= set(learn["UnsetEnvironment"][0].split())
    assert "169.254.169.254" in learn["IPAddressDeny"][0].split()


def test_the_check_before_a_start_writes_mistakes_alone_to_the_journal() -> None:
    assert command("agent", "ExecStartPre")[1:] == ["config", "check", "--quiet"]


def test_an_agent_with_nothing_to_decide_is_not_started_again(tmp_path: Path) -> None:
    given = settings(tmp_path / "state") | {"TRIMTAB_DISCOVERY__ENABLED": "false"}
    check, run = (
        subprocess.run([*TRIMTAB, *command("agent", key)[1:]], env=given, cwd=ROOT, capture_output=True, check=False)
        for key in ("ExecStartPre", "ExecStart")
    )
    assert (check.returncode, run.returncode) == (0, 2)
    assert directives("trimtab-agent.service")["RestartPreventExitStatus"] == ["2"]


def test_no_placeholder_is_left(rendered: Path) -> None:
    assert [
        name
        for name in UNITS
        if "@"
        in (rendered / f"trimtab-{name}.service")
        .read_text()
        .replace("~@", "")
        .replace("=@system-service", "")
        .replace(" @resources", "")
    ] == []


def settings(directory: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "TRIMTAB_"))}
    return inherited | {
        "TRIMTAB_STATE_DIRECTORY": str(directory),
        "TRIMTAB_LISTENER__PORT": "0",
        "TRIMTAB_AWS__REGION": "us-east-1",
        "TRIMTAB_DISCOVERY__ENABLED": "true",
        "AWS_EC2_METADATA_DISABLED": "true",
        "OMP_NUM_THREADS": "1",
    }


def command(unit: str, directive: str) -> list[str]:
    """Return what systemd would run, as the unit has it."""
    text = (ROOT / "deploy" / "systemd" / f"trimtab-{unit}.service").read_text("utf-8")
    (line,) = [line for line in text.splitlines() if line.startswith(f"{directive}=")]
    return line.partition("=")[2].split()


emulated = pytest.mark.emulates("needs_cgroup")
"""tests/real/systemd has a real systemd do it, where the rights are granted."""
on_x86_64 = pytest.mark.skipif(platform.machine() != "x86_64", reason="the filter's call numbers are those of x86-64")


@emulated
@on_x86_64
def test_the_sandbox_of_these_tests_refuses_what_systemd_would(tmp_path: Path) -> None:
    code = (
        "import mmap, os\n"
        "for attempt in (lambda: os.setpriority(os.PRIO_PROCESS, 0, 5), lambda: os.sched_setaffinity(0, {0}),\n"
        "                lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_WRITE | mmap.PROT_EXEC)):\n"
        "    try: attempt(); print('allowed')\n"
        "    except PermissionError: print('refused')\n"
    )
    done = subprocess.run(
        [*SANDBOXED, sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.split() == ["allowed", "refused", "refused"]
    assert "sched_setaffinity" in REFUSED


@emulated
@pytest.mark.exhaustive
@on_x86_64
def test_the_daemon_starts_turns_reloads_and_ends_in_the_sandbox(tmp_path: Path) -> None:
    with Supervisor(str(tmp_path / "notify")) as supervisor:
        environ = settings(tmp_path / "state") | supervisor.environ
        daemon = subprocess.Popen(
            [*SANDBOXED, *TRIMTAB, "run"], env=environ, cwd=ROOT, stderr=subprocess.PIPE, text=True
        )
        try:
            assert supervisor.until("READY")["STATUS"].startswith("observe; ")
            reload = [word.replace("$MAINPID", str(daemon.pid)) for word in command("agent", "ExecReload")]
            subprocess.run(reload, check=True)
            with pytest.raises(subprocess.TimeoutExpired):
                daemon.wait(timeout=1.0)
            daemon.send_signal(signal.SIGTERM)
            _, log = daemon.communicate(timeout=15.0)
        finally:
            daemon.kill()
            daemon.wait()
    assert daemon.returncode == 0, log
    assert (tmp_path / "state" / "ledger.db").exists()


@emulated
@on_x86_64
def test_numpy_and_an_onnx_runtime_lstm_work_in_the_sandbox(tmp_path: Path) -> None:
    onnx.save(lstm(), tmp_path / "lstm.onnx")
    code = (
        "import sys, numpy, onnxruntime\n"
        "session = onnxruntime.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])\n"
        "(y,) = session.run(None, {'X': numpy.ones((1, 1, 3), numpy.float32)})\n"
        "print(y.shape, numpy.linalg.solve(numpy.eye(3), numpy.ones(3)).sum())\n"
    )
    command = [*SANDBOXED, sys.executable, "-c", code, str(tmp_path / "lstm.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True, env=settings(tmp_path))
    assert done.stdout.strip() == "(1, 1, 1, 8) 3.0"


@emulated
@pytest.mark.exhaustive
@on_x86_64
def test_torch_and_what_numba_compiles_work_in_the_sandbox_of_the_learner(tmp_path: Path) -> None:
    code = (
        "import numba, numpy, torch\n"
        "@numba.njit(cache=True)\n"
        "def total(x):\n"
        "    s = 0.0\n"
        "    for v in x: s += v\n"
        "    return s\n"
        "w = torch.ones(3, requires_grad=True)\n"
        "(w * w).sum().backward()\n"
        "print(total(numpy.ones(4)), w.grad.sum().item())\n"
    )
    (tmp_path / "work.py").write_text(code)
    environ = settings(tmp_path) | {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "TRIMTAB_TEST_COMPILES": "1"}
    command = [*SANDBOXED, sys.executable, str(tmp_path / "work.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, env=environ)
    assert (done.stdout.strip(), done.stderr) == ("4.0 6.0", "")
    assert list((tmp_path / "cache").rglob("*.nbi"))
