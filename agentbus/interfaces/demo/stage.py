"""Real processes for the demo: started, heard, killed, and all gone at the end, whatever happens."""

from __future__ import annotations

import os
import subprocess
import sys
import threading


class Player:
    """A process of the team, on the bus at ``url``. ``said`` are the lines that it has written."""

    def __init__(self, name: str, url: str, *arguments: str) -> None:
        self.name = name
        self.said: list[list[str]] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "agentbus.interfaces.demo.team", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            # Not among the arguments, which everybody on the machine can read: it may have a password in it.
            env={**os.environ, "AGENTBUS_URL": url},
        )
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def words(self, first: str) -> list[list[str]]:
        """What followed the lines that began with this word."""
        return [rest for word, *rest in list(self.said) if word == first]

    @property
    def code(self) -> int | None:
        return self._process.poll()

    def kill(self) -> None:
        """kill -9. Not yet waited for, as a process whose parent is busy."""
        self._process.kill()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self.said.append(line.split())


class Stage:
    """Everybody who was ever started."""

    def __init__(self) -> None:
        self.players: list[Player] = []

    def start(self, name: str, url: str, *arguments: str) -> Player:
        player = Player(name, url, *arguments)
        self.players.append(player)
        return player

    def close(self) -> None:
        """No process is left."""
        for player in self.players:
            player.close()
