"""`sightline doctor`: the facts that it reads, and the problems."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest
import torch
from demo_params import demo_params_text

from pipeline.cli import doctor
from sightline.machine import hardware, heap

GIB = 1 << 30
CPUINFO = "\n".join(f"processor\t: {n}\nmodel name\t: Some Processor 9000\n" for n in range(2))
MEMINFO = f"MemTotal: {64 * GIB >> 10} kB\nMemFree: 1 kB\nMemAvailable: {32 * GIB >> 10} kB\n"
MEMINFO += "".join(f"{n}: 0 kB\n" for n in ("Buffers", "Cached", "Shmem", "Active", "Inactive"))


@pytest.fixture
def run_doctor(monkeypatch, said, tmp_path):
    """Runs it in an empty folder; what it says."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: said("doctor", *words)[1]


LIMITS = {
    "none": ("0::/\n", {}, None, hardware.Memory(64 * GIB, 32 * GIB, None)),
    "a group and its parents, version 2": (
        "0::/job/task\n",
        {
            "job/task/cpu.max": "max 100000",
            "job/cpu.max": "250000 100000",
            "cpu.max": "800000 100000",
            "job/memory.max": f"{8 * GIB}",
            "job/memory.current": f"{3 * GIB}",
            "job/task/memory.max": "max",
        },
        2.5,
        hardware.Memory(64 * GIB, 5 * GIB, 8 * GIB),
    ),
    "a group, version 1": (
        "4:memory:/box\n1:cpu:/box\n",
        {
            "cpu/box/cpu.cfs_quota_us": "400000",
            "cpu/box/cpu.cfs_period_us": "100000",
            "cpu/cpu.cfs_quota_us": "-1",
            "cpu/cpu.cfs_period_us": "100000",
            "memory/box/memory.limit_in_bytes": f"{16 * GIB}",
            "memory/box/memory.usage_in_bytes": f"{GIB}",
            "memory/memory.limit_in_bytes": "9223372036854771712",
        },
        4,
        hardware.Memory(64 * GIB, 15 * GIB, 16 * GIB),
    ),
}


@pytest.mark.parametrize(("groups", "files", "quota", "memory"), LIMITS.values(), ids=LIMITS)
def test_the_limits_of_a_control_group(tmp_path, monkeypatch, groups, files, quota, memory):
    files = {f"sys/fs/cgroup/{name}": f"{text}\n" for name, text in files.items()}
    files |= {"proc/cpuinfo": CPUINFO, "proc/meminfo": MEMINFO, "proc/self/cgroup": groups}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = hardware.processor(tmp_path)
    assert (found.model, found.quota) == ("Some Processor 9000", quota)
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "proc"))
    assert hardware.memory(tmp_path) == memory
    nowhere = tmp_path / "a system without these files"
    assert hardware.processor(nowhere).usable >= 1
    assert hardware.memory(nowhere).limit is None


def test_gpus_that_the_driver_lists_and_pytorch_does_not_use(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert doctor.why_unused(2, 2) == ""
    monkeypatch.setattr(torch.version, "cuda", None)
    said = doctor.why_unused(1, 0)
    assert said.startswith("the driver lists 1 GPUs, PyTorch can use 0: ")
    assert "is built without CUDA" in said
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert "CUDA_VISIBLE_DEVICES is '0'" in doctor.why_unused(2, 1)

    def refuse() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found 11040).\nUpdate it")

    monkeypatch.setattr(torch.cuda, "init", refuse)
    assert doctor.why_unused(2, 0).endswith("system is too old (found 11040)")


def test_the_driver_is_asked_what_it_lists(monkeypatch, tmp_path):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '570.1, Some GPU, 80GB'\necho '570.1, Another'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert hardware.driver_gpus() == ("570.1", ["Some GPU, 80GB", "Another"])
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert hardware.driver_gpus() == ("", [])
    tool.unlink()
    assert hardware.driver_gpus() == ("", [])


def test_a_gpu_without_kernels_in_this_build_is_a_problem(monkeypatch, run_doctor):
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: no kernel image is available\nmore")

    about = SimpleNamespace(name="Old GPU", total_memory=8 * GIB, major=3, minor=5)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: about)
    monkeypatch.setattr(torch, "ones", refuse)
    report = json.loads(run_doctor("--json"))
    assert report["problems"] == ["GPU 0, Old GPU: CUDA error: no kernel image is available"]
    assert report["device"] == "cpu"
    said = run_doctor()
    assert "Old GPU, 8.6 GB, compute capability 3.5, no bf16, cannot be used, see problems" in said


def test_a_machine_without_problems(run_doctor, tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    report = json.loads(run_doctor("--json"))
    assert report["problems"] == []
    assert report["disk"]["folder"] == str(tmp_path / "data")
    assert 0 < report["disk"]["free"] <= report["disk"]["total"]
    assert report["cpu"]["threads"] == torch.get_num_threads()
    assert "HF_HUB_OFFLINE" in report["model hub"]
    assert report["dvc remotes"] == "none"
    assert report["heap"] == "not kept, MALLOC_ARENA_MAX says how malloc works"
    monkeypatch.setattr(heap, "keep_heap", lambda: "")
    said = run_doctor()
    assert "heap                     kept: " in said
    assert said.splitlines()[-1].split() == ["problems", "none"]


def test_missing_and_outdated_packages_are_problems(monkeypatch, run_doctor):
    declared = ["torch>=99", "no-such-package>=1"]
    declared += ["also-missing>=1; extra == 'report'", "ruff>=99; extra == 'dev'"]
    declared += ["matplotlib>=99; extra == 'report'"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: declared)
    report = json.loads(run_doctor("--json"))
    version, of_an_extra = map(importlib.metadata.version, ("torch", "matplotlib"))
    assert report["problems"] == [
        f"torch {version} is not supported; run: pip install 'torch>=99'",
        "no-such-package is not installed; run: pip install 'no-such-package>=1'",
        f"matplotlib {of_an_extra} is not supported; run: pip install 'matplotlib>=99'",
    ]


def test_another_projects_sightline_is_a_problem(monkeypatch, run_doctor, tmp_path):
    about = tmp_path / "site/sightline-7.1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: sightline\nVersion: 7.1\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    (problem,) = json.loads(run_doctor("--json"))["problems"]
    assert problem.startswith("sightline 7.1 is another project's package")
    assert "pip uninstall -y sightline sightline-encoders, and install" in problem


def test_more_threads_than_cpus_and_a_full_disk_are_problems():
    limited = hardware.Processor("a CPU", usable=64, quota=3.5, threads=64)
    assert doctor.too_many(limited).endswith("set OMP_NUM_THREADS=4")
    assert doctor.too_many(replace(limited, threads=4)) == ""
    group = "by its control group"
    threads = "PyTorch uses 64 threads (OMP_NUM_THREADS)"
    assert str(limited) == f"a CPU; 64 cores; limited to 3.5 CPUs {group}; {threads}"
    free = f"4.3 GB of 8.6 GB free, limited to 8.6 GB {group}"
    assert str(hardware.Memory(8 * GIB, 4 * GIB, 8 * GIB)) == free
    full = hardware.Disk("/cache", 5 * GIB, 500_000_000)
    assert doctor.too_full(full).startswith("/cache: only 500.0 MB free")


def test_dvcs_remotes_and_a_hub_that_does_not_answer(monkeypatch, run_doctor, tmp_path):
    from huggingface_hub import constants

    (tmp_path / ".dvc").mkdir()
    remotes = {"team": "/shared/sightline", "mirror": "http://127.0.0.1:9/nobody-is-asked"}
    sections = [f"['remote \"{name}\"']\n    url = {url}\n" for name, url in remotes.items()]
    (tmp_path / ".dvc" / "config").write_text("".join([*sections, NO_SCM]))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # the port that discards
    said = run_doctor()
    assert "team (/shared/sightline), mirror (http://127.0.0.1:9/nobody-is-asked)" in said
    assert said.splitlines()[-1].split() == ["problems", "none"]
    assert "http://127.0.0.1:9 does not answer" in said


AT_S3 = "stages: {x: {cmd: a, deps: ['s3://b/raw']}}"
AT_GS = "stages: {x: {cmd: a, deps: ['gs://b/raw']}}"
GIT = "not a git repository, which DVC needs: run `git init`, or `dvc config core.no_scm true`"
NO_SCM = "[core]\nno_scm = true\n"
IN_PARAMS = "stages: {x: {cmd: sightline stage x, params: [elsewhere.yaml: [a]]}}"
IN_A_FOLDER = "stages: {x: {wdir: there, cmd: sightline stage x}}"


@pytest.mark.parametrize(
    ("config", "graph", "problem"),
    [
        ("", "", GIT),
        ("[core]\nno_smc = true\n", "", "DVC: config file error: extra keys"),
        (NO_SCM, "stages: {x: {}}", "dvc.yaml' validation failed"),
        (NO_SCM, IN_PARAMS, "dvc.yaml: x takes parameters from elsewhere.yaml, but `sightline st"),
        (NO_SCM, IN_A_FOLDER, "dvc.yaml: x runs in there, but `sightline stage` reads params.yaml"),
        (NO_SCM, "stages: {train-mine: {cmd: a}}", "params.yaml: systems: unknown system 'simcse'"),
        (
            NO_SCM,
            AT_S3,
            "a graph that reads s3:// needs it; run: pip install 'sightline-encoders[dvc-s3]'",
        ),
        (NO_SCM, AT_GS, "a graph that reads gs:// needs it; run: pip install dvc-gs"),
        (NO_SCM, "stages: {x: {cmd: a}}", ""),
    ],
)
def test_what_cannot_work_with_dvc_is_a_problem_and_said_before_anything_runs(
    run_doctor, said, tmp_path, monkeypatch, config, graph, problem
):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    for name in ("dvc_s3", "dvc_gs"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc/config").write_text(config)
    (tmp_path / "there").mkdir()
    for name, text in {"dvc.yaml": graph, "params.yaml": demo_params_text()}.items():
        if graph or name == "params.yaml":
            (tmp_path / name).write_text(text)
    (tmp_path / "elsewhere.yaml").write_text("a: 1")
    problems = json.loads(run_doctor("--json"))["problems"]
    assert (len(problems), problem in "".join(problems)) == (bool(problem), True)
    if problem:
        code, _, err = said("repro", "--dry")
        assert (code, err.startswith("error: "), problem in err) == (1, True, True)
