"""Errors of requests. Each interface writes them in its own format (`Interface.error`)."""

from __future__ import annotations

from regard.errors import DamagedModel, InputError


class ServiceError(Exception):
    """A request that gets an error response.

    Attributes:
        status: the HTTP status.
        message: one sentence: what is wrong and what to do.
        code: a short name of the error for programs.
        field: the field of the request that is wrong, if there is one.
        retry_after: seconds after which the client may try again.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str = "invalid_request",
        field: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code
        self.field, self.retry_after = field, retry_after


def bad_request(message: str, field: str | None = None) -> ServiceError:
    """The error for a request that is not valid."""
    return ServiceError(400, message, field=field)


def service_error(error: InputError) -> ServiceError:
    """An error of the package as one of a request, which is not valid, or of the service."""
    if isinstance(error, DamagedModel):
        return ServiceError(500, str(error), code="damaged_model")
    return bad_request(str(error))


class Overloaded(ServiceError):
    """The queue is full. `Interface.overloaded` is the status that the interface uses for it."""

    def __init__(self, retry_after: float) -> None:
        seconds = max(1, round(retry_after))
        super().__init__(
            429,
            f"the service is busy: try again in {seconds} s",
            code="overloaded",
            retry_after=seconds,
        )


class Loading(ServiceError):
    """The models are not loaded yet."""

    def __init__(self) -> None:
        super().__init__(
            503, "the models are being loaded: try again soon", code="loading", retry_after=1
        )


class TimedOut(ServiceError):
    """The request took longer than `Limits.seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            503,
            f"the request was stopped after {seconds:g} s: send less text, or try again later",
            code="timeout",
            retry_after=max(1, round(seconds)),
        )
