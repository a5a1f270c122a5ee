"""A round on another machine: the record and the models in one file, in which nothing is believed."""

import errno
import io
import json
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent.commands.main import app
from agent.models.directory import read_model_file
from domain.errors import BadInput
from domain.subject import AUTOSCALING, Subject
from tests.agent.models.making import NOTHING, preferring
from tests.trainer.learning.recording import FLEET, made, recorded_in
from trainer.learning.minutes import Record, record_of
from trainer.learning.transfer import (
    ABOUT_FILE,
    Export,
    export_of,
    parts_of,
    place_models,
    place_parts,
    read_export,
    record_in,
    write_export,
)
from trainer.promotion.directory import ModelsWriter

AT = "2026-11-23T00:00:00Z"
OWN = Subject(AUTOSCALING, FLEET)


@pytest.fixture(scope="module")
def recorded() -> Record:
    return record_of(FLEET, [inputs for inputs, _ in made(0.2)])


@pytest.fixture
def models(tmp_path: Path) -> ModelsWriter:
    """A directory with a champion of the fleet."""
    directory = ModelsWriter(tmp_path / "models")
    directory.force(read_model_file(preferring(tmp_path, NOTHING)), OWN, "for the test", AT, lambda path: None)
    return directory


def test_an_export_gives_back_record_champion_and_idle_time(
    recorded: Record, models: ModelsWriter, tmp_path: Path
) -> None:
    write_export(export_of(recorded, 90.0, models), tmp_path / "web.tar")
    found = read_export(tmp_path / "web.tar", OWN)
    assert record_in(found, "web.tar") == (recorded, 90.0)
    place_models(found.models, tmp_path / "elsewhere")
    there = ModelsWriter(tmp_path / "elsewhere")
    champion = models.champions()[OWN]
    assert there.champions() == {OWN: champion}
    assert there.check(OWN, champion) == models.check(OWN, champion)


def test_an_export_is_the_same_each_time_and_reads_from_a_folder_too(
    recorded: Record, models: ModelsWriter, tmp_path: Path
) -> None:
    for name in ("one.tar", "two.tar"):
        write_export(export_of(recorded, 90.0, models), tmp_path / name)
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    with tarfile.open(tmp_path / "one.tar") as tar:
        tar.extractall(tmp_path / "folder", filter="data")
    assert read_export(tmp_path / "folder", OWN) == read_export(tmp_path / "one.tar", OWN)


def test_a_champion_that_is_there_stays(recorded: Record, models: ModelsWriter, tmp_path: Path) -> None:
    found = export_of(recorded, 90.0, models)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "champion.json").write_text("{}")
    place_models(found.models, tmp_path / "own")
    assert (tmp_path / "own" / "champion.json").read_text() == "{}"


@pytest.mark.parametrize("name", ["../outside.onnx", "models/other.txt", "/etc/passwd", "models/../x.onnx"])
def test_a_file_that_has_no_place_in_an_export_is_refused(name: str, recorded: Record, tmp_path: Path) -> None:
    path = tmp_path / "web.tar"
    write_export(export_of(recorded, 90.0, ModelsWriter(tmp_path / "none")), path)
    with tarfile.open(path, "a") as tar:
        member = tarfile.TarInfo(name)
        member.size = 1
        tar.addfile(member, io.BytesIO(b"x"))
    with pytest.raises(BadInput, match="has no place in one"):
        read_export(path, OWN)


def test_what_is_cut_or_no_export_is_refused(recorded: Record, tmp_path: Path) -> None:
    path = tmp_path / "web.tar"
    write_export(export_of(recorded, 90.0, ModelsWriter(tmp_path / "none")), path)
    path.write_bytes(path.read_bytes()[:600])
    with pytest.raises(BadInput, match="--from"):
        read_export(path, OWN)
    path.write_text("no tar file")
    with pytest.raises(BadInput, match="--export FILE"):
        read_export(path, OWN)


def test_the_command_exports_and_checks_elsewhere(tmp_path: Path) -> None:
    ledger, tar = recorded_in(tmp_path / "ledger.db", made(0.3)), tmp_path / "web.tar"
    models = ["--models-dir", str(tmp_path / "none")]
    call = ["learn", "autoscaling", FLEET, "--ledger", str(ledger), "--export", str(tar), *models]
    written = CliRunner().invoke(app, call)
    assert written.exit_code == 0, written.output
    assert "19 minutes of fleet web" in written.output
    checked = CliRunner().invoke(app, ["learn", "autoscaling", FLEET, "--from", str(tar), "--check", *models])
    assert checked.exit_code == 4
    other = CliRunner().invoke(app, ["learn", "autoscaling", "other", "--from", str(tar), "--check", *models])
    assert other.exit_code == 2
    assert "web, not of autoscaling other" in other.output


CLUSTER = Subject("admission", "main")
PARTS = {
    "earlier.csv.gz": b"e",
    "earlier.csv.gz.json": b"{}",
    "later/main.json": b"j",
    "later/main_w3_usage.csv.gz": b"u",
}


def exported(path: Path, parts: Mapping[str, bytes] = PARTS) -> Path:
    write_export(Export(CLUSTER, {"sla": 0.01}, parts, {}), path)
    return path


def test_the_parts_of_a_record_come_whole_into_the_folder_of_a_round(tmp_path: Path) -> None:
    found = read_export(exported(tmp_path / "main.tar"), CLUSTER)
    assert (found.about, found.parts) == ({"sla": 0.01}, PARTS)
    place_parts(found, tmp_path / "round")
    assert parts_of(tmp_path / "round", ("earlier.csv.gz", "earlier.csv.gz.json", "later")) == PARTS
    (tmp_path / "round" / "earlier.csv.gz").write_bytes(b"own")
    place_parts(found, tmp_path / "round")
    assert (tmp_path / "round" / "earlier.csv.gz").read_bytes() == b"own"


def test_a_folder_of_weeks_of_which_one_cannot_be_written_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round takes a folder that is there for whole."""
    found, write = read_export(exported(tmp_path / "main.tar"), CLUSTER), Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        if path.name == "main_w3_usage.csv.gz":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return write(path, data)

    with monkeypatch.context() as disk:
        disk.setattr(Path, "write_bytes", full)
        with pytest.raises(OSError, match="No space left"):
            place_parts(found, tmp_path / "round")
    assert not (tmp_path / "round" / "later").exists()
    place_parts(found, tmp_path / "round")
    assert sorted(one.name for one in (tmp_path / "round" / "later").iterdir()) == ["main.json", "main_w3_usage.csv.gz"]


@pytest.mark.parametrize("name", ["later/../x.json", "other.csv.gz", "later/a/x.json", "/later.csv.gz", "later/.json"])
def test_a_part_that_has_no_place_in_a_round_is_refused(name: str, tmp_path: Path) -> None:
    path = exported(tmp_path / "main.tar", {name: b"x"})
    with pytest.raises(BadInput, match="has no place in one"):
        read_export(path, CLUSTER)


def test_the_export_of_another_subject_or_of_a_fleet_is_refused(recorded: Record, tmp_path: Path) -> None:
    path = exported(tmp_path / "main.tar")
    with pytest.raises(BadInput, match="not of oversubscription"):
        read_export(path, Subject("oversubscription", "main"))
    with pytest.raises(BadInput, match="autoscaling web --export FILE"):
        read_export(path, OWN)
    write_export(export_of(recorded, 90.0, ModelsWriter(tmp_path / "none")), path)
    with pytest.raises(BadInput, match="admission main --export FILE"):
        read_export(path, CLUSTER)


def test_the_export_of_another_version_or_without_a_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / ABOUT_FILE).write_text(json.dumps({"format": 1, "fleet": FLEET, "idle_s": 90.0}))
    with pytest.raises(BadInput, match="it is of format 1, not 2"):
        read_export(tmp_path, OWN)
    with pytest.raises(BadInput, match=r"recorded\.json\.gz is missing"):
        record_in(Export(OWN, {"idle_s": 90.0}, {}, {}), "web.tar")
