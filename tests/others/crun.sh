#!/bin/bash
crun --root "$HERE/state" --cgroup-manager=disabled list >/dev/null 2>&1 || { echo "SKIP crun can't keep its state here"; exit 0; }
mkdir bundle
python3 - "$BIN/frames" "$present" <<'EOF'
import json, os, sys
shim = os.environ["WITH"] and ["LD_PRELOAD=" + os.environ["SHIM"], "REGALL=1", "REGALL_ONLY=*"]
look = f"{sys.argv[2]}; id; grep -E '^(Cap|NoNew|Seccomp:)' /proc/self/status; {sys.argv[1]} 20; echo $$"
json.dump({
    "ociVersion": "1.0.0",
    "process": {
        "user": {"uid": 0, "gid": 0}, "cwd": "/", "args": ["bash", "-c", look],
        "env": ["PATH=/usr/bin:/bin", *(shim or [])],
        "noNewPrivileges": True,
        "capabilities": {k: ["CAP_KILL"] for k in ("bounding", "effective", "permitted")},
    },
    "root": {"path": "/", "readonly": False},
    "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
    "linux": {
        "namespaces": [{"type": t} for t in ("pid", "mount", "ipc", "uts")],
        "seccomp": {"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64"],
                    "syscalls": [{"names": ["process_vm_readv", "process_vm_writev", "ptrace", "userfaultfd"], "action": "SCMP_ACT_ERRNO"}]},
    },
}, open("bundle/config.json", "w"))
EOF
shim crun --root "$HERE/state" --cgroup-manager=disabled run --bundle bundle others 2>"$HERE/said" || { echo "exit $?"; cat "$HERE/said"; }
