"""What EC2 offers: instance types, the zones that have them, prices, quotas and reservations.

`regions.py` asks for the types, zones and prices of a region, and caches them in `FLOW_HOME/aws/catalog`: types for a
week, zones and prices for a day, spot prices for a minute. `instance_types.py` says whether a type meets a task's
requirements, `market.py` which types with their prices do, for plans and offers, and `offers.py` explains it if none
does. `quotas.py` counts vCPUs, `reservations.py` finds capacity that is reserved. `zone_order.py` is pure.

Nothing is launched or changed here. Imports `aws` (session, errors, pages, settings), `provider`, `spec` and
`state.clock`. Start with `market.py`.
"""
