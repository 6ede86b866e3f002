#!/bin/bash
mkdir -m 700 var
chown chrony var
cat >chrony.conf <<EOF
port 12300
allow
local
cmdport 12300
allow
local
bindcmdaddress /
pidfile $HERE/chronyd.pid
driftfile $HERE/var/drift
user chrony
EOF
# -x: the clock stays as it is; -F 1: under a filter that kills.
begin "$DEBS/chrony/usr/sbin/chronyd" -d -x -F 1 -f "$HERE/chrony.conf"
dropped() { grep -q '^Seccomp:.*2' "/proc/$pid/status"; }
eventually dropped
ids "$pid"
served "$pid"
closed "$pid" chrony
kill "$pid"
wait "$pid" || echo "exit $?"
