"""Calls: keywords, positions, missing arguments; patches, dotted strings, engine options and environment variables."""

from __future__ import annotations

import pytest

from tests.unit.surface_case import SERVER, body, lines, report_of

VLLM = {
    "vllm/__init__.py": "from vllm.llm import LLM\nfrom vllm.params import SamplingParams\n",
    "vllm/llm.py": """
        class LLM:
            def __init__(self, model, *, tokenizer=None, **kwargs): ...
            def generate(self, prompts, params=None, *, lora_request=None): ...
            @classmethod
            def build(cls, config, usage=None) -> "LLM": ...
            @staticmethod
            def check(value): ...
        def serve(app, args, /, port=1, *rest): ...
        def start(host, *, token): ...
    """,
    "vllm/entrypoints/llm.py": "class LLM:\n    def __init__(self, model, **kwargs): ...\n",
    "vllm/params.py": """
        from dataclasses import dataclass
        @dataclass
        class SamplingParams:
            n: int = 1
            temperature: float = 1.0
    """,
    "vllm/envs.py": "VLLM_USE_V1 = True\n",
    "vllm/engine/__init__.py": "",
    "vllm/engine/arg_utils.py": """
        from dataclasses import dataclass
        @dataclass
        class EngineArgs:
            model: str = ""
            max_num_seqs: int = 1
        @dataclass
        class AsyncEngineArgs(EngineArgs):
            enable_log_requests: bool = False
    """,
}
USE = "from vllm import LLM, SamplingParams\nfrom vllm.llm import serve, start\n"

CALLS = [
    ("fits", "LLM('m', tokenizer=None)", []),
    ("keyword gone", "SamplingParams(top_p=1)", ["keyword-removed vllm.params.SamplingParams(top_p=)"]),
    ("method", "LLM('m').generate('p', sampling=1)", ["keyword-removed vllm.llm.LLM.generate(sampling=)"]),
    ("class method", "LLM.build(config=1, context=2)", ["keyword-removed vllm.llm.LLM.build(context=)"]),
    (
        "of what it returns",
        "LLM.build(1).generate('p', sampling=1)",
        ["keyword-removed vllm.llm.LLM.generate(sampling=)"],
    ),
    ("static method", "LLM.check(1, 2)", ["positional-excess vllm.llm.LLM.check()"]),
    ("too many", "SamplingParams(1, 1.0, 3)", ["positional-excess vllm.params.SamplingParams()"]),
    ("var positional", "serve(1, 2, 3, 4, 5)", []),
    (
        "positional only",
        "serve(app=1, args=2)",
        [
            "keyword-removed vllm.llm.serve(app=)",
            "keyword-removed vllm.llm.serve(args=)",
        ],
    ),
    ("required", "LLM()", ["argument-required vllm.llm.LLM(model=)"]),
    ("required keyword", "start('h')", ["argument-required vllm.llm.start(token=)"]),
    ("starred", "start(*config.args, **config.kwargs)", []),
    ("known stars", "start(*('h', 2), token=1)", ["positional-excess vllm.llm.start()"]),
    ("unbound", "LLM.generate(LLM('m'), 'p')", []),
    ("unbound too few", "LLM.generate(LLM('m'))", ["argument-required vllm.llm.LLM.generate(prompts=)"]),
    ("dict literal", "SamplingParams(**{'n': 1, 'top_p': 1})", ["keyword-removed vllm.params.SamplingParams(top_p=)"]),
    (
        "dict call",
        "kw = dict(n=1, top_k=2)\nSamplingParams(**kw)",
        ["keyword-removed vllm.params.SamplingParams(top_k=)"],
    ),
    (
        "dict grown",
        "kw = {}\nkw['top_k'] = 1\nSamplingParams(**kw)",
        ["keyword-removed vllm.params.SamplingParams(top_k=)"],
    ),
    (
        "dict updated",
        "kw = dict()\nkw.update(top_k=1)\nSamplingParams(**kw)",
        ["keyword-removed vllm.params.SamplingParams(top_k=)"],
    ),
    (
        "dict merged",
        "kw = {**config.more, **{'top_k': 1}}\nSamplingParams(**kw)",
        ["keyword-removed vllm.params.SamplingParams(top_k=)"],
    ),
    (
        "dict or",
        "kw = {'n': 1} | {'top_k': 1}\nSamplingParams(**kw)",
        ["keyword-removed vllm.params.SamplingParams(top_k=)"],
    ),
    (
        "dict copied",
        "kw = {'top_k': 1}.copy()\nSamplingParams(**kw)",
        ["keyword-removed vllm.params.SamplingParams(top_k=)"],
    ),
    ("popped", "kw = {'n': 1, 'top_k': 1}\nkw.pop('top_k')\nSamplingParams(**kw)", []),
    (
        "signature guard",
        "import inspect\nif 'top_k' in inspect.signature(SamplingParams).parameters:\n    SamplingParams(top_k=1)",
        [],
    ),
    (
        "signature set",
        (
            "import inspect\nnames = set(dict(inspect.signature(SamplingParams).parameters).keys())\n"
            "kw = {}\nif 'top_k' in names:\n    kw['top_k'] = 1\nSamplingParams(**kw)"
        ),
        [],
    ),
    ("fields guard", "if 'top_k' in SamplingParams.__dataclass_fields__:\n    SamplingParams(top_k=1)", []),
    (
        "partial",
        "import functools\nfunctools.partial(LLM.build, context=1)(1)",
        ["keyword-removed vllm.llm.LLM.build(context=)"],
    ),
    (
        "forwarded",
        "from vllm.entrypoints import llm\nllm.LLM('m', max_num_seqs=1, gone=2)",
        ["engine-key-unknown vllm.engine.arg_utils.EngineArgs.gone"],
    ),
    (
        "handled",
        "try:\n    SamplingParams(top_p=1)\nexcept TypeError:\n    SamplingParams()",
        ["guarded keyword-removed vllm.params.SamplingParams(top_p=)"],
    ),
    ("attribute of an instance", "LLM('m').offload()", ["instance-attribute-missing vllm.llm.LLM().offload"]),
    ("attribute of a class", "LLM.offload", ["attribute-missing vllm.llm.LLM.offload"]),
    (
        "annotated",
        "engine: LLM = config.engine\nengine.offload()",
        ["?instance-attribute-missing vllm.llm.LLM().offload"],
    ),
    (
        "either",
        "x = LLM('m') if config.a else LLM('n')\nx.offload()",
        ["instance-attribute-missing vllm.llm.LLM().offload"],
    ),
]


@pytest.mark.parametrize(("source", "expected"), [case[1:] for case in CALLS], ids=[case[0] for case in CALLS])
def test_calls_of_the_target(source: str, expected: list[str]) -> None:
    found = lines(report_of(USE + body(source), VLLM))
    wanted = [
        item if item.startswith("guarded") else f"breaks-feature{'? ' + item[1:] if item[0] == '?' else ' ' + item}"
        for item in expected
    ]
    assert sorted(found) == sorted(wanted)


STRINGS = [
    ("module", "import importlib\nimportlib.import_module('vllm.gone')", ["breaks-feature module-missing vllm.gone"]),
    ("module there", "import importlib\nimportlib.import_module('vllm.llm').LLM", []),
    (
        "its attribute",
        "import importlib\nimportlib.import_module('vllm.llm').gone",
        ["breaks-feature attribute-missing vllm.llm.gone"],
    ),
    ("getattr", "import vllm\ngetattr(vllm, 'gone')", ["breaks-feature attribute-missing vllm.gone"]),
    (
        "patch",
        "from unittest.mock import patch\npatch('vllm.llm.LLM.gone', 1)",
        ["breaks-feature patch-target-missing vllm.llm.LLM.gone"],
    ),
    ("patch there", "from unittest.mock import patch\npatch('vllm.llm.LLM.generate', 1)", []),
    (
        "patch module",
        "from unittest import mock\nwith mock.patch('vllm.gone.f'):\n    pass",
        ["breaks-feature patch-target-missing vllm.gone.f"],
    ),
    ("patch created", "from unittest.mock import patch\npatch('vllm.llm.LLM.gone', 1, create=True)", []),
    (
        "patch object",
        "from unittest.mock import patch\nfrom vllm import LLM\npatch.object(LLM, 'gone')",
        ["breaks-feature patch-target-missing vllm.llm.LLM.gone"],
    ),
    (
        "patch variable",
        "from unittest.mock import patch\nwhere = 'vllm.llm' + '.LLM.gone'\npatch(where, 1)",
        ["breaks-feature patch-target-missing vllm.llm.LLM.gone"],
    ),
    (
        "patch table",
        (
            "from unittest.mock import patch\n"
            "for where, what in [('vllm.llm.LLM.gone', 1), ('vllm.llm.LLM.generate', 2)]:\n"
            "    patch(where, what)"
        ),
        ["breaks-feature patch-target-missing vllm.llm.LLM.gone"],
    ),
    ("assigned", "from vllm import LLM\nLLM.gone = 1", ["degrades patch-target-missing vllm.llm.LLM.gone"]),
    ("assigned there", "from vllm import LLM\nLLM.generate = 1", []),
    ("assigned on a module", "import vllm.llm\nvllm.llm.gone = 1", ["degrades patch-target-missing vllm.llm.gone"]),
    ("setattr", "import vllm.llm\nsetattr(vllm.llm, 'gone', 1)", ["degrades patch-target-missing vllm.llm.gone"]),
    ("variable known", "import os\nos.environ['VLLM_USE_V1'] = '1'", []),
    ("variable gone", "import os\nos.environ['VLLM_GONE'] = '1'", ["degrades engine-key-unknown vllm.envs.VLLM_GONE"]),
    (
        "variable by default",
        "import os\nos.environ.setdefault('VLLM_GONE', '1')",
        ["degrades engine-key-unknown vllm.envs.VLLM_GONE"],
    ),
    (
        "variables",
        "import os\nos.environ.update({'VLLM_GONE': '1', 'X': '2'})",
        ["degrades engine-key-unknown vllm.envs.VLLM_GONE"],
    ),
    (
        "resolve_name",
        "import pkgutil\npkgutil.resolve_name('vllm.llm.gone')",
        ["breaks-feature dotted-string-missing vllm.llm.gone"],
    ),
]


@pytest.mark.parametrize(("source", "expected"), [case[1:] for case in STRINGS], ids=[case[0] for case in STRINGS])
def test_names_that_are_strings(source: str, expected: list[str]) -> None:
    assert lines(report_of(body(source), VLLM)) == expected


FLAGS = """
    from vllm.engine.arg_utils import AsyncEngineArgs
    def build_cli_args(config):
        found = []
        for key, value in config.items():
            if value is None:
                continue
            found.append(f"--{key}")
        return found
    class vLLMHttpServer:
        def launch_server(self):
            args = {"max_num_seqs": self.config.seqs, "swap_space": 4, "maybe": self.config.maybe, "nothing": None}
            if self.config.sizes:
                args["cuda_graph_sizes"] = self.config.sizes
            args.update({"enable_log_requests": True})
            return build_cli_args(args)
"""
FLAGS_INLINE = """
    from vllm.engine.arg_utils import AsyncEngineArgs
    class vLLMHttpServer:
        def launch_server(self):
            args = {"swap_space": 4}
            found = ["serve"]
            for key, value in args.items():
                if value:
                    found.append(f"--{key}")
"""


FORWARDED = """
    from vllm.engine.arg_utils import AsyncEngineArgs
    def main(config):
        options = {"seed": 1, "gone": 2}
        if config.images:
            options["limit"] = config.images
        AsyncEngineArgs(**options)
"""


def test_options_handed_on_keep_the_condition_under_which_they_are_set() -> None:
    report = report_of(FORWARDED, VLLM)
    keys = {item.symbol.rpartition("(")[2]: (item.default_path, item.guard) for item in report.findings}
    assert keys == {"seed=)": (True, ""), "gone=)": (True, ""), "limit=)": (False, "config.images")}


def test_options_that_become_flags() -> None:
    report = report_of({SERVER: FLAGS}, VLLM)
    keys = {item.symbol.rpartition(".")[2]: (item.default_path, item.guard) for item in report.findings}
    assert keys == {
        "swap_space": (True, ""),
        "maybe": (False, "maybe is not None"),
        "cuda_graph_sizes": (False, "self.config.sizes"),
    }
    assert all(item.exception == "SystemExit" for item in report.findings)
    assert report.outcome == "broken"


def test_flags_built_on_the_spot_and_flags_of_something_else() -> None:
    inline = report_of({SERVER: FLAGS_INLINE}, VLLM)
    assert lines(inline) == ["breaks-feature engine-key-unknown vllm.engine.arg_utils.AsyncEngineArgs.swap_space"]
    stranger = FLAGS_INLINE.replace("from vllm.engine.arg_utils import AsyncEngineArgs", "import sys")
    assert lines(report_of({SERVER: stranger}, VLLM)) == []
