"""How a job is described, over HTTP and in messages of the submit queue alike."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictBool

from agent.decisions.http import NUMERIC
from agent.deferral.records import (
    ID,
    LATEST_AT,
    LONGEST_ID,
    LONGEST_PAYLOAD,
    MOST_CORES,
    MOST_STEPS,
    VERSION,
    JobOrder,
)

JobId = Annotated[str, Field(min_length=1, max_length=LONGEST_ID, pattern=ID)]
Moment = Annotated[float, Field(ge=0, le=LATEST_AT, allow_inf_nan=False), NUMERIC]


class JobMessage(BaseModel):
    """A job that may start at any time in its window, and then runs to its end."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    version: Annotated[int, Field(ge=VERSION, le=VERSION, description="Of this description: 1."), NUMERIC] = VERSION
    job_id: Annotated[
        JobId, Field(description="Of your choice; the same one again gets the same answer.", examples=["night-17"])
    ]
    cores: Annotated[int, Field(ge=1, le=MOST_CORES, description="Cores that it holds.", examples=[4]), NUMERIC]
    duration_steps: Annotated[
        int,
        Field(ge=1, le=MOST_STEPS, description="Steps that it runs at most; an hour each by default.", examples=[2]),
        NUMERIC,
    ]
    earliest_at: Annotated[
        Moment | None,
        Field(description="Not started before, in seconds since the epoch; not given: now.", examples=[1795300000]),
    ] = None
    latest_at: Annotated[Moment, Field(description="Not started later.", examples=[1795340000])]
    clamp_late: Annotated[
        StrictBool | None, Field(description="Accept an earliest start that has passed; not given: as the pool is set.")
    ] = None
    requested_by: Annotated[str, Field(max_length=LONGEST_ID, description="Who asks; it stands in the record.")] = ""
    payload: Annotated[
        str, Field(max_length=LONGEST_PAYLOAD, description="Text that its worker gets; it is not looked into.")
    ] = ""

    def order(self) -> JobOrder:
        """Return it as the pool takes it."""
        return JobOrder(
            self.job_id,
            self.cores,
            self.duration_steps,
            self.latest_at,
            self.earliest_at,
            self.clamp_late,
            self.requested_by,
            self.payload,
        )
