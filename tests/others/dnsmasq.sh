#!/bin/bash
LD_LIBRARY_PATH=$libraries begin "$DEBS/dnsmasq-base/usr/sbin/dnsmasq" -k -C /dev/null -u dnsmasq -g dnsmasq --pid-file= --no-resolv --no-hosts \
    --listen-address=127.0.0.1 --bind-interfaces --port=5353 --address=/example.test/192.0.2.7
ask() {
    python3 -c '
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(1)
s.sendto(b"\x12\x34\1\0\0\1\0\0\0\0\0\0\7example\4test\0\0\1\0\1", ("127.0.0.1", 5353))
print(s.recv(512).hex())
'
}
eventually ask
ask
ids "$pid"
served "$pid"
closed "$pid" dnsmasq
kill "$pid"
wait "$pid" || echo "exit $?"
