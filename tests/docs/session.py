"""A session that follows pages like a reader: it writes their files, and runs their commands."""

import fnmatch
import os
import pathlib
import re
import shlex
import subprocess
from collections.abc import Sequence

from tests import commands
from tests.docs import blocks, reviewed

_PLAIN = ("cat", "cut", "ls", "mkdir")


class Session:
    """A reader who follows pages in one directory.

    Args:
        directory: The working directory, in place of the repository root. Its subdirectory `tmp`
            replaces `/tmp`.
    """

    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory
        (directory / "tmp").mkdir()
        (directory / "registry_imports.py").symlink_to(commands.ROOT / "registry_imports.py")
        self._python: list[blocks.Block] = []
        self._printed = ""
        self._expected: list[str] = []

    def read(self, shown: Sequence[blocks.Block]) -> None:
        """Follow the blocks of a page, and compare the printed output with that on the page."""
        for block in shown:
            self._do(block)
        self._run_python()
        self._compare()

    def converse(self, block: blocks.Block) -> None:
        """Run the commands of a console block and compare their output, whatever the exit code."""
        for command in block.commands:
            _, script, *arguments = shlex.split(self._moved(command))
            done = commands.run([commands.ROOT / script, *arguments], cwd=self._directory)
            self._printed += done.stdout + done.stderr
        lines = block.text.splitlines()
        self._expected = [line for line in lines if not line.startswith("$ ")]
        self._compare()

    def _do(self, block: blocks.Block) -> None:
        if block.language == "text":
            self._expected += block.text.splitlines()
        elif not block.language and block.text.startswith("/tmp/"):
            self._look_into(block)
        elif block.file:
            path = self._directory / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self._moved(block.text))
        elif why_not_run(block):
            return
        elif block.language == "python":
            if not self._python:
                self._compare()
            self._python.append(block)
        elif block.language == "bash":
            self._run_python()
            self._compare()
            for command in block.commands:
                self._run_command(command)

    def _look_into(self, block: blocks.Block) -> None:
        """Assert that a folder contains exactly the files that a block lists by name or pattern."""
        first, *others = block.text.splitlines()
        folder = pathlib.Path(self._moved(first))
        # Three or more spaces separate the names in a line from their description.
        listed = [name for line in others for name in re.split(r" {3,}", line.strip())[0].split()]
        found = [p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()]
        unlisted = [p for p in found if not any(fnmatch.fnmatch(p, name) for name in listed)]
        missing = [name for name in listed if not fnmatch.filter(found, name)]
        assert (unlisted, missing) == ([], []), f"{block}: {unlisted=} {missing=}"

    def _run_python(self) -> None:
        if not self._python:
            return
        # The script has the line numbers of the page, so that a traceback points to the page.
        lines: list[str] = []
        for block in self._python:
            lines += [""] * (block.line - len(lines)) + block.text.splitlines()
        self._python = []
        script = self._directory / "page.py"
        script.write_text(self._moved("\n".join(lines)))
        self._execute([script.name])

    def _run_command(self, command: str) -> None:
        words = shlex.split(self._moved(command), comments=True)
        environment = {}
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            name, _, value = words.pop(0).partition("=")
            environment[name] = value
        program, *arguments = words
        if program == "python":
            if arguments[0] == "train.py":
                arguments[0] = str(commands.ROOT / "train.py")
            self._execute(arguments, environment)
            return
        assert program in _PLAIN, f"Unknown command {command!r}. Run it, or list it as reviewed."
        done = subprocess.run(words, cwd=self._directory, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        self._printed += done.stdout

    def _execute(self, arguments: list[str], environment: dict[str, str] | None = None) -> None:
        root = str(commands.ROOT)
        own = (environment or {}).get("PYTHONPATH", "")
        paths = {"PYTHONPATH": os.pathsep.join([own, root] if own else [root])}
        done = commands.run(arguments, env={**(environment or {}), **paths}, cwd=self._directory)
        assert done.returncode == 0, f"{arguments}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
        self._printed += done.stdout

    def _compare(self) -> None:
        """Assert that the expected lines were printed in their order; `…` matches any text."""
        printed = iter(self._printed.splitlines())
        for line in self._expected:
            pattern = ".*".join(map(re.escape, line.split("…")))
            assert any(re.fullmatch(pattern, one) for one in printed), (line, self._printed)
        self._printed, self._expected = "", []

    def _moved(self, text: str) -> str:
        return text.replace("/tmp/", f"{self._directory}/tmp/")


def why_not_run(block: blocks.Block) -> str | None:
    """Return why a block is not run by a session; None if it is run."""
    if block.comment and not block.file and block.page in reviewed.OWN_TESTS:
        return reviewed.OWN_TESTS[block.page]
    for (page, beginning), reason in reviewed.NOT_RUN.items():
        if block.page == page and block.text.startswith(beginning):
            return reason
    return None
