#!/bin/bash
tester=(setpriv --reuid=tester --regid=tester --clear-groups)
run() {
    echo "== $*"
    shim "$@" || echo "exit $?"
}
sandbox=(bwrap --ro-bind / / --dev /dev --proc /proc --tmpfs "$HERE/home" --unshare-all --die-with-parent)
look="$present; id; grep -E '^(Cap|NoNew|Seccomp:)' /proc/self/status; ls '$HERE/home'; touch /etc/x; '$BIN/frames' 20; cat /proc/net/dev | wc -l"
touch home/secret
for who in '' tester; do
    as=()
    [ -z "$who" ] || as=("${tester[@]}")
    run "${as[@]}" "${sandbox[@]}" bash -c "$look"
    run "${as[@]}" "${sandbox[@]}" --uid 1234 --gid 1234 bash -c "$look"
    run "${as[@]}" "${sandbox[@]}" --cap-drop ALL --new-session "$BIN/frames" 20
    run "${as[@]}" "${sandbox[@]}" --as-pid-1 bash -c 'echo $$'
    run "${as[@]}" "${sandbox[@]}" --unshare-user --disable-userns unshare --user true
    # A sandbox in a sandbox.
    run "${as[@]}" "${sandbox[@]}" "${sandbox[@]}" --uid 77 bash -c "$look"
done
# A filter: getppid fails with EXDEV, ptrace kills.
python3 -c '
import struct, sys
def step(code, jt, jf, k): return struct.pack("HBBI", code, jt, jf, k)
sys.stdout.buffer.write(step(0x20, 0, 0, 0) + step(0x15, 0, 1, 110) + step(6, 0, 0, 0x50000 | 18)
    + step(0x15, 0, 1, 101) + step(6, 0, 0, 0x80000000) + step(6, 0, 0, 0x7fff0000))
' >filter
tries='
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
memory = [bytearray(1 << 20) for _ in range(20)]
del memory
print(libc.getppid(), os.strerror(ctypes.get_errno()))
if os.fork() == 0:
    libc.ptrace(0, 0, 0, 0)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.wait()[1]))
'
echo "== a filter"
shim "${sandbox[@]}" --seccomp 9 python3 -c "$tries" 9<filter
# From 3.12 on Python counts its process's threads when it forks, and warns of more than one.
newest=$(compgen -G "$HOME/.pyenv/versions/3.1[2-9]*/bin/python3" | sort -V | tail -n 1 || true)
echo "== threads"
shim "${sandbox[@]}" "${newest:-python3}" -W error -c '
import os
memory = [bytearray(1 << 20) for _ in range(20)]
del memory
for _ in range(3):
    print(len(os.listdir("/proc/self/task")), flush=True)
    if os.fork() == 0:
        os._exit(len(os.listdir("/proc/self/task")))
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
'
