#!/bin/sh
# Checks from outside that every byte of a process's address space is accounted
# for, from /proc/PID/maps and `regall dump` alone. Shares no code with regall.
# What HCA says `yes` of must have a key, and `# key` lines must be of mapped memory. What PIN says
# `kept` of may not be written to swap space: /proc/swaps, and memory.swap.max of its cgroup.
#
#   scripts/verify-maps.sh PID [REGALL_BINARY]
#
# Exit code: 0 no gap; 1 a gap (printed; it counts only if it is seen in two
# looks in a row between which nothing changed); 2 could not look (vanished,
# foreign, inert, busy for 5 s).
#
# The binary is the second argument, else regall in PATH, else
# ../target/release/regall. ($REGALL can't name it: that turns the shim on.)
set -u
export LC_ALL=C

# Names of files may hold what a terminal obeys, or what turns the direction of reading.
plain() { tr '\001-\011\013-\037\177-\377' '[?*]'; }
say() { printf 'verify-maps: %s\n' "$*" | plain >&2; }

if [ $# -lt 1 ] || [ $# -gt 2 ]; then
    say "usage: verify-maps.sh PID [REGALL_BINARY]"
    exit 2
fi
pid=$1
case $pid in
'' | *[!0-9]*)
    say "not a pid: $pid"
    exit 2
    ;;
esac

regall=${2:-}
[ -n "$regall" ] || regall=$(command -v regall) || regall=$(dirname "$0")/../target/release/regall
if ! command -v "$regall" >/dev/null; then
    say "no regall command: $regall"
    exit 2
fi

# Bytes of /proc/PID/maps that are looked at: a process can make its names long.
most=67108864

work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
trap 'exit 2' HUP INT TERM

# Both lists in, gaps out. Addresses are compared as strings of 16 hexadecimal
# digits: awk's numbers hold no more than 53 bits.
#   status 0: no gap; 1: gaps; 3: the dump itself is wrong
cat >"$work/check.awk" <<'AWK'
function wide(hex) { return substr("0000000000000000" hex, length(hex) + 1) }
function wrong(text) { print "dump line " FNR ": " text ": " $0; bad = 1 }
function word_ok(word) {
    return word ~ /^(no-access|kernel|device|shim|opted-out|scope|limit|inherited|off|untouched|managed|on-request|refused:[0-9]+)$/
}
function key_ok(key) { return key == "-" || key ~ /^0x[0-9a-f]+$/ }
function access_ok(list,    words, count, k) {
    if (list == "read") return 1
    count = split(list, words, ",")
    for (k = 1; k <= count; k++)
        if (words[k] !~ /^(local-write|remote-write|remote-read|remote-atomic|mw-bind|zero-based|on-demand|huge-pages|flush-global|flush-persistent|relaxed-ordering|0x[0-9a-f]+)$/) return 0
    return count > 0
}
# START-END into from and to.
function addresses(word,    ends) {
    if (word !~ /^[0-9a-f]+-[0-9a-f]+$/) return 0
    split(word, ends, "-")
    from = wide(ends[1]); to = wide(ends[2])
    return from < to
}

# The dump.
FILENAME == ARGV[1] && FNR == 1 {
    if ($0 !~ /^# regall 1 pid [0-9]+ start [0-9]+ generation [0-9]+ busy [0-9]+$/) wrong("header")
    if ($5 != pid) wrong("another pid")
    next
}
# A memory region: # key START-END PD ACCESS LKEY RKEY. One for the whole address
# space (on demand, from 0) is not of mapped memory.
FILENAME == ARGV[1] && /^#/ {
    if ($2 != "key" || NF != 7) { wrong("fields"); next }
    if (!addresses($3)) { wrong("addresses"); next }
    if ($4 !~ /^[0-9]+$/) wrong("PD")
    if (!access_ok($5)) wrong("ACCESS")
    if (!key_ok($6) || $6 == "-" || !key_ok($7)) wrong("keys")
    if ($5 ~ /on-demand/ && from ~ /^0+$/) next
    keys++
    key_start[keys] = from; key_end[keys] = to; key_line[keys] = $0
    next
}
FILENAME == ARGV[1] {
    if (NF != 8) { wrong("fields"); next }
    if (!addresses($1)) { wrong("addresses"); next }
    if (keys) wrong("behind a key")
    if (n && from < end[n]) wrong("overlaps or not sorted")
    if ($2 !~ /^[r-][w-][x-][ps]$/) wrong("protection")
    if ($3 == "registered") {
        if ($4 != "-") wrong("registered with a reason")
        if ($7 != "yes" && $7 != "kept" && $8 != "yes") wrong("registered by nobody")
    } else if ($3 == "excluded") {
        if (!word_ok($4) && $4 != "cache") wrong("reason")
        if ($7 == "yes" || $7 == "kept" || $8 == "yes") wrong("excluded and held")
    } else wrong("state")
    if (!key_ok($5) || !key_ok($6)) wrong("keys")
    if ($7 != "yes" && $7 != "kept" && $7 != "cache" && !word_ok($7)) wrong("PIN")
    if ($8 != "yes" && !word_ok($8)) wrong("HCA")
    n++
    start[n] = from; end[n] = to; prot[n] = $2
    unheld[n] = $8 == "yes" && $5 == "-"
    unkept[n] = $7 == "kept" && (swap == "all" || swap == "shared" && $2 ~ /s$/)
    next
}

# /proc/PID/maps, in the same order: each line eats its part of the entries.
{
    split($1, ends, "-")
    at = wide(ends[1]); to = wide(ends[2])
    maps++
    map_start[maps] = at; map_end[maps] = to
    if (i < 1) i = 1
    while (at < to) {
        while (i <= n && end[i] <= at) i++
        # The kernel maps this page by itself, when a probe is hit. (The name of a file
        # begins with a slash.)
        if ((i > n || start[i] >= to) && NF == 6 && $6 == "[uprobes]") break
        if (i > n || start[i] >= to) { print "gap " at "-" to ": " $0; gaps = 1; break }
        if (start[i] > at) { print "gap " at "-" start[i] ": " $0; gaps = 1; at = start[i] }
        stop = end[i] < to ? end[i] : to
        if (prot[i] != $2) {
            print "wrong protection " at "-" stop " published as " prot[i] ": " $0
            gaps = 1
        } else if (unheld[i]) {
            print "gap " at "-" stop " said to be registered, but no region holds it: " $0
            gaps = 1
        } else if (unkept[i]) {
            print "gap " at "-" stop " said to be kept, but swap has come since: " $0
            gaps = 1
        }
        at = stop
    }
}

# The regions, sorted within each domain: each walks over the mappings from where
# the one before it began.
END {
    for (k = 1; k <= keys; k++) {
        at = key_start[k]; to = key_end[k]
        if (k == 1 || at < key_start[k - 1]) first = 1
        while (first <= maps && map_end[first] <= at) first++
        for (j = first; at < to; j++) {
            if (j <= maps && map_start[j] <= at) { at = map_end[j]; continue }
            stop = j > maps || map_start[j] > to ? to : map_start[j]
            print "gap " at "-" stop " region of memory that is not mapped: " key_line[k]
            gaps = 1
            if (j > maps) break
            at = map_end[j]
        }
    }
    exit bad ? 3 : gaps ? 1 : 0
}
AWK

cannot_look() {
    say "$pid: $1"
    exit 2
}

# What may be written to swap space: none, shared memory, or all; nothing if /proc does not tell.
swap() {
    if [ -r /proc/swaps ]; then
        total=$(($(wc -l </proc/swaps) - 1))
    else
        total=$(awk '$1 == "SwapTotal:" { print $2 }' /proc/meminfo 2>/dev/null)
        [ -n "$total" ] || return
    fi
    if [ "$total" -le 0 ]; then
        echo none
        return
    fi
    group=$(sed -n 's/^0:://p' "/proc/$pid/cgroup" 2>/dev/null)
    case $group in
    *..*) group= ;;
    esac
    while [ -n "$group" ]; do
        if [ "$(cat "/sys/fs/cgroup$group/memory.swap.max" 2>/dev/null)" = 0 ]; then
            echo shared
            return
        fi
        [ "$group" = / ] && break
        group=${group%/*}
        [ -n "$group" ] || group=/
    done
    echo all
}

# One look: maps, dump, maps, header. Sets $found to the check's status, and
# $clean if nothing changed meanwhile and no hooked call was in progress.
look() {
    head -c "$most" "/proc/$pid/maps" >"$work/before" 2>/dev/null || cannot_look "vanished or foreign"
    [ "$(wc -c <"$work/before")" -lt "$most" ] || cannot_look "its mappings have longer names than are looked at"
    "$regall" dump "$pid" >"$work/dump" 2>"$work/why" || cannot_look "$(cat "$work/why")"
    head -c "$most" "/proc/$pid/maps" >"$work/after" 2>/dev/null || cannot_look "vanished"
    [ -s "$work/after" ] || cannot_look "vanished"
    space=$(swap)
    [ -n "$space" ] || ! grep -q ' kept ' "$work/dump" || cannot_look "/proc does not tell whether there is swap space"
    awk -v "pid=$pid" -v "swap=$space" -f "$work/check.awk" "$work/dump" "$work/after" >"$work/gaps"
    found=$?
    [ "$found" -eq 0 ] && return
    clean=
    "$regall" dump "$pid" >"$work/dump2" 2>"$work/why" || cannot_look "$(cat "$work/why")"
    header=$(head -n 1 "$work/dump")
    case $header in
    *' busy 0') ;;
    *) return ;;
    esac
    [ "$header" = "$(head -n 1 "$work/dump2")" ] && cmp -s "$work/before" "$work/after" && clean=1
}

began=$(date +%s)
: >"$work/last"
while :; do
    look
    case $found in
    0)
        echo "$pid: ok, $(wc -l <"$work/after") mappings"
        exit 0
        ;;
    1) ;;
    3) cannot_look "$(head -n 1 "$work/gaps")" ;;
    *) cannot_look "awk failed" ;;
    esac
    if [ -n "$clean" ]; then
        # Lines of this look that were in the last clean one too.
        if grep -Fxf "$work/last" "$work/gaps" >"$work/proven" && [ -s "$work/last" ]; then
            sed "s/^/$pid: /" "$work/proven" | plain
            exit 1
        fi
        cp "$work/gaps" "$work/last"
    fi
    [ $(($(date +%s) - began)) -gt 5 ] && cannot_look "busy for 5 s"
    sleep 0.01 2>/dev/null || sleep 1
done
