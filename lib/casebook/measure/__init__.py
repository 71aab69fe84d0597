"""What real servers measured: their start-up logs read, and the figures that people published."""

from casebook.measure.errors import ForeignLogError, LogError, MeasurementError
from casebook.measure.fit import Calibration, calibrate, explain, fullest_rank, residuals
from casebook.measure.model import Measurement, Reading, Server
from casebook.measure.published import Published, published, published_start, published_table
from casebook.measure.read import read_log
from casebook.measure.tables import figures_table, ranks_table

__all__ = [
    "Calibration",
    "ForeignLogError",
    "LogError",
    "Measurement",
    "MeasurementError",
    "Published",
    "Reading",
    "Server",
    "calibrate",
    "explain",
    "figures_table",
    "fullest_rank",
    "published",
    "published_start",
    "published_table",
    "ranks_table",
    "read_log",
    "residuals",
]
