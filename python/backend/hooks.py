"""What hatchling does not know by itself: how the library is built, the wheel's platform, and the URLs of Cargo.toml."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sysconfig
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface


class Urls(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        manifest = pathlib.Path(self.root, "Cargo.toml").read_text(encoding="utf-8")
        found = re.findall(r'^(repository|homepage|documentation) = "(.+)"$', manifest, re.MULTILINE)
        metadata["urls"] = {name.capitalize(): url for name, url in found}


class Library(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        # Set by `cargo xtask wheel`, which has built the library for it already.
        platform = os.environ.get("BFC_WHEEL_PLATFORM")
        if platform is None:
            command = ["cargo", "run", "--package", "xtask", "--", "wheel", "--stage"]
            subprocess.run(command, cwd=self.root, check=True)
            platform = re.sub("[-.]", "_", sysconfig.get_platform())
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
