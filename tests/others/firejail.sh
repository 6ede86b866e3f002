#!/bin/bash
tester=(setpriv --reuid=tester --regid=tester --clear-groups)
run() {
    echo "== $*"
    shim "$@" 2>/dev/null || echo "exit $?"
}
cp "$BIN/frames" home/frames
touch home/secret
chown tester home/secret
jail=(firejail --quiet --noprofile)
look="$present; grep -E '^(Uid|Cap|NoNew|Seccomp)' /proc/self/status; ls '$HERE/home'; '$HERE/home/frames' 20"
run "${jail[@]}" bash -c "$look"
run "${jail[@]}" --seccomp --caps.drop=all --net=none bash -c "$look"
run "${jail[@]}" --noroot --nonewprivs bash -c "$look"
run "${jail[@]}" --memory-deny-write-execute "$HERE/home/frames" 20
run "${jail[@]}" --blacklist="$HERE/home/secret" cat "$HERE/home/secret"
run "${jail[@]}" --seccomp=getppid python3 -c 'import os; os.getppid()'
run "${jail[@]}" --seccomp.drop=mlock,mlock2 "$HERE/home/frames" 20
run "${jail[@]}" --rlimit-as=1000000000 "$HERE/home/frames" 20
run "${tester[@]}" "${jail[@]}" --seccomp --caps.drop=all bash -c "$look"
