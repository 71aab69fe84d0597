"""What real servers measured: their start-up logs read, and the figures that people published."""

from casebook.measure.errors import ForeignLogError, LogError, MeasurementError
from casebook.measure.model import Measurement, Reading, Server
from casebook.measure.published import Published, published, published_start, published_table
from casebook.measure.read import read_log

__all__ = [
    "ForeignLogError",
    "LogError",
    "Measurement",
    "MeasurementError",
    "Published",
    "Reading",
    "Server",
    "published",
    "published_start",
    "published_table",
    "read_log",
]
