#!/usr/bin/env python3
"""Finds circles among the source files of each crate of the workspace.

A file uses another when a `use` line of it, or a path in its text (`crate::a::b`, `super::b`, `child::f`), leads to
something that the other file defines. Names are followed through `use` and `pub use` to the file that defines them,
so that a `mod.rs` that only declares its children and re-exports their names is in no circle; one that defines a type
which its children use, and uses the children itself, is. A circle is a set of files of which each leads to each.

Not read: tests (`#[cfg(test)]`, `#[test]`, and the files of such modules), and what lies outside `src`. Not seen:
calls of methods, whose `impl` may lie in another file than the type; what macros make. A name that its module does not
define as far as this script can tell counts as defined in that module's file.

    tests/circles.py [--json] [CRATE...]     # a crate's folder or its last part: master, common/engine, engine

Prints each circle with the lines that make it; ends with 1 if there is one, with 2 if it cannot read the workspace.
"""

import json
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

TOKEN = re.compile(
    r"""
    (?P<line>//[^\n]*) | (?P<block>/\*)
  | (?P<raw>(?:b|c|br|cr)?r(?P<hashes>\#*)") | (?P<text>[bc]?"(?:\\.|[^"\\])*")
  | (?P<char>b?'(?:\\(?:x[0-9a-fA-F]{2}|u\{[^}]*\}|.)|[^\\'])')
  | (?P<lifetime>'[A-Za-z_]\w*)
  | (?P<name>(?:r\#)?[A-Za-z_]\w*) | (?P<number>\d[\w.]*?(?=\.\.|[^\w.]|$))
  | (?P<path>::) | (?P<space>\s+) | (?P<mark>.)
    """,
    re.VERBOSE | re.DOTALL,
)
OPEN, CLOSE = {"(": ")", "[": "]", "{": "}"}, {")", "]", "}"}
DEFINES = {"fn", "struct", "enum", "trait", "type", "const", "static", "union", "macro_rules"}
TO_SEMICOLON = {"use", "const", "static", "type", "let", "extern"}
PREFIXES = {"pub", "unsafe", "async", "const", "extern", "default"}


def tokens_of(text):
    """The text's tokens as (text, line), without comments; a string is its text in quotes."""
    found, at, line = [], 0, 1
    while at < len(text):
        match = TOKEN.match(text, at)
        kind, end = match.lastgroup, match.end()
        if match.group("block"):
            depth = 1
            while depth and end < len(text):
                step = re.compile(r"/\*|\*/").search(text, end)
                if step is None:
                    end = len(text)
                    break
                depth += 1 if step.group() == "/*" else -1
                end = step.end()
        elif match.group("raw"):
            close = text.find('"' + match.group("hashes"), end)
            end = len(text) if close < 0 else close + 1 + len(match.group("hashes"))
            found.append(('""', line))
        elif kind not in ("line", "space", "char", "lifetime"):
            found.append((match.group(), line))
        line += text.count("\n", at, end)
        at = end
    return found


def closing(tokens, at):
    """The index of what closes the bracket at `at`."""
    depth = 0
    for index in range(at, len(tokens)):
        if tokens[index][0] in OPEN:
            depth += 1
        elif tokens[index][0] in CLOSE:
            depth -= 1
            if depth == 0:
                return index
    return len(tokens) - 1


def item_end(tokens, at):
    """The index after the item, statement or field that begins at `at`."""
    word = tokens[at][0] if at < len(tokens) else ""
    start = at
    while at < len(tokens) and (tokens[at][0] in PREFIXES or tokens[at][0] in ('""', "(")):
        if tokens[at][0] == "const" and tokens[at + 1][0] not in ("fn", "unsafe", "async", "extern"):
            break
        at = closing(tokens, at) + 1 if tokens[at][0] == "(" else at + 1
    word = tokens[at][0] if at < len(tokens) else ""
    item = word in DEFINES | {"mod", "impl", "use", "let"}
    at = start
    while at < len(tokens):
        text = tokens[at][0]
        if text == ";" or (text == "," and not item):
            return at + 1
        if text in CLOSE:
            return at
        if text in OPEN:
            at = closing(tokens, at)
            if text == "{" and word not in TO_SEMICOLON:
                return at + 1
        at += 1
    return at


def for_tests(attribute):
    """Whether what bears this attribute is built for tests only."""
    words = [text for text, _ in attribute]
    if words == ["test"] or words[-3:] == ["tokio", "::", "test"] or words[:3] == ["tokio", "::", "test"]:
        return True
    if words[:2] != ["cfg", "("]:
        return False
    depth = 0  # Of `all(test, not(miri))`, `test` is needed; of `not(test)` and `any(test, ...)` it is not.
    for before, word in zip(words, words[1:]):
        if word == "test" and depth == 0:
            return True
        if word == "(" and before not in ("cfg", "all"):
            depth += 1
        elif word == ")" and depth:
            depth -= 1
    return False


def without_tests(tokens):
    """The tokens less what is built for tests only; (tokens, whether the whole file is)."""
    kept, at = [], 0
    while at < len(tokens):
        if tokens[at][0] == "#" and at + 1 < len(tokens):
            inner = tokens[at + 1][0] == "!"
            begin = at + 2 if inner else at + 1
            if begin < len(tokens) and tokens[begin][0] == "[":
                end = closing(tokens, begin)
                if for_tests(tokens[begin + 1:end]):
                    if inner:
                        return [], True
                    at = end + 1
                    while at + 1 < len(tokens) and tokens[at][0] == "#" and tokens[at + 1][0] == "[":
                        at = closing(tokens, at + 1) + 1
                    at = item_end(tokens, at)
                    continue
        kept.append(tokens[at])
        at += 1
    return kept, False


class Module:
    """One module: its file, what it declares, and what its text names."""

    def __init__(self, file, parent, name):
        self.file, self.parent, self.name = file, parent, name
        self.children, self.items = {}, set()
        self.imports = {}  # Name: path, for each name that a `use` line brings here.
        self.globs = []  # Paths whose names all come here.
        self.uses = []  # (path, line, name that it brings or None for all, whether it is public)
        self.paths = []  # (path, line) in the text.
        self.names = {}  # Every other name in the text: the first line with it.

    def root(self):
        module = self
        while module.parent is not None:
            module = module.parent
        return module

    def all(self):
        yield self
        for child in self.children.values():
            yield from child.all()


def use_tree(tokens, prefix=()):
    """What a `use` line's tokens bring: (path, name or None for all, line) each."""
    path, at = list(prefix), 0
    while at < len(tokens):
        text, line = tokens[at]
        if text == "{":
            inside, begin, depth = tokens[at + 1:closing(tokens, at)], 0, 0
            for index, (inner, _) in enumerate(inside + [(",", line)]):
                depth += (inner in OPEN) - (inner in CLOSE)
                if inner == "," and depth == 0:
                    yield from use_tree(inside[begin:index], path)
                    begin = index + 1
            return
        if text == "*":
            yield tuple(path), None, line
            return
        if text == "as":
            yield tuple(path), tokens[at + 1][0], line
            return
        if text == "self" and path:
            pass  # `a::{self}` is `a`.
        elif text != "::":
            path.append(text)
        at += 1
    if path and tokens:
        yield tuple(path), path[-1], tokens[-1][1]


def read_module(module, tokens, folder):
    """Fills the module from its tokens; `folder` is where the files of its children lie."""
    at, depth, attribute_path = 0, 0, None
    while at < len(tokens):
        text, line = tokens[at]
        if text == "#" and at + 1 < len(tokens) and tokens[at + 1][0] in ("[", "!"):
            begin = at + 1 if tokens[at + 1][0] == "[" else at + 2
            end = closing(tokens, begin)
            inside = tokens[begin + 1:end]
            if [word for word, _ in inside[:2]] == ["path", "="]:
                attribute_path = inside[2][0].strip('"')
            for index, (word, _) in enumerate(inside):
                if word == "crate":
                    module.paths.append((path_at(inside, index)[0], line))
            at = end + 1
            continue
        if text == "mod" and at + 2 < len(tokens) and tokens[at + 2][0] in (";", "{") and depth == 0:
            name = tokens[at + 1][0]
            if tokens[at + 2][0] == "{":
                end = closing(tokens, at + 2)
                child = Module(module.file, module, name)
                module.children[name] = child
                read_module(child, tokens[at + 3:end], os.path.join(folder, name))
                at = end + 1
            else:
                child = read_file(module, name, folder, attribute_path)
                if child is not None:
                    module.children[name] = child
                at += 3
            attribute_path = None
            continue
        if text == "use" and (at == 0 or tokens[at - 1][0] != "."):
            end = at
            while end < len(tokens) and tokens[end][0] != ";":
                end += 1
            public = at > 0 and (tokens[at - 1][0] == "pub" or (
                tokens[at - 1][0] == ")" and any(word == "pub" for word, _ in tokens[max(0, at - 6):at])))
            for path, name, where in use_tree(tokens[at + 1:end]):
                if name is None:
                    module.globs.append(path)
                elif name != "_":
                    module.imports.setdefault(name, path)
                module.uses.append((path, where, name, public))
            at = end + 1
            continue
        if text in OPEN:
            depth += text == "{"
        elif text in CLOSE:
            depth -= text == "}"
        elif text in DEFINES and depth == 0 and at + 1 < len(tokens):
            after = at + 2 if text == "macro_rules" or tokens[at + 1][0] == "mut" else at + 1
            if after < len(tokens) and re.match(r"[A-Za-z_]", tokens[after][0]):
                module.items.add(tokens[after][0])
        if re.match(r"[A-Za-z_]", text):
            path, end = path_at(tokens, at)
            before = tokens[at - 1][0] if at else ""
            if len(path) > 1 and before not in ("::", "."):
                module.paths.append((path, line))
                module.names.setdefault(path[0], line)
                at = end
                continue
            if before not in ("::", "."):
                module.names.setdefault(text, line)
        at += 1


def path_at(tokens, at):
    """The path that begins at `at`, and the index after it."""
    path = [tokens[at][0]]
    while at + 2 < len(tokens) and tokens[at + 1][0] == "::" and re.match(r"[A-Za-z_]", tokens[at + 2][0]):
        at += 2
        path.append(tokens[at][0])
    return tuple(path), at + 1


def read_file(parent, name, folder, given=None):
    """The module of that name with its own file, or `None` where it has none (made by a build, or for tests)."""
    if given is not None:
        base = os.path.dirname(parent.file)
        candidates = [os.path.join(base, given)]
    else:
        candidates = [os.path.join(folder, name + ".rs"), os.path.join(folder, name, "mod.rs")]
    for file in candidates:
        if os.path.exists(file):
            return read_source(file, parent, name)
    return None


def read_source(file, parent=None, name="crate"):
    with open(file, encoding="utf-8") as source:
        tokens, only_tests = without_tests(tokens_of(source.read()))
    if only_tests:
        return None
    module = Module(file, parent, name)
    stem = os.path.splitext(file)[0]
    own_folder = parent is None or os.path.basename(file) == "mod.rs"
    read_module(module, tokens, os.path.dirname(file) if own_folder else stem)
    return module


OUTSIDE = None  # Of this crate, or unknown to this script.


def resolve(module, path, seen=frozenset()):
    """Where the path leads: ("module", module), ("item", module that defines it), or `OUTSIDE` this crate."""
    here, rest = module, list(path)
    while rest and rest[0] in ("crate", "self", "super"):
        word = rest.pop(0)
        if word == "crate":
            here = here.root()
        elif word == "super":
            here = here.parent or here
        if not rest:
            return ("module", here)
        if rest[0] not in ("crate", "self", "super"):
            return below(here, rest, seen, known=True)
    return below(here, rest, seen, known=False)


def below(here, rest, seen, known):
    """Follows names from a module; `known` says that the first must be in it, unless a macro made it."""
    while rest:
        name = rest[0]
        if name in here.children:
            here, rest, known = here.children[name], rest[1:], True
            continue
        if name in here.items:
            return ("item", here)
        found = imported(here, name, seen)
        if found is not OUTSIDE:
            if found[0] == "item":
                return found
            here, rest, known = found[1], rest[1:], True
            continue
        if name in here.imports:
            return OUTSIDE  # It comes from another crate.
        return ("item", here) if known else OUTSIDE
    return ("module", here)


def imported(here, name, seen):
    """What a name that a `use` line brings here leads to."""
    key = (id(here), name)
    if key in seen:
        return OUTSIDE
    seen = seen | {key}
    if name in here.imports:
        path = here.imports[name]
        if path == (name,):
            return OUTSIDE
        return resolve(here, path, seen)
    for path in here.globs:
        target = resolve(here, path, seen)
        if target is not OUTSIDE and target[0] == "module" and target[1] is not here and has(target[1], name, seen):
            return below(target[1], [name], seen, known=True)
    return OUTSIDE


def has(module, name, seen):
    if name in module.children or name in module.items or name in module.imports:
        return True
    return imported(module, name, seen) is not OUTSIDE


def edges_of(root):
    """Each use of one file by another: {(from, to): [(line, path), ...]}."""
    edges = {}

    def note(module, target, line, path):
        if target is OUTSIDE or target[0] != "item" or target[1].file == module.file:
            return
        lines = edges.setdefault((module.file, target[1].file), [])
        if (line, "::".join(path)) not in lines:
            lines.append((line, "::".join(path)))

    for module in root.all():
        for path, line, name, public in module.uses:
            # A name that is only passed on is used by whoever takes it.
            if name is not None:
                if not public or name in module.names:
                    note(module, resolve(module, path), line, path)
                continue
            target = resolve(module, path)
            if target is OUTSIDE:
                continue
            if target[0] == "item":  # All variants of an enum.
                note(module, target, line, path)
                continue
            for used, where in module.names.items():
                if used not in module.items and used not in module.children and used not in module.imports:
                    if target[1] is not module and has(target[1], used, frozenset()):
                        note(module, below(target[1], [used], frozenset(), known=True), where, path + (used,))
        for path, line in module.paths:
            note(module, resolve(module, path), line, path)
    return edges


def circles_of(edges):
    """The strongly connected components of more than one file."""
    after = {}
    for begin, end in edges:
        after.setdefault(begin, set()).add(end)
        after.setdefault(end, set())
    number, low, stack, on_stack, found = {}, {}, [], set(), []

    def visit(file):
        number[file] = low[file] = len(number)
        stack.append(file)
        on_stack.add(file)
        for other in sorted(after[file]):
            if other not in number:
                visit(other)
                low[file] = min(low[file], low[other])
            elif other in on_stack:
                low[file] = min(low[file], number[other])
        if low[file] == number[file]:
            circle = set()
            while True:
                last = stack.pop()
                on_stack.discard(last)
                circle.add(last)
                if last == file:
                    break
            if len(circle) > 1:
                found.append(circle)

    for file in sorted(after):
        if file not in number:
            visit(file)
    return found


def crates():
    """The workspace's crates: the folder of each."""
    with open(os.path.join(ROOT, "Cargo.toml"), encoding="utf-8") as manifest:
        members = re.search(r"^members\s*=\s*\[(.*?)\]", manifest.read(), re.MULTILINE | re.DOTALL)
    return re.findall(r'"([^"]+)"', members.group(1))


def roots(crate):
    """The files at which the crate's programs and its library begin."""
    source = os.path.join(ROOT, crate, "src")
    files = [os.path.join(source, name) for name in ("lib.rs", "main.rs")]
    programs = os.path.join(source, "bin")
    if os.path.isdir(programs):
        files += sorted(os.path.join(programs, name) for name in os.listdir(programs) if name.endswith(".rs"))
    return [file for file in files if os.path.exists(file)]


def main(arguments):
    sys.setrecursionlimit(10_000)
    as_json = "--json" in arguments
    wanted = [argument.strip("/") for argument in arguments if not argument.startswith("--")]
    try:
        members = crates()
    except (OSError, AttributeError) as error:
        print(f"circles: cannot read the workspace: {error}", file=sys.stderr)
        return 2
    unknown = [name for name in wanted if not any(name in (crate, os.path.basename(crate)) for crate in members)]
    if unknown:
        print(f"circles: no crate of the workspace: {', '.join(unknown)}", file=sys.stderr)
        return 2
    report = []
    for crate in members:
        if wanted and crate not in wanted and os.path.basename(crate) not in wanted:
            continue
        for start in roots(crate):
            edges = edges_of(read_source(start))
            for circle in circles_of(edges):
                inside = [
                    {"from": os.path.relpath(begin, ROOT), "line": line, "path": path, "to": os.path.relpath(end, ROOT)}
                    for (begin, end), lines in sorted(edges.items())
                    if begin in circle and end in circle
                    for line, path in sorted(lines)
                ]
                files = sorted(os.path.relpath(file, ROOT) for file in circle)
                report.append({"crate": crate, "files": files, "uses": inside})
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        for circle in report:
            print(f"{circle['crate']}: a circle of {len(circle['files'])} files: {', '.join(circle['files'])}")
            for use in circle["uses"]:
                print(f"    {use['from']}:{use['line']}: {use['path']} -> {use['to']}")
        print(f"{len(report)} circles" if report else "no circles", file=sys.stderr)
    return 1 if report else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
