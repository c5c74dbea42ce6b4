"""Parse command-line flags with the installed vLLM's own parser of engine arguments: `vllm_flags.py FLAG [VALUE]`.

No engine starts. argparse ends the process with code 2 where it does not know the flag.
"""

import sys

try:
    from vllm.utils.argparse_utils import FlexibleArgumentParser
except ImportError:
    from vllm.utils import FlexibleArgumentParser
from vllm.engine.arg_utils import AsyncEngineArgs

parser = FlexibleArgumentParser(prog="vllm serve")
# AsyncEngineArgs adds what only the server knows to what every engine knows.
AsyncEngineArgs.add_cli_args(parser)
print("parsed:", parser.parse_args(sys.argv[1:]))
