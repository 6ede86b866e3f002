#!/bin/bash
mkdir -m 755 /run/sshd
mkdir keys
ssh-keygen -q -t ed25519 -N '' -f keys/host
ssh-keygen -q -t ed25519 -N '' -f keys/mine
cp keys/mine.pub authorized
chmod 644 authorized
cat >sshd_config <<EOF
ListenAddress 127.0.0.1
Port 2222
HostKey $HERE/keys/host
AuthorizedKeysFile $HERE/authorized
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
PidFile none
AcceptEnv LD_PRELOAD REGALL REGALL_ONLY
Subsystem sftp internal-sftp
EOF
LD_LIBRARY_PATH=$libraries begin "$DEBS/openssh-server/usr/sbin/sshd" -D -e -f "$HERE/sshd_config"
eventually bash -c ': </dev/tcp/127.0.0.1/2222'
connect() {
    ssh -F none -i keys/mine -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR \
        -o SendEnv=LD_PRELOAD -o SendEnv=REGALL -o SendEnv=REGALL_ONLY -p 2222 "$@"
}
for user in root tester; do
    shim connect "$user@127.0.0.1" 'id; cat; exit 3' <<<"hello $user" || echo "exit $?"
done
# A session that stays: the listener, the monitor, and the user's own process.
sleep 1000 | shim connect tester@127.0.0.1 'echo $$; exec sleep 1000' >session &
eventually test -s session
session=$(cat session)
parent=$(awk '/^PPid:/ { print $2 }' "/proc/$session/status")
monitor=$(awk '/^PPid:/ { print $2 }' "/proc/$parent/status")
for process in "$session" "$parent" "$monitor"; do
    ids "$process"
done
for process in "$session" "$parent" "$monitor" "$pid"; do
    served "$process"
done
closed "$parent" tester
closed "$monitor" tester
# One that has not said who it is: its other half is in a sandbox.
exec 5<>/dev/tcp/127.0.0.1/2222
read -r -u 5 banner
printf "SSH-2.0-nobody\r\n" >&5
echo "${banner%%_*}"
sandboxed() { pgrep -u sshd sshd; }
eventually sandboxed
ids "$(sandboxed)"
served "$(sandboxed)"
exec 5<&-
seq 300000 >home/big
sftp -q -F none -i keys/mine -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR \
    -P 2222 tester@127.0.0.1:big "$HERE/got" >/dev/null
md5sum <got
kill "$pid"
wait "$pid" || echo "exit $?"
