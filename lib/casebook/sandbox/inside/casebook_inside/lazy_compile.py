"""``torch.compile`` that waits until what it decorates is called.

SGLang and transformers decorate functions with it while they are imported, and the first such line
loads TorchDynamo and Inductor: some 800 modules and a quarter of the child's start, for functions that
only a GPU runs. A function that is called after all is compiled then, with the same arguments.
"""

from __future__ import annotations

import functools
import types
from typing import Any


def install(torch: Any) -> None:
    """Put the waiting form in the place of ``torch.compile``; once per process."""
    compile_now = torch.compile

    @functools.wraps(compile_now)
    def compile_later(model: Any = None, **options: Any) -> Any:
        if model is None:
            return functools.partial(compile_later, **options)
        if not isinstance(model, types.FunctionType):
            return compile_now(model, **options)  # a module keeps its own ways

        @functools.wraps(model)
        def waiting(*args: Any, **kwargs: Any) -> Any:
            return compiled()(*args, **kwargs)

        compiled = functools.cache(lambda: compile_now(model, **options))
        return waiting

    torch.compile = compile_later
