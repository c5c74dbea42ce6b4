"""Gates: version conditions, handlers, availability helpers, and what is believed of code behind them."""

from __future__ import annotations

import pytest

from tests.unit.surface_case import MAIN, body, lines, report_of

VLLM = {"vllm/__init__.py": "class LLM: ...\n", "vllm/new.py": "def here(): ...\n"}
VERSION = "from importlib.metadata import version\nfrom packaging import version as vs\nimport vllm\n"
MISSING = "from vllm.old import gone"
BREAKS = ["breaks-import module-missing vllm.old"]
GUARDED = ["guarded module-missing vllm.old"]

IMPORTS = [
    ("plain", MISSING, BREAKS),
    ("import error", f"try:\n    {MISSING}\nexcept ImportError:\n    gone = None", GUARDED),
    ("module not found", f"try:\n    {MISSING}\nexcept ModuleNotFoundError:\n    gone = None", GUARDED),
    ("any exception", f"try:\n    {MISSING}\nexcept Exception:\n    gone = None", GUARDED),
    ("bare", f"try:\n    {MISSING}\nexcept:\n    gone = None", GUARDED),
    ("tuple", f"try:\n    {MISSING}\nexcept (KeyError, ImportError):\n    gone = None", GUARDED),
    ("other exception", f"try:\n    {MISSING}\nexcept KeyError:\n    gone = None", BREAKS),
    ("suppress", f"import contextlib\nwith contextlib.suppress(ImportError):\n    {MISSING}", GUARDED),
    ("suppress another", f"import contextlib\nwith contextlib.suppress(KeyError):\n    {MISSING}", BREAKS),
    ("finally only", f"try:\n    {MISSING}\nfinally:\n    done = True", BREAKS),
    ("says so", f"try:\n    {MISSING}\nexcept ImportError:\n    print('no')", ["degrades module-missing vllm.old"]),
    ("other way", f"try:\n    {MISSING}\nexcept ImportError:\n    from vllm.new import here as gone", GUARDED),
    ("reraise", f"try:\n    {MISSING}\nexcept ImportError as e:\n    raise ImportError('no FP8') from e", BREAKS),
    ("bare raise", f"try:\n    {MISSING}\nexcept ImportError:\n    raise", BREAKS),
    (
        "outer handler",
        f"try:\n    try:\n        {MISSING}\n    except KeyError:\n        x = 1\nexcept ImportError:\n    x = 2",
        GUARDED,
    ),
    ("type checking", f"from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    {MISSING}", []),
    ("typing.TYPE_CHECKING", f"import typing\nif typing.TYPE_CHECKING:\n    {MISSING}", []),
    ("undecided", f"import os\nif os.cpu_count() > 4:\n    {MISSING}", ["breaks-import? module-missing vllm.old"]),
    ("version true", f"{VERSION}if vs.parse(vllm.__version__) >= vs.parse('0.20'):\n    {MISSING}", BREAKS),
    ("version false", f"{VERSION}if vs.parse(vllm.__version__) < vs.parse('0.20'):\n    {MISSING}", []),
    ("metadata", f"{VERSION}if vs.parse(version('vllm')) < vs.Version('0.20'):\n    {MISSING}", []),
    ("else", f"{VERSION}if vs.parse(vllm.__version__) < vs.parse('0.20'):\n    x = 1\nelse:\n    {MISSING}", BREAKS),
    ("major", f"{VERSION}if vs.parse(vllm.__version__).major >= 2:\n    {MISSING}", []),
    ("split", f"{VERSION}if tuple(int(x) for x in vllm.__version__.split('.')[:2]) < (0, 9):\n    {MISSING}", []),
    ("prefix", f"{VERSION}if vllm.__version__.startswith('0.6.3'):\n    {MISSING}", []),
    ("among", f"{VERSION}if vs.parse(vllm.__version__) in [vs.parse('0.5.4'), vs.parse('0.6.3')]:\n    {MISSING}", []),
    (
        "unknown package",
        f"{VERSION}if vs.parse(version('peft')) > vs.parse('1'):\n    {MISSING}",
        ["breaks-import? module-missing vllm.old"],
    ),
    ("hasattr false", f"import vllm\nif hasattr(vllm, 'old'):\n    {MISSING}", []),
    ("hasattr true", f"import vllm\nif hasattr(vllm, 'LLM'):\n    {MISSING}", BREAKS),
    ("getattr default", f"import vllm\nold = getattr(vllm, 'old', None)\nif old is not None:\n    {MISSING}", []),
    ("find_spec", f"import importlib.util\nif importlib.util.find_spec('sglang'):\n    {MISSING}", []),
    (
        "absent flag",
        f"try:\n    import sglang\n    HAS = True\nexcept ImportError:\n    HAS = False\nif HAS:\n    {MISSING}",
        [],
    ),
    ("clean environment", f"import os\nif 'ROCM_PATH' in os.environ or os.getenv('X'):\n    {MISSING}", []),
    ("is a class", f"from vllm import LLM\nif not isinstance(LLM, type):\n    {MISSING}", []),
    ("is a function", f"from vllm.new import here\nif isinstance(here, type):\n    {MISSING}", []),
    ("no npu", f"import torch\nif hasattr(torch, 'npu'):\n    {MISSING}", []),
    ("walrus", f"import vllm\nif (v := getattr(vllm, 'old', None)):\n    {MISSING}", []),
    ("and", f"import vllm\nif hasattr(vllm, 'old') and vllm.old.gone:\n    {MISSING}", []),
    ("conditional expression", "import vllm\nx = vllm.old if hasattr(vllm, 'old') else None", []),
    ("same attribute twice", "import vllm\nx = vllm.old", ["breaks-import attribute-missing vllm.old"]),
]


@pytest.mark.parametrize(("source", "expected"), [case[1:] for case in IMPORTS], ids=[case[0] for case in IMPORTS])
def test_what_comes_of_a_missing_module_behind_a_gate(source: str, expected: list[str]) -> None:
    assert lines(report_of(source, VLLM, {"vllm": "0.24.0"})) == expected


HELPERS = [
    ("own helper", "def is_ge(v):\n    return vs.parse(vllm.__version__) >= vs.parse(v)\nif is_ge('0.30'):\n    ", []),
    (
        "own helper holds",
        "def is_ge(v='1'):\n    return vs.parse(vllm.__version__) >= vs.parse(v)\nif is_ge(v='0.2'):\n    ",
        BREAKS,
    ),
    ("cached", "import functools\n@functools.cache\ndef has():\n    return hasattr(vllm, 'old')\nif has():\n    ", []),
    (
        "handler inside",
        (
            "def has():\n    try:\n        import sglang\n    except ImportError:\n"
            "        return False\n    return True\nif has():\n    "
        ),
        [],
    ),
    (
        "undecided inside",
        "import os\ndef has():\n    if os.cpu_count():\n        return True\n    return False\nif has():\n    ",
        ["breaks-import? module-missing vllm.old"],
    ),
    (
        "spec",
        (
            "import importlib.util\ndef is_sglang_available():\n    try:\n"
            "        spec = importlib.util.find_spec('sglang')\n"
            "    except ModuleNotFoundError:\n        spec = None\n    return spec is not None\n"
            "if is_sglang_available():\n    "
        ),
        [],
    ),
    (
        "not installed",
        (
            "def get(p):\n    try:\n        return version(p)\n    except Exception:\n        return None\n"
            "if get('sglang') is not None:\n    "
        ),
        [],
    ),
    (
        "range",
        (
            "def is_in(min_version=None, max_version=None):\n    v = vs.parse(version('vllm'))\n    low = True\n"
            "    if min_version is not None:\n        low = vs.parse(min_version) <= v\n    high = True\n"
            "    if max_version is not None:\n        high = v <= vs.parse(max_version)\n    return low and high\n"
            "if is_in(max_version='0.9'):\n    "
        ),
        [],
    ),
]


@pytest.mark.parametrize(("source", "expected"), [case[1:] for case in HELPERS], ids=[case[0] for case in HELPERS])
def test_helpers_are_followed(source: str, expected: list[str]) -> None:
    assert lines(report_of(f"{VERSION}{source}{MISSING}", VLLM, {"vllm": "0.24.0"})) == expected


GATE = """
    from importlib.metadata import PackageNotFoundError, version
    from packaging import version as vs
    from verl.utils.import_utils import is_sglang_available
    def get_version(pkg):
        try:
            return version(pkg)
        except PackageNotFoundError:
            return None
    package_version = get_version("vllm")
    if package_version is None:
        raise ValueError("no vllm")
    elif vs.parse(package_version) >= vs.parse("0.18.0"):
        from vllm import LLM
    else:
        if not is_sglang_available():
            raise ValueError(f"vllm version {package_version} not supported, supported are 0.18.0+")
"""
AVAILABLE = """
    import importlib.util
    def is_sglang_available():
        return importlib.util.find_spec("sglang") is not None
"""


@pytest.mark.parametrize(
    ("version", "expected"),
    [("0.24.0", []), ("0.12.0", ["breaks-import gate-refuses vllm==0.12.0"])],
)
def test_a_gate_that_refuses_names_the_version_and_its_condition(version: str, expected: list[str]) -> None:
    sources = {
        "verl/third_party/__init__.py": "",
        "verl/third_party/vllm/__init__.py": GATE,
        "verl/utils/__init__.py": "",
        "verl/utils/import_utils.py": AVAILABLE,
    }
    report = report_of(sources, VLLM, {"vllm": version})
    assert lines(report) == expected
    for finding in report.findings:
        assert "0.18.0+" in finding.message
        assert "not (vs.parse(package_version) >= vs.parse('0.18.0'))" in finding.message
        assert finding.exception == "ValueError"
        assert "ppo" in finding.entry_points


STRINGS = [
    ("0.11.0", "<=", ["degrades gate-wrong vllm==0.11.0"]),
    ("0.8.2", "<=", []),
    ("0.5.4", "<=", []),
    ("0.6.3", "<", []),
    ("0.10.0", ">=", ["degrades gate-wrong vllm==0.10.0"]),
    ("0.10.0", "==", []),
]


@pytest.mark.parametrize(("version", "operator", "expected"), STRINGS)
def test_versions_compared_as_text_are_wrong_where_it_matters(version: str, operator: str, expected: list[str]) -> None:
    source = f"import vllm\nold = vllm.__version__ {operator} '0.6.3'\n"
    assert lines(report_of(source, VLLM, {"vllm": version})) == expected


def test_the_branch_that_a_wrong_gate_takes_is_followed() -> None:
    source = f"import vllm\nif vllm.__version__ <= '0.6.3':\n    {MISSING}\nelse:\n    from vllm.new import here\n"
    assert lines(report_of(source, VLLM, {"vllm": "0.11.0"})) == [
        "breaks-import module-missing vllm.old",
        "degrades gate-wrong vllm==0.11.0",
    ]
    taken = report_of(source, VLLM, {"vllm": "0.11.0"}).findings[1]
    assert taken.message.endswith("as versions it would be False; verl goes the wrong way")
    assert lines(report_of(source, VLLM, {"vllm": "0.8.0"})) == []


FUNCTIONS = [
    ("plain", MISSING, ["breaks-feature module-missing vllm.old"], True),
    ("configured", f"if config.fp8:\n    {MISSING}", ["breaks-feature module-missing vllm.old"], False),
    ("after a return", f"if not config.fp8:\n    return\n{MISSING}", ["breaks-feature module-missing vllm.old"], False),
    ("sure return", f"return 1\n{MISSING}", [], False),
    ("sure raise", f"raise NotImplementedError\n{MISSING}", [], False),
    ("both return", f"if config.a:\n    return 1\nelse:\n    return 2\n{MISSING}", [], False),
    (
        "environmental",
        f"if config.vllm_version > 3:\n    {MISSING}",
        ["breaks-feature? module-missing vllm.old"],
        False,
    ),
    ("in a loop", f"for x in config.items:\n    {MISSING}", ["breaks-feature module-missing vllm.old"], True),
    ("while", f"while config.go():\n    {MISSING}\n    break", ["breaks-feature module-missing vllm.old"], True),
    (
        "handled",
        f"try:\n    {MISSING}\nexcept ImportError:\n    return None",
        ["guarded module-missing vllm.old"],
        False,
    ),
    ("nested", f"def inner():\n    {MISSING}\nreturn inner", ["breaks-feature module-missing vllm.old"], True),
    ("lambda", "import vllm\nreturn lambda: vllm.old", ["breaks-feature attribute-missing vllm.old"], True),
    (
        "match",
        f"match config.kind:\n    case 'a':\n        {MISSING}",
        ["breaks-feature module-missing vllm.old"],
        False,
    ),
    (
        "refused when configured",
        (
            "import vllm\nfrom packaging import version\nif config.replay:\n"
            "    if version.parse(vllm.__version__) < version.parse('0.30'):\n        raise RuntimeError('needs 0.30')"
        ),
        ["breaks-feature gate-refuses vllm==0.24.0"],
        False,
    ),
    (
        "assertion",
        (
            "import vllm\nfrom packaging import version\n"
            "assert version.parse(vllm.__version__) < version.parse('0.2'), 'no'"
        ),
        ["breaks-feature gate-refuses vllm==0.24.0"],
        True,
    ),
]


@pytest.mark.parametrize(
    ("source", "expected", "default"), [case[1:] for case in FUNCTIONS], ids=[case[0] for case in FUNCTIONS]
)
def test_what_comes_of_a_use_inside_a_function(source: str, expected: list[str], default: bool) -> None:
    report = report_of(body(source), VLLM, {"vllm": "0.24.0"})
    assert lines(report) == expected
    assert [finding.default_path for finding in report.findings] == [default] * len(expected)


def test_versions_that_the_cell_does_not_name_leave_their_gates_undecided() -> None:
    source = (
        "import vllm\nfrom importlib.metadata import version\nfrom packaging import version as vs\n"
        f"if vs.parse(version('transformers')) >= vs.parse('5'):\n    {MISSING}\n"
    )
    assert lines(report_of(source, VLLM)) == ["breaks-import? module-missing vllm.old"]
    assert report_of(source, VLLM).outcome == "ok"


def test_nothing_of_one_check_is_left_for_the_next() -> None:
    source = {MAIN: f"import vllm\nif hasattr(vllm, 'old'):\n    {MISSING}\n"}
    old = {**VLLM, "vllm/__init__.py": "old = 1\n"}
    assert [lines(report_of(source, targets)) for targets in (VLLM, old, VLLM)] == [[], BREAKS, []]
