"""The installed tree, where it was installed and elsewhere."""

import shutil

import pytest


@pytest.fixture(scope="session", params=["installed", "moved"])
def tree(request, prefix, tmp_path_factory):
    """A copy is as good as a tree that was moved: a test sees to it that no file names the old place."""
    if request.param == "installed":
        return prefix
    return shutil.copytree(prefix, tmp_path_factory.mktemp("to") / "here", symlinks=True)
