"""The machine as a place for Sandboxes: start, keep, observe.

Three programs and a host side, in the order in which they meet a Sandbox:

* `machine` (host, asyncio): prepares directories, limits and the mount view, asks for a start, holds the running Sandbox.
* `spawner`: single-threaded, forks one keeper per Sandbox; a threaded process may not make user namespaces.
* `keeper`: lives in the Sandbox's outer user and network namespace, holds every descriptor that must outlive the host.
* `launcher`: runs inside, confines itself, starts the main process and answers `exec`.

The last three run as `python -I -S` and import nothing but a few standard modules and each other (`runtime` ships them).
Nothing here holds a secret, decides a policy or knows gRPC.
"""
