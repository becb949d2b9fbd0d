#!/usr/bin/env python3
"""Says where the pages in `docs/` lead nowhere, or quote what no program says.

- Every page is in `SUMMARY.md`, and every link of pages, of `README.md` and of `SUMMARY.md` leads to a file.
- Every message in `troubleshooting.md` (a quoted line, with … for what changes) is in the sources: its parts, in order, in one
  file.
- Every variable of the environment that the sources name is in `reference/environment.md`.
- Every command in a code block is one that the reference has.

    tests/docs.py        # ends with 1 if there is anything
"""

import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGES = os.path.join(ROOT, "docs", "src")
SOURCES = ["master/src", "worker/src", "common"]
VARIABLE = re.compile(r'"((?:CAKE|HF|OLLAMA)_(?!GOLDEN)[A-Z_]+|OTEL_EXPORTER_OTLP_ENDPOINT|NO_COLOR|CLICOLOR_FORCE)"')
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


def links(path):
    """Links of a page that lead to no file."""
    for target in LINK.findall(without_code(read(path))):
        target = target.split("#")[0]
        if target and "://" not in target and not os.path.exists(os.path.join(os.path.dirname(path), target)):
            yield f"leads to {target}, which is not there"


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


def unknown(path, commands):
    """Commands that there are not."""
    for block in re.findall(r"^```\w*\n(.*?)^```", read(path), re.M | re.S):
        for program, command in re.findall(r"(?:^|\| )(cake-(?:master|worker)) ([a-z]+)\b", block, re.M):
            if f"{program} {command}" not in commands:
                yield f"has {program} {command}, which is no command"


def main():
    pages = [os.path.normpath(page) for page in files(PAGES, ".md")]
    sources = [said(read(path)) for folder in SOURCES for path in files(os.path.join(ROOT, folder), ".rs")]
    reference = [page for page in pages if os.sep + "reference" + os.sep in page]
    commands = {head for page in reference for head in re.findall(r"^## (\S+ \S+)$", read(page), re.M)}
    found = list(unlisted(pages))
    for page in pages + [os.path.join(ROOT, "README.md")]:
        found += [(page, what) for what in links(page)]
        found += [(page, what) for what in unknown(page, commands)]
    troubles = os.path.join(PAGES, "troubleshooting.md")
    found += [(troubles, what) for what in unsaid(troubles, sources)]
    variables = os.path.join(PAGES, "reference", "environment.md")
    found += [(variables, what) for what in unnamed(variables, sources)]
    for page, what in found:
        print(f"{os.path.relpath(page, ROOT)} {what}")
    if not commands or len(pages) < 10 or not any(True for _ in re.findall(r"^> ", read(troubles), re.M)):
        print("there are no pages, commands or messages: the check looks in the wrong place")
        return 1
    print(f"{len(found)} wrong in the pages" if found else "every page leads somewhere")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
