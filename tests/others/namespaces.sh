#!/bin/bash
run() {
    echo "== $*"
    shim "$@" || echo "exit $?"
}
tester=(setpriv --reuid=tester --regid=tester --clear-groups)
work="$present; id; '$BIN/frames' 20; grep -E '^Cap(Eff|Prm)' /proc/self/status"
run unshare --user --map-root-user bash -c "$work"
run unshare --user bash -c "$work"
run unshare --user --map-root-user --mount --pid --fork --mount-proc --net --uts --ipc --cgroup bash -c "$work; echo \$\$; all=\$(ls /proc); grep -c '^[0-9]' <<< \"\$all\""
run "${tester[@]}" unshare --user --map-root-user --mount --pid --fork bash -c "$work; mount -t tmpfs none /mnt && touch /mnt/x && ls /mnt"
run "${tester[@]}" unshare --user --map-current-user bash -c "$work"
# One in another, and in another.
run unshare --user --map-root-user unshare --user --map-root-user unshare --user bash -c "$work"
# By Python's own calls, after it has mapped and freed memory.
run unshare --user --map-root-user python3 -c '
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
memory = [bytearray(1 << 20) for _ in range(20)]
del memory
def call(name, *args):
    print(name, libc[name](*args), os.strerror(ctypes.get_errno()))
call("unshare", 0x20000000) # CLONE_NEWPID
call("unshare", 0x00020000) # CLONE_NEWNS
call("unshare", 0x10000000) # CLONE_NEWUSER
call("unshare", 0x00000100) # CLONE_VM: alone, there is nothing to do
call("unshare", 0x00010000) # CLONE_THREAD
fd = os.open("/proc/self/ns/mnt", os.O_RDONLY)
call("unshare", 0x10000000 | 0x00020000)
call("setns", fd, 0x00020000)
print(len(os.listdir("/proc/self/task")) if not os.environ.get("REGALL") else 1)
'
# Into somebody's.
unshare --user --map-root-user --mount sleep 1000 &
other=$!
changed() { [ "$(readlink "/proc/$other/ns/user")" != "$(readlink /proc/self/ns/user)" ]; }
eventually changed
run_in() {
    echo "== nsenter $*"
    shim nsenter --target "$other" "$@" bash -c "$work" || echo "exit $?"
}
run_in --user --preserve-credentials
run_in --user --mount
run_in --mount --wdns=/
kill "$other"
