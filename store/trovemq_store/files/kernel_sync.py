"""A sync that the kernel does asynchronously: no thread waits for it.

A thread that syncs costs two hand-overs between threads, and Python's lock with each. Here `io_submit` gives
the kernel a request, and the kernel counts up an eventfd when the file is on disk, which an event loop
watches. The result is the one that fdatasync would have had.

    offset  width  field of a request (struct iocb, little-endian)
        0   u64    ours; not used
        8   u32    the kernel's
       12   i32    flags of reads and writes; 0
       16   u16    3: IOCB_CMD_FDSYNC
       18   i16    priority; 0
       20   u32    the file's descriptor
       24   u64    buffer, size, offset of reads and writes; 0
       48   u64    reserved; 0
       56   u32    1: IOCB_FLAG_RESFD
       60   u32    the eventfd's descriptor

    offset  width  field of a result (struct io_event)
        0   u64    ours
        8   u64    address of the request
       16   i64    0, or an errno as a negative number
       24   i64    not used

Invariants
- One sync at a time. A descriptor is not closed before its sync has ended; `close` waits for it.
- A request that the kernel does not take has begun nothing: the caller syncs by a thread.
- A result that cannot be read is that of a failed sync.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import select
import sys
from struct import Struct
from typing import Any, Final

_REQUEST: Final = Struct("<QIiHhIQQqQII")
_RESULT_AT: Final = 2  # of four numbers
_FDSYNC: Final = 3
_RESFD: Final = 1
_NUMBERS: Final = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2), "riscv64": (0, 1, 4, 2)}
"""By machine: the numbers of io_setup, io_destroy, io_getevents and io_submit."""


class KernelSync:
    """Syncs files one after the other; `open` makes one."""

    def __init__(self, syscall: Any, numbers: tuple[int, ...], context: int, event: int) -> None:
        self._syscall = syscall  # keeps Python's lock: none of these calls waits, except for `close`
        _, self._destroy, get_events, submit = map(ctypes.c_long, numbers)
        self._event = event
        self._request = ctypes.create_string_buffer(_REQUEST.size)
        self._result = (ctypes.c_int64 * 4)()
        requests = (ctypes.c_void_p * 1)(ctypes.addressof(self._request))
        self._context, one, at_once = ctypes.c_ulong(context), ctypes.c_long(1), (ctypes.c_int64 * 2)()
        self._submit = (submit, self._context, one, requests)
        self._get_events = (get_events, self._context, one, one, self._result, at_once)
        self._offered = True
        self.running = False

    @classmethod
    def open(cls) -> KernelSync | None:
        """None where the kernel does not offer it: an unknown machine, a filter of system calls, no request
        or descriptor left for this process."""
        numbers = _NUMBERS.get(platform.machine())
        if numbers is None or sys.maxsize < 1 << 32 or sys.platform != "linux":
            return None
        syscall = ctypes.PyDLL(None, use_errno=True).syscall
        syscall.restype = ctypes.c_long
        context = ctypes.c_ulong()
        try:
            event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        except OSError:
            return None
        if syscall(ctypes.c_long(numbers[0]), ctypes.c_long(1), ctypes.byref(context)) != 0:
            os.close(event)
            return None
        return cls(syscall, numbers, context.value, event)

    def fileno(self) -> int:
        """Is readable when a sync has ended."""
        return self._event

    def begin(self, descriptor: int) -> bool:
        """Begins to sync the data of the file. False if the kernel did not take it."""
        assert not self.running, "one sync at a time"
        assert self._event >= 0, "it is open"
        if not self._offered:
            return False
        _REQUEST.pack_into(self._request, 0, 0, 0, 0, _FDSYNC, 0, descriptor, 0, 0, 0, 0, _RESFD, self._event)
        self.running = self._syscall(*self._submit) == 1
        if not self.running and ctypes.get_errno() != errno.EAGAIN:
            self._offered = False  # not for these files
        return self.running

    def end(self) -> int | None:
        """The result of the sync: 0 or an errno. None if it has not ended."""
        try:
            os.eventfd_read(self._event)
        except BlockingIOError:
            return None
        assert self.running, "a sync that ended had begun"
        self.running = False
        if self._syscall(*self._get_events) != 1:
            return ctypes.get_errno() or errno.EIO
        assert self._result[_RESULT_AT] <= 0, "a sync returns nothing but an errno"
        return -self._result[_RESULT_AT]

    def wait(self) -> None:
        """Returns when the sync that runs has ended. Other threads run meanwhile, and signals are handled."""
        assert self.running, "there is one"
        assert self._event >= 0, "it is open"
        poll = select.poll()
        poll.register(self._event, select.POLLIN)
        poll.poll()

    def close(self) -> None:
        """Waits for the sync that runs."""
        if self._event >= 0:
            self._syscall(self._destroy, self._context)
            os.close(self._event)
            self._event = -1


class SyncedByThread:
    """A file whose sync the kernel does not take: a caller syncs it by a thread."""

    def begin_sync(self, kernel: KernelSync) -> bool:
        del kernel
        return False

    def end_sync(self, kernel: KernelSync) -> bool:
        raise AssertionError("begin_sync() begins nothing")
