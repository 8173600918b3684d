"""What the tests of PyTorch have is used here too."""

import os
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parents[1] / "pytorch"))
from running import libraries

# Torch wants NVIDIA's libraries, or those in their place, also where it is never asked for a GPU. The processes of
# pytest-xdist, which import it, are started with this.
os.environ["LD_LIBRARY_PATH"] = libraries()
