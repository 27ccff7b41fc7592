"""Record a run of ``agentbus demo`` as ``docs/images/demo.svg``: ``make picture``.

The demo runs for real, in a pseudo-terminal of 100 columns. The bytes that it writes, colours included, are replayed
into the picture; only the trailing blank lines are dropped.
"""

from __future__ import annotations

import argparse
import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

COLUMNS, ROWS = 100, 50
DEMO = (str(Path(sys.executable).with_name("agentbus")), "demo")
THEME = TerminalTheme(
    (22, 27, 34),
    (201, 209, 217),
    [
        (72, 79, 88), (255, 123, 114), (63, 185, 80), (210, 153, 34),
        (88, 166, 255), (188, 140, 255), (57, 197, 207), (177, 186, 196),
    ],
    [
        (110, 118, 129), (255, 161, 152), (86, 211, 100), (227, 179, 65),
        (121, 192, 255), (210, 168, 255), (86, 212, 221), (240, 246, 252),
    ],
)  # fmt: skip
# That of rich without its web font: the picture loads nothing from another site.
SVG = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
    font-family: "DejaVu Sans Mono", Menlo, Consolas, "Liberation Mono", monospace;
    font-size: {char_height}px;
    line-height: {line_height}px;
    font-variant-east-asian: full-width;
}}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def run(command: tuple[str, ...], columns: int = COLUMNS) -> str:
    """Run a command in a pseudo-terminal and return everything that it wrote there."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
    drop = ("NO_COLOR", "COLUMNS", "LINES")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AGENTBUS_")}
    environment = {name: value for name, value in environment.items() if name not in drop}
    environment |= {"TERM": "xterm-256color", "COLORTERM": "truecolor", "PYTHONUTF8": "1"}
    with tempfile.TemporaryDirectory() as directory:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal, cwd=directory, env=environment
        )
        os.close(terminal)
        written = bytearray()
        while True:
            try:
                part = os.read(controller, 65536)
            except OSError:
                # Linux reports the last close of the terminal as EIO.
                break
            if not part:
                break
            written += part
        status = process.wait()
    os.close(controller)
    if status:
        raise SystemExit(f"{' '.join(command)} ended with status {status}:\n{written.decode()}")
    return written.decode().replace("\r\n", "\n")


def draw(output: str, title: str) -> str:
    """Return the output of a terminal as SVG."""
    console = Console(width=COLUMNS, record=True, force_terminal=True, color_system="truecolor", file=io.StringIO())
    console.print(Text("$ ", style="bold green") + Text(title, style="bold"))
    console.print(Text.from_ansi(output.rstrip()))
    return console.export_svg(title=title, theme=THEME, code_format=SVG, unique_id="demo")


def main() -> int:
    parser = argparse.ArgumentParser(description="Record a run of agentbus demo as an SVG picture.")
    parser.add_argument("file", nargs="?", type=Path, default=Path(__file__).with_name("demo.svg"))
    parser.add_argument("--raw", type=Path, help="also store the bytes that the demo wrote")
    options = parser.parse_args()
    output = run(DEMO)
    if options.raw:
        options.raw.write_text(output, encoding="utf-8")
    options.file.write_text(draw(output, "agentbus demo"), encoding="utf-8")
    print(options.file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
