"""The pages of the book that are no files of docs/: the headers as they are, and what the bfc command says of itself.

A hook of MkDocs. BFC is the path of the command.
"""

import os
import pathlib
import subprocess

from mkdocs.structure.files import File

INCLUDE = pathlib.Path(__file__).parents[2] / "include"
PARTS = ["error", "options", "stream", "device", "pool", "allocation", "unique_ptr", "graph", "log", "metrics", "pmr"]
HEADERS = ["bfc.h", "bfc_adapters.h", "bfc.hpp", *(f"bfc/{part}.hpp" for part in PARTS)]
SUBCOMMANDS = [[], ["run"], ["report"], ["replay"], ["info"]]


def said(words):
    command = [os.environ["BFC"], *words, "--help"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def on_files(files, config):
    for name in HEADERS:
        text = f"# {name}\n\n```{'c' if name.endswith('.h') else 'cpp'}\n{(INCLUDE / name).read_text()}```\n"
        files.append(File.generated(config, f"include/{name}.md", content=text))
    parts = [f"## {' '.join(['bfc', *words])}\n\n```text\n{said(words)}```\n" for words in SUBCOMMANDS]
    introduction = "See also [running a program](run.md) and [the trace format](trace-format.md).\n"
    text = "\n".join(["# The bfc command\n", introduction, *parts])
    files.append(File.generated(config, "command.md", content=text))
    return files
