"""compare.py finds what is wrong with the results of trainings."""

import copy
import pathlib
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).parent / "pack/frameworks"))
import compare


def run(allocator="native"):
    machine = dict.fromkeys([*compare.MACHINE, "date"], "x") | {"device bytes": compare.MiB}
    figures = dict.fromkeys(compare.NUMBERS, 2.0 * compare.MiB) | {"items": "tokens"}
    return {
        "allocator": allocator,
        "simulated": False,
        "machine": machine,
        "losses": [value.hex() for value in (7.5, 6.25, 5.125)],
        **{model: dict(figures) for model in compare.MODELS},
        "is": {"torch": allocator},
    }


class Compared(unittest.TestCase):
    def setUp(self):
        self.runs = {"native": run(), "native again": run(), "bfc": run("bfc")}

    def assert_found(self, text):
        errors = compare.errors(self.runs)
        self.assertTrue(any(text in error for error in errors), errors)

    def test_good_runs_pass_and_the_table_names_the_device(self):
        self.assertEqual(compare.errors(self.runs), [])
        self.assertIn("| bfc |", compare.table(self.runs))
        self.assertIn("x (1 MiB), x", compare.table(self.runs))

    def test_a_loss_that_differs_in_its_last_bit(self):
        self.runs["bfc"]["losses"][1] = (6.25 + 2**-50).hex()
        self.assert_found("native and bfc differ at step 1")

    def test_kernels_that_are_not_deterministic(self):
        self.runs["native again"]["losses"][2] = (5.0).hex()
        self.assert_found("not deterministic")

    def test_a_model_that_did_not_learn(self):
        for losses in [["nan"] * 3, [(1.0).hex()] * 3]:
            for one in self.runs.values():
                one["losses"] = losses
            self.assert_found("did not learn")

    def test_an_incomplete_file(self):
        whole = copy.deepcopy(self.runs)
        for key in run():
            self.runs = copy.deepcopy(whole)
            del self.runs["bfc"][key]
            self.assert_found(f"bfc: {key} is missing")
        self.runs = copy.deepcopy(whole)
        self.runs["bfc"]["resnet"]["peak reserved"] = 0
        self.assert_found("peak reserved of resnet is 0")

    def test_runs_that_cannot_be_compared(self):
        whole = copy.deepcopy(self.runs)
        self.runs["bfc"]["machine"]["torch"] = "y"
        self.assert_found("not from one machine")
        self.runs = copy.deepcopy(whole)
        self.runs["bfc"]["losses"].pop()
        self.assert_found("not runs of the same kind")
        self.runs = copy.deepcopy(whole)
        self.runs["bfc"]["gpt"]["steps"] += 1
        self.assert_found("different numbers of steps")
        self.runs = {"native": run()}
        self.assert_found("two files are needed")

    def test_losses_of_the_simulated_driver_are_not_compared(self):
        for one in self.runs.values():
            one["simulated"] = True
        self.runs["bfc"]["losses"][0] = "nan"
        self.assertEqual(compare.errors(self.runs), [])
        self.assertIn("no losses were compared", compare.table(self.runs))
        self.runs["bfc"]["simulated"] = False
        self.assert_found("not runs of the same kind")
