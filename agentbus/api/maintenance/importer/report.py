"""Counts and problems of an import, per file and in total."""

from __future__ import annotations

from collections import Counter

from agentbus.records import ImportedFile, ImportProblem, ImportReport

_MAX_PROBLEMS = 100
_MAX_LISTED_FILES = 1000


class FileTally:
    """The outcome of one file."""

    def __init__(self, path: str, format: str) -> None:
        self.path = path
        self.format = format
        self.imported: Counter[str] = Counter()
        self.present = 0
        self.refused = 0
        self.changed = 0
        self._problems: dict[bool, list[ImportProblem]] = {False: [], True: []}

    def take(self, kind: str, new: bool) -> None:
        self.imported[kind] += new
        self.present += not new

    def refuse(self, line: int, reason: str) -> None:
        self.refused += 1
        self._store(ImportProblem(self.path, line, reason))

    def change(self, line: int, reason: str) -> None:
        """Count a row that was imported with a change."""
        self.changed += 1
        self._store(ImportProblem(self.path, line, reason, taken=True))

    def first(self, taken: bool) -> list[ImportProblem]:
        """Return the first problems, ordered by line."""
        return sorted(self._problems[taken], key=lambda problem: problem.line)[:_MAX_PROBLEMS]

    def _store(self, problem: ImportProblem) -> None:
        """Store the first problems only: there may be millions."""
        kept = self._problems[problem.taken]
        kept.append(problem)
        if len(kept) > 2 * _MAX_PROBLEMS:
            kept[:] = self.first(problem.taken)


class Tally:
    """The outcome of all files."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._imported: Counter[str] = Counter()
        self._numbers: Counter[str] = Counter()
        self._files: list[ImportedFile] = []
        self._problems: dict[bool, list[ImportProblem]] = {False: [], True: []}

    @property
    def imported(self) -> dict[str, int]:
        return {kind: count for kind, count in self._imported.items() if count}

    def add(self, file: FileTally) -> None:
        self._imported += file.imported
        self._numbers.update(present=file.present, refused=file.refused, changed=file.changed)
        for taken, shown in self._problems.items():
            shown += file.first(taken)[: _MAX_PROBLEMS - len(shown)]
        if file.imported or file.present:
            self._numbers["files"] += 1
            if len(self._files) < _MAX_LISTED_FILES:
                counts = {kind: count for kind, count in file.imported.items() if count}
                self._files.append(ImportedFile(file.path, file.format, counts, file.present, file.refused))

    def refuse(self, path: str, reason: str) -> None:
        """Count a file that cannot be read at all."""
        file = FileTally(path, "")
        file.refuse(0, reason)
        self.add(file)

    def report(self) -> ImportReport:
        numbers = self._numbers
        return ImportReport(
            self._path, self.imported, numbers["present"], numbers["refused"], numbers["changed"],
            self._problems[False] + self._problems[True], self._files, numbers["files"],
        )  # fmt: skip
