"""Several hosts on one machine: Linux network namespaces that this process connects.

Each host has its own interfaces, addresses and ports. Its network card is a TAP device, whose other
end is a file of this process. A thread forwards the Ethernet frames, so it can delay or lose them,
or pull a cable. The kernel could do this as well (veth pairs, a bridge and `tc netem`), but many
kernels are built without `netem`.
"""

import contextlib
import dataclasses
import fcntl
import heapq
import itertools
import os
import pathlib
import random
import select
import shutil
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent import futures

import pytest

_NAMESPACES = pathlib.Path("/run/netns")
_PREFIX = "official-lite-test"
_TUN = "/dev/net/tun"
# See linux/if_tun.h.
_TUNSETIFF = 0x400454CA
_IFF_TAP = 0x0002
_IFF_NO_PI = 0x1000
_MAX_FRAME = 65536
_SECONDS_BETWEEN_LOOKS = 0.05


@dataclasses.dataclass(eq=False)
class Host:
    """A host with one network card.

    Attributes:
        network: Name of its network namespace, as for `ip netns exec` or `Command(network=…)`.
        address: Its IP address.
        card: The end of the cable to its network card.
        delay: The time in seconds by which each frame that it sends is delayed.
        loss: The probability that a frame that it sends is lost.
        num_lost: How many of its frames were lost.
        is_connected: Whether its cable is plugged in. The host does not notice a cut cable.
    """

    network: str
    address: str
    card: int
    delay: float = 0.0
    loss: float = 0.0
    num_lost: int = 0
    is_connected: bool = True

    def cut(self, seconds: float) -> None:
        """Cut the cable and mend it after some seconds."""
        self.is_connected = False
        time.sleep(seconds)
        self.is_connected = True

    def move(self, address: str) -> None:
        """Give the host another address; its connections break."""
        _ip("-n", self.network, "address", "flush", "dev", "card")
        _ip("-n", self.network, "address", "add", f"{address}/24", "dev", "card")
        self.address = address


@contextlib.contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    """Connect `count` hosts, or skip the test where this is not permitted."""
    if not _is_permitted():
        pytest.skip(f"network namespaces require root, `ip` and {_TUN}")
    _remove_namespaces()
    with contextlib.ExitStack() as stack:
        stack.callback(_remove_namespaces)
        made = [_make(index, stack) for index in range(count)]
        stop = threading.Event()
        with futures.ThreadPoolExecutor(1) as threads:
            hub = threads.submit(_forward, made, stop)
            try:
                yield made
            finally:
                stop.set()
                # Raises what ended the thread early.
                hub.result()


def _is_permitted() -> bool:
    if not os.access(_TUN, os.W_OK) or not all(map(shutil.which, ("ip", "unshare"))):
        return False
    done = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False)
    return done.returncode == 0


def _make(index: int, stack: contextlib.ExitStack) -> Host:
    network = f"{_PREFIX}-{os.getpid()}-{index}"
    card = os.open(_TUN, os.O_RDWR)
    stack.callback(os.close, card)
    # The device is made in the namespace of this process and renamed in the one of the host.
    device = f"t{os.getpid()}-{index}"
    flags = _IFF_TAP | _IFF_NO_PI
    fcntl.ioctl(card, _TUNSETIFF, struct.pack("16sH22x", device.encode(), flags))
    _ip("netns", "add", network)
    _ip("link", "set", device, "netns", network, "name", "card")
    host = Host(network, "", card)
    host.move(f"10.0.0.{index + 1}")
    for interface in ("lo", "card"):
        _ip("-n", network, "link", "set", interface, "up")
    return host


def _forward(members: Sequence[Host], stop: threading.Event) -> None:
    """Forward the frames of each host to all others, like an Ethernet hub."""
    draws = random.Random(0)
    order = itertools.count()
    queue: list[tuple[float, int, Host, bytes]] = []
    by_card = {host.card: host for host in members}
    while not stop.is_set():
        seconds = queue[0][0] - time.monotonic() if queue else _SECONDS_BETWEEN_LOOKS
        ready = select.select(by_card, (), (), min(max(seconds, 0.0), _SECONDS_BETWEEN_LOOKS))[0]
        for source in map(by_card.__getitem__, ready):
            frame = os.read(source.card, _MAX_FRAME)
            if not source.is_connected:
                continue
            if draws.random() < source.loss:
                source.num_lost += 1
            else:
                due = time.monotonic() + source.delay
                heapq.heappush(queue, (due, next(order), source, frame))
        while queue and queue[0][0] <= time.monotonic():
            _, _, source, frame = heapq.heappop(queue)
            for other in members:
                if other is not source and other.is_connected:
                    os.write(other.card, frame)


def _remove_namespaces() -> None:
    """Remove the namespaces of this process and of killed ones, with the processes in them.

    A TAP device disappears with the process that made it, but a namespace remains.
    """
    for path in _NAMESPACES.glob(f"{_PREFIX}-*"):
        owner = int(path.name.split("-")[-2])
        if owner != os.getpid() and os.path.exists(f"/proc/{owner}"):
            continue
        try:
            for pid in _ip("netns", "pids", path.name).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            _ip("netns", "delete", path.name)
        except AssertionError:
            # Another test process may remove what a killed one left, too.
            if path.exists():
                raise


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"
    return done.stdout
