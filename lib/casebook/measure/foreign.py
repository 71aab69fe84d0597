"""Which other server wrote a log that is not SGLang's, by the words only that server writes."""

from __future__ import annotations

import re

_LOOKED_AT = 4 * 2**20
_SIGNS: tuple[tuple[str, re.Pattern[bytes]], ...] = tuple(
    (server, re.compile(pattern, re.MULTILINE))
    for server, pattern in (
        ("vLLM", rb"vLLM API server|\bvllm[./]|GPU KV cache size: [\d,]+ tokens|\(EngineCore"),
        ("TensorRT-LLM", rb"\[TensorRT-LLM\]|\[TRT-LLM\]|tensorrt_llm"),
        ("llama.cpp", rb"^(?:\S+ )?(?:llama_(?:model_loader|kv_cache|context|new_context)|ggml_\w+_init|llm_load_\w+)"),
        ("Ollama", rb"source=(?:server|routes|sched|runner)\.go:\d+"),
        ("Text Generation Inference", rb"text_generation_(?:router|launcher|server)"),
        ("LMDeploy", rb"\[TM\]\[|lmdeploy - "),
        ("Triton Inference Server", rb"^[IWE]\d{4} [\d:.]+ \d+ [\w.]+\.cc:\d+\]"),
        ("nginx", rb'"(?:GET|POST|HEAD|PUT) \S+ HTTP/[\d.]+" \d{3} \d+ "|\[(?:notice|emerg|error)\] \d+#\d+:'),
    )
)  # fmt: skip


def seems_to_be(data: bytes) -> tuple[str, int] | None:
    """``(server, line of the first sign)``, or None if no sign of another server is found."""
    head = data[:_LOOKED_AT]
    for server, pattern in _SIGNS:
        if match := pattern.search(head):
            return server, head.count(b"\n", 0, match.start()) + 1
    return None
