"""`trimtab init`: a checked file of settings from options, from questions, and from what is in the account."""

from __future__ import annotations

import os
import re
import shlex
import stat
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from agent.commands.main import app
from agent.placement.settings import SUBJECTS
from agent.settings import Settings, load_settings
from agent.settings.names import as_toml, values
from domain.clock import VirtualClock
from simulator.aws.client import CloudControl
from simulator.aws.process import start_in_thread
from tests.simulator.aws.world import START, World

DESCRIBED = "web workers=m5a.large,2,8,1,10"


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """An account with two groups and two queues."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATRIMTABAGENT0001")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "simulated")
    running = start_in_thread(VirtualClock(START), seed=7)
    made = World(running, CloudControl(running.endpoint))
    made.template("small", "m5a.large")
    made.template("large", "m5a.2xlarge")
    for name, size in (("large", (0, 0, 3)), ("small", (1, 1, 10))):
        about = {"LaunchTemplate": {"LaunchTemplateName": name, "Version": "$Latest"}}
        made.group(f"web-{name}", size=size, **about)
    for name in ("jobs", "other"):
        made.client("sqs").create_queue(QueueName=name)
    yield made
    made.close()


@pytest.fixture
def init(tmp_path: Path) -> Callable[..., Result]:
    """Call the verb on a file of this test, without a terminal."""

    def call(*arguments: str, answers: tuple[str, ...] | None = None) -> Result:
        asking = [] if answers is None else ["--ask"]
        given = "\n".join([*(answers or ()), ""])
        return CliRunner().invoke(app, ["init", str(tmp_path / "web.toml"), *arguments, *asking], input=given)

    return call


def settings_of(file: Path) -> Settings:
    """What the agent makes of both files, the variables read as systemd reads them and by a shell."""
    lines = [line for line in file.with_suffix(".env").read_text("utf-8").splitlines() if not line.startswith("#")]
    by_systemd = dict(shlex.split(line)[0].split("=", 1) for line in lines)
    assert by_systemd["TRIMTAB_CONFIG"] == str(file)
    shell = ["sh", "-c", 'set -a; . "$1"; env -0', "sh", str(file.with_suffix(".env"))]
    run = subprocess.run(shell, capture_output=True, text=True, check=True, env={"PATH": os.environ["PATH"]})
    by_shell = dict(line.split("=", 1) for line in run.stdout.split("\0") if line.startswith("TRIMTAB_"))
    assert (run.stderr, by_shell) == ("", by_systemd)
    return load_settings(by_systemd)


def test_from_options_alone(init: Callable[..., Result], tmp_path: Path) -> None:
    done = init("--group", DESCRIBED, "--region", "eu-west-1", "--fleet", "batch")
    assert done.exit_code == 0, done.output
    settings = settings_of(tmp_path / "web.toml")
    (group,) = settings.fleet("batch").groups
    assert (group.key, group.name, group.minimum, group.maximum) == ("web_workers", "web workers", 1, 10)
    assert group.vm_type.price_per_hour > 0
    assert settings.mode.value == "observe"
    for step in ("set -a; . ", "trimtab preflight", "trimtab run"):
        assert step in done.output


def test_a_placement_pool_has_the_fleet_for_its_hosts(init: Callable[..., Result], tmp_path: Path) -> None:
    refused = init("--group", DESCRIBED, "--region", "eu-west-1", "--placement", "a-b")
    assert (refused.exit_code, "--placement" in refused.output) == (2, True)
    assert not (tmp_path / "web.toml").exists()
    done = init("--group", DESCRIBED, "--region", "eu-west-1", "--fleet", "batch", "--placement", "jobs")
    assert done.exit_code == 0, done.output
    (pool,) = SUBJECTS.of(settings_of(tmp_path / "web.toml")).items()
    assert (pool[0], pool[1].fleet, pool[1].policy, pool[1].canary) == ("jobs", "batch", "lifetime", None)


def test_pools_are_described_by_their_settings_without_a_fleet(init: Callable[..., Result], tmp_path: Path) -> None:
    hosts = "PLACEMENTS__main__INVENTORY_FILE=/var/lib/trimtab/pool.json"
    sizes = ("POOLS__vms__MACHINES=500", "POOLS__vms__MACHINE_CORES=96")
    refused = init(*(word for one in (hosts, *sizes) for word in ("--set", one)))
    assert (refused.exit_code, "--set: TRIMTAB_POOLS__vms__MACHINE_MEMORY_GB" in refused.output) == (2, True)
    assert init("--set", "MODE").exit_code == 2
    assert not (tmp_path / "web.toml").exists()
    whole = [word for one in (hosts, *sizes, "POOLS__vms__MACHINE_MEMORY_GB=512") for word in ("--set", one)]
    assert init(*whole, "--set", f"HTTP__TOKEN={'s' * 48}").exit_code == 2
    assert not (tmp_path / "web.toml").exists()
    done = init(*whole)
    assert done.exit_code == 0, done.output
    written = settings_of(tmp_path / "web.toml")
    assert (written.fleets, str(SUBJECTS.of(written)["main"].inventory_file)) == ({}, "/var/lib/trimtab/pool.json")
    assert written.pools["vms"].machine_cores == 96


def test_what_it_says_to_do_next_works_in_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["init", "--group", "web-workers=m5a.large,2,8,1,10", "--region", "eu-west-1"])
    (step,) = [line.strip() for line in done.output.splitlines() if "set -a" in line]
    run = subprocess.run(["sh", "-c", f'{step}; echo "$TRIMTAB_CONFIG"'], capture_output=True, text=True, check=True)
    assert (run.stdout, run.stderr) == (f"{tmp_path}/trimtab.toml\n", "")
    assert list(load_settings({"TRIMTAB_CONFIG": run.stdout.strip()}).fleets) == ["web"]


def test_the_file_is_tables_with_comments_and_holds_no_secret(init: Callable[..., Result], tmp_path: Path) -> None:
    strange = 'a "b" \\ = [x] # $é'
    ledger = tmp_path / "l 1.db"
    done = init("--group", DESCRIBED, "--region", "eu-west-1", "--ledger", str(ledger), "--fleet", "batch")
    assert done.exit_code == 0, done.output
    text = (tmp_path / "web.toml").read_text("utf-8")
    found = tomllib.loads(text)
    assert found["fleets"]["batch"]["groups"]["web_workers"]["price_per_hour"] == 0.096
    assert "[fleets.batch.groups.web_workers]" in text.splitlines()
    assert "# Most VMs." in text.splitlines()
    assert "ledger" not in found
    assert settings_of(tmp_path / "web.toml").ledger_url.get_secret_value() == f"sqlite:///{ledger}"
    given = load_settings(
        {"TRIMTAB_CONFIG": str(tmp_path / "web.toml"), "TRIMTAB_FLEETS__batch__GROUPS__x": "{}"}
        | {
            f"TRIMTAB_FLEETS__batch__GROUPS__x__{name}": value
            for name, value in {
                "NAME": strange,
                "VM_TYPE": "m5a.large",
                "CORES": "2",
                "MEMORY_GB": "8.5",
                "MAX": "1",
                "PRICE_PER_HOUR": "1e-7",
            }.items()
        }
    )
    again = tmp_path / "again.toml"
    again.write_text(as_toml((path, value) for path, value in values(given) if value is not None), "utf-8")
    assert load_settings({"TRIMTAB_CONFIG": str(again)}) == given


@pytest.mark.parametrize("key", ["my-fleet", "Web", "a__b", "a_", " "])
def test_a_key_that_no_variable_can_hold_is_refused(init: Callable[..., Result], tmp_path: Path, key: str) -> None:
    done = init("--group", DESCRIBED, "--region", "eu-west-1", "--fleet", key)
    assert done.exit_code == 2
    assert "--fleet is" in done.output
    assert list(tmp_path.iterdir()) == []


def test_the_variables_are_their_owners_alone_and_nothing_else_is_left(
    init: Callable[..., Result], tmp_path: Path
) -> None:
    assert init("--group", DESCRIBED, "--region", "eu-west-1").exit_code == 0
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    # Another user's service reads the settings; the variables may get a secret.
    assert modes == {"web.env": 0o600, "web.toml": 0o644}


@pytest.mark.parametrize("name", ["web.toml", "web.env"])
def test_it_never_overwrites_unless_it_is_forced(init: Callable[..., Result], tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_text("mine")
    file.chmod(0o666)
    refused = init("--group", DESCRIBED, "--region", "eu-west-1")
    assert (refused.exit_code, file.read_text()) == (2, "mine")
    assert "--force" in refused.output
    assert init("--group", DESCRIBED, "--region", "eu-west-1", "--force").exit_code == 0
    assert stat.S_IMODE(file.stat().st_mode) & 0o022 == 0
    assert settings_of(tmp_path / "web.toml").fleets.keys() == {"web"}


def test_when_the_second_file_appears_meanwhile_the_first_is_taken_back(
    init: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked = os.link

    def link(source: Path, target: Path) -> None:
        if target.suffix == ".env":
            target.write_text("another's")
        linked(source, target)

    monkeypatch.setattr(os, "link", link)
    assert init("--group", DESCRIBED, "--region", "eu-west-1").exit_code == 2
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"web.env": "another's"}


def test_a_link_that_leads_nowhere_is_not_written_through(init: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "web.toml").symlink_to(tmp_path / "elsewhere")
    assert init("--group", DESCRIBED, "--region", "eu-west-1").exit_code == 2
    assert not (tmp_path / "elsewhere").exists()


def test_wrong_settings_are_all_named_and_nothing_is_written(init: Callable[..., Result], tmp_path: Path) -> None:
    done = init("--group", "web=m5a.large,two,8,11,10,0.1", "--region", "Europe", "--mode", "on")
    assert done.exit_code == 2
    for name in ("--mode: TRIMTAB_MODE=on", "--region: TRIMTAB_AWS__REGION=Europe", "--group: TRIMTAB", "__CORES=two"):
        assert name in done.output
    assert list(tmp_path.iterdir()) == []


def test_a_group_described_in_part_is_refused(init: Callable[..., Result]) -> None:
    done = init("--group", "web=m5a.large,2", "--region", "eu-west-1")
    assert done.exit_code == 2
    assert "give TYPE,CORES,GB,MIN,MAX,PRICE" in done.output


def test_a_group_of_the_account_needs_no_description(init: Callable[..., Result], tmp_path: Path, cloud: World) -> None:
    account = ("--region", "us-east-1", "--endpoint-url", cloud.running.endpoint)
    done = init(*account, "--group", "web-small", "--group", "web-large")
    assert done.exit_code == 0, done.output
    groups = settings_of(tmp_path / "web.toml").fleet("web").groups
    assert [(g.key, g.vm_type.name, g.vm_type.cores, g.minimum, g.maximum) for g in groups] == [
        ("web_small", "m5a.large", 2, 1, 10),
        ("web_large", "m5a.2xlarge", 8, 0, 3),
    ]
    # The fixture created things, and nothing else was changed.
    assert all(call["operation"].startswith("Create") for call in cloud.control.mutations())


def test_without_a_group_it_says_which_there_are(init: Callable[..., Result], cloud: World) -> None:
    account = ("--region", "us-east-1", "--endpoint-url", cloud.running.endpoint)
    for more in ((), ("--group", "web-medium")):
        done = init(*account, *more)
        assert done.exit_code == 2
        assert "web-large, web-small" in done.output


def test_it_asks_for_fleet_groups_queue_and_mode(init: Callable[..., Result], tmp_path: Path, cloud: World) -> None:
    account = ("--region", "us-east-1", "--endpoint-url", cloud.running.endpoint)
    done = init(*account, answers=("batch", "2,1", "1", "5m", "cloudwatch", "act"))
    assert done.exit_code == 0, done.output
    assert "1  web-large: m5a.2xlarge" in done.output
    settings = settings_of(tmp_path / "web.toml")
    fleet = settings.fleet("batch")
    assert [group.name for group in fleet.groups] == ["web-small", "web-large"]
    assert (fleet.queue_url or "").endswith("/jobs")
    assert settings.fleets["batch"].cpu_from.value == "cloudwatch"
    assert settings.fleets["batch"].queue_rule.job_core_s == 300.0
    assert settings.mode.value == "act"


def test_a_wrong_answer_is_asked_for_again_and_the_others_are_kept(
    init: Callable[..., Result], tmp_path: Path, cloud: World
) -> None:
    account = ("--region", "us-east-1", "--endpoint-url", cloud.running.endpoint)
    cut_off = init(*account, answers=("batch", "3"))
    assert (cut_off.exit_code, list(tmp_path.iterdir())) == (1, [])
    assert "give numbers from 1 to 2" in cut_off.output
    wrong_and_right = ("My Fleet", "batch", "3", "1,x", "2", "9", "jobs", "1", "long", "5m", "cpu", "", "on", "act")
    done = init(*account, answers=wrong_and_right)
    assert done.exit_code == 0, done.output
    assert done.output.count("error: ") == 8
    settings = settings_of(tmp_path / "web.toml")
    fleet = settings.fleet("batch")
    assert ([group.name for group in fleet.groups], settings.mode.value) == (["web-small"], "act")
    assert (fleet.queue_url or "").endswith("/jobs")


def test_where_the_account_cannot_be_read_it_asks_for_groups_and_queue(
    init: Callable[..., Result], tmp_path: Path
) -> None:
    nobody = ("--region", "us-east-1", "--endpoint-url", "http://127.0.0.1:9")
    small = ("workers", "m5a.large", "two", "2", "8", "1", "4")
    # The name of the first group again is no second group.
    large = ("workers", "big", "m5a.xlarge", "4", "16", "", "many", "5")
    queue = "https://sqs.us-east-1.amazonaws.com/111122223333/jobs"
    done = init(*nobody, answers=("web", *small, *large, "", "jobs", queue, "", "", ""))
    assert done.exit_code == 0, done.output
    assert "cannot be read" in done.output
    assert done.output.count("error: ") == 4
    fleet = settings_of(tmp_path / "web.toml").fleet("web")
    found = [(one.name, one.minimum, one.maximum, one.vm_type.price_per_hour) for one in fleet.groups]
    assert (found, fleet.queue_url) == ([("workers", 1, 4, 0.086), ("big", 0, 5, 0.172)], queue)
    assert init(*nobody, "--force").exit_code == 1


@pytest.mark.parametrize("again", [DESCRIBED.replace("10", "99"), "web.workers=m5a.large,2,8,1,10", "web workers"])
def test_a_group_given_twice_is_not_dropped_in_silence(init: Callable[..., Result], tmp_path: Path, again: str) -> None:
    done = init("--group", DESCRIBED, "--group", again, "--region", "eu-west-1")
    assert done.exit_code != 0
    assert "the key web_workers too" in done.output
    assert not list(tmp_path.iterdir())


def test_a_directory_that_is_not_there_is_said_before_anything_is_asked(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["init", str(tmp_path / "none" / "web.toml"), "--ask"])
    assert done.exit_code != 0
    assert "directory that is there" in done.output
    assert "Key of the fleet" not in done.output


def test_without_a_region_the_option_is_named(init: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    done = init("--group", "web-workers")
    assert (done.exit_code, "--region is" in done.output) == (2, True)


def test_an_account_that_cannot_be_read_leads_to_the_options(init: Callable[..., Result]) -> None:
    done = init("--region", "us-east-1", "--endpoint-url", "http://127.0.0.1:9", "--group", "web-workers")
    assert done.exit_code == 1
    assert all(option in done.output for option in ("--region", "--group"))


@pytest.mark.parametrize(
    ("length", "job_core_s", "horizon_s"), [("20s", 20.0, 60.0), ("2m", 120.0, 172.0), ("20m", 1200.0, 600.0)]
)
def test_the_length_of_a_job_sets_its_work_and_so_the_first_guess_of_the_horizon(
    init: Callable[..., Result], tmp_path: Path, length: str, job_core_s: float, horizon_s: float
) -> None:
    done = init("--group", f"{DESCRIBED},0.086", "--region", "eu-west-1", "--job-length", length)
    fleet = settings_of(tmp_path / "web.toml").fleets["web"]
    assert (done.exit_code, f"a horizon of {horizon_s:.0f} s" in done.output) == (0, True)
    assert (fleet.queue_rule.job_core_s, fleet.queue_rule.horizon_s) == (job_core_s, None)
    assert fleet.rule_horizon_s == pytest.approx(horizon_s)
    assert (
        "--job-length is"
        in init("--group", DESCRIBED, "--region", "eu-west-1", "--force", "--job-length", "long").output
    )


class TestPrices:
    @pytest.fixture(autouse=True)
    def newer(self, cloud: World) -> None:
        """Groups of two types that the price table lacks, and of one without any price."""
        for vm_type in ("c6i.large", "m6i.large", "m6g.large"):
            cloud.template(vm_type, vm_type)
            about = {"LaunchTemplate": {"LaunchTemplateName": vm_type, "Version": "$Latest"}}
            cloud.group(f"web-{vm_type.replace('.', '-')}", size=(0, 0, 5), **about)

    def test_the_price_list_has_what_the_table_lacks(
        self, init: Callable[..., Result], tmp_path: Path, cloud: World
    ) -> None:
        account = ("--region", "us-east-1", "--endpoint-url", cloud.running.endpoint)
        done = init(*account, "--group", "web-c6i-large", "--group", "web-small")
        assert done.exit_code == 0, done.output
        prices = {g.name: g.vm_type.price_per_hour for g in settings_of(tmp_path / "web.toml").fleet("web").groups}
        assert prices == {"web-c6i-large": 0.085, "web-small": 0.086}
        assert "from the AWS Price List" in done.output
        assert "from the table of 20" in done.output

    def test_every_group_without_a_price_is_named_with_the_option(
        self, init: Callable[..., Result], tmp_path: Path, cloud: World
    ) -> None:
        cloud.control.add_fault("access_denied", operations=["GetProducts"])
        account = ("--region", "us-east-1", "--endpoint-url", cloud.running.endpoint)
        groups = ("--group", "web-c6i-large", "--group", "web-m6g-large", "--group", "web-none")
        done = init(*account, *groups)
        assert done.exit_code == 2
        for wanted in ("--price c6i.large=DOLLARS", "--price m6g.large=DOLLARS", "--group=web-none"):
            assert wanted in done.output
        assert list(tmp_path.iterdir()) == []
        given = init(*account, *groups[:4], "--price", "c6i.large=0.085", "--price", "m6g.large=0.077")
        assert given.exit_code == 0, given.output
        prices = {
            g.vm_type.name: g.vm_type.price_per_hour for g in settings_of(tmp_path / "web.toml").fleet("web").groups
        }
        assert prices == {"c6i.large": 0.085, "m6g.large": 0.077}
        assert "--price is" in init(*account, *groups, "--force", "--price", "c6i.large=cheap").output

    def test_it_asks_for_a_price_that_nothing_has(
        self, init: Callable[..., Result], tmp_path: Path, cloud: World
    ) -> None:
        account = ("--region", "us-east-1", "--endpoint-url", cloud.running.endpoint)
        names = sorted(
            one["AutoScalingGroupName"] for one in cloud.groups.describe_auto_scaling_groups()["AutoScalingGroups"]
        )
        number = str(1 + names.index("web-m6g-large"))
        done = init(*account, answers=("web", number, "0.077", "", "", "", ""))
        assert done.exit_code == 0, done.output
        (group,) = settings_of(tmp_path / "web.toml").fleet("web").groups
        assert (group.vm_type.cores, group.vm_type.memory_gb, group.vm_type.price_per_hour) == (2, 8.0, 0.077)


def test_it_shows_the_first_decision_with_jobs_that_wait_or_an_example(
    init: Callable[..., Result], cloud: World
) -> None:
    account = ("--region", "us-east-1", "--endpoint-url", cloud.running.endpoint, "--group", "web-small")
    queue = cloud.client("sqs").get_queue_url(QueueName="jobs")["QueueUrl"]
    done = init(*account, "--queue-url", queue)
    assert re.search("first decision with 20 jobs .* web_small ", done.output)
    for number in range(3):
        cloud.client("sqs").send_message(QueueUrl=queue, MessageBody=str(number))
    done = init(*account, "--queue-url", queue, "--force")
    assert re.search("first decision, simulated: .*3 jobs wait", done.output)
