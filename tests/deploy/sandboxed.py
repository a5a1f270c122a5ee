"""Runs a command as systemd's MemoryDenyWriteExecute= and SystemCallFilter= would let it run.

python -m tests.deploy.sandboxed COMMAND ...: a seccomp filter of the same calls, on x86-64, that answers EPERM.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

REFUSED = {
    "ioprio_set": 251,
    "mbind": 237,
    "migrate_pages": 256,
    "move_pages": 279,
    "sched_setaffinity": 203,
    "sched_setattr": 314,
    "sched_setparam": 142,
    "sched_setscheduler": 144,
    "set_mempolicy": 238,
    "setrlimit": 160,
    "chown": 92,
    "fchown": 93,
    "lchown": 94,
    "fchownat": 260,
    "chroot": 161,
    "setuid": 105,
    "setgroups": 116,
    "capset": 126,
}
COMPILES = "TRIMTAB_TEST_COMPILES"
"""An environment variable that stands for a unit without MemoryDenyWriteExecute=."""
MMAP, MPROTECT = 9, 10
PROT_WRITE, PROT_EXEC = 2, 4
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM
LOAD, JUMP_EQUAL, RETURN, AND = 0x20, 0x15, 0x06, 0x54
THIRD_ARGUMENT = 16 + 2 * 8


def filter_program(*, compiles: bool = False) -> bytes:
    """Return the filter: refused calls, writable memory mapped executable, and memory made executable later.

    compiles: as for a unit without MemoryDenyWriteExecute=, whose program makes code while it runs.
    """
    lines = [(LOAD, 0, 0, 0)]
    for number in REFUSED.values():
        lines += [(JUMP_EQUAL, 0, 1, number), (RETURN, 0, 0, REFUSE)]
    for number, flags in () if compiles else ((MMAP, PROT_WRITE | PROT_EXEC), (MPROTECT, PROT_EXEC)):
        lines += [
            (JUMP_EQUAL, 0, 5, number),
            (LOAD, 0, 0, THIRD_ARGUMENT),
            (AND, 0, 0, flags),
            (JUMP_EQUAL, 0, 1, flags),
            (RETURN, 0, 0, REFUSE),
            (RETURN, 0, 0, ALLOW),
        ]
    lines.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def restrict() -> None:
    """Put this process, and all that it starts, under the filter."""

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))

    code = filter_program(compiles=COMPILES in os.environ)
    program = Program(len(code) // 8, code)
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program))):
        if libc.prctl(*arguments, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    restrict()
    os.execvp(sys.argv[1], sys.argv[1:])
