"""The worker: takes queued work, brings the world into the wanted state through the Drivers, publishes under its live claim.

`engine` runs lanes and keeps leases, `passes` holds one module per kind of work, `outcomes` and `classify` say how a pass can end. The
worker accepts no request and decides nothing that `core` has not admitted.
"""
