"""The table of scripts/test-times, of a run that never was: `tests/outputs.rs` runs it."""
import pathlib
import subprocess
import sys
import tempfile

SCRIPT = pathlib.Path(__file__).resolve().parent.parent / "scripts" / "test-times"
STAGES = "set-up\t1.5\nlint\t60\nguest 6.1\t200.25\nlint\t2\n"
CASES = "".join(f'<testcase name="quick_{n}" time="0.{n}"/>' for n in range(1, 10))
JUNIT = f"""<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="run"><testsuite name="crate::one">
<testcase name="slow" time="70.25"/>
<testcase name="again" time="3"><flakyFailure time="40.5" type="test failure"/></testcase>
<testcase name="broken" time="5"><failure type="test failure"/></testcase>
</testsuite><testsuite name="crate::two">{CASES}</testsuite></testsuites>
"""
LOG = "running 3 tests\nstock::a: 3.0 s: passed\nstock::b: 4.5 s: failed\nelse: 3 s\n"
WANTED = """
stages (some run beside others):
  set-up         1.5 s
  lint          62.0 s
  guest 6.1    200.2 s

sum of the tests of each binary:
  crate::one    118.8 s  3 tests
  crate::two      4.5 s  9 tests

slowest tests:
  crate::one slow        70.2 s
  crate::one again       43.5 s
  crate::one broken       5.0 s
  crate::two quick_9      0.9 s
  crate::two quick_8      0.8 s
  crate::two quick_7      0.7 s
  crate::two quick_6      0.6 s
  crate::two quick_5      0.5 s
  crate::two quick_4      0.4 s
  crate::two quick_3      0.3 s

slowest checks in the guest:
  stock::b      4.5 s
  stock::a      3.0 s
"""


def shown(folder, stages, junit):
    words = [sys.executable, SCRIPT, folder / stages, folder / junit, folder / "log"]
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    (folder / "stages").write_text(STAGES)
    (folder / "junit.xml").write_text(JUNIT)
    (folder / "log").write_text(LOG)
    said = shown(folder, "stages", "junit.xml")
    assert said == WANTED, f"{said}\ninstead of\n{WANTED}"
    assert "no times: " in shown(folder, "stages", "none"), "a missing file is not said"
