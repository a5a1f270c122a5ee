"""A models directory on a disk that is full at any point of a promotion: the model before stays in use."""

from __future__ import annotations

import errno
from pathlib import Path

from agent.autoscaling.policies.learned_models import ModelShelf
from agent.models.directory import EVERY_FLEET, Champion, read_model_file
from agent.models.file import load_model
from tests.agent.models.making import ADD_M, ADD_S, preferring, reported
from tests.real.filesystem.disks import Disk
from trainer.promotion.directory import ModelsWriter

AT = "2026-03-01T12:00:00Z"


def promoted(directory: ModelsWriter, model: Path) -> Champion:
    report = reported(directory.path, model.name, of=EVERY_FLEET)
    return directory.promote(read_model_file(model), EVERY_FLEET, report, AT, load_model)


def test_a_promotion_without_room_leaves_the_model_before_at_every_point(disk: Disk, tmp_path: Path) -> None:
    first, second = preferring(tmp_path, ADD_S), preferring(tmp_path, ADD_M)
    directory = ModelsWriter(disk.path / "models")
    directory.path.mkdir()
    promoted(directory, first)
    room, refused = 0, 0
    while True:
        disk.fill(room)
        try:
            promoted(directory, second)
        except OSError as error:
            refused += error.errno == errno.ENOSPC
        champion = directory.champion(EVERY_FLEET)
        assert champion is not None
        shelf = ModelShelf(directory.path)
        shelf.look()
        assert shelf.champion is not None
        assert f"{shelf.champion.name}.onnx" == champion.model
        assert not list(directory.path.glob("*.part"))
        disk.free()
        if champion.model == second.name:
            break
        assert champion.model == first.name
        room += 1024
    assert refused > 1
    assert [line["model"] for line in directory.history()][-1] == second.name
