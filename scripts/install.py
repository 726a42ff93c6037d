"""`make build`: install the checkout into this environment, with a line for each file that is compiled.

pip shows nothing of a build but a turning stroke, for minutes, or with `--verbose` all that every tool says. Here that
goes to build/install.log, whose end is shown where the installation fails.

What the build and the package need is installed into this environment first: in a build environment of pip's own,
nanobind would be in another folder each time, and every file be compiled again after each change. ``packages`` installs
that alone, ``module`` the checkout alone: while it compiles, other packages can be unpacked beside it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

LOG = Path("build", "install.log")
COMPILED = re.compile(r"\s*(\[\d+/\d+\]) (?:Building CXX object|Linking CXX).*?((?:csrc/)?[\w./-]+?)(?:\.o)?\s*$")
FETCHED = re.compile(r"\s*Downloading (?:\S*/)?([\w.]+-[\w.]+?)-\S*(?: \(([\d.]+ \wB)\))?")
MISSING = re.compile(r"\s*(dragoman: .* (?:is|are) needed to build from source; .*)")


def progress(line: str) -> str | None:
    """What a line of pip's output says of the progress, in short."""
    if found := COMPILED.match(line):
        file = found[2][found[2].index("csrc/") :] if "csrc/" in found[2] else Path(found[2]).name
        return f"{found[1]} {file}"
    if found := FETCHED.match(line):
        return f"fetched {found[1]}{f' ({found[2]})' if found[2] else ''}"
    if line.lstrip().startswith("*** Configuring CMake"):
        return "configuring the native module"
    return None


def requirements() -> list[str]:
    """What pyproject.toml says that a build and the package need."""
    with open("pyproject.toml", "rb") as file:
        said = tomllib.load(file)
    return [*said["build-system"]["requires"], *said["project"]["dependencies"]]


def steps(packages: bool = True, module: bool = True) -> Iterator[list[str]]:
    """The commands, one after the other: for the packages, for the module, or for both.

    The second prints what else the backend needs: CMake, Ninja, or nothing. Python compiles modules when it imports
    them: to compile all of all packages now would take longer than the first start.
    """
    pip = [sys.executable, "-m", "pip", "install", "--verbose", "--progress-bar", "off"]
    if packages:
        yield [*pip, "--no-compile", *requirements()]
        code = "import sys; sys.path.insert(0, 'scripts'); import build_backend as b; "
        code += "print('needs:', *b.get_requires_for_build_editable(), sep='\\n  needs: ')"
        yield [sys.executable, "-c", code]
        needed = re.findall(r"^  needs: (.+)$", LOG.read_text(encoding="utf-8"), flags=re.MULTILINE)
        if needed:
            yield [*pip, *needed]
    if module:
        yield [*pip, "--no-deps", "--no-build-isolation", "--editable", "."]


def run(command: list[str]) -> int:
    """Run a command, its output in the log, and print what that says of the progress. Returns the exit status."""
    with (
        LOG.open("a", encoding="utf-8") as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line)
            if said := progress(line):
                print(f"  {said}", flush=True)
    return process.returncode


def main(arguments: Sequence[str] = ()) -> int:
    """Install the parts that the arguments name, or both. Returns the exit status."""
    packages, module = "module" not in arguments, "packages" not in arguments
    begin = time.monotonic()
    LOG.parent.mkdir(exist_ok=True)
    LOG.write_text("", encoding="utf-8")
    print(
        "Installing Dragoman; the native module takes some minutes at first."
        if module
        else "Installing the packages that Dragoman needs.",
        flush=True,
    )
    try:
        status = next((status for command in steps(packages, module) if (status := run(command))), 0)
    except KeyboardInterrupt:
        print("Interrupted; what was compiled is kept for the next time.", file=sys.stderr)
        return 130
    text = LOG.read_text(encoding="utf-8")
    if status == 0:
        print(f"Installed in {time.monotonic() - begin:.0f} s.")
    elif missing := MISSING.search(text):
        print(missing[1], file=sys.stderr)
    else:
        print("\n".join(text.splitlines()[-40:]), f"\nThe installation failed; {LOG} has all of it.", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
