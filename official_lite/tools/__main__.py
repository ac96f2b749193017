"""The entry point of the tools, which finds the module of a command and runs it.

Each command is a module of this package with the same name and two functions::

    def add_arguments(parser: argparse.ArgumentParser) -> None: ...
    def run(args: argparse.Namespace) -> int: ...      # the exit code

The module docstring is the text of `--help`. Only the module of the requested command is imported.
Commands import TensorFlow, if at all, in `run`, so that help and usage errors are shown
immediately.

The tools use argparse because each command has its own arguments. absl's flags form one set per
process, so the flags of a command could collide with those of the modules it imports. Only `train`
has absl's flags, which the Model Garden's functions read, and a `main` that parses them.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Mapping, Sequence

from absl import logging

import official_lite
from official_lite.common import app, error_report, errors, flags, suggestions, terminal

__all__ = ["commands", "main"]

_PROGRAM = "python -m official_lite.tools"

_COMMANDS = {
    "train": "Train, evaluate or predict with a registered experiment, like train.py.",
    "launch": "Start a training job of several processes on this machine.",
    "data_service": "Start a dispatcher or worker of a tf.data service.",
    "report": "Write an HTML report about runs and studies.",
    "search": "Show the trials of a study as a table and as plots.",
    "experiments": "List the registered experiments, or show one.",
    "config": "Show a config, or the differences between two.",
    "runs": "List the runs in a directory, or compare some of them.",
    "export": "Export the model of a run, and check the exported files.",
    "predict": "Predict with a run, and write the predictions to files.",
    "average": "Average the weights of several checkpoints.",
    "tune": "Find a learning rate or the largest batch size.",
    "checkpoints": "List checkpoints, inspect one, or compare two.",
    "verify": "Check that the files of a run are those that it wrote and read.",
    "reproduce": "Start a run again from its record.",
    "doctor": "Check this machine and run a small training job.",
    "new": "Create a new project.",
    "port": "Port a Model Garden project to official_lite and Keras 3.",
    "completion": "Print a shell completion script.",
}


def commands() -> Mapping[str, str]:
    """Return the description of each command by its name."""
    return _COMMANDS


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command named by the arguments and return its exit code."""
    if argv is None:
        # Install the exception hook only on the command line, not when a program calls this
        # function.
        sys.excepthook = app.show_error
    name, *arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in ("--help", "-h", "help"):
        print(_help())
        return int(errors.ExitCode.DONE)
    if name == "--version":
        print(f"official-lite {official_lite.__version__}")
        return int(errors.ExitCode.DONE)
    if name not in _COMMANDS:
        terminal.say(f"Unknown command {name!r}. {suggestions.did_you_mean(name, _COMMANDS)}")
        return int(errors.ExitCode.CONFIG)
    module = importlib.import_module(f"official_lite.tools.{name}")
    if name == "train":
        module.main([f"{_PROGRAM} train", *arguments])
    parser = argparse.ArgumentParser(
        prog=f"{_PROGRAM} {name}",
        description=module.__doc__,
        epilog="--verbosity=1 shows the full traceback of an error.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    # Silence TensorFlow's startup messages unless the user has set `TF_CPP_MIN_LOG_LEVEL`.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    verbosity, arguments = _take_verbosity(arguments, parser.prog)
    args = parser.parse_args(flags.expand_home(arguments))
    if verbosity is not None:
        logging.set_verbosity(verbosity)
    try:
        with error_report.naming_the_resource(to_save_memory="End other programs"):
            code = int(module.run(args))
            sys.stdout.flush()
            return code
    except errors.OfficialLiteError as error:
        terminal.say(error_report.summary(error))
        return int(error.exit_code)
    except KeyboardInterrupt:
        return int(errors.ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # The reader has closed the pipe. Redirect stdout, because Python would otherwise report the
        # broken pipe again when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(errors.ExitCode.DONE)


def _take_verbosity(arguments: Sequence[str], prog: str) -> tuple[int | None, list[str]]:
    """Return the value of `--verbosity` and the other arguments.

    Arguments after `--` belong to another program and are left alone.
    """
    own = list(arguments)
    end = own.index("--") if "--" in own else len(own)
    # Use a separate parser, because the parsers of subcommands would reject `--verbosity`.
    parser = argparse.ArgumentParser(prog, add_help=False, allow_abbrev=False)
    parser.add_argument("--verbosity", type=int)
    known, others = parser.parse_known_args(own[:end])
    return known.verbosity, others + own[end:]


def _help() -> str:
    width = max(map(len, _COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, text in sorted(_COMMANDS.items())]
    return "\n".join([f"{_PROGRAM} COMMAND [--help] …", f"{_PROGRAM} --version", "", *lines])


if __name__ == "__main__":
    sys.exit(main())
