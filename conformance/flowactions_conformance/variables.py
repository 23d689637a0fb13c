"""The variables of the environment that `serve-env` writes beside the host's settings."""

from __future__ import annotations

from typing import Final

PREFIX: Final = "FLOWACTIONS_CONFORMANCE_"
"""Of variables that are for the kit, and no settings."""
PROBE: Final = f"{PREFIX}PROBE"
"""Where the probe reports. Without it there is no probe."""
PROBE_TOKEN: Final = f"{PREFIX}TOKEN"
"""With which the probe reports and answers."""
DATABASE: Final = f"{PREFIX}DATABASE_URL"
"""Where the host may keep its own tables, as `Env.database_url`."""
DESK: Final = f"{PREFIX}DESK"
"""The Unix socket at which a run takes over from `serve-env`."""
