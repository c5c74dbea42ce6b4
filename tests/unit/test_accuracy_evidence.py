"""The evidence store: which observations are copied, that a repetition adds nothing, and nothing to copy."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.gpus.fingerprint import digest
from matrix.store import Store
from matrix.tier import Outcome, Tier
from tests.accuracy.evidence import faults, kept, main
from tests.accuracy.scrub import portable, scrubbed, strange, versions_in
from tests.unit import gpu_samples
from tests.unit.run_fakes import AT, observation

SHIPPED = sorted(path.parent for path in (Path(__file__).parents[2] / "reports" / "evidence").glob("*/*.jsonl"))
LATER = AT + timedelta(hours=1)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a home with two cells that were probed and one that was not."""
    Store(tmp_path / "store").add(
        observation("a", Tier.RESOLVE),
        observation("a", Tier.SURFACE, detail={"entry_points": {"ppo": "ok"}, "findings": ["x" * 9000]}),
        observation("a", Tier.IMPORT, Outcome.BROKEN, probe="compat/x.py::one", reads={"lock": "old"}),
        observation("a", Tier.IMPORT, probe="compat/x.py::one", reads={"lock": "new"}, at=LATER),
        observation("a", Tier.BEHAVE, Outcome.UNTESTED, probe="compat/x.py::two"),
        observation("a", Tier.GPU, probe="compat/x.py::three"),
        observation("a", Tier.GPU, Outcome.UNTESTED, "needs 1 GPU; this machine has no GPU", probe="compat/x.py::four"),
        observation("b", Tier.SURFACE),
        observation("b", Tier.BEHAVE, Outcome.UNTESTED, probe="compat/x.py::two"),
        observation("c", Tier.BEHAVE, Outcome.DEGRADED, probe="compat/x.py::two", reads={"machine": "x86"}),
        observation("c", Tier.BEHAVE, Outcome.OK, probe="compat/x.py::two", reads={"machine": "arm"}),
    )
    return tmp_path


def _held(folder: Path) -> list[tuple[str, str, str]]:
    return [(item.question.cell, item.question.tier.value, item.outcome.value) for item in Store(folder)]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (
            [],
            [
                ("a", "resolve", "ok"),
                ("a", "surface", "ok"),
                ("a", "import", "ok"),
                ("a", "gpu", "ok"),
                ("c", "behave", "degraded"),
                ("c", "behave", "ok"),
            ],
        ),
        (
            ["--cells", "a"],
            [("a", "resolve", "ok"), ("a", "surface", "ok"), ("a", "import", "ok"), ("a", "gpu", "ok")],
        ),
    ],
)
def test_the_latest_of_what_was_tried_is_copied_once(
    home: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    cells: list[str],
    expected: list[tuple[str, str, str]],
) -> None:
    to = tmp_path / "evidence"
    words = [str(to), "--home", str(home), *cells]
    assert main(words) == 0
    assert _held(to) == expected
    assert "import 1" in capsys.readouterr().out
    assert main(words) == 0
    assert _held(to) == expected
    assert "nothing" in capsys.readouterr().out


def test_large_details_come_along(home: Path, tmp_path: Path) -> None:
    to = tmp_path / "evidence"
    main([str(to), "--home", str(home)])
    (surface,) = Store(to).find(tier=Tier.SURFACE)
    assert surface.detail["findings"] == ["x" * 9000]


def test_nothing_to_copy_is_told(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "evidence"), "--home", str(home), "--cells", "nothing*"]) == 1
    assert "installed and probed" in capsys.readouterr().out
    assert not (tmp_path / "evidence").exists()


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (
            'File "/home/me/.cache/cells/verl0.9.1-ov.numpy.eq.2/lib/python3.12/site-packages/torch/x.py", line 3',
            'File "lib/python3.12/site-packages/torch/x.py", line 3',
        ),
        ("from 'vllm' (/a/b/site-packages/vllm/__init__.py)", "from 'vllm' (site-packages/vllm/__init__.py)"),
        ("/src/tests/compat/subjects/x.py and /usr/bin/python", "tests/compat/subjects/x.py and /usr/bin/python"),
        ({"a": ["/a/lib/python3.11/os.py", 1, None]}, {"a": ["lib/python3.11/os.py", 1, None]}),
        ("site-packages/verl/x.py", "site-packages/verl/x.py"),
        ("k/main/tests/compat/subjects/x.py, line 3", "tests/compat/subjects/x.py, line 3"),
        ("ib/python3.12/site-packages/torch/x.py", "site-packages/torch/x.py"),
        ("lib/python3.12/site-packages/torch/x.py", "lib/python3.12/site-packages/torch/x.py"),
        ({"left_out": {"z3-solver": "4.15.4.0"}}, {"left_out": {"z3-solver": "4.15.4.0"}}),
        ({"versions": {"a host": "10.1.2.3"}}, {"versions": {"a host": "<ip>"}}),
        ({"hosts": {"node": "10.1.2.3"}}, {"hosts": {"node": "<ip>"}}),
        ("/home/me/.pyenv/versions/3.12.1/lib/libpython3.12.so.1.0(+0x1e3a7e)", "lib/libpython3.12.so.1.0(+0x1e3a7e)"),
        ("/home/me/cells/ray2.41.0/bin/python(_start+0x21)", "bin/python(_start+0x21)"),
    ],
)
def test_where_an_environment_lay_is_cut_away(said: object, kept: object) -> None:
    assert portable(said) == kept


PLANTED = {
    "a home": "/home/jdoe/train/run.py",
    "the root's home": "/root/checkpoints/x.pt",
    "a share": "/mnt/team-rl/jdoe/data.parquet",
    "a job's folder": "/workspace/job-4711/cells/A/tool/x.py",
    "a GPU's UUID": "GPU-12345678-9abc-def0-1234-56789abcdef0",
    "a UUID": "12345678-9abc-def0-1234-56789abcdef0",
    "an address": "10.11.12.13",
    "an address of the new kind": "fe80::1ff:fe23:4567:890a",
    "an adapter": "0a:1b:2c:3d:4e:5f",
    "a peer": "[gpu-node-17]:29500",
    "a mirror": "https://jdoe:secret@mirror.corp.example/simple/verl/",
    "a token": "hf_abcdefghijklmnopqrst",
    "a mail": "jdoe@corp.example",
    "a node": "9bd45c3a9e44b1d95d8e8c34d06f94880bc1f398ddd4bea5908e7c85",
    "a host of EC2": "ip-10-0-12-7",
    "its full name": "ip-10-0-12-7.eu-west-1.compute.internal",
    "a host of GCE": "trainer-1.c.acme-prod.internal",
    "a host of a company": "db.corp",
    "a machine at home": "jdoes-macbook.local",
    "a service of Kubernetes": "raycluster-head-svc.rl.svc.cluster.local",
    "a pod of Kubernetes": "verl-train-7c9d8b6f5d-x2v4q",
    "a pod of a job": "ppo-qwen-worker-0",
    "a pod of Ray": "raycluster-kuberay-worker-x7vk2",
    "a node of a Cray": "nid001234",
    "a box of eight": "dgx-a100-07",
    "a node by its number": "gpu-node-31",
    "a host by its word": "hostname: a1b2c3d4e5f6",
    "a node by its word": "node name = titan7",
    "a prompt": "jdoe@titan7:~/train",
    "a host by name": "gpu-node-17",
    "a person by name": "jdoe",
}


@pytest.mark.parametrize("what", PLANTED)
def test_what_names_a_machine_a_person_or_a_place_does_not_leave(what: str, tmp_path: Path) -> None:
    text = f"Error at '{PLANTED[what]}' (x), then {PLANTED[what]}"
    planted = gpu_samples.probe(
        "test_x.py::test_y",
        Outcome.BROKEN,
        text,
        detail={"text": f"{text}\n" * 200, "deep": {"list": [text]}, PLANTED[what]: 1},
    )
    Store(tmp_path / "store").add(gpu_samples.machine(), planted)
    to = tmp_path / "gpu"
    assert main([str(to), "--home", str(tmp_path), "--forbid", "gpu-node-17", "--forbid", "jdoe"]) == 0
    told = repr([(item.reason, dict(item.detail)) for item in Store(to)])
    for secret in (PLANTED[what], "jdoe", "gpu-node-17", "team-rl", "job-4711", "mirror.corp"):
        assert secret not in told
    assert list(faults(Store(to))) == []


@pytest.mark.parametrize(
    "text",
    [
        "nvidia-cublas==12.8.4.1 with torch 2.11.0+cu130",
        "http://127.0.0.1:8000/health on 0.0.0.0, [localhost]:29500, https://pypi.org/simple/verl/",
        "at 21:30:15.123 c10::cuda::impl and 16:9",
        "/usr/lib/x86_64-linux-gnu/libcuda.so.1, /dev/nvidia0, /proc/1/status, /tmp/vm-ab/t/x.py",
        "lib/python3.12/site-packages/vllm/v1/engine/core.py:12",
        "sha256:0123456789012345678901234567890123456789012345678901234567890123",
        "and/or 3/4 of 5/6; tok/s/GPU; 0.4/0.9",
        "…/run.py <ip> <uuid> <host> ~ <name>@<host>:~ hostname: <host>",
        "verl0.9.1-vllm0.24.0-torch2.11.0@cu130-tf5.9.0, worker_1, node_manager, head_dim=128, gpu-1, gpu 0, ray-core",
        "host=localhost host: str, node_name=None, on host memory, the host has absl 2.1; host_ip = get_ip()",
        "nvidia-cuda-runtime-cu12, Ray-actor-pool, flash-attn-2, torch.internal_ops, kernel.local_size",
    ],
)
def test_what_names_nobody_stays(text: str) -> None:
    assert scrubbed(text) == text


def test_a_version_of_four_numbers_after_its_package_is_no_address() -> None:
    detail = {"left_out": {"z3-solver": "4.15.4.0"}, "notes": ["not carried: z3-solver 4.15.4.0 from 4.15.4.0"]}
    item = replace(gpu_samples.probe("test_x.py::test_y", Outcome.OK, "", detail=detail), reason="z3-solver 4.15.4.0")
    clean = kept(item)
    assert clean.reason == "z3-solver 4.15.4.0"
    assert clean.detail["notes"] == ["not carried: z3-solver 4.15.4.0 from <ip>"]
    assert kept(clean) == clean
    # Of a package whose version nobody tells, and of another version, it may be an address.
    assert scrubbed("z3-solver 4.15.4.0", versions={"z3-solver": "4.15.4.1"}) == "z3-solver <ip>"
    assert versions_in({"versions": {"a host": "10.1.2.3"}, "installed": None}) == {}


@given(st.text(alphabet="/abz09.:-_@[]() ~", max_size=60))
def test_scrubbing_twice_is_scrubbing_once(text: str) -> None:
    assert scrubbed(scrubbed(text)) == scrubbed(text)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({}, []),
        ({"hostname": "gpu-node-17"}, ["hostname: not on the list"]),
        ({"gpus": [{"name": "NVIDIA H200", "uuid": "GPU-1"}]}, ["gpus[0].uuid: not on the list"]),
        ({"environment": {"HOME": "/root"}}, ["environment.HOME: not on the list"]),
        ({"environment": {"NCCL_DEBUG": "/home/x"}}, ["environment.NCCL_DEBUG: '/home/x' is not as it should be"]),
        ({"cpu": {"model": "10.11.12.13", "cores": 2}}, ["cpu.model: '10.11.12.13' is not as it should be"]),
        ({"count": "1"}, ["count: '1' is no int"]),
        ({"gpus": "H200"}, ["gpus[0]: is not an object"]),
        ({"installed": {"torch": "file:///root/torch.whl"}}, ["installed.torch"]),
        ({"installed": ["torch"]}, ["installed: is not an object"]),
        ({"driver": None, "gpus": [{"power_limit_w": 700, "ecc": None}]}, []),
    ],
)
def test_a_fingerprint_holds_what_is_on_its_list_and_nothing_else(
    more: dict[str, object], told: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = {**gpu_samples.FACTS, **more}
    found = list(strange(facts))
    assert len(found) == len(told)
    assert all(line.startswith(start) for line, start in zip(found, told, strict=True))
    item = gpu_samples.probe("test_x.py::test_y")
    named = replace(item, detail={**item.detail, "fingerprint": digest(facts)})
    Store(tmp_path / "store").add(gpu_samples.machine(facts=facts), named)
    assert main([str(tmp_path / "gpu"), "--home", str(tmp_path)]) == bool(told)
    assert ("is refused" in capsys.readouterr().out) is bool(told)


def test_a_gpu_store_holds_what_a_gpu_machine_said_and_all_samples(home: Path, tmp_path: Path) -> None:
    samples = [gpu_samples.trial(0.9, number) for number in range(2)]
    orphan = gpu_samples.machine(facts={**gpu_samples.FACTS, "driver": "1.0"})
    Store(home / "store").add(*samples, gpu_samples.threshold(), *gpu_samples.visit(), orphan)
    to = tmp_path / "reports" / "gpu"
    assert main([str(to), "--home", str(home)]) == 0
    held = list(Store(to))
    # Not the cells of the other machine; what two GPUs are needed for by name; each repeat; one fingerprint.
    assert {item.question.cell for item in held} == {gpu_samples.CELL}
    assert sum(item.question.probe.startswith("trial/") for item in held) == 2
    assert [item.reason for item in held if item.outcome is Outcome.UNTESTED] == [
        "needs 2 GPUs; this machine has 1 GPU"
    ]
    assert [item.detail["facts"] for item in held if item.question.probe == "machine"] == [gpu_samples.FACTS]
    assert main([str(tmp_path / "cpu"), "--home", str(home)]) == 0
    assert gpu_samples.CELL not in {item.question.cell for item in Store(tmp_path / "cpu")}


def test_the_same_observations_give_the_same_files(tmp_path: Path) -> None:
    items = [*gpu_samples.visit(), gpu_samples.threshold()]
    texts = []
    for name, order in (("one", items), ("two", items[::-1])):
        Store(tmp_path / name / "store").add(*order)
        to = tmp_path / name / "gpu"
        for _ in range(2):
            assert main([str(to), "--home", str(tmp_path / name)]) == 0
        texts.append((to / "observations.jsonl").read_bytes())
        assert not list(to.glob("*.lock"))
    assert texts[0] == texts[1]


def test_check_names_what_may_not_be_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(tmp_path / "gpu")
    store.add(
        gpu_samples.probe("test_x.py::test_b", Outcome.BROKEN, "see /home/jdoe/x.log"),
        gpu_samples.probe("test_x.py::test_a"),
        gpu_samples.machine(facts={**gpu_samples.FACTS, "user": "jdoe"}),
        replace(gpu_samples.probe("test_z.py::test_c"), machine="x86_64 10.11.12.13"),
    )
    with store.path.open("a") as file:
        file.write("no observation\n")
    assert main([str(tmp_path / "gpu"), "--check"]) == 1
    out = capsys.readouterr().out
    for told in ("observations.jsonl:5", "/home/jdoe", "not in its place", "user: not on the list", "10.11.12.13"):
        assert told in out
    assert "4 observations in 1 stores, 6 faults" in out
    assert main(["--check", str(tmp_path / "none")]) == 1
    with pytest.raises(SystemExit):
        main([])


@pytest.mark.parametrize("folder", SHIPPED, ids=lambda path: path.name)
def test_the_shipped_evidence_is_whole_sorted_and_names_nobody(folder: Path) -> None:
    store = Store(folder)
    assert len(store) > 10
    assert list(faults(store)) == []
    for item in store:
        assert item.outcome is not Outcome.UNTESTED or item.question.tier not in (Tier.IMPORT, Tier.BEHAVE)


@pytest.mark.parametrize(
    "secret",
    [
        "HF_TOKEN=abcd1234abcd1234",
        "aws_secret_access_key=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        "password: hunter2hunter2",
        "Authorization: Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcDEF123",
        "-----BEGIN OPENSSH PRIVATE KEY-----",
    ],
)
def test_a_secret_beside_its_name_does_not_leave(secret: str) -> None:
    assert secret not in scrubbed(f"it died: {secret} and more")
    assert (
        scrubbed("max_tokens=4096 key: value, token: 0, KEY=VALUE") == "max_tokens=4096 key: value, token: 0, KEY=VALUE"
    )


def test_check_looks_at_all_that_is_shipped(tmp_path: Path) -> None:
    to = tmp_path / "gpu"
    seen = observation("ray2.60.0", Tier.GPU, probe="test_ray.py::test_x", detail={"hostname": "gpu-node-17"})
    question = replace(seen.question, reads={"x": "/home/jdoe/secret"}, tool="/home/jdoe/tool")
    Store(to).add(replace(seen, question=question))
    (to / "notes.txt").write_text("x", encoding="utf-8")
    (to / "raw" / "deep").mkdir(parents=True)
    (to / "raw" / "deep" / "x").write_text("x", encoding="utf-8")
    (to / "raw" / "core").write_bytes(b"\xff\xfe\x00")
    told = "\n".join(faults(Store(to)))
    for what in (
        "field `hostname`",
        "`/home/jdoe/secret`",
        "`/home/jdoe/tool`",
        "notes.txt: no file",
        "raw/deep/x: no file",
        "raw/core: is no text",
    ):
        assert what in told
