"""The agent, the collector and the learner under a real systemd: from their installation to their removal.

Each test finds the agent installed and running, whatever the one before it did, and states one promise of
docs/operate/install.md. AWS is the simulated one, in the machine's own network.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from domain.decisions import Reason
from tests.deploy.lstm_model import lstm
from tests.real.cache import NotAvailable
from tests.real.systemd import debian
from tests.real.systemd.host import (
    AGENT,
    COLLECT,
    LEARN,
    OURS,
    REGION,
    TIMER,
    TOKEN,
    WATCH,
    WATCH_TIMER,
    WATCHDOG_DROP_IN,
    Host,
    running_host,
)
from tests.real.systemd.machine import wait_for

pytestmark = [
    pytest.mark.needs_debootstrap,
    pytest.mark.needs_mount,
    pytest.mark.needs_cgroup,
    pytest.mark.xdist_group("systemd"),
    # The first one makes the root and downloads wheels where they are not there yet.
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    try:
        with running_host(tmp_path_factory.mktemp("host")) as host:
            yield host
    except NotAvailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def host(running: Host) -> Host:
    """The host with the agent installed, enabled and running with its settings."""
    running.restore()
    return running


class TestTheInstallation:
    def test_what_the_services_read_is_readable_and_secrets_are_not(self, host: Host) -> None:
        prefix = host.machine.path("/opt/trimtab")
        files = [path for path in prefix.rglob("*") if not path.is_symlink()]
        closed = [path for path in files if ~path.stat().st_mode & (0o055 if path.is_dir() else 0o044)]
        assert closed == []
        modes = {name: host.machine.path(f"/etc/trimtab/{name}").stat().st_mode & 0o777 for name in MODES}
        assert modes == MODES

    def test_systemd_loads_the_units_without_a_warning(self, host: Host) -> None:
        units = [f"{name}.service" for name in (AGENT, COLLECT)]
        found = host.machine.run("systemd-analyze", "verify", *units)
        assert (found.stdout, found.stderr) == ("", "")

    def test_the_agent_starts_at_boot_and_numbers_its_decisions_on(self, host: Host) -> None:
        before = host.newest_decision()
        host.machine.reboot()
        assert host.machine.state() == "running"
        host.machine.await_state(AGENT)
        assert host.await_decision(before) == before + 1
        assert host.machine.show(AGENT, "NRestarts")["NRestarts"] == "0"


MODES = {
    "agent.env": 0o640,
    "agent.toml": 0o644,
    "collect.env": 0o640,
    "credentials": 0o700,
    "credentials/http__token": 0o600,
}


class TestAtWork:
    def test_systemd_knows_the_agent_ready_and_its_last_decision(self, host: Host) -> None:
        shown = host.machine.show(AGENT, "Type", "SubState", "StatusText")
        assert (shown["Type"], shown["SubState"]) == ("notify", "running")
        host.newest_decision()
        wait_for(lambda: " web: " in host.machine.show(AGENT, "StatusText")["StatusText"], "a decision in the status")
        status = host.machine.show(AGENT, "StatusText")["StatusText"]
        assert status.startswith("act; 1 fleet, 1 cluster; ")

    def test_a_credential_reaches_the_agent_alone(self, host: Host) -> None:
        # Without the token the agent would not start with a TCP port at all.
        assert host.api("status")[0] == 200
        assert host.api("status", token="another-token-of-enough-letters")[0] == 401
        assert TOKEN.encode() not in host.of_process(AGENT, "environ")
        loaded = f"/run/credentials/{AGENT}.service/trimtab_http__token"
        assert host.machine.path(loaded).read_text().strip() == TOKEN
        assert "Permission denied" in as_another_user(host, "cat", loaded).stderr

    def test_a_reload_keeps_the_process(self, host: Host) -> None:
        before = host.machine.main_pid(AGENT)
        host.machine.run("systemctl", "reload", AGENT)
        host.await_decision(host.newest_decision())
        assert host.machine.main_pid(AGENT) == before

    def test_it_is_restarted_after_sigkill_and_numbers_its_decisions_on(self, host: Host) -> None:
        before = host.newest_decision()
        killed = host.machine.main_pid(AGENT)
        host.machine.run("systemctl", "kill", "--signal=SIGKILL", AGENT)
        after_restart(host, killed)
        assert host.await_decision(before) == before + 1

    def test_the_watchdog_ends_an_agent_that_hangs_and_it_is_restarted(self, host: Host) -> None:
        drop_in = host.machine.path(WATCHDOG_DROP_IN)
        drop_in.parent.mkdir(parents=True, exist_ok=True)
        # Shorter than the unit's, for the test's sake; SIGKILL at once, where SIGABRT waits for a stopped process.
        drop_in.write_text("[Service]\nWatchdogSec=3\nRestartSec=1\nTimeoutAbortSec=2\n")
        host.machine.run("systemctl", "daemon-reload")
        host.machine.run("systemctl", "restart", AGENT)
        hung = host.machine.main_pid(AGENT)
        # As long as it turns, its watchdog messages arrive.
        time.sleep(4.0)
        assert host.machine.main_pid(AGENT) == hung
        host.machine.run("systemctl", "kill", "--kill-whom=main", "--signal=SIGSTOP", AGENT)
        after_restart(host, hung)
        assert "Watchdog timeout" in host.machine.journal(AGENT)

    def test_a_stop_is_clean(self, host: Host) -> None:
        host.newest_decision()
        began = time.monotonic()
        host.machine.run("systemctl", "stop", AGENT)
        assert time.monotonic() - began < 15.0
        shown = host.machine.show(AGENT, "ActiveState", "Result", "ExecMainCode", "ExecMainStatus")
        assert shown == {"ActiveState": "inactive", "Result": "success", "ExecMainCode": "1", "ExecMainStatus": "0"}

    def test_a_misspelt_setting_stops_the_start_and_its_repair_is_enough(self, host: Host) -> None:
        host.configure(TRIMTAB_MOOD="good")
        failed = host.machine.run("systemctl", "restart", AGENT, check=False)
        assert failed.returncode != 0
        journal = host.machine.journal(AGENT)
        assert "TRIMTAB_MOOD" in journal
        assert "TRIMTAB_TICK_INTERVAL_S" not in journal
        host.configure()
        # Restart=always tries again by itself.
        host.machine.await_state(AGENT, timeout_s=30.0)

    def test_a_file_of_settings_that_its_user_cannot_read_or_that_is_no_toml_stops_the_start(self, host: Host) -> None:
        file = host.machine.path("/etc/trimtab/agent.toml")
        for spoil, said in (
            (lambda: file.chmod(0o600), "Permission denied"),
            (lambda: file.write_text(f"{file.read_text()}[fleets.web\n"), "write it as TOML"),
        ):
            spoil()
            assert host.machine.run("systemctl", "restart", AGENT, check=False).returncode != 0
            journal = host.machine.journal(AGENT)
            assert "TRIMTAB_CONFIG is '/etc/trimtab/agent.toml'" in journal
            assert said in journal
            file.chmod(0o644)
            host.configure()
            host.machine.run("systemctl", "reset-failed", AGENT, check=False)
            host.machine.run("systemctl", "restart", AGENT)

    def test_with_nothing_to_decide_it_ends_once_and_is_started_by_hand(self, host: Host) -> None:
        host.machine.path("/etc/trimtab/agent.env").write_text(f"TRIMTAB_AWS__REGION={REGION}\n")
        host.machine.run("systemctl", "restart", AGENT, check=False)
        host.machine.await_state(AGENT, "failed")
        shown = host.machine.show(AGENT, "ExecMainStatus", "NRestarts", "SubState")
        assert shown == {"ExecMainStatus": "2", "NRestarts": "0", "SubState": "failed"}
        host.configure()
        host.machine.run("systemctl", "start", AGENT)
        host.machine.await_state(AGENT)


def as_another_user(host: Host, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a user that has nothing to do with Trimtab."""
    return host.machine.run("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *command, check=False)


def after_restart(host: Host, before: int) -> None:
    """Wait until systemd has started the agent again."""
    wait_for(lambda: host.machine.main_pid(AGENT) not in (0, before), "another main process", 40.0)
    host.machine.await_state(AGENT)


class TestTheSandbox:
    @pytest.mark.parametrize("unit", [AGENT, COLLECT])
    def test_the_exposure_is_at_most_one_and_a_half(self, host: Host, unit: str) -> None:
        done = host.machine.run("systemd-analyze", "security", "--threshold=15", unit, check=False)
        assert done.returncode == 0, done.stdout

    def test_the_agent_has_its_own_user_and_no_capability(self, host: Host) -> None:
        fields = dict(re.findall(r"^(\w+):\s*(.*)$", host.of_process(AGENT, "status").decode(), flags=re.MULTILINE))
        assert {fields[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
        assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
        assert "0" not in fields["Uid"].split()
        assert as_another_user(host, "test", "-x", "/var/lib/trimtab/").returncode == 1

    def test_what_it_forbids_is_refused_and_numpy_and_an_onnx_runtime_lstm_work(
        self, host: Host, tmp_path: Path
    ) -> None:
        place = host.machine.path("/opt/probe")
        place.mkdir(exist_ok=True)
        (place / "lstm.onnx").write_bytes(lstm().SerializeToString())
        state = "User=probe\nGroup=probe\nStateDirectory=\nStateDirectory=probe\nWorkingDirectory=/var/lib/probe\n"
        found = host.probe(AGENT, PROBES / "probe_agent.py", "/opt/probe/lstm.onnx", wants=state)
        refused, read_only = "Operation not permitted", "Read-only file system"
        assert found == {
            "executable memory": refused,
            "processor affinity": refused,
            "priority": "Permission denied",
            "low priority": "allowed",
            "limit": "allowed",
            "first out of memory": "allowed",
            "owner of a file": refused,
            "root directory": refused,
            "packets": "Address family not supported by protocol",
            "settings": read_only,
            "program": read_only,
            "home": "Permission denied",
            "process 1": "No such file or directory",
            "processor": "No such file or directory",
            "state": "allowed",
            "algebra": 3.0,
            "lstm": [1, 1, 1, 8],
        }

    def test_a_process_out_of_memory_does_not_end_the_agent(self, host: Host) -> None:
        assert host.machine.show(AGENT, "OOMPolicy")["OOMPolicy"] == "continue"

    def test_its_memory_is_limited_where_the_control_group_can(self, host: Host) -> None:
        group = host.machine.path("/sys/fs/cgroup")
        if "memory" not in (group / "cgroup.controllers").read_text().split():
            # Where the older hierarchy owns the controller, systemd itself knows the limit and cannot set it.
            assert host.machine.show(AGENT, "MemoryMax")["MemoryMax"] == str(2**30)
            return
        assert (group / "system.slice" / f"{AGENT}.service" / "memory.max").read_text().strip() == str(2**30)


PROBES = Path(__file__).parent


class TestTheCollector:
    def test_the_agent_scales_by_what_the_collector_on_a_vm_reports(self, host: Host) -> None:
        shown = host.machine.show(COLLECT, "Type", "ActiveState", "NRestarts")
        assert shown == {"Type": "notify", "ActiveState": "active", "NRestarts": "0"}
        before = host.group()["DesiredCapacity"]
        host.submit(40)
        # The agent decides on whole minutes.
        wait_for(lambda: host.group()["DesiredCapacity"] > before, "the group grows", 130.0)
        # The jobs want ten VMs, and one decision adds at most five. Without a report of the VM it were stale_input.
        (grown, *_) = host.api("autoscaling/web/decisions?changed=true")[1]["decisions"]
        assert grown["reason"] == Reason.STEP_LIMIT


class TestAnotherVersion:
    def test_an_upgrade_and_its_rollback_switch_the_running_agent(self, host: Host, tmp_path: Path) -> None:
        old = environment(host)
        before = host.newest_decision()
        said = host.script("upgrade.sh")
        assert f"restarted {AGENT}" in said
        host.machine.await_state(AGENT)
        new = environment(host)
        assert new != old
        assert host.await_decision(before) == before + 1
        (copy,) = host.machine.path("/var/lib/private/trimtab").glob("ledger.db.before-*")
        # SQLite would look for a file of that name on this host.
        with closing(sqlite3.connect(shutil.copy(copy, tmp_path))) as ledger:
            rows = ledger.execute("select decision_id from decisions where subject = 'web'").fetchall()
        assert before <= max(int(name.removeprefix("web-")) for (name,) in rows)
        last = host.newest_decision()
        host.script("upgrade.sh", "--rollback")
        host.machine.await_state(AGENT)
        assert environment(host) == old
        assert host.await_decision(last) == last + 1


def environment(host: Host) -> str:
    """Return the environment that the agent's process runs from."""
    interpreter = host.of_process(AGENT, "cmdline").split(b"\0")[0].decode()
    (name,) = re.findall(r"^/opt/trimtab/environments/([^/]+)/bin/python", interpreter)
    return str(name)


class TestLearning:
    """The role `learn`, with the units, the users and the program that the scripts install.

    Only torch and numba are not from the scripts but those of these tests, mounted for reading: to download and install
    some GB of torch would take longer than all other tests here.
    """

    @pytest.fixture
    def learner(self, host: Host) -> Host:
        packages = sorted(path.name for path in host.machine.path(OURS).glob("*"))
        if not packages:
            version = ".".join(map(str, debian.PYTHON))
            pytest.skip(f"the machine has Python {version}: torch and numba of this Python do not fit it")
        (site,) = host.machine.path(f"/opt/trimtab/environments/{environment(host)}").glob("lib/python3*/site-packages")
        (site / "of-the-tests.pth").write_text("".join(f"{OURS}/{name}\n" for name in packages))
        key = host.machine.path("/etc/trimtab/credentials/learned__promotion_key")
        key.write_text("a key of promotions of more than 32 bytes\n")
        key.chmod(0o600)
        said = host.script("install.sh", "--role", "learn")
        assert "was made without what learning needs" not in said
        host.machine.await_state(AGENT)
        # The ledger is now that of a user who lasts; the agent writes on in it.
        host.await_decision(host.newest_decision())
        return host

    def test_the_timer_starts_a_round_that_compiles_its_simulator_in_the_sandbox(self, learner: Host) -> None:
        machine = learner.machine
        security = machine.run("systemd-analyze", "security", "--threshold=15", LEARN, check=False)
        assert security.returncode == 0, security.stdout
        assert learner.probe(LEARN, PROBES / "probe_learner.py") == {
            "numba": 4.0,
            "torch": 6.0,
            "decisions": True,
            "ledger": "Permission denied",
            "state": "Read-only file system",
            "models": "allowed",
            "socket": "Permission denied",
            "own": "allowed",
            "root": False,
            "secrets": ["trimtab_learned__promotion_key"],
            "keys of AWS": [],
        }

        # The fleet's few minutes can be replayed or not, by when its queue was first read: the cluster alone learns.
        tables = re.split(r"^(?=\[)", machine.path("/etc/trimtab/agent.toml").read_text(), flags=re.MULTILINE)
        without_fleets = machine.path("/etc/trimtab/alone.toml")
        without_fleets.write_text("".join(table for table in tables if not table.startswith("[fleets.")))
        machine.path("/etc/trimtab/alone.env").write_text("TRIMTAB_CONFIG=/etc/trimtab/alone.toml\n")
        alone = machine.path(f"/run/systemd/system/{LEARN}.d/alone.conf")
        alone.parent.mkdir(parents=True, exist_ok=True)
        alone.write_text("[Service]\nEnvironmentFile=/etc/trimtab/alone.env\n")

        soon = machine.path(f"/run/systemd/system/{TIMER}.d/soon.conf")
        soon.parent.mkdir(parents=True, exist_ok=True)
        soon.write_text("[Timer]\nOnCalendar=\nOnActiveSec=1\nRandomizedDelaySec=0\nAccuracySec=100ms\n")
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "enable", "--now", TIMER)
        wait_for(lambda: machine.show(LEARN, "ExecMainExitTimestamp")["ExecMainExitTimestamp"], "a round ends", 90.0)
        shown = machine.show(LEARN, "Result", "ExecMainStatus")
        assert shown == {"Result": "success", "ExecMainStatus": "0"}, machine.journal(LEARN)
        # The processor's seconds of the settings end the cluster's round in its second stage, on compiled code.
        compiled = machine.path("/var/cache/trimtab-learn").rglob("*.nbi")
        assert "fits" in {path.name.partition(".")[0] for path in compiled}
        assert machine.path("/var/lib/trimtab-learn/admission/main").is_dir()
        # Enabled with the other one, and its service begins no round.
        assert machine.show(WATCH_TIMER, "UnitFileState") == {"UnitFileState": "enabled"}
        machine.run("systemctl", "start", WATCH)
        assert machine.show(WATCH, "Result", "ExecMainStatus") == {"Result": "success", "ExecMainStatus": "0"}


class TestTheRemoval:
    def test_settings_and_ledger_stay_until_a_purge(self, running: Host) -> None:
        machine = running.machine
        if not machine.path("/opt/trimtab/bin/trimtab").exists():
            running.restore()
        settings = machine.path("/etc/trimtab/agent.toml").read_text()
        running.script("uninstall.sh")
        assert machine.run("systemctl", "list-unit-files", "trimtab*", "--no-legend", check=False).stdout == ""
        assert machine.path("/etc/trimtab/agent.toml").read_text() == settings
        assert machine.run("test", "-s", "/var/lib/trimtab/ledger.db", check=False).returncode == 0
        assert not machine.path("/opt/trimtab").exists()
        running.script("uninstall.sh", "--purge")
        left = machine.run("find", "/", "-xdev", "-name", "*trimtab*", "-not", "-path", "/root/*").stdout.split()
        assert left == []
