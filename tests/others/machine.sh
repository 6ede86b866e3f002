#!/bin/bash
# What a script of this folder finds when it begins (tests/others.rs runs it with bash -e):
# a machine of its own as far as processes, mounts, network and users go. Nothing of it is
# left when it ends. Its standard output is what must be the same with the shim as without.
#
#   shim COMMAND...        runs it with the shim, if this is the run with it
#   begin COMMAND...       the same beside the script; $pid is its process
#   served PID             the shim is in this process, and every byte is accounted for
#   closed PID USER        this user can't read the process's memory
#   ids PID                who it is, as the kernel says
#   $present               for a shell: says so if the shim should be there and is not
#   eventually COMMAND...  waits until it succeeds, ten seconds at the most
#
# $BIN: c-tests, compiled; $HERE: an empty folder that everybody may enter and read; $DEBS:
# packages of Debian that are unpacked, not installed; $LOOK, $SHIM: what is under test.
# What is wrong with the run with the shim goes to descriptor 3.
# shellcheck disable=SC2034,SC2016 # the scripts, and shells that they run, use them
set -euo pipefail

mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=755 tmpfs /run
ip link set lo up

# Users: tester, who may log in, and those that Debian's daemons become.
mkdir "$HERE/etc"
users='sshd memcache dnsmasq unbound chrony tester'
cp -a /etc/passwd /etc/group /etc/shadow "$HERE/etc/"
id=4200
for user in $users; do
    id=$((id + 1))
    sed -i "/^$user:/d" "$HERE/etc/passwd" "$HERE/etc/group" "$HERE/etc/shadow"
    echo "$user:x:$id:$id::$HERE/home:/bin/bash" >>"$HERE/etc/passwd"
    echo "$user:x:$id:" >>"$HERE/etc/group"
    echo "$user:*:19000:0:99999:7:::" >>"$HERE/etc/shadow"
done
mkdir -m 755 "$HERE/home"
for file in passwd group shadow; do
    mount --bind "$HERE/etc/$file" "/etc/$file"
done
chown tester:tester "$HERE/home"
cd "$HERE"

shim() {
    if [ -n "$WITH" ]; then
        LD_PRELOAD=$SHIM REGALL=1 REGALL_ONLY='*' "$@"
    else
        "$@"
    fi
}

# Libraries of packages that are unpacked, for these alone.
libraries=
for folder in "$DEBS"/lib*/usr/lib/*-linux-gnu; do
    libraries+=${libraries:+:}$folder
done

begin() {
    if [ -n "$WITH" ]; then
        LD_PRELOAD=$SHIM REGALL=1 REGALL_ONLY='*' "$@" &
    else
        "$@" &
    fi
    pid=$!
}

# For a shell that is run: says so if it should be with the shim and is not.
present='[ -z "${LD_PRELOAD-}" ] || grep -q libregall /proc/self/maps || echo "without the shim"'

wrong() { echo "$*" >&3; }

served() {
    [ -n "$WITH" ] || return 0
    local said
    grep -q libregall "/proc/$1/maps" || wrong "the shim is not in $1: $(tr '\0' ' ' <"/proc/$1/cmdline")"
    said=$("$LOOK" verify "$1" 2>&1) || wrong "verify $1: $(tr '\0' ' ' <"/proc/$1/cmdline"): $said"
}

# What the kernel does not let a user read, regall does not, either.
closed() {
    [ -n "$WITH" ] || return 0
    local address as
    as=(setpriv "--reuid=$2" "--regid=$2" --clear-groups)
    address=$("$LOOK" dump "$1" | awk '$2 == "rw-p" && $3 == "registered" { split($1, at, "-"); print at[1]; exit }')
    [ -n "$address" ] || wrong "nothing of $1 is registered"
    if "${as[@]}" dd "if=/proc/$1/mem" bs=1 count=1 "skip=$((0x$address))" status=none >/dev/null 2>&1; then
        wrong "the kernel lets $2 read $1: nothing is shown by that"
    fi
    if "${as[@]}" env "LD_PRELOAD=$SHIM" REGALL=1 "$LOOK" peek "$1" "0x$address" 1 >/dev/null 2>&1; then
        wrong "regall lets $2 read $1"
    fi
}

ids() { grep -E '^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp):?' "/proc/$1/status"; }

eventually() {
    local tries=100
    while [ $((tries -= 1)) -gt 0 ]; do
        ! "$@" >/dev/null 2>&1 || return 0
        sleep 0.1
    done
    echo "not within ten seconds: $*"
    return 1
}
