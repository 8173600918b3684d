"""Prints why the PyTorch of this interpreter cannot run on the simulated driver, and nothing if it can. `cargo xtask simulate`
runs it with a user's interpreter, so it imports the standard library alone, and not PyTorch."""

import importlib.util
import pathlib
import runpy

# PyTorch is linked with the libraries in these folders by an RPATH, which comes before LD_LIBRARY_PATH.
OF_NVIDIA = ["lib/libcudart*.so*", "../nvidia/*/lib/lib*.so*"]


def requirements():
    """The versions of the tests' packages, by name."""
    lines = pathlib.Path(__file__).with_name("requirements.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if "==" in line)


def trouble(release):
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return "it has no PyTorch"
    package = pathlib.Path(found.origin).parent
    about = runpy.run_path(str(package / "version.py"))
    version = about["__version__"]
    if about["cuda"] is None:
        return f"its PyTorch {version} is built without CUDA"
    if version.partition("+")[0] != release:
        return f"its PyTorch is {version}, and the simulation is for {release}"
    theirs = [path for pattern in OF_NVIDIA for path in package.glob(pattern)]
    if theirs:
        return f"it has NVIDIA's own libraries, which PyTorch loads in the place of the simulated ones: {theirs[0].resolve()}"
    return None


def main():
    release = requirements()["torch"]
    why = trouble(release)
    if why:
        needed = "filelock fsspec jinja2 markupsafe mpmath networkx numpy setuptools sympy typing-extensions"
        print(f"{why}; leave out --python, or use an environment like this one:")
        print(f"  python3 -m venv DIR && DIR/bin/pip install --no-deps torch=={release} {needed}")


if __name__ == "__main__":
    main()
