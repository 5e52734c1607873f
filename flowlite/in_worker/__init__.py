"""What a worker uses of flowlite: `should_stop()`, and the decorator where flowlite is not installed."""
