"""Doorbells: a Unix datagram socket per process. A commit rings the processes that listen; idle costs nothing."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Container, Iterable
from contextlib import suppress
from pathlib import Path

from agentbus.engine.sqlite.forking import forget_in_child

ANY = "*"
"""Rung instead of a list of channels that would not fit: look at everything."""
_MOST = 30_000


class Bell:
    """This process's own doorbell."""

    def __init__(self, directory: Path) -> None:
        self.path = str(directory / f"{os.getpid()}-{secrets.token_hex(4)}")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self.socket.bind(self.path)
        os.chmod(self.path, 0o600)
        forget_in_child(self)

    def rung(self) -> list[str]:
        """The channels rung since the last look."""
        channels: list[str] = []
        with suppress(BlockingIOError):
            while True:
                channels += self.socket.recv(65536).decode().split("\n")
        return channels

    def forget(self) -> None:
        """In a forked child: an open socket would let the parent look alive after its death."""
        self.socket.close()

    def close(self) -> None:
        self.socket.close()
        with suppress(OSError):
            os.unlink(self.path)


class Ringer:
    """Rings other processes' bells. A bell whose queue is full is rung again later, with all it missed."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._missed: dict[str, set[str]] = {}

    def ring(self, bells: dict[str, set[str]]) -> bool:
        """Ring each bell for its channels. False if some must be rung again."""
        for bell, channels in bells.items():
            self._missed.setdefault(bell, set()).update(channels)
        for bell in list(self._missed):
            try:
                self._socket.sendto(_message(self._missed[bell]), bell)
            except BlockingIOError:
                continue
            except OSError:
                # Nobody is there any more; whoever finds that process dead strikes it off.
                pass
            del self._missed[bell]
        return not self._missed

    def close(self) -> None:
        self._socket.close()


def sweep(directory: Path, keep: Container[str | None]) -> None:
    """Remove the bells that no process answers to."""
    for bell in directory.iterdir():
        if str(bell) in keep:
            continue
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(str(bell))
            except ConnectionRefusedError:
                with suppress(OSError):
                    bell.unlink()
            except OSError:
                continue


def _message(channels: Iterable[str]) -> bytes:
    text = "\n".join(channels).encode()
    return text if len(text) <= _MOST else ANY.encode()
