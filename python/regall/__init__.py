"""What a program asks of libregall.so: include/regall.h for Python, without a build step.

The library is the one that is preloaded, else the one that REGALL_LIBRARY names, else one that
the dynamic linker finds. Without the shim on (REGALL=1) look-ups raise OSError with ENOSYS, and
peers can be read all the same. Errors are OSError with the errno of regall.h.

    import regall
    found = regall.lookup(buffer)            # of anything with a buffer, or (address, length)
    regall.opt_out(buffer)
    with regall.Peer(pid) as peer:
        data = peer.get(address, length)
"""
import ctypes
import enum
import errno
import os

__all__ = ["Mechanism", "Peer", "Process", "Range", "Reason", "Region", "Stats", "active",
           "audit", "lookup", "opt_in", "opt_out", "peers", "stats", "version"]

_u32, _u64, _int, _size = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int, ctypes.c_size_t
_pointer = ctypes.c_void_p


class Reason(enum.IntEnum):
    """Why a range is not registered."""

    REGISTERED = 0
    NO_ACCESS = 1
    KERNEL = 2
    DEVICE = 3
    SHIM = 4
    OPTED_OUT = 5
    SCOPE = 6
    LIMIT = 7
    INHERITED = 8
    OFF = 9
    REFUSED = 10
    UNTOUCHED = 11
    MANAGED = 12
    ON_REQUEST = 13
    CACHE = 15


class Mechanism(enum.IntEnum):
    """What copied."""

    NONE = 0
    MAP = 1
    XPMEM = 2
    CMA = 3
    KNEM = 4
    HELPER = 5


class _Struct(ctypes.Structure):
    def __repr__(self):
        fields = (f"{name}={getattr(self, name)}" for name, _ in self._fields_)
        return f"{type(self).__name__}({', '.join(fields)})"


class Range(_Struct):
    """What is known of the range around an address: struct regall_range."""

    _fields_ = [("start", _u64), ("end", _u64), ("id", _u64), ("prot", _u32), ("held", _u32),
                ("reason", _u32), ("error", ctypes.c_int32), ("lkey", _u32), ("rkey", _u32)]


class Stats(_Struct):
    """Counters of this process: struct regall_stats."""

    _fields_ = [(name, _u64) for name in (
        "size", "mappings", "bytes_mapped", "bytes_registered", "bytes_pinned", "budget",
        "events", "pins", "bytes_pinned_total", "shim_bytes", "resyncs", "sites_patched",
        "sites_refused")]


class Process(_Struct):
    """A process with the shim on: struct regall_process."""

    _fields_ = [("pid", ctypes.c_int32), ("reserved", _u32), ("start_time", _u64)]


class Done(_Struct):
    """The result of a transfer: struct regall_done."""

    _fields_ = [("bytes", _u64), ("generation", _u64), ("mechanism", _u32), ("reserved", _u32)]


class _Segment(_Struct):
    _fields_ = [("addr", _u64), ("len", _u64)]


_SIGNATURES = {
    "version": [], "active": [], "audit": [],
    "lookup": [_pointer, _pointer, _size, ctypes.POINTER(Range)],
    "opt_out": [_pointer, _size], "opt_in": [_pointer, _size],
    "stats": [ctypes.POINTER(Stats)],
    "peers": [ctypes.POINTER(Process), _size],
    "peer_open": [_int, _u64, ctypes.c_uint, ctypes.POINTER(_pointer)],
    "peer_close": [_pointer], "peer_check": [_pointer],
    "get": [_pointer, _pointer, _u64, _size, ctypes.POINTER(Done)],
    "put": [_pointer, _pointer, _u64, _size, ctypes.POINTER(Done)],
    "region_create": [ctypes.POINTER(_Segment), _size, ctypes.c_uint, ctypes.c_uint,
                      ctypes.POINTER(_u64)],
    "region_destroy": [_u64],
    "region_read": [_u64, _u64, ctypes.POINTER(_Segment), _size, ctypes.POINTER(Done)],
    "region_write": [_u64, _u64, ctypes.POINTER(_Segment), _size, ctypes.POINTER(Done)],
}


def _load():
    names = [None, os.environ.get("REGALL_LIBRARY") or "libregall.so"]
    for name in names:
        try:
            library = ctypes.CDLL(name)
            library.regall_version
        except (OSError, AttributeError):
            continue
        for function, arguments in _SIGNATURES.items():
            getattr(library, "regall_" + function).argtypes = arguments
        return library
    raise ImportError(f"libregall.so is neither preloaded nor found as {names[-1]}: start the "
                      "program with `regall run`, or set REGALL_LIBRARY to its path")


_library = _load()


def _call(name, *arguments):
    result = getattr(_library, "regall_" + name)(*arguments)
    if result < 0:
        raise OSError(-result, os.strerror(-result), "regall_" + name)
    return result


def _hold(memory, fills=False):
    """Address and length of (address, length) or of anything with a buffer, and what keeps the
    memory where it is for as long as that is kept. `fills`: it is written to."""
    if isinstance(memory, tuple):
        return (*memory, None)
    view = memoryview(memory)
    if not view.contiguous:
        raise BufferError("the buffer is not contiguous")
    if view.readonly:
        if fills or not isinstance(memory, bytes):
            raise BufferError("the buffer can't be written: give its address and length")
        return ctypes.cast(ctypes.c_char_p(memory), _pointer).value, view.nbytes, memory
    held = (ctypes.c_char * view.nbytes).from_buffer(view)
    return ctypes.addressof(held), view.nbytes, held


def _place(memory):
    """Address and length, for a call that does not look at the memory."""
    return _hold(memory)[:2]


def version():
    """The version of the library's interface."""
    return _call("version")


def active():
    """Whether the shim tracks this process."""
    return bool(_call("active"))


def audit():
    """Compares the ledger with /proc/self/maps and mends it."""
    _call("audit")


def lookup(memory, pd=None):
    """The range that holds all of it, or None if it is in none or in several."""
    found = Range()
    try:
        _call("lookup", pd, *_place(memory), found)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return None
        raise
    return found


def opt_out(memory):
    """Takes the pages that hold any of its bytes out of registration."""
    _call("opt_out", *_place(memory))


def opt_in(memory):
    """Takes them back in."""
    _call("opt_in", *_place(memory))


def stats():
    """Counters of this process."""
    counters = Stats(size=ctypes.sizeof(Stats))
    _call("stats", counters)
    return counters


def peers():
    """This user's processes with the shim on."""
    room = 0
    while True:
        found = (Process * room)()
        count = _call("peers", found if room else None, room)
        if count <= room:
            return list(found[:count])
        room = count + 8


class Peer:
    """Another process, by its pid (and start time): get and put what it has registered."""

    def __init__(self, pid, start_time=0, check_always=False):
        self._peer = _pointer()
        _call("peer_open", pid, start_time, int(check_always), self._peer)

    def get(self, address, length):
        """`length` bytes at the peer's address."""
        data = bytearray(length)
        self.get_into(data, address)
        return bytes(data)

    def get_into(self, memory, address):
        """Fills memory from the peer's address; what came of it."""
        to, length, _held = _hold(memory, fills=True)
        done = Done()
        _call("get", self._peer, to, address, length, done)
        return done

    def put(self, memory, address):
        """Writes memory to the peer's address; what came of it."""
        source, length, _held = _hold(memory)
        done = Done()
        _call("put", self._peer, source, address, length, done)
        return done

    def check(self):
        """Raises OSError if it has ended (ESRCH) or executes another program (ESTALE)."""
        _call("peer_check", self._peer)

    def close(self):
        """Closes it; again: does nothing."""
        if self._peer:
            _call("peer_close", self._peer)
            self._peer = _pointer()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _segments(memories, fills=False):
    """An array for C, its length, and what keeps the memory where it is."""
    held = [_hold(memory, fills) for memory in memories]
    return (_Segment * len(held))(*(place[:2] for place in held)), len(held), held


#: What keeps the memory of this process's regions where it is, by cookie: a region is there until
#: it is destroyed, whatever becomes of its object.
_regions = {}


class Region:
    """Scattered memory under a cookie. Region.create makes one of this process's memory, and
    Region(cookie) reads and writes that of whoever has told the cookie."""

    READ, WRITE = 1, 2
    SINGLE_USE, NOTIFY = 1, 4

    def __init__(self, cookie):
        self.cookie = cookie

    @classmethod
    def create(cls, memories, prot=READ, flags=0):
        """A region of buffers, which can't be resized or freed until it is destroyed, or of
        (address, length), whose memory has to stay."""
        cookie = _u64()
        segments, count, held = _segments(memories, fills=prot & cls.WRITE != 0)
        _call("region_create", segments, count, prot, flags, cookie)
        _regions[cookie.value] = held
        return cls(cookie.value)

    def read_into(self, memories, offset=0):
        """Fills buffers from the offset on; how many bytes."""
        done = Done()
        segments, count, _held = _segments(memories, fills=True)
        _call("region_read", self.cookie, offset, segments, count, done)
        return done.bytes

    def read(self, length, offset=0):
        """Up to `length` bytes from the offset on."""
        data = bytearray(length)
        return bytes(data[:self.read_into([data], offset)])

    def write(self, memories, offset=0):
        """Writes buffers from the offset on; how many bytes."""
        done = Done()
        segments, count, _held = _segments(memories)
        _call("region_write", self.cookie, offset, segments, count, done)
        return done.bytes

    def destroy(self):
        """Destroys one of this process's; by its cookie alone, too."""
        try:
            _call("region_destroy", self.cookie)
        except OSError as error:
            # This process has none of that cookie, as in a child of fork: nobody reads its memory.
            if error.errno in (errno.EINVAL, errno.EPERM):
                _regions.pop(self.cookie, None)
            raise
        _regions.pop(self.cookie, None)
