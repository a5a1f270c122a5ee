"""`trimtab inputs try`: what lines become under a map, before the map is used."""

import json
import socket
import time
from pathlib import Path

import pytest

from agent.autoscaling.inputs import behind_map, inputs_of, series_of
from agent.settings import load_settings
from collectors.listener import GraphiteListener
from domain.clock import WallClock
from tests.agent.commands.conftest import Trimtab
from tests.agent.service.site import FLEET
from tests.waiting import until

RULES = '[[series]]\nfrom = "collectd.{host}.busy"\nto = "cpu_percent"\n'
LINES = "collectd.web-1.busy 71 1000\ncollectd.web-2.busy 10 1000\nother.thing 1 1000\ncollectd.web-1.busy x 1000\n"


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    rules, lines = tmp_path / "inputs.toml", tmp_path / "lines.txt"
    rules.write_text(RULES)
    lines.write_text(LINES)
    return str(lines), str(rules)


def test_each_line_is_shown_with_what_becomes_of_it(trimtab: Trimtab, files: tuple[str, str]) -> None:
    lines, rules = files
    shown = trimtab("inputs", "try", lines, "--map", rules, "--host", "web-1=web.workers.i-0abc", "--replay", "--json")
    assert shown.exit_code == 1
    found = json.loads(shown.stdout)
    assert found["readings"] == [{"path": "trimtab.web.workers.i-0abc.cpu_percent", "value": 71.0, "at": 1000.0}]
    assert found["refused"] == {"bad_value": 1, "foreign_path": 1, "unknown_vm": 1}
    assert "not in the inventory" in found["becomes"]["collectd.web-2.busy"]
    assert found["becomes"]["other.thing"] == "no rule takes it"


def test_a_map_under_which_nothing_arrives_has_exit_status_1(trimtab: Trimtab, files: tuple[str, str]) -> None:
    lines, rules = files
    shown = trimtab("inputs", "try", lines, "--map", rules)
    assert shown.exit_code == 1
    assert "readings: 0 of 4 lines" in shown.stdout


def test_without_a_map_it_says_how_to_give_one(trimtab: Trimtab, files: tuple[str, str]) -> None:
    shown = trimtab("inputs", "try", files[0])
    assert shown.exit_code == 2
    assert "--map" in shown.stderr


ODD = """\
trimtab.web.queue.waiting 12 {now}
trimtab.web.queue.waiting 13 {now}000
trimtab.web.queue.waiting 1_4 {now}
trimtab.web.queue.waiting nan {now}
trimtab.web.queue.waiting +Inf {now}
trimtab.web.queue.waiting -1 {now}
trimtab.web.queue.waiting 2e6 {now}
trimtab.web.queue.waiting 12 {now} extra
trimtab.web.queue.waiting 12 {old}
trimtab..web.queue.waiting 5 {now}
trimtab.waiting;fleet=web 6 {now}
trimtab.batch.queue.waiting 6 {now}
trimtab.web.workers.i-0abc.cpu_percent;env=prod 50 {now}
trimtab.web.workers.i-0abc.cpu_percent 400 {now}
trimtab.web.workers.i-0abc.busy_cores 3 {now}
trimtab.web.workers.ip-10-0-0-1.ec2.internal.cpu_percent 40 {now}
collectd.web-1.busy;dc=eu 71 {now}
collectd.web-1.example.com.busy 71 {now}
collectd.web-1.busy 71 {now}000
collectd.web-1.busy 400 {now}
collectd.web-1.busy 71 {now}
"""


def test_it_refuses_exactly_what_the_listener_refuses(
    trimtab: Trimtab, tmp_path: Path, files: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, rules = files
    given = {**FLEET, "TRIMTAB_INPUT_MAP": rules, "TRIMTAB_STATE_DIRECTORY": str(tmp_path)}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    Path(rules).write_text(RULES + '[hosts]\nweb-1 = "web.workers.i-0abc"\n')
    now = int(time.time())
    text = ODD.format(now=now, old=now - 3600)
    Path(lines).write_text(text)
    settings = load_settings(given)
    sink = behind_map(series_of(settings, [settings.fleet("web")]), inputs_of(settings))
    listener = GraphiteListener(sink, WallClock().now, port=0)
    listener.start()
    counters = listener.counters
    with socket.create_connection(("127.0.0.1", listener.port), 5.0) as sender:
        sender.sendall(text.encode())
        until(lambda: counters.accepted + counters.rejected_total == text.count("\n"))
    listener.stop()
    tried = trimtab("inputs", "try", lines, "--json")
    found = json.loads(tried.stdout)
    assert found["refused"] == {reason.value: count for reason, count in counters.rejected.items() if count}
    assert found["refused"] == {
        "future": 2,
        "bad_value": 1,
        "not_finite": 2,
        "out_of_range": 3,
        "implausible": 2,
        "malformed": 1,
        "too_old": 1,
        "foreign_path": 7,
    }
    assert [reading["path"] for reading in found["readings"]] == [
        "trimtab.web.queue.waiting",
        "trimtab.web.workers.i-0abc.cpu_percent",
    ]
    assert found["becomes"]["trimtab.web.queue.waiting"] == (
        "taken as it is; refused: 1 of 8 future, 1 of 8 bad_value, 2 of 8 not_finite, 1 of 8 out_of_range, "
        "1 of 8 implausible, 1 of 8 too_old"
    )
    assert found["becomes"]["trimtab.batch.queue.waiting"] == "refused: 1 of 1 foreign_path"
    assert found["becomes"]["collectd.web-1.busy;dc=eu"].startswith("no rule takes it")
    assert tried.exit_code == 1
    Path(lines).write_text(f"trimtab.web.queue.waiting 12 {now}\n")
    assert trimtab("inputs", "try", lines).exit_code == 0
