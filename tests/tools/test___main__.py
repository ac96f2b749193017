import pathlib
import subprocess
import sys

import pytest

import official_lite
from official_lite.tools import __main__ as tools

COMMANDS = tuple(tools.commands())


def test_tools_help_lists_all_commands_alphabetically(capsys: pytest.CaptureFixture[str]) -> None:
    assert tools.main([]) == tools.main(["--help"]) == 0
    said = capsys.readouterr().out
    listed = [line.split()[0] for line in said.splitlines() if line.startswith("  ")]
    assert listed == sorted(COMMANDS) * 2


def test_version_flag_prints_the_package_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert tools.main(["--version"]) == 0
    assert capsys.readouterr().out == f"official-lite {official_lite.__version__}\n"


BAD_EXPERIMENT = """
from official_lite.core import exp_factory

@exp_factory.register_config_factory("mine/bad")
def bad():
    return 1 / 0
"""


def test_message_for_an_error_in_user_code_ends_with_the_file_and_line(
    tmp_path: pathlib.Path,
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(BAD_EXPERIMENT)
    show = ["-m", "official_lite.tools", "config", "show", "mine/bad", f"--import={file}"]
    brief = subprocess.run([sys.executable, *show], capture_output=True, text=True)
    assert brief.returncode == 1
    assert brief.stderr.endswith(f"division by zero ({file}:6, in `bad`)\n")
    assert "tools/config.py" not in brief.stderr
    program = "import sys; from official_lite.tools.__main__ import main; sys.exit(main())"
    script = [sys.executable, "-c", program, *show[2:]]
    assert subprocess.run(script, capture_output=True, text=True).stderr == brief.stderr
    whole = subprocess.run([sys.executable, *show, "--verbosity=1"], capture_output=True, text=True)
    assert "tools/config.py" in whole.stderr


def test_launch_passes_the_verbosity_flag_to_the_launched_program(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = ["-c", "import sys; print(sys.argv[1:])", "--verbosity=1"]
    assert tools.main(["launch", "--workers=1", "--", sys.executable, *shown]) == 0
    assert "['--verbosity=1']" in capsys.readouterr().out


def test_command_exits_with_zero_if_its_output_pipe_is_closed() -> None:
    command = f"{sys.executable} -m official_lite.tools config show vision/digits_mlp | true"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


HELP = """
import sys
from official_lite.tools import __main__ as tools
for name in tools.commands():
    try:
        tools.main([name, "--help"])
    except SystemExit as stop:
        assert stop.code == 0
assert not {"tensorflow", "keras", "numpy"} & set(sys.modules)
"""


def test_command_help_does_not_import_tensorflow() -> None:
    result = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert [name for name in COMMANDS if f"official_lite.tools {name}" not in result.stdout] == []
