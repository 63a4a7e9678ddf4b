"""The command finds what is asked for, imports only that, and fails in a line and with a status."""

from __future__ import annotations

import re

import pytest
from environment import GOOD, Environment

from backbay.cli import main

COMMAND = '''
    """Greets a person."""

    def add_arguments(parser):
        parser.add_argument("name")

    def run(args):
        print("hello", args.name)
        return 5
'''


def install_command(environment: Environment, name: str, source: str) -> None:
    module = f"{name}_command"
    environment.install(f"pack-{name}", {module: source}, [f"{name} = {module}"], group="backbay.commands")


def test_without_a_command_help_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "doctor " in said.err


def test_help_lists_the_commands_of_packages_without_importing_them(environment: Environment) -> None:
    install_command(environment, "broken", "raise RuntimeError('imported')")
    done = environment.backbay("--help")
    assert done.returncode == 0
    assert re.search("broken +from pack-broken 1.0", done.stdout)


def test_help_says_what_the_commands_of_packages_do_by_the_first_line_of_their_source(
    environment: Environment,
) -> None:
    install_command(
        environment, "greet", '''"""Greets a person: nobody else.\n\nMore."""\nraise RuntimeError'''
    )
    install_command(environment, "torn", '"""Half a')
    said = environment.backbay("--help").stdout
    assert re.search("greet +greets a person\n", said)
    assert re.search("torn +from pack-torn 1.0", said)


def test_a_package_adds_a_command_with_arguments_and_a_status(environment: Environment) -> None:
    install_command(environment, "greet", COMMAND)
    done = environment.backbay("greet", "world")
    assert (done.stdout, done.returncode) == ("hello world\n", 5)
    assert "Greets a person." in environment.backbay("greet", "--help").stdout
    assert environment.backbay("greet").returncode == 2


@pytest.mark.fault("a distribution's command cannot be imported", "one line; the other commands work")
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("raise RuntimeError('no')", "command 'bad' of pack-bad 1.0 cannot be loaded: RuntimeError: no"),
        (
            "raise SystemExit",
            "command 'bad' of pack-bad 1.0 cannot be loaded: SystemExit; fix or uninstall pack-bad\n",
        ),
        ("x = 1", "has no add_arguments and no run"),
    ],
)
def test_a_broken_command_is_said_in_a_line_and_breaks_no_other(
    environment: Environment, source: str, message: str
) -> None:
    install_command(environment, "bad", source)
    install_command(environment, "greet", COMMAND)
    done = environment.backbay("bad")
    assert done.returncode == 1
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert environment.backbay("greet", "you").stdout == "hello you\n"


def test_two_commands_of_one_name_are_an_error_that_names_both(environment: Environment) -> None:
    install_command(environment, "greet", COMMAND)
    environment.install("rival", {}, ["greet = greet_command"], group="backbay.commands")
    done = environment.backbay("greet", "you")
    assert done.returncode == 1
    assert "pack-greet 1.0" in done.stderr
    assert "rival 1.0" in done.stderr


def test_a_package_cannot_take_the_place_of_a_command_of_core(environment: Environment) -> None:
    install_command(environment, "ops", COMMAND)
    assert "mulmat(x)" in environment.backbay("ops").stdout


@pytest.mark.parametrize(
    ("words", "said", "help"),
    [
        (["lsit"], "backbay: error: no command 'lsit'; there are ", "backbay --help"),
        (["list", "--tiemout", "3"], "backbay list: error: unrecognized arguments: ", "backbay list --help"),
        (["cache", "clean"], "backbay cache: error: argument ", "backbay cache --help"),
    ],
)
def test_wrong_usage_is_a_line_that_says_why_and_one_that_names_the_help(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str, help: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    why, hint = capsys.readouterr().err.splitlines()
    assert why.startswith(said)
    assert hint == f"{help} shows its arguments"


def test_an_error_is_one_line_and_debug_shows_where_it_comes_from(environment: Environment) -> None:
    done = environment.backbay("inspect", "missing.gguf")
    assert done.returncode == 1
    assert done.stderr == "backbay: missing.gguf: expected a readable file, found No such file or directory\n"
    assert "Traceback" in environment.backbay("inspect", "missing.gguf", "--debug").stderr
    assert "Traceback" in environment.backbay("--debug", "inspect", "missing.gguf").stderr


@pytest.mark.fault("the reader of a pipe goes away", "the command ends without a traceback")
def test_a_reader_that_stops_reading_is_no_error_with_a_traceback(environment: Environment) -> None:
    environment.install_backend("good", GOOD)
    done = environment.python(
        """
        import os, subprocess, sys
        reader, writer = os.pipe()
        os.close(reader)
        command = [sys.executable, "-S", "-m", "backbay", "ops", "--markdown"]
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE)
        print(done.stderr.decode(), done.returncode)
        """
    )
    assert done.stdout == " 1\n", done.stderr


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("backbay")
