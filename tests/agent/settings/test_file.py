"""The file of settings that TRIMTAB_CONFIG names: read beside variables, each mistake with its line, and no secrets."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.settings import LoadResult, Source, load_settings, read_settings
from agent.settings.file import LARGEST_BYTES, _lines, _values
from agent.settings.location import ledger_location, models_location, promotion_key_location, socket_location
from agent.settings.names import leaf, name_of, paths
from domain.decisions import Mode
from domain.errors import BadInput, ConfigurationError

FLEET = """\
mode = "act"

[aws]
region = "eu-west-1"
calls_per_minute = 1_000

[listener]
host = "10.0.0.1"
networks = ["10.0.0.0/16", "fd00:12::/64"]

[fleets.Web]
queue_rule = {horizon_s = 300, single = true}

[fleets.Web.groups.workers-s]
vm_type = "m5a.large"
cores = 2
memory_gb = 8.5
price_per_hour = 0.086
max = 10

[fleets.Web.announcements.nightly]
at = 02:30:00
days = ["mon", "fri"]
jobs = 200
job_core_s = 120

[pools.main]
machines = 5
machine_cores = 96
machine_memory_gb = 1e3
actions = [
    0.5,  # of a list over several lines
    1.0,
]
"""

Written = Callable[[str], dict[str, str]]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Write the file and return the environment that names it."""

    def write(text: str) -> dict[str, str]:
        (tmp_path / "agent.toml").write_text(text, "utf-8")
        return {"TRIMTAB_CONFIG": str(tmp_path / "agent.toml")}

    return write


def mistakes(environ: dict[str, str]) -> dict[str, tuple[str, str]]:
    """The mistakes by the part of their name after the file."""
    with pytest.raises(ConfigurationError) as caught:
        load_settings(environ)
    file = f"{environ['TRIMTAB_CONFIG']}:"
    return {one.name.removeprefix(file): (one.value, one.remedy) for one in caught.value.mistakes}


def place(loaded: LoadResult, *path: str) -> str | None:
    found = loaded.origin(path)
    return None if found is None else found.place or found.source.value


def test_every_kind_of_value_arrives_with_its_line(written: Written) -> None:
    environ = written(FLEET)
    loaded = read_settings(environ)
    settings, file = loaded.settings, environ["TRIMTAB_CONFIG"]
    fleet = settings.fleets["web"]
    assert (settings.mode, settings.aws.calls_per_minute) == (Mode.ACT, 1000)
    assert settings.listener.networks == "10.0.0.0/16,fd00:12::/64"
    assert (fleet.queue_rule.horizon_s, fleet.queue_rule.single) == (300.0, True)
    assert [(group.key, group.vm_type.memory_gb) for group in settings.fleet("web").groups] == [("workers-s", 8.5)]
    assert (fleet.announcements["nightly"].at, fleet.announcements["nightly"].days) == ("02:30", "mon,fri")
    assert getattr(settings, "pools")["main"].actions == (0.5, 1.0)  # noqa: B009 (the field comes from a decision)
    assert place(loaded, "mode") == f"{file}:1"
    assert place(loaded, "fleets", "web", "queue_rule", "single") == f"{file}:12"
    assert place(loaded, "pools", "main", "actions") == f"{file}:31"
    assert place(loaded, "grace_s") is None


def test_variables_and_credentials_go_before_the_file_key_by_key(written: Written, tmp_path: Path) -> None:
    secrets = tmp_path / "credentials"
    secrets.mkdir()
    (secrets / "trimtab_grace_s").write_text("3")
    environ = written(f"grace_s = 1\ntick_interval_s = 30\n{FLEET}")
    environ |= {
        "CREDENTIALS_DIRECTORY": str(secrets),
        "TRIMTAB_MODE": "observe",
        "TRIMTAB_AWS": '{"region": "eu-west-2"}',
    }
    environ |= {"TRIMTAB_FLEETS__WEB__GROUPS__workers-s__MAX": "7", "TRIMTAB_TICK_INTERVAL_S": ""}
    loaded = read_settings(environ)
    settings = loaded.settings
    assert (settings.mode, settings.grace_s, settings.tick_interval_s) == (Mode.OBSERVE, 3.0, 30.0)
    assert (settings.aws.region, settings.aws.calls_per_minute) == ("eu-west-2", 1000)
    (group,) = settings.fleet("web").groups
    assert (group.maximum, group.vm_type.cores) == (7, 2)
    assert place(loaded, "mode") == place(loaded, "aws", "region") == Source.ENVIRONMENT.value
    assert place(loaded, "grace_s") == Source.CREDENTIALS.value


def test_all_mistakes_are_named_at_once_by_line_or_variable(written: Written) -> None:
    environ = written(
        """\
mode = "on"
grace_s = "1_0"
http = "{}"
[flets]
[fleets.web]
polcy = "queue-rule"
[fleets.web.groups.s]
vm_type = "m5a.large"
cores = 2.5
max = 10

[[fleets.web.groups.l]]
[discovery]
interval_s = nan
"""
    )
    found = mistakes({**environ, "TRIMTAB_AWS__REGION": "Europe"})
    assert list(found) == [
        "1: mode",
        "2: grace_s",
        "3: http",
        "4: flets",
        "6: fleets.web.polcy",
        "7: fleets.web.groups.s.memory_gb",
        "7: fleets.web.groups.s.price_per_hour",
        "9: fleets.web.groups.s.cores",
        "12: fleets.web.groups.l",
        "14: discovery.interval_s",
        "TRIMTAB_AWS__REGION",
    ]
    assert found["6: fleets.web.polcy"] == (
        "queue-rule",
        "there is no such setting; did you mean fleets.web.policy?",
    )
    assert found["3: http"][1] == "write it as a table, [http]"
    assert found["9: fleets.web.groups.s.cores"] == ("2.5", "give a whole number from 1 to 1024")


def test_values_that_contradict_each_other_are_named_by_line(written: Written) -> None:
    environ = written("[fleets.web]\n\n[http]\nport = 8080\n[leader]\nlease_s = 5\n")
    assert list(mistakes({**environ, "TRIMTAB_LEADER__RENEW_S": "5"})) == [
        "1: fleets.web.groups",
        "4: http.port",
        "TRIMTAB_LEADER__RENEW_S",
    ]


def test_a_key_given_twice_in_other_capitals_is_a_mistake(written: Written) -> None:
    found = mistakes(written('drift = "adopt"\nDrift = "report"\n'))
    assert list(found) == ["2: Drift"]
    assert "1: drift" in found["2: Drift"][1]


def test_every_secret_is_refused_with_the_place_where_it_belongs(written: Written) -> None:
    secrets = [path for path in paths() if "SecretStr" in str(getattr(leaf(path), "field").annotation)]  # noqa: B009
    assert len(secrets) >= 8
    for path in secrets:
        environ = written(f'{".".join(path)} = "hunter2hunter2hunter2"\n')
        with pytest.raises(ConfigurationError) as caught:
            load_settings(environ)
        (mistake,) = caught.value.mistakes
        assert mistake.name == f"{environ['TRIMTAB_CONFIG']}:1: {'.'.join(path)}"
        assert name_of(path) in mistake.remedy
        assert name_of(path).lower() in mistake.remedy
        assert "hunter2" not in str(caught.value)
    with pytest.raises(ConfigurationError) as caught:
        load_settings(written('[http]\ntokn = "hunter2"\n[ledger]\nurll = "postgresql://a:hunter2@b/c"\n'))
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'mode = "act"\n[aws\n', "line 2"),
        (b'mode = "act"\nmode = "act"\n', "line 2"),
        (b"http.token = hunter2\n", "line 1"),
        (b'mode = "act"\nname = "\xff"\n', "UTF-8 text: line 2"),
        (b"a = " + b"[" * 100_000, "less deeply"),
        (b"#" * (LARGEST_BYTES + 1), "more than"),
        (b"a = " + b"1" * 5000, "TOML"),
    ],
)
def test_a_file_that_is_none_is_refused_without_its_contents(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "agent.toml"
    file.write_bytes(content)
    with pytest.raises(BadInput, match="TRIMTAB_CONFIG is ") as caught:
        load_settings({"TRIMTAB_CONFIG": str(file)})
    assert said in str(caught.value)
    assert str(file) in str(caught.value)
    assert "hunter2" not in str(caught.value)


def _missing(file: Path) -> None:
    file.unlink()


def _directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def _pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def _world_writable(file: Path) -> None:
    file.chmod(0o646)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_missing, "No such file"),
        (_directory, "it is a directory"),
        (_pipe, "it is a named pipe"),
        (_world_writable, "chmod o-w"),
    ],
)
def test_what_is_no_file_that_only_its_owners_write_is_refused(
    written: Written, spoil: Callable[[Path], None], said: str
) -> None:
    environ = written(FLEET)
    spoil(Path(environ["TRIMTAB_CONFIG"]))
    with pytest.raises(BadInput, match=said):
        load_settings(environ)


def test_the_directory_in_which_a_verb_is_typed_does_not_decide_which_file_is_read() -> None:
    with pytest.raises(BadInput, match="absolute path"):
        load_settings({"TRIMTAB_CONFIG": "agent.toml"})


def test_a_link_as_containers_mount_it_and_the_mark_of_an_editor_are_read(written: Written, tmp_path: Path) -> None:
    environ = written("\ufeff" + FLEET.replace("\n", "\r\n"))
    (tmp_path / "link.toml").symlink_to(environ["TRIMTAB_CONFIG"])
    loaded = read_settings({"trimtab_config": str(tmp_path / "link.toml")})
    assert place(loaded, "pools", "main", "actions") == f"{tmp_path}/link.toml:31"


def test_a_misspelt_name_of_the_file_is_answered_with_the_right_one() -> None:
    with pytest.raises(ConfigurationError, match="did you mean TRIMTAB_CONFIG"):
        load_settings({"TRIMTAB_CONFIG_FILE": "/etc/trimtab/agent.toml"})


def test_ledger_socket_and_models_are_found_by_the_file_although_another_setting_is_wrong(written: Written) -> None:
    environ = written('mode = "nonsense"\nstate_directory = "/srv/t"\n[ledger]\nurl = "sqlite:////no.db"\n')
    assert ledger_location(environ) == "sqlite:////srv/t/ledger.db"
    assert socket_location(environ) == Path("/srv/t/trimtab.sock")
    assert models_location(environ) == Path("/srv/t/models")
    environ = written('[http]\nsocket = "/run/t.sock"\n[learned]\nmodels_dir = "/m"\npromotion_key = "x"\n')
    assert (socket_location(environ), models_location(environ)) == (Path("/run/t.sock"), Path("/m"))
    assert promotion_key_location(environ) is None
    # A variable is enough where the file is broken.
    environ = written("[")
    assert socket_location({**environ, "TRIMTAB_HTTP__SOCKET": "/s"}) == Path("/s")
    assert ledger_location({**environ, "TRIMTAB_STATE_DIRECTORY": "/d"}) == "sqlite:////d/ledger.db"
    with pytest.raises(BadInput, match="TRIMTAB_CONFIG"):
        ledger_location(environ)


TEXTS = st.one_of(st.text(max_size=9), st.sampled_from(['a"""b', "'''", "# [", "\n\n", "]}"]))
SCALARS = st.one_of(st.integers(-(2**70), 2**70), st.booleans(), TEXTS)
KEYS = st.text(st.sampled_from("ab.#[]\"' \n"), min_size=1, max_size=4)
VALUES = st.one_of(SCALARS, st.lists(SCALARS, max_size=3), st.dictionaries(KEYS, SCALARS, max_size=2))
TABLES = st.dictionaries(KEYS, st.dictionaries(KEYS, VALUES, max_size=3), max_size=3)


def _quoted(text: str) -> str:
    return '"' + "".join(f"\\U{ord(c):08x}" if ord(c) < 32 or c in '"\\\x7f' else c for c in text) + '"'


def _toml(value: Any) -> str:
    """A value as a file may have it, over several lines where that is allowed, with what looks like the end of it."""
    match value:
        case dict():
            return "{" + ", ".join(f"{_quoted(key)} = {_toml(one)}" for key, one in value.items()) + "}"
        case list():
            return "[" + "".join(f"\n{_toml(one)},  # ]" for one in value) + "\n]"
        case bool():
            return str(value).lower()
        case int():
            return str(value)
    if set(value) <= set(" []#ab\n"):
        return f"'''\n{value}'''"
    return f'"""\n{_quoted(value)[1:-1]}"""'


@given(st.dictionaries(KEYS, VALUES, max_size=3), TABLES)
def test_every_value_of_a_valid_file_has_the_line_where_its_statement_begins(
    top: dict[str, Any], tables: dict[str, dict[str, Any]]
) -> None:
    text, begins = "", {}
    for table, values in {(): top, **{(key,): table for key, table in tables.items() if key not in top}}.items():
        if table:
            begins[table] = text.count("\n") + 1
            text += f"  [ {_quoted(*table)} ] # '\n"
        for key, value in values.items():
            begins[*table, key] = text.count("\n") + 1
            text += f'{_quoted(key)} = {_toml(value)} # "\n'
    found = _lines(text)
    assert {keys for keys, _ in _values(tomllib.loads(text))} <= found.keys()
    assert begins.items() <= found.items()
