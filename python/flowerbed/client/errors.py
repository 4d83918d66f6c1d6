"""What a gateway answers when it cannot serve a request."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, cast

from flowerbed.errors import FlowerbedError

_INDEXED = re.compile(r"(?P<field>[^\[\]]+)\[(?P<index>\d+)\]")
_MAX_QUOTED_CHARS = 200


@dataclass(frozen=True)
class Problem:
    """The gateway's error object; everything but the message may be missing."""

    message: str
    kind: str | None = None  # such as invalid_input
    field: str | None = None  # of the request, such as input
    index: int | None = None  # of the input at fault


class RequestError(FlowerbedError):
    """The gateway refused a request, or could not be reached.

    Attributes:
        status: HTTP status; None if there was no answer.
        kind: Kind of the error, such as `invalid_input`.
        field: Field of the request at fault, such as `input`.
        index: Which of the inputs, counted from 0.
        request_id: Under which the server logged it.
    """

    def __init__(
        self, problem: Problem, *, status: int | None = None, request_id: str | None = None
    ) -> None:
        super().__init__(problem.message)
        self.status = status
        self.kind = problem.kind
        self.field = problem.field
        self.index = problem.index
        self.request_id = request_id


def read_problem(status: int, body: bytes) -> Problem:
    """Reads an OpenAI error object; anything else becomes a message that quotes it."""
    try:
        parsed: Any = json.loads(body)
    except ValueError:
        parsed = None
    error: Any = cast("dict[str, Any]", parsed).get("error") if isinstance(parsed, dict) else None
    if not isinstance(error, dict):
        text = body[:_MAX_QUOTED_CHARS].decode(errors="replace").strip()
        return Problem(f"the server answered {status}: {text or 'no text'}")
    fields = cast("dict[str, Any]", error)
    field = _text(fields.get("param"))
    index = fields.get("index")
    indexed = _INDEXED.fullmatch(field) if field else None
    if indexed:
        field, index = indexed["field"], int(indexed["index"])
    return Problem(
        message=_text(fields.get("message")) or f"the server answered {status}",
        kind=_text(fields.get("code")) or _text(fields.get("type")),
        field=field,
        index=index if isinstance(index, int) else None,
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
