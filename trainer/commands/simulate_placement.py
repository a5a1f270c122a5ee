"""`trimtab simulate placement`: how many hosts a policy opens for a sequence of requests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from agent.kernel.text import columns
from domain.errors import BadInput
from trainer.commands.options import Bounds, ForceOption, check_outputs, epilog
from trainer.commands.verb import Answer, Verb


@dataclass(frozen=True, kw_only=True)
class SimulatePlacement(Verb):
    """Place containers one by one as their requests come: hosts opened, room left, containers without a host.

    The same options give the same figures. Every packing passes a checker that shares no code with the policies.
    """

    EPILOG = epilog(
        """
Policies:
  ff  bf  bf-cpu  dp  wf     first fit, best fit, best fit by cores, dot
                             product, worst fit
  reserve  reserve:X,Q,N     best fit that keeps X hosts with Q free cores for
                             requests of N containers or more
  hand                       weights of an operator's own
  FILE.json                  a learned policy, from `trimtab train placement`
""",
        """
Instances:
  S1  L219  L157             the small and the large ones of the specification
  small-7  large-7  stream-0  balanced2d-7  hetero-7  tight-219  snapshot-7
                             drawn with a seed
  churn-7                    a month in which every container ends
  internal_like-s0           a week of the VM tables of oversubscription
  FILE.json, FILE.json.gz    yours
""",
        """
Best fit leaves room on few hosts. A late request for many containers that
must not share a host then opens new ones: compare bf with reserve on L219, in
the given order and in others (--shuffles 50).
""",
        calls=(
            "trimtab simulate placement --instance S1 --policy bf --plot s1.svg",
            "trimtab simulate placement --instance L219 --policy reserve --shuffles 50",
            "trimtab simulate placement --instance churn-1 --policy wf --warm-up 7 --json",
        ),
    )

    instance: Annotated[str, "NAME|FILE", "Hosts and requests, see below."] = "S1"
    policy: Annotated[str, "NAME|FILE", "Policy that chooses hosts, see below."] = "bf"
    shuffles: Annotated[
        int, "K", "Also play the requests in K other orders, shuffles 0 to K-1.", Bounds(min=0, max=10_000)
    ] = 0
    warm_up: Annotated[float, "DAYS", "Days that host-hours and peak leave out.", Bounds(min=0.0)] = 0.0
    log: Annotated[Path | None, "FILE", "Write every decision, a line of JSON each."] = None
    plot: Annotated[Path | None, "FILE", "Draw the packing: .svg."] = None
    force: ForceOption = False

    def run(self) -> Answer:
        """Play the orders."""
        from simulator.placement.instances import instance_of
        from trainer.kit.drawing import check_plot_file
        from trainer.kit.files import replace_file
        from trainer.kit.progress import phases
        from trainer.placement.playing import play, policy_of, write_log
        from trainer.placement.report import packing_picture

        check_outputs(self.force, {"--log": self.log, "--plot": self.plot})
        if self.plot is not None:
            check_plot_file(self.plot, (".svg",))
        with phases(self.as_json) as on_phase:
            on_phase(f"playing {self.policy} on {self.instance}; the first run compiles the simulator")
            instance, policy = instance_of(self.instance), policy_of(self.policy)
            played = play(instance, policy, shuffles=self.shuffles, warm_up_days=self.warm_up)
        if self.plot is not None:
            if played.packing is None:
                remedy = "leave it out: containers of this instance end, so no packing stays"
                raise BadInput("--plot", str(self.plot), remedy)
            replace_file(self.plot, packing_picture(played.instance, played.packing))
        if self.log is not None:
            write_log(played.instance, played.policy, self.log)
        data = played.as_data()
        return Answer(data, _lines(data))


def _lines(data: dict[str, Any]) -> list[str]:
    bound, hosts = data["lower_bound"], data["hosts"]
    rows = []
    if "allocated" in data:
        gap = f", {hosts / bound - 1:+.1%}" if bound and not data["rejected"] else ""
        rows.append(("hosts", f"{hosts:,}; no packing has fewer than {bound:,} ({data['bound_by']}){gap}"))
        shares = [f"{share:.2%} of {name.split('_')[0]}" for name, share in data["allocated"].items()]
        rows.append(("allocated", ", ".join(shares)))
    else:
        mean = data["mean_hosts"]
        rows += [
            ("hosts", f"{'?' if mean is None else f'{mean:,.1f}'} on average, {data['peak']:,} at most"),
            ("host-hours", f"{data['host_hours']:,.0f} in {data['measured_hours']:,.0f} hours"),
            ("opened", f"{data['opened']:,} times; an empty host is closed again"),
        ]
    rows.append(("rejected", f"{data['rejected']:,} of {data['containers']:,} containers"))
    if data["obstacles"]:
        reasons = ", ".join(f"{name} {count:,}" for name, count in data["obstacles"].items())
        rows.append(("obstacles", f"{reasons}, each host counted once for each of them"))
    room = ", ".join(f"{count:,} with {q}" for q, count in data["headroom"].items())
    rows.append(("room left", f"open hosts by free cores, or more: {room}"))
    if "shuffles" in data:
        found = data["shuffles"]
        spread = f"5 to 95 %: {found['p5']:.0f} to {found['p95']:.0f}, range {found['range']}"
        rows.append(("other orders", f"{found['mean']:.1f} hosts on average of {found['number']:,}; {spread}"))
    return [f"{data['instance']}, {data['policy']}, {data['requests']:,} requests", "", *columns(rows)]
