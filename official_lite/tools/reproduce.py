"""Start a run again from its record, in another model directory.

    python -m official_lite.tools reproduce runs/digits --model_dir=runs/digits_again
    python -m official_lite.tools reproduce runs/mine --model_dir=runs/mine_again --trust

The new run has the experiment, the mode and the config of the recorded one, including its seed. It
also uses the execution modes that the recorded run chose, unless --set names others. The command
that trains is printed first; use it to resume the new run if it is interrupted.
"""

import argparse
from typing import NoReturn

from official_lite.common import errors, files, terminal
from official_lite.config import compatibility
from official_lite.execution import execution_record
from official_lite.run import model_dir_lock
from official_lite.tools import sources, verify


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("run", help="The model directory of the recorded run.")
    parser.add_argument(
        "--model_dir", required=True, help="The model directory of the new run; must be empty."
    )
    sources.add_arguments(parser)
    sources.add_trust_argument(parser)


def run(args: argparse.Namespace) -> NoReturn:
    """Replace this process by the training command."""
    command = [*sources.train_command(args.run, args), f"--model_dir={args.model_dir}"]
    chosen = execution_record.load(args.run)
    given = compatibility.read_run(args.run).get("params")
    was_auto = isinstance(given, dict) and given.get("runtime.execution") == "auto"
    is_set = any(verify.sets(each, "runtime", "execution") for each in args.set)
    if chosen is not None and was_auto and not is_set:
        # The config of a finished run names the chosen mode. If the new run set that mode, its
        # evaluations would use it, too, but `auto` may have chosen another mode for them.
        command.append("--set=runtime.execution=auto")
    _require_unused(args.model_dir)
    for check in verify.check_sources(args.run):
        if check.state == verify.BROKEN:
            terminal.say(f"Warning: {check.link} differs from the record: {check.differs}")
    if chosen is not None:
        files.makedirs(args.model_dir)
        execution_record.save(chosen, args.model_dir)
    sources.become(command)


def _require_unused(model_dir: str) -> None:
    """Check that the new run would not touch the files of another run.

    Raises:
        errors.ModelDirBusyError: Another run is training in the directory.
        errors.ConfigValueError: The directory has files.
    """
    if model_dir_lock.is_held(model_dir):
        raise errors.ModelDirBusyError(
            f"Another run is training in {model_dir}. Use another --model_dir."
        )
    if names := files.list_names(model_dir):
        raise errors.ConfigValueError(
            f"The model directory {model_dir} is not empty: it contains {', '.join(names[:3])}"
            f"{' …' if names[3:] else ''}. Use another --model_dir, or resume the run in it with "
            "the command that started it."
        )
