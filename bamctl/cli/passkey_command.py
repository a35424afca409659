"""`bamctl passkey`: a number in a haystack, at every length."""

from bamctl.cli import options
from bamctl.cli.options import MeasureOptions, measuring
from bamctl.locations import DEFAULT_MODEL


@measuring(default_model=DEFAULT_MODEL)
def passkey(
    digits: options.Digits = None,
    haystack: options.Haystack = None,
    apply_chat_template: options.ApplyChatTemplate = None,
    *,
    chosen: MeasureOptions,
) -> None:
    """Hide a number in a haystack and ask for it, at every length.

    Prints accuracy against length. Every sample is stored under --out as it finishes; the same command again
    goes on where it stopped.
    """
    from bamctl.cli.measure import measure

    overrides = {"digits": digits, "haystack": haystack, "apply_chat_template": apply_chat_template}
    measure({"passkey": ["passkey"]}, overrides, chosen)
