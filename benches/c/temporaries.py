"""What numpy's temporaries cost: a sum of products of arrays, again and again. No message is sent.

    temporaries.py MIB...

For each size of an array a line goes to temporaries.PID in the working folder (ranks' output would be mixed):
MiB, nanoseconds an element.
SPDX-License-Identifier: MIT OR Apache-2.0
"""
import os
import sys
import time

import numpy

#: Bytes that one measurement goes over, so that all of them take about as long.
WORK = 768 << 20

lines = []
for mib in map(int, sys.argv[1:]):
    n = (mib << 20) // 8
    a, b, c = (numpy.arange(n, dtype=float) % 97 + k for k in range(3))
    times = []
    for _ in range(max(3, WORK // (mib << 20) // 4)):
        begun = time.process_time()
        # Two temporaries, and a result that takes the place of the one before.
        d = a * b + c * a
        times.append(time.process_time() - begun)
    assert d[-1] == a[-1] * b[-1] + c[-1] * a[-1]
    lines.append(f"{mib} {1e9 * sum(times) / len(times) / n:.4f}\n")
with open(f"temporaries.{os.getpid()}", "w") as f:
    f.writelines(lines)
