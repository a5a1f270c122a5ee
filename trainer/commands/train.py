"""`trimtab train` for every decision: runs of several seeds; a stopped one is resumed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from domain.errors import BadInput
from trainer.commands.options import CHECKED_FOLDER, Bounds, ConfigOption, RayOption, settings_of, write_config
from trainer.commands.verb import INTERRUPTED, Answer, Verb

if TYPE_CHECKING:
    from trainer.kit.jobs import Job


@dataclass(frozen=True, kw_only=True)
class Training(Verb):
    """The options of every decision: seeds, the folder, and the processors of the runs."""

    seed: Annotated[int, "Seed of the training, exploration included.", Bounds(min=0)] = 0
    seeds: Annotated[str | None, "LIST", "Several seeds instead, such as 0-4: a run each."] = None
    out: Annotated[Path | None, "FOLDER", "Where to write; else a folder in .trimtab for the task.", CHECKED_FOLDER] = (
        None
    )
    resume: Annotated[bool, "Continue the runs in --out, exactly where they stopped."] = False
    at_once: Annotated[int | None, "Runs at once.", Bounds(min=1)] = 1
    ray: RayOption = None
    config_file: ConfigOption = None

    def plan(self) -> tuple[list[Job], dict[str, Any]]:
        """Return the runs, and the fields of their configuration without an option."""
        raise NotImplementedError

    def train(self, jobs: Sequence[Job]) -> dict[str, Any]:
        """Do the runs and return their summary."""
        runs = import_module(f"trainer.{self.ctx.info_name}.runs")
        options = {"at_once": self.at_once or 1, "ray": self.ray, "silent": self.as_json}
        summary: dict[str, Any] = runs.train_all(jobs, self.place, **options)
        return summary

    def lines(self, summary: dict[str, Any]) -> list[str]:
        """Return a summary as text."""
        raise NotImplementedError

    def folder(self) -> Path:
        """Return where to write without --out."""
        raise NotImplementedError

    @property
    def place(self) -> Path:
        """Where to write."""
        return self.out or self.folder()

    def seeds_given(self) -> list[int]:
        """Return the seeds, one for each run; on the command line --seed goes before `seeds` of --config."""
        from trainer.kit.jobs import seeds_of

        sources = {name: self.ctx.get_parameter_source(name) for name in ("seed", "seeds")}
        by_hand = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
        if len(by_hand) == 2:
            raise BadInput("--seeds", str(self.seeds), f"give it or --seed {self.seed}, not both")
        return seeds_of(self.seeds) if self.seeds and by_hand != ["seed"] else [self.seed]

    def changes(self, configuration: type, given: Sequence[str] | None, options: Sequence[str]) -> dict[str, Any]:
        """Return the fields of a configuration by --set and --config; BadInput for one that is an option."""
        from trainer.kit.fields import changes_of, pairs_of

        found = changes_of("--set", configuration, pairs_of("--set", settings_of(self.ctx, given)))
        for field in options:
            if field in found:
                raise BadInput("--set", field, f"it is an option, --{field}")
        return found

    def run(self) -> Answer:
        """Train, and write the options to the folder."""
        jobs, settings = self.plan()
        write_config(self.ctx, self.place, settings)
        with resumable(self.place):
            summary = self.train(jobs)
        status = 0 if all(summary.get("feasible", ())) else 1
        return Answer({"directory": str(self.place), **summary}, self.lines(summary), status)


@contextmanager
def resumable(place: Path) -> Iterator[None]:
    """End with a line that names --resume, and status 130, when the user stops the block."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"stopped; continue with the same command and --resume (in {place})", err=True)
        raise typer.Exit(INTERRUPTED) from None
