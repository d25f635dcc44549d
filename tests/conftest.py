"""Settings that all tests share."""

from hypothesis import HealthCheck, settings

# The same examples every time: a failure in one run is a failure in the next.
settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("repeatable")
