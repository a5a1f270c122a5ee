"""Runs `trimtab collect`: a VM that reports until it is stopped, or one collection for a person to look at."""

from __future__ import annotations

import socket
import time
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from threading import Event

import structlog

from agent.service.systemd import Notifier
from agent.settings import Settings
from agent.settings.model import SeriesForm
from collectors.instance_metadata import InstanceMetadata
from collectors.run_directory import RunDirectory
from collectors.sender import GraphiteSender, SenderOptions
from collectors.vm_reporter import DrainWatch, HostSampler, VmIdentity, VmReporter
from domain.errors import BadInput, CollectionFailed
from domain.samples import Sample

log = structlog.get_logger(__name__)

MAKER = Path("/sys/class/dmi/id/sys_vendor")
EC2 = "Amazon EC2"
ASK_AGAIN_S = 2.0
CPU_OVER_S = 1.0


def report_until_stopped(settings: Settings, stopping: Event, notifier: Notifier) -> None:
    """Report this VM until `stopping` is set; buffered lines are then sent for a short time.

    Raises BadInput when a setting is missing, OSError when the run directory cannot be created.
    """
    collect = settings.collect
    for name, key in (("FLEET", collect.fleet), ("GROUP", collect.group)):
        if key is None:
            raise BadInput(f"TRIMTAB_COLLECT__{name}", None, f"give the {name.lower()}'s key in the agent's settings")
    assert collect.fleet is not None
    assert collect.group is not None
    metadata = InstanceMetadata(collect.metadata_url)
    vm = collect.vm or vm_id(metadata, stopping, on_ec2=_on_ec2())
    if vm is None:
        return
    identity = VmIdentity(collect.fleet, collect.group, vm)
    with ExitStack() as stack:
        sender = GraphiteSender(
            SenderOptions(
                host=collect.host,
                port=collect.port,
                protocol=collect.protocol,
                tagged=collect.form is SeriesForm.TAGGED,
                timeout_s=collect.timeout_s,
                capacity=collect.buffer_lines,
                seed=zlib.crc32(vm.encode()),
            )
        )
        stack.callback(_finish, sender, collect.timeout_s)
        directory = None
        if collect.run_directory is not None:
            directory = RunDirectory(collect.run_directory, collect.worker_silence_s)
            directory.make()
            DrainWatch(metadata, directory, time.time, collect.metadata_interval_s).start(stopping)
        notifier.ready(f"reports {identity.fleet}.{identity.group}.{vm} to {collect.host}:{collect.port}")
        log.info("reporting", fleet=identity.fleet, group=identity.group, vm=vm, to=f"{collect.host}:{collect.port}")
        VmReporter(identity, HostSampler(), sender, time.time, settings.sample_interval_s, directory).run(stopping)
        notifier.stopping("sends buffered lines")


def vm_id(
    metadata: InstanceMetadata, stopping: Event, *, on_ec2: bool, host_name: Callable[[], str] = socket.gethostname
) -> str | None:
    """Return the VM's id: its instance id, elsewhere than on EC2 the first part of the host name.

    On EC2 the request is repeated until the metadata responds: a VM under another name is never recognised. None when
    stopped meanwhile.
    """
    warned = False
    while not stopping.is_set():
        try:
            found = metadata.instance_id()
        except CollectionFailed as error:
            if on_ec2 and not warned:
                log.warning("instance_id_not_known", error=str(error))
                warned = True
            found = None
        if found is not None or not on_ec2:
            return found or host_name().partition(".")[0]
        stopping.wait(ASK_AGAIN_S)
    return None


def _on_ec2() -> bool:
    try:
        return MAKER.read_text("utf-8", "replace").strip() == EC2
    except OSError:
        return False


def _finish(sender: GraphiteSender, timeout_s: float) -> None:
    sender.close(timeout_s)
    counters = sender.counters
    log.info("stopped", sent=counters.sent, dropped=counters.dropped, refused=counters.refused)


def measured_once(settings: Settings) -> tuple[Sample, ...]:
    """Measure this machine once, over one second."""
    collect = settings.collect
    identity = VmIdentity(collect.fleet or "fleet", collect.group or "group", collect.vm or "vm")
    directory = None
    if collect.run_directory is not None:
        directory = RunDirectory(collect.run_directory, collect.worker_silence_s)
    sampler = HostSampler()
    time.sleep(CPU_OVER_S)
    return tuple(VmReporter(identity, sampler, _Nobody(), time.time, workers=directory).measure(time.time()))


class _Nobody:
    """Takes samples and sends them nowhere."""

    def send_samples(self, samples: list[Sample]) -> None:
        """Do nothing."""
