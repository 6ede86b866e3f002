"""The verdicts of benches/caches, of figures that were never measured: `tests/outputs.rs` runs it."""
import copy
import pathlib
import sys
import time
import unittest

sys.dont_write_bytecode = True

from rig import caches  # noqa: E402

STACK = "mpich"
FIGURES = {"messages": 16, "reg": 0, "dereg": 0, "reg_inside": 0, "dereg_inside": 0, "wrong": 0, "clock": 100, "beside": 0, "map": 0,
           "map_inside": 0, "alive": 1, "maps": 10}
REGIONS = {"regions": 5, "counted": 5, "patched_by": "nobody", "ticks": 2_000_100}


def figures():
    run = {**{p: FIGURES for p in caches.PATTERNS}, "regions": REGIONS}
    keys = [(how, STACK, *setting) for how in ("events", "instructions") for setting in caches.SETTINGS]
    return {key: copy.deepcopy(run) for key in keys}


def missed(found):
    return [row[0] for row in caches.checks(found, STACK) if row[-1] != "pass"]


class Verdicts(unittest.TestCase):
    def test_good_figures_pass(self):
        self.assertEqual(missed(figures()), [])

    def test_what_was_not_counted_does_not_pass(self):
        found = figures()
        found["events", STACK, "none", "auto"]["regions"]["counted"] = 0
        self.assertEqual(len(missed(found)), 1)

    def test_cycles_are_no_instructions(self):
        found = figures()
        found["instructions", STACK, "none", "auto"]["regions"]["ticks"] = 800_000
        self.assertEqual(len(missed(found)), 1)

    def test_a_third_of_less_than_nothing(self):
        for regall, cached, met in ((13, 40, True), (14, 40, False), (1, -40, False), (1, 0, False), (0, 0, True), (-50, -40, True)):
            self.assertEqual(caches.beyond(regall, cached)[1], met, (regall, cached))

    def test_who_is_late_ends_with_its_children(self):
        said, how = caches.ended(["sh", "-c", "sleep 100 & echo $!; wait"], 1)
        self.assertTrue(how.startswith("late"))
        state = pathlib.Path(f"/proc/{int(said)}/stat")

        def ended():
            try:
                return state.read_text().rsplit(")", 1)[1].split()[0] == "Z"
            except (FileNotFoundError, ProcessLookupError):
                return True

        # (Killed, it may yet have to be given processor time to end.)
        self.assertTrue(any(ended() or time.sleep(0.1) for _ in range(100)))
        self.assertEqual(caches.ended(["sh", "-c", "exit 3"], 60), ("", "3"))


if __name__ == "__main__":
    unittest.main()
