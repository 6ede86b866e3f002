#!/bin/bash
export PERF_BUILDID_DIR=$HERE/debug DEBUGINFOD_URLS=
with=()
[ -z "$WITH" ] || with=(env "LD_PRELOAD=$SHIM" REGALL=1)
perf stat -o stat -e task-clock true 2>said || { echo "SKIP perf can't count here: $(tail -n 1 said)"; exit 0; }

# Samples in user mode, by their stacks: the program's frames are there, whoever is below.
for how in dwarf fp; do
    echo "== $how"
    perf record -q -o data -F 499 -e cpu-clock:u --call-graph $how "${with[@]}" "$BIN/frames" 150000 || echo "exit $?"
    perf script -i data --comm frames -F ip,sym 2>/dev/null | awk -v how=$how '
        function end() {
            if (n == 0) return
            if (text ~ / main /) {
                all++
                # Without frame pointers libc hides its caller, and so does a function of the
                # program in its first instruction.
                order = how == "dwarf" ? "( inner)?( middle)? outer.* main " : "( outer.*| middle) main "
                if (text !~ order && text !~ /^ main /) { bad++; print "not whole:" text > "/dev/stderr" }
            } else if (text !~ /_dl_|_start|dl_main|\[unknown\]|rtld/) stray++
            n = 0; text = " "
        }
        BEGIN { text = " " }
        /^$/ { end(); next }
        { text = text $2 " "; n++ }
        END { end(); print (all > 5 ? "some" : "too few") " samples with main, " bad + 0 " not whole" }'
done
echo "== trace"
perf trace -o traced -e munmap "${with[@]}" "$BIN/frames" 50 2>&1 || echo "exit $?"
grep -c 'munmap(addr: 0x[0-9a-f]*, len: 65536)' traced
