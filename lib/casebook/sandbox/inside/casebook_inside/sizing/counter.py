"""Memory of the simulated GPU that is counted and not held.

Under torch's ``FakeTensorMode`` a tensor has a shape and no data. Each storage that is made on the
simulated device is booked here while it lives, so that "free memory" falls as it would on the real
device and SGLang's own log lines tell true figures.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

GRANULE = 2 << 20  # the driver hands out memory in pieces of 2 MiB
LARGE = 10 << 20  # the caching allocator rounds requests from here on to the granule


class OutOfDeviceMemoryError(torch.OutOfMemoryError):
    """What the real device would have raised."""


class Counter:
    """Free memory of one device. ``free_bytes`` is what is left before anything is counted."""

    def __init__(self, total_bytes: int, free_bytes: int, bounded: bool = True) -> None:
        self.bounded = bounded  # whether a request beyond what is free is refused
        self.total_bytes = total_bytes
        self.start_bytes = free_bytes
        self.charged_bytes = 0  # weights and what else is told, not allocated
        self.live_bytes = 0
        self.refused: dict[str, Any] | None = None
        self._seen: set[int] = set()

    @property
    def free_bytes(self) -> int:
        """What is left now."""
        return self.start_bytes - self.charged_bytes - self.live_bytes

    def charge(self, size_bytes: int) -> None:
        """Take away what is resident without being a tensor of this process."""
        self.charged_bytes += size_bytes

    def book(self, tensor: torch.Tensor) -> None:
        """Count a tensor's storage until it is freed. Raises what an out-of-memory device would."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._seen:
            return
        size = footprint(storage.nbytes())
        if self.bounded and size > self.free_bytes:
            self.refused = {
                "bytes": int(storage.nbytes()),
                "free_bytes": self.free_bytes,
                "shape": list(tensor.shape),
                "dtype": str(tensor.dtype).removeprefix("torch."),
            }
            gib = 1 << 30
            raise OutOfDeviceMemoryError(
                f"CUDA out of memory. Tried to allocate {storage.nbytes() / gib:.2f} GiB. "
                f"GPU 0 has a total capacity of {self.total_bytes / gib:.2f} GiB of which "
                f"{max(self.free_bytes, 0) / gib:.2f} GiB is free."
            )
        self._seen.add(key)
        self.live_bytes += size
        weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.live_bytes -= size


def footprint(size_bytes: int) -> int:
    """Bytes that the device gives for a request. Small ones share pieces and are counted as they are."""
    if size_bytes < LARGE:
        return size_bytes
    return -(-size_bytes // GRANULE) * GRANULE


class _Booking(TorchDispatchMode):
    def __init__(self, counter: Counter) -> None:
        super().__init__()
        self._counter = counter

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for one in result if isinstance(result, (list, tuple)) else (result,):
            if isinstance(one, FakeTensor) and one.fake_device.type == "cuda":
                self._counter.book(one)
        return result


class _NoDevice(FakeTensorMode):
    """torch's own mode asks whether a device is there, and the simulated one says yes."""

    @property
    def avoid_device_init(self) -> bool:
        """Never go to a driver."""
        return True


class _WithoutCuda(TorchFunctionMode):
    """The calls that torch's C++ answers by asking a CUDA build for its device, done without one."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if args and isinstance(args[0], FakeTensor):
            if func is torch.Tensor.__setitem__:
                return None  # there is nothing to write to
            if func is torch.Tensor.__getitem__ and args[0].fake_device.type == "cuda":
                return _index(*args)
            if func in (torch.Tensor.to, torch.Tensor.cuda):
                return _moved(func, args, kwargs)
        return func(*args, **kwargs)


def _index(tensor: torch.Tensor, key: Any) -> torch.Tensor:
    """Basic indexing by torch's own operators; anything else as torch does it."""
    keys = key if isinstance(key, tuple) else (key,)
    if not all(isinstance(k, (int, slice, type(Ellipsis))) for k in keys):
        return torch.Tensor.__getitem__(tensor, key)
    if Ellipsis in keys:
        place = keys.index(Ellipsis)
        fill = (slice(None),) * (tensor.dim() - len(keys) + 1)
        keys = (*keys[:place], *fill, *keys[place + 1 :])
    dimension = 0
    for one in keys:
        if isinstance(one, int):
            tensor = torch.ops.aten.select.int(tensor, dimension, one)
            continue
        first, last, step = one.indices(tensor.shape[dimension])
        tensor = torch.ops.aten.slice.Tensor(tensor, dimension, first, last, step)
        dimension += 1
    return tensor


def _moved(func: Any, args: Any, kwargs: dict[str, Any]) -> torch.Tensor:
    tensor, *rest = args
    rest = [*rest, kwargs.get("device"), kwargs.get("dtype"), kwargs.get("other")]
    device, dtype = None, None
    for one in rest:
        if isinstance(one, torch.dtype):
            dtype = one
        elif isinstance(one, torch.Tensor):
            device, dtype = one.device, one.dtype
        elif isinstance(one, (str, torch.device)):
            device = torch.device(one)
    if func is torch.Tensor.cuda:
        device = torch.device("cuda")
    if (device is None or device == tensor.device) and (dtype is None or dtype == tensor.dtype):
        return tensor
    return torch.ops.aten._to_copy.default(
        tensor, device=device or tensor.device, dtype=dtype or tensor.dtype
    )


def _keep(tensor: torch.Tensor, *_args: Any, **_kwargs: Any) -> torch.Tensor:
    return tensor


def _no_address(self: FakeTensor) -> int:  # noqa: ARG001 - a method's place
    return 0


@contextlib.contextmanager
def counted(counter: Counter) -> Iterator[None]:
    """Within, tensors hold no data and those on the device are booked with ``counter``."""
    # Pools keep their buffers' addresses for kernels that will never run here.
    initialisers = {n: f for n, f in vars(torch.nn.init).items() if n.endswith("_") and n[0] != "_"}
    for name in initialisers:
        setattr(torch.nn.init, name, _keep)  # there are no values to draw
    FakeTensor.data_ptr = _no_address  # type: ignore[assignment]
    try:
        with _NoDevice(allow_non_fake_inputs=True), _Booking(counter), _WithoutCuda():
            yield
    finally:
        for name, function in initialisers.items():
            setattr(torch.nn.init, name, function)
        del FakeTensor.data_ptr
