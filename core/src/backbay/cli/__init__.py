"""The command line, and the door for packages that add commands, in the entry-point group backbay.commands."""

from ..data.cache_folder import write_text as write_text
from .ops import typed as typed
from .output import add_json as add_json
from .output import add_options as add_options
from .output import file_to_write as file_to_write
from .output import folder_to_write as folder_to_write
from .output import note as note
from .output import options_of as options_of
from .output import parse_option as parse_option
from .output import positive as positive
from .output import printable as printable
from .output import say as say
from .output import say_json as say_json
from .output import shares as shares
from .output import standard_input as standard_input
from .output import standard_line as standard_line
from .output import table as table
from .output import whole as whole
from .program import main as main
from .scaffold import next_kernels as next_kernels
