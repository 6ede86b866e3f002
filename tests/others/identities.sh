#!/bin/bash
# Each runs $1 as somebody.
work="$present; grep -E '^(Uid|Gid|Groups|Cap|NoNew)' /proc/self/status; '$BIN/frames' 20; cat /proc/self/oom_score_adj"
run() {
    echo "== $*"
    shim "$@" || echo "exit $?"
}
run setpriv --reuid=tester --regid=tester --clear-groups bash -c "$work"
run setpriv --reuid=tester --regid=tester --init-groups --inh-caps=+net_raw --ambient-caps=+net_raw bash -c "$work"
run setpriv --ruid=tester bash -c "$work"
run setpriv --euid=tester bash -c "$work"
run setpriv --rgid=tester --clear-groups bash -c "$work"
run setpriv --bounding-set=-all --inh-caps=-all --no-new-privs bash -c "$work"
run setpriv --pdeathsig=KILL --reuid=tester "$BIN/frames" 5
run capsh --drop=cap_sys_admin,cap_ipc_lock -- -c "$work"
run capsh --keep=1 --user=tester --inh=cap_net_raw --addamb=cap_net_raw -- -c "$work"
run capsh --mode=NOPRIV --print
run capsh --secbits=0x2f --noamb -- -c "$work"
run su tester -c "$work"
run su tester -s /bin/sh -c 'exit 7'
run runuser -u tester -- bash -c "$work"
run chroot --userspec=tester:tester / bash -c "$work"
run setpriv --reuid=tester --clear-groups --regid=tester su -c id root </dev/null
run bash -c "ulimit -l 64; setpriv --reuid=tester --regid=tester --clear-groups '$BIN/frames' 20"
run bash -c "ulimit -n 16; '$BIN/frames' 20"
run bash -c "ulimit -u 1; setpriv --reuid=tester --regid=tester --clear-groups '$BIN/frames' 20"
