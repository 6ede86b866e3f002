"""A process looks its memory up, opts some of it out, and reads a peer's: regall run -- python3 example.py"""
import mmap
import subprocess
import sys

import regall

OWNER = """
import ctypes, mmap, sys, regall
memory = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory[:5] = b"hello"
memory[-5:] = b"world"
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
region = regall.Region.create([(address, 5), (address + (1 << 20) - 5, 5)],
                              regall.Region.READ | regall.Region.WRITE)
print(address, region.cookie, flush=True)
sys.stdin.readline()
print(memory[:5].decode(), flush=True)
region.destroy()
"""


def here():
    memory = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(b"x" * (1 << 20))
    found = regall.lookup(memory)
    print("registered:", regall.Reason(found.reason).name, found.end - found.start >= 1 << 20)
    regall.opt_out(memory)
    print("opted out:", regall.Reason(regall.lookup(memory).reason).name)
    regall.opt_in(memory)
    print("opted in:", regall.Reason(regall.lookup(memory).reason).name)
    counters = regall.stats()
    print("counters:", counters.mappings > 0, 0 < counters.bytes_registered <= counters.bytes_mapped)
    print("nowhere:", regall.lookup((4096, 1)))


def there():
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True)
    address, cookie = map(int, owner.stdout.readline().split())
    print("among the peers:", owner.pid in [peer.pid for peer in regall.peers()])
    with regall.Peer(owner.pid) as peer:
        print("get:", peer.get(address, 5).decode())
        print("put:", peer.put(b"HELLO", address).bytes)
        peer.check()
    region = regall.Region(cookie)
    print("region:", region.read(100).decode(), region.read(100, offset=7).decode())
    print("written:", region.write([b"Hallo"]))
    owner.stdin.write("\n")
    owner.stdin.flush()
    print("it has:", owner.stdout.readline().strip())
    owner.stdin.close()
    owner.wait()
    try:
        regall.Peer(owner.pid)
    except OSError as error:
        print("gone:", error.strerror)


if __name__ == "__main__":
    print("version", regall.version(), "active", regall.active())
    here()
    there()
