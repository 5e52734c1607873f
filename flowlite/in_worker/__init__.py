"""The parts of flowlite that workers use: `should_stop()`, and the decorator on nodes without flowlite."""
