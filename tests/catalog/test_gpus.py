"""The GPU catalog: what the shipped profiles say, how names are found, and what a bad file is told."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from casebook.catalog.gpus import GIB, MIB, GpuProfile, gpu, gpus_table, load_gpus
from casebook.errors import CasebookError, DataError, UnknownGpuError

GOOD = """
[[gpus]]
id = "X1"
aliases = ["X one"]
vendor = "nvidia"
device_name = "NVIDIA X1"
compute_capability = [9, 0]
sm_count = 10
smi_total_mib = 1000
torch_total_bytes = 1000000000
shared_memory_per_block_optin_bytes = 1000
l2_cache_bytes = 1000
max_threads_per_multiprocessor = 2048
warp_size = 32
driver_version = "580.1"
cuda_version = "13.0"
devices_per_node = 8
[gpus.sources]
""" + "".join(
    f'{name} = "https://example.org/x1"\n'
    for name in (
        *("device_name", "compute_capability", "sm_count", "smi_total_mib", "torch_total_bytes"),
        *("shared_memory_per_block_optin_bytes", "l2_cache_bytes", "devices_per_node"),
        *("max_threads_per_multiprocessor", "warp_size", "driver_version", "cuda_version"),
    )
)


@pytest.fixture
def catalog(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "gpus.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def profiles() -> list[GpuProfile]:
    return list(load_gpus().values())


def test_the_expected_profiles_are_there() -> None:
    expected = "B200, GB200, B300, H200, H100, A100-80, RTX 5090, RTX PRO 6000, L40S, MI300X"
    assert ", ".join(load_gpus()) == expected


@pytest.mark.parametrize(
    ("name", "capability", "smi_total_mib", "torch_total_mib"),
    [
        ("B200", (10, 0), 183359, 182631),
        ("GB200", (10, 0), 189471, 188733),
        ("B300", (10, 3), 275040, 274113),
        ("H200", (9, 0), 143771, 143156),
        ("H100", (9, 0), 81559, 81089),
        ("A100-80", (8, 0), 81920, 81157),
        ("RTX 5090", (12, 0), 32607, 32109),
        ("RTX PRO 6000", (12, 0), 97887, 97250),
        ("L40S", (8, 9), 46068, 45372),
        ("MI300X", (9, 4), 196592, 196592),
    ],
)
def test_the_figures_sglang_sizes_memory_by(
    name: str, capability: tuple[int, int], smi_total_mib: int, torch_total_mib: int
) -> None:
    profile = gpu(name)
    assert profile.compute_capability == capability
    assert profile.smi_total_mib == smi_total_mib
    assert profile.torch_total_mib == torch_total_mib


@pytest.mark.parametrize(
    ("name", "torch_gib"),
    [("B200", 178.35), ("GB200", 184.31), ("B300", 267.69), ("RTX 5090", 31.36), ("H100", 79.19)],
)
def test_torch_totals_print_as_out_of_memory_messages_show_them(
    name: str, torch_gib: float
) -> None:
    assert round(gpu(name).torch_total_bytes / GIB, 2) == torch_gib


@pytest.mark.parametrize("profile", profiles(), ids=lambda p: p.id)
class TestEachProfile:
    def test_every_figure_has_a_source(self, profile: GpuProfile) -> None:
        assert set(profile.figures()) == set(dict(profile.sources))
        assert all(profile.source(figure) for figure in profile.figures())

    def test_totals_are_ordered(self, profile: GpuProfile) -> None:
        free = profile.free_at_start_bytes or 0
        assert free <= profile.torch_total_bytes <= profile.smi_total_mib * MIB
        assert profile.torch_total_bytes > 0.98 * profile.smi_total_mib * MIB

    def test_hardware_limits_follow_the_architecture(self, profile: GpuProfile) -> None:
        threads, shared_kib, warp = {
            (8, 0): (2048, 163, 32),
            (8, 9): (1536, 99, 32),
            (9, 0): (2048, 227, 32),
            (9, 4): (2048, 64, 64),
            (10, 0): (2048, 227, 32),
            (10, 3): (2048, 227, 32),
            (12, 0): (1536, 99, 32),
        }[profile.compute_capability]
        assert profile.max_threads_per_multiprocessor == threads
        assert profile.shared_memory_per_block_optin_bytes == shared_kib * 1024
        assert profile.warp_size == warp

    def test_one_software_stack(self, profile: GpuProfile) -> None:
        assert (profile.cuda_version is None) == (profile.vendor == "amd")
        assert (profile.hip_version is None) == (profile.vendor == "nvidia")
        assert (profile.gfx is None) == (profile.vendor == "nvidia")

    def test_found_by_each_of_its_names(self, profile: GpuProfile) -> None:
        for name in (profile.id, profile.device_name, *profile.aliases):
            assert gpu(name) is profile

    def test_as_device_is_plain_json(self, profile: GpuProfile) -> None:
        device = profile.as_device(4)
        assert json.loads(json.dumps(device)) == device
        assert set(GpuProfile.model_fields) - set(device) == {"sources"}
        assert device["count"] == 4
        assert device["compute_capability"] == list(profile.compute_capability)

    def test_hashable_and_picklable(self, profile: GpuProfile) -> None:
        assert hash(pickle.loads(pickle.dumps(profile))) == hash(profile)


@pytest.mark.parametrize(
    ("messy", "expected"),
    [
        ("b200", "B200"),
        ("  rtx-5090 ", "RTX 5090"),
        ("RTX5090", "RTX 5090"),
        ("5090", "RTX 5090"),
        ("GeForce_RTX_5090", "RTX 5090"),
        ("rtxPRO 6000", "RTX PRO 6000"),
        ("a100", "A100-80"),
        ("A100 80GB", "A100-80"),
        ("nvidia_h100", "H100"),
        ("h100 sxm", "H100"),
        ("amd instinct mi300x", "MI300X"),
        ("NVIDIA B300 SXM6 AC", "B300"),
    ],
)
def test_lookup_by_messy_names(messy: str, expected: str) -> None:
    assert gpu(messy).id == expected


def test_unknown_name_gives_the_nearest() -> None:
    with pytest.raises(UnknownGpuError, match=r"'B20'.* Did you mean B200") as caught:
        gpu("B20")
    assert "MI300X" in str(caught.value)


@pytest.mark.parametrize("name", ["", "NVIDIA", "???"])
def test_a_name_without_substance_is_unknown(name: str) -> None:
    with pytest.raises(UnknownGpuError):
        gpu(name)


def test_a_gb200_is_not_a_b200() -> None:
    assert gpu("GB200") is not gpu("B200")
    assert gpu("GB200").sm_count != gpu("B200").sm_count


def test_default_count_and_bad_count() -> None:
    assert gpu("B200").as_device()["count"] == 8
    with pytest.raises(CasebookError, match="0 B200"):
        gpu("B200").as_device(0)


def test_logged_free_memory_in_bytes() -> None:
    assert gpu("B200").as_device()["free_at_start_bytes"] == round(177.57 * GIB)
    assert gpu("GB200").as_device()["free_at_start_bytes"] is None


def test_software_versions_can_be_overridden() -> None:
    changed = gpu("B200").with_software(cuda_version="12.9")
    assert changed.cuda_version == "12.9"
    assert changed.driver_version == gpu("B200").driver_version
    assert "caller" in changed.source("cuda_version")
    assert "cuda_version" in changed.unbacked()
    assert gpu("B200").cuda_version == "13.0"


@pytest.mark.parametrize("versions", [{"hip_version": "7.0"}, {"cuda_version": "latest"}])
def test_software_versions_must_fit(versions: dict[str, str]) -> None:
    with pytest.raises(CasebookError, match="'B200' cannot take"):
        gpu("B200").with_software(**versions)


def test_source_of_a_figure_it_does_not_give() -> None:
    with pytest.raises(CasebookError, match="gives no figure 'hip_version'"):
        gpu("B200").source("hip_version")


def test_table_has_a_row_per_profile_and_units_in_its_columns() -> None:
    table = gpus_table()
    assert list(table["gpu"]) == list(load_gpus())
    assert {"smi_total_mib", "torch_total_mib", "free_at_start_gib", "l2_cache_mib"} <= set(table)
    row = table.set_index("gpu").loc["GB200"]
    assert row["derived_or_assumed"] == "torch_total_bytes, l2_cache_bytes"


def test_the_callers_copy_does_not_change_the_catalog() -> None:
    load_gpus().clear()
    assert load_gpus()


def test_data_folder_override(
    catalog: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CASEBOOK_DATA", str(catalog(GOOD).parent))
    assert gpu("x-one").id == "X1"


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("sm_count = 10\n", "", "sm_count: field required"),
        ("sm_count = 10\n", 'sm_count = "10"\n', "key sm_count: "),
        ("sm_count = 10\n", "sm_count = 0\n", "key sm_count: "),
        ("sm_count = 10\n", "sm_count = 10\nclock = 1\n", "key clock: "),
        ("[9, 0]", "[9]", r"key compute_capability"),
        ("[9, 0]", '["9", 0]', r"key compute_capability"),
        ('vendor = "nvidia"', 'vendor = "intel"', "key vendor: "),
        ('cuda_version = "13.0"\n', "", "needs cuda_version"),
        ("warp_size = 32", 'warp_size = 32\nhip_version = "7.0"', "has no hip_version"),
        ("torch_total_bytes = 1000000000", "torch_total_bytes = 1048576001", "exceeds smi_total"),
        ("warp_size = 32", "warp_size = 32\nfree_at_start_gib = 2.0", "exceeds torch_total"),
        ('sm_count = "https://example.org/x1"\n', "", "no source for sm_count"),
        ('sm_count = "https://example.org/x1"', 'sm_count = "I think"', "source of sm_count must"),
        ("[gpus.sources]", '[gpus.sources]\ngcn_arch = "https://x"', "a source for gcn_arch"),
        ('aliases = ["X one"]', 'aliases = ["NVIDIA"]', "no letter or digit"),
    ],
)
def test_an_invalid_entry_names_file_entry_and_key(
    catalog: Callable[[str], Path], old: str, new: str, complaint: str
) -> None:
    assert old in GOOD
    path = catalog(GOOD.replace(old, new))
    with pytest.raises(DataError, match=complaint) as caught:
        load_gpus(path)
    message = str(caught.value)
    assert message.startswith(f"{path}, gpus entry 1 (X1)")
    assert "\n" not in message
    assert message.endswith(".")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[[gpus]\n", "is not valid TOML"),
        ("", "no entry under the key gpus"),
        ("gpus = 3\n", "no entry under the key gpus"),
        ("gpus = [3]\n", "entry 1"),
        (GOOD + '[other]\nkey = "x"\n', "unknown key other"),
        (GOOD + GOOD, "already names X1"),
        (GOOD + GOOD.replace("X1", "X2"), "'xone' already names X1"),
    ],
)
def test_a_malformed_file_is_refused(
    catalog: Callable[[str], Path], text: str, complaint: str
) -> None:
    path = catalog(text)
    with pytest.raises(DataError, match=complaint) as caught:
        load_gpus(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere"):
        load_gpus(tmp_path / "nowhere.toml")


def test_a_file_in_another_encoding_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "gpus.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="not valid TOML"):
        load_gpus(path)
