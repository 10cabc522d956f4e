"""What all tests have in common: random examples are the same in every run.

`HYPOTHESIS_PROFILE=explore` draws new ones, to look for what nobody has thought of yet.
"""

import os

from hypothesis import settings

settings.register_profile("same", derandomize=True)
settings.register_profile("explore", derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
