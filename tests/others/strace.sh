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
echo "== strace -f -k"
with=()
[ -z "$WITH" ] || with=(-E "LD_PRELOAD=$SHIM" -E REGALL=1)
strace -f -k -o trace -e trace=mmap,munmap "${with[@]}" "$BIN/frames" 20
# Calls of the program's own, by their size.
awk '/^[0-9]+ +[a-z]+\(/ { if (line != "") print line; line = ""; if ($0 ~ /mmap\(NULL, 65536, PROT_READ\|PROT_WRITE|munmap\(0x[0-9a-f]+, 65536\)/) line = "call"; next }
    line != "" { name = $0; sub(/^ > [^(]*\(/, "", name); sub(/[+)].*/, "", name); line = line " " (name == "" ? "??" : name) }
    END { if (line != "") print line }' trace | grep -v _dl_ | sed 's/^call //' >chains
wc -l <chains
whole <chains
