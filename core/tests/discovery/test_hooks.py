"""One plugin may extend everything, by the hooks of hook_specs; what is wrong with one plugin's hooks harms no other."""

from __future__ import annotations

import pytest
from environment import GOOD, Environment

EVERYTHING = f"""{GOOD}
    class Command:
        '''Says a word.'''

        def __init__(self, word):
            self.word = word

        def add_arguments(self, parser):
            pass

        def run(self, args):
            print(self.word)
            return 0

    @hookimpl
    def backbay_command(name):
        return Command(name)

    @hookimpl
    def backbay_model_file():
        return lambda path, only: print("asked for", path)

    @hookimpl
    def backbay_op_users():
        return {{"mulmat": ["everything"]}}
"""
GROUPS = ("backends", "commands", "model_files", "op_users")
NO_COMMAND = EVERYTHING.replace("def backbay_command", "def backbay_comand")


def install(environment: Environment, distribution: str, names: str, source: str = EVERYTHING) -> None:
    """A module that every group of core names, under each of some names."""
    module = distribution.replace("-", "_")
    points = [f"{name} = {module}" for name in names.split()]
    environment.install(distribution, {module: source}, [])
    (info,) = environment.site.glob(f"{module}-*")
    text = "\n".join(line for group in GROUPS for line in (f"[backbay.{group}]", *points, ""))
    (info / "entry_points.txt").write_text(text)


def test_one_plugin_has_hooks_of_every_kind_under_several_names(environment: Environment) -> None:
    install(environment, "every-thing", "hello goodbye")
    assert environment.python("import backbay; backbay.open(backend='goodbye').close()").stderr == ""
    assert environment.backbay("hello").stdout == "hello\n"
    assert environment.backbay("goodbye").stdout == "goodbye\n"
    assert environment.backbay("inspect", "a:name").stdout == "asked for a:name\n" * 2
    assert '"everything"' in environment.backbay("ops", "--json").stdout


def test_only_the_plugin_of_the_name_is_called(environment: Environment) -> None:
    install(environment, "the-first", "first")
    install(environment, "the-second", "second", EVERYTHING.replace("Command(name)", "Command('other')"))
    done = environment.python(
        "from backbay.cli import main; [main([n]) for n in ('first', 'second', 'first')]"
    )
    assert done.stdout == "first\nother\nfirst\n", done.stderr


@pytest.mark.fault("a plugin has a hook of an unknown name", "an error that names it; other plugins work")
def test_an_unknown_hook_harms_no_other_plugin_of_the_process(environment: Environment) -> None:
    install(environment, "bad-plugin", "bad", NO_COMMAND)
    install(environment, "good-plugin", "good")
    done = environment.python("from backbay.cli import main; [main([n]) for n in ('bad', 'good', 'bad')]")
    assert done.stdout == "good\n"
    why = "command 'bad' of bad-plugin 1.0 cannot be loaded: PluginValidationError: unknown hook 'backbay_comand'"
    first, second = done.stderr.splitlines()
    assert why in first
    assert first.endswith("; backbay.discovery.hook_specs lists all hooks; fix or uninstall bad-plugin")
    assert first == second


def test_a_table_of_op_users_that_cannot_be_loaded_is_left_out_with_a_warning(
    environment: Environment,
) -> None:
    install(environment, "bad-plugin", "bad", "import a_library_that_is_not_there")
    install(environment, "good-plugin", "good")
    done = environment.backbay("ops", "--json")
    assert "backbay.op_users of bad-plugin 1.0 cannot be read: No module named" in done.stderr
    assert '"everything"' in done.stdout
