"""Graphite's pickle protocol: messages of a length and a pickled list of (path, (time, value)), as relays send them.

Nothing is unpickled by Python's own module: it calls what a message names, and a message of thirty bytes can make it
take all memory. What is read here is lists, tuples, texts and numbers, by the operations that write those, and any
other operation ends the connection. Each operation takes at least a byte, so a message's length bounds all of it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from collectors.base import SampleSink
from collectors.intake import IntakeCounters
from domain.errors import RejectReason
from domain.samples import MAX_LINE_BYTES

HEADER: Final = struct.Struct("!I")
MAX_MESSAGE_BYTES: Final = 2**20
"""A relay sends 500 readings in a message, of some 50 kB."""
MOST_READINGS: Final = 2**16
"""More than a message of that length holds where none is written as a mere repetition of another."""

_LONGEST_NUMBER = 64
_LITTLE = {1: struct.Struct("<B"), 2: struct.Struct("<H"), 4: struct.Struct("<I"), 8: struct.Struct("<Q")}
_SIGNED = struct.Struct("<i")
_DOUBLE = struct.Struct(">d")
_MARK = object()
_TEXT_LENGTHS = {0x8C: 1, 0x58: 4, 0x8D: 8, 0x55: 1, 0x54: 4, 0x43: 1, 0x42: 4, 0x8E: 8}
"""Bytes of the length that stands before a text: short, usual and long, as texts, as strings of Python 2, as bytes."""
_OF_UTF8 = frozenset((0x8C, 0x58, 0x8D))


class NotReadings(ValueError):
    """A message is not a pickled list of readings."""


class PickleReader:
    """Takes one stream of messages and hands the readings to the sink, a message at a time.

    It holds at most one unfinished message of `MAX_MESSAGE_BYTES`. After a message that cannot be read nobody knows
    where the next begins: `broken` says so, and the connection is to be closed. peer: the sender.
    """

    __slots__ = ("_counters", "_held", "_now", "_sink", "broken", "peer")

    def __init__(self, sink: SampleSink, counters: IntakeCounters, now: Callable[[], float], peer: str = "") -> None:
        self.peer, self.broken = peer, False
        self._sink, self._counters, self._now = sink, counters, now
        self._held = bytearray()

    @property
    def held_bytes(self) -> int:
        """Bytes of the unfinished message held now."""
        return len(self._held)

    def feed(self, chunk: bytes) -> int:
        """Take the next bytes of the stream; return how many readings of them the sink took."""
        if self.broken:
            return 0
        self._held += chunk
        taken, start = 0, 0
        while len(self._held) - start >= HEADER.size:
            (length,) = HEADER.unpack_from(self._held, start)
            if length > MAX_MESSAGE_BYTES:
                self._refuse(RejectReason.TOO_LONG, b"a message of %d bytes" % length)
                return taken
            end = start + HEADER.size + length
            if len(self._held) < end:
                break
            try:
                taken += self._take(readings_of(bytes(self._held[start + HEADER.size : end])))
            except NotReadings as fault:
                self._refuse(RejectReason.MALFORMED, str(fault).encode())
                return taken
            start = end
        del self._held[:start]
        return taken

    def close(self) -> None:
        """End the stream: an unfinished message is refused."""
        if self._held:
            self._refuse(RejectReason.MALFORMED, b"an unfinished message")

    def _refuse(self, reason: RejectReason, example: bytes) -> None:
        self._counters.refuse(reason, example)
        self._held.clear()
        self.broken = True

    def _take(self, readings: list[tuple[bytes, float, float]]) -> int:
        paths, values, times = [], [], []
        for path, value, at in readings:
            # What a line could not hold, a path of a message must not hold either.
            if path.split() != [path] or not path.isascii() or b"\0" in path:
                self._counters.refuse(RejectReason.MALFORMED, path)
                continue
            paths.append(path)
            values.append(value)
            times.append(at)
        if not paths:
            return 0
        refusals = self._sink.append(paths, values, times, self._now(), self.peer)
        taken = len(paths) - len(refusals)
        self._counters.accepted += taken
        for position, reason in refusals:
            self._counters.refuse(reason, b"%b %r %r" % (paths[position], values[position], times[position]))
        return taken


def readings_of(message: bytes) -> list[tuple[bytes, float, float]]:
    """Return (path, value, time) of each reading of a message; NotReadings for anything else."""
    try:
        held = _loaded(message)
    except (struct.error, IndexError, KeyError, UnicodeDecodeError, ValueError, OverflowError) as fault:
        raise NotReadings(f"{type(fault).__name__}: {fault}"[:200]) from None
    if not isinstance(held, list | tuple):
        raise NotReadings("the message is not a list")
    if len(held) > MOST_READINGS:
        raise NotReadings(f"{len(held)} readings, more than {MOST_READINGS}")
    found = []
    for one in held:
        match one:
            case (bytes() as path, (int() | float() as at, int() | float() | bytes() as value)):
                # A text may stand in many entries at the price of two bytes each, so none is ever copied.
                if len(path) > MAX_LINE_BYTES or (isinstance(value, bytes) and len(value) > _LONGEST_NUMBER):
                    raise NotReadings("a path or a value is too long")
                try:
                    found.append((path, float(value), float(at)))
                except (ValueError, OverflowError):
                    raise NotReadings("a value is not a number") from None
            case _:
                raise NotReadings("an entry is not (path, (time, value))")
    return found


def _loaded(message: bytes) -> Any:
    """Return what a pickle holds, of the operations that write lists, tuples, texts (as bytes) and numbers."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    place = 0
    while True:
        code = message[place]
        place += 1
        if code in _TEXT_LENGTHS:
            width = _TEXT_LENGTHS[code]
            (length,) = _LITTLE[width].unpack_from(message, place)
            place += width
            text = message[place : place + length]
            if len(text) < length:
                raise NotReadings("a text is cut off")
            if code in _OF_UTF8:
                text.decode()
            stack.append(text)
            place += length
        elif code == 0x71:  # BINPUT
            memo[message[place]] = stack[-1]
            place += 1
        elif code == 0x94:  # MEMOIZE
            memo[len(memo)] = stack[-1]
        elif code == 0x47:  # BINFLOAT
            stack.append(_DOUBLE.unpack_from(message, place)[0])
            place += 8
        elif code == 0x4A:  # BININT
            stack.append(_SIGNED.unpack_from(message, place)[0])
            place += 4
        elif code in (0x4B, 0x4D):  # BININT1, BININT2
            width = 1 if code == 0x4B else 2
            stack.append(_LITTLE[width].unpack_from(message, place)[0])
            place += width
        elif code == 0x86:  # TUPLE2
            stack[-2:] = [tuple(_values(stack[-2:], 2))]
        elif code == 0x28:  # MARK
            stack.append(_MARK)
        elif code == 0x74:  # TUPLE
            stack.append(tuple(_since_mark(stack)))
        elif code in (0x5D, 0x29):  # EMPTY_LIST, EMPTY_TUPLE
            stack.append([] if code == 0x5D else ())
        elif code == 0x6C:  # LIST
            stack.append(_since_mark(stack))
        elif code in (0x65, 0x61):  # APPENDS, APPEND
            items = _since_mark(stack) if code == 0x65 else _values([stack.pop()], 1)
            if not isinstance(stack[-1], list):
                raise NotReadings("an append to a value that is not a list")
            stack[-1] += items
        elif code in (0x68, 0x6A):  # BINGET, LONG_BINGET
            width = 1 if code == 0x68 else 4
            stack.append(memo[_LITTLE[width].unpack_from(message, place)[0]])
            place += width
        elif code == 0x72:  # LONG_BINPUT
            memo[_LITTLE[4].unpack_from(message, place)[0]] = stack[-1]
            place += 4
        elif code == 0x8A:  # LONG1
            length = message[place]
            stack.append(int.from_bytes(message[place + 1 : place + 1 + length], "little", signed=True))
            place += 1 + length
        elif code in b"FILSVpg":  # the operations of protocol 0, whose argument is a line of text
            end = message.index(b"\n", place)
            _line(code, message[place:end], stack, memo)
            place = end + 1
        elif code == 0x80:  # PROTO
            place += 1
        elif code == 0x95:  # FRAME
            place += 8
        elif code == 0x2E:  # STOP
            (held,) = _values(stack, 1)
            return held
        else:
            raise NotReadings(f"operation 0x{code:02x} writes neither list, tuple, text nor number")


def _line(code: int, argument: bytes, stack: list[Any], memo: dict[int, Any]) -> None:
    match chr(code):
        case "F":
            stack.append(float(argument))
        case "I" | "L":
            stack.append(int(argument.rstrip(b"L")))
        case "S":
            if len(argument) < 2 or argument[:1] != argument[-1:] or b"\\" in argument:
                raise NotReadings("a text has no quotation marks, or escapes")
            stack.append(argument[1:-1])
        case "V":
            argument.decode("ascii")
            stack.append(argument)
        case "p":
            memo[int(argument)] = stack[-1]
        case _:
            stack.append(memo[int(argument)])


def _since_mark(stack: list[Any]) -> list[Any]:
    place = len(stack) - 1
    while stack[place] is not _MARK:
        place -= 1
        if place < 0:
            raise NotReadings("a list or tuple has no beginning")
    items = stack[place + 1 :]
    del stack[place:]
    return items


def _values(items: list[Any], count: int) -> list[Any]:
    if len(items) != count or any(one is _MARK for one in items):
        raise NotReadings("there are too few values")
    return items
