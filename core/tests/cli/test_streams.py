"""Commands whose streams are closed, or cannot take every character."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from environment import GOOD, Environment
from patience import PATIENCE

from backbay.cli.output import standard_line

BACKBAY = f'"{sys.executable}" -m backbay'
TOLD = "backbay: standard output is closed, nothing was printed"


def shell(line: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, **variables}
    return subprocess.run(
        ["sh", "-c", line], capture_output=True, env=environment, timeout=PATIENCE, check=False
    )


@pytest.mark.fault("standard output is closed", "one line on standard error, exit status 1")
def test_a_closed_standard_output_is_an_error():
    done = shell(f"{BACKBAY} cache path >&-")
    assert (done.returncode, done.stderr.decode().splitlines()) == (1, [TOLD])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.fault("standard output is on a full disk", "one line on standard error, exit status 1")
@pytest.mark.parametrize("words", ["cache", "cache --json", "cache path"])
def test_a_standard_output_that_cannot_be_written_is_named(words: str):
    done = shell(f"{BACKBAY} {words} >/dev/full")
    told = "standard output cannot be written: No space left on device"
    assert (done.returncode, done.stderr.decode().splitlines()[-1]) == (1, f"backbay: {told}")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_text_that_only_the_last_flush_writes_is_named_too():
    program = "from backbay.cli import output; output.say(5000 * 'a'); output.flush()"  # more than one block of a disk
    done = shell(f'"{sys.executable}" -c "{program}" >/dev/full')
    assert b"standard output cannot be written: No space left on device" in done.stderr


@pytest.mark.fault("standard input or standard error is closed", "the command runs as before")
@pytest.mark.parametrize("closed", ["2>&-", "<&-", "<&- 2>&-"])
def test_other_closed_streams_change_nothing(closed: str):
    done = shell(f"{BACKBAY} cache path {closed}")
    assert done.returncode == 0
    assert done.stdout == f"{os.environ['BACKBAY_CACHE_DIR']}\n".encode()


def test_an_error_without_a_standard_error_is_still_a_status():
    assert shell(f"{BACKBAY} inspect /nowhere.gguf 2>&-").returncode == 1


@pytest.mark.fault("the terminal's encoding lacks a character", "the character is escaped")
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
@pytest.mark.few(1)
def test_what_an_encoding_lacks_is_escaped(encoding: str, environment: Environment):
    strange = GOOD.replace('"none"', "'\\u2603'")
    assert strange != GOOD
    environment.install_backend("strange", strange)
    done = environment.backbay("doctor", PYTHONIOENCODING=encoding, PYTHONUTF8="0")
    assert "\\u2603" in done.stdout, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.fault("a plugin's error holds terminal controls", "they are printed escaped")
def test_escapes_in_an_error_of_a_plugin_do_not_reach_the_terminal(environment: Environment):
    environment.install_backend("loud", "raise ImportError('\\x1b]0;owned\\x07\\x1b[2J')")
    done = environment.python("import backbay.cli, sys; sys.exit(backbay.cli.main(['conform', 'loud']))")
    texts = done.stdout + done.stderr
    done = environment.backbay("list")
    texts += done.stdout + done.stderr
    assert "\x1b" not in texts
    assert "\\x1b]0;owned" in texts


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_bytes_that_are_no_text_are_named(locale: str):
    program = "from backbay.cli import standard_input, standard_line; import sys; print({}())"
    for reader in ("standard_input", "standard_line"):
        code = program.format(reader)
        done = shell(f"printf 'caf\\351 \\377' | \"{sys.executable}\" -c '{code}'", LC_ALL=locale)
        assert b"BackbayError: standard input is no text in" in done.stderr, done.stderr
        done = shell(f"\"{sys.executable}\" -c '{code}' <&-")
        assert b"BackbayError: standard input is closed" in done.stderr, done.stderr


FULL = """
import os, sys, threading, time
from backbay.cli import program

os.set_blocking(2, False)
try:
    while os.write(2, bytes(1 << 12)):
        pass
except BlockingIOError:
    os.set_blocking(2, True)
threading.Thread(target=time.sleep, args=(600,)).start()
program.PATIENCE = 0.1
sys.argv = ["backbay", "cache", "path"]
program.console()
"""


@pytest.mark.fault("a thread does not end, and nobody reads standard error", "the process ends anyway")
def test_an_end_waits_for_no_reader_of_standard_error():
    command = [sys.executable, "-c", FULL]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.wait(PATIENCE) == 0


class Interrupted(io.StringIO):
    """A stream whose user presses Ctrl-C while it is written."""

    def flush(self) -> None:
        raise KeyboardInterrupt


@pytest.mark.fault("Ctrl-C while a question of a chat is awaited, and output is written", "it is not lost")
def test_ctrl_c_before_a_line_is_read_is_not_lost(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("a line\n"))
    monkeypatch.setattr(sys, "stdout", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        standard_line()
