"""The words of the commands for people who arrive with an environment, a configuration, a log or a data file."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from matrix.cli import claims, drift, memory, thresholds


def add(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Have `command` make the subcommands: it takes name, summary, epilog and `asks`, and returns the parser."""
    _env(command("env", "build, list and remove the environments of cells, or tell pytest of one", _ENV))
    _failures(command("failures", "list known failures, show one, say which apply", _FAILURES, asks=False))
    _config(command("config", "say of each hydra key whether a release of verl has it and reads it", _CONFIG))
    _data(command("data", "check a parquet file of prompts as verl will read it", _DATA, asks=False))
    _health(command("health", "say what is wrong in a training log, and since which step", _HEALTH, asks=False))
    thresholds.words(
        command("thresholds", "find the largest value of a knob that survives on a card", thresholds.MORE, asks=False)
    )
    memory.words(command("memory", "predict what a PPO run holds on a GPU, and what fits", memory.MORE, asks=False))
    drift.words(command("drift", "find where a repository's own statements about versions contradict", drift.MORE))
    claims.words(command("claims", "list what guides publish about the stack, and check it", claims.MORE))
    _doctor(command("doctor", "find what is wrong with this environment, or in a log", _DOCTOR))


_ENV = """

  verl-matrix env build verl==0.9.1 vllm==0.24.0 torch==2.11.0 tf==5.9.0
  verl-matrix env list
  verl-matrix env remove CELL
  verl-matrix env cell PYTHON > cell.json

Environments lie in the cache of --home; uv's own cache is that of UV_CACHE_DIR, else there too. Where both are on one
file system, a second cell that shares torch costs what differs."""


def _env(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["build", "list", "remove", "cell"])
    parser.add_argument("spec", nargs="*", metavar="SPEC", help=_ENV_SPEC)
    parser.add_argument("--all", action="store_true", help="remove: every environment that is not in use")
    parser.add_argument("--find-links", action="append", default=[], metavar="DIR", help=_FIND_LINKS)
    parser.add_argument("--python", metavar="X.Y", help="CPython version (default: 3.12)")
    parser.add_argument("--platform", metavar="TAG", help="uv platform (default: x86_64-manylinux_2_35)")
    parser.add_argument("--exclude-newer", metavar="DATE", help="resolve as of that day or moment")
    parser.add_argument(
        "--override", action="append", default=[], metavar="REQ", help="replace all statements on a package"
    )
    parser.add_argument("--no-deps", action="store_true", help="take the pins and nothing they ask for")
    parser.add_argument(
        "--with", dest="added", action="append", default=[], metavar="REQ", help="install this package too"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


_ENV_SPEC = "the cell: its name, or PACKAGE==VERSION for its axes; cell: the interpreter of an environment"
_FIND_LINKS = "a folder of wheels that you built, for releases without one (also VERL_MATRIX_WHEELS)"


_FAILURES = """

  verl-matrix failures --family inspect
  verl-matrix failures show inspect-aimv2-config-clash
  verl-matrix failures for verl==0.8.0 vllm==0.27.0
  verl-matrix failures summary"""


def _failures(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", choices=["list", "show", "for", "summary", "lint"], default="list")
    parser.add_argument("spec", nargs="*", metavar="WORD", help="show: an id; for: PACKAGE==VERSION; lint: files")
    parser.add_argument("--family", metavar="NAME", help="only this family")
    parser.add_argument("--testable", metavar="TIER", help="only those that can be seen at this tier")
    parser.add_argument("--evidence", metavar="DIR", help="recorded observations (default: those shipped; `none`)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


_CONFIG = """

  verl-matrix config verl==0.9.1 critic.ulysses_sequence_parallel_size=2
  verl-matrix config verl==0.9.1 @run_ppo.sh"""


def _config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "spec", nargs="+", metavar="WORD", help="verl==VERSION, then KEY, KEY=VALUE or @SCRIPT, as many as there are"
    )
    parser.add_argument("--config-name", metavar="NAME", help="default: what the script names, else ppo_trainer")
    parser.add_argument(
        "--env", metavar="PYTHON", help="also run it dry through the verl of this interpreter, its checks included"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


_DATA = """

  verl-matrix data train.parquet test.parquet --verl 0.9.1
  verl-matrix data FOLDER      can data be written there"""

_DATA_VERL = "the release whose rewards must know `data_source`, or all (default: the one installed here, if any)"


def _data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="parquet files, or a folder that is to be written to")
    parser.add_argument("--verl", metavar="VERSION", help=_DATA_VERL)
    parser.add_argument("--prompt-key", default="prompt", metavar="NAME", help="data.prompt_key (default: %(default)s)")
    parser.add_argument(
        "--source-key", default="data_source", metavar="NAME", help="data.reward_fn_key (default: %(default)s)"
    )
    parser.add_argument("--tokenizer", metavar="FILE", help="count tokens with this tokenizer.json")
    parser.add_argument("--max-prompt-length", type=int, metavar="N", help="tokens that a prompt may have")
    parser.add_argument("--index-url", metavar="URL", help="package index of --verl")
    parser.add_argument("--offline", action="store_true", help="use only what is already cached")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


_HEALTH = """

  verl-matrix health train.log --plot health.html"""
_HEALTH_LOG = "verl's console output, or its file logger's JSON lines; gzip, bzip2 and xz too; - reads standard input"


def _health(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "log",
        metavar="LOG",
        help=_HEALTH_LOG,
    )
    parser.add_argument("--plot", metavar="FILE", help="also draw the curves with what was found (SVG or HTML)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


_DOCTOR = """ The exit code is 0 where nothing wrong was found and 1 where something was.

  verl-matrix doctor
  verl-matrix doctor --env /opt/venv/bin/python
  verl-matrix doctor --log train.log --with verl==0.8.0
  verl-matrix doctor --env /opt/venv/bin/python --inspect Qwen2ForCausalLM"""


def _doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--log", metavar="FILE", help="a traceback or a whole training log; - reads standard input")
    parser.add_argument(
        "--env",
        metavar="PYTHON",
        help="the interpreter of another environment (default: this one); with --log: its versions count where the log "
        "tells none",
    )
    parser.add_argument(
        "--with",
        dest="fixed",
        action="append",
        default=[],
        metavar="SPEC",
        help="with --log: PACKAGE==VERSION of the run, where the log does not tell it; may be repeated",
    )
    parser.add_argument(
        "--inspect",
        metavar="NAME",
        help="import a model of vLLM as its child process does and show the child's own error: an architecture like "
        "Qwen2ForCausalLM, or a module like qwen2",
    )
    parser.add_argument(
        "--all", action="store_true", help="also show the known failures of lesser weight that only a condition brings"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
