"""Small real file systems: a tmpfs, or ext4 on a loop device, which are full, broken and mended as disks are.

They are mounted in a mount namespace that the process of the tests enters once: nobody else sees them, and the kernel
unmounts them and gives the loop device back when that process ends, by SIGKILL too.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

_CLONE_NEWNS = 0x20000
_MS_REC, _MS_SLAVE = 0x4000, 0x80000
_LOOP_CTL_GET_FREE = 0x4C82
_LOOP_MAJOR = 7
_KIB = {"tmpfs": 3 * 1024, "ext4": 8 * 1024}
"""The size of each: the least that leaves room for a ledger, and for the journal that ext4 keeps."""


class Disk:
    """A file system of a few MB at `path`; kind: `tmpfs` or `ext4`.

    Blocks of ext4 are as large as pages of memory, as mkfs makes them from 512 MB on.
    """

    def __init__(self, kind: str, path: Path, block_bytes: int = 4096) -> None:
        self.kind, self.path, self.block_bytes = kind, path, block_bytes
        self._image = path.with_name(f"{path.name}.img")
        self._ballast = path / "ballast"

    def room(self) -> int:
        """Bytes that are free."""
        return shutil.disk_usage(self.path).free

    def fill(self, leave: int = 0) -> None:
        """Write a file until only `leave` bytes are free."""
        with self._ballast.open("ab", buffering=0) as file:
            try:
                while (free := self.room() - leave) > 0 or not leave:
                    file.write(bytes(max(free, 512)))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def free(self) -> None:
        """Make room again."""
        self._ballast.unlink()

    def fail(self) -> None:
        """Let ext4 meet an error, after which the kernel lets nothing be written."""
        device = next(line.split()[0] for line in Path("/proc/mounts").read_text().splitlines() if self._is_at(line))
        Path(f"/sys/fs/ext4/{os.path.basename(device)}/trigger_fs_error").write_text("a test")

    def mend(self) -> None:
        """Unmount ext4, check it and mount it again, as a person does after an error."""
        self.unmount()
        _run("fsck.ext4", "-p", "-f", str(self._image), statuses=(0, 1))
        self.mount()

    def make(self) -> None:
        """Make the file system and mount it."""
        self.path.mkdir()
        if self.kind == "ext4":
            with self._image.open("wb") as image:
                image.truncate(_KIB["ext4"] * 1024)
            _run("mkfs.ext4", "-q", "-m", "0", "-b", str(self.block_bytes), str(self._image))
        self.mount()

    def mount(self) -> None:
        """Mount it."""
        _enter_namespace()
        if self.kind == "tmpfs":
            _run("mount", "-t", "tmpfs", "-o", f"size={_KIB['tmpfs']}k", "none", str(self.path))
        else:
            _make_free_loop_device()
            _run("mount", "-o", "loop,errors=remount-ro", str(self._image), str(self.path))

    def unmount(self, *options: str) -> None:
        """Unmount it."""
        _run("umount", *options, str(self.path))

    def _is_at(self, line: str) -> bool:
        return line.split()[1] == str(self.path)


@contextlib.contextmanager
def small_disk(kind: str, path: Path, block_bytes: int = 4096) -> Iterator[Disk]:
    """Make a file system and mount it while the block runs."""
    disk = Disk(kind, path, block_bytes)
    disk.make()
    try:
        yield disk
    finally:
        # Lazily: what a failed test still holds open must not keep it.
        disk.unmount("--lazy")


@functools.cache
def _enter_namespace() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) or libc.mount(b"none", b"/", None, _MS_REC | _MS_SLAVE, None):
        raise OSError(ctypes.get_errno(), "no mount namespace")


def _make_free_loop_device() -> None:
    """Make the device file of a free loop device where the container has none for it."""
    with open("/dev/loop-control") as control:
        number = fcntl.ioctl(control, _LOOP_CTL_GET_FREE)
    with contextlib.suppress(FileExistsError):
        os.mknod(f"/dev/loop{number}", stat.S_IFBLK | 0o660, os.makedev(_LOOP_MAJOR, number))


def _run(*command: str, statuses: tuple[int, ...] = (0,)) -> None:
    # Where only root looks for programs.
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
    program = str(shutil.which(command[0], path=path))
    done = subprocess.run([program, *command[1:]], capture_output=True, text=True, check=False)
    if done.returncode not in statuses:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr}{done.stdout}")
