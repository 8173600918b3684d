"""That compare.py finds what is wrong: `python3 compare_test.py`, anywhere."""

import copy
import unittest

import compare


def run(allocator="native"):
    machine = dict.fromkeys([*compare.MACHINE, "date"], "x") | {"device bytes": compare.MiB}
    return {
        "allocator": allocator,
        "simulated": False,
        "machine": machine,
        "losses": [value.hex() for value in (7.5, 6.25, 5.125)],
        "speed": dict.fromkeys(compare.NUMBERS, 2.0 * compare.MiB) | {"rounds": [1.0, 2.0]},
        "is": {"torch": allocator},
    }


class Compared(unittest.TestCase):
    def setUp(self):
        self.told = {"native": run(), "native_again": run(), "bfc": run("bfc")}

    def found(self, words):
        wrong = compare.wrongs(self.told)
        self.assertTrue(any(words in line for line in wrong), wrong)

    def test_what_is_well_passes_and_names_the_machine(self):
        self.assertEqual(compare.wrongs(self.told), [])
        self.assertIn("| bfc |", compare.table(self.told))
        self.assertIn("machine x, x", compare.table(self.told))

    def test_a_loss_that_differs_in_its_last_bit(self):
        self.told["bfc"]["losses"][1] = (6.25 + 2**-50).hex()
        self.found("native and bfc differ at step 1")

    def test_kernels_that_are_not_deterministic(self):
        self.told["native_again"]["losses"][2] = (5.0).hex()
        self.found("not deterministic")

    def test_what_has_learnt_nothing(self):
        for losses in [["nan"] * 3, [(1.0).hex()] * 3]:
            for one in self.told.values():
                one["losses"] = losses
            self.found("learnt nothing")

    def test_what_is_not_whole(self):
        whole = copy.deepcopy(self.told)
        for key in run():
            self.told = copy.deepcopy(whole)
            del self.told["bfc"][key]
            self.found(f"bfc: {key} is missing")
        self.told = copy.deepcopy(whole)
        self.told["bfc"]["speed"]["peak reserved"] = 0
        self.found("peak reserved is 0")

    def test_other_machines_and_other_runs(self):
        whole = copy.deepcopy(self.told)
        self.told["bfc"]["machine"]["torch"] = "y"
        self.found("not of one machine")
        self.told = copy.deepcopy(whole)
        self.told["bfc"]["losses"].pop()
        self.found("not runs of the same kind")
        self.told = {"native": run()}
        self.found("nothing to compare")

    def test_of_the_simulation_losses_are_not_compared(self):
        for one in self.told.values():
            one["simulated"] = True
        self.told["bfc"]["losses"][0] = "nan"
        self.assertEqual(compare.wrongs(self.told), [])
        self.assertIn("No losses were compared", compare.table(self.told))
        self.told["bfc"]["simulated"] = False
        self.found("not runs of the same kind")


if __name__ == "__main__":
    unittest.main()
