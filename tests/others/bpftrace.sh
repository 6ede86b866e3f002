#!/bin/bash
# Uprobes on the very functions that the shim patches, while a program runs and after.
mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null || true
libc=$(ldd "$BIN/frames" | awk '$1 == "libc.so.6" { print $3 }')
probes=''
for function in mmap munmap brk malloc; do
    probes+="uprobe:$libc:$function /comm == \"frames\"/ { @calls[\"$function\"] = count(); } "
done
counted() { sed -nE 's/^@calls\[([a-z]+)\]: .*/\1/p' | sort; }
timeout 20 bpftrace -e 'BEGIN { exit(); }' >/dev/null 2>said || { echo "SKIP bpftrace can't run here: $(tail -n 1 said)"; exit 0; }

echo "== from its start"
# The program's own: what it does 2000 times.
timeout 60 bpftrace -e "$probes" -c "/usr/bin/env ${WITH:+LD_PRELOAD=$SHIM }REGALL=1 $BIN/frames 2000" >traced 2>said || cat said
grep -o 'sum.*' traced
sed -nE 's/^@calls\[munmap\]: ([0-9]+)/\1/p' traced | awk '{ print ($1 >= 2000 ? "munmap seen" : "missed: " $1) }'

echo "== comes and goes while it runs"
begin "$BIN/frames" 400000 >result
sleep 0.2
for _ in 1 2; do
    timeout 60 bpftrace -p "$pid" -e "$probes interval:ms:400 { exit(); }" 2>said | counted | grep -E 'mmap|munmap' || cat said
done
served "$pid"
wait "$pid" || echo "exit $?"
cat result
