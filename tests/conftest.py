"""What holds for every test."""

from hypothesis import HealthCheck, settings

# A busy machine takes its time; what is slow is measured in benchmarks/, not here.
settings.register_profile("sparkfleet", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("sparkfleet")
