"""Stand-ins for the GPU packages that a capsule leaves out.

A real installation of a release has them, and SGLang's choices depend on that
(``is_flashinfer_available()``), so towards SGLang a stub is present: it imports, has a version
and is found. Towards everyone else it is absent, or transformers would believe that flash-attn
is there and fail on using it. A package that a plain installation lacks is not stubbed: its
``ImportError`` is part of how SGLang decides.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import importlib.metadata
import importlib.util
import sys
import types
from typing import Any

_MACHINERY = ("importlib", "_frozen_importlib", "casebook_inside.stubs", "typing", "inspect")


class Stub:
    """Any object of a stubbed package: callable, subscriptable, usable as decorator or base."""

    _stub_name = "?"  # of one that was made without __init__, as a copy is

    def __init__(self, name: str) -> None:
        self.__dict__["_stub_name"] = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__") and attribute.endswith("__"):
            raise AttributeError(attribute)
        child = Stub(f"{self._stub_name}.{attribute}")
        self.__dict__[attribute] = child
        return child

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Used bare as a decorator it must hand back what it decorates.
        if len(args) == 1 and not kwargs and isinstance(args[0], (types.FunctionType, type)):
            return args[0]
        return Stub(f"{self._stub_name}()")

    def __getitem__(self, key: Any) -> Any:
        return self

    def __or__(self, other: Any) -> Any:  # `stub.Tensor | None` in annotations
        return self

    __ror__ = __or__

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        name = self._stub_name.rpartition(".")[2]
        return (type(name, (), {"__module__": "casebook_inside.stubs"}),)

    def __iter__(self) -> Any:
        return iter(())

    def __instancecheck__(self, instance: Any) -> bool:  # `isinstance(x, stub.Tensor)`
        return False

    def __subclasscheck__(self, cls: Any) -> bool:
        return False

    def __repr__(self) -> str:
        return f"<stub {self._stub_name}>"


class StubModule(types.ModuleType):
    """A module of a stubbed package; every attribute is a ``Stub``."""

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__") and attribute.endswith("__"):
            raise AttributeError(attribute)
        value = Stub(f"{self.__name__}.{attribute}")
        setattr(self, attribute, value)
        return value


class StubDistribution(importlib.metadata.Distribution):
    """Metadata of a stubbed distribution: the version that the release itself asks for."""

    def __init__(self, name: str, version: str, modules: list[str]) -> None:
        self._text = {
            "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            "top_level.txt": "\n".join(modules),
        }

    def read_text(self, filename: str) -> str | None:
        return self._text.get(filename)

    def locate_file(self, path: Any) -> Any:
        return path


class StubFinder:
    """Answers imports of stubbed packages, for SGLang's own modules only.

    ``packages``: ``{"module": str, "distribution": str, "version": str, "everyone": bool}``;
    ``everyone`` marks the exception (torchvision, without which transformers hides classes that
    SGLang's configurations need). ``values`` gives the few attributes that must be real objects, by
    their dotted path.
    """

    def __init__(self, packages: list[dict[str, Any]], values: dict[str, Any]) -> None:
        self._values = values
        self._by_module = {package["module"]: package for package in packages}
        self._by_distribution = {_normalise(p["distribution"]): p for p in packages}

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> Any:
        package = self._by_module.get(name.partition(".")[0])
        if package is None or not (package["everyone"] or called_from_sglang()):
            return None
        spec = importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        spec.submodule_search_locations = []
        return spec

    def create_module(self, spec: Any) -> types.ModuleType:
        module = StubModule(spec.name, doc="Stand-in made by casebook.")
        module.__path__ = []
        module.__file__ = f"<casebook stub {spec.name}>"
        module.__version__ = self._by_module[spec.name.partition(".")[0]]["version"]  # type: ignore[attr-defined]
        for path, value in self._values.items():
            owner, _, attribute = path.rpartition(".")
            if owner == spec.name:
                setattr(module, attribute, value)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""

    def find_distributions(self, context: Any = None) -> Any:
        wanted = getattr(context, "name", None)
        if wanted is None:
            packages = list(self._by_distribution.values())
        else:
            packages = [self._by_distribution.get(_normalise(wanted))]  # type: ignore[list-item]
        for package in packages:
            if package and (package["everyone"] or called_from_sglang()):
                yield StubDistribution(
                    package["distribution"], package["version"], [package["module"]]
                )


def called_from_sglang() -> bool:
    """Whether the nearest frame outside the import machinery belongs to SGLang."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        root = module.partition(".")[0]
        if module != __name__ and root not in _MACHINERY:
            # A stub's own frames never import; anything else decides.
            return root == "sglang"
        frame = frame.f_back
    return False


def _normalise(name: str) -> str:
    return name.replace("-", "_").replace(".", "_").lower()


def triton_target(device: dict[str, Any]) -> dict[str, Any]:
    """What ``triton.runtime.driver.active.get_current_target()`` says of the simulated device.

    SGLang's kernels read it when they are imported, to learn whether they run on CUDA or HIP.
    """
    amd = device["vendor"] == "amd"
    major, minor = device["compute_capability"]
    target = types.SimpleNamespace(
        backend="hip" if amd else "cuda",
        arch=device["gfx"] if amd else major * 10 + minor,
        warp_size=device["warp_size"],
    )
    active = types.SimpleNamespace(
        get_current_target=lambda: target,
        get_current_device=lambda: 0,
        utils=Stub("triton.runtime.driver.active.utils"),
    )
    driver = types.SimpleNamespace(active=active)
    runtime = StubModule("triton.runtime")
    runtime.driver = driver  # type: ignore[attr-defined]
    return {"triton.runtime": runtime, "triton.runtime.driver": driver}


def install(packages: list[dict[str, Any]], values: dict[str, Any]) -> None:
    """Put the stub finder last, so that whatever really exists wins, and keep stubs from strangers.

    Once SGLang has imported a stub it stands in ``sys.modules``, where an import statement,
    ``import_module`` or ``find_spec`` of any other package would find it; all are told that it is
    absent.
    """
    sys.meta_path.append(StubFinder(packages, values))  # type: ignore[arg-type]
    hidden = {package["module"] for package in packages if not package["everyone"]}
    real_import, real_find_spec = builtins.__import__, importlib.util.find_spec
    real_import_module = importlib.import_module

    def guarded_import(
        name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        root = name.partition(".")[0]
        if level == 0 and root in hidden:
            importer = (globals or {}).get("__name__", "").partition(".")[0]
            if importer not in ("sglang", root) and not called_from_sglang():
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real_import(name, globals, locals, fromlist, level)

    def guarded_import_module(name: str, package: str | None = None) -> Any:
        if name.partition(".")[0] in hidden and not called_from_sglang():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real_import_module(name, package)

    def guarded_find_spec(name: str, package: str | None = None) -> Any:
        if name.partition(".")[0] in hidden and not called_from_sglang():
            return None
        return real_find_spec(name, package)

    builtins.__import__ = guarded_import
    importlib.import_module = guarded_import_module
    importlib.util.find_spec = guarded_find_spec
