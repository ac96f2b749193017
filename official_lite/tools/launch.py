"""Start and supervise a cluster of training processes on this machine.

    python -m official_lite.tools launch --workers=2 -- train.py --experiment=… --mode=train
    python -m official_lite.tools launch --workers=2 --ps=1 -- train.py …
    python -m official_lite.tools launch --elastic=1:4 --max_restarts=9 -- train.py …

The first command starts a cluster for `multi_worker_mirrored`. The second one also starts a chief
and a parameter server, for `parameter_server`. The third one continues with fewer workers after it
has lost one, and with all of them when it is back; see docs/elastic.md. The config selects the
strategy: --set=runtime.distribution_strategy=…

TF_CONFIG gives each process the addresses of the cluster, which are free ports of 127.0.0.1. Each
line of output starts with the name of its process: `worker 1 | …`. SIGTERM and Ctrl-C are passed
on, so that all processes save and stop. A second signal kills them. If a process fails, the command
names it, stops the others, and returns its exit code. See docs/clusters.md.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import random
import secrets
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence

from official_lite.common import cluster, errors, tf_config
from official_lite.tools import launched_cluster

__all__ = ["add_arguments", "plan", "run"]

_HOST = "127.0.0.1"
# Below the ports used for outgoing connections, which might take a port before its process does.
_PORTS = range(10000, 32000)
_MOST_TRIES = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "--workers", type=_count, metavar="N", help="The number of training processes."
    )
    parser.add_argument(
        "--elastic",
        type=_range,
        metavar="MIN:MAX",
        help=(
            "Instead of --workers: start with MAX processes. After one was killed, continue from "
            "the last checkpoint with fewer. Only divisors of MAX are used, so that "
            "--set=trainer.virtual_replicas=MAX gives the same result with any of them."
        ),
    )
    parser.add_argument(
        "--rejoin_secs",
        type=float,
        default=600.0,
        metavar="S",
        help=(
            "With --elastic, the time in seconds after which lost workers count as back: the "
            "others save and stop, and MAX processes continue. Default: %(default)g."
        ),
    )
    parser.add_argument(
        "--ps",
        type=_count,
        default=0,
        metavar="N",
        help="The number of parameter servers; also starts a chief.",
    )
    parser.add_argument(
        "--data_workers",
        type=_count,
        default=0,
        metavar="N",
        help="The number of tf.data service workers that read the input.",
    )
    parser.add_argument(
        "--max_restarts",
        type=_count,
        default=0,
        metavar="N",
        help=(
            "The number of restarts after a process was killed or preempted. Errors in the "
            "config, code or data never cause a restart."
        ),
    )
    parser.add_argument(
        "--grace_secs",
        type=float,
        default=30.0,
        metavar="S",
        help=(
            "The time in seconds that other processes get to stop after one has failed, before "
            "they are killed. Default: %(default)g."
        ),
    )
    parser.add_argument(
        "--log_dir", type=pathlib.Path, help="A directory for one log file per process."
    )
    parser.add_argument(
        "command",
        nargs="+",
        help="The program (train.py or another) and its arguments, after `--`.",
    )


def run(args: argparse.Namespace) -> int:
    """Start the cluster, restart it if allowed, and return the exit code.

    The exit code is that of the first process that failed.
    """
    sizes = _sizes(args)
    if args.log_dir is not None:
        args.log_dir.mkdir(parents=True, exist_ok=True)
    restarts = launched_cluster.Restarts(args.max_restarts)
    size = sizes[0]
    while True:
        specs = plan(
            args.command,
            workers=size,
            ps=args.ps,
            data_workers=args.data_workers,
            log_dir=args.log_dir,
        )
        started = launched_cluster.LaunchedCluster(
            specs,
            restarts=restarts,
            grace_secs=args.grace_secs,
            most_secs=None if size == sizes[0] else args.rejoin_secs,
        )
        failure = started.run()
        if failure is None:
            return int(errors.ExitCode.DONE)
        if started.was_asked_to_stop or not failure.may_restart:
            return failure.exit_code
        if started.reached_limit:
            size = sizes[0]
            launched_cluster.say(f"Continuing with {size} workers again.", specs[0].width)
            continue
        if not restarts.take():
            return failure.exit_code
        how = ""
        if failure.code < 0 and size != sizes[-1]:
            size = sizes[sizes.index(size) + 1]
            how = f", with {size} worker{'s' if size > 1 else ''}"
        launched_cluster.say(f"Restart {restarts.taken} of {restarts.most}{how}.", specs[0].width)


def _sizes(args: argparse.Namespace) -> list[int]:
    """Return the numbers of workers to use, the largest first."""
    if args.elastic is None:
        if not args.workers:
            raise errors.ConfigValueError(
                f"--workers must be at least 1, got {args.workers}. Or use --elastic=MIN:MAX."
            )
        return [args.workers]
    if args.workers is not None or args.ps:
        raise errors.ConfigValueError(
            "--elastic can't be combined with --workers or --ps: it selects the number of workers "
            "by itself, and parameter servers replace lost workers without a restart."
        )
    if not args.max_restarts:
        raise errors.ConfigValueError(
            "--elastic requires --max_restarts, the number of restarts after a lost worker."
        )
    least, most = args.elastic
    sizes = [size for size in range(most, least - 1, -1) if most % size == 0]
    if len(sizes) == 1:
        smaller = max((size for size in range(1, most) if most % size == 0), default=None)
        advice = f"Use --elastic={smaller}:{most}, or" if smaller else "Use"
        raise errors.ConfigValueError(
            f"--elastic={least}:{most} allows only {most} workers, because only divisors of {most} "
            f"are used. {advice} --workers={most}."
        )
    return sizes


def plan(
    command: Sequence[str],
    *,
    workers: int,
    ps: int = 0,
    data_workers: int = 0,
    log_dir: pathlib.Path | None = None,
) -> list[launched_cluster.ProcessSpec]:
    """Plan the processes of a cluster, at ports that are currently free.

    Args:
        command: Command of each process; a `.py` file is run by the current Python.
        workers: Number of training processes or, with parameter servers, of the workers to which
            the chief dispatches steps.
        ps: Number of parameter servers.
        data_workers: Number of workers of a tf.data service; 0 starts no service.
        log_dir: Directory in which the output of each process is also written to a file.
    """
    counts = {"chief": int(ps > 0), "worker": workers, "ps": ps}
    num_service_ports = data_workers + 1 if data_workers else 0
    ports = iter(_free_ports(sum(counts.values()) + num_service_ports))
    addresses = {job: _addresses(ports, count) for job, count in counts.items() if count}
    service = _addresses(ports, num_service_ports)
    program = [sys.executable, *command] if command[0].endswith(".py") else list(command)
    if service:
        program.append(f"--tf_data_service=grpc://{service[0]}")
    token = os.environ.get(cluster.TOKEN_VARIABLE) or secrets.token_hex(16)
    specs = [*_data_service(service), *_cluster(program, addresses, token)]
    width = max(len(spec.name) for spec in specs)
    return [dataclasses.replace(spec, log_dir=log_dir, width=width) for spec in specs]


def _cluster(
    program: Sequence[str], addresses: Mapping[str, Sequence[str]], token: str
) -> Iterator[launched_cluster.ProcessSpec]:
    # Servers come first, so that they are up when others connect to them.
    for job in sorted(addresses, key=("ps", "worker", "chief").index):
        for index in range(len(addresses[job])):
            task = {"type": job, "index": index}
            yield launched_cluster.ProcessSpec(
                name=tf_config.task_name(job, index),
                role=_role(job, has_chief="chief" in addresses),
                command=program,
                environment={
                    "TF_CONFIG": json.dumps({"cluster": addresses, "task": task}),
                    cluster.TOKEN_VARIABLE: token,
                },
            )


def _role(job: str, *, has_chief: bool) -> launched_cluster.Role:
    """Return the role of a task in the cluster.

    With parameter servers, only the chief ends by itself, and workers can be replaced.
    """
    roles = launched_cluster.Role
    if job == "ps":
        return roles.SERVER
    return roles.REPLACEABLE if job == "worker" and has_chief else roles.TRAINER


def _data_service(addresses: Sequence[str]) -> Iterator[launched_cluster.ProcessSpec]:
    """Yield a dispatcher at the first address and a worker at each of the others."""
    tool = [sys.executable, "-m", "official_lite.tools", "data_service"]
    for index, address in enumerate(addresses):
        _, port = tf_config.split_address(address)
        if index == 0:
            role, arguments = launched_cluster.Role.SERVER, ["dispatcher", f"--port={port}"]
        else:
            role = launched_cluster.Role.REPLACEABLE
            arguments = ["worker", f"--dispatcher={addresses[0]}", f"--port={port}"]
        yield launched_cluster.ProcessSpec(
            name=f"data worker {index - 1}" if index else "data dispatcher",
            role=role,
            command=[*tool, *arguments],
            environment={},
        )


def _addresses(ports: Iterator[int], count: int) -> list[str]:
    return [f"{_HOST}:{next(ports)}" for _ in range(count)]


def _free_ports(count: int) -> list[int]:
    """Return ports that no process listens on."""
    with contextlib.ExitStack() as stack:
        found: list[int] = []
        for port in random.sample(_PORTS, _MOST_TRIES):
            if len(found) == count:
                return found
            one = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                one.bind((_HOST, port))
                found.append(port)
    raise errors.ClusterError(f"Found fewer than {count} free ports in {_PORTS}.")


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of processes")
    return int(text)


def _range(text: str) -> tuple[int, int]:
    least, _, most = text.partition(":")
    if not (least.isdecimal() and most.isdecimal() and 0 < int(least) <= int(most)):
        raise argparse.ArgumentTypeError(f"{text!r} is not MIN:MAX, such as 1:4")
    return int(least), int(most)
