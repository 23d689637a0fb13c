from __future__ import annotations

from flowactions_plugin.queue.statements import FOLDER, statement
from tests.queueing import Queue


async def test_nothing_but_the_parts_is_left_to_fill_in(queue: Queue) -> None:
    """A name in braces that nothing fills in would be sent."""
    files = [path.stem for path in FOLDER.glob("*.sql")]
    own = {name for name in files if name.partition(".")[2] in {"", queue.database.sql.name}}
    for name in own:
        assert "{" not in statement(queue.database.sql, name.partition(".")[0]).text
