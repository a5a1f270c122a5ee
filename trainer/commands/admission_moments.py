"""`trimtab admission moments`: how many cores a deployment will hold, by what was seen of it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated

from agent.kernel.text import columns, duration_text
from domain.errors import BadInput
from domain.units import HOUR_S
from trainer.commands.options import Bounds, epilog
from trainer.commands.verb import Answer, Verb

if TYPE_CHECKING:
    from domain.rules.admission.population import Population


@dataclass(frozen=True, kw_only=True)
class AdmissionMoments(Verb):
    """Print mean and variance of a deployment's cores at times to come.

    Data: E and V, lists in the order of --at; third, the third central moment, or null where it is not known. A
    deployment that is gone counts as 0 cores. Nothing is asked of a cluster: this is the belief that an admission is
    decided by.
    """

    EPILOG = epilog(
        """
Moments (--moments):
  ab        death at zero cores by a hazard closure; the usual choice
  ab_fast   the same, with mean scale-out rate and size in the closure
  na        death at zero ignored: never too low
  paper     as published: all factors independent
  volterra  nearly exact, takes seconds
""",
        calls=(
            "trimtab admission moments --size 4 --at 24,720",
            "trimtab admission moments --size 4 --preset mine.toml",
            "trimtab admission moments --preset T --size 4 --deaths 5 --core-hours 60 \\",
            "    --scale-outs 3 --hours 20 --extra-cores 7 --size-draws 4 --at 1,24 --json",
        ),
    )

    size: Annotated[int, "CORES", "Cores now.", Bounds(min=1)]
    at: Annotated[str, "HOURS,...", "Hours from now."] = "1,24,168,730,8760,26280"
    preset: Annotated[str, "T|H|K|FILE", "Population of deployments."] = "T"
    moments: Annotated[str, "NAME", "How they are computed, see below."] = "ab"
    deaths: Annotated[float, "Cores that ended, one by one."] = 0.0
    core_hours: Annotated[float, "Hours that all its cores ran, together."] = 0.0
    scale_outs: Annotated[float, "Requests for more cores, refused ones too."] = 0.0
    hours: Annotated[float, "Hours in the cluster."] = 0.0
    gap_hours: Annotated[float, "Hours of gaps between scale-outs seen before it came."] = 0.0
    extra_cores: Annotated[float | None, "Sum of (cores - 1) over the sizes drawn, the first too; else size - 1."] = (
        None
    )
    size_draws: Annotated[float, "Sizes drawn, the first too."] = 1.0

    def run(self) -> Answer:
        """Compute the curve."""
        import numpy as np

        from domain.rules.admission.population import Statistics
        from trainer.admission.volterra import curve_of

        wanted = hours_of(self.at)
        extra = float(self.size - 1) if self.extra_cores is None else self.extra_cores
        horizons_h, order = np.unique(np.array(wanted), return_inverse=True)
        seen = (self.deaths, self.core_hours, self.scale_outs, self.hours, self.gap_hours, extra, self.size_draws)
        try:
            curve = curve_of(population_of(self.preset), Statistics(self.size, *seen), horizons_h, self.moments)
        except BadInput as error:
            if error.field == "horizons_h":
                remedy = "give hours above 0 with commas between them, such as 1,24,720"
                raise BadInput("--at", self.at, remedy) from None
            known = any(error.field == field.name for field in fields(self))
            option = f"--{error.field.replace('_', '-')}" if known else error.field
            raise BadInput(option, error.value, error.remedy) from None
        mean, variance = curve.mean[order].tolist(), curve.variance[order].tolist()
        third = None if curve.third is None else curve.third[order].tolist()
        rows: list[tuple[object, ...]] = [("in", "mean cores", "standard deviation")]
        rows += [
            (duration_text(at_h * HOUR_S), f"{e:.4g}", f"{v**0.5:.4g}")
            for at_h, e, v in zip(wanted, mean, variance, strict=True)
        ]
        data = {"preset": self.preset, "moments": self.moments, "at": wanted, "E": mean, "V": variance, "third": third}
        return Answer(data, columns(rows))


def population_of(preset: str) -> Population:
    """Return a preset's population, or that of a cluster in a file; BadInput for neither."""
    from domain.rules.admission.population import POPULATIONS

    if preset in POPULATIONS:
        return POPULATIONS[preset]
    # The simulator takes a second to load, which a preset need not wait for.
    from simulator.admission import cluster_of

    return cluster_of(preset).population


def hours_of(text: str) -> list[float]:
    """Return the hours of `1,24,720`; BadInput otherwise."""
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise BadInput("--at", text, "give hours with commas between them, such as 1,24,720") from None
