"""A program in a terminal of its own."""

import os
import pty
import select

DEADLINE_S = 90.0
PROMPT = "> "


class Terminal:
    """Starts a program; what it shows is read in order."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._child, self._terminal = pty.fork()
        if self._child == 0:
            os.execve(command[0], command, environment)
        self._shown = ""
        self.text = ""
        """All that was read so far."""

    def read_until(self, text: str) -> None:
        """Read up to a text that must come."""
        while text not in self._shown:
            part = self._read(text)
            assert part, f"it ended without {text!r}: {self._shown!r}"
        self._shown = self._shown.partition(text)[2]

    def write(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def exit(self) -> int:
        """Press Ctrl-D at the next prompt, wait for the end; returns the exit code.

        A Ctrl-D before the prompt would be lost: `readline` changes the mode of the terminal,
        and Linux then turns an end of file that nobody has read yet into a null character.
        """
        self.read_until(PROMPT)
        self.write("\x04")
        while self._read("the end"):
            pass
        code = os.waitstatus_to_exitcode(os.waitpid(self._child, 0)[1])
        os.close(self._terminal)
        return code

    def _read(self, awaited: str) -> str:
        """Read what the program shows next; an empty text if it has ended."""
        ready, _, _ = select.select([self._terminal], [], [], DEADLINE_S)
        assert ready, f"no {awaited!r} in {self._shown!r}"
        try:
            part = os.read(self._terminal, 4096).decode(errors="replace")
        except OSError:  # the program has ended
            return ""
        self._shown += part
        self.text += part
        return part
