"""Stand-ins: there for SGLang, absent for everyone else."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from casebook_inside.stubs import Stub, StubDistribution, StubModule, triton_target


def test_a_stub_is_whatever_it_is_used_as() -> None:
    stub = Stub("kernels")

    @stub.jit
    def function() -> int:
        return 7

    @stub.autotune(configs=[], key=["x"])
    def other() -> int:  # what the stub's call gave is a stub, which hands it back again
        return 8

    class Derived(stub.Base[int]):
        pass

    assert function() == 7
    assert other() == 8
    assert isinstance(stub.launch(1, 2), Stub)
    assert Derived.__mro__[1].__name__ == "Base"
    assert stub.a is stub.a
    assert list(stub) == []
    assert stub.dtype["x"] is stub.dtype
    assert (stub.Tensor | None) is stub.Tensor
    assert (None | stub.Tensor) is stub.Tensor
    assert not isinstance(1, stub.Tensor)
    assert not issubclass(int, stub.Tensor)
    assert repr(stub.a.b) == "<stub kernels.a.b>"
    with pytest.raises(AttributeError):
        stub.__wrapped__  # noqa: B018


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_a_stub_can_be_copied(duplicate: Callable[[Any], Any]) -> None:
    assert repr(duplicate(Stub("a.b"))) == "<stub a.b>"
    assert repr(Stub.__new__(Stub)) == "<stub ?>"


def test_a_module_of_stubs() -> None:
    module = StubModule("sgl_kernel")
    assert repr(module.gemm) == "<stub sgl_kernel.gemm>"
    with pytest.raises(AttributeError):
        module.__all__  # noqa: B018


def test_a_stub_distribution_has_the_version_that_was_asked_for() -> None:
    distribution = StubDistribution("flash-attn-4", "4.0.1", ["flash_attn"])
    assert (distribution.metadata["Name"], distribution.version) == ("flash-attn-4", "4.0.1")
    assert distribution.read_text("RECORD") is None


@pytest.mark.parametrize(
    ("vendor", "backend", "arch"), [("nvidia", "cuda", 100), ("amd", "hip", "gfx942")]
)
def test_triton_is_told_of_the_device(vendor: str, backend: str, arch: Any) -> None:
    device = {"vendor": vendor, "compute_capability": [10, 0], "warp_size": 32, "gfx": "gfx942"}
    driver = triton_target(device)["triton.runtime.driver"]
    target = driver.active.get_current_target()
    assert (target.backend, target.arch) == (backend, arch)


WAYS = """
def ways(name, dist):
    import importlib, importlib.metadata, importlib.util
    def attempt(function):
        try:
            return str(function())
        except (ImportError, importlib.metadata.PackageNotFoundError):
            return None
    def statement():
        scope = {"__name__": __name__}
        exec(f"import {name} as m", scope)
        return scope["m"].__version__
    def submodule():
        scope = {"__name__": __name__}
        exec(f"from {name}.deep.er import thing", scope)
        return scope["thing"]
    return {
        "import": attempt(statement),
        "from": attempt(submodule),
        "import_module": attempt(lambda: importlib.import_module(name).__version__),
        "find_spec": attempt(lambda: "found" if importlib.util.find_spec(name) else None),
        "version": attempt(lambda: importlib.metadata.version(dist)),
    }
"""
SCRIPT = """
import json, sys
sys.path.insert(0, sys.argv[1])
from casebook_inside import stubs
package = lambda module, dist, everyone=False: {
    "module": module, "distribution": dist, "version": "1.2.3", "everyone": everyone}
stubs.install(
    [package("fake_kernel", "fake-kernel"), package("fakevision", "fakevision", True),
     package("json", "json")], {"fake_kernel.real": 42})
import transformers.user, sglang.user
seen = {
    "stranger first": transformers.user.ways("fake_kernel", "fake-kernel"),
    "sglang": sglang.user.ways("fake_kernel", "fake-kernel"),
    "stranger after": transformers.user.ways("fake_kernel", "fake-kernel"),
    "everyone": transformers.user.ways("fakevision", "fakevision"),
    "unknown": sglang.user.ways("not_there_at_all", "not-there-at-all"),
    "value": sys.modules["fake_kernel"].real,
    "real": "stub" in repr(sys.modules["json"]),
}
print(json.dumps(seen))
"""


def test_who_finds_a_stub(in_child: Callable[..., Any], tmp_path: Path) -> None:
    for package in ("sglang", "transformers"):
        folder = tmp_path / "site" / package
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("", "utf-8")
        (folder / "user.py").write_text(WAYS, "utf-8")
    seen = in_child(SCRIPT, str(tmp_path / "site"))
    assert set(seen["sglang"].values()) == {*("1.2.3", "<stub fake_kernel.deep.er.thing>", "found")}
    assert seen["everyone"]["import"] == seen["everyone"]["version"] == "1.2.3"
    for who in ("stranger first", "stranger after", "unknown"):
        assert set(seen[who].values()) <= {None, "None"}, who
    assert seen["value"] == 42
    assert not seen["real"]
