"""Which file of a crate needs which other, by the paths in its source.

The source is parsed (tree-sitter) and not compiled. Every path is resolved over the tree of modules: of `use` declarations,
inline ones, and those among a macro's tokens. Code for tests only is left out. A method call names no path and is not seen.
"""

import pathlib
import re
from typing import NamedTuple

import tree_sitter
import tree_sitter_rust

PARSER = tree_sitter.Parser(tree_sitter.Language(tree_sitter_rust.language()))
DEFINITIONS = (
    "const_item enum_item function_item function_signature_item macro_definition static_item struct_item trait_item "
    "type_item union_item"
).split()
WORDS = {"identifier", "type_identifier", "crate", "self", "super", "metavariable"}
ROOTS = ("crate", "self", "super")
# `cfg` predicates that are false without `test`.
TESTS_ONLY = re.compile(r"#\[(test|cfg\((test|all\((.*,\s*)?test\b.*\)|any\(test(, all\(.*test\))?\)|not\(not\(test\)\))\))\]$")


class Import(NamedTuple):
    """One file that needs another, both by their paths in the project; where in the first, and as it is written there."""

    source: str
    line: int
    target: str
    path: str

    def __str__(self):
        return f"{self.source}:{self.line} imports {self.target} by `{self.path}`"


class Module:
    def __init__(self, file, parent=None):
        self.file, self.parent = file, parent
        # What a name means: a module, the file of an item, or the path of an import. It may mean several things.
        self.names, self.globs, self.macros = {}, [], {}

    def name(self, name, meaning):
        meanings = self.names.setdefault(name, [])
        if meaning not in meanings:
            meanings.append(meaning)

    def around(self):
        """The module, and those that it is in."""
        return [self, *(self.parent.around() if self.parent else [])]


class Crate:
    """The crate whose source is in a folder of the project."""

    def __init__(self, project, folder, texts=None):
        self.project, self.folder, self.texts = pathlib.Path(project), folder, texts
        self.files, self.mentions, self.not_understood = [], [], []
        root = next((name for name in ("lib.rs", "main.rs") if self._has(name)), None)
        if root is None:
            raise ValueError(f"{folder} has neither lib.rs nor main.rs")
        self.root = Module(root)
        self._read(self.root, "")

    def imports(self):
        """The imports between files. A file that passes a name on is imported as well as the one that defines it."""
        explicit, implied = set(), {}
        for module, path, line, kind in self.mentions:
            for target in self._files(module, path, kind) - {module.file}:
                source, target = f"{self.folder}/{module.file}", f"{self.folder}/{target}"
                found = Import(source, line, target, "::".join(path) + ("::*" if kind == "glob" else ""))
                if kind in ("use", "glob") or path[0] in ROOTS:
                    explicit.add(found)
                else:
                    implied.setdefault((source, target), found)
        # What an import is used for is no other one, unless it leads elsewhere.
        known = {(found.source, found.target) for found in explicit}
        return sorted(explicit | {found for pair, found in implied.items() if pair not in known})

    # Reading.

    def _has(self, path):
        return path in self.texts if self.texts is not None else (self.project / self.folder / path).is_file()

    def _read(self, module, folder):
        path = module.file
        self.files.append(f"{self.folder}/{path}")
        text = self.texts[path].encode() if self.texts is not None else (self.project / self.folder / path).read_bytes()
        tree = PARSER.parse(text)
        if tree.root_node.has_error:
            self.not_understood.append(f"{self.folder}/{path} cannot be parsed")
        declared = []
        self._items(module, tree.root_node, folder, declared)
        # Children come after, so that this file's macros are known to be its own.
        for parent, name, inside, uses_macros in declared:
            own = next((file for file in (f"{inside}{name}.rs", f"{inside}{name}/mod.rs") if self._has(file)), None)
            if own is None:
                self.not_understood.append(f"{self.folder}/{path}: mod {name} has no file")
                continue
            child = Module(own, parent)
            parent.name(name, child)
            self._read(child, f"{inside}{name}/")
            if uses_macros:
                parent.macros |= child.macros

    def _items(self, module, node, folder, declared):
        """Reads the children of a node, without those that are for tests only."""
        attributes = []
        for child in node.children:
            if child.type == "attribute_item":
                attributes.append(child.text.decode())
            elif child.type not in ("line_comment", "block_comment", ","):
                if not any(TESTS_ONLY.match(attribute) for attribute in attributes):
                    self._node(module, child, folder, declared, attributes)
                attributes = []

    def _node(self, module, node, folder, declared, attributes=()):
        kind, line = node.type, node.start_point[0] + 1
        if kind == "mod_item":
            name, body = node.child_by_field_name("name").text.decode(), node.child_by_field_name("body")
            uses_macros = "#[macro_use]" in attributes
            if body is None:
                declared.append((module, name, folder, uses_macros))
                return
            child = Module(module.file, module)
            module.name(name, child)
            self._items(child, body, f"{folder}{name}/", declared)
            if uses_macros:
                module.macros |= child.macros
            return
        if kind == "use_declaration":
            for path, known_as in uses(node.child_by_field_name("argument"), []):
                if known_as == "*":
                    module.globs.append(path)
                    self.mentions.append((module, path, line, "glob"))
                elif path:
                    module.name(known_as, tuple(path))
                    self.mentions.append((module, path, line, "use"))
            return
        own_attributes = (child.text.decode() for child in node.children if child.type == "attribute_item")
        if kind == "match_arm" and any(TESTS_ONLY.match(attribute) for attribute in own_attributes):
            return
        if kind in ("visibility_modifier", "extern_crate_declaration", "attribute_item", "inner_attribute_item"):
            return
        # What a type or a trait has is no name of the module.
        around = node.parent.parent and node.parent.parent.type
        if kind in DEFINITIONS and around not in ("impl_item", "trait_item"):
            name = node.child_by_field_name("name").text.decode()
            module.name(name, module.file)
            if kind == "macro_definition":
                module.macros[name] = module.file
                if "#[macro_export]" in attributes:
                    self.root.name(name, module.file)
        if kind in ("token_tree", "token_tree_pattern"):
            for path, line, how in token_paths(list(leaves(node))):
                self.mentions.append((module, path, line, how))
            return
        if kind == "macro_invocation":
            path = words(node.child_by_field_name("macro"))
            if path == ["include"]:
                self.not_understood.append(f"{self.folder}/{module.file}:{line}: include! is not followed")
            if path:
                self.mentions.append((module, path, line, "macro"))
            self._node(module, node.children[-1], folder, declared)
            return
        path = words(node)
        if path:
            self.mentions.append((module, path, line, "inline"))
        elif path is None:
            self._items(module, node, folder, declared)

    # Resolving: a target is a module or the file of an item; `through` are files with imports that lead there.

    def _files(self, module, path, kind):
        targets, files = self._lookup_macro(module, path[0]) if kind == "macro" and len(path) == 1 else self._resolve(module, path, ())
        for target in targets:
            if isinstance(target, str):
                files = files | {target}
            # A single word in the code names no module, and the name of a module around this one says nothing yet.
            elif not (kind == "inline" and len(path) == 1) and not (kind == "use" and target in module.around()):
                files = files | {target.file}
        return files

    def _lookup_macro(self, module, name):
        targets, through = self._lookup(module, name, False, ())
        if not targets:
            targets = {next((outer.macros[name] for outer in module.around() if name in outer.macros), None)} - {None}
        return targets, through

    def _resolve(self, module, path, busy):
        first, *rest = path
        if first in ("crate", "$crate"):
            targets, through = {self.root}, set()
        elif first == "self":
            targets, through = {module}, set()
        elif first == "super":
            targets, through = {module.parent} - {None}, set()
        else:
            targets, through = self._lookup(module, first, bool(rest), busy)
        for place, word in enumerate(rest):
            following = set()
            for target in targets:
                if isinstance(target, str):
                    # What comes after a type belongs to it.
                    following.add(target)
                elif word == "super":
                    following |= {target.parent} - {None}
                elif word == "self":
                    following.add(target)
                else:
                    inner, passed = self._lookup(target, word, place + 1 < len(rest), busy)
                    through = through | passed
                    following |= inner or {target.file}
            targets = following
        return targets, through

    def _lookup(self, module, name, is_prefix, busy):
        """What a name means in a module: by what is defined and imported there, else by what its glob imports bring."""
        if (module, name) in busy:
            return set(), set()
        busy, targets, through = (*busy, (module, name)), set(), set()
        meanings = module.names.get(name, [])
        # Before `::` a module is meant where there is one, and not a function that has its name.
        if is_prefix and any(isinstance(meaning, Module) for meaning in meanings):
            meanings = [meaning for meaning in meanings if isinstance(meaning, Module)]
        for meaning in meanings:
            if not isinstance(meaning, tuple):
                targets.add(meaning)
                continue
            inner, passed = self._resolve(module, meaning, busy)
            # A name of another crate is as good as defined by the file that passes it on.
            targets |= inner or {module.file}
            through |= passed | {module.file}
        if not targets:
            for glob in module.globs:
                outer, passed = self._resolve(module, glob, busy)
                for target in outer:
                    inner, further = (set(), set()) if isinstance(target, str) else self._lookup(target, name, is_prefix, busy)
                    if inner:
                        targets |= inner
                        through |= further | passed | {module.file}
        return targets, through


def words(node):
    """The words of a path; none of what is no path of this crate; None of what has to be looked into."""
    if node.type in WORDS:
        return [node.text.decode()]
    if node.type in ("scoped_identifier", "scoped_type_identifier"):
        before, name = node.child_by_field_name("path"), node.child_by_field_name("name")
        if before is None:
            return []
        before = words(before)
        return before and [*before, name.text.decode()]
    return None


def uses(node, prefix):
    """The paths of a use declaration, each with the name that it gives; `*` for all names."""
    if node.type == "use_list":
        for child in node.named_children:
            yield from uses(child, prefix)
    elif node.type == "scoped_use_list":
        before = node.child_by_field_name("path")
        yield from uses(node.child_by_field_name("list"), [*prefix, *(words(before) or [] if before else [])])
    elif node.type == "use_wildcard":
        yield [*prefix, *(words(node.named_children[0]) or [] if node.named_children else [])], "*"
    elif node.type == "use_as_clause":
        path = [*prefix, *(words(node.child_by_field_name("path")) or [])]
        yield path[:-1] if path[-1:] == ["self"] and len(path) > 1 else path, node.child_by_field_name("alias").text.decode()
    else:
        path = [*prefix, *(words(node) or [])]
        if path[-1:] == ["self"] and len(path) > 1:
            path = path[:-1]
        yield path, path[-1] if path else ""


def leaves(node, depth=0):
    """The tokens in a node with their lines, and how many modules each is in that are among the tokens themselves."""
    if not node.children or node.type in ("string_literal", "raw_string_literal", "char_literal"):
        if not node.type.endswith(("comment", "literal")):
            yield node.text.decode(), node.start_point[0] + 1, depth
        return
    for place, child in enumerate(node.children):
        is_module = child.type.startswith("token_tree") and place > 1 and node.children[place - 2].text == b"mod"
        yield from leaves(child, depth + is_module)


def balanced(tokens):
    return sum({"{": 1, "}": -1}.get(token[0], 0) for token in tokens) == 0


def token_paths(tokens):
    """The paths that the tokens of a macro seem to mention. A single word is one too: it may come from a glob import."""
    at, is_word = 0, re.compile(r"\$?[A-Za-z_]\w*$").match
    while at < len(tokens):
        word, line, depth = tokens[at]
        before = tokens[at - 1][0] if at else ""
        at += 1
        if not is_word(word):
            continue
        path = [word]
        while at + 1 < len(tokens) and tokens[at][0] == "::" and is_word(tokens[at + 1][0]):
            path.append(tokens[at + 1][0])
            at += 2
        if at + 1 < len(tokens) and tokens[at][0] == "::" and tokens[at + 1][0] == "{":
            ends = [place for place in range(at, len(tokens)) if tokens[place][0] == "}"]
            end = next(end for end in ends if balanced(tokens[at + 1 : end + 1]))
            yield from ((path + inner, *rest) for inner, *rest in token_paths(tokens[at + 2 : end]))
            at = end + 1
            continue
        # A field or a method, a lifetime, the rest of a path that began with something else.
        if before in (".", "'", "::") or path[0] != "$crate" and path[0].startswith("$"):
            continue
        # As the outermost module would write it. What is in the inner one is as good as the outer's own.
        ups = next((place for place, word in enumerate(path) if word != "super" or place == depth), len(path))
        path = ["self", *path[ups:]] if ups else path
        is_macro = at < len(tokens) and tokens[at][0] == "!" and (at + 1 == len(tokens) or tokens[at + 1][0] != "=")
        yield path, line, "macro" if is_macro else "inline"
