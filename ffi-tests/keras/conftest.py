"""TensorFlow without what it says of itself at the beginning, and without the user's settings of Keras."""

import os

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "KERAS_HOME": os.path.join(os.environ["LIBBFC_TESTS_SCRATCH"], "keras-home")}
