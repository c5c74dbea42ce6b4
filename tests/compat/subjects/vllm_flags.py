"""Parse command-line flags with the installed vLLM's own parser of engine arguments: `vllm_flags.py FLAG [VALUE]`.

No engine starts. argparse ends the process with code 2 where it does not know the flag.
"""

import sys

try:
    from vllm.utils.argparse_utils import FlexibleArgumentParser
except ImportError:
    from vllm.utils import FlexibleArgumentParser
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform

if not current_platform.device_type:
    # The parser shows the default of each option, and for that of the device it wants some device to be there.
    current_platform.device_type = "cpu"

parser = FlexibleArgumentParser(prog="vllm serve")
AsyncEngineArgs.add_cli_args(parser)
print("parsed:", parser.parse_args(sys.argv[1:]))
