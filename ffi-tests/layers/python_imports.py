"""Which module of a Python package needs which other. Imports within functions and for type checkers only count too."""

import ast
import pathlib

from imports import Import


class Package:
    """The package whose source is in a folder of the project, which has its name."""

    def __init__(self, project, folder, texts=None):
        root = pathlib.Path(project, folder)
        self.folder, self.not_understood = folder, []
        self.texts = texts or {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*.py")}
        self.files = [f"{folder}/{path}" for path in self.texts]
        self.modules = {".".join([*self._around(path), pathlib.Path(path).stem]).removesuffix(".__init__"): path for path in self.texts}

    def imports(self):
        """The imports between files. What is imported of the package itself is its __init__.py's, unless it is a module."""
        found = set()
        for path, text in self.texts.items():
            for node in ast.walk(ast.parse(text)):
                for name in self._names(path, node):
                    target = self.modules.get(name) or self.modules.get(name.rpartition(".")[0])
                    if target not in (None, path):
                        found.add(Import(f"{self.folder}/{path}", node.lineno, f"{self.folder}/{target}", name))
        return sorted(found)

    def _around(self, path):
        """The words of the name of the package that a file is in."""
        return [pathlib.Path(self.folder).name, *pathlib.Path(path).parent.parts]

    def _names(self, path, node):
        """The full names that a statement imports."""
        if isinstance(node, ast.Import):
            return [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            around = self._around(path)
            before = around[: len(around) + 1 - node.level] if node.level else []
            return [".".join([*before, *filter(None, [node.module]), alias.name]) for alias in node.names]
        return []
