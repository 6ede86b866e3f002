#!/bin/bash
mkdir root
cat >root/unbound.conf <<EOF
server:
    interface: 127.0.0.1@5354
    do-daemonize: no
    username: unbound
    chroot: "$HERE/root"
    directory: "$HERE/root"
    pidfile: ""
    use-syslog: no
    num-threads: 2
    module-config: "iterator"
    local-data: "example.test. A 192.0.2.8"
remote-control:
    control-enable: no
EOF
begin "$DEBS/unbound/usr/sbin/unbound" -d -c "$HERE/root/unbound.conf"
ask() {
    python3 -c '
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(1)
s.sendto(b"\x12\x34\1\0\0\1\0\0\0\0\0\0\7example\4test\0\0\1\0\1", ("127.0.0.1", 5354))
print(s.recv(512).hex())
'
}
eventually ask
ask
ids "$pid"
served "$pid"
closed "$pid" unbound
readlink "/proc/$pid/root" | sed "s|$HERE|HERE|"
kill "$pid"
wait "$pid" || echo "exit $?"
