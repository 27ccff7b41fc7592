"""A server that collects passwords: it asks each client for one in clear text, and accepts none."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_SSL_REQUEST = 80877103


class Thief:
    """The passwords that clients sent, one entry for each; and how many came. ``asks`` is the number of the request:
    3 for a password, 7 for a Kerberos ticket."""

    def __init__(self, asks: int) -> None:
        self._asks = asks
        self.passwords: list[str] = []
        self.clients = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])

    def serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                with client, suppress(OSError, struct.error):
                    client.settimeout(10)
                    self._ask(client)

    def _ask(self, client: socket.socket) -> None:
        self.clients += 1
        length, code = struct.unpack("!ii", _exactly(client, 8))
        if code == _SSL_REQUEST:
            client.sendall(b"N")
            length, code = struct.unpack("!ii", _exactly(client, 8))
        _exactly(client, length - 8)
        client.sendall(struct.pack("!cii", b"R", 8, self._asks))
        _, length = struct.unpack("!ci", _exactly(client, 5))
        self.passwords.append(_exactly(client, length - 4).rstrip(b"\0").decode())
        fields = b"SFATAL\0C28P01\0Mpassword authentication failed\0\0"
        client.sendall(struct.pack("!ci", b"E", len(fields) + 4) + fields)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _exactly(client: socket.socket, amount: int) -> bytes:
    data = b""
    while len(data) < amount:
        more = client.recv(amount - len(data))
        if not more:
            raise OSError("the client has gone")
        data += more
    return data


@contextmanager
def thief(asks: int = 3) -> Iterator[Thief]:
    found = Thief(asks)
    thread = threading.Thread(target=found.serve, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.close()
        thread.join(10)
