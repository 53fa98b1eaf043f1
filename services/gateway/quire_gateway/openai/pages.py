"""Lists that are read a page at a time.

One job: the dialect's list object, and where a page begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from quire_servicekit.errors import InvalidRequest


def page(items: Sequence[dict[str, Any]], limit: int, after: str, *, max_limit: int) -> bytes:
    """The page behind the item `after` (empty: the first) as a list object. Raises naming what is out of range."""
    if not 1 <= limit <= max_limit:
        raise InvalidRequest("limit", f"from 1 to {max_limit}", limit)
    ids = [item["id"] for item in items]
    if after and after not in ids:
        raise InvalidRequest("after", "the id of an item of this list", after)
    start = ids.index(after) + 1 if after else 0
    data = list(items[start : start + limit])
    document = {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": start + limit < len(items),
    }
    return orjson.dumps(document)


def ordered(items: Sequence[dict[str, Any]], order: str) -> Sequence[dict[str, Any]]:
    """The items, the oldest first by `asc`, the newest first by `desc`. Raises for another order."""
    if order not in ("asc", "desc"):
        raise InvalidRequest("order", "asc or desc", order)
    return items if order == "asc" else items[::-1]
