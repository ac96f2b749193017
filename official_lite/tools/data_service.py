"""Start a dispatcher or a worker of a tf.data service, which prepares data for training runs.

Start one dispatcher, whose address is passed to training runs, and any number of workers:

    python -m official_lite.tools data_service dispatcher --port=5000
    python -m official_lite.tools data_service worker --dispatcher=HOST:5000 --host=THIS_HOST
    python train.py --tf_data_service=grpc://HOST:5000 ...

Workers must see the files under the same paths as the training process. They may join and leave
while it runs. SIGTERM and Ctrl-C stop a dispatcher or a worker, with exit code 0.
"""

import argparse
import signal
import threading
from typing import Any

from official_lite.common import errors, terminal

# The time for which a worker tries to reach a lost dispatcher before it logs an error.
_DISPATCHER_TIMEOUT_MS = 60_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the two roles and their arguments."""
    roles = parser.add_subparsers(dest="role", required=True, metavar="dispatcher|worker")
    dispatcher = roles.add_parser(
        "dispatcher", help="Start a dispatcher, which connects trainers and workers."
    )
    dispatcher.add_argument("--port", type=int, required=True)
    dispatcher.add_argument(
        "--work_dir",
        default="",
        help="The directory in which the dispatcher stores its state for restarts.",
    )
    worker = roles.add_parser("worker", help="Start a worker, which prepares data.")
    worker.add_argument("--dispatcher", required=True, metavar="HOST:PORT")
    worker.add_argument("--port", type=int, default=0, help="Default: any free port.")
    worker.add_argument(
        "--host",
        default="localhost",
        help="The host name under which trainers can reach this worker.",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until a signal arrives, and return the exit code.

    Raises:
        ConfigValueError: The port can't be used.
        ClusterError: The dispatcher can't be reached.
    """
    start = _start_dispatcher if args.role == "dispatcher" else _start_worker
    server, what = start(args)
    is_over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: is_over.set())
    # Print this message after the handlers are installed, because its reader may send a signal
    # immediately.
    terminal.say(what)
    is_over.wait()
    server.stop()
    terminal.say(f"The {args.role} stopped.")
    return int(errors.ExitCode.DONE)


def _start_dispatcher(args: argparse.Namespace) -> tuple[Any, str]:
    import tensorflow as tf

    service = tf.data.experimental.service
    config = service.DispatcherConfig(
        port=args.port, work_dir=args.work_dir or None, fault_tolerant_mode=bool(args.work_dir)
    )
    server = _start(service.DispatchServer, config, args.port)
    return server, f"Dispatching at {server.target}"


def _start_worker(args: argparse.Namespace) -> tuple[Any, str]:
    import tensorflow as tf

    from official_lite.data import data_service

    dispatcher = args.dispatcher.rpartition("://")[2]
    data_service.wait_for_dispatcher(dispatcher)
    service = tf.data.experimental.service
    config = service.WorkerConfig(
        dispatcher_address=dispatcher,
        # TensorFlow replaces `%port%` by the port number.
        worker_address=f"{args.host}:{args.port or '%port%'}",
        port=args.port,
        dispatcher_timeout_ms=_DISPATCHER_TIMEOUT_MS,
    )
    server = _start(service.WorkerServer, config, args.port)
    return server, f"Working for the dispatcher at {dispatcher}"


def _start(server_cls: Any, config: Any, port: int) -> Any:
    import tensorflow as tf

    try:
        return server_cls(config)
    except (RuntimeError, tf.errors.OpError) as error:
        raise errors.ConfigValueError(
            f"Can't listen on port {port}: {error}. Check whether another process uses this port, "
            "or pass another --port."
        ) from error
