"""What the tests of PyTorch have is used here too."""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parents[1] / "pytorch"))
