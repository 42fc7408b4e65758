"""A broken invariant."""


class Violation(BaseException):
    """Something does not hold that must."""

    def __init__(self, invariant: str, message: str) -> None:
        super().__init__(f"{invariant}: {message}")
        self.invariant = invariant
