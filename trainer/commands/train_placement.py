"""`trimtab train placement`: a swarm searches the vector of a scoring policy, so that few hosts are opened."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from agent.kernel.text import columns, duration_text
from domain.errors import BadInput
from trainer.commands.options import Bounds, epilog
from trainer.commands.train import Training
from trainer.commands.verb import Answer

if TYPE_CHECKING:
    from trainer.kit.jobs import Job
    from trainer.placement.runs import Config

DEFAULT_INSTANCE = "L219"


@dataclass(frozen=True, kw_only=True)
class TrainPlacement(Training):
    """Learn on which host to place containers, so that few hosts are opened in whatever order requests come.

    The same settings and seed give the same policy, on any number of workers. Exits with status 130 when stopped by
    Ctrl-C; --resume then goes on, bit for bit.
    """

    EPILOG = epilog(
        """
Instances: S1, L219, large-SEED, small-SEED, stream-SEED, balanced2d-SEED,
hetero-SEED, tight-SEED, snapshot-SEED, or a FILE.json of yours.
Families: tiers17a (for operation), tiers18a (for one filling), tiers17,
potential17, linear14, or two of them joined by +. Methods: pso (as published), cmaes, cross-entropy, random.
""",
        """
Every point meets the same orders: shuffles from 10,000 on, redrawn every
five iterations. A value is the mean of the hosts plus --rho times their range.
Shuffles 0 to 99 are left to `trimtab evaluate placement`.
""",
        """
Written to --out: per seed checkpoints/, curve.csv, tensorboard/,
policy.json and run.json; the best seed's policy.json; and summary.json. With
--front, front.json and front.svg: the policies that no other one dominates.
""",
        calls=(
            "trimtab train placement --instance S1 --family potential17 --orders nominal",
            "trimtab train placement --instance L219 --seeds 0-4 --workers 2 --out L219",
            "trimtab train placement --instance L219 --seeds 0-4 --workers 2 --out L219 --resume",
            "trimtab train placement --instance L219 --front --out front",
        ),
    )

    instance: Annotated[list[str] | None, "NAME|FILE", f"Learn on it; repeatable, else {DEFAULT_INSTANCE}."] = None
    family: Annotated[str, "NAME", "Form of the policy, see below."] = "tiers17a"
    method: Annotated[str, "NAME", "How the vector is searched, see below."] = "pso"
    population: Annotated[int, "Points an iteration."] = 24
    iterations: Annotated[int, "Iterations at most."] = 60
    patience: Annotated[int, "Iterations without gain that end it."] = 15
    sequences: Annotated[int, "Orders of each instance that a point is valued on."] = 24
    rho: Annotated[float, "Price of the range over the orders, in hosts."] = 0.3
    orders: Annotated[str, "shuffled|nominal", "Of the requests; nominal: as given, one."] = "shuffled"
    filled: Annotated[float, "Share of the orders that best fit begins."] = 0.0
    front: Annotated[bool, "Search the Pareto front of hosts, balance and concentration."] = False
    workers: Annotated[int, "Threads of a run; the result is the same for any number.", Bounds(min=1)] = 1

    def folder(self) -> Path:
        """Return the folder of the instances."""
        return Path(".trimtab/placement") / "-".join(Path(name).stem for name in self.instance or [DEFAULT_INSTANCE])

    def run(self) -> Answer:
        """Search a policy, or the front of several goals."""
        return self._front() if self.front else super().run()

    def configuration(self) -> Config:
        """Return the search."""
        from simulator.placement.instances import instance_of
        from trainer.placement.runs import Config
        from trainer.placement.samples import Samples
        from trainer.placement.search import Plan

        names = tuple(self.instance or [DEFAULT_INSTANCE])
        plan = Plan(self.family, self.method, self.population, self.iterations, patience=self.patience, seed=self.seed)
        config = Config(names, plan, Samples(self.sequences, self.rho, self.orders, self.filled))
        for name in names:
            instance_of(name)
        return config

    def plan(self) -> tuple[list[Job], dict[str, Any]]:
        """Return a run for each seed."""
        from trainer.placement.runs import jobs_of

        created = datetime.now(UTC).isoformat(timespec="seconds")
        seeds, place = self.seeds_given(), self.place
        jobs = jobs_of(self.configuration(), seeds, place, workers=self.workers, created=created, resume=self.resume)
        return jobs, {}

    def _front(self) -> Answer:
        from domain.rules.placement.policies import BF, DP, RESERVE, WF
        from simulator.placement.instances import instance_of
        from trainer.kit.files import replace_file, write_json
        from trainer.kit.progress import announce, phases
        from trainer.placement.pareto import Measurement, front_data, front_picture, search_front
        from trainer.placement.search import SELECTION

        config, place = self.configuration(), self.place
        if len(config.instances) > 1 or config.plan.method != "pso" or config.samples.filled:
            raise BadInput("--front", "with these options", "give one instance, and neither --method nor --filled")
        announce("compiling the simulator, and searching the front", self.as_json)
        place.mkdir(parents=True, exist_ok=True)
        measurement = Measurement(instance_of(config.instances[0]), config.plan.family, config.samples, self.workers)
        with phases(self.as_json) as on_phase:
            found = search_front(
                config.plan, measurement, lambda k, archive: on_phase(f"iteration {k}: {len(archive.points)} policies")
            )
        fixed = {policy.name: measurement.policies([policy], SELECTION) for policy in (BF, DP, WF, RESERVE)}
        data = front_data(found, fixed, measurement, config.plan)
        write_json(place / "front.json", data)
        replace_file(place / "front.svg", front_picture(data))
        rows: list[tuple[object, ...]] = [("", *data["objectives"])]
        rows += [(k, *(f"{value:.4g}" for value in one["values"])) for k, one in enumerate(data["front"])]
        rows += [(name, *(f"{value:.4g}" for value in values)) for name, values in data["fixed"].items()]
        volumes = f"hypervolume {data['hypervolume']:.4f}, of the fixed policies {data['hypervolume_fixed']:.4f}"
        return Answer(data, [*columns(rows), "", volumes, f"{place / 'front.json'}"])

    def lines(self, summary: dict[str, Any]) -> list[str]:
        """Return the value of each seed and the best."""
        rows: list[tuple[object, ...]] = [("seed", "value", "instance", "given order", "mean", "range", "of one core")]
        for k, seed in enumerate(summary["seeds"]):
            for name, chosen in summary["chosen_on"][k].items():
                hosts = summary["nominal"][k][name]
                time = duration_text(summary["cpu_s"][k])
                cells = (hosts, f"{chosen['mean']:.2f}", f"{chosen['range']:.0f}", time)
                rows.append((seed, f"{summary['values'][k]:.2f}", name, *cells))
        best = f"best: seed {summary['best']}, {self.place / summary['policy']}"
        return [*columns(rows), "", "mean and range: of the shuffles of the last choice, not a test", best]
