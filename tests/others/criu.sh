#!/bin/bash
# A process is written down and ended, and goes on from that.
here() { # FOLDER PID
    mkdir "$1"
    criu dump --shell-job -D "$1" -o log -t "$2" >/dev/null 2>&1
}
sleep 60 &
here tried $! || { echo "SKIP criu can't dump here: $(sed -n 's/^.*Error *//p' tried/log | head -n 1)"; exit 0; }
begin "$BIN/frames" park >result
eventually grep -q S "/proc/$pid/task/$pid/stat"
served "$pid"
here image "$pid" || sed -n 's/^.*Error *//p' image/log
criu restore --shell-job -D image -o log -d >/dev/null 2>&1 || sed -n 's/^.*Error *//p' image/log
served "$pid"
kill "$pid"
