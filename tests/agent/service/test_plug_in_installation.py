"""The example package, installed by pip into a fresh environment, takes part in a running agent."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.service.site import FLEET, Daemon, running_site
from tests.plug_ins import EXAMPLE
from tests.waiting import until

pytestmark = pytest.mark.exhaustive
SETTINGS = {
    **FLEET,
    "TRIMTAB_FLEETS__web__POLICY": "steady",
    # Its VMs report nothing: the policy goes by the queue alone.
    "TRIMTAB_FLEETS__web__RAILS__MIN_COVERAGE": "0",
    "TRIMTAB_FLEETS__web__RAILS__MAX_AGE_S": "3600",
    "TRIMTAB_STEADY__SIZE": "3",
    "TRIMTAB_BACKLOG__WAITING": "12",
    "TRIMTAB_ACTUATOR": "grow_only",
    "TRIMTAB_LUNCH__MENU": "noodles",
}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A fresh environment with the example in it, and Trimtab and its dependencies from this one; no index is asked."""
    place = tmp_path_factory.mktemp("fresh")
    environment, source = place / "venv", place / "example"
    venv.create(environment, symlinks=True)
    interpreter = environment / "bin" / "python"
    versions = f"python{sys.version_info.major}.{sys.version_info.minor}"
    # Read after its own packages, with the lines that lead an editable installation to its sources.
    ours = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    lines = "".join(f"import site; site.addsitedir({path!r})\n" for path in sorted(ours))
    (environment / "lib" / versions / "site-packages" / "_trimtab.pth").write_text(lines)
    # A build leaves its own directories beside the sources.
    shutil.copytree(EXAMPLE, source, ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "--python", str(interpreter), "install", "--quiet"]
    offline = ["--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    installed = subprocess.run([*pip, *offline, str(source)], capture_output=True, text=True, check=False)
    assert installed.returncode == 0, installed.stderr
    where = [str(interpreter), "-c", "import trimtab_example; print(trimtab_example.__file__)"]
    found = subprocess.run(where, capture_output=True, text=True, check=True, cwd=place).stdout
    assert Path(found.strip()).is_relative_to(environment)
    return str(interpreter)


@pytest.fixture(scope="module")
def daemon(python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running_site(30.0) as site:
        site.make_group()
        made = Daemon(site, tmp_path_factory.mktemp("agent"), python=python, **SETTINGS)
        made.start()
        yield made
        made.close()


def verb(daemon: Daemon, *words: str) -> str:
    """What a verb prints in the fresh environment, asked of the agent's ledger."""
    words = (*words, "--ledger", daemon.ledger_url)
    run = [daemon.python, "-c", "from agent.commands.main import app; app()", *words]
    result = subprocess.run(run, capture_output=True, text=True, env=daemon.environ(), check=False)
    return result.stdout if result.returncode == 0 else result.stderr


def test_without_the_package_there_is_no_such_policy() -> None:
    run = [sys.executable, "-c", "from agent.commands.main import app; app()", "config", "check"]
    result = subprocess.run(run, capture_output=True, text=True, env=SETTINGS, check=False)
    assert result.returncode != 0
    for expected in ("POLICY=steady: give one of", "ACTUATOR=grow_only: give", "STEADY__SIZE=3: there is no such"):
        assert expected in result.stdout + result.stderr


def test_the_policy_decides_and_the_actuator_acts(daemon: Daemon) -> None:
    until(lambda: daemon.site.desired() == 3, 60.0)
    calls = daemon.site.mutations()
    assert {call["operation"] for call in calls} == {"SetDesiredCapacity"}
    rows = json.loads(verb(daemon, "decisions", "autoscaling", "web", "--json"))
    assert rows
    assert "steady:size=3" in verb(daemon, "explain", rows[-1]["decision_id"])


def test_the_samples_of_the_collector_arrive(daemon: Daemon) -> None:
    until(lambda: "12" in verb(daemon, "status", "autoscaling", "web"), 60.0)


def test_the_decision_is_shown_and_follows_its_own_settings(daemon: Daemon) -> None:
    until(lambda: "kitchen-lunch" in verb(daemon, "status", "lunch", "kitchen"), 60.0)
    assert "noodles" in verb(daemon, "status", "lunch", "kitchen")
    assert "nothing: paused" not in verb(daemon, "decisions", "lunch")


def test_recorded_minutes_are_replayed_by_the_installed_policy_and_by_another_of_its_sizes(daemon: Daemon) -> None:
    until(lambda: "all the same" in verb(daemon, "replay", "autoscaling", "web"), 60.0)
    assert "steady:size=5 on" in verb(daemon, "replay", "autoscaling", "web", "--policy", "steady:size=5")
