"""The waiting ``torch.compile``: nothing is compiled before a call, and then with what was asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from casebook_inside import lazy_compile


def _torch() -> tuple[Any, list[tuple[Any, dict[str, Any]]]]:
    compiled: list[tuple[Any, dict[str, Any]]] = []

    def compile(model: Any = None, **options: Any) -> Any:
        compiled.append((model, options))
        return lambda *args: ("compiled", model(*args))

    torch = SimpleNamespace(compile=compile)
    lazy_compile.install(torch)
    return torch, compiled


def test_a_decorated_function_is_compiled_at_its_first_call_and_once() -> None:
    torch, compiled = _torch()

    @torch.compile(dynamic=True, backend="inductor")
    def double(n: int) -> int:
        """Twice."""
        return 2 * n

    assert (double.__name__, double.__doc__, compiled) == ("double", "Twice.", [])
    assert (double(3), double(4)) == (("compiled", 6), ("compiled", 8))
    ((model, options),) = compiled
    assert model is double.__wrapped__
    assert options == {"dynamic": True, "backend": "inductor"}


def test_used_bare_and_on_what_is_no_function() -> None:
    torch, compiled = _torch()

    @torch.compile
    def double(n: int) -> int:
        return 2 * n

    assert compiled == []
    assert double(1) == ("compiled", 2)

    class Module:
        def __call__(self, n: int) -> int:
            return n

    module = Module()
    assert torch.compile(module)(5) == ("compiled", 5)
    assert compiled[-1] == (module, {})
