"""Lint of the language: no private idiom in the package, the documentation and the names of tests.

Each rule is one test that lists every offender as ``file:line: text``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.support.source import syntax_tree

ROOT = Path(__file__).resolve().parents[1]

FORBIDDEN = (
    "whoever", "nobody", "somebody", "in vain", "anew", "for ever", "go on", "goes on", "struck off", "convict",
    "acquit", "bury", "so many",
)  # fmt: skip
INFLECTED = {"convict": r"convict(s|ed|ing|ion|ions)?", "acquit": r"acquit(s|ted|ting|tal|tals)?",
             "bury": r"bur(y|ies|ied|ying)"}  # fmt: skip
SEPARATOR = r"(?:[ \t_-]|\n[ \t]*(?:#|--|\*|>)?[ \t]*)"
"""Between the words of a phrase: also the end of a line and the prefix of a comment, and an underscore in a name."""
WORDS = re.compile(
    r"(?<![a-z])(?:"
    + "|".join(INFLECTED.get(word, word.replace(" ", SEPARATOR)) for word in FORBIDDEN)
    + r")(?![a-z])",
    re.IGNORECASE,
)
DEFINITION = re.compile(r"^[ \t]*(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)", re.MULTILINE)
OPENINGS = ("What", "Whether", "Who", "Which", "How")
GERUNDS = frozenset({"blocking", "mapping", "receiving", "sending"})
"""Modules whose names are the field's own words."""
OPENED = re.compile(rf"""["']\s*(?:{"|".join(OPENINGS)})\b""")
"""A literal that begins with one of the openings: the source of a docstring that does has a match."""
NO_GERUNDS = frozenset({"string", "ring", "thing"})
EXCLUDED: frozenset[str] = frozenset()
"""Generated files."""

PACKAGE = ("agentbus/**/*.py", "agentbus/engine/sql/**/*.sql", "schemas/**/*.sql", "Makefile", "benchmarks/**/*.py")
DOCUMENTS = (
    "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/**/*.md", "examples/**/*.py", "examples/**/*.md",
    "examples/**/*.sh", ".github/**/*.md", "benchmarks/README.md", "tests/faults/README.md",
)  # fmt: skip


def _files(*patterns: str) -> Iterator[Path]:
    for pattern in patterns:
        for path in sorted(ROOT.glob(pattern)):
            if path.is_file() and path.relative_to(ROOT).as_posix() not in EXCLUDED:
                yield path


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _forbidden_words(*patterns: str) -> list[str]:
    offenders: list[str] = []
    for path in _files(*patterns):
        text = path.read_text(encoding="utf-8")
        for match in WORDS.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            offenders.append(f"{_name(path)}:{line}: {' '.join(match.group().split())}")
    return offenders


def _listed(offenders: list[str]) -> str:
    return f"{len(offenders)} offenders:\n" + "\n".join(offenders)


def test_the_package_has_no_forbidden_word() -> None:
    offenders = _forbidden_words(*PACKAGE)
    assert not offenders, _listed(offenders)


def test_the_documents_have_no_forbidden_word() -> None:
    offenders = _forbidden_words(*DOCUMENTS)
    assert not offenders, _listed(offenders)


def test_names_of_tests_have_no_forbidden_word() -> None:
    offenders: list[str] = []
    for path in _files("tests/**/*.py"):
        if WORDS.search(path.stem):
            offenders.append(_name(path))
        text = path.read_text(encoding="utf-8")
        for match in DEFINITION.finditer(text):
            if WORDS.search(match.group(1)):
                line = text.count("\n", 0, match.start(1)) + 1
                offenders.append(f"{_name(path)}:{line}: {match.group(1)}")
    assert not offenders, _listed(offenders)


def test_no_docstring_opens_with_a_question_word() -> None:
    offenders: list[str] = []
    for path in _files("agentbus/**/*.py", "tests/**/*.py", "benchmarks/**/*.py", "examples/**/*.py"):
        if not OPENED.search(path.read_text(encoding="utf-8")):
            # Parsing all of them takes seconds.
            continue
        for line, text in _docstrings(ast.walk(syntax_tree(path))):
            first = re.match(r"[A-Za-z]+", text.lstrip())
            if first is not None and first.group() in OPENINGS:
                offenders.append(f"{_name(path)}:{line}: {text.strip().splitlines()[0]}")
    assert not offenders, _listed(offenders)


def _docstrings(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield the docstrings of a module, its classes and functions, and those that follow an assignment."""
    for node in nodes:
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for statement in node.body:
            if (
                isinstance(statement, ast.Expr)
                and isinstance(statement.value, ast.Constant)
                and isinstance(statement.value.value, str)
            ):
                yield statement.lineno, statement.value.value


def test_no_module_is_named_by_a_gerund() -> None:
    offenders = [
        _name(path)
        for path in _files("agentbus/**/*.py")
        if any(
            len(word) > 4 and word.endswith("ing") and word not in GERUNDS | NO_GERUNDS for word in path.stem.split("_")
        )
    ]
    assert not offenders, _listed(offenders)


def test_the_lint_finds_inflections_and_phrases_across_lines() -> None:
    for text in (
        "whoever",
        "Nobody",
        "buried",
        "convicts",
        "it goes\n    # on",
        "test_it_goes_on",
        "so\nmany",
        "_bury",
    ):
        assert WORDS.search(text), text
    for text in ("anewly", "burial", "going on", "ago on", "go one", "forever", "category", "cargo on"):
        assert not WORDS.search(text), text
