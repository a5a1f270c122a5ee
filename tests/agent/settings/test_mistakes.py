"""Every mistake in the settings is reported at once, by the name given, with its value and what to do."""

import json

import pytest

from agent.settings import load_settings
from agent.settings.kinds import expected
from agent.settings.names import leaf, name_of, paths, plain, values
from domain.errors import ConfigurationError
from tests.golden import check_wording

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


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "::1", "localhost"])
def test_a_listener_on_loopback_needs_no_networks(host: str) -> None:
    assert load_settings({"TRIMTAB_LISTENER__HOST": host}).listener.host == host


def test_a_password_is_not_shown_in_a_mistake() -> None:
    for name, value in (
        ("TRIMTAB_LEDGER__URL", "postgres://trimtab:geheim@db/ledger"),
        ("TRIMTAB_LEDGER__ULR", "postgresql+psycopg://trimtab:geheim@db/ledger"),
        ("TRIMTAB_LEDGER", '{"url": "postgresql+psycopg://trimtab:geheim@db/l"'),
    ):
        (shown, _), *_ = mistakes({name: value}).values()
        assert "geheim" not in shown
        assert "***" in shown


HOURLY = {"CRON": "0 * * * *", "FOR_MINUTES": "60"}
ONCE = {"BEGINS": "2026-11-27T18:00", "ENDS": "2026-11-28T18:00"}
OF_GROUP = "TRIMTAB_FLEETS__web__GROUPS__s__"


def fleet(environ: dict[str, str] | None = None, **given: str) -> dict[str, str]:
    """A fleet of one group, with settings of the fleet by the name below it."""
    return {**(environ or group()), **{f"TRIMTAB_FLEETS__web__{name}": value for name, value in given.items()}}


def window(**given: str) -> dict[str, str]:
    """A fleet of 1 to 10 VMs with a window."""
    return fleet(group(MIN="1"), **{f"SCHEDULE__rush__{name}": value for name, value in given.items()})


SHADOW_LISTS = ("hold,hold", "hold,", ",", "magic", "hold magic", "model:here.onnx", "model:")
NETWORKS = (
    *("10.0.0.1/8", "10.0.0.0/33", "all", "10.0.0.0/8;fd00::/8", "10.0.0.0/8,", "167772160"),
    "::ffff:10.0.0.0/104",
)
CASES: dict[str, tuple[dict[str, str], set[str]]] = {
    "values of every kind": (
        {
            "TRIMTAB_MODE": "on",
            "TRIMTAB_LISTENER__PORT": "70000",
            "TRIMTAB_AWS__READ_TIMEOUT_S": "nan",
            "TRIMTAB_PROTECT_BUSY": "maybe",
            "TRIMTAB_LEDGER": "here",
            "TRIMTAB_FLEETS__web__POLICY": "magic",
            "TRIMTAB_FLEETS__web__RAILS__BUDGET_PER_HOUR": "0",
            f"{OF_GROUP}MAX": "ten",
        },
        {
            *("MODE", "LISTENER__PORT", "AWS__READ_TIMEOUT_S", "PROTECT_BUSY", "LEDGER", "FLEETS__web__POLICY"),
            "FLEETS__web__RAILS__BUDGET_PER_HOUR",
            *(f"FLEETS__web__GROUPS__s__{name}" for name in ("MAX", "VM_TYPE", "CORES", "MEMORY_GB", "PRICE_PER_HOUR")),
        },
    ),
    "a name like no other": ({"TRIMTAB_XYZZY__QQ": "1"}, {"XYZZY__QQ"}),
    "two spellings of one key": (
        {**group(), "TRIMTAB_FLEETS__web__GROUPS__S__MAX": "12"},
        {"FLEETS__web__GROUPS__S__MAX"},
    ),
    "a key that no metric path can hold": (
        {f"TRIMTAB_FLEETS__w.b{name[len('TRIMTAB_FLEETS__web') :]}": value for name, value in group().items()},
        {"FLEETS__w.b"},
    ),
    **{
        f"the listener host {host} without networks": ({"TRIMTAB_LISTENER__HOST": host}, {"LISTENER__HOST"})
        for host in ("0.0.0.0", "::", "10.0.12.34", "agent.internal")
    },
    **{f"the networks {given}": ({"TRIMTAB_LISTENER__NETWORKS": given}, {"LISTENER__NETWORKS"}) for given in NETWORKS},
    "a minimum above the maximum": (group(MIN="11"), {"FLEETS__web__GROUPS__s__MIN"}),
    "a safe floor outside the bounds": (group(MIN="2", SAFE_FLOOR="1"), {"FLEETS__web__GROUPS__s__SAFE_FLOOR"}),
    **{
        f"a fleet of {policy} that could stay at zero": (fleet(POLICY=policy), {"FLEETS__web__POLICY"})
        for policy in ("threshold", "target-tracking")
    },
    "the low threshold above the high one": (fleet(THRESHOLD__HIGH="0.6"), {"FLEETS__web__THRESHOLD__LOW"}),
    "two fleets that manage the same group": (
        {**group("web", "a", NAME="workers"), **group("batch", "b", NAME="workers")},
        {"FLEETS__web__GROUPS__a__NAME", "FLEETS__batch__GROUPS__b__NAME"},
    ),
    "a budget below the smallest fleet": (
        fleet(group(MIN="3"), RAILS__BUDGET_PER_DAY="7"),
        {"FLEETS__web__RAILS__BUDGET_PER_DAY"},
    ),
    "a shadow that is the live policy": (fleet(SHADOW="queue-rule"), {"FLEETS__web__SHADOW"}),
    "shadows among which is the live policy": (fleet(SHADOW="hold,queue-rule,threshold"), {"FLEETS__web__SHADOW"}),
    **{f"the shadows {given}": (fleet(SHADOW=given), {"FLEETS__web__SHADOW"}) for given in SHADOW_LISTS},
    "acting on nothing": ({"TRIMTAB_MODE": "act"}, {"MODE"}),
    "one port for senders and other agents": (
        {
            "TRIMTAB_LISTENER__RELAY_HOST": "10.0.0.5",
            "TRIMTAB_LISTENER__HOST": "10.0.0.5",
            "TRIMTAB_LISTENER__NETWORKS": "10.0.0.0/16",
            "TRIMTAB_LISTENER__PORT": "2103",
        },
        {"LISTENER__RELAY_PORT"},
    ),
    "lines of other agents on this host alone": (
        {"TRIMTAB_LISTENER__RELAY_HOST": "10.0.0.5"},
        {"LISTENER__RELAY_HOST"},
    ),
    "a lease that one missed renewal ends": ({"TRIMTAB_LEADER__RENEW_S": "16"}, {"LEADER__RENEW_S"}),
    "a group called queue": (group(key="queue"), {"FLEETS__web__GROUPS__queue"}),
    "a fleet that no URL would lead to": (
        {name.replace("__web__", "__announcements__"): value for name, value in group().items()},
        {"FLEETS__announcements"},
    ),
    "a window that sets nothing": (window(**HOURLY), {"rush__MIN"}),
    "a window above the groups": (window(**HOURLY, MIN="11"), {"rush__MIN"}),
    "a window below the groups": (window(**HOURLY, MAX="0"), {"rush__MAX"}),
    "a window whose minimum is above its maximum": (window(**HOURLY, MIN="5", MAX="4"), {"rush__MIN"}),
    "a window that begins again before it ends": (
        window(**{**HOURLY, "FOR_MINUTES": "61"}, MIN="2"),
        {"rush__FOR_MINUTES"},
    ),
    "a window without an end": (window(CRON="0 * * * *", MIN="2"), {"rush__CRON"}),
    "a window without times": (window(MIN="2"), {"rush__CRON"}),
    "a window of too late years": (window(**{**ONCE, "ENDS": "9999-12-31T23:59"}, MIN="2"), {"rush__ENDS"}),
    "a window that ends as it begins": (window(**{**ONCE, "ENDS": ONCE["BEGINS"]}, MIN="2"), {"rush__ENDS"}),
    "a window with both forms of times": (window(**HOURLY, **ONCE, MIN="2"), {"rush__BEGINS"}),
    "a window with several mistakes": (
        window(CRON="x", BEGINS="18:00", TIME_ZONE="Mars/Olympus", MIN="-1"),
        {"rush__BEGINS", "rush__CRON", "rush__MIN", "rush__TIME_ZONE"},
    ),
    "checks between settings beside wrong values": (
        {**group(MIN="11"), "TRIMTAB_MODE": "on", "TRIMTAB_GRACE_S": "-1"},
        {"FLEETS__web__GROUPS__s__MIN", "MODE", "GRACE_S"},
    ),
    "no check of a value that could not be read": (group(MIN="11", MAX="ten"), {"FLEETS__web__GROUPS__s__MAX"}),
    **{
        f"signal tracking as {role} without a signal": (
            fleet(group(MIN="1"), **{role: "signal-tracking"}),
            {f"FLEETS__web__{role}"},
        )
        for role in ("POLICY", "SHADOW")
    },
    "signal tracking in a window without a signal": (window(**ONCE, POLICY="signal-tracking"), {"rush__POLICY"}),
    "a drain that a worker cannot see": (
        fleet(DRAIN_NOTICE_S="60", DRAIN_DEADLINE_S="60"),
        {"FLEETS__web__DRAIN_NOTICE_S"},
    ),
    "Prometheus without queries and with half a certificate": (
        {"TRIMTAB_PROMETHEUS__URL": "http://prometheus:9090", "TRIMTAB_PROMETHEUS__CERTIFICATE": "/a.pem"},
        {"PROMETHEUS__URL", "PROMETHEUS__CERTIFICATE"},
    ),
    "a TCP port without a token": ({"TRIMTAB_HTTP__PORT": "8080"}, {"HTTP__PORT"}),
    "a short token": ({"TRIMTAB_HTTP__TOKEN": "hunter2"}, {"HTTP__TOKEN"}),
    **{
        f"one token as {name} and {other}": (
            {
                "TRIMTAB_HTTP__PORT": "1",
                "TRIMTAB_HTTP__TOKEN": "another-token-of-letters",
                **{f"TRIMTAB_HTTP__{one}": "one-token-for-two-roles!" for one in (name, other)},
            },
            {f"HTTP__{name}"},
        )
        for name, other in (("OPERATOR_TOKEN", "TOKEN"), ("OPERATOR_TOKEN", "ASK_TOKEN"), ("ASK_TOKEN", "TOKEN"))
    },
    "jobs counted by CloudWatch without a queue": (fleet(SUBMITTED_FROM="cloudwatch"), {"FLEETS__web__SUBMITTED_FROM"}),
}
"""By the name of the case: settings, and the names that are reported, without TRIMTAB_ and what a window's share."""
MEANT = {
    "TRIMTAB_MOD": "TRIMTAB_MODE",
    "TRIMTAB_AWS__REGON": "TRIMTAB_AWS__REGION",
    "TRIMTAB_AWS_REGION": "TRIMTAB_AWS__REGION",
    "TRIMTAB_LEDGER_RETENTION_DAYS": "TRIMTAB_LEDGER__RETENTION_DAYS",
    "TRIMTAB_FLEET__web__POLICY": "TRIMTAB_FLEETS__web__POLICY",
    "TRIMTAB_FLEETS__web__RAIL__COOLDOWN_IN": "TRIMTAB_FLEETS__web__RAILS__COOLDOWN_IN_S",
    "TRIMTAB_FLEETS__web__GROUPS__s__MAXIMUM": "TRIMTAB_FLEETS__web__GROUPS__s__MAX",
    "TRIMTAB_FLEETS__web__TRESHOLD__HIGH": "TRIMTAB_FLEETS__web__THRESHOLD__HIGH",
    "TRIMTAB_FLEETS_web_GROUPS_w_NAME": "TRIMTAB_FLEETS__web__GROUPS__w__NAME",
    "TRIMTAB_FLEETS_web_us_GROUPS_w_1_PRICE_PER_HOUR": "TRIMTAB_FLEETS__web_us__GROUPS__w_1__PRICE_PER_HOUR",
    "TRIMTAB_FLEETS_web_QUEUE_RULE_SINGLE": "TRIMTAB_FLEETS__web__QUEUE_RULE__SINGLE",
}


def test_each_mistake_is_reported_by_its_name_with_its_value_and_a_remedy() -> None:
    texts = {}
    for case, (environ, names) in CASES.items():
        found = mistakes(environ)
        assert {name.removeprefix("TRIMTAB_").removeprefix("FLEETS__web__SCHEDULE__") for name in found} == names, case
        for name, (value, _) in found.items():
            is_secret = name == "TRIMTAB_LEDGER" or name.endswith("TOKEN")
            assert value == ("***" if is_secret else environ.get(name, value)), (case, name)
        texts[case] = "\n".join(f"{name}={shown[:60]}: {remedy}" for name, (shown, remedy) in sorted(found.items()))
    check_wording("settings_mistakes", texts)


def test_a_misspelled_name_is_reported_at_every_level_with_what_was_meant() -> None:
    found = {name: mistakes({name: "1"})[name] for name in MEANT}
    assert {name: (value, remedy.split()[-1].rstrip("?")) for name, (value, remedy) in found.items()} == {
        name: ("1", meant) for name, meant in MEANT.items()
    }


def test_settings_at_the_edge_of_a_check_are_taken() -> None:
    for host in ("0.0.0.0", "::", "10.0.12.34", "agent.internal"):
        load_settings({"TRIMTAB_LISTENER__HOST": host, "TRIMTAB_LISTENER__NETWORKS": "10.0.0.0/16, fd00:12::/64"})
    assert load_settings(group()).fleet("web").groups[0].minimum == 0, "a queue policy may go to zero"
    assert load_settings({"TRIMTAB_MODE": "act", "TRIMTAB_DISCOVERY__ENABLED": "true"}).fleets == {}
    load_settings(fleet(DRAIN_NOTICE_S="59", DRAIN_DEADLINE_S="60"))


def test_the_value_under_a_misspelt_name_is_shown_where_the_setting_holds_no_secret() -> None:
    misspelt = {"TRIMTAB_FLEETS__web__POLCY": "threshold", "TRIMTAB_AWS__REGON": "eu-west-1"}
    assert {name: found[0] for name, found in mistakes(misspelt).items()} == misspelt
    names = ("TRIMTAB_HTTP__TOKN", "TRIMTAB_HTTP__TOCKET", "TRIMTAB_LEDGER__ULR", "TRIMTAB_NOTHING")
    hidden = dict.fromkeys(names, "hunter2")
    assert {found[0] for found in mistakes(hidden).values()} == {"***"}


def test_a_secret_that_is_no_url_is_never_shown_right_or_wrong() -> None:
    name = "TRIMTAB_RENDER__AUTHORIZATION"
    assert mistakes({name: "hunter2"})[name][0] == "***"
    settings = load_settings({name: "Bearer hunter2"})
    assert "hunter2" not in repr(settings)
    assert [plain(value) for path, value in values(settings) if path == ("render", "authorization")] == ["***"]


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
    "a server without a database": (
        "TRIMTAB_LEDGER__URL",
        [f"postgresql://a:b@host:5{end}" for end in ("", "/", "/?a=b")],
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
        ("TRIMTAB_LEDGER__URL", "postgresql://trimtab@db/trimtab"),
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
        *_, kind = words.split(" of a ")
        if path[-1].endswith(("_file", "_map", "certificate", "private_key")):
            assert kind == "file", path
        elif path[-1] == "socket":
            assert kind == "unix socket", path
        elif words.startswith("the absolute path"):
            assert (kind, path[-1].endswith(("directory", "dir"))) == ("directory", True), path


@pytest.mark.parametrize(
    ("policy", "remedy"),
    [
        ("static:2", "give static:RATE with"),
        ("static:.", "give static:RATE with"),
        ("model:/nowhere/values.onnx", "give the subscribers"),
    ],
)
def test_a_policy_that_its_pool_cannot_have_is_named(policy: str, remedy: str) -> None:
    pool = {f"TRIMTAB_POOLS__main__{key}": "9" for key in ("MACHINES", "MACHINE_CORES", "MACHINE_MEMORY_GB")}
    ((name, (value, advice)),) = mistakes({**pool, "TRIMTAB_POOLS__main__POLICY": policy}).items()
    assert (name, value) == ("TRIMTAB_POOLS__main__POLICY", policy)
    assert advice.startswith(remedy)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("PLACEMENTS__main__FLEET", "web", "no fleet is called web"),
        ("PLACEMENTS__main__OVERSUBSCRIPTION_POOL", "sold", "no oversubscription pool is called sold"),
        ("DEFERRALS__night__CAPACITY", "fleet:web", "no fleet is called web"),
        ("DEFERRALS__night__CAPACITY", "pool:sold", "no oversubscription pool is called sold"),
        ("CLUSTERS__main__DEFERRAL_POOLS", "night", "no deferral pool is called night"),
    ],
)
def test_a_reference_to_a_subject_that_is_not_described_is_refused(name: str, value: str, words: str) -> None:
    found = mistakes({f"TRIMTAB_{name}": value})
    assert words in found[f"TRIMTAB_{name}"][1]


def test_a_fleet_that_discovery_may_find_is_not_refused() -> None:
    load_settings({"TRIMTAB_DISCOVERY__ENABLED": "true", "TRIMTAB_PLACEMENTS__main__FLEET": "web"})


def test_no_remedy_is_a_text_without_its_form() -> None:
    keys = {"TRIMTAB_LEADER__NAME", "TRIMTAB_DEPLOYMENT", "TRIMTAB_COLLECT__FLEET", "TRIMTAB_PLACEMENTS__main__FLEET"}
    for name in keys:
        assert "lower-case letters, digits, - and _" in mistakes({name: "a b/c"})[name][1]
    assert "JSON list" in mistakes({"TRIMTAB_POOLS__main__ACTIONS": "x"})["TRIMTAB_POOLS__main__ACTIONS"][1]
