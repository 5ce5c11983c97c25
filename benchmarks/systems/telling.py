"""What a measured process says: one JSON object per line on standard output, by the name of the event."""

import json


def tell(event: str, **facts: object) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)
