#!/bin/bash
begin "$DEBS/memcached/usr/bin/memcached" -u memcache -l 127.0.0.1 -p 11211 -U 0 -m 64 -t 2
talk() {
    python3 -c '
import socket
s = socket.create_connection(("127.0.0.1", 11211)); f = s.makefile("rwb")
def ask(text, until):
    f.write(text); f.flush()
    line = b""
    while line.strip() not in until:
        line = f.readline()
    print(line.decode().strip())
value = b"v" * 500000
for n in range(40):
    ask(b"set k%d 0 0 %d\r\n%s\r\n" % (n, len(value), value), [b"STORED"])
ask(b"get k39\r\n", [b"END"])
ask(b"flush_all\r\n", [b"OK"])
'
}
eventually bash -c ': </dev/tcp/127.0.0.1/11211'
talk
ids "$pid"
served "$pid"
closed "$pid" memcache
kill "$pid"
wait "$pid" || echo "exit $?"
