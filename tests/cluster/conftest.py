"""One Ray session for the tests of this folder."""

import pytest

from prefsel_ray.cluster.session import session


@pytest.fixture(scope="session")
def ray_session():
    """Two logical CPUs on this machine."""
    with session(cpus=2) as cluster:
        yield cluster
