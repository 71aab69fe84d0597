"""What a child is told when it starts, and the tools it finds on its path."""

import importlib.metadata
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from casebook.capsule import Capsule
from casebook.errors import CapsuleError
from casebook.sandbox import boot


def device(**changes: Any) -> dict[str, Any]:
    return {
        "vendor": "nvidia",
        "device_name": "NVIDIA B200",
        "smi_total_mib": 183359,
        "driver_version": "580.82.07",
        "compute_capability": [10, 0],
        "count": 2,
        "gfx": None,
        **changes,
    }


def ask(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(folder / words[0]), *words[1:]], capture_output=True, text=True)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ("memory.total", "183359"),
        ("name,memory.total", "NVIDIA B200, 183359"),
        ("name, compute_cap", "NVIDIA B200, 10.0"),
        ("driver_version,memory.used,unknown", "580.82.07, 0, [N/A]"),
    ],
)
def test_nvidia_smi_answers(tmp_path: Path, fields: str, line: str) -> None:
    boot.write_shims(tmp_path / "shims", device())
    done = ask(
        tmp_path / "shims", "nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"
    )
    assert done.stdout.splitlines() == [line, line]


def test_nvidia_smi_refuses_other_questions(tmp_path: Path) -> None:
    boot.write_shims(tmp_path, device())
    done = ask(tmp_path, "nvidia-smi", "topo", "-m")
    assert done.returncode == 1
    assert "casebook" in done.stderr


def test_a_device_name_is_text_and_never_a_command(tmp_path: Path) -> None:
    name = f"""It's $(touch {tmp_path}/ran) `touch {tmp_path}/ran` "x" \\"""
    boot.write_shims(tmp_path / "n", device(device_name=name))
    assert ask(tmp_path / "n", "nvidia-smi", "--query-gpu=name").stdout.splitlines() == [name] * 2
    boot.write_shims(tmp_path / "a", device(vendor="amd", gfx="gfx942", device_name=name))
    assert name in ask(tmp_path / "a", "rocminfo").stdout
    assert not (tmp_path / "ran").exists()


def test_rocm_tools_answer(tmp_path: Path) -> None:
    boot.write_shims(tmp_path, device(vendor="amd", gfx="gfx942", smi_total_mib=196592))
    lines = ask(tmp_path, "rocminfo").stdout.splitlines()
    assert sum("gfx942" in line for line in lines) == 2
    # SGLang takes the line after 'Pool 1' that holds 'Size:'.
    after = lines[next(i for i, line in enumerate(lines) if "Pool 1" in line) :]
    size = next(line for line in after if "Size:" in line)
    assert int(size.split(":")[1].split("(")[0]) == 196592 * 1024
    assert ask(tmp_path, "rocm-smi").stdout.count(str(196592 << 20)) == 2
    assert not (tmp_path / "nvidia-smi").exists()


def test_the_lab_gives_torch_and_what_torch_needs() -> None:
    lab = boot.lab()
    assert {"torch", "torchgen", "sympy", "mpmath", "typing_extensions"} <= set(lab["modules"])
    assert {"torch", "sympy", "mpmath", "typing-extensions"} <= set(lab["distributions"])
    known = {
        "torch",
        "typing-extensions",
        "filelock",
        "sympy",
        "networkx",
        "jinja2",
        "fsspec",
        "mpmath",
    }
    known |= {"markupsafe", "setuptools"}
    others = {name for name in lab["distributions"] if not name.startswith("nvidia-")} - known
    assert others <= {"triton"}
    for stranger in ("pytest", "papermill", "pandas", "numpy", "casebook", "click"):
        assert stranger not in lab["modules"]
    assert all(Path(folder).is_dir() for folder in lab["folders"])


def test_a_lab_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    with pytest.raises(CapsuleError, match=r"requirements\.txt"):
        boot.lab.__wrapped__()


def test_the_environment_is_the_sandbox_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_lab")
    extra = {
        **{"SGLANG_X": "1", "PATH": "/evil", "LD_PRELOAD": "/evil.so", "PYTHONPATH": "/evil"},
        **{
            "PYTHONSTARTUP": "/evil",
            "HF_HUB_OFFLINE": "0",
            "OPENSSL_CONF": "/evil",
            "HOME": "/evil",
        },
    }
    env = boot.environment(Path("/hub"), Path("/home"), extra)
    assert env["SGLANG_X"] == "1"
    assert env["PATH"] == os.environ["PATH"]
    assert (env["HOME"], env["TMPDIR"], env["HF_HUB_CACHE"]) == ("/home", "/home", "/hub")
    assert env["HF_HUB_OFFLINE"] == "1"
    assert "/evil" not in json.dumps(env)
    assert "hf_of_the_lab" not in env.values()


def capsule(root: Path, metadata: str | None) -> Capsule:
    folder = root / "sglang-0.5.99.dist-info"
    folder.mkdir(parents=True)
    if metadata is not None:
        (folder / "METADATA").write_text(metadata, "utf-8")
    return Capsule("0.5.99", root, Path("python"), "")


def test_stubs_have_the_versions_that_the_release_pins(tmp_path: Path) -> None:
    held = capsule(
        tmp_path,
        "Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.99\n"
        "Requires-Dist: flashinfer_python==0.6.1\nRequires-Dist: torchao>=0.9\n"
        "Requires-Dist: sgl-kernel==9; extra == 'all'\n",
    )
    found = {stub["module"]: stub for stub in boot.stubs(held, "nvidia")}
    assert found["flashinfer"]["version"] == "0.6.1"
    assert found["torchao"]["version"] == "0"
    assert "sgl_kernel" not in found
    assert found["torchvision"]["everyone"]
    amd = {stub["module"] for stub in boot.stubs(held, "amd")}
    assert "flashinfer" not in amd
    assert "aiter" in amd


def test_a_capsule_without_metadata(tmp_path: Path) -> None:
    with pytest.raises(CapsuleError, match="build it again"):
        boot.stubs(capsule(tmp_path, None), "nvidia")


@pytest.mark.parametrize("live", [False, True])
def test_the_command_line_of_a_child(tmp_path: Path, live: bool) -> None:
    held = Capsule("0.5.99", tmp_path, Path("python"), "", live=live)
    words = boot.command(held, 7)
    assert words[0] == "python"
    assert ("-S" in words) is not live
    assert words[-1].endswith("main(7)")
    assert (
        (boot.boot_record(held, device(), tmp_path, tmp_path) == {"mode": "live"}) if live else True
    )
