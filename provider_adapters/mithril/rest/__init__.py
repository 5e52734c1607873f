"""Mithril's REST API, as far as flowlite uses it.

`client.py` sends: it retries reads and deletes, and a POST only if the server says that it did nothing or was never
reached. Any other failure of a POST is `OutcomeUnknown`, and the caller looks the outcome up. `requests.py` makes
bodies and queries, as pure functions. `transport.py` finds the proxy, `bounded_http.py` bounds answers in bytes and
time, and `response_format.py` reports those of an unknown format. `credentials.py` finds the API key, which is in one
header and nowhere else, and masks keys in texts of the provider.

Nothing here decides what is launched. Imports `errors`, `settings`, `connect/bounded.py` and `rented/page_bounds.py`.
Start with `client.py`.
"""
