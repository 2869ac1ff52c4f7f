"""Log lines: one JSON object each, on standard error. Texts, and messages that may quote them, only with log_texts."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime


class JsonLines(logging.Formatter):
    """Formats a log record as one line of JSON; `extra={"facts": {...}}` adds fields.

    Example:
        >>> record = logging.LogRecord("softcue", logging.INFO, "", 0, "loaded", None, None)
        >>> json.loads(JsonLines(log_texts=False).format(record))["event"]
        'loaded'
    """

    def __init__(self, log_texts: bool) -> None:
        super().__init__()
        self._log_texts = log_texts

    def format(self, record: logging.LogRecord) -> str:
        """The line: time, level, event, facts, and the place of an error."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            line["error"] = type(error).__name__
            frames = traceback.extract_tb(error.__traceback__)
            line["trace"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
            if self._log_texts:
                line["message"] = str(error)
        return json.dumps(line, ensure_ascii=False, default=str)


def log_to_stderr(log_texts: bool) -> None:
    """Make every logger of this process write JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(log_texts))
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
