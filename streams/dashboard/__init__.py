"""A live page of an application's group: looks at its two topics, and serves what it saw to browsers and to Prometheus."""
