"""From any exception to the API's error.

`core.errors.public` holds the one mapping; this module adds what only HTTP has: the sentence that tells the first problems of a refused
document, and `Retry-After`.
"""

from __future__ import annotations

from oce.api import problems
from oce.api.errors import ApiError, Problem, printable
from oce.core.errors import public
from oce.domain.failures import failure


def translate(error: Exception) -> ApiError:
    """Return the answer for whatever a handler raised; what nobody knows becomes INTERNAL_ERROR."""
    if isinstance(error, ApiError):
        return error
    known = public(error)
    found = [Problem(item.path, item.code, printable(item.note)) for item in known.details]
    message = known.message
    if found and known.code == "INVALID_REQUEST" and message == failure(known.code).message:
        message = problems.refuse(found).message
    headers = {} if known.retry_after is None else {"retry-after": str(known.retry_after)}
    return ApiError(known.code, message, problems=found, status=known.status, headers=headers)
