"""What others may build their tests on: conformance suites, scripted providers, in-memory Drivers, invented worlds."""
