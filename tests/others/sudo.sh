#!/bin/bash
# A policy of our own instead of the machine's.
cat >sudoers <<'EOF'
Defaults !fqdn, !mail_no_user, env_keep += "LD_PRELOAD REGALL REGALL_ONLY"
root ALL=(ALL:ALL) NOPASSWD: ALL
tester ALL=(root) NOPASSWD: /usr/bin/id
EOF
chown root:root sudoers
chmod 440 sudoers
mount --bind sudoers /etc/sudoers
hostname localhost 2>/dev/null || true
run() {
    echo "== $*"
    shim "$@" </dev/null || echo "exit $?"
}
work="$present; grep -E '^(Uid|Gid|Groups|Cap|NoNew)' /proc/self/status; '$BIN/frames' 20"
run sudo -n -u tester bash -c "$work"
run sudo -n -u tester -g daemon bash -c "$work"
run sudo -n -E bash -c "$work"
run sudo -n -b true
run sudo -n -u tester bash -c 'exit 5'
run sudo -n -u tester bash -c 'kill -TERM $$'
run setpriv --reuid=tester --regid=tester --clear-groups sudo -n id
run setpriv --reuid=tester --regid=tester --clear-groups sudo -n cat /etc/shadow
run setpriv --reuid=tester --regid=tester --clear-groups --no-new-privs sudo -n id
