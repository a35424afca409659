"""What the native backend will do with prompts of any length, without doing it."""

from dataclasses import dataclass

from bamctl.models.work import HeadWork, PrefillWork


@dataclass(frozen=True, kw_only=True)
class NativeWorkload:
    """`bamctl.backends.base.Workload` of the native backend."""

    prefill: PrefillWork
    memory_bytes: int
    cache_bytes_a_token: int
    shared_unit: int | None
    """Tokens in common are taken over in whole chunks of so many; None where nothing is taken over."""

    @property
    def sample_tokens(self) -> int:
        """See `bamctl.backends.base.Workload`."""
        return self.prefill.sample_tokens

    def heads(self, length: int) -> list[HeadWork]:
        """See `bamctl.backends.base.Workload`."""
        return self.prefill.heads(length)

    def flops(self, length: int, *, alike: int = 0) -> float:
        """See `bamctl.backends.base.Workload`."""
        start = 0
        if self.shared_unit is not None:  # the last token is always read
            start = min(alike, length - 1) // self.shared_unit * self.shared_unit
        return self.prefill.flops(length, start=start)

    def cache_bytes(self, length: int) -> int:
        """See `bamctl.backends.base.Workload`."""
        return length * self.cache_bytes_a_token
