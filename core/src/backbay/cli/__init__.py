"""The command line, and the door for packages that add commands, in the entry-point group backbay.commands."""

from ..data.files import write_text
from .arguments import (
    add_options,
    file_to_write,
    folder_to_write,
    options_of,
    parse_option,
    positive,
    whole,
)
from .output import add_json, note, printable, say, say_json, table
from .program import main
from .scaffold import next_kernels
from .signatures import typed
from .streams import standard_input, standard_line

__all__ = [
    "add_json",
    "add_options",
    "file_to_write",
    "folder_to_write",
    "main",
    "next_kernels",
    "note",
    "options_of",
    "parse_option",
    "positive",
    "printable",
    "say",
    "say_json",
    "standard_input",
    "standard_line",
    "table",
    "typed",
    "whole",
    "write_text",
]
