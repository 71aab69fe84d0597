"""The simulated GPU: what torch reports is replaced by a profile.

Only questions are answered (how many devices, which, how large); nothing is computed on the
device, so a call that would really need one fails as it does on any machine without a GPU.
"""

from __future__ import annotations

import os
import types
from typing import Any


def install(device: dict[str, Any]) -> None:
    """Patch torch with ``device`` (see ``GpuProfile.as_device``); must run before SGLang's import."""
    import torch

    amd = device["vendor"] == "amd"
    torch.version.cuda = None if amd else device["cuda_version"]  # type: ignore[attr-defined]
    torch.version.hip = device["hip_version"] if amd else None  # type: ignore[attr-defined]

    capability = tuple(device["compute_capability"])
    total_bytes = int(device["torch_total_bytes"])
    properties = types.SimpleNamespace(
        name=device["device_name"],
        major=capability[0],
        minor=capability[1],
        total_memory=total_bytes,
        multi_processor_count=device["sm_count"],
        warp_size=device["warp_size"],
        max_threads_per_multi_processor=device["max_threads_per_multiprocessor"],
        shared_memory_per_block_optin=device["shared_memory_per_block_optin_bytes"],
        L2_cache_size=device["l2_cache_bytes"],
        regs_per_multiprocessor=65536,
        gcnArchName=device["gcn_arch"] or "",
        is_integrated=int(device["integrated"]),
        is_multi_gpu_board=0,
        uuid="00000000-0000-0000-0000-000000000000",
    )
    _forgive_missing_kernels(torch)
    arch = device["gfx"] if amd else f"sm_{capability[0]}{capability[1]}"

    cuda = torch.cuda
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: False,
        "device_count": lambda: visible_count(device),
        "current_device": lambda: 0,
        "set_device": lambda _device: None,
        "get_device_name": lambda _device=None: device["device_name"],
        "get_device_capability": lambda _device=None: capability,
        "get_device_properties": lambda _device=None: properties,
        "get_arch_list": lambda: [arch],
        "mem_get_info": lambda _device=None: (total_bytes, total_bytes),
        "memory_allocated": lambda _device=None: 0,
        "memory_reserved": lambda _device=None: 0,
        "empty_cache": lambda: None,
        "synchronize": lambda _device=None: None,
        "is_bf16_supported": lambda *_args, **_kwargs: capability >= (8, 0) or amd,
    }
    for name, answer in answers.items():
        setattr(cuda, name, answer)


def visible_count(device: dict[str, Any]) -> int:
    """Devices left by ``CUDA_VISIBLE_DEVICES`` (or ``HIP_``), as the driver would count them."""
    names = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES") if device["vendor"] == "amd" else ()
    for name in (*names, "CUDA_VISIBLE_DEVICES"):
        text = os.environ.get(name)
        if text is None:
            continue
        count = 0
        for word in text.split(","):  # the driver stops at the first word it does not know
            word = word.strip()
            if word in ("", "-1") or (word.isdigit() and int(word) >= device["count"]):
                break
            count += 1
        return min(count, device["count"])
    return int(device["count"])


def _forgive_missing_kernels(torch: Any) -> None:
    """Let ``register_fake`` pass for operators of a stubbed kernel package.

    Older releases (0.5.8.post1, 0.5.9) describe the shapes of ``sgl_kernel::*`` operators when they
    are imported; the operators themselves come with the package that is left out.
    """
    original = torch.library.register_fake

    def register_fake(op: Any, func: Any = None, /, **kwargs: Any) -> Any:
        def register(function: Any) -> Any:
            try:
                original(op, function, **kwargs)
            except RuntimeError as error:
                if "does not exist" not in str(error):
                    raise
            return function

        return register if func is None else register(func)

    torch.library.register_fake = register_fake
