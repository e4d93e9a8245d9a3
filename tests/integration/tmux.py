"""A command in a terminal of a given size, drawn by tmux."""

import subprocess


class Tmux:
    """The terminal.

    Args:
        directory: for the server's socket; the command runs there.
        environment: further variables.
        argv: the command.
        columns: of the terminal.
        lines: of the terminal.
    """

    def __init__(self, directory, environment, argv, columns=150, lines=40):
        self._server = ("tmux", "-S", str(directory / "tmux"))
        settings = [f"{name}={value}" for name, value in environment.items()]
        size = ("-x", str(columns), "-y", str(lines), "-c", str(directory))
        self._run("new-session", "-d", *size, "env", *settings, *argv)

    def _run(self, *words):
        return subprocess.run([*self._server, *words], capture_output=True, text=True, check=True).stdout

    def shown(self, *, escapes=False):
        """The screen, with the escapes of its colours or without; "" once the command has ended."""
        words = [*self._server, "capture-pane", "-p", *(["-e"] if escapes else [])]
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout

    def press(self, *keys):
        """Press keys, by tmux's names of them."""
        self._run("send-keys", *keys)

    def end(self):
        """End the command and the terminal."""
        subprocess.run([*self._server, "kill-server"], capture_output=True, check=False)
