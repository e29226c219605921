"""How checks see that a call is refused."""


def refused(call, error):
    """The text of the error with which `call` must fail."""
    try:
        call()
    except error as refusal:
        return str(refusal)
    raise AssertionError("it was not refused")
