#!/bin/bash
# Backtraces in which a frame of the program is missing, and whether there were any. Each is
# one line: functions by name, innermost first. `main` called `outer`, which called `middle`,
# which called `inner`, and that made the memory call; who is not below another is where
# execution was.
whole() {
    awk '{
        chain = ""; below = 0
        for (n = 1; n <= NF; n++)
            if ($n ~ /^(inner|middle|outer|main)$/) chain = chain $n " "
            else if (chain == "") below++
        all++
        if (substr("inner middle outer main ", 25 - length(chain)) != chain || chain == "" || below && chain !~ /^inner/) { bad++; print "not whole: " $0 > "/dev/stderr" }
    } END { print (all > 0 ? "some" : "no") " backtraces, " bad + 0 " not whole" }'
}
# A line for each, of gdb's or eu-stack's numbered lines.
joined() {
    sed -nE 's/^#([0-9]+) +(0x[0-9a-f]+ +)?(in )?([A-Za-z0-9_@.:]*).*/\1 \4/p' |
        awk '$1 == 0 && NR > 1 { print line; line = "" } { line = line " " ($2 == "" ? "??" : $2) } END { print line }'
}

echo "== gdb and eu-stack, attached at any moment"
begin "$BIN/frames" 1000000000
eventually test -d "/proc/$pid/map_files"
sleep 0.2
for _ in 1 2 3 4 5 6; do
    eu-stack -p "$pid" 2>/dev/null
done | joined | whole
for _ in 1 2 3 4; do
    gdb -nx -batch -iex 'set debuginfod enabled off' -p "$pid" -ex bt 2>/dev/null | grep '^#'
done | joined | whole
served "$pid"
kill "$pid"

echo "== ltrace"
ltrace -f -e mmap+munmap -o ltraced env ${WITH:+"LD_PRELOAD=$SHIM" REGALL=1} "$BIN/frames" 5 || echo "exit $?"
sed -nE 's/^.*(frames->)?(mmap|munmap)\(.*/\2/p; s/.*(exited \(status [0-9]+\)).*/\1/p' ltraced | uniq -c
