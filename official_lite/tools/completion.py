"""Print a shell completion script for these commands and the flags of train.py.

    source <(python -m official_lite.tools completion bash)            in ~/.bashrc
    python -m official_lite.tools completion zsh > ~/.zsh/_official-lite
    python -m official_lite.tools completion fish > ~/.config/fish/completions/official-lite.fish

The script completes commands, arguments, directories and experiment names after `official-lite`,
and flags and experiment names after `train.py`. Under bash, it does so after
`python -m official_lite.tools` and `python train.py`, too. It requires shtab:
pip install 'official-lite[completion]'.
"""

import argparse
import importlib
from collections.abc import Iterator
from types import ModuleType

from official_lite.common import errors
from official_lite.tools import __main__ as tools
from official_lite.tools import train

SHELLS = ("bash", "zsh", "fish")
_A_NAME = "The name of the experiment."
_NAMES = "python -m official_lite.tools experiments list --names 2>/dev/null"

# The names of arguments that are directories or files in every command.
_DIRECTORIES = {"directories", "folder", "folders", "log_dir", "model_dir", "study_dir"}
_FILES = {"a", "b", "config_file", "gin_file", "output", "path", "source"}

# Bash functions that adapt the words of the command line for shtab's functions. They remove the
# words before the name of the program, such as `python -m`. They also remove the `=` of a flag such
# as `--mode=train`, because Bash splits the flag into three words.
_MORE_BASH = """
_official_lite_call() {
  local words=() index word
  for (( index = $2; index <= COMP_CWORD; index++ )); do
    word="${COMP_WORDS[index]}"
    if [[ "$word" != "=" ]]; then
      words+=("$word")
    elif (( index == COMP_CWORD )); then
      words+=("")
    fi
  done
  local COMP_WORDS=("${words[@]}") COMP_CWORD=$(( ${#words[@]} - 1 ))
  "$1"
}
_official_lite_tools() { _official_lite_call _shtab_official_lite 0; }
_official_lite_train() { _official_lite_call _shtab_train_py 0; }
_official_lite_python() {
  if [[ "${COMP_WORDS[1]} ${COMP_WORDS[2]}" == "-m official_lite.tools" ]]; then
    (( COMP_CWORD > 2 )) && _official_lite_call _shtab_official_lite 2
  elif [[ "${COMP_WORDS[1]}" == *train.py ]]; then
    (( COMP_CWORD > 1 )) && _official_lite_call _shtab_train_py 1
  else
    return 1
  fi
}
complete -o bashdefault -F _official_lite_tools official-lite
complete -o bashdefault -o default -F _official_lite_train train.py
complete -o bashdefault -o default -F _official_lite_python python python3
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the argument `shell`."""
    parser.add_argument("shell", choices=SHELLS)


def run(args: argparse.Namespace) -> int:
    """Print the script.

    Raises:
        errors.ConfigValueError: shtab is not installed.
    """
    try:
        import shtab
    except ModuleNotFoundError as error:
        raise errors.ConfigValueError(
            "Completion requires shtab, which is not installed: pip install "
            "'official-lite[completion]'"
        ) from error
    train_parser = argparse.ArgumentParser(prog="train.py")
    train.add_arguments(train_parser)
    parsers = {"official_lite": _tools_parser(), "train_py": train_parser}
    for prefix, parser in parsers.items():
        _say_what_is_what(parser, shtab)
        print(shtab.complete(parser, shell=args.shell, root_prefix=prefix))
    if args.shell == "bash":
        print(_MORE_BASH, end="")
    return int(errors.ExitCode.DONE)


def _tools_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="official-lite")
    commands = parser.add_subparsers()
    for name, what in tools.commands().items():
        module = importlib.import_module(f"official_lite.tools.{name}")
        module.add_arguments(commands.add_parser(name, help=what))
    return parser


def _say_what_is_what(parser: argparse.ArgumentParser, shtab: ModuleType) -> None:
    """Mark the arguments that shtab should complete with files, directories or experiment names."""
    for action in _actions(parser):
        if action.choices:
            continue
        # shtab reads the extra attribute `complete` of an argparse action.
        attributes = vars(action)
        if action.dest in _DIRECTORIES:
            attributes["complete"] = shtab.DIRECTORY
        elif action.dest in _FILES:
            attributes["complete"] = shtab.FILE
        elif action.dest == "experiment" or action.help == _A_NAME:
            attributes["complete"] = shtab.cmd(_NAMES)


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the actions of a parser and of its subcommands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
