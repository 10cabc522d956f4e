"""Live page of an application's group, for browsers and Prometheus."""
