#!/usr/bin/env python3
"""Says where the pages in `docs/` lead nowhere, or quote what no program says.

- Every page is in `SUMMARY.md`, and every link of pages, of `README.md` and of `SUMMARY.md` leads to a file, and to a
  heading of it where it names one.
- Every message in `troubleshooting.md` (a quoted line, with … for what changes) is in the sources: its parts, in order, in one
  file.
- Every variable of the environment that the sources name is in `reference/environment.md`.
- Every command of ours in a code block, or at the beginning of code in a text, is one that the reference has, with options that it
  has there; every option that code in a text begins with is one of some command.

    tests/docs.py        # ends with 1 if there is anything
"""

import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGES = os.path.join(ROOT, "docs", "src")
SOURCES = ["master/src", "worker/src", "common"]
VARIABLE = re.compile(r'"((?:CAKE|HF|OLLAMA)_(?!GOLDEN)[A-Z_]+|OTEL_EXPORTER_OTLP_ENDPOINT|NO_COLOR|CLICOLOR_FORCE)"')
GLOBAL = re.compile(r"#\[arg\(([^\]]*\bglobal = true[^\]]*)\)\]\s*(?:pub )?(\w+):")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def files(folder, ending):
    for directory, _, names in os.walk(folder):
        for name in sorted(names):
            if name.endswith(ending):
                yield os.path.join(directory, name)


def without_code(text):
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))


def anchors(path):
    """What links to a page's headings are called, as the book and GitHub have it."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", read(path), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(path):
    """Links of a page that lead to no file, or to no heading of it."""
    for target in LINK.findall(without_code(read(path))):
        if "://" in target:
            continue
        file, _, heading = target.partition("#")
        there = os.path.join(os.path.dirname(path), file) if file else path
        if not os.path.exists(there):
            yield f"leads to {file}, which is not there"
        elif heading and heading not in anchors(there):
            yield f"leads to {target}, where no heading is called so"


def unlisted(pages):
    """Pages that nobody finds."""
    summary = read(os.path.join(PAGES, "SUMMARY.md"))
    listed = {os.path.normpath(os.path.join(PAGES, target)) for target in LINK.findall(summary)}
    for page in pages:
        if os.path.basename(page) != "SUMMARY.md" and page not in listed:
            yield page, "is not in SUMMARY.md"


def said(text):
    """Strings of a source as they are shown: joined where they go on in the next line, without escapes."""
    return re.sub(r"\\\n\s*", "", text).replace('\\"', '"')


def unsaid(path, sources):
    """Messages that no source has."""
    for message in re.findall(r"^> (.+)$", read(path), re.M):
        parts = [part for part in message.split("…") if part.strip(" :;,.")]
        pattern = re.compile(".*?".join(re.escape(part) for part in parts))
        if not any(pattern.search(source) for source in sources):
            yield f"quotes {message!r}, which no program says"


def unnamed(path, sources):
    """Variables that people are not told of."""
    text = read(path)
    names = {name for source in sources for name in VARIABLE.findall(source)}
    yield from (f"lacks {name}" for name in sorted(names) if f"`{name}`" not in text and "TEST" not in name)


def shared(sources):
    """The options that a program's every command has, too."""
    of = set()
    for words, name in (found for source in sources for found in GLOBAL.findall(source)):
        of |= {"--" + name.replace("_", "-")} | ({f"-{name[0]}"} if re.match(r"short\b", words) else set())
    return of


def options(reference, everywhere):
    """The options of each command by its name, with those of its program that are `everywhere`."""
    of = {}
    for page in reference:
        for section in re.split(r"^#{1,2} (?=cake-)", read(page), flags=re.M)[1:]:
            name = section.split("\n", 1)[0].strip()
            lines = re.findall(r"^- (`-.*?`): ", section, re.M)
            of[name] = {option for line in lines for option in re.findall(r"(?<![\w-])--?[a-z][a-z0-9-]*", line)}
    return {name: found | of[name.split()[0]] & everywhere for name, found in of.items()}


def unknown(path, of):
    """Commands that there are not, and options that they do not have."""
    text = read(path)
    for block in re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            yield from unknown_in(re.sub(r"\s#.*", "", line), of)
    every = set().union(*of.values()) | {"--help", "--version"}
    for code in re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)):
        if code.startswith("cake-"):
            yield from unknown_in(code, of)
        elif code.startswith("--"):
            yield from (f"names {option}, which no command has" for option in named(code) - every)


def named(words):
    """The options in what somebody would type, without what is in quotes."""
    words = re.sub(r"\"[^\"]*\"|'[^']*'", "", words)
    return set(re.findall(r"(?<!\S)--[a-z][a-z0-9-]*", words)) | set(re.findall(r"(?<!\S)-[a-z]\b", words))


def unknown_in(line, of):
    """The same of one line."""
    for called in re.findall(r"(?:^|\| |-- )(cake-(?:master|worker)\b[^|]*)", line):
        command, *words = called.split()
        while words and f"{command} {words[0]}" in of:
            command = f"{command} {words.pop(0)}"
        has_commands = any(name.startswith(f"{command} ") for name in of)
        if has_commands and words and re.fullmatch(r"[a-z]+", words[0]) and words[0] != "help":
            yield f"has {command} {words[0]}, which is no command"
            continue
        known = of[command] | {"--help", "--version", "-h"}
        yield from (f"has {command} with {option}, which it does not have" for option in sorted(named(called) - known))


def main():
    pages = [os.path.normpath(page) for page in files(PAGES, ".md")]
    sources = [said(read(path)) for folder in SOURCES for path in files(os.path.join(ROOT, folder), ".rs")]
    reference = [page for page in pages if os.sep + "reference" + os.sep in page]
    of = options(reference, shared(sources))
    found = list(unlisted(pages))
    for page in pages + [os.path.join(ROOT, "README.md")]:
        found += [(page, what) for what in links(page)]
        found += [(page, what) for what in unknown(page, of)]
    troubles = os.path.join(PAGES, "troubleshooting.md")
    found += [(troubles, what) for what in unsaid(troubles, sources)]
    variables = os.path.join(PAGES, "reference", "environment.md")
    found += [(variables, what) for what in unnamed(variables, sources)]
    for page, what in found:
        print(f"{os.path.relpath(page, ROOT)} {what}")
    if len(of) < 30 or len(pages) < 10 or not any(True for _ in re.findall(r"^> ", read(troubles), re.M)):
        print("there are no pages, commands or messages: the check looks in the wrong place")
        return 1
    print(f"{len(found)} wrong in the pages" if found else "every page leads somewhere")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
