"""Checks that the files of a run are those that it wrote and read, and replays a part of it.

    python -m official_lite.tools verify runs/digits
    python -m official_lite.tools verify runs/digits --no-replay
    python -m official_lite.tools verify runs/mine --step=400 --import=my_tasks.py

The command prints one line for each link: the chain, each record and checkpoint in it, the config,
run.json, the input files, the code and the installed packages. It then trains again from the newest
checkpoint that has a successor to that successor, in a temporary directory, and compares the two
bit for bit. The exit code is 0 if all links hold, and 8 otherwise.
"""

import argparse
import dataclasses

from official_lite.checkpoint import commit
from official_lite.common import errors, escapes, files
from official_lite.run import model_dir_lock
from official_lite.tools import listing, run_source
from official_lite.tools.verifying import checks, replay

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("model_dir", help="The model directory of a run.")
    parser.add_argument(
        "--no-replay", action="store_true", help="Compare files only, and run nothing."
    )
    parser.add_argument("--step", type=int, help="The step of the checkpoint from which to replay.")
    run_source.add_arguments(parser)
    run_source.add_trust_argument(parser)
    listing.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print the checks and return 8 unless all links hold."""
    if not files.exists(args.model_dir):
        raise errors.ConfigValueError(f"There is no directory {args.model_dir}.")
    if model_dir_lock.is_held(args.model_dir):
        raise errors.ModelDirBusyError(
            f"A run is training in {args.model_dir}. Verify it when it has ended."
        )
    results = []
    for check in checks.check(args.model_dir):
        results.append(check)
        _print(check, args)
    if not args.no_replay:
        results.append(_replay(args, is_sound=all(c.state != checks.BROKEN for c in results)))
        _print(results[-1], args)
    is_broken = any(check.state == checks.BROKEN for check in results)
    is_complete = args.no_replay or results[-1].state == checks.HOLDS
    if args.json:
        rows = [dataclasses.asdict(check) for check in results]
        listing.print_json({"holds": is_complete and not is_broken, "checks": rows})
    if is_broken or not is_complete:
        return int(errors.ExitCode.UNVERIFIED)
    return int(errors.ExitCode.DONE)


def _replay(args: argparse.Namespace, *, is_sound: bool) -> checks.Check:
    if not is_sound:
        return _unchecked("a link before it is broken")
    if replay.needs_a_cluster(args.model_dir):
        return _unchecked("a run of several processes can't be replayed; pass --no-replay")
    segment = replay.choose(checks.find_segments(args.model_dir), args.step)
    if segment is None:
        return _unchecked(
            "no two checkpoints that follow each other are kept; see `trainer.max_to_keep`"
        )
    before, after = segment
    unequal = replay.replay(args.model_dir, before, after, args)
    steps = f"from step {commit.step_of(before)} to {commit.step_of(after)}"
    if unequal:
        return checks.Check(
            link="replay",
            state=checks.BROKEN,
            file=after,
            recorded=f"the variables {', '.join(unequal[:5])}{' …' if unequal[5:] else ''}",
            found=f"other bits after a training {steps}",
        )
    return checks.Check(link="replay", note=f"{steps}: equal bit for bit")


def _unchecked(note: str) -> checks.Check:
    return checks.Check(link="replay", state=checks.UNCHECKED, note=note)


def _print(check: checks.Check, args: argparse.Namespace) -> None:
    if not args.json:
        print(escapes.escape_controls(str(check)), flush=True)
