#!/bin/bash
gdb=(gdb -nx -batch -iex 'set debuginfod enabled off' -iex 'set pagination off')
with=()
[ -z "$WITH" ] || with=(-iex "set exec-wrapper env LD_PRELOAD=$SHIM REGALL=1")
# Functions by name, of a backtrace; what is above main's caller is libc's own affair.
names() { sed -nE 's/^#([0-9]+) +(0x[0-9a-f]+ in )?([A-Za-z0-9_]+)( ?\(.*| at .*|$)/\1 \3/p'; }

echo "== from its start"
"${gdb[@]}" "${with[@]}" -ex 'break inner' -ex run -ex 'bt' -ex 'finish' -ex 'break mmap' -ex 'delete 1' -ex continue \
    -ex bt -ex 'info sharedlibrary' -ex 'delete' -ex 'call (int)getppid() > 0' -ex 'call outer(3)' -ex 'print found' -ex continue --args "$BIN/frames" 20 2>&1 |
    tee "$HERE/log" | grep -E '^#|^\$|^sum|exited|Run till' | sed -E 's/^(#[0-9]+ +)0x[0-9a-f]+ in /\1/; s/ at .*//; s/ from .*//; s/process [0-9]+/process/; s/0x[0-9a-f]+/ADDRESS/g; s/addr=[^)]*/ARGUMENTS/'
[ -z "$WITH" ] || grep -q libregall log || wrong "gdb's program is without the shim"

echo "== attached, parked"
begin "$BIN/frames" park
eventually grep -q S "/proc/$pid/task/$pid/stat"
sleep 0.3
served "$pid"
"${gdb[@]}" -p "$pid" -ex 'thread apply all bt' -ex 'print found' -ex 'print kept[1000000]' -ex 'info threads' 2>/dev/null |
    sed -nE 's/^(#[0-9]+) +(0x[0-9a-f]+ in )?([A-Za-z0-9_]+).*/\1 \3/p; /^\$/p; s/^.*Thread 0x.*"([a-z]+)".*/thread \1/p'
echo "== core"
gcore -o core "$pid" >/dev/null 2>&1
for read in "gdb" "eu-stack"; do
    case $read in
    gdb)
        "${gdb[@]}" "$BIN/frames" "core.$pid" -ex 'thread apply all bt' -ex 'print found' -ex 'print kept[1000000]' 2>/dev/null |
            sed -nE 's/^(#[0-9]+) +(0x[0-9a-f]+ in )?([A-Za-z0-9_]+).*/\1 \3/p; /^\$/p'
        ;;
    eu-stack) eu-stack --core "core.$pid" -e "$BIN/frames" 2>/dev/null | sed -nE 's/^(#[0-9]+) +0x[0-9a-f]+ ?(.*)/\1 \2/p' ;;
    esac
done
eu-stack -p "$pid" 2>/dev/null | sed -nE 's/^(#[0-9]+) +0x[0-9a-f]+ ?(.*)/\1 \2/p'
served "$pid"
kill -CONT "$pid"
echo "== its own core"
if [ "$(cat /proc/sys/kernel/core_pattern)" = core ]; then
    ulimit -c unlimited
    mkdir cores
    cd cores || exit
    begin "$BIN/frames" park
    sleep 0.3
    kill -ABRT "$pid"
    wait "$pid" || echo "exit $?"
    "${gdb[@]}" "$BIN/frames" core* -ex 'thread apply all bt' -ex 'print kept[1000000]' 2>/dev/null |
        sed -nE 's/^(#[0-9]+) +(0x[0-9a-f]+ in )?([A-Za-z0-9_]+).*/\1 \3/p; /^\$/p'
fi
