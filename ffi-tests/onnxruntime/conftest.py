"""The model that all tests run."""

import pathlib
import sys

import pytest

import programs

HERE = pathlib.Path(__file__).parent


def built_model():
    return programs.built("onnxruntime/model.onnx", [], lambda path: programs.check([sys.executable, HERE / "model.py", path]))


@pytest.fixture(scope="session")
def model():
    return str(built_model())
