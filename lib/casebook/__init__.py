"""SGLang Casebook: what SGLang does with a launch, shown by running SGLang's own code."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("sglang-casebook")
except PackageNotFoundError:  # a checkout on sys.path that was never installed
    __version__ = "0+checkout"
