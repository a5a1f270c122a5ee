"""Every mistake in the settings is reported at once, by the name given, with its value and what to do."""

import json

import pytest

from agent.settings import load_settings
from agent.settings.kinds import expected
from agent.settings.names import leaf, name_of, paths, plain, values
from domain.errors import ConfigurationError

WRONG = "no:sense!"


def group(fleet: str = "web", key: str = "s", **changes: str) -> dict[str, str]:
    values = {"VM_TYPE": "m5a.large", "CORES": "2", "MEMORY_GB": "8", "PRICE_PER_HOUR": "0.1", "MAX": "10", **changes}
    return {f"TRIMTAB_FLEETS__{fleet}__GROUPS__{key}__{name}": value for name, value in values.items()}


def mistakes(environ: dict[str, str]) -> dict[str, tuple[str, str]]:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(environ)
    found = {mistake.name: (mistake.value, mistake.remedy) for mistake in caught.value.mistakes}
    assert len(found) == len(caught.value.mistakes), "no name is reported twice"
    for name, (value, remedy) in found.items():
        assert f"  {name}={value}: {remedy}" in str(caught.value).splitlines()
    return found


def test_every_setting_wrong_at_once_gives_one_message_that_lists_all() -> None:
    keys = {"fleets": "web", "groups": "workers_s", "clusters": "main", "pools": "east", "subscribers": "ours"}
    keys["placements"] = "south"
    keys["deferrals"] = "night"
    keys |= {"announcements": "nightly", "schedule": "evening", "signals": "rps"}
    wrong = list(paths(keys))
    assert len(wrong) > 60
    found = mistakes({name_of(path): WRONG for path in wrong})
    assert set(found) == {name_of(path) for path in wrong}
    for path in wrong:
        node = leaf(path)
        assert node is not None
        assert node.field is not None
        shown = "***" if "SecretStr" in str(node.field.annotation) else WRONG
        assert found[name_of(path)] == (shown, f"give {expected(path[-1], node.field)}")


def test_remedies_speak_of_the_setting_and_not_of_its_parser() -> None:
    found = mistakes(
        {
            "TRIMTAB_MODE": "on",
            "TRIMTAB_LISTENER__PORT": "70000",
            "TRIMTAB_AWS__READ_TIMEOUT_S": "nan",
            "TRIMTAB_PROTECT_BUSY": "maybe",
            "TRIMTAB_LEDGER": "here",
            "TRIMTAB_FLEETS__web__POLICY": "magic",
            "TRIMTAB_FLEETS__web__RAILS__BUDGET_PER_HOUR": "0",
            "TRIMTAB_FLEETS__web__GROUPS__s__MAX": "ten",
        }
    )
    required = "required: give"
    below = "TRIMTAB_FLEETS__web__GROUPS__s"
    assert found == {
        "TRIMTAB_MODE": ("on", "give one of observe, act"),
        "TRIMTAB_LISTENER__PORT": ("70000", "give a whole number from 0 to 65535"),
        "TRIMTAB_AWS__READ_TIMEOUT_S": ("nan", "give a number of seconds above 0 and at most 60"),
        "TRIMTAB_PROTECT_BUSY": ("maybe", "give true or false"),
        "TRIMTAB_LEDGER": ("***", "give its parts one by one, as TRIMTAB_LEDGER__<name>..., or one JSON object"),
        "TRIMTAB_FLEETS__web__POLICY": (
            "magic",
            "give one of queue-rule, learned, threshold, target-tracking, signal-tracking, hold, or an installed "
            "policy (docs/operate/plug-ins.md)",
        ),
        "TRIMTAB_FLEETS__web__RAILS__BUDGET_PER_HOUR": (
            "0",
            "give a number of dollars per hour above 0 and at most 1000000",
        ),
        f"{below}__MAX": ("ten", "give a whole number from 0 to 10000"),
        f"{below}__VM_TYPE": ("(not set)", f"{required} an EC2 instance type such as m5a.large"),
        f"{below}__CORES": ("(not set)", f"{required} a whole number from 1 to 1024"),
        f"{below}__MEMORY_GB": ("(not set)", f"{required} a number of GB above 0 and at most 65536"),
        f"{below}__PRICE_PER_HOUR": ("(not set)", f"{required} a number of dollars per hour from 0 to 1000"),
    }


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("TRIMTAB_MOD", "TRIMTAB_MODE"),
        ("TRIMTAB_AWS__REGON", "TRIMTAB_AWS__REGION"),
        ("TRIMTAB_AWS_REGION", "TRIMTAB_AWS__REGION"),
        ("TRIMTAB_LEDGER_RETENTION_DAYS", "TRIMTAB_LEDGER__RETENTION_DAYS"),
        ("TRIMTAB_FLEET__web__POLICY", "TRIMTAB_FLEETS__web__POLICY"),
        ("TRIMTAB_FLEETS__web__RAIL__COOLDOWN_IN", "TRIMTAB_FLEETS__web__RAILS__COOLDOWN_IN_S"),
        ("TRIMTAB_FLEETS__web__GROUPS__s__MAXIMUM", "TRIMTAB_FLEETS__web__GROUPS__s__MAX"),
        ("TRIMTAB_FLEETS__web__TRESHOLD__HIGH", "TRIMTAB_FLEETS__web__THRESHOLD__HIGH"),
    ],
)
def test_a_misspelled_name_is_reported_at_every_level_with_what_was_meant(name: str, meant: str) -> None:
    assert mistakes({name: "1"})[name] == ("1", f"there is no such setting; did you mean {meant}?")


def test_a_name_like_no_other_points_to_the_reference_page() -> None:
    assert mistakes({"TRIMTAB_XYZZY__QQ": "1"}) == {
        "TRIMTAB_XYZZY__QQ": ("1", "there is no such setting; see docs/operate/configuration.md")
    }


def test_two_spellings_of_one_key_are_ambiguous_and_refused() -> None:
    environ = {**group(key="s"), "TRIMTAB_FLEETS__web__GROUPS__S__MAX": "12"}
    value, remedy = mistakes(environ)["TRIMTAB_FLEETS__web__GROUPS__S__MAX"]
    assert value == "12"
    assert remedy == (
        "keep one of TRIMTAB_FLEETS__web__GROUPS__s__MAX and TRIMTAB_FLEETS__web__GROUPS__S__MAX: "
        "names, keys of fleets and groups too, are read in lower case"
    )


def test_a_key_that_no_metric_path_can_hold_is_refused() -> None:
    found = mistakes({f"TRIMTAB_FLEETS__w.b{name[len('TRIMTAB_FLEETS__web') :]}": v for name, v in group().items()})
    assert found["TRIMTAB_FLEETS__w.b"][1].startswith("choose a key of lower-case letters, digits, - and _")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.12.34", "agent.internal"])
def test_a_listener_that_others_reach_must_name_the_networks_that_may_send(host: str) -> None:
    (found,) = mistakes({"TRIMTAB_LISTENER__HOST": host}).items()
    name, (value, remedy) = found
    assert (name, value) == ("TRIMTAB_LISTENER__HOST", host)
    assert remedy.startswith("give TRIMTAB_LISTENER__NETWORKS as well, the subnets of your VMs")
    load_settings({"TRIMTAB_LISTENER__HOST": host, "TRIMTAB_LISTENER__NETWORKS": "10.0.0.0/16, fd00:12::/64"})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "::1", "localhost"])
def test_a_listener_on_loopback_needs_no_networks(host: str) -> None:
    assert load_settings({"TRIMTAB_LISTENER__HOST": host}).listener.host == host


@pytest.mark.parametrize(
    "networks",
    ["10.0.0.1/8", "10.0.0.0/33", "all", "10.0.0.0/8;fd00::/8", "10.0.0.0/8,", "167772160", "::ffff:10.0.0.0/104"],
)
def test_networks_that_are_none_are_refused(networks: str) -> None:
    value, remedy = mistakes({"TRIMTAB_LISTENER__NETWORKS": networks})["TRIMTAB_LISTENER__NETWORKS"]
    assert value == networks
    assert remedy.startswith("give networks separated by commas, such as 10.0.0.0/16")


def test_a_password_is_not_shown_in_a_mistake() -> None:
    for name, value in (
        ("TRIMTAB_LEDGER__URL", "postgres://trimtab:geheim@db/ledger"),
        ("TRIMTAB_LEDGER__ULR", "postgresql+psycopg://trimtab:geheim@db/ledger"),
        ("TRIMTAB_LEDGER", '{"url": "postgresql+psycopg://trimtab:geheim@db/l"'),
    ):
        (shown, _), *_ = mistakes({name: value}).values()
        assert "geheim" not in shown
        assert "***" in shown


class TestChecksBetweenSettings:
    def test_minimum_above_maximum(self) -> None:
        found = mistakes(group(MIN="11"))
        assert found == {"TRIMTAB_FLEETS__web__GROUPS__s__MIN": ("11", "give at most MAX=10")}

    def test_a_safe_floor_outside_the_bounds(self) -> None:
        found = mistakes(group(MIN="2", SAFE_FLOOR="1"))
        assert found == {
            "TRIMTAB_FLEETS__web__GROUPS__s__SAFE_FLOOR": ("1", "give a whole number from MIN=2 to MAX=10")
        }

    @pytest.mark.parametrize("policy", ["threshold", "target-tracking"])
    def test_a_fleet_that_could_go_to_zero_and_never_come_back(self, policy: str) -> None:
        environ = {**group(), "TRIMTAB_FLEETS__web__POLICY": policy}
        value, remedy = mistakes(environ)["TRIMTAB_FLEETS__web__POLICY"]
        assert value == policy
        assert remedy == (
            "give at least one group a MIN of 1 or more, or use the policy queue-rule: "
            f"with no VM there is no CPU to measure, and {policy} would never start one again"
        )

    def test_a_queue_policy_may_go_to_zero(self) -> None:
        assert load_settings(group()).fleet("web").groups[0].minimum == 0

    def test_the_low_threshold_above_the_high_one(self) -> None:
        environ = {**group(), "TRIMTAB_FLEETS__web__THRESHOLD__HIGH": "0.6"}
        assert mistakes(environ) == {
            "TRIMTAB_FLEETS__web__THRESHOLD__LOW": ("0.75", "give at most THRESHOLD__HIGH=0.6")
        }

    def test_two_fleets_that_would_manage_the_same_group(self) -> None:
        found = mistakes({**group("web", "a", NAME="workers"), **group("batch", "b", NAME="workers")})
        assert found == {
            "TRIMTAB_FLEETS__web__GROUPS__a__NAME": (
                "workers",
                "give each Auto Scaling group to one place only; batch.groups.b has it too",
            ),
            "TRIMTAB_FLEETS__batch__GROUPS__b__NAME": (
                "workers",
                "give each Auto Scaling group to one place only; web.groups.a has it too",
            ),
        }

    def test_a_budget_that_the_smallest_fleet_already_exceeds(self) -> None:
        environ = {**group(MIN="3"), "TRIMTAB_FLEETS__web__RAILS__BUDGET_PER_DAY": "7"}
        value, remedy = mistakes(environ)["TRIMTAB_FLEETS__web__RAILS__BUDGET_PER_DAY"]
        assert value == "7"
        assert remedy == "give at least 7.2, what the groups cost at their MIN, or lower a MIN"

    def test_a_shadow_that_is_the_live_policy(self) -> None:
        environ = {**group(), "TRIMTAB_FLEETS__web__SHADOW": "queue-rule"}
        assert mistakes(environ) == {
            "TRIMTAB_FLEETS__web__SHADOW": ("queue-rule", "name another policy than queue-rule, or leave it out")
        }

    def test_shadows_among_which_is_the_live_policy_one_twice_or_one_that_is_none(self) -> None:
        name = "TRIMTAB_FLEETS__web__SHADOW"
        environ = {**group(), name: "hold,queue-rule,threshold"}
        assert mistakes(environ) == {name: ("hold,queue-rule,threshold", "give hold,threshold")}
        for wrong in ("hold,hold", "hold,", ",", "magic", "hold magic", "model:here.onnx", "model:"):
            ((value, remedy),) = mistakes({**group(), name: wrong}).values()
            assert (value, remedy[:44]) == (wrong, "give policies separated by commas, each one ")

    def test_acting_on_nothing(self) -> None:
        remedy = (
            "describe a fleet first, by TRIMTAB_FLEETS__<fleet>__..., or discover tagged fleets by "
            "TRIMTAB_DISCOVERY__ENABLED=true, or set observe"
        )
        assert mistakes({"TRIMTAB_MODE": "act"}) == {"TRIMTAB_MODE": ("act", remedy)}
        assert load_settings({"TRIMTAB_MODE": "act", "TRIMTAB_DISCOVERY__ENABLED": "true"}).fleets == {}

    def test_a_lease_that_one_missed_renewal_ends(self) -> None:
        remedy = "give at most half of TRIMTAB_LEADER__LEASE_S=30: a failed renewal is repeated"
        assert mistakes({"TRIMTAB_LEADER__RENEW_S": "16"}) == {"TRIMTAB_LEADER__RENEW_S": ("16", remedy)}

    def test_a_group_called_queue(self) -> None:
        found = mistakes(group(key="queue"))
        remedy = "choose another key: queue is the queue's segment in metric paths"
        assert found["TRIMTAB_FLEETS__web__GROUPS__queue"][1] == remedy

    def test_a_fleet_that_no_url_would_lead_to(self) -> None:
        environ = {name.replace("__web__", "__announcements__"): value for name, value in group().items()}
        remedy = "choose another key: /api/v1/autoscaling/announcements is not a fleet's URL"
        assert mistakes(environ)["TRIMTAB_FLEETS__announcements"][1] == remedy

    def test_what_is_wrong_with_a_window(self) -> None:
        def window(**given: str) -> dict[str, str]:
            """The remedy beside each setting of a window of a fleet of 1 to 10 VMs."""
            below = "TRIMTAB_FLEETS__web__SCHEDULE__rush"
            environ = group(MIN="1") | {f"{below}__{name}": value for name, value in given.items()}
            return {name.removeprefix(f"{below}__"): remedy for name, (_, remedy) in mistakes(environ).items()}

        hourly = {"CRON": "0 * * * *", "FOR_MINUTES": "60"}
        assert window(**hourly) == {"MIN": "give at least one of MIN, MAX, POLICY and PAUSE: the window sets nothing"}
        assert window(**hourly, MIN="11") == {"MIN": "give at most 10, which the fleet's groups hold together"}
        assert window(**hourly, MAX="0") == {"MAX": "give at least 1, which the fleet's groups hold together"}
        assert window(**hourly, MIN="5", MAX="4") == {"MIN": "give at most MAX=4"}
        assert window(CRON="0 * * * *", FOR_MINUTES="61", MIN="2") == {
            "FOR_MINUTES": "give at most 60: then CRON=0 * * * * begins it again"
        }
        assert window(CRON="0 * * * *", MIN="2") == {"CRON": "give FOR_MINUTES as well"}
        assert window(MIN="2") == {"CRON": "give CRON and FOR_MINUTES, or BEGINS and ENDS"}
        (remedy,) = window(BEGINS="2026-11-27T18:00", ENDS="9999-12-31T23:59", MIN="2").values()
        assert "of the years 1970 to 9998" in remedy
        assert window(BEGINS="2026-11-27T18:00", ENDS="2026-11-27T18:00", MIN="2") == {
            "ENDS": "give a later time than BEGINS=2026-11-27T18:00"
        }
        once = {"BEGINS": "2026-11-27T18:00", "ENDS": "2026-11-28T18:00"}
        assert window(**hourly, **once, MIN="2") == {
            "BEGINS": "give CRON and FOR_MINUTES, or BEGINS and ENDS, not both"
        }
        several = window(CRON="x", BEGINS="18:00", TIME_ZONE="Mars/Olympus", MIN="-1")
        assert sorted(several) == ["BEGINS", "CRON", "MIN", "TIME_ZONE"]

    def test_they_are_reported_together_with_wrong_values(self) -> None:
        found = mistakes({**group(MIN="11"), "TRIMTAB_MODE": "on", "TRIMTAB_GRACE_S": "-1"})
        assert set(found) == {"TRIMTAB_FLEETS__web__GROUPS__s__MIN", "TRIMTAB_MODE", "TRIMTAB_GRACE_S"}

    def test_nothing_is_said_about_a_value_that_could_not_be_read(self) -> None:
        found = mistakes(group(MIN="11", MAX="ten"))
        assert found == {"TRIMTAB_FLEETS__web__GROUPS__s__MAX": ("ten", "give a whole number from 0 to 10000")}


def test_a_secret_that_is_no_url_is_never_shown_right_or_wrong() -> None:
    name = "TRIMTAB_RENDER__AUTHORIZATION"
    assert mistakes({name: "hunter2"})[name][0] == "***"
    settings = load_settings({name: "Bearer hunter2"})
    assert "hunter2" not in repr(settings)
    assert [plain(value) for path, value in values(settings) if path == ("render", "authorization")] == ["***"]


TIMES = ("BEGINS", "ENDS")


@pytest.mark.parametrize("role", ["POLICY", "SHADOW", "SCHEDULE__sale__POLICY"])
def test_signal_tracking_needs_a_signal(role: str) -> None:
    name = f"TRIMTAB_FLEETS__web__{role}"
    sale = {f"TRIMTAB_FLEETS__web__SCHEDULE__sale__{key}": f"2026-11-2{day}T08:00" for day, key in enumerate(TIMES)}
    found = mistakes({**group(MIN="1"), **(sale if "SCHEDULE" in role else {}), name: "signal-tracking"})
    assert found == {name: ("signal-tracking", "describe a signal, by ...__SIGNALS__<name>__TARGET")}


@pytest.mark.parametrize(("notice_s", "is_wrong"), [("59", False), ("60", True), ("600", True)])
def test_a_worker_cannot_take_the_whole_drain_to_see_it(notice_s: str, is_wrong: bool) -> None:
    notice, deadline = (f"TRIMTAB_FLEETS__web__DRAIN_{name}_S" for name in ("NOTICE", "DEADLINE"))
    given = {**group(), notice: notice_s, deadline: "60"}
    if is_wrong:
        assert mistakes(given) == {notice: (notice_s, "give less than DRAIN_DEADLINE_S=60")}
    else:
        load_settings(given)


def test_prometheus_needs_queries_and_both_halves_of_a_certificate() -> None:
    given = {"TRIMTAB_PROMETHEUS__URL": "http://prometheus:9090", "TRIMTAB_PROMETHEUS__CERTIFICATE": "/a.pem"}
    found = mistakes(given)
    assert set(found) == set(given)
    assert "TRIMTAB_INPUT_MAP" in found["TRIMTAB_PROMETHEUS__URL"][1]
    assert "PRIVATE_KEY" in found["TRIMTAB_PROMETHEUS__CERTIFICATE"][1]


def test_jobs_cannot_be_counted_by_cloudwatch_without_a_queue() -> None:
    name = "TRIMTAB_FLEETS__web__SUBMITTED_FROM"
    remedy = "give QUEUE_URL, the queue whose messages CloudWatch counts, or reports"
    assert mistakes({**group(), name: "cloudwatch"}) == {name: ("cloudwatch", remedy)}


FLEET = group()
PASSES_OTHERWISE = {
    "underscores in a whole number": ("TRIMTAB_FLEETS__web__GROUPS__s__CORES", ["1_0", "0x10", "\u0661", "1e1", "2.5"]),
    "underscores in a number": (
        "TRIMTAB_FLEETS__web__GROUPS__s__PRICE_PER_HOUR",
        ["0_1.5", "1_0", "\u0661", "Infinity"],
    ),
    "no number at the top": ("TRIMTAB_GRACE_S", ["1_0", "\u0665"]),
    "a database beside the program, or in memory": (
        "TRIMTAB_LEDGER__URL",
        [
            "sqlite:///ledger.db",
            "sqlite://",
            "sqlite:///",
            "sqlite:///:memory:",
            "sqlite:////",
            "sqlite:////a/b.db?mode=ro",
        ],
    ),
    "a port that is none in a database": (
        "TRIMTAB_LEDGER__URL",
        [f"postgresql+psycopg://a:b@host:{port}/trimtab" for port in ("notaport", "99999", "0", "-1")],
    ),
    "a port that is none": (
        "TRIMTAB_RENDER__URL",
        [f"https://graphite.example.org:{port}/x" for port in ("notaport", "99999", "0", "-1", "", "80 ", "1_0")],
    ),
    "no host": (
        "TRIMTAB_AWS__ENDPOINT_URL",
        ["http://", "http://:5000", "http:///x", "http://a..b", "http://a\u200bb/"],
    ),
    "a queue that is no address": ("TRIMTAB_FLEETS__web__QUEUE_URL", ["https://sqs:port/1/a", "https://sqs/a\tb"]),
    "notices from no address": ("TRIMTAB_INTERRUPTION_QUEUE_URL", ["https://[::1/a", "https://sqs:70000/1/a"]),
    "metadata from no address": ("TRIMTAB_COLLECT__METADATA_URL", ["http://169.254.169.254:x"]),
    "a host with a port, or none": (
        "TRIMTAB_COLLECT__HOST",
        ["graphite:2003", "::::", "..", "1.2.3", "999.1.1.1", "-a", "a b"],
    ),
    "a line break in a name": ("TRIMTAB_FLEETS__web__GROUPS__s__NAME", ["web\nworkers", "web\n", "a\x1bb", "a\u2028b"]),
    "a line break in a path": ("TRIMTAB_STATE_DIRECTORY", ["/var/lib/trimtab\n", "/var/lib/\x07"]),
    "a line break in a policy": ("TRIMTAB_POOLS__main__POLICY", ["rates:/a\nb", "model:/a\rb"]),
    "digits of another script": ("TRIMTAB_ALARMS__SNS_TOPIC_ARN", ["arn:aws:sns:eu-west-1:" + 12 * "\u0661" + ":ops"]),
    "a region of another script": ("TRIMTAB_AWS__REGION", ["eu-west-\u0661"]),
    "a webhook in the clear": (
        "TRIMTAB_ALARMS__WEBHOOK_URL",
        [
            "http://hooks.example.org/KEY",
            "http://10.0.0.1/KEY",
            "http://localhost.example.org/KEY",
            "http://127.0.0.1@evil/K",
        ],
    ),
    "a webhook that is no address": (
        "TRIMTAB_ALARMS__WEBHOOK_URL",
        ["https://host:abc/KEY", "https://host:99999/KEY", "https:///KEY", "https://[::1/KEY", "https://a..b/KEY"],
    ),
}


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in PASSES_OTHERWISE.values() for value in values],
)
def test_what_reads_otherwise_than_it_looks_is_refused(name: str, value: str) -> None:
    pool = {f"TRIMTAB_POOLS__main__{key}": "9" for key in ("MACHINES", "MACHINE_CORES", "MACHINE_MEMORY_GB")}
    found = mistakes({**FLEET, **(pool if "POOLS" in name else {}), name: value})
    assert list(found) == [name]
    assert found[name][1].startswith("give ")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TRIMTAB_FLEETS__web__GROUPS__s__CORES", " 2 "),
        ("TRIMTAB_FLEETS__web__GROUPS__s__PRICE_PER_HOUR", "1e-1"),
        ("TRIMTAB_FLEETS__web__GROUPS__s__NAME", "web workers (a/b)"),
        ("TRIMTAB_LEDGER__URL", "postgresql+psycopg://a:b%2F@[::1]:5432/trimtab?sslmode=verify-full"),
        ("TRIMTAB_LEDGER__URL", "postgresql+psycopg:///trimtab"),
        ("TRIMTAB_LEDGER__URL", "sqlite:////var/lib/trimtab/ledger.db"),
        ("TRIMTAB_RENDER__URL", "http://user:pass@graphite_1.internal:8080/render"),
        ("TRIMTAB_AWS__ENDPOINT_URL", "http://[::1]:5000"),
        ("TRIMTAB_COLLECT__HOST", "fd00::1"),
        ("TRIMTAB_COLLECT__HOST", "ip-10-0-0-1.ec2.internal"),
        ("TRIMTAB_ALARMS__WEBHOOK_URL", "https://hooks.example.org:8443/services/T00/KEY?a=b"),
        ("TRIMTAB_ALARMS__WEBHOOK_URL", "http://127.0.0.1:9000/KEY"),
        ("TRIMTAB_ALARMS__WEBHOOK_URL", "http://[::1]/KEY"),
    ],
)
def test_what_is_meant_as_it_looks_is_taken(name: str, value: str) -> None:
    load_settings({**FLEET, name: value})


def test_numbers_within_json_are_held_to_the_same() -> None:
    body = '{"vm_type": "m5a.large", "cores": true, "memory_gb": "8_0", "price_per_hour": 0.1, "max": 10}'
    below = "TRIMTAB_FLEETS__web__GROUPS__s"
    found = mistakes({below: body})
    assert set(found) == {f"{below}__CORES", f"{below}__MEMORY_GB"}
    pool = {"machines": 9, "machine_cores": 9, "machine_memory_gb": 9, "actions": ["0_5", 1.0]}
    assert list(mistakes({"TRIMTAB_POOLS__main": json.dumps(pool)})) == ["TRIMTAB_POOLS__main__ACTIONS"]


def test_settings_of_files_and_sockets_are_not_called_directories() -> None:
    for path in paths():
        node = leaf(path)
        assert node is not None
        assert node.field is not None
        words = expected(path[-1], node.field)
        if path[-1].endswith(("_file", "_map", "certificate", "private_key")):
            assert words == "the absolute path of a file", path
        elif path[-1] == "socket":
            assert words == "the absolute path of a unix socket"
        elif words.startswith("the absolute path of"):
            assert words == "the absolute path of a directory"
            assert path[-1].endswith(("directory", "dir")), path


@pytest.mark.parametrize(
    ("policy", "remedy"),
    [
        ("static:2", "give static:RATE with a rate above 0 and up to 1"),
        ("static:.", "give static:RATE with a rate above 0 and up to 1"),
        ("model:/nowhere/values.onnx", "give the subscribers the places 0, 1, ..."),
    ],
)
def test_a_policy_that_its_pool_cannot_have_is_named(policy: str, remedy: str) -> None:
    pool = {f"TRIMTAB_POOLS__main__{key}": "9" for key in ("MACHINES", "MACHINE_CORES", "MACHINE_MEMORY_GB")}
    ((name, (value, advice)),) = mistakes({**pool, "TRIMTAB_POOLS__main__POLICY": policy}).items()
    assert (name, value) == ("TRIMTAB_POOLS__main__POLICY", policy)
    assert advice.startswith(remedy)
